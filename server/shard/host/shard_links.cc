#include "server/shard/host/shard_links.h"

#include <spdlog/spdlog.h>

#include <set>
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
class ShardLinks::Link final : public StreamHandler, public std::enable_shared_from_this<Link> {
 public:
  Link(ShardLinks* links, std::string address) : links_(links), address_(std::move(address)) {}

  // Call once, first.
  void Open(StreamClient& client) {
    stream_ = client.Connect({.address = address_, .whom = "another shard"}, shared_from_this());
  }

  void Send(const FrameHeader& report) {
    {
      MutexLock lock(&mutex_);
      waiting_[ReporterOf(report)] = report;
    }
    const absl::Status sent = stream_->Send(report);
    if (sent.code() == absl::StatusCode::kResourceExhausted) Close(sent);
  }

  void Replicate(const FrameHeader& header, OutgoingPayload payload) {
    {
      MutexLock lock(&mutex_);
      primaries_.emplace(header.key.run.job, header.partition);
    }
    const absl::Status sent = stream_->Send(header, std::move(payload), /*urgency=*/0);
    if (sent.ok()) return;
    if (sent.code() == absl::StatusCode::kResourceExhausted) Close(sent);
    // OnDown may have run before this frame came.
    links_->callbacks_.backup_down(header.key.run.job, header.partition, address_,
                                   std::string(sent.message()));
  }

  void Forget(JobUid job) {
    MutexLock lock(&mutex_);
    std::erase_if(primaries_, [job](const auto& primary) { return primary.first == job; });
  }

  void Close(const absl::Status& why) {
    stream_->Close(why);
    OnDown(why);
  }

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    // Reports have no request id.
    if (header.type == FrameType::kAck ||
        (header.type == FrameType::kError && header.request_id != 0)) {
      return links_->callbacks_.backup(header, TextOf(payload));
    }
    if (header.type == FrameType::kValue)
      return links_->callbacks_.value(header, std::move(payload));
    if (header.type != FrameType::kDecision && header.type != FrameType::kError) return;
    {
      MutexLock lock(&mutex_);
      waiting_.erase(ReporterOf(header));
    }
    links_->callbacks_.answer(header, TextOf(payload));
  }

  void OnDown(const absl::Status& status) override {
    std::map<Reporter, FrameHeader> waiting;
    std::set<std::pair<JobUid, PartitionId>> primaries;
    {
      MutexLock lock(&mutex_);
      waiting.swap(waiting_);
      primaries.swap(primaries_);
    }
    links_->OnDown(address_, this);
    spdlog::debug("stream to the shard at {} ended: {}", address_, status.ToString());
    links_->callbacks_.unreached(address_);
    for (const auto& [job, partition] : primaries)
      links_->callbacks_.backup_down(job, partition, address_, std::string(status.message()));
    for (auto& [reporter, header] : waiting) {
      header.type = FrameType::kError;
      header.answer = Answer::kNotHosted;
      header.scalar = 0;
      links_->callbacks_.answer(header, std::string(status.message()));
    }
  }

 private:
  ShardLinks* const links_;
  const std::string address_;
  std::shared_ptr<FrameStream> stream_;
  Mutex mutex_;
  std::map<Reporter, FrameHeader> waiting_ ABSL_GUARDED_BY(mutex_);  // unanswered reports
  std::set<std::pair<JobUid, PartitionId>> primaries_ ABSL_GUARDED_BY(mutex_);  // its users
};

ShardLinks::ShardLinks(std::unique_ptr<StreamClient> client, Callbacks callbacks)
    : callbacks_(std::move(callbacks)), client_(std::move(client)) {}

ShardLinks::~ShardLinks() { Stop(); }

void ShardLinks::SetOwnAddress(const std::string& address) {
  MutexLock lock(&mutex_);
  own_address_ = address;
}

void ShardLinks::SetDeciders(std::map<JobUid, std::string> addresses) {
  MutexLock lock(&mutex_);
  deciders_ = std::move(addresses);
}

void ShardLinks::Send(const FrameHeader& report) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(&mutex_);
    const auto decider = deciders_.find(report.key.run.job);
    if (stopped_ || decider == deciders_.end()) return;
    if (decider->second != own_address_) link = LinkTo(decider->second);
  }
  if (link == nullptr) return callbacks_.local(report);
  link->Send(report);
}

void ShardLinks::Replicate(const std::string& address, const FrameHeader& header,
                           OutgoingPayload payload) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(&mutex_);
    if (!stopped_) link = LinkTo(address);
  }
  if (link != nullptr) link->Replicate(header, std::move(payload));
}

void ShardLinks::Forget(JobUid job) {
  MutexLock lock(&mutex_);
  for (const auto& [address, link] : links_) link->Forget(job);
}

std::shared_ptr<ShardLinks::Link> ShardLinks::LinkTo(const std::string& address) {
  std::shared_ptr<Link>& slot = links_[address];
  if (slot == nullptr) {
    slot = std::make_shared<Link>(this, address);
    slot->Open(*client_);
  }
  return slot;
}

void ShardLinks::OnDown(const std::string& address, const Link* link) {
  MutexLock lock(&mutex_);
  const auto it = links_.find(address);
  if (it != links_.end() && it->second.get() == link) links_.erase(it);
}

void ShardLinks::Stop() {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  client_.reset();  // ends the streams and waits for their last callbacks
  MutexLock lock(&mutex_);
  links_.clear();
}

}  // namespace starling
