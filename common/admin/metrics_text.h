// Metrics in Prometheus' text format, version 0.0.4.
#ifndef STARLING_COMMON_ADMIN_METRICS_TEXT_H_
#define STARLING_COMMON_ADMIN_METRICS_TEXT_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/admin/histogram.h"

namespace starling::admin {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// Collects samples in any order; the samples of one metric are printed together. Not thread-safe.
// `name` and `help` are the same in every call for one metric (docs/metrics.md has the table);
// `labels` differ. A label must not be named `job` or `instance`: the scraper sets those.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<absl::string_view, absl::string_view>>;

  void Counter(absl::string_view name, absl::string_view help, const Labels& labels, double value);
  void Gauge(absl::string_view name, absl::string_view help, const Labels& labels, double value);
  void Histogram(absl::string_view name, absl::string_view help, const Labels& labels,
                 const SecondsCounts& counts);

  // Adds all samples of `other`.
  void Add(const MetricsText& other);

  std::string Text() const;

  // Marks the scrape as incomplete, with the reason: it is then not served, since a scraper treats
  // an absent series as gone. The first reason is kept.
  void Miss(absl::string_view why);
  const std::string& missing() const { return missing_; }  // empty: complete

 private:
  struct Family {
    absl::string_view type;
    std::string help;
    std::string samples;
  };
  // The text to which the metric's samples are appended.
  std::string* Samples(absl::string_view name, absl::string_view type, absl::string_view help);

  std::map<std::string, Family> families_;
  std::string missing_;
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_METRICS_TEXT_H_
