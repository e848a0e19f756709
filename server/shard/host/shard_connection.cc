#include "server/shard/host/shard_connection.h"

#include <utility>

#include "server/shard/apply/verify.h"

namespace starling {

OutgoingPayload TextPayload(std::string text, FrameHeader* header) {
  const auto keep = std::make_shared<const std::string>(std::move(text));
  OutgoingPayload payload{
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(keep->data()), keep->size()), keep};
  header->kind = PayloadKind::kText;
  header->codec = Codec::kFp32;
  header->elements = 0;
  header->payload_bytes = static_cast<uint32_t>(keep->size());
  header->digest = VerifyPayload(Payload(&payload.bytes, 1)).digest;
  return payload;
}

OutgoingPayload ValuePayload(std::shared_ptr<const float> value, size_t elements, uint64_t* digest,
                             FrameHeader* header) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(value.get());
  OutgoingPayload payload{absl::MakeConstSpan(bytes, elements * sizeof(float)), std::move(value)};
  if (*digest == 0) *digest = VerifyPayload(Payload(&payload.bytes, 1)).digest;
  header->kind = PayloadKind::kDense;
  header->codec = Codec::kFp32;
  header->elements = static_cast<uint32_t>(elements);
  header->payload_bytes = static_cast<uint32_t>(payload.bytes.size());
  header->digest = *digest;
  return payload;
}

void SendRefusal(ShardConnection& to, const FrameHeader& request, Answer answer, std::string text) {
  FrameHeader header = request;
  header.type = FrameType::kError;
  header.answer = answer;
  header.scalar = 0;
  header.loss_scale_log2 = 0;
  OutgoingPayload payload = TextPayload(std::move(text), &header);
  to.Send(header, std::move(payload), -1);
}

}  // namespace starling
