#include "worker/data/token_data_set.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr int64_t kByteTokens = 256;
constexpr int64_t kContextMax = 1 << 24;
constexpr int64_t kScanTokens = 1 << 20;
// A sample is read in pieces of this many tokens: on the stack, 8 KiB in all.
constexpr int64_t kWindowTokens = 1 << 10;
constexpr int64_t kTokenBytesMax = 4;

struct KnownHeader {
  int32_t magic;
  int32_t version;
  int width;
};
constexpr KnownHeader kKnownHeaders[] = {{20240520, 1, 2}, {20240801, 7, 4}};  // llm.c

template <typename T>
void Widen(const uint8_t* in, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, in + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
  }
}

absl::Status RefuseWhatDoesNotFit(const std::string& path, const DataSetOptions& options) {
  if (options.augment.crop_padding() != 0 || options.augment.horizontal_flip()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": augment is for images, and these samples are tokens; remove it"));
  }
  if (!options.sample_shape.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": data.shape is for values, and these samples are tokens; remove it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DataSet>> TokenDataSet::OpenText(
    const DataSource::Text& text, const DataSetOptions& options) {
  STARLING_ASSIGN_OR_RETURN(auto file, RandomAccessFile::Open(text.path()));
  uint8_t magic[2] = {};
  if (file->bytes() >= 2) STARLING_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(magic)));
  if (magic[0] == 0x1F && magic[1] == 0x8B) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.path(), ": expected plain text, got gzip: unpack it first"));
  }
  const Layout layout{.tokens = static_cast<int64_t>(file->bytes()), .vocabulary = kByteTokens};
  return Make(std::move(file), layout, {text.context(), text.stride(), text.begin(), text.end()},
              options);
}

// A file without a known header has none: tokens do not start like one by chance, because 20240520
// is 55448 (beyond every published 16-bit vocabulary), then 308, then 1, then 0.
absl::StatusOr<TokenDataSet::Layout> TokenDataSet::LayoutOf(const RandomAccessFile& file,
                                                            uint32_t vocabulary) {
  Layout layout{.width = 2, .vocabulary = vocabulary};
  int32_t header[3] = {};
  if (file.bytes() >= sizeof(header)) {
    uint8_t bytes[sizeof(header)];
    STARLING_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(bytes)));
    std::memcpy(header, bytes, sizeof(header));
  }
  for (const KnownHeader& known : kKnownHeaders) {
    if (header[0] != known.magic) continue;
    if (header[1] != known.version || file.bytes() < kHeaderBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": begins like a token file with magic ", known.magic, ": expected version ",
          known.version, " and a header of ", kHeaderBytes, " bytes, got version ", header[1],
          " in a file of ", file.bytes(), " bytes"));
    }
    layout.header_bytes = kHeaderBytes;
    layout.width = known.width;
  }
  const uint64_t bytes = file.bytes() - layout.header_bytes;
  if (bytes % layout.width != 0) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": expected tokens of ",
                                                   layout.width, " bytes each, got ", bytes,
                                                   " bytes of them: truncated, or no token file"));
  }
  layout.tokens = static_cast<int64_t>(bytes / layout.width);
  if (layout.header_bytes != 0 && layout.tokens != header[2]) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": its header speaks of ", header[2], " tokens, and it holds ",
                     layout.tokens, ": truncated, or not complete yet"));
  }
  return layout;
}

absl::StatusOr<std::shared_ptr<const DataSet>> TokenDataSet::OpenTokens(
    const DataSource::Tokens& tokens, const DataSetOptions& options) {
  STARLING_ASSIGN_OR_RETURN(auto file, RandomAccessFile::Open(tokens.path()));
  if (tokens.vocabulary() < 2 || tokens.vocabulary() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        tokens.path(), ": expected a vocabulary of at least 2 tokens, got ", tokens.vocabulary()));
  }
  STARLING_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(*file, tokens.vocabulary()));
  return Make(std::move(file), layout,
              {tokens.context(), tokens.stride(), tokens.begin(), tokens.end()}, options);
}

absl::StatusOr<std::shared_ptr<TokenDataSet>> TokenDataSet::Make(
    std::unique_ptr<RandomAccessFile> file, const Layout& layout, const Part& part,
    const DataSetOptions& options) {
  const std::string path = file->path();
  STARLING_RETURN_IF_ERROR(RefuseWhatDoesNotFit(path, options));
  if (part.context < 1 || part.context > kContextMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a context of 1 to ",
                                                   kContextMax, " tokens, got ", part.context));
  }
  const double end = part.end == 0 ? 1 : part.end;
  if (!(part.begin >= 0 && part.begin < end && end <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected 0 <= begin < end <= 1, got ",
                                                   part.begin, " and ", part.end));
  }
  if (options.classes > 0 && layout.vocabulary > options.classes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected tokens less than ", options.classes,
                     ", the model's vocabulary, and this file may hold ", layout.vocabulary));
  }
  std::shared_ptr<TokenDataSet> out(new TokenDataSet(std::move(file), layout));
  const auto at = [&](double share) {
    return static_cast<int64_t>(std::floor(share * static_cast<double>(layout.tokens)));
  };
  out->begin_ = at(part.begin);
  out->context_ = part.context;
  out->stride_ = part.stride == 0 ? part.context : part.stride;
  const int64_t tokens = at(end) - out->begin_;
  if (tokens < out->context_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its part from ", part.begin, " to ", end, " has ", tokens,
                     " tokens, fewer than one sample and the token behind it (", out->context_ + 1,
                     "): use a smaller context or a larger part"));
  }
  STARLING_RETURN_IF_ERROR(out->Scan(at(end), options.limits.token_scan_bytes_max));
  out->SetFormat((tokens - out->context_ - 1) / out->stride_ + 1,
                 {.shape = {out->context_},
                  .type = INT32,
                  .label_shape = {out->context_},
                  .classes = layout.vocabulary,
                  .vocabulary = layout.vocabulary});
  return out;
}

// Reads from the part's start to token `end`, or less, only for Read's checks.
absl::Status TokenDataSet::Scan(int64_t end, uint64_t bytes_max) const {
  if (layout_.vocabulary >= kByteTokens && layout_.width == 1) return absl::OkStatus();
  end = std::min<int64_t>(end, begin_ + static_cast<int64_t>(bytes_max / layout_.width));
  std::vector<uint8_t> scratch(kScanTokens * layout_.width);
  std::vector<int32_t> tokens(kScanTokens);
  for (int64_t at = begin_; at < end; at += kScanTokens) {
    STARLING_RETURN_IF_ERROR(
        Read(at, std::min(kScanTokens, end - at), scratch.data(), tokens.data()));
  }
  return absl::OkStatus();
}

absl::Status TokenDataSet::Read(int64_t begin, int64_t count, uint8_t* scratch,
                                int32_t* out) const {
  STARLING_RETURN_IF_ERROR(
      file_->ReadAt(layout_.header_bytes + static_cast<uint64_t>(begin) * layout_.width,
                    absl::MakeSpan(scratch, count * layout_.width)));
  if (layout_.width == 1) {
    Widen<uint8_t>(scratch, count, out);
    return absl::OkStatus();
  }
  if (layout_.width == 2) {
    Widen<uint16_t>(scratch, count, out);
  } else {
    Widen<uint32_t>(scratch, count, out);
  }
  // As unsigned numbers, so that a token beyond int32 is also outside the vocabulary.
  uint32_t greatest = 0;
  for (int64_t i = 0; i < count; ++i) greatest = std::max(greatest, static_cast<uint32_t>(out[i]));
  if (greatest < static_cast<uint32_t>(layout_.vocabulary)) return absl::OkStatus();
  const int64_t i = std::find(out, out + count, static_cast<int32_t>(greatest)) - out;
  return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": token ", begin + i, " is ",
                                                 greatest, ", expected less than ",
                                                 layout_.vocabulary, ", the vocabulary"));
}

uint64_t TokenDataSet::index_digest() const {
  const uint64_t index[] = {
      file_->bytes(),
      layout_.header_bytes,
      static_cast<uint64_t>(layout_.width),
      static_cast<uint64_t>(layout_.tokens),
      static_cast<uint64_t>(layout_.vocabulary),
      static_cast<uint64_t>(begin_),
      static_cast<uint64_t>(context_),
      static_cast<uint64_t>(stride_),
  };
  return XXH3_64bits(index, sizeof(index));
}

absl::Status TokenDataSet::Gather(absl::Span<const int64_t> ids, const AugmentDraw*, void* inputs,
                                  void* labels) const {
  auto* in = static_cast<int32_t*>(inputs);
  auto* out = static_cast<int32_t*>(labels);
  std::array<uint8_t, (kWindowTokens + 1) * kTokenBytesMax> scratch;
  std::array<int32_t, kWindowTokens + 1> window;
  for (int64_t id : ids) {
    for (int64_t at = 0; at < context_; at += kWindowTokens) {
      const int64_t count = std::min(kWindowTokens, context_ - at);
      STARLING_RETURN_IF_ERROR(
          Read(begin_ + id * stride_ + at, count + 1, scratch.data(), window.data()));
      in = std::copy_n(window.data(), count, in);
      out = std::copy_n(window.data() + 1, count, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace starling
