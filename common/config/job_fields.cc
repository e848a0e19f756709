#include "common/config/job_fields.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/config/duration.h"
#include "common/config/numbers.h"
#include "common/config/paths.h"
#include "google/protobuf/text_format.h"

namespace starling::config {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

// The messages around a key, the innermost last. M: Message, const or not.
template <typename M>
using Around = std::vector<M*>;

template <typename M>
struct Place {
  M* message = nullptr;
  const FieldDescriptor* field = nullptr;  // nullptr: none is for the key
};

template <typename M>
Place<M> Find(const Field& key, const Around<M>& around) {
  for (auto it = around.rbegin(); it != around.rend(); ++it) {
    const auto* const type = (*it)->GetDescriptor();
    const FieldDescriptor* const field = key.into.empty() ? type->FindFieldByCamelcaseName(key.key)
                                                          : type->FindFieldByName(key.into);
    if (field != nullptr) return {*it, field};
  }
  return {};
}

// ---- Values ----

bool InRange(const Field& key, double value) {
  return std::isfinite(value) && value >= key.range.least && value <= key.range.most;
}

std::string BoundText(const Field& key, double bound) {
  return key.type == FieldType::kInteger ? absl::StrCat(static_cast<int64_t>(bound))
                                         : absl::StrCat(bound);
}

std::string OutOfRange(const Field& key, const std::string& got) {
  const std::string what = key.type == FieldType::kInteger ? "a whole number" : "a finite number";
  const std::string least = BoundText(key, key.range.least);
  return std::isinf(key.range.most)
             ? absl::StrCat("expected ", what, " of at least ", least, ", got ", got)
             : absl::StrCat("expected ", what, " from ", least, " to ",
                            BoundText(key, key.range.most), ", got ", got);
}

std::string NotAWord(const Field& key, const std::string& got) {
  const std::vector<std::string> first(key.words.begin(), key.words.end() - 1);
  return absl::StrCat("expected ", absl::StrJoin(first, ", "), first.empty() ? "" : " or ",
                      key.words.back(), ", got ", got);
}

std::string RealText(double value) { return absl::StrFormat("%.17g", value); }

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CEscape(text), "\"");
}

// The index of the enum's value that has the first word. Only an unspecified value, 0, has none.
int FirstWord(const Field& key, const EnumDescriptor* type) {
  const int first = type->value_count() - static_cast<int>(key.words.size());
  STARLING_CHECK(first == 0 || (first == 1 && type->value(0)->number() == 0), key.key.c_str());
  return first;
}

// ---- From a file ----

class Reader {
 public:
  explicit Reader(const JobFileOptions& options) : options_(options) {}

  void ReadChildren(const Section& section, const Field& group, const Around<Message>& around) {
    for (const Field& key : group.children) Read(section, key, around);
  }

 private:
  void Read(const Section& section, const Field& key, Around<Message> around) {
    const Place<Message> place = Find(key, around);
    if (!IsGroup(key.type)) return ReadValue(section, key.key, key, place);
    if (key.by_hand) return;
    const Section child = section.Child(key.key);
    if (place.field == nullptr) return ReadChildren(child, key, around);
    if (!section.Has(key.key)) return;
    const auto* const reflection = place.message->GetReflection();
    if (key.type == FieldType::kMapList) {
      for (const Section& item : section.Items(key.key)) {
        around.push_back(reflection->AddMessage(place.message, place.field));
        ReadChildren(item, key, around);
        around.pop_back();
      }
      return;
    }
    around.push_back(reflection->MutableMessage(place.message, place.field));
    if (!key.number_allowed || !child.node().IsScalar()) return ReadChildren(child, key, around);
    ReadValue(section, key.key, key.children[0], Find(key.children[0], around));
  }

  void ReadValue(const Section& section, const std::string& name, const Field& key,
                 const Place<Message>& place) {
    STARLING_CHECK(key.by_hand || place.field != nullptr, key.key.c_str());
    const bool given = section.Has(name);
    // A key of a map inside may have set it already.
    const bool set = place.field != nullptr && !place.field->is_repeated() &&
                     place.message->GetReflection()->HasField(*place.message, place.field);
    const bool by_default =
        !key.default_text.empty() && !set && (key.by_hand || !place.field->has_presence());
    if (!given && !by_default) return;
    const YAML::Node node = given ? section.node()[name] : YAML::Load(key.default_text);
    const bool number = key.type == FieldType::kInteger || key.type == FieldType::kNumber;
    if (number && !InRange(key, *AsNumber(node))) {
      section.Fail(name, OutOfRange(key, node.Scalar()));
    } else if (!key.words.empty() && !absl::c_linear_search(key.words, node.Scalar())) {
      section.Fail(name, NotAWord(key, absl::StrCat("\"", node.Scalar(), "\"")));
    } else if (!key.by_hand) {
      for (const std::string& text : Texts(section, name, key, node, *place.field)) {
        STARLING_CHECK(
            TextFormat::Parser().ParseFieldValueFromString(text, place.field, place.message),
            key.key.c_str());
      }
    }
  }

  // The value, or the values of a list, as protobuf's text format has them.
  std::vector<std::string> Texts(const Section& section, const std::string& name, const Field& key,
                                 const YAML::Node& node, const FieldDescriptor& field) const {
    std::vector<std::string> texts;
    switch (key.type) {
      case FieldType::kInteger: return {absl::StrCat(*AsInteger(node))};
      case FieldType::kNumber: return {RealText(*AsNumber(node))};
      case FieldType::kBoolean: return {node.as<bool>() ? "true" : "false"};
      case FieldType::kDuration: return {RealText(*ParseDuration(node.Scalar()))};
      case FieldType::kPath: return {Quoted(ExpandPath(section, name, options_))};
      case FieldType::kPathList:
        for (const std::string& path : ExpandPaths(section, name, options_))
          texts.push_back(Quoted(path));
        return texts;
      case FieldType::kStringList:
        for (const auto& item : node) texts.push_back(Quoted(item.Scalar()));
        return texts;
      case FieldType::kNumberList:
        if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
          for (const double value : section.Numbers(name)) texts.push_back(RealText(value));
        } else {
          for (const int64_t value : section.Integers(name, key.range))
            texts.push_back(absl::StrCat(value));
        }
        return texts;
      default:
        if (key.words.empty()) return {Quoted(node.Scalar())};
        const auto word = std::find(key.words.begin(), key.words.end(), node.Scalar());
        return {field.enum_type()
                    ->value(FirstWord(key, field.enum_type()) +
                            static_cast<int>(word - key.words.begin()))
                    ->name()};
    }
  }

  const JobFileOptions& options_;
};

// ---- From anywhere ----

absl::Status CheckPaths(const Field& key, const std::string& path,
                        const Place<const Message>& place) {
  const auto* const reflection = place.message->GetReflection();
  const bool list = place.field->is_repeated();
  const int count = list ? reflection->FieldSize(*place.message, place.field) : 1;
  if (key.required && count == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected at least one path"));
  }
  for (int i = 0; i < count; ++i) {
    const std::string text = list ? reflection->GetRepeatedString(*place.message, place.field, i)
                                  : reflection->GetString(*place.message, place.field);
    if (text.find('\0') == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a path without a zero byte"));
  }
  return absl::OkStatus();
}

absl::Status CheckValue(const Field& key, const std::string& path,
                        const Place<const Message>& place) {
  if (key.type == FieldType::kPath || key.type == FieldType::kPathList) {
    return CheckPaths(key, path, place);
  }
  if (place.field->is_repeated() ||
      (place.field->has_presence() &&
       !place.message->GetReflection()->HasField(*place.message, place.field))) {
    return absl::OkStatus();
  }
  if (!key.words.empty()) {
    const int number = place.message->GetReflection()->GetEnumValue(*place.message, place.field);
    const EnumDescriptor* const type = place.field->enum_type();
    const auto* const value = type->FindValueByNumber(number);
    if (value != nullptr && value->index() >= FirstWord(key, type)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", NotAWord(key, absl::StrCat("number ", number))));
  }
  if (key.type != FieldType::kInteger && key.type != FieldType::kNumber) return absl::OkStatus();
  std::string text;
  TextFormat::PrintFieldValueToString(*place.message, place.field, -1, &text);
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) value = std::nan("");
  if ((value == 0 && key.zero_is_none) || InRange(key, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", OutOfRange(key, text)));
}

absl::Status CheckChildren(const Field& group, const std::string& path,
                           const Around<const Message>& around);

absl::Status CheckGroup(const Field& key, const std::string& path,
                        const Place<const Message>& place, Around<const Message> around) {
  const auto* const reflection = place.message->GetReflection();
  if (key.type == FieldType::kMapList) {
    for (int i = 0; i < reflection->FieldSize(*place.message, place.field); ++i) {
      around.push_back(&reflection->GetRepeatedMessage(*place.message, place.field, i));
      STARLING_RETURN_IF_ERROR(CheckChildren(key, absl::StrCat(path, "[", i, "]"), around));
      around.pop_back();
    }
    return absl::OkStatus();
  }
  if (!key.required && !reflection->HasField(*place.message, place.field)) return absl::OkStatus();
  const Message& message = reflection->GetMessage(*place.message, place.field);
  const auto* const type = message.GetDescriptor();
  if (key.required && type->real_oneof_decl_count() > 0 &&
      !message.GetReflection()->HasOneof(message, type->oneof_decl(0))) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": expected exactly one of ", absl::StrJoin(Alternatives(key), ", "), ", got none"));
  }
  around.push_back(&message);
  return CheckChildren(key, path, around);
}

absl::Status CheckChildren(const Field& group, const std::string& path,
                           const Around<const Message>& around) {
  for (const Field& key : group.children) {
    if (key.by_hand) continue;
    const std::string child = path.empty() ? key.key : absl::StrCat(path, ".", key.key);
    const Place<const Message> place = Find(key, around);
    STARLING_RETURN_IF_ERROR(!IsGroup(key.type)       ? CheckValue(key, child, place)
                             : place.field == nullptr ? CheckChildren(key, child, around)
                                                      : CheckGroup(key, child, place, around));
  }
  return absl::OkStatus();
}

}  // namespace

void ReadFields(const Section& root, const JobFileOptions& options, JobSpec* out) {
  Reader(options).ReadChildren(root, JobFileSchema(), {out});
}

absl::Status CheckFields(const JobSpec& spec) {
  return CheckChildren(JobFileSchema(), "", {&spec});
}

}  // namespace starling::config
