// The "did you mean" of errors about names.
#ifndef STARLING_COMMON_BASE_NEAREST_NAME_H_
#define STARLING_COMMON_BASE_NEAREST_NAME_H_

#include <string>
#include <vector>

namespace starling {

// The candidate nearest to `word` by edit distance if it is near enough for a typo; else empty.
std::string NearestName(const std::string& word, const std::vector<std::string>& candidates);

// "; did you mean "NAME"?", or empty if no candidate is near.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_NEAREST_NAME_H_
