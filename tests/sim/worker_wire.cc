#include "tests/sim/worker_wire.h"

#include <xxhash.h>

#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/data_plan/job_steps.h"

namespace starling::sim {
namespace {

using session::Params;

constexpr uint32_t kNeverEra = std::numeric_limits<uint32_t>::max();

uint64_t DigestOf(const Values& values) {
  return XXH3_64bits(values.data(), values.size() * sizeof(float));
}

Values ValuesIn(const Message& message) {
  if (message.payload != nullptr) return *message.payload;
  const auto* values = reinterpret_cast<const float*>(message.bytes.bytes.data());
  return {values, values + message.bytes.bytes.size() / sizeof(float)};
}

}  // namespace

void WorkerWire::Restart() {
  jobs_.clear();
  incarnation_ = Incarnation();
  policy_ = PolicyNumber();
  entering_ = false;
  pushes_.clear();
  pulls_.clear();
  values_.clear();
}

void WorkerWire::OnClosed(RunId run) {
  if (const auto job = jobs_.find(run); job != jobs_.end()) job->second->OnClosed(incarnation_);
}

void WorkerWire::OnGone() {
  for (const auto& [run, truth] : jobs_) truth->OnGone(incarnation_);
}

void WorkerWire::OnSending(const Network::StreamPtr& link, Message* message) {
  const FrameHeader& h = message->header;
  const auto job = jobs_.find(h.key.run);
  if (job == jobs_.end()) {
    return world_->Violate(Promise::kG8,
                           absl::StrCat("a frame of a job that is not open: ", FrameToString(h)));
  }
  id_ = h.origin.worker;
  incarnation_ = h.origin.incarnation;
  Track(h, job->second);
  if (h.type == FrameType::kPull) {
    const bool snapshot = h.key.work.purpose == WorkPurpose::kEvaluate;
    pulls_[h.request_id] = {h.min_lsn, snapshot ? Params::kSnapshot : Params::kLive,
                            snapshot ? static_cast<Clock>(h.key.work.epoch) : h.clock};
  }
  if (h.type == FrameType::kPush) OnPush(link, job->second, message);
}

// The checker takes a worker's clocks from its frames to the shards.
void WorkerWire::Track(const FrameHeader& sent, JobTruth* truth) {
  const bool close = sent.type == FrameType::kClose;
  if (sent.key.work.purpose != WorkPurpose::kEvaluate && sent.policy != policy_) {
    policy_ = sent.policy;
    entering_ = false;
    truth->OnParked(incarnation_);  // of the policy before
  }
  if (close && (sent.flags & frame_flags::kEnter)) entering_ = true;
  if (close && (sent.flags & frame_flags::kPark)) truth->OnParked(incarnation_);
  if (entering_ && sent.type == FrameType::kPull &&
      sent.key.work.purpose != WorkPurpose::kEvaluate) {
    entering_ = false;
    truth->OnEntered(id_, incarnation_, sent.clock, sent.policy);
  }
}

// A push that is sent again has the same bytes.
void WorkerWire::OnPush(const Network::StreamPtr& link, JobTruth* truth, Message* message) {
  const FrameHeader& h = message->header;
  const Values values = ValuesIn(*message);
  const uint64_t bytes = DigestOf(values);
  const auto [first, fresh] = pushes_.try_emplace(h.request_id, Push{h, bytes});
  if (!fresh) world_->Count("pushes sent again");
  if (first->second.bytes != bytes) {
    world_->Violate(Promise::kBuffer,
                    absl::StrCat("other bytes the second time: ", FrameToString(h)));
  }
  const std::string who = absl::StrCat("worker ", id_.value);
  const NetworkFaults& faults = network_->faults();
  if (world_->Draw("forged push", faults.forge, who)) Forge(link, *truth, h, values.size());
  if (!world_->Draw("corrupted payload", faults.corrupt, who)) return;
  auto spoiled = std::make_shared<Values>(values);
  (*spoiled)[world_->random().Below(spoiled->size())] += 1;
  message->payload = spoiled;
}

// Sends a frame from another time: the same key in the era before, or from the first one in an era
// that never comes (the next one may, and then the frame would count as its sender's), in another
// view, or an item of the next epoch, which is not open yet.
void WorkerWire::Forge(const Network::StreamPtr& link, const JobTruth& truth,
                       const FrameHeader& push, size_t elements) {
  const Workload& workload = truth.workload();
  Message message;
  FrameHeader& h = message.header = push;
  h.request_id = std::numeric_limits<uint64_t>::max();
  ValuesPtr payload = std::make_shared<Values>(elements, 1000.0F);
  switch (world_->random().Below(3)) {
    case 0:
      h.key.run.era = h.key.run.era == 0 ? kNeverEra : h.key.run.era - 1;
      world_->Count("fault: push of another era");
      break;
    case 1:
      h.view = ViewNumber(0);
      world_->Count("fault: push of an old view");
      break;
    default: {
      WorkRange& work = h.key.work;
      ++work.epoch;
      const uint64_t steps = StepsInEpoch(workload.spec, workload.train_samples, work.epoch);
      // It counts: so not ahead of a gradient that stops the job, nor where the log is to be cut at
      // a step: no worker sends an item from behind a cut that it was told of.
      const bool counts = workload.gradient == GradientKind::kCounting && workload.switches == 0 &&
                          !workload.checkpoints && !workload.poisoned &&
                          workload.spec.policy().kind() != Policy::BSP;
      if (!counts || work.first / workload.spec.batch().micro_batches() >= steps) return;
      payload =
          std::make_shared<Values>(Contribution(workload, truth.layout(), {}, h.key.slice, work));
      h.samples = static_cast<uint32_t>(SamplesIn(workload, work));
      world_->Count("fault: push of the next epoch");
    }
  }
  h.digest = DigestOf(*payload);
  message.payload = payload;
  network_->Send(link, 1, std::move(message));
}

void WorkerWire::OnDelivered(const FrameHeader& h, const ValueTruth& truth) {
  if (h.type == FrameType::kError)
    world_->Count(absl::StrCat("answers: error ", static_cast<int>(h.answer)).c_str());
  const auto push = pushes_.find(h.request_id);
  if (h.type == FrameType::kAck && push != pushes_.end()) {
    const ContributionKey& key = push->second.header.key;
    jobs_.at(key.run)->OnPushAcked(h, key.slice, key.work);
  }
  if (h.type != FrameType::kValue) return;
  if (const auto job = jobs_.find(truth.run); job != jobs_.end()) OnValue(h, truth, job->second);
}

void WorkerWire::OnValue(const FrameHeader& h, const ValueTruth& truth, JobTruth* job) {
  const auto it = pulls_.find(h.request_id);
  if (it == pulls_.end() || !std::exchange(it->second.open, false)) return;
  const Pull& pull = it->second;
  if (job->PolicyOf(truth.policy).kind != PolicyKind::kBsp && h.base_lsn < pull.min_lsn) {
    world_->Violate(Promise::kG2, absl::StrCat("a pull that had seen position ", pull.min_lsn.value,
                                               " got ", h.base_lsn.value));
  }
  ValueTruth& value = values_[{truth.run, pull.params, h.key.slice, pull.version}] = truth;
  value.pull_policy = h.policy;
}

std::optional<ValueTruth> WorkerWire::TakeTruth(RunId run, Params params, SliceId slice,
                                                Clock version) {
  const auto it = values_.find({run, params, slice, version});
  if (it == values_.end()) return std::nullopt;
  ValueTruth truth = std::move(it->second);
  values_.erase(it);
  return truth;
}

}  // namespace starling::sim
