#include "server/shard/host/ended_partition.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace starling {
EndedPartition::EndedPartition(const Position& position, std::map<SliceId, Slice> slices,
                               std::shared_ptr<ShardMemory> memory)
    : position_(position), memory_(std::move(memory)), slices_(std::move(slices)) {
  for (const auto& [id, slice] : slices_) value_bytes_ += slice.elements * sizeof(float);
  memory_->AddEnded(value_bytes_);
}

EndedPartition::~EndedPartition() { memory_->RemoveEnded(value_bytes_); }

void EndedPartition::OnFrame(ShardConnection& connection, const FrameHeader& request) {
  const auto refuse = [&](Answer answer, std::string text) {
    SendRefusal(connection, request, answer, std::move(text));
  };
  if (request.key.run != position_.run) {
    return refuse(Answer::kStaleRun,
                  absl::StrCat("run ", request.key.run.job.value, ".", request.key.run.era,
                               "; this is ", position_.run.job.value, ".", position_.run.era));
  }
  const bool reads =
      request.type == FrameType::kPull && (request.flags & frame_flags::kReader) != 0;
  if (!reads) {
    return refuse(Answer::kNotHosted,
                  absl::StrCat("job ", position_.run.job.value,
                               " is over: its values can be read, and nothing else"));
  }
  const auto slice = slices_.find(request.key.slice);
  if (slice == slices_.end()) {
    return refuse(Answer::kBadFrame,
                  absl::StrCat("slice ", request.key.slice.value, " is not in partition ",
                               position_.partition.value));
  }
  const bool exact = (request.flags & frame_flags::kVersion) != 0;
  const bool other = exact && (!position_.version.has_value() ||
                               request.clock != static_cast<Clock>(*position_.version));
  if (other || request.key.work.purpose == WorkPurpose::kEvaluate) {
    return refuse(
        Answer::kStaleClock,
        absl::StrCat("job ", position_.run.job.value, " is over: only its last values are kept",
                     position_.version ? absl::StrCat(", version ", *position_.version) : ""));
  }
  FrameHeader header = request;
  header.type = FrameType::kValue;
  header.answer = Answer::kNone;
  header.view = position_.view;
  header.roster = position_.roster;
  header.base_lsn = position_.lsn;
  OutgoingPayload payload =
      ValuePayload(slice->second.data, slice->second.elements, &slice->second.digest, &header);
  connection.Send(header, std::move(payload), request.key.slice.value);
}

}  // namespace starling
