#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/safetensors/safetensors.h"

namespace starling::safetensors {

static_assert(std::endian::native == std::endian::little,
              "tensors are written as they lie in memory");

namespace {

using nlohmann::json;

constexpr char kMetadata[] = "__metadata__";

struct DTypeRow {
  DType dtype;
  const char* name;
  uint64_t bytes;
};

constexpr std::array<DTypeRow, 15> kDTypes = {{
    {DType::kBool, "BOOL", 1},
    {DType::kU8, "U8", 1},
    {DType::kI8, "I8", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},
    {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},
    {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
}};

constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(RowsAreInOrder());

// Parses the header's JSON event by event and stops at the first error, so that a hostile header
// takes no more memory than a valid one, and duplicate names are detected.
class HeaderHandler : public nlohmann::json_sax<json> {
 public:
  Header header;
  std::string error;

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart: return Go(State::kNames);
      case State::kMetadataObject: return Go(State::kMetadataKeys);
      case State::kTensorObject: return Go(State::kFields);
      default: return Unexpected("an object");
    }
  }

  bool key(string_t& text) override {
    if (state_ == State::kNames) return Name(text);
    if (state_ == State::kMetadataKeys) {
      key_ = text;
      if (header.metadata.count(key_) != 0)
        return Fail(absl::StrCat("duplicate metadata key \"", text, "\""));
      return Go(State::kMetadataValue);
    }
    return Field(text);
  }

  bool end_object() override {
    if (state_ == State::kFields) {
      if (fields_.size() != 3) return Fail("expected dtype, shape and data_offsets");
      return Go(State::kNames);
    }
    return Go(state_ == State::kMetadataKeys ? State::kNames : State::kEnd);
  }

  bool start_array(size_t) override {
    if (state_ == State::kShapeArray) return Go(State::kShapeNumbers);
    if (state_ == State::kOffsetsArray) return Go(State::kOffsetNumbers);
    return Unexpected("an array");
  }

  bool end_array() override {
    if (state_ == State::kOffsetNumbers) {
      if (offsets_.size() != 2) return Fail("expected two data_offsets");
      tensor().begin = offsets_[0];
      tensor().end = offsets_[1];
    }
    return Go(State::kFields);
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadataValue) {
      header.metadata[key_] = text;
      return Go(State::kMetadataKeys);
    }
    if (state_ != State::kDType) return Unexpected("a string");
    if (!ParseDType(text, &tensor().dtype))
      return Fail(absl::StrCat("unknown dtype \"", text, "\""));
    return Go(State::kFields);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShapeNumbers) {
      if (tensor().shape.size() == kDimsMax)
        return Fail(absl::StrCat("more than ", kDimsMax, " dimensions"));
      tensor().shape.push_back(value);
      return true;
    }
    if (state_ != State::kOffsetNumbers || offsets_.size() == 2) return Unexpected("a number");
    offsets_.push_back(value);
    return true;
  }

  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a fraction or a number beyond 64 bits");
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& why) override {
    return Fail(absl::StrCat("not JSON at byte ", position, ": ", why.what()));
  }

 private:
  enum class State {
    kStart,
    kNames,
    kMetadataObject,
    kMetadataKeys,
    kMetadataValue,
    kTensorObject,
    kFields,
    kDType,
    kShapeArray,
    kShapeNumbers,
    kOffsetsArray,
    kOffsetNumbers,
    kEnd,
  };

  TensorInfo& tensor() { return header.tensors.back(); }

  bool Go(State next) {
    state_ = next;
    return true;
  }

  bool Fail(const std::string& what) {
    if (error.empty())
      error = in_tensor_ ? absl::StrCat("tensor \"", tensor().name, "\": ", what) : what;
    return false;
  }

  bool Unexpected(const char* what) {
    return Fail(absl::StrCat("did not expect ", what, " there"));
  }

  bool Name(const std::string& name) {
    in_tensor_ = false;
    if (!names_.insert(name).second) return Fail(absl::StrCat("duplicate name \"", name, "\""));
    if (name == kMetadata) return Go(State::kMetadataObject);
    if (header.tensors.size() == kTensorsMax)
      return Fail(absl::StrCat("more than ", kTensorsMax, " tensors"));
    in_tensor_ = true;
    header.tensors.emplace_back().name = name;
    fields_.clear();
    offsets_.clear();
    return Go(State::kTensorObject);
  }

  bool Field(const std::string& field) {
    if (!fields_.insert(field).second) return Fail(absl::StrCat("duplicate field \"", field, "\""));
    if (field == "dtype") return Go(State::kDType);
    if (field == "shape") return Go(State::kShapeArray);
    if (field == "data_offsets") return Go(State::kOffsetsArray);
    return Fail(absl::StrCat("unknown field \"", field, "\""));
  }

  State state_ = State::kStart;
  bool in_tensor_ = false;
  std::set<std::string> names_;
  std::set<std::string> fields_;  // of the current tensor
  std::string key_;               // of the current metadata entry
  std::vector<uint64_t> offsets_;
};

// The offsets, ascending, must tile [0, data_bytes) without gaps or overlaps, each with the right
// size.
absl::Status CheckTiling(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t next = 0;
  for (const TensorInfo& tensor : tensors) {
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\": ", what...));
    };
    const absl::StatusOr<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) return error(bytes.status().message());
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
      return error("expected ", *bytes, " bytes of ", DTypeName(tensor.dtype), "[",
                   absl::StrJoin(tensor.shape, ","), "], got data_offsets [", tensor.begin, ",",
                   tensor.end, "]");
    }
    if (tensor.begin != next) {
      return error("expected its data at byte ", next, ", got ", tensor.begin,
                   tensor.begin > next ? ": a hole" : ": an overlap");
    }
    next = tensor.end;
  }
  if (next != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at byte ", next, " of the data, the file at byte ",
                     data_bytes, next > data_bytes ? ": truncated" : ": trailing bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
uint64_t DTypeBytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

bool ParseDType(absl::string_view name, DType* out) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) {
      *out = row.dtype;
      return true;
    }
  }
  return false;
}

absl::StatusOr<uint64_t> TensorBytes(DType dtype, absl::Span<const uint64_t> shape) {
  uint64_t bytes = DTypeBytes(dtype);
  for (uint64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the size of shape [", absl::StrJoin(shape, ","), "] overflows"));
    }
  }
  return bytes;
}

absl::StatusOr<Header> ParseHeader(absl::string_view text, uint64_t data_bytes) {
  if (text.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("expected a header of at most ", kHeaderBytesMax,
                                                   " bytes, got ", text.size()));
  }
  if (text.empty() || text[0] != '{')
    return absl::InvalidArgumentError("expected a header that begins with {");
  HeaderHandler handler;
  if (!json::sax_parse(text.begin(), text.end(), &handler))
    return absl::InvalidArgumentError(handler.error);
  Header header = std::move(handler.header);
  header.data_begin = 8 + text.size();
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  STARLING_RETURN_IF_ERROR(CheckTiling(header.tensors, data_bytes));
  return header;
}

absl::StatusOr<std::string> EncodeHeader(std::vector<TensorInfo>* tensors,
                                         std::map<std::string, std::string> metadata) {
  metadata.try_emplace("format", "pt");
  nlohmann::ordered_json root = {{kMetadata, metadata}};
  std::set<std::string> names = {kMetadata};
  uint64_t next = 0;
  for (TensorInfo& tensor : *tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\": its name is taken"));
    }
    STARLING_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor.dtype, tensor.shape));
    tensor.begin = next;
    if (__builtin_add_overflow(next, bytes, &next))
      return absl::InvalidArgumentError("the tensors' size overflows");
    tensor.end = next;
    // push_back keeps this linear: operator[] of an ordered_json searches all entries.
    root.get_ref<nlohmann::ordered_json::object_t&>().push_back(
        {tensor.name,
         {{"dtype", DTypeName(tensor.dtype)},
          {"shape", tensor.shape},
          {"data_offsets", {tensor.begin, tensor.end}}}});
  }
  std::string text;
  try {  // throws only on text that is not UTF-8
    text = root.dump();
  } catch (const json::exception& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("names and metadata must be UTF-8: ", why.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header would take ", text.size(), " bytes, more than ", kHeaderBytesMax));
  }
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
  return out + text;
}

}  // namespace starling::safetensors
