#include "common/admin/metrics_text.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"

namespace starling::admin {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // Whole numbers print without an exponent: people read counters, too.
  if (value == std::floor(value) && std::fabs(value) < 1e15) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  return absl::StrFormat("%.9g", value);
}

void AppendSample(absl::string_view name, const MetricsText::Labels& labels,
                  absl::string_view value, std::string* out) {
  absl::StrAppend(out, name);
  absl::string_view separator = "{";
  for (const auto& [label, text] : labels) {
    absl::StrAppend(out, separator, label, "=\"",
                    absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
                    "\"");
    separator = ",";
  }
  absl::StrAppend(out, labels.empty() ? "" : "}", " ", value, "\n");
}

}  // namespace

std::string* MetricsText::Samples(absl::string_view name, absl::string_view type,
                                  absl::string_view help) {
  Family& family = families_[std::string(name)];
  STARLING_CHECK(family.type.empty() || family.type == type, "a metric has two types");
  family.type = type;
  if (family.help.empty()) {
    family.help = absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}});
  }
  return &family.samples;
}

void MetricsText::Counter(absl::string_view name, absl::string_view help, const Labels& labels,
                          double value) {
  AppendSample(name, labels, Number(value), Samples(name, "counter", help));
}

void MetricsText::Gauge(absl::string_view name, absl::string_view help, const Labels& labels,
                        double value) {
  AppendSample(name, labels, Number(value), Samples(name, "gauge", help));
}

void MetricsText::Histogram(absl::string_view name, absl::string_view help, const Labels& labels,
                            const SecondsCounts& counts) {
  std::string* const out = Samples(name, "histogram", help);
  const std::string bucket = absl::StrCat(name, "_bucket");
  uint64_t total = 0;
  for (size_t i = 0; i < counts.buckets.size(); ++i) {
    total += counts.buckets[i];
    const std::string bound = i < kSecondsBounds.size() ? Number(kSecondsBounds[i]) : "+Inf";
    Labels with_bound = labels;
    with_bound.emplace_back("le", bound);
    AppendSample(bucket, with_bound, absl::StrCat(total), out);
  }
  AppendSample(absl::StrCat(name, "_sum"), labels, Number(counts.sum), out);
  AppendSample(absl::StrCat(name, "_count"), labels, absl::StrCat(total), out);
}

void MetricsText::Add(const MetricsText& other) {
  for (const auto& [name, family] : other.families_) {
    Family& mine = families_[name];
    STARLING_CHECK(mine.type.empty() || mine.type == family.type, "a metric has two types");
    mine.type = family.type;
    mine.help = family.help;
    mine.samples += family.samples;
  }
}

std::string MetricsText::Text() const {
  std::string text;
  for (const auto& [name, family] : families_) {
    absl::StrAppend(&text, "# HELP ", name, " ", family.help, "\n# TYPE ", name, " ", family.type,
                    "\n", family.samples);
  }
  return text;
}

void MetricsText::Miss(absl::string_view why) {
  if (missing_.empty()) missing_ = std::string(why);
}

}  // namespace starling::admin
