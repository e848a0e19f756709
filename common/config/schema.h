// The job file's schema as data: one table that the structure check, "did you mean" and `starling
// schema` all read, so they cannot disagree.
//
// Thread-safe: immutable after construction.
#ifndef STARLING_COMMON_CONFIG_SCHEMA_H_
#define STARLING_COMMON_CONFIG_SCHEMA_H_

#include <limits>
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
  kPath,  // "data/a.csv", made absolute
  kPathList,
  kLabels,   // map of strings
  kLayers,   // list of {op: {attributes}}; checked by the model section
  kMap,      // `children`, any subset
  kOneOf,    // exactly one of `children`, plus any that are `beside`
  kMapList,  // a list of maps of `children`
};

inline bool IsGroup(FieldType type) {
  return type == FieldType::kMap || type == FieldType::kOneOf || type == FieldType::kMapList;
}

struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

// A key. Its value goes into the field of that name (in snake_case) of the innermost protobuf
// message around that has one (job_fields.h). The keys of a map without such a field are those of
// the message around it.
struct Field {
  std::string key;
  FieldType type = FieldType::kString;
  // As a user would write it; empty: none. It is set where the protobuf field has no presence, and
  // only printed where code applies the default (job_fields.h).
  std::string default_text;
  std::string help;  // one line
  bool required = false;
  bool beside = false;  // in a one-of: not an alternative, allowed with each
  std::vector<Field> children;
  // The map may also be written as a number, which is its first child's value (learningRate: 0.1 is
  // {constant: 0.1}).
  bool number_allowed = false;
  Range range;  // of an integer, a number or a list of integers
  // In a spec, though not in a file, 0 is within the range: it stands for a key that is not given.
  bool zero_is_none = false;
  // All that a string may be; of an enum: its last values, in order.
  std::vector<std::string> words;
  std::string into;      // the protobuf field, if its name is not the key's
  bool by_hand = false;  // code reads it: no protobuf field has its name and shape
};

// The keys of which a one-of must have exactly one.
std::vector<std::string> Alternatives(const Field& one_of);

// Of `parent`'s children; nullptr: there is none.
const Field* FindField(const Field& parent, const std::string& key);

// The root: a map of apiVersion, kind, metadata, spec.
const Field& JobFileSchema();

// kInvalidArgument for the first unknown or repeated key, wrong type, missing required key, or
// one-of without exactly one alternative; the message has the line, the path and, for a typo, "did
// you mean".
absl::Status CheckStructure(const YAML::Node& root, const Field& schema);

// The whole schema as commented YAML: keys, types, defaults, one line of help each.
std::string SchemaText(const Field& schema);

// "line 12: spec.optimizer": how errors name a place in the file.
std::string Where(const YAML::Node& node, const std::string& path);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_SCHEMA_H_
