// Reads the values of a partition whose job is over from the primary's shard, to keep a copy
// (docs/protocol.md, section 12).
#ifndef STARLING_SERVER_SHARD_HOST_ENDED_READER_H_
#define STARLING_SERVER_SHARD_HOST_ENDED_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/transport/transport.h"
#include "server/shard/core/shard.h"
#include "server/shard/host/ended_partition.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// Used on the owner's thread only.
//
// A pull that is refused, or not answered since the link broke, is sent again. It fails when there
// is no memory, and when nothing has come for kPatience.
class EndedReader {
 public:
  // Sends a pull to the primary's shard. Answers go to OnValue and OnRefused, the loss of the link
  // to OnDown.
  using Send = std::function<void(const std::string& address, const FrameHeader& header)>;
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  EndedReader(shard::action::CopyEnded orders, std::shared_ptr<ShardMemory> memory, Send send);

  EndedReader(const EndedReader&) = delete;
  EndedReader& operator=(const EndedReader&) = delete;

  void Start(absl::Time now);
  void OnValue(const FrameHeader& header, const ReceivedPayload& payload, absl::Time now);
  void OnRefused(const FrameHeader& header, const std::string& text, absl::Time now);
  void OnDown(const std::string& address, const std::string& why, absl::Time now);
  void OnTick(absl::Time now);

  const shard::action::CopyEnded& orders() const { return orders_; }
  // All values are there, or it has failed. Nothing changes any more.
  bool over() const { return !fault_.empty() || slices_.size() == orders_.values.size(); }
  // Why it has failed; empty: it has not.
  const std::string& fault() const { return fault_; }
  // That is lack of memory here.
  bool no_memory() const { return no_memory_; }
  // Once it is over and has not failed. Call once.
  std::unique_ptr<EndedPartition> Take();

 private:
  void Pull(absl::Time now);
  void Retry(std::string trouble, absl::Time now);

  const shard::action::CopyEnded orders_;
  const std::shared_ptr<ShardMemory> memory_;
  const Send send_;
  std::map<SliceId, EndedPartition::Slice> slices_;  // the first ones: they come in order
  absl::Time moved_;                                 // when the last one came
  absl::Time again_at_;                              // when the next one is asked for again
  std::string trouble_;                              // that the last request met
  RosterNumber roster_;
  Lsn lsn_;
  std::string fault_;
  bool no_memory_ = false;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_ENDED_READER_H_
