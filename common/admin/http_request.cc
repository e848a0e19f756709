#include "common/admin/http_request.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace starling::admin {
namespace {

constexpr size_t kMethodBytesMax = 16;

HttpParse Refuse(int status, std::string why) { return {status, std::move(why), {}}; }

bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("!#$%&'*+-.^_`|~", absl::string_view(&c, 1));
  });
}

// Whether `text` has anything other than visible characters, spaces, tabs and line ends.
bool HasControlCharacter(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\r' && c != '\n') ||
           c == '\x7f';
  });
}

// Checks the start of a request that is not complete yet.
HttpParse CheckBeginning(absl::string_view bytes) {
  const absl::string_view method = bytes.substr(0, bytes.find(' '));
  if (method.size() > kMethodBytesMax || !(method.empty() ? bytes.empty() : IsToken(method))) {
    return Refuse(400, "expected a method and a space at the beginning");
  }
  if (HasControlCharacter(bytes)) return Refuse(400, "there is a control character in the head");
  if (bytes.size() > kRequestBytesMax) {
    return Refuse(431, absl::StrCat("a request may have ", kRequestBytesMax, " bytes"));
  }
  return {};
}

HttpParse ParseRequestLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3) return Refuse(400, "expected METHOD TARGET VERSION in the first line");
  const absl::string_view method = words[0], target = words[1], version = words[2];
  if (!absl::StartsWith(version, "HTTP/")) return Refuse(400, "expected HTTP/1.1 or HTTP/1.0");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Refuse(505, "expected HTTP/1.1 or HTTP/1.0");
  }
  if (method != "GET") return Refuse(405, "only GET is served here");
  if (target.size() > kTargetBytesMax) {
    return Refuse(414, absl::StrCat("a target may have ", kTargetBytesMax, " bytes"));
  }
  if (target.empty() || target.front() != '/')
    return Refuse(400, "expected a target that begins with /");
  const bool visible =
      std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (!visible) return Refuse(400, "a target has visible ASCII characters alone");
  HttpParse parse;
  parse.status = 200;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  parse.request.path = std::string(parts.first);
  parse.request.query = std::string(parts.second);
  return parse;
}

// The error in a header line; empty: none.
std::string CheckHeader(absl::string_view line) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos || !IsToken(line.substr(0, colon))) {
    return "expected NAME: VALUE in each header line";
  }
  const absl::string_view name = line.substr(0, colon);
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  const bool body = absl::EqualsIgnoreCase(name, "transfer-encoding") ||
                    (absl::EqualsIgnoreCase(name, "content-length") && value != "0");
  return body ? "a GET has no body here" : "";
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// False: malformed.
bool Decode(absl::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out->push_back(' ');
    } else if (text[i] != '%') {
      out->push_back(text[i]);
    } else {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return false;
      out->push_back(static_cast<char>(16 * high + low));
      i += 2;
    }
  }
  return true;
}

}  // namespace

HttpParse ParseHttpRequest(absl::string_view bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  const absl::string_view head = bytes.substr(0, end);
  if (HttpParse wrong = CheckBeginning(head); wrong.status != 0) return wrong;
  if (end == absl::string_view::npos) return {};
  const std::vector<absl::string_view> lines = absl::StrSplit(head, "\r\n");
  for (const absl::string_view line : lines) {
    if (line.find_first_of("\r\n") != absl::string_view::npos) {
      return Refuse(400, "lines end with CR LF");
    }
  }
  HttpParse parse = ParseRequestLine(lines[0]);
  if (parse.status != 200) return parse;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (std::string wrong = CheckHeader(lines[i]); !wrong.empty())
      return Refuse(400, std::move(wrong));
  }
  return parse;
}

std::string QueryValue(absl::string_view query, absl::string_view name) {
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::string value;
    if (entry.first == name) return Decode(entry.second, &value) ? value : "";
  }
  return "";
}

absl::string_view StatusLine(int status) {
  switch (status) {
    case 200: return "200 OK";
    case 400: return "400 Bad Request";
    case 404: return "404 Not Found";
    case 405: return "405 Method Not Allowed";
    case 408: return "408 Request Timeout";
    case 414: return "414 URI Too Long";
    case 431: return "431 Request Header Fields Too Large";
    case 503: return "503 Service Unavailable";
    case 505: return "505 HTTP Version Not Supported";
    default: return "500 Internal Server Error";
  }
}

}  // namespace starling::admin
