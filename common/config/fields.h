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

inline Field InRange(Range range, Field field) {
  field.range = range;
  return field;
}

inline Field Integer(std::string key, Range range, std::string default_text, std::string help,
                     bool required = false) {
  return InRange(
      range, Leaf(std::move(key), T::kInteger, std::move(default_text), std::move(help), required));
}

inline Field Number(std::string key, Range range, std::string default_text, std::string help,
                    bool required = false) {
  return InRange(
      range, Leaf(std::move(key), T::kNumber, std::move(default_text), std::move(help), required));
}

// One of `words`, by default the first.
inline Field Word(std::string key, std::vector<std::string> words, std::string help) {
  Field field = Leaf(std::move(key), T::kString, words[0], std::move(help));
  field.words = std::move(words);
  return field;
}

inline Field Required(Field field) {
  field.required = true;
  return field;
}

inline Field ZeroIsNone(Field field) {
  field.zero_is_none = true;
  return field;
}

inline Field Into(std::string message_field, Field field) {
  field.into = std::move(message_field);
  return field;
}

inline Field ByHand(Field field) {
  field.by_hand = true;
  return field;
}

inline Field Beside(Field field) {
  field.beside = true;
  return field;
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
