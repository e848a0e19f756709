#include "server/coordinator/explain/findings.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/explain/causes.h"
#include "server/coordinator/explain/explain.h"

namespace starling::explain {

void Findings::Add(absl::string_view cause, const std::string& subject, double figure,
                   std::string text, Weight weight, double lost) {
  const Cause& known = CauseOf(cause);
  Finding finding;
  finding.set_cause(std::string(known.word));
  finding.set_text(std::move(text));
  finding.set_remedy(std::string(known.remedy));
  finding.set_figure(figure);
  finding.set_unit(std::string(known.unit));
  finding.set_subject(subject);
  findings_.push_back({std::move(finding), weight, lost});
}

bool Findings::Has(absl::string_view cause) const {
  return std::any_of(findings_.begin(), findings_.end(),
                     [cause](const Weighed& f) { return f.finding.cause() == cause; });
}

std::vector<Finding> Findings::Take() {
  std::stable_sort(findings_.begin(), findings_.end(), [](const Weighed& a, const Weighed& b) {
    return std::tuple(a.weight, a.lost) > std::tuple(b.weight, b.lost);
  });
  std::vector<Finding> told;
  std::map<std::string, int> of_cause;
  for (Weighed& weighed : findings_) {
    if (++of_cause[weighed.finding.cause()] > kFindingsPerCauseMax) continue;
    told.push_back(std::move(weighed.finding));
  }
  findings_.clear();
  return told;
}

std::string At(const std::string& name, const std::string& address) {
  return address.empty() ? name : absl::StrCat(name, " (", address, ")");
}

std::string TimeText(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", 1e6 * seconds);
  if (seconds < 1) return absl::StrFormat("%.3g ms", 1e3 * seconds);
  return seconds < 100 ? absl::StrFormat("%.3g s", seconds) : absl::StrFormat("%.0f s", seconds);
}

std::string RateText(double per_second) {
  if (per_second >= 1e9) return absl::StrFormat("%.3g GB/s", per_second / 1e9);
  if (per_second >= 1e6) return absl::StrFormat("%.3g MB/s", per_second / 1e6);
  return absl::StrFormat("%.3g kB/s", per_second / 1e3);
}

std::string ShareText(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

std::vector<Finding> Explain(const Evidence& evidence) {
  Findings findings;
  FindStops(evidence, findings);
  if (evidence.state == RUNNING) FindSlows(evidence, findings);
  return findings.Take();
}

}  // namespace starling::explain
