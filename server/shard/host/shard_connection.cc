#include "server/shard/host/shard_connection.h"

#include <memory>
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
