// Shell-like patterns for names.
#ifndef STARLING_COMMON_BASE_GLOB_H_
#define STARLING_COMMON_BASE_GLOB_H_

#include "absl/strings/string_view.h"

namespace starling {

// Whether `text` matches `pattern` as a whole: `*` matches any characters or none, `?` one; all
// others match themselves. Thread-safe. Takes at most |pattern| * |text| steps.
inline bool MatchesGlob(absl::string_view pattern, absl::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = absl::string_view::npos;  // the last one seen; matches [star_text, t)
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_GLOB_H_
