#include <array>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/data/byte_stream.h"
#include "worker/data/samples.h"

namespace starling {
namespace {

constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;

const char* MagicName(uint32_t magic) {
  return magic == kImagesMagic ? " (images)" : magic == kLabelsMagic ? " (labels)" : "";
}

struct IdxArray {
  std::vector<int64_t> dims;
  std::vector<uint8_t> bytes;
};

// One big-endian word of the header.
absl::StatusOr<uint32_t> ReadWord(ByteStream& in) {
  std::array<uint8_t, 4> word;
  STARLING_ASSIGN_OR_RETURN(const size_t got, in.Read(absl::MakeSpan(word)));
  if (got != word.size()) {
    return absl::InvalidArgumentError(absl::StrCat(in.path(), ": truncated in the IDX header"));
  }
  return uint32_t{word[0]} << 24 | uint32_t{word[1]} << 16 | uint32_t{word[2]} << 8 | word[3];
}

// The product of the sizes in the header, if the file can hold it and the limits allow it.
absl::StatusOr<uint64_t> CheckedSize(const ByteStream& in, absl::Span<const int64_t> dims,
                                     uint64_t header_bytes, const DataLimits& limits) {
  uint64_t size = 1;
  const std::string shape = absl::StrJoin(dims, " x ");
  for (int64_t dim : dims) {
    if (dim == 0)
      return absl::InvalidArgumentError(absl::StrCat(in.path(), ": empty: its sizes are ", shape));
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(dim), &size)) {
      return absl::InvalidArgumentError(absl::StrCat(in.path(), ": the sizes overflow: ", shape));
    }
  }
  const uint64_t held = in.bytes_max() < header_bytes ? 0 : in.bytes_max() - header_bytes;
  if (size > held) {
    return absl::InvalidArgumentError(
        absl::StrCat(in.path(), ": truncated: ", shape, " needs ", size,
                     " bytes after the header, and there can be ", held));
  }
  if (!in.gzip() && size < held) {
    return absl::InvalidArgumentError(
        absl::StrCat(in.path(), ": ", held - size, " trailing bytes after ", shape));
  }
  if (size > limits.decoded_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(in.path(), ": ", shape, " needs ", size,
                                                     " bytes, more than the limit of ",
                                                     limits.decoded_bytes_max));
  }
  return size;
}

absl::StatusOr<IdxArray> ReadArray(const std::string& path, uint32_t magic,
                                   const DataLimits& limits) {
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> in, ByteStream::Open(path));
  STARLING_ASSIGN_OR_RETURN(const uint32_t found, ReadWord(*in));
  if (found != magic) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: expected IDX magic 0x%08x%s, got 0x%08x%s", path, magic,
                        MagicName(magic), found, MagicName(found)));
  }
  IdxArray out;
  for (uint32_t i = 0; i < (magic & 0xFF); ++i) {
    STARLING_ASSIGN_OR_RETURN(const uint32_t dim, ReadWord(*in));
    out.dims.push_back(dim);
  }
  STARLING_ASSIGN_OR_RETURN(const uint64_t size,
                            CheckedSize(*in, out.dims, 4 + 4 * out.dims.size(), limits));
  try {
    out.bytes.resize(size);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory for its ", size, " bytes"));
  }
  STARLING_ASSIGN_OR_RETURN(const size_t got, in->Read(absl::MakeSpan(out.bytes)));
  if (got != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": truncated: ", absl::StrJoin(out.dims, " x "), " needs ", size,
                     " bytes after the header, got ", got));
  }
  uint8_t more;
  STARLING_ASSIGN_OR_RETURN(const size_t trailing, in->Read(absl::MakeSpan(&more, 1)));
  if (trailing != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": trailing bytes after ", absl::StrJoin(out.dims, " x ")));
  }
  return out;
}

}  // namespace

absl::StatusOr<Samples> ReadIdx(const std::string& images, const std::string& labels,
                                const DataLimits& limits) {
  STARLING_ASSIGN_OR_RETURN(IdxArray image_array, ReadArray(images, kImagesMagic, limits));
  STARLING_ASSIGN_OR_RETURN(const IdxArray label_array, ReadArray(labels, kLabelsMagic, limits));
  if (image_array.dims[0] != label_array.dims[0]) {
    return absl::InvalidArgumentError(absl::StrCat(images, " has ", image_array.dims[0],
                                                   " images, and ", labels, " has ",
                                                   label_array.dims[0], " labels"));
  }
  Samples out;
  out.shape = {1, image_array.dims[1], image_array.dims[2]};
  out.bytes = std::move(image_array.bytes);
  out.labels.assign(label_array.bytes.begin(), label_array.bytes.end());
  return out;
}

}  // namespace starling
