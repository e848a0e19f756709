// How a shard's host takes checkpoints: docs/decisions/0013-checkpoints.md, part 3.
#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/shard/host/shard_host.h"

namespace starling {

namespace action = shard::action;

// Whether this shard's root is the coordinator's. One that is not (yet) is looked at again.
void ShardHost::FindCheckpointRoot(uint64_t cluster, uint64_t nonce) {
  static constexpr absl::Duration kFindAgainAfter = absl::Seconds(1);
  if (checkpoint_writer_ == nullptr || nonce == checkpoint_nonce_ || finds_root_ ||
      control_->Now() < find_root_at_)
    return;
  finds_root_ = true;
  checkpoint_writer_->ReadRoot(cluster, [this](absl::StatusOr<uint64_t> found) {
    control_->Post([this, found = std::move(found)] {
      finds_root_ = false;
      find_root_at_ = control_->Now() + kFindAgainAfter;
      checkpoint_nonce_ = found.value_or(0);
      reporter_->SetCheckpointRoot(checkpoint_nonce_, std::string(found.status().message()));
    });
  });
}

// A checkpoint beneath it cannot be read, so it may be mounted no more: it is looked at again.
void ShardHost::DoubtCheckpointRoot() {
  checkpoint_nonce_ = 0;
  find_root_at_ = control_->Now();
}

void ShardHost::Do(const action::BeginCheckpoint& a) {
  const uint64_t number = a.orders.number();
  const auto refuse = [&](const absl::Status& why) {
    Step(shard::event::CheckpointWritten{a.job, number, why});
  };
  if (checkpoint_writer_ == nullptr) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("shard ", options_.self.name, " has no --checkpoint-root")));
  }
  if (!ParseCheckpointId(a.orders.id()).has_value()) {
    return refuse(absl::InvalidArgumentError(absl::StrCat(
        "\"", a.orders.id(), "\" is no checkpoint's id: run the same release everywhere")));
  }
  captures_[a.job] = {a.orders, std::make_shared<CheckpointCapture>()};
  has_captures_ = true;
}

// Blocks of a checkpoint that was dropped meanwhile are freed here.
void ShardHost::TakeCaptured(const shard::event::Captured& event,
                             std::vector<CapturedBlock> blocks) {
  const auto capture = captures_.find(event.key.first);
  if (capture == captures_.end() || capture->second.orders.number() != event.number) return;
  capture->second.blocks->Add(std::move(blocks));
  Step(event);
}

void ShardHost::Do(const action::WriteCheckpoint& a) {
  const auto found = captures_.find(a.job);
  if (found == captures_.end()) return;  // given up; the core hears of it next
  const ShardCheckpoint& orders = found->second.orders;
  const uint64_t number = orders.number();
  checkpoint_writer_->Write(
      *ParseCheckpointId(orders.id()), orders.nonce(), orders.step(), id_, found->second.blocks,
      [this, job = a.job, number](absl::StatusOr<CheckpointFile> file) {
        control_->Post([this, job, number, file = std::move(file)]() mutable {
          Step(shard::event::CheckpointWritten{job, number, std::move(file)});
        });
      },
      [this, job = a.job, number](uint64_t bytes) {
        control_->Post([this, job, number, bytes] {
          Step(shard::event::CheckpointProgress{job, number, bytes});
        });
      });
}

void ShardHost::Do(const action::DropCheckpoint& a) {
  const auto found = captures_.find(a.job);
  if (found == captures_.end()) return;
  found->second.blocks->GiveUp("the checkpoint was dropped");
  captures_.erase(found);
  has_captures_ = !captures_.empty();
}

// An update has no memory, and a checkpoint can be taken later. They are given up on the control
// loop, soon after. False: there is none, or all are being given up.
bool ShardHost::GiveUpCaptures() {
  if (!has_captures_.exchange(false)) return false;
  control_->Post([this] {
    const absl::Status why = absl::ResourceExhaustedError(absl::StrCat(
        "updates on shard ", options_.self.name, " need the memory of what was captured"));
    has_captures_ = false;
    for (const auto& [job, capture] : std::exchange(captures_, {})) {
      spdlog::warn("checkpoint {} is given up: {}", capture.orders.id(),
                   std::string(why.message()));
      capture.blocks->GiveUp(std::string(why.message()));
      Step(shard::event::CheckpointWritten{job, capture.orders.number(), why});
    }
  });
  return true;
}

}  // namespace starling
