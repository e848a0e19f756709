// How the host of a partition carries out the replication between its copies: docs/protocol.md,
// section 12.
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/apply/verify.h"
#include "server/shard/host/partition_host.h"

namespace starling {
namespace {

OutgoingPayload KeptString(std::string bytes) {
  const auto keep = std::make_shared<const std::string>(std::move(bytes));
  return {absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(keep->data()), keep->size()), keep};
}

absl::Span<const uint8_t> TensorBytes(const std::shared_ptr<float>& data, size_t elements) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(data.get()),
                             elements * sizeof(float));
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
  const bool snapshot = (header.flags & frame_flags::kSnapshot) != 0;
  if (header.kind != PayloadKind::kRecord && !(snapshot && header.kind == PayloadKind::kDense))
    return refuse(Answer::kBadFrame, "expected a record, or a part of a snapshot");
  const size_t tensor = header.elements * sizeof(float);
  std::string head(payload.size() - tensor, '\0');
  payload.CopyTo(0, head.size(), head.data());
  Record record;
  if (!snapshot) {
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
    Buffer buffer;
    buffer.own = memory_->Allocate(header.elements);
    if (buffer.own == nullptr) {
      return refuse(Answer::kOverBudget, absl::StrCat("the shard has no memory for ",
                                                      header.elements, " elements: try again"));
    }
    payload.CopyTo(head.size(), tensor, buffer.own.get());
    if (TensorDigest(TensorBytes(buffer.own, header.elements)) != header.digest)
      return refuse(Answer::kBadDigest, "the tensor has another digest: send it again");
    buffer.elements = header.elements;
    buffer.header = header;
    buffer.arrived = owner_->Now();
    frame.payload = BufferId(++last_buffer_);
    buffers_.emplace(frame.payload, std::move(buffer));
  }
  if (snapshot) return Handle(SnapshotReceived{std::move(frame), std::move(head)});
  Handle(RecordReceived{std::move(frame), std::move(record)});
}

void PartitionHost::Do(const BeginTensors& action) { values_.Begin(action); }

void PartitionHost::Do(const KeepPayload& action) {
  MoveToOwnMemory(buffers_.at(action.payload), /*for_action=*/true);
}

void PartitionHost::Do(const InstallTensor& action) {
  values_.Install(action, std::move(buffers_.at(action.payload).own));
}

// ---- At a primary ----

void PartitionHost::Do(const AskBackup& action) {
  environment_.send_to_backup(core_.backup_address(), action.header, {});
}

// The backup gets the same bytes that this copy applies. They are copied, since the core may
// release the buffer before they are sent.
void PartitionHost::Do(const Replicate& action) {
  FrameHeader header = action.header;
  std::string bytes;
  EncodeRecord(action.record, &bytes);
  if (action.payload.value != 0) {
    const Buffer& buffer = buffers_.at(action.payload);
    if (buffer.first_non_finite >= 0) {
      events_.push_back(Applied{action.record.lsn, buffer.first_non_finite});
      return;
    }
    header.elements = static_cast<uint32_t>(buffer.elements);
    const size_t head = bytes.size();
    bytes.resize(head + buffer.elements * sizeof(float));
    uint8_t* const tensor = reinterpret_cast<uint8_t*>(bytes.data()) + head;
    if (buffer.own != nullptr) {
      std::memcpy(tensor, buffer.own.get(), bytes.size() - head);
    } else {
      buffer.received.CopyTo(tensor);
    }
    const bool known = action.record.digest != 0 && !DefenceMasked(Defence::kDigest);
    header.digest = known ? action.record.digest
                          : TensorDigest(absl::MakeConstSpan(tensor, bytes.size() - head));
  }
  header.kind = PayloadKind::kRecord;
  header.payload_bytes = static_cast<uint32_t>(bytes.size());
  environment_.send_to_backup(core_.backup_address(), header, KeptString(std::move(bytes)));
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
    frame.payload = {TensorBytes(tensor.data, elements), tensor.data};
    const bool slot = tensor.part == TensorPart::kSlot0 || tensor.part == TensorPart::kSlot1;
    if (slot && DefenceMasked(Defence::kSnapshotSlots))
      frame.payload = KeptString(std::string(elements * sizeof(float), '\0'));
  }
  events_.push_back(SnapshotTaken{snapshot_.size()});
}

void PartitionHost::Do(const SendSnapshot& action) {
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
