#include "tools/cli/output.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace starling::cli {
namespace {

using Json = nlohmann::ordered_json;

void EmitYaml(const Json& value, YAML::Emitter* out) {
  if (value.is_object()) {
    if (value.empty()) *out << YAML::Flow;
    *out << YAML::BeginMap;
    for (const auto& [key, child] : value.items()) {
      *out << YAML::Key << key << YAML::Value;
      EmitYaml(child, out);
    }
    *out << YAML::EndMap;
  } else if (value.is_array()) {
    const bool flat = std::none_of(value.begin(), value.end(),
                                   [](const Json& child) { return child.is_structured(); });
    if (flat) *out << YAML::Flow;
    *out << YAML::BeginSeq;
    for (const Json& child : value) EmitYaml(child, out);
    *out << YAML::EndSeq;
  } else if (value.is_string()) {
    // Quoted, so that a name like "on" or "12" stays a string.
    *out << YAML::DoubleQuoted << value.get<std::string>();
  } else {
    *out << value.dump();
  }
}

}  // namespace

std::string JsonText(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string YamlText(const Json& value) {
  YAML::Emitter out;
  EmitYaml(value, &out);
  return absl::StrCat(out.c_str(), "\n");
}

std::string FormatText(Format format, const Json& value) {
  return format == Format::kJson ? JsonText(value) : YamlText(value);
}

std::string PrintableText(absl::string_view text, bool lines) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters, too.
    const bool wide = byte == 0xc2 && i + 1 < text.size() &&
                      static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                      static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (wide) {
      absl::StrAppend(&out, absl::CHexEscape(text.substr(i++, 2)));
    } else if (absl::ascii_iscntrl(byte) && !(lines && byte == '\n')) {
      absl::StrAppend(&out, absl::CHexEscape(text.substr(i, 1)));
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string TableText(const Rows& given) {
  Rows rows = given;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = PrintableText(cell);
  }
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.resize(line.size() + widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string WarningsText(const google::protobuf::RepeatedPtrField<std::string>& warnings) {
  std::string text;
  for (const std::string& warning : warnings)
    absl::StrAppend(&text, "warning: ", PrintableText(warning), "\n");
  return text;
}

std::string CountText(uint64_t count) {
  std::string text = absl::StrCat(count);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(at, 1, ',');
  return text;
}

std::string PolicyText(const Policy& policy) {
  switch (policy.kind()) {
    case Policy::BSP: return "bsp";
    case Policy::SSP: return absl::StrCat("ssp(", policy.staleness(), ")");
    default: return "async";
  }
}

std::string DurationText(double seconds) {
  if (!(seconds > 0)) return "0s";
  if (seconds < 9.95) return absl::StrFormat("%.1fs", seconds);
  if (seconds > 1e9) return "years";
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
}

std::string BytesText(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, units[unit]);
}

}  // namespace starling::cli
