// The header: a Python dict literal, of which only NumPy's own subset is parsed.
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/npy/npy.h"

namespace starling::npy {
namespace {

struct TypeRow {
  DType dtype;
  const char* name;
  const char* words;
  size_t bytes;
};

constexpr TypeRow kTypes[] = {
    {DType::kF32, "<f4", "float32", 4}, {DType::kF64, "<f8", "float64", 8},
    {DType::kI32, "<i4", "int32", 4},   {DType::kI64, "<i8", "int64", 8},
    {DType::kU8, "|u1", "uint8", 1},
};

const TypeRow& RowOf(DType dtype) { return kTypes[static_cast<size_t>(dtype)]; }

absl::Status Malformed(absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat("npy header: expected ", expected, ", got ",
                   got.empty() ? "its end" : absl::StrCat("\"", absl::CHexEscape(got), "\"")));
}

class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view text) : rest_(text) {}

  absl::StatusOr<Header> Parse() {
    STARLING_RETURN_IF_ERROR(Expect('{'));
    while (!Take('}')) {
      STARLING_ASSIGN_OR_RETURN(const std::string key, String("a key"));
      STARLING_RETURN_IF_ERROR(Expect(':'));
      STARLING_RETURN_IF_ERROR(Entry(key));
      if (Take(',')) continue;
      STARLING_RETURN_IF_ERROR(Expect('}'));
      break;
    }
    SkipBlanks();
    if (!rest_.empty()) return Malformed("nothing behind the dict", Next());
    for (const char* key : {"descr", "fortran_order", "shape"}) {
      if (seen_[key] == 0) return Malformed(absl::StrCat("the key '", key, "'"), "a dict without");
    }
    return header_;
  }

 private:
  void SkipBlanks() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }
  absl::string_view Next() const { return rest_.substr(0, 20); }

  bool Take(char wanted) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  absl::Status Expect(char wanted) {
    return Take(wanted) ? absl::OkStatus()
                        : Malformed(absl::StrCat("'", std::string(1, wanted), "'"), Next());
  }

  absl::StatusOr<std::string> String(absl::string_view what) {
    SkipBlanks();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) {
      return Malformed(absl::StrCat(what, " in quotes"), Next());
    }
    const size_t end = rest_.find(rest_.front(), 1);
    if (end == rest_.npos) return Malformed("a closing quote", Next());
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  absl::Status Entry(const std::string& key) {
    if (++seen_[key] > 1) return Malformed(absl::StrCat("'", key, "' once"), "it twice");
    if (key == "descr") return Descr();
    if (key == "fortran_order") return FortranOrder();
    if (key == "shape") return ShapeTuple();
    return Malformed("descr, fortran_order and shape", key);
  }

  absl::Status Descr() {
    SkipBlanks();
    if (!rest_.empty() && rest_.front() == '[') {
      return Malformed("one of <f4, <f8, <i4, <i8, |u1", "a structured dtype");
    }
    STARLING_ASSIGN_OR_RETURN(const std::string name, String("a dtype"));
    for (const TypeRow& row : kTypes) {
      if (name != row.name) continue;
      header_.dtype = row.dtype;
      return absl::OkStatus();
    }
    return Malformed("the dtype <f4, <f8, <i4, <i8 or |u1 (see numpy's astype)", name);
  }

  absl::Status FortranOrder() {
    SkipBlanks();
    for (const auto& [word, value] : {std::pair("False", false), std::pair("True", true)}) {
      const absl::string_view text(word);
      if (rest_.substr(0, text.size()) != text) continue;
      rest_.remove_prefix(text.size());
      return value ? Malformed("C order (see numpy.ascontiguousarray)", "Fortran order")
                   : absl::OkStatus();
    }
    return Malformed("True or False", Next());
  }

  // "()", "(3,)", "(3, 4)", "(3, 4,)".
  absl::Status ShapeTuple() {
    STARLING_RETURN_IF_ERROR(Expect('('));
    bool comma = true;  // required before the next dimension
    while (!Take(')')) {
      if (!comma) return Malformed("',' or ')' in the shape", Next());
      STARLING_ASSIGN_OR_RETURN(const int64_t dim, Dimension());
      header_.shape.push_back(dim);
      if (header_.shape.size() > kDimsMax) {
        return Malformed(absl::StrCat("at most ", kDimsMax, " dimensions"), "more");
      }
      comma = Take(',');
    }
    if (header_.shape.size() == 1 && !comma) return Malformed("(n,) for one dimension", "(n)");
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Dimension() {
    SkipBlanks();
    const absl::string_view from = Next();
    int64_t value = 0;
    size_t digits = 0;
    for (; digits < rest_.size() && absl::ascii_isdigit(rest_[digits]); ++digits) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, rest_[digits] - '0', &value)) {
        return Malformed("a dimension below 2^63", from);
      }
    }
    if (digits == 0) return Malformed("a dimension", from);
    rest_.remove_prefix(digits);
    return value;
  }

  absl::string_view rest_;
  Header header_;
  std::map<std::string, int> seen_;
};

}  // namespace

const char* DTypeName(DType dtype) { return RowOf(dtype).name; }
const char* DTypeWords(DType dtype) { return RowOf(dtype).words; }
size_t DTypeBytes(DType dtype) { return RowOf(dtype).bytes; }

int64_t Array::elements() const { return static_cast<int64_t>(bytes.size() / DTypeBytes(dtype)); }

absl::StatusOr<Header> ParseHeader(absl::string_view text) { return HeaderParser(text).Parse(); }

std::string EncodeHeader(const Header& header) {
  const std::string dims = absl::StrJoin(header.shape, ", ");
  std::string text =
      absl::StrCat("{'descr': '", DTypeName(header.dtype), "', 'fortran_order': False, 'shape': (",
                   dims, header.shape.size() == 1 ? "," : "", "), }");
  const size_t length_bytes = text.size() + 64 > std::numeric_limits<uint16_t>::max() ? 4 : 2;
  const size_t before = 8 + length_bytes;
  text.append(63 - (before + text.size()) % 64, ' ');
  text.push_back('\n');
  std::string out =
      absl::StrCat("\x93NUMPY", std::string(1, length_bytes == 2 ? 1 : 2), std::string(1, '\0'));
  for (size_t i = 0; i < length_bytes; ++i) {
    out.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  }
  return out + text;
}

}  // namespace starling::npy
