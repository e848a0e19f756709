#include "common/checkpoint/manifest.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/digest.h"
#include "common/data_plan/job_steps.h"

namespace starling {
namespace {

constexpr absl::string_view kBegin = R"({"format":"starling-checkpoint/1","xxh3":")";
constexpr absl::string_view kMiddle = R"(","body":)";
constexpr absl::string_view kEnd = "}\n";
constexpr size_t kXxh3Chars = 32;
constexpr size_t kXxh3Bytes = 16;

absl::Status BadManifest(const std::string& what) {
  return absl::DataLossError(absl::StrCat("not a manifest that this release can read: ", what));
}

std::string Before(absl::string_view body) {
  return absl::StrCat(kBegin, absl::BytesToHexString(Xxh128Of(body)), kMiddle);
}

// What the rest of the code relies on; "": all of it holds.
std::string WhatIsMissing(const CheckpointManifest& manifest) {
  const std::optional<CheckpointId> id = ParseCheckpointId(manifest.id());
  const JobSpec& spec = manifest.job().spec();
  if (manifest.format() != kManifestFormat)
    return absl::StrCat("expected format ", kManifestFormat, ", got ", manifest.format());
  if (!id || id->job.value != manifest.job().run().job_uid()) {
    return absl::StrCat("expected the id of a checkpoint of job ", manifest.job().run().job_uid(),
                        ", got \"", absl::CHexEscape(manifest.id()), "\"");
  }
  if (spec.model().parameters().empty()) return "the job's model has no parameters";
  if (spec.batch().global() == 0 || manifest.job().train_samples() == 0)
    return "the job has no batch or no samples";
  if (manifest.files().empty()) return "it names no files";
  std::set<std::string> names;
  for (const CheckpointFile& file : manifest.files()) {
    if (!ParseShardFileName(file.name()) || !names.insert(file.name()).second ||
        file.xxh3().size() != kXxh3Bytes) {
      return absl::StrCat("expected shards' files, each once and with its digest, got \"",
                          absl::CHexEscape(file.name()), "\"");
    }
  }
  return "";
}

using Shapes = std::map<std::string, std::string>;  // by parameter: "[3,4]"

Shapes ShapesOf(const Graph& model) {
  Shapes shapes;
  for (const Parameter& parameter : model.parameters())
    shapes[parameter.name()] = absl::StrCat("[", absl::StrJoin(parameter.shape(), ","), "]");
  return shapes;
}

// The same whatever the order of the parameters.
std::string ModelDigest(const Graph& model) {
  std::string all;
  for (const auto& [name, shape] : ShapesOf(model))
    absl::StrAppend(&all, name.size(), " ", name, shape);
  return ToHex(Xxh64Of(all));
}

// Those of `a` that `b` has not.
std::vector<std::string> Without(const Shapes& a, const Shapes& b) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : a) {
    if (b.count(name) == 0) names.push_back(absl::StrCat(name, shape));
  }
  return names;
}

}  // namespace

std::string EncodeManifest(const CheckpointManifest& manifest) {
  std::string body;
  // Fails on text that is not UTF-8; then no reader takes the body.
  (void)google::protobuf::util::MessageToJsonString(manifest, &body);
  return absl::StrCat(Before(body), body, kEnd);
}

absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text) {
  const size_t before = kBegin.size() + kXxh3Chars + kMiddle.size();
  if (text.size() > kManifestBytesMax || text.size() < before + kEnd.size()) {
    return BadManifest(absl::StrCat("expected ", before + kEnd.size(), " to ", kManifestBytesMax,
                                    " bytes, got ", text.size()));
  }
  const absl::string_view body = text.substr(before, text.size() - before - kEnd.size());
  if (const std::string expected = Before(body);
      text.substr(0, before) != expected || !absl::EndsWith(text, kEnd)) {
    return BadManifest(absl::StrCat("around its body, expected ", expected, " and }, got ",
                                    absl::CHexEscape(text.substr(0, before)), " and ",
                                    absl::CHexEscape(text.substr(text.size() - kEnd.size()))));
  }
  CheckpointManifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(body.data(), body.size()), &manifest);
  if (!parsed.ok()) return BadManifest(parsed.ToString());
  if (const std::string missing = WhatIsMissing(manifest); !missing.empty())
    return BadManifest(missing);
  return manifest;
}

uint64_t ManifestDigest(absl::string_view text) { return Xxh64Of(text); }

CheckpointInfo DescribeCheckpoint(const CheckpointManifest& manifest, absl::string_view text) {
  const JobSpec& spec = manifest.job().spec();
  CheckpointInfo info;
  info.set_id(manifest.id());
  info.set_job(spec.name());
  info.set_step(manifest.step());
  uint64_t bytes = text.size();
  for (const CheckpointFile& file : manifest.files()) bytes += file.bytes();
  info.set_bytes(bytes);
  info.set_created(manifest.created());
  info.set_asked_for(manifest.asked_for());
  info.set_epoch(static_cast<uint32_t>(manifest.step() /
                                       StepsInFullEpoch(spec, manifest.job().train_samples())));
  info.set_model_digest(ModelDigest(spec.model()));
  info.set_manifest_digest(ManifestDigest(text));
  return info;
}

std::string WhyItDoesNotFit(const CheckpointManifest& manifest, const Graph& model) {
  const Shapes stored = ShapesOf(manifest.job().spec().model());
  const Shapes wanted = ShapesOf(model);
  std::vector<std::string> reshaped;
  for (const auto& [name, shape] : wanted) {
    const auto it = stored.find(name);
    if (it != stored.end() && it->second != shape)
      reshaped.push_back(absl::StrCat(name, it->second, " instead of ", shape));
  }
  std::vector<std::string> parts;
  const auto add = [&](absl::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) parts.push_back(absl::StrCat(what, absl::StrJoin(names, ", ")));
  };
  add("the checkpoint lacks ", Without(wanted, stored));
  add("the model lacks ", Without(stored, wanted));
  add("the checkpoint has ", reshaped);
  return absl::StrJoin(parts, "; ");
}

}  // namespace starling
