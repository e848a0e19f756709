// Protobuf messages as JSON, for people, scripts and file metadata. Pure.
#ifndef STARLING_COMMON_BASE_MESSAGE_JSON_H_
#define STARLING_COMMON_BASE_MESSAGE_JSON_H_

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace starling {

// Keys are lowerCamelCase and in the message's order (map keys ascending), 64-bit integers are
// numbers, enums are names, and every singular field that is not a message is present. UINT64_MAX
// ("none" in our messages) and numbers that are not finite become null. Equal messages give equal
// text.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_MESSAGE_JSON_H_
