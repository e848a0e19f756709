#include <charconv>
#include <cmath>
#include <map>
#include <new>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/data/byte_stream.h"
#include "worker/data/csv_columns.h"
#include "worker/data/samples.h"

namespace starling {
namespace {

constexpr size_t kChunkBytes = 64 << 10;

// Without surrounding quotes.
absl::string_view Unquoted(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text.remove_prefix(1);
    text.remove_suffix(1);
  }
  return text;
}

class CsvParser {
 public:
  CsvParser(const DataSource::Csv& csv, const DataLimits& limits)
      : csv_(csv), limits_(limits), separator_(csv.separator().empty() ? ',' : csv.separator()[0]) {
    samples_.class_names.assign(csv.classes().begin(), csv.classes().end());
    samples_.first_line = csv.header() ? 2 : 1;
    for (int i = 0; i < csv.classes_size(); ++i) classes_[csv.classes(i)] = i;
  }

  absl::Status Line(absl::string_view line) {
    ++line_;
    if (line_ == 1) absl::ConsumePrefix(&line, "\xEF\xBB\xBF");  // the byte order mark of UTF-8
    absl::ConsumeSuffix(&line, "\r");
    const std::vector<absl::string_view> fields = absl::StrSplit(line, separator_);
    if (fields.size() < 2) {
      return Error("expected numbers separated by ",
                   separator_ == ',' ? "commas" : csv_.separator(), " and a label, got \"",
                   Excerpt(line), "\"");
    }
    if (line_ == 1) STARLING_RETURN_IF_ERROR(FirstLine(fields));
    if (line_ == 1 && csv_.header()) return absl::OkStatus();
    STARLING_RETURN_IF_ERROR(Reserve());
    return Row(fields);
  }

  absl::StatusOr<Samples> Finish() {
    if (samples_.count() == 0)
      return absl::InvalidArgumentError(absl::StrCat(csv_.path(), ": empty"));
    return std::move(samples_);
  }

  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(csv_.path(), ": line ", line_, ": ", what...));
  }

  absl::Status LineTooLong() {
    ++line_;
    return Error("longer than ", limits_.csv_line_bytes_max, " bytes");
  }

 private:
  static std::string Excerpt(absl::string_view text) {
    return absl::CHexEscape(text.substr(0, 40));
  }

  absl::Status FirstLine(const std::vector<absl::string_view>& fields) {
    std::vector<std::string> names;
    for (size_t i = 0; i < fields.size(); ++i)
      names.push_back(csv_.header() ? std::string(Unquoted(fields[i])) : absl::StrCat(i + 1));
    auto columns = CsvColumns::Resolve(csv_, names);
    if (!columns.ok()) return Error(columns.status().message());
    columns_ = *std::move(columns);
    samples_.shape = {static_cast<int64_t>(columns_.features)};
    if (csv_.label_type() == DataSource::Csv::LABEL_NUMBER)
      samples_.label_shape = {static_cast<int64_t>(columns_.labels)};
    return absl::OkStatus();
  }

  // Checks that the limit allows one more row.
  absl::Status Reserve() const {
    const uint64_t bytes = sizeof(float) * (samples_.floats.size() + columns_.features +
                                            samples_.targets.size() + columns_.labels) +
                           sizeof(int32_t) * (samples_.labels.size() + 1);
    if (bytes <= limits_.decoded_bytes_max) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(csv_.path(), ": line ", line_,
                                                     ": more than the limit of ",
                                                     limits_.decoded_bytes_max, " bytes of data"));
  }

  absl::Status Row(const std::vector<absl::string_view>& fields) {
    if (fields.size() != columns_.columns.size()) {
      return Error("expected ", columns_.columns.size(), " columns as in line 1, got ",
                   fields.size());
    }
    const bool classes = csv_.label_type() == DataSource::Csv::LABEL_CLASS;
    const size_t features = samples_.floats.size();
    const size_t targets = samples_.targets.size();
    samples_.floats.resize(features + columns_.features);
    if (!classes) samples_.targets.resize(targets + columns_.labels);
    for (size_t i = 0; i < fields.size(); ++i) {
      const CsvColumns::Column& column = columns_.columns[i];
      if (column.kind == CsvColumns::Kind::kFeature) {
        STARLING_RETURN_IF_ERROR(Number(fields[i], i, &samples_.floats[features + column.place]));
      } else if (column.kind == CsvColumns::Kind::kLabel && classes) {
        STARLING_RETURN_IF_ERROR(Label(fields[i], i));
      } else if (column.kind == CsvColumns::Kind::kLabel) {
        STARLING_RETURN_IF_ERROR(Number(fields[i], i, &samples_.targets[targets + column.place]));
      }
    }
    return absl::OkStatus();
  }

  std::string Place(size_t column) const {
    if (!csv_.header()) return absl::StrCat("column ", column + 1, ": ");
    return absl::StrCat("column ", column + 1, " (\"", Excerpt(columns_.columns[column].name),
                        "\"): ");
  }

  absl::Status Number(absl::string_view text, size_t column, float* out) {
    text = absl::StripAsciiWhitespace(text);
    double value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = end == text.data() + text.size();
    if (error == std::errc::result_out_of_range) {  // and `value` is not set: 0, or infinite
      absl::from_chars(text.data(), text.data() + text.size(), value);
      error = std::errc();
    }
    *out = static_cast<float>(value);
    if (error == std::errc() && whole && std::isfinite(*out)) return absl::OkStatus();
    if (error == std::errc() && whole && absl::ascii_isdigit(text.back())) {
      return Error(Place(column), "expected a number that a float holds, from -3.4028235e38 to ",
                   "3.4028235e38, got \"", Excerpt(text), "\"");
    }
    return Error(Place(column), "expected a number, got \"", Excerpt(text), "\"",
                 line_ == 1 ? " (where this is the header, say header: true)" : "");
  }

  absl::Status Label(absl::string_view text, size_t column) {
    const auto named = classes_.find(std::string(Unquoted(text)));
    if (named != classes_.end()) {
      samples_.labels.push_back(named->second);
      return absl::OkStatus();
    }
    text = absl::StripAsciiWhitespace(text);
    if (!classes_.empty()) {
      return Error(Place(column), "unknown class \"", Excerpt(text), "\"; classes lists ",
                   absl::StrJoin(csv_.classes(), ", "));
    }
    int32_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) {
      return Error(Place(column), "expected a label, an integer >= 0, got \"", Excerpt(text), "\"");
    }
    samples_.labels.push_back(value);
    return absl::OkStatus();
  }

  const DataSource::Csv& csv_;
  const DataLimits& limits_;
  const char separator_;
  std::map<std::string, int32_t> classes_;
  CsvColumns columns_;
  Samples samples_;
  int64_t line_ = 0;
};

// Parses the complete lines in `pending` and keeps the rest.
absl::Status TakeLines(std::string& pending, const DataLimits& limits, CsvParser& parser) {
  size_t begin = 0;
  for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
    STARLING_RETURN_IF_ERROR(parser.Line(absl::string_view(pending).substr(begin, end - begin)));
  }
  pending.erase(0, begin);
  return pending.size() > limits.csv_line_bytes_max ? parser.LineTooLong() : absl::OkStatus();
}

absl::StatusOr<Samples> Parse(const DataSource::Csv& csv, const DataLimits& limits) {
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> in, ByteStream::Open(csv.path()));
  CsvParser parser(csv, limits);
  std::string pending;
  std::vector<uint8_t> chunk(kChunkBytes);
  for (size_t got = chunk.size(); got == chunk.size();) {
    STARLING_ASSIGN_OR_RETURN(got, in->Read(absl::MakeSpan(chunk)));
    pending.append(reinterpret_cast<const char*>(chunk.data()), got);
    STARLING_RETURN_IF_ERROR(TakeLines(pending, limits, parser));
  }
  if (!pending.empty())
    STARLING_RETURN_IF_ERROR(parser.Line(pending));  // a last line without a line end
  return parser.Finish();
}

}  // namespace

absl::StatusOr<Samples> ReadCsv(const DataSource::Csv& csv, const DataLimits& limits) {
  try {
    return Parse(csv, limits);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(csv.path(), ": no memory for its data"));
  }
}

}  // namespace starling
