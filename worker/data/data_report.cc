#include "worker/data/data_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr int64_t kValuesShown = 8;
constexpr int64_t kTextShown = 60;
constexpr int64_t kClassesMax = 1 << 20;  // in a histogram
constexpr size_t kClassesShown = 20;
constexpr int64_t kBytes = 256;

// One sample's elements; its format says which of the two vectors is used.
struct Elements {
  std::vector<float> values;
  std::vector<int32_t> numbers;
  explicit Elements(int64_t n, bool integers)
      : values(integers ? 0 : n), numbers(integers ? n : 0) {}
  void* data() { return values.empty() ? static_cast<void*>(numbers.data()) : values.data(); }
};

class RangeOf {
 public:
  void Add(double value) {
    least_ = count_ == 0 ? value : std::min(least_, value);
    greatest_ = count_ == 0 ? value : std::max(greatest_, value);
    ++count_;
    const double delta = value - mean_;  // Welford 1962
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (value - mean_);
  }
  ValueRange range() const {
    return {least_, greatest_, mean_,
            std::sqrt(squares_ / std::max<double>(1, static_cast<double>(count_)))};
  }

 private:
  int64_t count_ = 0;
  double least_ = 0;
  double greatest_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

bool IsImage(const SampleFormat& format) {
  return format.type == FLOAT32 && format.shape.size() == 3;
}
bool IsText(const SampleFormat& format) {
  return format.type == INT32 && format.vocabulary == kBytes;
}

template <typename T>
std::string FirstOf(const std::vector<T>& values) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min<size_t>(kValuesShown, values.size()));
  return absl::StrCat("[", absl::StrJoin(values.begin(), values.begin() + shown, ", "),
                      values.size() > kValuesShown ? ", ..." : "", "]");
}

std::string Short(const Elements& elements, const SampleFormat& format) {
  if (!IsText(format)) {
    return elements.values.empty() ? FirstOf(elements.numbers) : FirstOf(elements.values);
  }
  std::string text;
  for (int32_t token : elements.numbers) text.push_back(static_cast<char>(token));
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kTextShown)),
                      text.size() > kTextShown ? "..." : "", "\"");
}

std::string ClassText(int64_t label, const std::vector<std::string>& names) {
  const bool named = label >= 0 && label < static_cast<int64_t>(names.size());
  return named ? absl::StrCat(label, " (", names[label], ")") : absl::StrCat(label);
}

std::string RangeText(const ValueRange& range) {
  return absl::StrFormat("%.4g to %.4g, mean %.4g, deviation %.4g", range.least, range.greatest,
                         range.mean, range.deviation);
}

std::string HistogramText(const DataReport& report) {
  std::vector<std::string> parts;
  for (size_t c = 0; c < report.histogram.size() && parts.size() < kClassesShown; ++c) {
    // Skips tokens that do not occur.
    if (report.histogram[c] == 0 && report.format.type == INT32) continue;
    parts.push_back(absl::StrCat(ClassText(static_cast<int64_t>(c), report.class_names), ": ",
                                 report.histogram[c]));
  }
  const auto used =
      report.histogram.size() - std::count(report.histogram.begin(), report.histogram.end(), 0);
  return absl::StrCat(used, " of ", report.histogram.size(), " occur: ", absl::StrJoin(parts, ", "),
                      parts.size() < used ? ", ..." : "");
}

std::string TypeText(ElementType type) { return type == INT32 ? "int32" : "float32"; }

}  // namespace

absl::StatusOr<DataReport> MakeDataReport(const DataSet& data, int64_t samples_max, int64_t rows) {
  DataReport out;
  out.samples = data.samples();
  out.format = data.format();
  out.class_names.assign(data.class_names().begin(), data.class_names().end());
  out.looked_at = samples_max == 0 ? out.samples : std::min(samples_max, out.samples);
  const bool tokens = out.format.type == INT32;
  const bool numbers = out.format.label_type == FLOAT32;
  const int64_t bins = tokens ? out.format.vocabulary : numbers ? 0 : out.format.classes;
  if (bins <= kClassesMax) out.histogram.resize(bins);
  Elements sample(data.sample_elements(), tokens);
  Elements label(data.label_elements(), !numbers);
  std::vector<RangeOf> channels(tokens ? 0 : IsImage(out.format) ? out.format.shape[0] : 1);
  std::vector<RangeOf> targets(label.values.size());
  for (int64_t id = 0; id < out.looked_at; ++id) {
    STARLING_RETURN_IF_ERROR(data.Gather({id}, nullptr, sample.data(), label.data()));
    for (size_t i = 0; i < sample.values.size(); ++i)
      channels[i * channels.size() / sample.values.size()].Add(sample.values[i]);
    for (size_t i = 0; i < label.values.size(); ++i) targets[i].Add(label.values[i]);
    if (!out.histogram.empty()) {
      for (int32_t bin : tokens ? sample.numbers : label.numbers) ++out.histogram[bin];
    }
    if (id >= rows) continue;
    const bool one_class = label.numbers.size() == 1;
    out.rows.push_back(absl::StrCat(Short(sample, out.format), " -> ",
                                    one_class
                                        ? ClassText(label.numbers[0], out.class_names)
                                        : Short(label, numbers ? SampleFormat() : out.format)));
  }
  for (const RangeOf& channel : channels) out.channels.push_back(channel.range());
  for (const RangeOf& target : targets) out.labels.push_back(target.range());
  out.corrupt = data.corrupt();
  return out;
}

std::string ReportText(const DataReport& report) {
  std::string out = absl::StrCat("samples    ", report.samples, "\n");
  const auto line = [&](const std::string& name, const std::string& text) {
    absl::StrAppendFormat(&out, "%-11s%s\n", name, text);
  };
  line("sample", absl::StrCat(TypeText(report.format.type), " ", ShapeText(report.format.shape)));
  line("label",
       absl::StrCat(TypeText(report.format.label_type), " ", ShapeText(report.format.label_shape)));
  if (report.looked_at < report.samples)
    line("looked at", absl::StrCat("the first ", report.looked_at));
  for (size_t c = 0; c < report.channels.size(); ++c)
    line(report.channels.size() == 1 ? "values" : absl::StrCat("channel ", c),
         RangeText(report.channels[c]));
  for (size_t i = 0; i < report.labels.size(); ++i)
    line(absl::StrCat("label ", i), RangeText(report.labels[i]));
  if (!report.histogram.empty())
    line(report.format.type == INT32 ? "tokens" : "classes", HistogramText(report));
  for (size_t i = 0; i < report.rows.size(); ++i) line(absl::StrCat("row ", i), report.rows[i]);
  if (report.corrupt.count > 0) line("corrupt", absl::StrCat(report.corrupt.count));
  for (const std::string& name : report.corrupt.names) line("", name);
  return out;
}

}  // namespace starling
