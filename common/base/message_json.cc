#include "common/base/message_json.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace starling {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

Json Unsigned(uint64_t value) {
  return value == std::numeric_limits<uint64_t>::max() ? Json(nullptr) : Json(value);
}

Json Real(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Element `index` of a repeated field, or the field itself when index is -1.
Json FieldToJson(const Message& message, const FieldDescriptor* field, int index) {
  const auto* r = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(message, field) : r->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(message, field) : r->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(message, field) : r->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Unsigned(one ? r->GetUInt64(message, field)
                          : r->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Real(one ? r->GetDouble(message, field) : r->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Real(one ? r->GetFloat(message, field) : r->GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(message, field) : r->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (one ? r->GetEnum(message, field) : r->GetRepeatedEnum(message, field, index))->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? r->GetMessage(message, field)
                        : r->GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

}  // namespace

nlohmann::ordered_json ToJson(const Message& message) {
  Json out = Json::object();
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_map()) {
      // protobuf's order of map entries differs from process to process.
      std::map<std::string, Json> sorted;
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        const Json entry = FieldToJson(message, field, k);
        sorted[entry["key"].get<std::string>()] = entry["value"];
      }
      Json map = Json::object();
      for (const auto& [key, value] : sorted) map[key] = value;
      out[field->json_name()] = map;
    } else if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        list.push_back(FieldToJson(message, field, k));
      }
      out[field->json_name()] = list;
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      out[field->json_name()] = FieldToJson(message, field, -1);
    }
  }
  return out;
}

}  // namespace starling
