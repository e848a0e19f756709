#include "server/shard/host/shard_memory.h"

#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"

namespace starling {
namespace {

constexpr double kStalledSeconds = 1;  // a stream that sends nothing for this long is stalled

}  // namespace

bool ShardMemory::CloseWorst(uint64_t bytes, bool any) {
  std::vector<std::shared_ptr<ValueStream>> streams;
  {
    MutexLock lock(&mutex_);
    for (const std::weak_ptr<ValueStream>& known : streams_) {
      if (std::shared_ptr<ValueStream> stream = known.lock()) streams.push_back(std::move(stream));
    }
  }
  std::vector<std::pair<ValueStream::Load, ValueStream*>> loaded;
  for (const std::shared_ptr<ValueStream>& stream : streams) {
    const ValueStream::Load load = stream->load();
    if (load.bytes == 0 || load.over) continue;
    if (any || load.reads_only || load.stalled_seconds >= kStalledSeconds) {
      loaded.emplace_back(load, stream.get());
    }
  }
  std::sort(loaded.begin(), loaded.end(), [](const auto& a, const auto& b) {
    const auto badness = [](const ValueStream::Load& load) {
      return std::tuple(load.reads_only, load.stalled_seconds >= kStalledSeconds, load.bytes,
                        load.stalled_seconds);
    };
    return badness(a.first) > badness(b.first);
  });
  uint64_t closed = 0;
  uint64_t count = 0;
  for (const auto& [load, stream] : loaded) {
    if (closed >= bytes) break;
    stream->CloseForMemory(absl::StrFormat(
        "the shard needs the memory: %d MiB of values wait for this stream, the last one was sent "
        "%.1f s ago, and unread old values of all streams may take %d MiB: read faster, or ask for "
        "less at a time",
        load.bytes >> 20, load.stalled_seconds, options_.old_values_bytes_max >> 20));
    closed += load.bytes;
    ++count;
  }
  MutexLock lock(&mutex_);
  const absl::Time now = options_.now();
  if (now >= closed_until_) closed_ = 0;
  closed_ += count;
  if (count > 0) closed_until_ = now + kClosedAfter;
  return count > 0;
}

uint64_t ShardMemory::BytesOfClosed() {
  MutexLock lock(&mutex_);
  if (options_.now() >= closed_until_) closed_ = 0;
  return closed_ * limits::kTensorBytesMax;
}

}  // namespace starling
