// Little-endian fields one behind the other: appended to a string, and read back within bounds.
#ifndef STARLING_COMMON_BASE_BYTE_IO_H_
#define STARLING_COMMON_BASE_BYTE_IO_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace starling {

// Not thread-safe. `out` outlives it.
class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(out) {}

  template <std::integral T>
  void Put(T value) {
    static_assert(std::endian::native == std::endian::little);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out_->append(bytes, sizeof(T));
  }
  // The bits, so that a number comes back as exactly the same one.
  void Put(float value) { Put(std::bit_cast<uint32_t>(value)); }
  void Put(double value) { Put(std::bit_cast<uint64_t>(value)); }

 private:
  std::string* const out_;
};

// Not thread-safe. `bytes` outlive it. A read beyond the end gives 0, and ok() is false from then
// on, so a caller may check once behind several reads, but before it believes a count.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  template <std::integral T>
  T Get() {
    T value = 0;
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  float GetFloat() { return std::bit_cast<float>(Get<uint32_t>()); }
  double GetDouble() { return std::bit_cast<double>(Get<uint64_t>()); }

  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

}  // namespace starling

#endif  // STARLING_COMMON_BASE_BYTE_IO_H_
