#include "server/shard/host/connection.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "common/transport/access.h"

namespace starling {
namespace {

bool IsReaderPull(const FrameHeader& header) {
  return header.type == FrameType::kPull && (header.flags & frame_flags::kReader) != 0;
}

}  // namespace

Connection::Connection(ConnectionId id, std::shared_ptr<FrameStream> stream, const Identity& peer,
                       const Shard& shard)
    : id_(id),
      stream_(std::move(stream)),
      peer_(IdentityToString(peer)),
      name_(peer.name),
      role_(peer.role),
      shard_(shard),
      progress_(shard_.clock->Now()) {}

void Connection::OnFrame(const FrameHeader& header, ReceivedPayload payload) {
  if (const absl::Status allowed = CheckFrameSender(header, role_); !allowed.ok()) {
    if (shard_.security != nullptr) shard_.security->refusals().CountCall();
    return End(allowed);
  }
  if (!MaySpeak(header)) {
    return SendRefusal(*this, header, Answer::kBadFrame,
                       absl::StrCat(peer_, " is not worker ", header.origin.worker.value));
  }
  const Routes::Key key(header.key.run.job, header.partition);
  if (header.type == FrameType::kReplicate &&
      !shard_.routes->MayReplicate(name_, header.key.run, header.partition, header.view)) {
    return SendRefusal(*this, header, Answer::kBadFrame,
                       absl::StrCat(peer_, " does not lead partition ", header.partition.value,
                                    " in view ", header.view.value));
  }
  std::shared_ptr<HostedPartition> partition = shard_.routes->Find(key);
  if (partition == nullptr) return RefuseNotHosted(header);
  {
    MutexLock lock(&mutex_);
    if (down_) return;
    partitions_[key] = partition;  // a dropped partition does nothing when the stream ends
  }
  EventLoop* const owner = partition->owner;
  auto take = [self = shared_from_this(), partition = std::move(partition), header,
               payload = std::move(payload), arrived = shard_.clock->Now()]() mutable {
    // After the stream's end, a frame would make the partition keep the connection forever.
    if (self->down()) return;
    if (partition->ended != nullptr) return partition->ended->OnFrame(*self, header);
    if (partition->host == nullptr) return self->RefuseNotHosted(header);
    partition->host->OnFrame(std::move(self), header, std::move(payload), arrived);
  };
  if (shard_.queue_wait > absl::ZeroDuration()) {
    owner->PostAfter(shard_.queue_wait, std::move(take));
  } else {
    owner->Post(std::move(take));
  }
}

void Connection::OnDown(const absl::Status& status) {
  spdlog::debug("stream of {} ended: {}", peer_, status.ToString());
  Forget();
}

void Connection::Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) {
  if (down()) return;
  const FrameStream::Stats stats = stream_->stats();
  NoteProgress(stats);
  absl::Status status = CheckQueue(stats, payload.size());
  if (status.ok()) status = stream_->Send(header, std::move(payload), urgency);
  // Any other error leads to OnDown.
  if (status.code() == absl::StatusCode::kResourceExhausted) End(status);
}

Connection::Load Connection::load() {
  const FrameStream::Stats stats = stream_->stats();
  const double stalled = NoteProgress(stats);
  return {.reads_only = role_ == PeerRole::kClient,
          .over = down(),
          .bytes = stats.queued_payload_bytes + stats.writing_payload_bytes,
          .stalled_seconds = stalled};
}

void Connection::CloseForMemory(const std::string& why) { End(absl::ResourceExhaustedError(why)); }

// Seconds without progress while bytes wait to be sent.
double Connection::NoteProgress(const FrameStream::Stats& stats) {
  const absl::Time now = shard_.clock->Now();
  MutexLock lock(&mutex_);
  const bool idle = stats.queued_payload_bytes + stats.writing_payload_bytes == 0;
  if (idle || stats.sent_payload_bytes != sent_bytes_) {
    sent_bytes_ = stats.sent_payload_bytes;
    progress_ = now;
  }
  return absl::ToDoubleSeconds(now - progress_);
}

void Connection::End(const absl::Status& why) {
  spdlog::warn("closing the stream of {}: {}", peer_, why.ToString());
  stream_->Close(why);
  Forget();
}

// The partition never was here, was dropped, or could not be made.
void Connection::RefuseNotHosted(const FrameHeader& header) {
  if (DefenceMasked(Defence::kHostAnswer)) return;
  SendRefusal(*this, header, Answer::kNotHosted,
              absl::StrCat("partition ", header.partition.value, " of job ",
                           header.key.run.job.value, " is not hosted here"));
}

// Whether the frame names no worker, or the worker that this peer is.
bool Connection::MaySpeak(const FrameHeader& header) const {
  return role_ != PeerRole::kWorker || IsReaderPull(header) ||
         shard_.routes->MaySpeakFor(name_, header.origin.worker);
}

// Limits what waits to be sent, since waiting values keep their memory.
absl::Status Connection::CheckQueue(const FrameStream::Stats& stats, size_t bytes) const {
  if (role_ == PeerRole::kClient && stats.queued_frames >= limits::kReaderFramesQueuedMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the peer asks for more than it reads: ", stats.queued_frames, " frames wait to be sent"));
  }
  const uint64_t queued = stats.queued_payload_bytes;
  const uint64_t most = shard_.memory->StreamQueueBytesMax();
  if (queued + bytes <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the peer asks for more than it reads: ", queued, " bytes wait to be sent, ", bytes,
      " more would exceed ", most, " (twice the values that this shard holds, plus the window)"));
}

bool Connection::down() const {
  MutexLock lock(&mutex_);
  return down_;
}

// Tells the partitions, once, that the stream has ended.
void Connection::Forget() {
  std::map<Routes::Key, std::shared_ptr<HostedPartition>> partitions;
  {
    MutexLock lock(&mutex_);
    down_ = true;
    partitions.swap(partitions_);
  }
  for (const auto& [key, partition] : partitions) {
    partition->owner->Post([id = id_, partition = partition] {
      if (partition->host != nullptr) partition->host->OnConnectionDown(id);
    });
  }
}

}  // namespace starling
