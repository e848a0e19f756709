#include "tests/sim/network.h"

#include <algorithm>

namespace starling::sim {

absl::Duration Network::Delay() {
  Random& random = world_->random();
  if (world_->Draw("long delay", faults_.slow, "network"))
    return random.Between(absl::Milliseconds(1), faults_.slow_most);
  return random.Between(absl::Microseconds(50), absl::Milliseconds(2));
}

Network::StreamPtr Network::Open(End client, End server, bool between_shards) {
  if (IsCut(client.process, server.process)) return nullptr;
  auto stream = std::make_shared<Stream>();
  stream->id = ++streams_;
  stream->ends[0] = std::move(client);
  stream->ends[1] = std::move(server);
  stream->between_shards = between_shards;
  open_[stream->id] = stream;
  return stream;
}

void Network::Send(const StreamPtr& stream, int to, Message message) {
  const auto lost = [&] {
    world_->Count(to == 1 ? "fault: lost request (frame)" : "fault: lost reply (frame)");
  };
  if (stream->cut) return lost();
  absl::Time& last = stream->last[to];
  const absl::Duration apart = stream->between_shards ? faults_.shards_apart : absl::ZeroDuration();
  last = std::max(last, world_->now() + Delay() + apart);
  if (stream->between_shards) last = std::max(last, stream->ends[1 - to].process->unheard_until);
  const bool cut = world_->Draw("cut behind a frame", faults_.cut, stream->ends[to].process->name);
  world_->After(last - world_->now(), stream->ends[to].process,
                [this, stream, to, held = std::move(message)] { Deliver(stream, to, held); });
  if (cut) Cut(stream);
}

void Network::SendDecision(Process* to, std::function<void()> deliver) {
  Random& random = world_->random();
  const double p = faults_.decision_lost;
  if (world_->Draw("lost decision frame", p, to->name)) return;
  const int copies = world_->Draw("duplicate decision frame", p, to->name) ? 2 : 1;
  const uint64_t number = ++decision_frames_;
  for (int i = 0; i < copies; ++i) {
    const bool late = world_->Draw("late decision frame", p, to->name);
    const absl::Duration delay =
        faults_.shards_apart +
        (late ? random.Between(absl::Milliseconds(1), absl::Milliseconds(600)) : Delay());
    world_->After(delay, to, [this, deliver, number] {
      if (number < last_decision_frame_) world_->Count("fault: reordered decision frame");
      last_decision_frame_ = std::max(last_decision_frame_, number);
      world_->Trace(static_cast<uint64_t>(FrameType::kDecision) << 8, number);
      deliver();
    });
  }
}

void Network::Deliver(const StreamPtr& stream, int to, const Message& message) {
  const End& end = stream->ends[to];
  if (stream->down[to] || end.process->life != end.life) {
    return world_->Count(to == 1 ? "fault: lost request (frame)" : "fault: lost reply (frame)");
  }
  world_->Trace(static_cast<uint64_t>(message.header.type) << 8 | to,
                message.header.request_id ^ stream->id << 32);
  const auto deliver = end.deliver;  // may close the stream
  deliver(message);
}

void Network::TellDown(const StreamPtr& stream, int end, absl::Duration delay,
                       const absl::Status& why) {
  world_->After(delay, stream->ends[end].process, [stream, end, why] {
    if (std::exchange(stream->down[end], true)) return;
    End gone = std::move(stream->ends[end]);
    stream->ends[end] = {gone.process, gone.life, nullptr, nullptr};
    if (gone.process->life == gone.life) gone.down(why);
  });
}

void Network::Cut(const StreamPtr& stream) {
  if (std::exchange(stream->cut, true)) return;
  world_->Count("fault: cut stream");
  for (int end = 0; end < 2; ++end) {
    TellDown(stream, end, world_->random().Between(absl::ZeroDuration(), absl::Milliseconds(5)),
             absl::UnavailableError("the stream was cut"));
  }
}

void Network::Close(const StreamPtr& stream, int end, const absl::Status& why) {
  stream->cut = true;
  if (std::exchange(stream->down[end], true)) return;
  const End gone = std::move(stream->ends[end]);
  stream->ends[end] = {gone.process, gone.life, nullptr, nullptr};
  open_.erase(stream->id);
  TellDown(stream, 1 - end, world_->random().Between(absl::ZeroDuration(), absl::Milliseconds(20)),
           why);
}

std::vector<Network::StreamPtr> Network::StreamsOf(const Process* process) {
  std::vector<StreamPtr> streams;
  for (auto it = open_.begin(); it != open_.end();) {
    StreamPtr stream = it->second.lock();
    it = stream == nullptr ? open_.erase(it) : std::next(it);
    if (stream == nullptr) continue;
    if (stream->ends[0].process == process || stream->ends[1].process == process)
      streams.push_back(std::move(stream));
  }
  return streams;
}

void Network::CutAllOf(const Process* process) {
  for (const StreamPtr& stream : StreamsOf(process)) Cut(stream);
}

void Network::CutBetween(const Process* a, const Process* b, absl::Time until) {
  cut_ = {a, b};
  cut_until_ = until;
  for (const StreamPtr& stream : StreamsOf(a)) {
    if (cut_.contains(stream->ends[0].process) && cut_.contains(stream->ends[1].process))
      Cut(stream);
  }
}

void Network::CloseAllOf(const Process* process) {
  for (const StreamPtr& stream : StreamsOf(process)) {
    for (int end = 0; end < 2; ++end) {
      if (stream->ends[end].process == process) Close(stream, end);
    }
  }
}

// Ends refer to their streams: the circle is broken here.
Network::~Network() {
  for (const auto& [id, open] : open_) {
    const StreamPtr stream = open.lock();
    if (stream == nullptr) continue;
    for (End& end : stream->ends) const End gone = std::move(end);
  }
}

}  // namespace starling::sim
