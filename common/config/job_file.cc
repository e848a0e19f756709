#include "common/config/job_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/data_section.h"
#include "common/config/job_fields.h"
#include "common/config/model_section.h"
#include "common/config/optimizer_section.h"
#include "common/config/schema.h"
#include "common/config/section.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

// What is wrong with text that the parser refuses: "... is not YAML: ...".
std::string Fault(const YAML::Exception& error) {
  // All that the parser says of 500 levels.
  if (error.msg != YAML::ErrorMsg::BAD_FILE) return absl::StrCat("is not YAML: ", error.msg);
  return "nests hundreds of maps or lists: expected a few levels, as `starling schema` prints them";
}

// ---- Overrides ------------------------------------------------------------------------------

// Removes the other alternatives of a one-of; keys beside its alternatives stay.
void RemoveAlternatives(const Field& one_of, const std::string& key, YAML::Node node) {
  const auto beside = [&](const std::string& name) {
    const Field* field = FindField(one_of, name);
    return field != nullptr && field->beside;
  };
  if (beside(key)) return;
  std::vector<std::string> others;
  for (const auto& entry : node) {
    if (!beside(entry.first.Scalar())) others.push_back(entry.first.Scalar());
  }
  for (const std::string& other : others) node.remove(other);
}

// Protobuf strings must be UTF-8. `what` is followed by the place, which names the key.
absl::Status CheckUtf8(const std::string& what, absl::string_view text) {
  constexpr size_t kShown = 60;  // bytes before the invalid one
  const size_t at = FindNotUtf8(text);
  if (at == absl::string_view::npos) return absl::OkStatus();
  const absl::string_view before = text.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  absl::string_view shown = before.substr(line_begin);
  if (shown.size() > kShown) shown.remove_prefix(shown.size() - kShown);
  return absl::InvalidArgumentError(absl::StrCat(
      what, "line ", std::count(before.begin(), before.end(), '\n') + 1,
      ": expected UTF-8, got the byte ", absl::CHexEscape(text.substr(at, 1)), " after `",
      absl::CHexEscape(shown), "`: save the file as UTF-8, or write the value otherwise"));
}

// A copy of an override's value without lines, which would be taken for the file's.
YAML::Node WithoutLines(const YAML::Node& node) {
  if (node.IsScalar()) return YAML::Node(node.Scalar());
  YAML::Node copy(node.Type());
  for (const auto& entry : node) {
    if (node.IsMap()) {
      copy.force_insert(WithoutLines(entry.first), WithoutLines(entry.second));
    } else {
      copy.push_back(WithoutLines(entry));
    }
  }
  return copy;
}

absl::Status ApplyOverride(const std::string& text, YAML::Node root) {
  STARLING_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("--set ", absl::CHexEscape(text), ": "), text));
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", text, ": expected KEY.KEY=VALUE"));
  }
  std::vector<std::string> keys = absl::StrSplit(text.substr(0, equals), '.');
  if (FindField(JobFileSchema(), keys[0]) == nullptr) keys.insert(keys.begin(), "spec");
  YAML::Node value;
  try {
    value = WithoutLines(YAML::Load(text.substr(equals + 1)));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", text, ": value ", Fault(e)));
  }
  const Field* field = &JobFileSchema();
  YAML::Node node = root;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!node.IsDefined() || node.IsNull() || node.IsScalar())
      node = YAML::Node(YAML::NodeType::Map);
    if (!node.IsMap())
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", text, ": ", keys[i], " is not inside a map"));
    if (field != nullptr && field->type == FieldType::kOneOf && !node[keys[i]].IsDefined()) {
      RemoveAlternatives(*field, keys[i], node);
    }
    if (i + 1 == keys.size()) {
      node[keys[i]] = value;
      return absl::OkStatus();
    }
    if (!node[keys[i]].IsDefined() || !node[keys[i]].IsMap())
      node[keys[i]] = YAML::Node(YAML::NodeType::Map);
    node.reset(node[keys[i]]);
    field = field == nullptr ? nullptr : FindField(*field, keys[i]);
  }
  return absl::OkStatus();
}

// ---- Sections -------------------------------------------------------------------------------

// What the table leaves of `spec`.
void ReadSpec(const Section& spec, const JobFileOptions& options, JobSpec* out) {
  ReadModel(spec.Child("model"), options, out->mutable_model_source());
  ReadData(spec.Child("data"), out);
  ReadOptimizer(spec.Child("optimizer"), out->mutable_optimizer());
  const YAML::Node loss = spec.node()["loss"];
  if (loss.IsDefined() && loss.Scalar() == "meanSquaredError") {
    out->mutable_model_source()->set_loss("mean_squared_error");
  } else if (loss.IsDefined() && loss.Scalar() == "binaryCrossEntropy") {
    out->mutable_model_source()->set_loss("binary_cross_entropy");
  }
  const Section consistency = spec.Child("consistency");
  out->mutable_policy()->set_kind(consistency.Has("ssp")     ? Policy::SSP
                                  : consistency.Has("async") ? Policy::ASYNC
                                                             : Policy::BSP);
  if (!spec.Child("workers").Has("max")) out->set_workers_max(out->workers_min());
  const Section stop = spec.Child("stop");
  if (stop.Has("epochs")) return;
  // With steps or time alone, the job has as many epochs as it needs.
  const bool other = stop.Has("steps") || stop.Has("wallTime");
  out->mutable_stop()->set_epochs(other ? limits::kEpochsMax : 1);
}

JobSpec ReadJob(const Section& root, const JobFileOptions& options) {
  JobSpec out;
  ReadFields(root, options, &out);
  for (const auto& label : root.Child("metadata").node()["labels"]) {
    (*out.mutable_labels())[label.first.Scalar()] = label.second.Scalar();
  }
  ReadSpec(root.Child("spec"), options, &out);
  return out;
}

// The file's only document.
absl::StatusOr<YAML::Node> LoadDocument(const std::string& text) {
  std::vector<YAML::Node> documents = YAML::LoadAll(text);
  // An empty document does not count: a file may end with `---`.
  const auto empty = [](const YAML::Node& node) { return !node.IsDefined() || node.IsNull(); };
  documents.erase(std::remove_if(documents.begin(), documents.end(), empty), documents.end());
  if (documents.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "line ", documents[1].Mark().line + 1, ": expected one YAML document, got ",
        documents.size(), ": what follows the first `---` is another job; give each a file"));
  }
  if (documents.empty() || !documents[0].IsMap()) {
    return absl::InvalidArgumentError("the job file is not a YAML map");
  }
  return documents[0];
}

// An error of ValidateSpec, which begins with a key, with the line of that key, or of what is
// around it in the file.
absl::Status WithLine(const absl::Status& status, const YAML::Node& root) {
  const std::string text(status.message());
  const std::vector<std::string> keys =
      absl::StrSplit(text.substr(0, text.find_first_of(" :[")), '.');
  const bool in_spec = FindField(JobFileSchema(), keys[0]) == nullptr;
  YAML::Node at = in_spec ? root["spec"] : root;
  for (const std::string& key : keys) {
    if (!at.IsMap() || !at[key].IsDefined()) break;
    at.reset(at[key]);
  }
  return absl::Status(status.code(), Where(at, absl::StrCat(in_spec ? "spec." : "", text)));
}

// The parser's own messages about indentation hardly ever mention tabs.
std::string TabHint(const std::string& text) {
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view indent = line.substr(0, line.find_first_not_of(" \t"));
    if (indent.size() == line.size() || indent.find('\t') == absl::string_view::npos) continue;
    return absl::StrCat("; line ", number,
                        " is indented with a TAB, and YAML wants spaces: replace it by spaces");
  }
  return "";
}

absl::Status NotYaml(const YAML::Exception& error, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      error.mark.is_null()
          ? ""
          : absl::StrCat("line ", error.mark.line + 1, ", column ", error.mark.column + 1, ": "),
      "the job file ", Fault(error), TabHint(text)));
}

// Of a new job only: it would become a folder of that name.
absl::Status CheckOutputBegins(const std::string& output) {
  if (output.empty() || (output[0] != '~' && output[0] != '$')) return absl::OkStatus();
  const size_t slash = output.find('/');
  const std::string name = slash == std::string::npos ? "" : output.substr(slash + 1);
  return absl::InvalidArgumentError(absl::StrCat(
      "output: expected a name beneath the coordinator's --output-root, where ~ and $VAR are not "
      "expanded, got \"",
      absl::CHexEscape(output.substr(0, 200)), "\": write ",
      absl::EndsWith(name, ".safetensors") ? absl::CHexEscape(name.substr(0, 200))
                                           : "NAME.safetensors",
      ", or have the client write the file when the job is over (starling export)"));
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobFile(const std::string& text, const JobFileOptions& options) {
  if (text.size() > limits::kJobFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the job file has ", text.size(),
                                                   " bytes; at most ", limits::kJobFileBytesMax,
                                                   " are read"));
  }
  STARLING_RETURN_IF_ERROR(CheckUtf8("", text));
  try {
    STARLING_ASSIGN_OR_RETURN(YAML::Node root, LoadDocument(text));
    for (const std::string& item : options.overrides)
      STARLING_RETURN_IF_ERROR(ApplyOverride(item, root));
    STARLING_RETURN_IF_ERROR(CheckStructure(root, JobFileSchema()));
    absl::Status status;
    JobSpec spec = ReadJob(Section(root, "", &status), options);
    STARLING_RETURN_IF_ERROR(status);
    status = CheckOutputBegins(spec.output());
    status.Update(ValidateSpec(spec));
    if (!status.ok()) return WithLine(status, root);
    return spec;
  } catch (const YAML::Exception& e) {
    return NotYaml(e, text);
  }
}

}  // namespace starling::config
