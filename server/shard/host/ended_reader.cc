#include "server/shard/host/ended_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

// After a refusal, or the loss of the link.
constexpr absl::Duration kAskAgainAfter = absl::Milliseconds(500);
// Otherwise: a stream loses nothing, but a frame may have come before its partition.
constexpr absl::Duration kAnswerWait = absl::Seconds(5);

}  // namespace

EndedReader::EndedReader(shard::action::CopyEnded orders, std::shared_ptr<ShardMemory> memory,
                         Send send)
    : orders_(std::move(orders)), memory_(std::move(memory)), send_(std::move(send)) {}

void EndedReader::Start(absl::Time now) {
  moved_ = now;
  Pull(now);
}

// The next slice. One is asked for at a time: the shard copies several partitions at once.
void EndedReader::Pull(absl::Time now) {
  if (over()) return;
  again_at_ = now + kAnswerWait;
  const size_t index = slices_.size();
  FrameHeader header;
  header.type = FrameType::kPull;
  header.flags = frame_flags::kReader;
  header.key.run = orders_.run;
  header.key.slice = orders_.values[index].slice;
  if (orders_.version.has_value()) {
    header.flags |= frame_flags::kVersion;
    header.clock = static_cast<Clock>(*orders_.version);
  }
  header.partition = orders_.key.second;
  header.view = orders_.view;
  header.request_id = index + 1;
  send_(orders_.address, header);
}

void EndedReader::OnValue(const FrameHeader& header, const ReceivedPayload& payload,
                          absl::Time now) {
  // It may come twice.
  if (over() || header.key.run != orders_.run ||
      header.key.slice != orders_.values[slices_.size()].slice)
    return;
  const uint32_t elements = orders_.values[slices_.size()].elements;
  if (payload.size() != elements * sizeof(float)) {
    fault_ = absl::StrCat("slice ", header.key.slice.value, " came with ", payload.size(),
                          " bytes, expected ", elements * sizeof(float),
                          ": run the same release on all shards");
    return;
  }
  if (VerifyPayload(payload.pieces()).digest != header.digest)
    return Retry("a slice was damaged on its way", now);
  std::shared_ptr<float> data = memory_->Allocate(elements);
  if (data == nullptr) {
    no_memory_ = true;
    fault_ = absl::StrCat("the shard has no memory for ", elements, " more elements (",
                          memory_->allocated() >> 20, " MiB are in use)");
    return;
  }
  payload.CopyTo(data.get());
  slices_[header.key.slice] = {std::move(data), elements, header.digest};
  roster_ = header.roster;
  lsn_ = header.base_lsn;
  moved_ = now;
  Pull(now);
}

void EndedReader::OnRefused(const FrameHeader& header, const std::string& text, absl::Time now) {
  if (over() || header.key.run != orders_.run || header.view != orders_.view) return;
  Retry(absl::StrCat("it refused slice ", header.key.slice.value, ": ", text), now);
}

void EndedReader::OnDown(const std::string& address, const std::string& why, absl::Time now) {
  if (!over() && address == orders_.address) Retry(why, now);
}

void EndedReader::Retry(std::string trouble, absl::Time now) {
  trouble_ = std::move(trouble);
  again_at_ = std::min(again_at_, now + kAskAgainAfter);
}

void EndedReader::OnTick(absl::Time now) {
  if (over()) return;
  if (now - moved_ >= kPatience) {
    fault_ = absl::StrCat("no values have come from the shard at ", orders_.address, " for ",
                          absl::FormatDuration(kPatience), trouble_.empty() ? "" : ": ", trouble_);
    return;
  }
  if (now >= again_at_) Pull(now);
}

std::unique_ptr<EndedPartition> EndedReader::Take() {
  const EndedPartition::Position position{orders_.run, orders_.key.second, orders_.view, roster_,
                                          lsn_,        orders_.version};
  return std::make_unique<EndedPartition>(position, std::move(slices_), memory_);
}

}  // namespace starling
