#include "common/config/schema.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status_macros.h"
#include "common/config/duration.h"
#include "common/config/numbers.h"

namespace starling::config {
namespace {

const char* TypeName(FieldType type) {
  switch (type) {
    case FieldType::kString:
    case FieldType::kPath: return "string";
    case FieldType::kInteger: return "integer";
    case FieldType::kNumber: return "number";
    case FieldType::kBoolean: return "true or false";
    case FieldType::kDuration: return "duration, like 90s, 30m or 2h";
    case FieldType::kNumberList: return "list of numbers";
    case FieldType::kStringList:
    case FieldType::kPathList: return "list of strings";
    case FieldType::kLabels: return "map of strings";
    case FieldType::kLayers: return "list of layers";
    case FieldType::kMap: return "map";
    case FieldType::kOneOf: return "map with exactly one key";
    case FieldType::kMapList: return "list of maps";
  }
  return "value";
}

const char* KindName(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (node.IsScalar()) return "a single value";
  return "nothing";
}

std::string Expected(const Field& field) {
  if (!field.number_allowed) return TypeName(field.type);
  return absl::StrCat("a number or a map with exactly one of ",
                      absl::StrJoin(Alternatives(field), ", "));
}

absl::Status TypeError(const YAML::Node& node, const std::string& path,
                       const std::string& expected) {
  const std::string came =
      node.IsScalar() ? absl::StrCat("\"", node.Scalar(), "\"") : KindName(node);
  const bool variable = node.IsScalar() && node.Scalar().find('$') != std::string::npos;
  return absl::InvalidArgumentError(absl::StrCat(
      Where(node, path), ": expected ", expected, ", got ", came,
      variable ? absl::StrCat("; $VAR is expanded in paths alone: write the value out, or give it "
                              "as --set ",
                              path, "=VALUE")
               : ""));
}

bool IsNumber(const YAML::Node& node) { return AsNumber(node).has_value(); }

bool IsBoolean(const YAML::Node& node) {
  bool value = false;
  return YAML::convert<bool>::decode(node, value);
}

std::vector<std::string> Keys(const Field& field) {
  std::vector<std::string> keys;
  for (const Field& child : field.children) keys.push_back(child.key);
  return keys;
}

absl::Status CheckField(const YAML::Node& node, const Field& field, const std::string& path);

// A key beside the alternatives is for those that have none of its name.
absl::Status CheckBeside(const YAML::Node& node, const Field& field, const std::string& path,
                         const std::set<std::string>& seen) {
  for (const Field& alternative : field.children) {
    if (alternative.beside || seen.count(alternative.key) == 0) continue;
    for (const std::string& own : Keys(alternative)) {
      // momentum has a key of its own name.
      if (seen.count(own) == 0 || own == alternative.key) continue;
      return absl::InvalidArgumentError(absl::StrCat(Where(node[own], absl::StrCat(path, ".", own)),
                                                     ": belongs inside ", alternative.key));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOneOf(const YAML::Node& node, const Field& field, const std::string& path,
                        const std::set<std::string>& seen) {
  const std::vector<std::string> alternatives = Alternatives(field);
  std::vector<std::string> given;
  for (const std::string& key : alternatives) {
    if (seen.count(key) > 0) given.push_back(key);
  }
  if (given.size() == 1) return CheckBeside(node, field, path, seen);
  return absl::InvalidArgumentError(absl::StrCat(
      Where(node, path), ": expected exactly one of ", absl::StrJoin(alternatives, ", "), ", got ",
      given.empty() ? "none" : absl::StrJoin(given, " and ")));
}

absl::Status CheckRequired(const YAML::Node& node, const Field& field, const std::string& path,
                           const std::set<std::string>& seen) {
  for (const Field& child : field.children) {
    if (!child.required || seen.count(child.key) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Where(node, path), ": key \"", child.key, "\" is missing (", child.help, "): expected ",
        Expected(child), ", got nothing",
        field.key.empty() ? "" : absl::StrCat("; write ", field.key, ": {", child.key, ": ...}")));
  }
  return absl::OkStatus();
}

// A key without a value, or with null: it may mean a default, an empty map or no such thing
// (evaluate), so it means nothing. A missing value has no line number of its own.
absl::Status CheckNothing(const YAML::Node& key, const Field& field, const std::string& path) {
  const bool map = field.type == FieldType::kMap;
  if (map) STARLING_RETURN_IF_ERROR(CheckRequired(key, field, path, {}));
  return absl::InvalidArgumentError(absl::StrCat(
      Where(key, path), ": expected ", Expected(field), ", got nothing: write ",
      map ? absl::StrCat(field.key, ": {}") : "a value", field.required ? "" : ", or leave it out",
      field.default_text.empty() || map ? "" : absl::StrCat(", which means ", field.default_text)));
}

absl::Status CheckMap(const YAML::Node& node, const Field& field, const std::string& path) {
  if (field.number_allowed && IsNumber(node)) return absl::OkStatus();
  if (!node.IsMap()) return TypeError(node, path, Expected(field));
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string key = entry.first.Scalar();
    const std::string child_path = path.empty() ? key : absl::StrCat(path, ".", key);
    const Field* const child = FindField(field, key);
    if (child == nullptr) {
      const std::string near = NearestName(key, Keys(field));
      return absl::InvalidArgumentError(absl::StrCat(
          Where(entry.first, child_path), ": unknown key",
          near.empty() ? absl::StrCat("; known here: ", absl::StrJoin(Keys(field), ", "))
                       : absl::StrCat("; did you mean \"", near, "\"?")));
    }
    if (!seen.insert(key).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(Where(entry.first, child_path), ": given twice"));
    }
    const bool nothing = entry.second.IsNull();
    STARLING_RETURN_IF_ERROR(nothing ? CheckNothing(entry.first, *child, child_path)
                                     : CheckField(entry.second, *child, child_path));
  }
  if (field.type == FieldType::kOneOf) return CheckOneOf(node, field, path, seen);
  return CheckRequired(node, field, path, seen);
}

absl::Status CheckMapList(const YAML::Node& node, const Field& field, const std::string& path) {
  if (!node.IsSequence()) return TypeError(node, path, Expected(field));
  for (size_t i = 0; i < node.size(); ++i) {
    const std::string item_path = absl::StrCat(path, "[", i, "]");
    if (!node[i].IsMap()) return TypeError(node[i], item_path, TypeName(FieldType::kMap));
    STARLING_RETURN_IF_ERROR(CheckMap(node[i], field, item_path));
  }
  return absl::OkStatus();
}

absl::Status CheckField(const YAML::Node& node, const Field& field, const std::string& path) {
  bool good = true;
  switch (field.type) {
    case FieldType::kMap:
    case FieldType::kOneOf: return CheckMap(node, field, path);
    case FieldType::kMapList: return CheckMapList(node, field, path);
    case FieldType::kString:
    case FieldType::kPath: good = node.IsScalar(); break;
    case FieldType::kInteger: good = AsInteger(node).has_value(); break;
    case FieldType::kNumber: good = IsNumber(node); break;
    case FieldType::kBoolean: good = IsBoolean(node); break;
    case FieldType::kDuration: good = node.IsScalar() && ParseDuration(node.Scalar()).ok(); break;
    case FieldType::kNumberList:
      good = node.IsSequence() && std::all_of(node.begin(), node.end(), IsNumber);
      break;
    case FieldType::kStringList:
    case FieldType::kPathList:
      good = node.IsSequence() &&
             std::all_of(node.begin(), node.end(), [](const auto& e) { return e.IsScalar(); });
      break;
    case FieldType::kLabels:
      good = node.IsMap() && std::all_of(node.begin(), node.end(),
                                         [](const auto& e) { return e.second.IsScalar(); });
      break;
    case FieldType::kLayers: good = node.IsSequence(); break;
  }
  return good ? absl::OkStatus() : TypeError(node, path, Expected(field));
}

// `indent` starts the first child's line; the other lines get spaces instead.
void AppendText(const Field& field, std::string indent, std::string* out) {
  for (const Field& child : field.children) {
    std::string line = absl::StrCat(indent, child.key, ":");
    if (!IsGroup(child.type) || child.children.empty())
      absl::StrAppend(&line, " ", child.default_text);
    if (child.type == FieldType::kMap && child.children.empty()) absl::StrAppend(&line, "{}");
    line.resize(std::max<size_t>(line.size() + 1, 44), ' ');
    absl::StrAppend(&line, "# ", child.number_allowed ? "number or " : "", TypeName(child.type),
                    child.required ? ", required" : "", ": ", child.help, "\n");
    absl::StrAppend(out, line);
    indent.assign(indent.size(), ' ');
    AppendText(child, indent + (child.type == FieldType::kMapList ? "  - " : "  "), out);
  }
}

}  // namespace

std::vector<std::string> Alternatives(const Field& one_of) {
  std::vector<std::string> keys;
  for (const Field& child : one_of.children) {
    if (!child.beside) keys.push_back(child.key);
  }
  return keys;
}

const Field* FindField(const Field& parent, const std::string& key) {
  for (const Field& child : parent.children) {
    if (child.key == key) return &child;
  }
  return nullptr;
}

std::string Where(const YAML::Node& node, const std::string& path) {
  const int line = node.Mark().line;
  const std::string name = path.empty() ? "job file" : path;
  return line < 0 ? name : absl::StrCat("line ", line + 1, ": ", name);
}

absl::Status CheckStructure(const YAML::Node& root, const Field& schema) {
  return CheckField(root, schema, "");
}

std::string SchemaText(const Field& schema) {
  std::string out;
  AppendText(schema, "", &out);
  return out;
}

}  // namespace starling::config
