#include "worker/data/tar_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr uint64_t kUnit = 512;
constexpr uint64_t kExtensionBytesMax = 4096;

struct Place {
  size_t at;
  size_t bytes;
};
constexpr Place kName{0, 100};
constexpr Place kSize{124, 12};
constexpr Place kChecksum{148, 8};
constexpr size_t kTypeAt = 156;
constexpr Place kMagic{257, 5};
constexpr Place kPrefix{345, 155};

// The text up to its zero byte.
std::string TextAt(absl::Span<const uint8_t> header, Place place) {
  const char* begin = reinterpret_cast<const char*>(header.data()) + place.at;
  return std::string(begin, strnlen(begin, place.bytes));
}

// Octal digits padded with spaces and zero bytes; or, with the top bit set, a big-endian number
// (GNU).
absl::optional<uint64_t> NumberAt(absl::Span<const uint8_t> header, Place place) {
  uint64_t value = 0;
  const uint8_t* digits = header.data() + place.at;
  if (digits[0] & 0x80) {
    for (size_t i = 0; i < place.bytes; ++i) {
      if (value >> 55) return absl::nullopt;
      value = value << 8 | (i == 0 ? digits[i] & 0x7f : digits[i]);
    }
    return value;
  }
  size_t i = 0;
  while (i < place.bytes && digits[i] == ' ') ++i;
  const size_t begin = i;
  for (; i < place.bytes && digits[i] >= '0' && digits[i] <= '7'; ++i)
    value = value * 8 + (digits[i] - '0');
  if (i == begin || (i < place.bytes && digits[i] != ' ' && digits[i] != 0)) return absl::nullopt;
  return value;
}

// The sum of all bytes, with the checksum's own as spaces; some writers sum signed bytes.
bool ChecksumGood(absl::Span<const uint8_t> header) {
  const auto stored = NumberAt(header, kChecksum);
  int64_t unsigned_sum = 0;
  int64_t signed_sum = 0;
  for (size_t i = 0; i < kUnit; ++i) {
    const bool own = i >= kChecksum.at && i < kChecksum.at + kChecksum.bytes;
    const uint8_t byte = own ? ' ' : header[i];
    unsigned_sum += byte;
    signed_sum += static_cast<int8_t>(byte);
  }
  return stored && (static_cast<int64_t>(*stored) == unsigned_sum ||
                    static_cast<int64_t>(*stored) == signed_sum);
}

uint64_t Padded(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

absl::StatusOr<absl::Span<const uint8_t>> BlockReader::At(uint64_t offset, size_t count) {
  if (offset < begin_ || offset + count > begin_ + block_.size()) {
    const uint64_t left = offset < file_.bytes() ? file_.bytes() - offset : 0;
    // After a large member only a header is needed; small members lie within one block.
    const bool onward = offset >= begin_ && offset <= begin_ + block_.size();
    const size_t wanted = onward ? kBlockBytes : kHeaderBytes;
    block_.resize(std::max<uint64_t>(std::min<uint64_t>(left, wanted), count));
    begin_ = offset;
    const absl::Status status = file_.ReadAt(offset, absl::MakeSpan(block_));
    if (!status.ok()) {
      block_.clear();
      return status;
    }
  }
  return absl::MakeConstSpan(block_).subspan(offset - begin_, count);
}

template <typename... Args>
absl::Status TarReader::Error(const Args&... what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(file_.path(), ": tar header at byte ", at_, ": ", what...));
}

absl::StatusOr<TarReader::Header> TarReader::ReadHeader() {
  if (at_ + kUnit > file_.bytes()) {
    return Error("the file ends here, without the mark of an archive's end: truncated");
  }
  STARLING_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> block, reader_.At(at_, kUnit));
  Header header;
  header.end = std::all_of(block.begin(), block.end(), [](uint8_t b) { return b == 0; });
  if (header.end) return header;
  if (!ChecksumGood(block)) return Error("its checksum is wrong: corrupt, or no tar file");
  const auto bytes = NumberAt(block, kSize);
  if (!bytes) return Error("its size is not a number");
  header.type = static_cast<char>(block[kTypeAt]);
  header.member.name = TextAt(block, kName);
  const std::string prefix = TextAt(block, kPrefix);
  if (TextAt(block, kMagic) == "ustar" && !prefix.empty() && block[262] == 0) {  // POSIX, not GNU
    header.member.name = absl::StrCat(prefix, "/", header.member.name);
  }
  const bool extension =
      header.type == 'L' || header.type == 'K' || header.type == 'x' || header.type == 'g';
  header.member.bytes = !extension && long_bytes_ ? *long_bytes_ : *bytes;
  header.member.offset = at_ + kUnit;
  if (header.member.bytes > file_.bytes() - header.member.offset) {
    return Error("member ", absl::CHexEscape(header.member.name), " of ", header.member.bytes,
                 " bytes is beyond the file's end at ", file_.bytes(), ": truncated");
  }
  return header;
}

absl::StatusOr<std::string> TarReader::ReadExtension(const TarMember& member) {
  if (member.bytes > kExtensionBytesMax) {
    return Error("an extension of ", member.bytes, " bytes; at most ", kExtensionBytesMax,
                 " are read");
  }
  STARLING_ASSIGN_OR_RETURN(const auto bytes, reader_.At(member.offset, member.bytes));
  return std::string(bytes.begin(), bytes.end());
}

// Records "LENGTH KEY=VALUE\n", where LENGTH includes the whole record.
absl::Status TarReader::TakePax(const std::string& records) {
  absl::string_view rest = records;
  while (!rest.empty() && rest[0] != '\0') {
    const size_t space = rest.find(' ');
    uint64_t length = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, space), &length) ||
        length <= space + 1 || length > rest.size() || rest[length - 1] != '\n') {
      return Error("a pax record is malformed");
    }
    const absl::string_view record = rest.substr(space + 1, length - space - 2);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return Error("a pax record is malformed");
    const absl::string_view value = record.substr(equals + 1);
    if (record.substr(0, equals) == "path") long_name_ = std::string(value);
    uint64_t bytes = 0;
    if (record.substr(0, equals) == "size") {
      if (!absl::SimpleAtoi(value, &bytes)) return Error("pax size is not a number");
      long_bytes_ = bytes;
    }
    rest.remove_prefix(length);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<TarMember>> TarReader::Next() {
  while (true) {
    STARLING_ASSIGN_OR_RETURN(Header header, ReadHeader());
    if (header.end) return absl::optional<TarMember>();
    TarMember& member = header.member;
    if (header.type == 'L') {
      STARLING_ASSIGN_OR_RETURN(long_name_, ReadExtension(member));
      long_name_.resize(strnlen(long_name_.data(), long_name_.size()));
    } else if (header.type == 'x') {
      STARLING_ASSIGN_OR_RETURN(const std::string records, ReadExtension(member));
      STARLING_RETURN_IF_ERROR(TakePax(records));
    } else if (header.type != 'g' && header.type != 'K') {
      if (!long_name_.empty()) member.name = std::move(long_name_);
      long_name_.clear();
      long_bytes_.reset();
    }
    switch (header.type) {
      case '0':
      case '\0':
      case '7':
        at_ = member.offset + Padded(member.bytes);
        return absl::make_optional(std::move(member));
      case 'L':
      case 'K':
      case 'x':
      case 'g':
      case '5': at_ = member.offset + Padded(member.bytes); break;
      default:
        return Error("member ", absl::CHexEscape(member.name), " is no file (type '",
                     absl::CHexEscape(std::string(1, header.type)),
                     "'): links and devices are not followed");
    }
  }
}

}  // namespace starling
