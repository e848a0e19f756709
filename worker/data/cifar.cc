#include <array>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/byte_stream.h"
#include "worker/data/samples.h"

namespace starling {
namespace {

constexpr int64_t kSide = 32;
constexpr size_t kPixelBytes = 3 * kSide * kSide;
constexpr size_t kChunkRecords = 256;

struct Edition {
  const char* name;
  size_t label_bytes;
  size_t label_at;
  int classes;
};

Edition EditionOf(DataSource::Cifar::Labels labels) {
  switch (labels) {
    case DataSource::Cifar::FINE: return {"CIFAR-100 (fine labels)", 2, 1, 100};
    case DataSource::Cifar::COARSE: return {"CIFAR-100 (coarse labels)", 2, 0, 20};
    default: return {"CIFAR-10", 1, 0, 10};
  }
}

absl::Status NotWhole(const std::string& path, uint64_t rest, uint64_t records,
                      const Edition& edition) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", rest, " bytes after record ", records,
                   ": expected whole records of ", edition.label_bytes + kPixelBytes,
                   " bytes, as in ", edition.name, ": truncated, or another format"));
}

absl::Status TooMuch(const std::string& path, uint64_t bytes, const DataLimits& limits) {
  return absl::ResourceExhaustedError(absl::StrCat(path, ": ", bytes,
                                                   " bytes of data in all, more "
                                                   "than the limit of ",
                                                   limits.decoded_bytes_max));
}

// Checks what the size alone shows; that of a gzip stream is unknown until it was read.
absl::Status CheckSize(const ByteStream& in, const Edition& edition, uint64_t before,
                       const DataLimits& limits) {
  if (in.gzip()) return absl::OkStatus();
  const uint64_t record = edition.label_bytes + kPixelBytes;
  const uint64_t size = in.bytes_max();
  if (size % record != 0) {
    return NotWhole(in.path(), size % record, size / record, edition);
  }
  return before + size > limits.decoded_bytes_max ? TooMuch(in.path(), before + size, limits)
                                                  : absl::OkStatus();
}

// Appends one file's records.
absl::Status ReadFile(const std::string& path, const Edition& edition, const DataLimits& limits,
                      Samples* out) {
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> in, ByteStream::Open(path));
  const size_t record = edition.label_bytes + kPixelBytes;
  STARLING_RETURN_IF_ERROR(CheckSize(*in, edition, out->bytes.size(), limits));
  std::vector<uint8_t> chunk(kChunkRecords * record);
  int64_t records = 0;
  for (size_t got = chunk.size(); got == chunk.size();) {
    STARLING_ASSIGN_OR_RETURN(got, in->Read(absl::MakeSpan(chunk)));
    if (out->bytes.size() + got > limits.decoded_bytes_max) {
      return TooMuch(path, out->bytes.size() + got, limits);
    }
    if (got % record != 0) {
      return NotWhole(path, got % record, records + got / record, edition);
    }
    for (size_t at = 0; at < got; at += record, ++records) {
      const int label = chunk[at + edition.label_at];
      if (label >= edition.classes) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": record ", records, " has label ",
                                                       label, ", expected less than ",
                                                       edition.classes, " in ", edition.name));
      }
      const auto pixels = chunk.begin() + static_cast<int64_t>(at + edition.label_bytes);
      out->labels.push_back(label);
      out->bytes.insert(out->bytes.end(), pixels, pixels + kPixelBytes);
    }
  }
  if (records > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": empty"));
}

}  // namespace

absl::StatusOr<Samples> ReadCifar(const DataSource::Cifar& cifar, const DataLimits& limits) {
  if (cifar.files().empty()) return absl::InvalidArgumentError("cifar: expected at least one file");
  Samples out;
  out.shape = {3, kSide, kSide};
  const Edition edition = EditionOf(cifar.labels());
  if (edition.classes == 10) {
    out.class_names = {"airplane", "automobile", "bird",  "cat",  "deer",
                       "dog",      "frog",       "horse", "ship", "truck"};
  }
  try {
    for (const std::string& path : cifar.files())
      STARLING_RETURN_IF_ERROR(ReadFile(path, edition, limits, &out));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(cifar.files(0), ": no memory for its data"));
  }
  return out;
}

}  // namespace starling
