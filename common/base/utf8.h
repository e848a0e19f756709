// Text that came from elsewhere, in UTF-8.
#ifndef STARLING_COMMON_BASE_UTF8_H_
#define STARLING_COMMON_BASE_UTF8_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace starling {

// The longest beginning of `text` of at most `bytes` bytes that ends with a whole character, where
// `text` is UTF-8. A string field of a message takes no other: it could be written, and not read.
inline absl::string_view CutUtf8(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_UTF8_H_
