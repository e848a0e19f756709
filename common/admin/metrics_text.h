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

// Collects samples in any order; those of one name come out together. Not thread-safe. `name` and
// `help` are the same in every call for one metric (docs/metrics.md has the table), and `labels`
// differ. A label must not be called `job` or `instance`: the scraper has those.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<absl::string_view, absl::string_view>>;

  void Counter(absl::string_view name, absl::string_view help, const Labels& labels, double value);
  void Gauge(absl::string_view name, absl::string_view help, const Labels& labels, double value);
  void Histogram(absl::string_view name, absl::string_view help, const Labels& labels,
                 const SecondsCounts& counts);

  // All samples of another.
  void Add(const MetricsText& other);

  std::string Text() const;

  // Something that belongs here is not known now, and why: there is no answer then, since a scraper
  // takes a series that is not in one for a thing that is gone. The first reason is kept.
  void Miss(absl::string_view why);
  const std::string& missing() const { return missing_; }  // empty: nothing

 private:
  struct Family {
    absl::string_view type;
    std::string help;
    std::string samples;
  };
  // Where the samples of the metric go.
  std::string* Samples(absl::string_view name, absl::string_view type, absl::string_view help);

  std::map<std::string, Family> families_;
  std::string missing_;
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_METRICS_TEXT_H_
