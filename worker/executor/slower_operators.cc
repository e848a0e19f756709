#include "worker/executor/slower_operators.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace starling {

std::vector<std::string> DescribeSlower(
    const std::vector<std::pair<std::string, std::string>>& operators) {
  struct Reason {
    std::string text, first;
    size_t nodes = 0;
  };
  std::vector<Reason> reasons;
  for (const auto& [name, text] : operators) {
    if (text.empty()) continue;
    auto it = std::find_if(reasons.begin(), reasons.end(),
                           [&text = text](const Reason& reason) { return reason.text == text; });
    if (it == reasons.end()) it = reasons.insert(it, {text, name});
    ++it->nodes;
  }
  std::vector<std::string> lines;
  for (const Reason& reason : reasons) {
    lines.push_back(absl::StrCat(
        reason.first, reason.nodes > 1 ? absl::StrCat(" and ", reason.nodes - 1, " more") : "",
        ": ", reason.text));
  }
  return lines;
}

}  // namespace starling
