// Internal to this folder: findings while they are collected, and words for figures.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_FINDINGS_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_FINDINGS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// How much a finding weighs: what stops the job comes before what slows it; then the share of the
// time that is lost, from 0 to 1.
enum class Weight { kSlows = 0, kStops = 1 };

class Findings {
 public:
  // `text` is one sentence without its full stop, `cause` a word of causes.h.
  void Add(absl::string_view cause, const std::string& subject, double figure, std::string text,
           Weight weight, double lost = 1);

  bool empty() const { return findings_.empty(); }
  bool Has(absl::string_view cause) const;
  std::vector<Finding> Take();  // the gravest first; at most kFindingsPerCauseMax of a cause

 private:
  struct Weighed {
    Finding finding;
    Weight weight;
    double lost;
  };
  std::vector<Weighed> findings_;
};

// stops.cc: what keeps it from going on, or from going on with all that it had.
void FindStops(const Evidence& evidence, Findings& findings);
// slows.cc: what the time of its steps says.
void FindSlows(const Evidence& evidence, Findings& findings);

std::string TimeText(double seconds);     // "12.3 ms", "4.21 s", "312 s"
std::string RateText(double per_second);  // "1.9 MB/s"
std::string ShareText(double share);      // "34 %"

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_FINDINGS_H_
