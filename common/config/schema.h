// The job file's schema as data: one table that the structure check, "did you mean" and `starling
// schema` all read, so they cannot disagree.
//
// Thread-safe: immutable after construction.
#ifndef STARLING_COMMON_CONFIG_SCHEMA_H_
#define STARLING_COMMON_CONFIG_SCHEMA_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace YAML {
class Node;
}

namespace starling::config {

enum class FieldType {
  kString,
  kInteger,
  kNumber,
  kBoolean,
  kDuration,  // "90", "90s", "30m", "2h"
  kNumberList,
  kStringList,
  kLabels,   // map of strings
  kLayers,   // list of {op: {attributes}}; checked by the model section
  kMap,      // `children`, any subset
  kOneOf,    // exactly one of `children`, plus any that are `beside`
  kMapList,  // a list of maps of `children`
};

struct Field {
  std::string key;
  FieldType type = FieldType::kString;
  std::string default_text;  // as a user would write it; empty: none
  std::string help;          // one line
  bool required = false;
  bool beside = false;  // in a one-of: not an alternative, allowed with each
  std::vector<Field> children;
  // The map may also be written as a number (learningRate: 0.1 is {constant: 0.1}).
  bool number_allowed = false;
};

// The root: a map of apiVersion, kind, metadata, spec.
const Field& JobFileSchema();

// kInvalidArgument for the first unknown key, wrong type, missing required key, or second
// alternative of a one-of; the message has the line, the path and, for a typo, "did you mean".
absl::Status CheckStructure(const YAML::Node& root, const Field& schema);

// The whole schema as commented YAML: keys, types, defaults, one line of help each.
std::string SchemaText(const Field& schema);

// "spec.optimizer (line 12)": how errors name a place in the file.
std::string Where(const YAML::Node& node, const std::string& path);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_SCHEMA_H_
