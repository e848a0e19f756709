// Shorthand for the schema's table. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_FIELDS_H_
#define STARLING_COMMON_CONFIG_FIELDS_H_

#include <string>
#include <utility>
#include <vector>

#include "common/config/schema.h"

namespace starling::config {

using T = FieldType;

inline Field Leaf(std::string key, T type, std::string default_text, std::string help,
                  bool required = false) {
  return {.key = std::move(key),
          .type = type,
          .default_text = std::move(default_text),
          .help = std::move(help),
          .required = required};
}

inline Field Group(std::string key, T type, std::string help, std::vector<Field> children,
                   bool required = false) {
  return {.key = std::move(key),
          .type = type,
          .help = std::move(help),
          .required = required,
          .children = std::move(children)};
}

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_FIELDS_H_
