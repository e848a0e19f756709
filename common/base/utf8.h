// Checks of UTF-8 from outside the process.
#ifndef STARLING_COMMON_BASE_UTF8_H_
#define STARLING_COMMON_BASE_UTF8_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace starling {

// The longest prefix of `text` (UTF-8) of at most `bytes` bytes that ends with a whole character. A
// string field of a protobuf message needs this: it can be written with a cut character, but not
// read.
inline absl::string_view CutUtf8(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

// The offset of the first byte that is not part of a UTF-8 character; npos: the text is UTF-8.
inline size_t FindNotUtf8(absl::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  for (size_t at = 0; at < text.size();) {
    const unsigned char first = byte(at);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || at + more >= text.size()) return at;
    for (size_t i = 1; i <= more; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) return at;
    }
    // Overlong, a surrogate, or above U+10FFFF.
    const unsigned char second = byte(at + 1);
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
      return at;
    }
    at += more + 1;
  }
  return absl::string_view::npos;
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_UTF8_H_
