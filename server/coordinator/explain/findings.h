// Internal to this folder: collects findings and formats figures.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_FINDINGS_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_FINDINGS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// The weight of a finding: what stops the job ranks before what slows it, then by the share of time
// that is lost, from 0 to 1.
enum class Weight { kSlows = 0, kStops = 1 };

class Findings {
 public:
  // `text` is one sentence without its full stop; `cause` is a word of causes.h.
  void Add(absl::string_view cause, const std::string& subject, double figure, std::string text,
           Weight weight, double lost = 1);

  bool empty() const { return findings_.empty(); }
  bool Has(absl::string_view cause) const;
  std::vector<Finding> Take();  // gravest first; at most kFindingsPerCauseMax per cause

 private:
  struct Weighed {
    Finding finding;
    Weight weight;
    double lost;
  };
  std::vector<Weighed> findings_;
};

// stops.cc: what keeps the job from running, or from running with all its members.
void FindStops(const Evidence& evidence, Findings& findings);
// slows.cc: what its step times show.
void FindSlows(const Evidence& evidence, Findings& findings);

std::string At(const std::string& name, const std::string& address);  // "NAME (ADDRESS)"
std::string TimeText(double seconds);     // "12.3 ms", "4.21 s", "312 s"
std::string RateText(double per_second);  // "1.9 MB/s"
std::string ShareText(double share);      // "34 %"

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_FINDINGS_H_
