#include <charconv>
#include <cmath>
#include <new>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/data/byte_stream.h"
#include "worker/data/samples.h"

namespace starling {
namespace {

constexpr size_t kChunkBytes = 64 << 10;

class CsvParser {
 public:
  CsvParser(std::string path, const DataLimits& limits) : path_(std::move(path)), limits_(limits) {}

  absl::Status Line(absl::string_view line) {
    ++line_;
    absl::ConsumeSuffix(&line, "\r");
    size_t columns = 0;
    const size_t comma = line.rfind(',');
    if (comma == absl::string_view::npos) {
      return Error("expected numbers separated by commas and a label, got \"", Excerpt(line), "\"");
    }
    STARLING_RETURN_IF_ERROR(Reserve(line));
    for (absl::string_view field : absl::StrSplit(line.substr(0, comma), ',')) {
      STARLING_RETURN_IF_ERROR(Number(field, ++columns));
    }
    STARLING_RETURN_IF_ERROR(Label(line.substr(comma + 1), ++columns));
    if (line_ == 1) columns_ = columns;
    if (columns != columns_)
      return Error("expected ", columns_, " columns as in line 1, got ", columns);
    return absl::OkStatus();
  }

  absl::StatusOr<Samples> Finish() {
    if (line_ == 0) return absl::InvalidArgumentError(absl::StrCat(path_, ": empty"));
    samples_.shape = {static_cast<int64_t>(columns_ - 1)};
    return std::move(samples_);
  }

  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": line ", line_, ": ", what...));
  }

  absl::Status LineTooLong() {
    ++line_;
    return Error("longer than ", limits_.csv_line_bytes_max, " bytes");
  }

 private:
  static std::string Excerpt(absl::string_view text) {
    return absl::CHexEscape(text.substr(0, 40));
  }

  // Before a line is taken: what it can add at most, a number for two characters.
  absl::Status Reserve(absl::string_view line) const {
    const uint64_t bytes = sizeof(float) * (samples_.floats.size() + line.size() / 2 + 1) +
                           sizeof(int32_t) * (samples_.labels.size() + 1);
    if (bytes <= limits_.decoded_bytes_max) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": line ", line_,
                                                     ": more than the limit of ",
                                                     limits_.decoded_bytes_max, " bytes of data"));
  }

  absl::Status Number(absl::string_view text, size_t column) {
    text = absl::StripAsciiWhitespace(text);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() ||
        !std::isfinite(static_cast<float>(value))) {
      return Error("column ", column, ": expected a number, got \"", Excerpt(text), "\"",
                   line_ == 1 ? " (the file must have no header line)" : "");
    }
    samples_.floats.push_back(static_cast<float>(value));
    return absl::OkStatus();
  }

  absl::Status Label(absl::string_view text, size_t column) {
    text = absl::StripAsciiWhitespace(text);
    int32_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) {
      return Error("column ", column, ": expected a label, an integer >= 0, got \"", Excerpt(text),
                   "\"");
    }
    samples_.labels.push_back(value);
    return absl::OkStatus();
  }

  const std::string path_;
  const DataLimits& limits_;
  Samples samples_;
  size_t columns_ = 0;
  int64_t line_ = 0;
};

// Feeds the lines that are complete in `pending` and keeps the rest.
absl::Status TakeLines(std::string& pending, const DataLimits& limits, CsvParser& parser) {
  size_t begin = 0;
  for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
    STARLING_RETURN_IF_ERROR(parser.Line(absl::string_view(pending).substr(begin, end - begin)));
  }
  pending.erase(0, begin);
  return pending.size() > limits.csv_line_bytes_max ? parser.LineTooLong() : absl::OkStatus();
}

absl::StatusOr<Samples> Parse(const std::string& path, const DataLimits& limits) {
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> in, ByteStream::Open(path));
  CsvParser parser(path, limits);
  std::string pending;
  std::vector<uint8_t> chunk(kChunkBytes);
  for (size_t got = chunk.size(); got == chunk.size();) {
    STARLING_ASSIGN_OR_RETURN(got, in->Read(absl::MakeSpan(chunk)));
    pending.append(reinterpret_cast<const char*>(chunk.data()), got);
    STARLING_RETURN_IF_ERROR(TakeLines(pending, limits, parser));
  }
  if (!pending.empty())
    STARLING_RETURN_IF_ERROR(parser.Line(pending));  // a last line without its end
  return parser.Finish();
}

}  // namespace

absl::StatusOr<Samples> ReadCsv(const std::string& path, const DataLimits& limits) {
  try {
    return Parse(path, limits);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory for its data"));
  }
}

}  // namespace starling
