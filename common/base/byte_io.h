// Little-endian fields one behind the other: appended to a string, and read back within bounds. A
// type says once which fields it has, for both ways, in its own namespace:
//   template <typename IO, LikeType<Pair> T>
//   void Fields(IO& io, T& pair) { io(pair.first, pair.second); }
#ifndef STARLING_COMMON_BASE_BYTE_IO_H_
#define STARLING_COMMON_BASE_BYTE_IO_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"

namespace starling {

template <typename T, typename U>
concept LikeType = std::same_as<std::remove_const_t<T>, U>;

// What stands there with its own bits: numbers, enumerations, and ids, which are one `value`.
template <typename T>
concept PlainField =
    std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    (std::is_trivially_copyable_v<T> && requires(T id) { requires sizeof(T) == sizeof(id.value); });

// Lists and maps: the number of items as u32, then each item.
template <typename T>
concept ListField = requires(T list, typename T::value_type item) {
  list.size();
  list.insert(list.end(), item);
};

// Not thread-safe. `out` outlives it.
class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(out) {
    static_assert(std::endian::native == std::endian::little);
  }

  template <typename... T>
  void operator()(const T&... fields) {
    (Put(fields), ...);
  }

 private:
  template <typename T>
  void Put(const T& field) {
    if constexpr (PlainField<T>) {
      out_->append(reinterpret_cast<const char*>(&field), sizeof(T));
    } else if constexpr (ListField<T>) {
      Put(static_cast<uint32_t>(field.size()));
      for (const auto& item : field) Put(item);
    } else {
      Fields(*this, field);
    }
  }
  // Whether it is there, and it, or what a new one is.
  template <typename T>
  void Put(const std::optional<T>& field) {
    Put(field.has_value());
    Put(field.value_or(T()));
  }
  template <typename First, typename Second>
  void Put(const std::pair<First, Second>& field) {
    (*this)(field.first, field.second);
  }

  std::string* const out_;
};

// Not thread-safe. `bytes` outlive it. A read beyond the end gives 0, and ok() is false from then
// on, so a caller may check once behind several reads. A list ends there too, so it takes memory in
// proportion to the bytes, whatever its number says.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename... T>
  void operator()(T&... fields) {
    (Take(fields), ...);
  }
  template <PlainField T>
  T Get() {
    T field{};
    Take(field);
    return field;
  }

  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

 private:
  template <typename T>
  void Take(T& field) {
    if constexpr (std::same_as<T, bool>) {
      field = Get<uint8_t>() != 0;
    } else if constexpr (PlainField<T>) {
      ok_ = ok_ && bytes_.size() >= sizeof(T);
      field = T{};
      if (!ok_) return;
      std::memcpy(&field, bytes_.data(), sizeof(T));
      bytes_.remove_prefix(sizeof(T));
    } else if constexpr (ListField<T>) {
      field.clear();
      for (auto more = Get<uint32_t>(); ok_ && more > 0; --more) {
        typename Item<typename T::value_type>::Type item{};
        Take(item);
        if (ok_) field.insert(field.end(), std::move(item));
      }
    } else {
      Fields(*this, field);
    }
  }
  template <typename T>
  void Take(std::optional<T>& field) {
    const bool has = Get<bool>();
    Take(field.emplace());
    if (!has) field.reset();
  }
  template <typename First, typename Second>
  void Take(std::pair<First, Second>& field) {
    (*this)(field.first, field.second);
  }
  // The type that an item is read into: a map's own has a constant key.
  template <typename T>
  struct Item {
    using Type = T;
  };
  template <typename Key, typename Value>
  struct Item<std::pair<const Key, Value>> {
    using Type = std::pair<Key, Value>;
  };

  absl::string_view bytes_;
  bool ok_ = true;
};

}  // namespace starling

#endif  // STARLING_COMMON_BASE_BYTE_IO_H_
