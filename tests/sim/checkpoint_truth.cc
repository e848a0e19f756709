#include "tests/sim/checkpoint_truth.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/store.h"
#include "common/data_plan/job_steps.h"
#include "common/placement/shard_memory_plan.h"

namespace starling::sim {
namespace {

// Never 0.
uint64_t ContentDigest(absl::Span<const float> values) {
  return XXH3_64bits(values.data(), values.size() * sizeof(float)) | 1;
}

// 0, and the reason: not all of it is there.
uint64_t StoredDigest(const CheckpointReader& reader, const Slice& slice, BlockPart part,
                      std::string* why) {
  const Graph& model = reader.manifest().job().spec().model();
  Values values(slice.elements);
  for (const Segment& segment : slice.segments) {
    const absl::Status read =
        reader.Read(model.parameters(static_cast<int>(segment.param)).name(), segment.param_begin,
                    part, absl::MakeSpan(values).subspan(segment.slice_begin, segment.length));
    if (read.ok()) continue;
    *why = std::string(read.message());
    return 0;
  }
  return ContentDigest(values);
}

RunId RunOf(const CheckpointManifest& manifest) {
  return {JobUid(manifest.job().run().job_uid()), manifest.job().run().era()};
}

}  // namespace

void CheckpointTruth::OnCarriedOut(RunId run, const Record& record, const HostedSlice& slice) {
  const auto [it, fresh] = contents_[{find_(run), record.slice}].try_emplace(record.lsn);
  if (!fresh) return;  // other copies are compared with the first one elsewhere
  it->second.value = ContentDigest(slice.newest);
  for (size_t i = 0; i < slice.slots.size(); ++i)
    it->second.slots[i] = ContentDigest(slice.slots[i]);
}

// Before any update. The optimizers of workloads begin with zeros.
CheckpointTruth::Content CheckpointTruth::FirstContent(const Slice& slice) {
  const uint64_t zeros = ContentDigest(Values(slice.elements));
  return {ContentDigest(InitialValues(slice)), {zeros, zeros}};
}

std::optional<CheckpointTruth::Content> CheckpointTruth::ContentOf(const JobTruth& truth,
                                                                   SliceId slice,
                                                                   uint64_t updates) const {
  if (updates == 0) return FirstContent(truth.layout().slices[slice.value]);
  if (updates <= truth.first_step()) {
    if (truth.before() == nullptr) return std::nullopt;
    return ContentOf(*truth.before(), slice, updates);
  }
  const auto contents = contents_.find({&truth, slice});
  if (contents == contents_.end()) {
    if (source_ == nullptr) return std::nullopt;
    return source_->ContentOf(truth, slice, updates);
  }
  const uint64_t behind = updates - truth.first_step() - 1;
  if (behind >= contents->second.size()) return std::nullopt;
  return std::next(contents->second.begin(), static_cast<int64_t>(behind))->second;
}

// ---- The disk ----

// One gets its name: from here on a crash may leave it, with nothing that was not synced. Or one
// loses its name.
void CheckpointTruth::OnRenamed(const std::string& from, const std::string& to) {
  if (ParseCheckpointId(to).has_value()) {
    world_->Count("checkpoints that were made");
    const auto disk = disk_->AfterCrash({.folders = true});
    const auto reader = CheckWhole(disk, to, "gets its name");
    if (reader == nullptr) return;
    world_->Trace(ManifestDigest(EncodeManifest(reader->manifest())), 0);
    CheckValues(*reader);
  } else if (ParseCheckpointId(from).has_value()) {
    CheckMayDrop(from);
    dropped_.insert(from);
    listed_.erase(from);
  }
}

// Those that people ask for stay until they are deleted, and of the others as many as the job file
// says: newer ones, which are whole and durable.
void CheckpointTruth::CheckMayDrop(const std::string& id) {
  if (!listed_.contains(id)) return;  // nobody knows of it
  world_->Count("checkpoints that were deleted");
  if (asked_to_delete_.contains(id)) return;
  const CheckpointId dropped = *ParseCheckpointId(id);
  const auto disk = disk_->AfterCrash({});
  const auto found = ListCheckpoints(*disk);
  uint64_t newer = 0, keep = 1;
  bool asked_for = false;
  for (const CheckpointInfo& info : found->whole) {
    const CheckpointId other = *ParseCheckpointId(info.id());
    if (other.cluster != dropped.cluster || other.job != dropped.job) continue;
    const auto reader = CheckpointReader::Open(disk, other, std::nullopt);
    if (!reader.ok()) continue;
    if (!(*reader)->VerifyAll([](uint64_t) { return true; }).ok()) continue;
    keep = (*reader)->manifest().job().spec().checkpoint().keep();
    if (other == dropped) asked_for = info.asked_for();
    if (other.number > dropped.number && !info.asked_for()) ++newer;
  }
  if (newer >= keep && !asked_for) return;
  world_->Violate(Promise::kKept, absl::StrCat("checkpoint ", id, " is deleted",
                                               asked_for ? ", which was asked for" : "", ": ",
                                               newer, " newer ones are on disk, expected ", keep));
}

// The first file of one that is deleted is gone. Were its folder's name to come back now, it would
// be half a checkpoint.
void CheckpointTruth::OnRemoved(const std::string& folder) {
  absl::string_view id = folder;
  if (!absl::ConsumeSuffix(&id, kDeletedSuffix) || !looked_at_.insert(folder).second) return;
  const auto disk = disk_->AfterCrash({.data = true, .files = true});
  if (disk->List(std::string(id)).ok()) CheckWhole(disk, std::string(id), "is being removed");
}

void CheckpointTruth::OnRestarted() {
  const auto disk = disk_->AfterCrash({});
  const auto names = disk->List("");
  std::set<std::string> there;
  for (const std::string& name : *names) {
    if (!ParseCheckpointId(name).has_value()) continue;
    there.insert(name);
    CheckWhole(disk, name, "was found after a crash of the disk");
  }
  for (const std::string& id : listed_) {
    if (there.contains(id)) continue;
    world_->Violate(Promise::kKept, absl::StrCat("checkpoint ", id,
                                                 " was listed, and a crash of the disk lost it"));
  }
}

// ---- What the coordinator says ----

const CheckpointManifest* CheckpointTruth::Made(const std::string& id) const {
  const auto made = made_.find(id);
  return made == made_.end() ? nullptr : &made->second;
}

void CheckpointTruth::OnRefusedToDelete(const std::string& id) {
  const auto asked = asked_to_delete_.find(id);
  if (asked != asked_to_delete_.end() && --asked->second == 0) asked_to_delete_.erase(asked);
}

// It stays away whatever happens then.
void CheckpointTruth::OnDeleted(const std::string& id) {
  world_->Count("checkpoints that were deleted on request");
  if (!disk_->AfterCrash({})->List(id).ok()) return;
  world_->Violate(Promise::kKept,
                  absl::StrCat("checkpoint ", id, " is said to be deleted, and is on disk"));
}

size_t CheckpointTruth::CountMade(JobUid job) const {
  return static_cast<size_t>(std::count_if(
      made_.begin(), made_.end(), [&](const auto& made) { return RunOf(made.second).job == job; }));
}

const JobTruth* CheckpointTruth::TruthOf(const std::string& id) const {
  const CheckpointManifest* const made = Made(id);
  return made == nullptr ? nullptr : find_(RunOf(*made));
}

std::optional<CheckpointId> CheckpointTruth::NewestReadable(JobUid job) const {
  std::optional<CheckpointId> newest;
  const auto disk = disk_->AfterCrash({.data = true, .files = true, .folders = true});
  for (const std::string& id : listed_) {
    const CheckpointId listed = *ParseCheckpointId(id);
    if (listed.job != job || Made(id) == nullptr || asked_to_delete_.contains(id)) continue;
    if (newest.has_value() && listed.number < newest->number) continue;
    const auto reader = CheckpointReader::Open(disk, listed, std::nullopt);
    if (reader.ok() && (*reader)->VerifyAll([](uint64_t) { return true; }).ok()) newest = listed;
  }
  return newest;
}

void CheckpointTruth::OnListed(const CheckpointInfo& info) {
  if (dropped_.contains(info.id()) || !listed_.insert(info.id()).second) return;
  world_->Count("checkpoints that were listed");
  CheckWhole(disk_->AfterCrash({}), info.id(), "is listed");
}

// ---- One of them ----

std::unique_ptr<CheckpointReader> CheckpointTruth::CheckWhole(
    const std::shared_ptr<MemoryDisk>& disk, const std::string& id, const std::string& when) {
  auto reader = CheckpointReader::Open(disk, *ParseCheckpointId(id), std::nullopt);
  absl::Status status = reader.status();
  if (status.ok()) status = (*reader)->VerifyAll([](uint64_t) { return true; });
  if (status.ok()) return *std::move(reader);
  world_->Violate(Promise::kWhole, absl::StrCat("checkpoint ", id, " ", when,
                                                ", and a crash now would leave it damaged: ",
                                                std::string(status.message())));
  return nullptr;
}

void CheckpointTruth::CheckValues(const CheckpointReader& reader) {
  const JobTruth* const truth = find_(RunOf(reader.manifest()));
  if (truth == nullptr) {
    return world_->Violate(Promise::kCut, absl::StrCat("checkpoint ", reader.manifest().id(),
                                                       " is of a job that nobody submitted"));
  }
  made_[reader.manifest().id()] = reader.manifest();
  CheckNumbers(reader.manifest(), *truth);
  for (const Slice& slice : truth->layout().slices) CheckSlice(reader, *truth, slice);
}

void CheckpointTruth::CheckNumbers(const CheckpointManifest& manifest, const JobTruth& truth) {
  const uint64_t step = manifest.step();
  const uint64_t full = StepsInFullEpoch(truth.workload().spec, truth.workload().train_samples);
  const auto wrong = [&](auto... text) {
    world_->Violate(Promise::kCut, absl::StrCat("checkpoint ", manifest.id(), " of step ", step,
                                                " has ", text...));
  };
  if (const uint64_t skipped = truth.SkippedBelow(step); manifest.skipped() != skipped)
    wrong(manifest.skipped(), " skipped updates, not ", skipped);
  if (truth.workload().spec.precision() == PRECISION_FP16 &&
      manifest.loss_scale_log2() != truth.LossScaleAt(step)) {
    wrong("a loss scale of 2^", manifest.loss_scale_log2(), ", not 2^", truth.LossScaleAt(step));
  }
  for (const EpochResult& result : manifest.results()) {
    if ((result.epoch() + uint64_t{1}) * full > step) wrong("a result of epoch ", result.epoch());
  }
}

void CheckpointTruth::CheckPolicies() const {
  for (const auto& [id, manifest] : made_) {
    const JobTruth& truth = *find_(RunOf(manifest));
    if (!truth.succeeded()) continue;
    world_->Count("checkpoints: policies compared");
    const ConsistencyPolicy policy{static_cast<PolicyKind>(manifest.policy().kind()),
                                   manifest.policy().staleness()};
    if (truth.WasPolicyAt(manifest.step(), policy)) continue;
    world_->Violate(Promise::kCut,
                    absl::StrCat("checkpoint ", manifest.id(), " of step ", manifest.step(),
                                 " has a policy that was not in force there: ",
                                 manifest.policy().ShortDebugString()));
  }
}

// The values are those behind its step's last update, and all steps below are in there.
void CheckpointTruth::CheckSlice(const CheckpointReader& reader, const JobTruth& truth,
                                 const Slice& slice) {
  const CheckpointManifest& manifest = reader.manifest();
  const auto wrong = [&](auto... text) {
    world_->Violate(Promise::kCut,
                    absl::StrCat("checkpoint ", manifest.id(), " of step ", manifest.step(),
                                 ", slice ", slice.id.value, ": ", text...));
  };
  if (!truth.IsPrefix(slice.id, manifest.step()))
    return wrong("the log's first ", manifest.step(), " updates are not those of its steps");
  const auto compare = [&](BlockPart part, const char* what, uint64_t updates, size_t slot) {
    const std::optional<Content> expected = ContentOf(truth, slice.id, updates);
    if (!expected.has_value()) return wrong(what, ": the log has no update ", updates);
    std::string why = "other ones than the log's";
    const uint64_t digest = StoredDigest(reader, slice, part, &why);
    world_->Count("checkpoints: tensors compared");
    if (updates == 0) world_->Count("checkpoints: first tensors compared");
    const bool value = part == BlockPart::kValue || part == BlockPart::kEvaluation;
    if (digest != (value ? expected->value : expected->slots[slot])) wrong(what, ": ", why);
  };
  compare(BlockPart::kValue, "values", manifest.step(), 0);
  const int slots = OptimizerSlots(manifest.job().spec().optimizer(), slice);
  if (slots > 0) compare(BlockPart::kSlot0, "the first slot", manifest.step(), 0);
  if (slots > 1) compare(BlockPart::kSlot1, "the second slot", manifest.step(), 1);
  const uint64_t full = StepsInFullEpoch(truth.workload().spec, truth.workload().train_samples);
  for (const uint32_t epoch : manifest.evaluating()) {
    const uint64_t end = (epoch + uint64_t{1}) * full;
    if (end > manifest.step()) wrong("epoch ", epoch, " is to be evaluated, and has not ended");
    const bool copied = manifest.has_copy_epoch() && manifest.copy_epoch() == epoch;
    if (end >= manifest.step() || copied) continue;  // at its end the values are those
    wrong("epoch ", epoch, " is to be evaluated, and there is no copy of its values");
  }
  if (!manifest.has_copy_epoch()) return;
  world_->Count("checkpoints with a copy for evaluation");
  compare(BlockPart::kEvaluation, "the copy for evaluation", (manifest.copy_epoch() + 1) * full, 0);
}

}  // namespace starling::sim
