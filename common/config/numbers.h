// Reads integers and numbers as YAML 1.2's core schema has them. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_NUMBERS_H_
#define STARLING_COMMON_CONFIG_NUMBERS_H_

#include <cstdint>
#include <optional>

namespace YAML {
class Node;
}

namespace starling::config {

// "10", "010" (also ten), "-3", "0xa" and "0o12". nullopt: something else, or beyond 64 bits.
std::optional<int64_t> AsInteger(const YAML::Node& node);

// An integer as above, or "1.5", "1e-3", ".inf", ".nan". nullopt: something else.
std::optional<double> AsNumber(const YAML::Node& node);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_NUMBERS_H_
