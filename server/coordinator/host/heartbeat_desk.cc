#include "server/coordinator/host/heartbeat_desk.h"

#include <algorithm>
#include <utility>

namespace starling::coordinator {

HeartbeatDesk::HeartbeatDesk(absl::Duration hold, std::unique_ptr<ShardAsker> asker,
                             const MakeEventLoop& make_loop)
    : hold_(hold), asker_(std::move(asker)), loop_(make_loop("heartbeats")) {}

HeartbeatDesk::~HeartbeatDesk() { Stop(); }

uint64_t HeartbeatDesk::Take(const HeartbeatRequest& request, const std::string& caller,
                             Done done) {
  const uint64_t call = next_call_.fetch_add(1);
  // It counts from here on, however late the loop is.
  Note({request, caller, loop_->Now(), false});
  auto held = std::make_shared<Held>(Held{request, caller, std::move(done)});
  const bool posted = loop_->Post([this, call, held] { Hold(call, std::move(*held)); });
  if (!posted) held->done(absl::UnavailableError("the coordinator is shutting down"));
  return call;
}

// A shard that repeats its heartbeats without an end takes no memory.
void HeartbeatDesk::Note(event::Heartbeat heartbeat) {
  MutexLock lock(&mutex_);
  const auto same = std::find_if(came_.begin(), came_.end(), [&](const event::Heartbeat& other) {
    return !heartbeat.broke && !other.broke && other.called == heartbeat.called &&
           other.caller == heartbeat.caller && other.request.shard() == heartbeat.request.shard() &&
           other.request.incarnation() == heartbeat.request.incarnation();
  });
  if (same != came_.end()) came_.erase(same);
  came_.push_back(std::move(heartbeat));
}

std::vector<event::Heartbeat> HeartbeatDesk::TakeAll() {
  MutexLock lock(&mutex_);
  return std::exchange(came_, {});
}

// 0: there is none that it has not got.
uint64_t HeartbeatDesk::QuestionTo(const HeartbeatRequest& request) const {
  const auto asked = asked_.find(request.shard());
  const bool news = asked != asked_.end() && asked->second.incarnation == request.incarnation() &&
                    asked->second.question > request.asked();
  return news ? asked->second.question : 0;
}

void HeartbeatDesk::Hold(uint64_t call, Held held) {
  Held& mine = held_[call] = std::move(held);
  if (const uint64_t question = QuestionTo(mine.request); question != 0) {
    HeartbeatReply reply;
    reply.set_question(question);
    return Answer(call, std::move(reply));
  }
  mine.timer = loop_->PostAfter(hold_, [this, call] { Answer(call, HeartbeatReply()); });
}

void HeartbeatDesk::Answer(uint64_t call, absl::StatusOr<HeartbeatReply> reply) {
  auto held = held_.extract(call);
  if (held.empty()) return;
  loop_->Cancel(held.mapped().timer);
  held.mapped().done(std::move(reply));
}

void HeartbeatDesk::Gone(uint64_t call) {
  loop_->Post([this, call] {
    const auto held = held_.find(call);
    if (held == held_.end()) return;
    Note({held->second.request, held->second.caller, loop_->Now(), true});
    Answer(call, absl::CancelledError("the caller hung up"));
  });
}

void HeartbeatDesk::Ask(const action::AskShard& question) {
  loop_->Post([this, question] {
    asked_[question.shard] = question;
    std::vector<uint64_t> calls;
    for (const auto& [call, held] : held_) {
      if (QuestionTo(held.request) == question.question) calls.push_back(call);
    }
    HeartbeatReply reply;
    reply.set_question(question.question);
    for (const uint64_t call : calls) Answer(call, reply);
    if (question.address.empty() || asker_ == nullptr) return;
    asker_->Ask(question.address, question.name, [this, question] {
      HeartbeatRequest answer;
      answer.set_shard(question.shard);
      answer.set_incarnation(question.incarnation);
      answer.set_asked(question.question);
      Note({answer, question.name, loop_->Now(), /*broke=*/false, /*called=*/true});
    });
  });
}

void HeartbeatDesk::Stop() {
  loop_->Stop();
  asker_.reset();
  while (!held_.empty())
    Answer(held_.begin()->first, absl::UnavailableError("the coordinator is shutting down"));
}

}  // namespace starling::coordinator
