#include "server/shard/host/decision_links.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace starling {
namespace {

using Reporter = std::pair<RunId, PartitionId>;

Reporter ReporterOf(const FrameHeader& header) { return {header.key.run, header.reporter}; }

std::string TextOf(const ReceivedPayload& payload) {
  std::string text(payload.size(), '\0');
  payload.CopyTo(text.data());
  return text;
}

}  // namespace

// A stream to one shard.
class DecisionLinks::Link final : public StreamHandler, public std::enable_shared_from_this<Link> {
 public:
  Link(DecisionLinks* links, std::string address) : links_(links), address_(std::move(address)) {}

  // Call once, first.
  void Open(StreamClient& client) {
    stream_ =
        client.Connect({.address = address_, .whom = "the shard that decides"}, shared_from_this());
  }

  void Send(const FrameHeader& report) {
    {
      MutexLock lock(&mutex_);
      waiting_[ReporterOf(report)] = report;
    }
    const absl::Status sent = stream_->Send(report);
    if (sent.code() == absl::StatusCode::kResourceExhausted) Close(sent);
  }

  void Close(const absl::Status& why) {
    stream_->Close(why);
    OnDown(why);
  }

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    if (header.type != FrameType::kDecision && header.type != FrameType::kError) return;
    {
      MutexLock lock(&mutex_);
      waiting_.erase(ReporterOf(header));
    }
    links_->callbacks_.answer(header, TextOf(payload));
  }

  void OnDown(const absl::Status& status) override {
    std::map<Reporter, FrameHeader> waiting;
    {
      MutexLock lock(&mutex_);
      waiting.swap(waiting_);
    }
    links_->OnDown(address_, this);
    spdlog::debug("stream for decisions to {} ended: {}", address_, status.ToString());
    for (auto& [reporter, header] : waiting) {
      header.type = FrameType::kError;
      header.answer = Answer::kNotHosted;
      header.scalar = 0;
      links_->callbacks_.answer(header, std::string(status.message()));
    }
  }

 private:
  DecisionLinks* const links_;
  const std::string address_;
  std::shared_ptr<FrameStream> stream_;
  Mutex mutex_;
  std::map<Reporter, FrameHeader> waiting_ ABSL_GUARDED_BY(mutex_);  // unanswered reports
};

DecisionLinks::DecisionLinks(std::unique_ptr<StreamClient> client, Callbacks callbacks)
    : callbacks_(std::move(callbacks)), client_(std::move(client)) {}

DecisionLinks::~DecisionLinks() { Stop(); }

void DecisionLinks::SetOwnAddress(const std::string& address) {
  MutexLock lock(&mutex_);
  own_address_ = address;
}

void DecisionLinks::SetDeciders(std::map<JobUid, std::string> addresses) {
  MutexLock lock(&mutex_);
  deciders_ = std::move(addresses);
}

void DecisionLinks::Send(const FrameHeader& report) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(&mutex_);
    const auto decider = deciders_.find(report.key.run.job);
    if (stopped_ || decider == deciders_.end()) return;
    if (decider->second != own_address_) {
      std::shared_ptr<Link>& slot = links_[decider->second];
      if (slot == nullptr) {
        slot = std::make_shared<Link>(this, decider->second);
        slot->Open(*client_);
      }
      link = slot;
    }
  }
  if (link == nullptr) return callbacks_.local(report);
  link->Send(report);
}

void DecisionLinks::OnDown(const std::string& address, const Link* link) {
  MutexLock lock(&mutex_);
  const auto it = links_.find(address);
  if (it != links_.end() && it->second.get() == link) links_.erase(it);
}

void DecisionLinks::Stop() {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  client_.reset();  // ends the streams and waits for their last callbacks
  MutexLock lock(&mutex_);
  links_.clear();
}

}  // namespace starling
