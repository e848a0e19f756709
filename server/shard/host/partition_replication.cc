// How the host of a partition carries out the replication between its copies: docs/protocol.md,
// section 12.
#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/apply/verify.h"
#include "server/shard/host/partition_host.h"

namespace starling {
namespace {

// A snapshot that was given up for its memory is not taken again before this.
constexpr absl::Duration kSnapshotAgainAfter = absl::Seconds(10);
// Errors of a backup that come closer together than the first of these are one trouble. It is
// logged when it has lasted as long as the second, and then once in the first.
constexpr absl::Duration kTroublePeriod = absl::Seconds(30);
constexpr absl::Duration kTroubleLasts = absl::Seconds(5);

OutgoingPayload KeptString(std::string bytes) {
  const auto keep = std::make_shared<const std::string>(std::move(bytes));
  return {absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(keep->data()), keep->size()), keep};
}

absl::Span<const uint8_t> TensorBytes(const float* data, size_t elements) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(data), elements * sizeof(float));
}

uint64_t TensorDigest(absl::Span<const uint8_t> bytes) {
  return VerifyPayload(Payload(&bytes, 1)).digest;
}

}  // namespace

// ---- At a backup ----

// Separates the payload for the core: a record or a part of a state, then a tensor.
void PartitionHost::OnReplicated(ConnectionId connection, const FrameHeader& header,
                                 const ReceivedPayload& payload) {
  FrameReceived frame{connection, header, BufferId()};
  if (header.kind == PayloadKind::kNone) return Handle(std::move(frame));
  const auto refuse = [&](Answer answer, std::string text) {
    SendRefusal(*connections_.at(connection), header, answer, std::move(text));
  };
  // DecodeFrameHeader lets nothing else through.
  const bool snapshot = (header.flags & frame_flags::kSnapshot) != 0;
  const size_t tensor = header.elements * sizeof(float);
  if (tensor > payload.size())
    return refuse(Answer::kBadFrame, "its payload is shorter than its tensor");
  std::string head(payload.size() - tensor, '\0');
  payload.CopyTo(0, head.size(), head.data());
  Record record;
  std::optional<CopyDigests> digests;
  if (!snapshot) {
    if (head.size() < kCopyDigestsBytes)
      return refuse(Answer::kBadFrame, "its payload is shorter than a record and its digests");
    const size_t record_bytes = head.size() - kCopyDigestsBytes;
    digests = ReadCopyDigests(absl::string_view(head).substr(record_bytes));
    if (!digests.has_value())
      return refuse(Answer::kBadDigest, "the digests behind the record are damaged: send it again");
    head.resize(record_bytes);
    absl::StatusOr<Record> decoded = DecodeRecord(head);
    if (!decoded.ok()) return refuse(Answer::kBadDigest, std::string(decoded.status().message()));
    record = *std::move(decoded);
    const uint32_t elements = record.kind == RecordKind::kApply ? record.elements : 0;
    if (elements != header.elements) {
      return refuse(Answer::kBadFrame,
                    absl::StrCat("a record of ", elements, " elements with ", header.elements));
    }
  }
  if (header.elements > 0) {
    ReceivedPayload received = payload.From(payload.size() - tensor);
    if (VerifyPayload(received.pieces()).digest != header.digest)
      return refuse(Answer::kBadDigest, "the tensor has another digest: send it again");
    frame.payload = BufferId(++last_buffer_);
    buffers_.emplace(frame.payload,
                     Buffer{std::move(received), nullptr, header.elements, header, owner_->Now()});
  }
  if (snapshot) return Handle(SnapshotReceived{std::move(frame), std::move(head)});
  Handle(RecordReceived{std::move(frame), std::move(record), *digests});
}

void PartitionHost::Do(const BeginTensors& action) { values_.Begin(action); }

void PartitionHost::Do(const KeepPayload& action) {
  MoveToOwnMemory(buffers_.at(action.payload), /*for_action=*/true);
}

void PartitionHost::Do(const InstallTensor& action) {
  Buffer& buffer = buffers_.at(action.payload);
  if (!MoveToOwnMemory(buffer, /*for_action=*/true)) return;
  values_.Install(action, std::move(buffer.own));
}

// ---- At a primary ----

void PartitionHost::OnBackupAnswer(const FrameHeader& answer, std::string text) {
  if (answer.type == FrameType::kError) NoteBackupTrouble(text);
  Handle(BackupAnswered{answer, std::move(text)});
}

// The link to an earlier backup may still break.
void PartitionHost::OnBackupDown(const std::string& address, std::string why) {
  if (address != core_.backup_address()) return;
  NoteBackupTrouble(why);
  Handle(BackupDown{std::move(why)});
}

void PartitionHost::NoteBackupTrouble(const std::string& what) {
  const absl::Time now = owner_->Now();
  BackupTrouble& trouble = backup_trouble_;
  if (now - trouble.last > kTroublePeriod) trouble = {.since = now};
  trouble.last = now;
  ++trouble.errors;
  if (now - trouble.since < kTroubleLasts || now - trouble.logged < kTroublePeriod) return;
  trouble.logged = now;
  spdlog::warn("job {} partition {}: {} errors of its backup at {} in the last {:.0f} s: {}",
               plan_->description.spec().name(), core_.config().partition.value, trouble.errors,
               core_.backup_address(), absl::ToDoubleSeconds(now - trouble.since), what);
}

// A second copy can be made later; the update that needs the memory cannot wait.
bool PartitionHost::GiveUpSnapshot() {
  if (snapshot_.empty()) return false;
  snapshot_.clear();
  const std::string why = "the snapshot for it was given up: updates need the memory";
  NoteBackupTrouble(why);
  events_.push_back(BackupDown{why, kSnapshotAgainAfter});
  return true;
}

void PartitionHost::Do(const AskBackup& action) {
  environment_.send_to_backup(core_.backup_address(), action.header, {});
}

// The backup gets the bytes that this copy applies, from the same memory. Without memory to keep
// them in, they are copied.
void PartitionHost::Do(const Replicate& action) {
  FrameHeader header = action.header;
  OutgoingPayload payload;
  if (action.payload.value != 0) {
    Buffer& buffer = buffers_.at(action.payload);
    if (buffer.first_non_finite >= 0) {
      events_.push_back(Applied{action.record.lsn, buffer.first_non_finite});
      return;
    }
    header.elements = static_cast<uint32_t>(buffer.elements);
    if (MoveToOwnMemory(buffer, /*for_action=*/false)) {
      payload = {TensorBytes(buffer.own.get(), buffer.elements), buffer.own};
    } else {
      std::string copy(buffer.received.size(), '\0');
      buffer.received.CopyTo(copy.data());
      payload = KeptString(std::move(copy));
    }
    const bool known = action.record.digest != 0 && !DefenceMasked(Defence::kDigest);
    header.digest = known ? action.record.digest : TensorDigest(payload.bytes);
  }
  EncodeRecord(action.record, &payload.head);
  AppendCopyDigests(action.digests, &payload.head);
  header.kind = PayloadKind::kRecord;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  environment_.send_to_backup(core_.backup_address(), header, std::move(payload));
}

void PartitionHost::Do(const TakeSnapshot& action) {
  snapshot_.clear();
  for (size_t at = 0; at < action.state.size(); at += limits::kRecordBytesMax) {
    SnapshotFrame& frame = snapshot_.emplace_back();
    frame.header.kind = PayloadKind::kRecord;
    frame.payload = KeptString(action.state.substr(at, limits::kRecordBytesMax));
  }
  for (const SliceValues::Tensor& tensor : values_.Tensors()) {
    SnapshotFrame& frame = snapshot_.emplace_back();
    const size_t elements = values_.elements(tensor.slice);
    frame.header.kind = PayloadKind::kDense;
    frame.header.key.slice = tensor.slice;
    frame.header.key.work.epoch = static_cast<uint32_t>(tensor.part);
    frame.header.elements = static_cast<uint32_t>(elements);
    frame.payload = {TensorBytes(tensor.data, elements), tensor.pin};
    const bool slot = tensor.part == TensorPart::kSlot0 || tensor.part == TensorPart::kSlot1;
    if (slot && DefenceMasked(Defence::kSnapshotSlots))
      frame.payload = KeptString(std::string(elements * sizeof(float), '\0'));
  }
  events_.push_back(SnapshotTaken{snapshot_.size()});
}

void PartitionHost::Do(const SendSnapshot& action) {
  if (snapshot_.empty()) return;  // given up; the core hears of it next
  const SnapshotFrame& frame = snapshot_.at(static_cast<size_t>(action.header.clock));
  FrameHeader header = action.header;
  header.kind = frame.header.kind;
  header.key.slice = frame.header.key.slice;
  header.key.work.epoch = frame.header.key.work.epoch;
  header.elements = frame.header.elements;
  header.payload_bytes = static_cast<uint32_t>(frame.payload.bytes.size());
  if (header.kind == PayloadKind::kDense) header.digest = TensorDigest(frame.payload.bytes);
  environment_.send_to_backup(core_.backup_address(), header, frame.payload);
}

void PartitionHost::Do(const DropSnapshot&) { snapshot_.clear(); }

}  // namespace starling
