#include "server/shard/host/shard_reporter.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/daemon/daemon.h"

namespace starling {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
// The coordinator holds a registration while it checks the name's owner.
constexpr absl::Duration kRegisterTimeout = absl::Seconds(15);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);
constexpr absl::Duration kComplaintInterval = absl::Seconds(5);
constexpr absl::Duration kUnreachedTold = absl::Seconds(1);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
// A shard that drains waits no longer for a coordinator that does not answer, unless some values
// may be only here: others had their copies in the same time before the drain.
constexpr absl::Duration kDrainSilence = absl::Seconds(2);
constexpr absl::Duration kDrainWatchPeriod = absl::Milliseconds(500);
constexpr int kReportsMax = 2;  // one that the coordinator holds, and one with news

// The coordinator refuses this shard. Another coordinator may accept it.
bool Refused(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition ||
         status.code() == absl::StatusCode::kUnauthenticated ||
         status.code() == absl::StatusCode::kPermissionDenied ||
         status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kUnimplemented;
}

}  // namespace

ShardReporter::ShardReporter(EventLoop* loop, std::unique_ptr<CoordinatorClient> client,
                             Options options, Callbacks callbacks)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      reports_(options_.report_bytes_max),
      readiness_(absl::StrCat("registers with the coordinator at ", options_.coordinator)),
      client_(std::move(client)) {}

void ShardReporter::Start() {
  request_ = MakeRegisterRequest(options_.self, options_.address, options_.insecure);
  silent_since_ = loop_->Now();
  silent_ = true;
  complained_ = silent_since_;
  Register();
}

void ShardReporter::Register() {
  if (client_ == nullptr) return;
  client_->Register(request_, kRegisterTimeout, [this](absl::StatusOr<RegisterReply> reply) {
    loop_->Post([this, reply = std::move(reply)]() mutable { OnRegistered(std::move(reply)); });
  });
}

void ShardReporter::OnRegistered(absl::StatusOr<RegisterReply> reply) {
  if (leaving_) return;
  if (reply.ok() && !reply->refused().empty()) {
    reply = absl::FailedPreconditionError(absl::StrCat("the coordinator at ", options_.coordinator,
                                                       " refuses ", IdentityToString(options_.self),
                                                       ": ", reply->refused()));
  }
  if (!reply.ok()) {
    const absl::Time now = loop_->Now();
    if (Refused(reply.status())) return callbacks_.on_failed(reply.status());
    if (!ever_registered_ && now - silent_since_ >= options_.register_deadline) {
      return callbacks_.on_failed(absl::DeadlineExceededError(
          NoCoordinator(options_.coordinator, now - silent_since_, reply.status())));
    }
    Complain(reply.status());
    readiness_.Set(NoCoordinator(options_.coordinator, now - silent_since_, reply.status()));
    loop_->PostAfter(kRetryDelay, [this] { Register(); });
    return;
  }
  silent_ = false;
  registered_ = ever_registered_ = true;
  readiness_.Set("");
  shard_ = ShardId(reply->id());
  incarnation_ = Incarnation(reply->incarnation());
  generation_ = std::max(generation_, reply->generation());
  cluster_ = reply->cluster();
  orders_version_ = 0;
  sequence_ = 0;
  more_ = false;
  reports_.Clear();
  spdlog::info("registered with the coordinator at {} as shard {}, incarnation {}",
               options_.coordinator, shard_.value, incarnation_.value);
  callbacks_.on_registered(shard_, incarnation_, cluster_);
  Send();
}

void ShardReporter::Complain(const absl::Status& status) {
  const absl::Time now = loop_->Now();
  if (!silent_) {
    silent_ = true;
    silent_since_ = now;
    complained_ = Refused(status) ? absl::InfinitePast() : now;
  }
  if (Refused(status)) {
    readiness_.Set(absl::StrCat("the coordinator at ", options_.coordinator,
                                " refuses this shard: ", status.message()));
  }
  if (now - complained_ < kComplaintInterval) return;
  complained_ = now;
  if (!Refused(status)) {
    spdlog::warn("{}", NoCoordinator(options_.coordinator, now - silent_since_, status));
    return;
  }
  spdlog::error(
      "the coordinator at {} refuses this shard, which keeps its {} partitions and tries again; "
      "start the coordinator on its previous state, or stop this shard: {}",
      options_.coordinator, reports_.partitions(), status.ToString());
}

// What is too large for a message will be too large the next time, too.
void ShardReporter::NoteTrouble(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return;
  trouble_ = absl::StrCat("reports to the coordinator at ", options_.coordinator,
                          " or its orders do not get through: ", status.message());
  readiness_.Set(trouble_);
}

void ShardReporter::Update(const PartitionStatus& status, bool at_once) {
  reports_.Update(status, loop_->Now());
  if (!at_once) return;
  news_ = true;
  Send();
}

void ShardReporter::End(const HeldJob& ended) {
  reports_.End(ended);
  news_ = true;
  Send();
}

void ShardReporter::Unreached(const std::string& address) {
  const absl::Time now = loop_->Now();
  std::erase_if(unreached_, [now](const auto& entry) { return entry.second <= now; });
  const bool told = unreached_.contains(address);
  unreached_[address] = now + kUnreachedTold;
  if (told) return;
  news_ = true;
  Send();
}

// The coordinator waits for all but how far the writing is.
void ShardReporter::Checkpoint(const Run& run, const CheckpointPart& part) {
  reports_.Checkpoint(run, part);
  if (part.state() == CheckpointPart::WRITING && part.bytes() > 0) return;
  news_ = true;
  Send();
}

void ShardReporter::SetCheckpointRoot(uint64_t nonce, std::string error) {
  checkpoint_nonce_ = nonce;
  checkpoint_error_ = std::move(error);
}

void ShardReporter::Drain() {
  if (draining_ || leaving_) return;
  draining_ = true;
  heard_ = drain_began_ = loop_->Now();
  if (registered_) {
    news_ = true;
    Send();
    return WatchDrain();
  }
  DrainOrders alone;
  alone.set_may_leave(true);
  alone.set_text("it is not registered, and holds nothing");
  callbacks_.on_drain(alone);
}

// Without a coordinator nothing can be handed over. One that comes back finds whole copies.
void ShardReporter::WatchDrain() {
  if (leaving_) return;
  const absl::Duration silent = loop_->Now() - heard_;
  if (silent >= kDrainSilence) {
    const size_t only_here = reports_.OnlyHere(drain_began_ - kDrainSilence);
    const size_t ended = reports_.Ended();
    std::vector<std::string> alone_here;
    if (only_here > 0)
      alone_here.push_back(
          absl::StrCat("partitions that may have no whole copy elsewhere: ", only_here));
    if (ended > 0)
      alone_here.push_back(
          absl::StrCat("jobs that ended and of which values may have no copy elsewhere: ", ended));
    DrainOrders alone;
    alone.set_may_leave(alone_here.empty());
    alone.set_text(
        absl::StrCat("the coordinator at ", options_.coordinator, " has not answered for ",
                     absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1))), ", and ",
                     alone_here.empty() ? "all that is here has a whole copy elsewhere"
                                        : absl::StrJoin(alone_here, "; ")));
    callbacks_.on_drain(alone);
  }
  loop_->PostAfter(kDrainWatchPeriod, [this] { WatchDrain(); });
}

void ShardReporter::Leave(std::function<void()> done) {
  leaving_ = true;
  if (client_ == nullptr || !registered_) return done();
  ShardReport report = MakeReport();
  report.set_drained(true);
  client_->ReportShard(report, kLeaveTimeout,
                       [this, done = std::move(done)](const absl::StatusOr<ShardOrders>&) {
                         loop_->Post([done] { done(); });
                       });
}

void ShardReporter::Send() {
  const bool may = client_ != nullptr && registered_ && !leaving_;
  if (!may || under_way_ >= kReportsMax || retry_set_) return;
  ShardReport report = MakeReport();
  reports_.Fill(sequence_, report);
  news_ = false;
  ++under_way_;
  client_->ReportShard(report, kCallTimeout,
                       [this, incarnation = incarnation_](absl::StatusOr<ShardOrders> orders) {
                         loop_->Post([this, incarnation, orders = std::move(orders)]() mutable {
                           OnOrders(incarnation, std::move(orders));
                         });
                       });
}

ShardReport ShardReporter::MakeReport() {
  ShardReport report;
  report.set_shard(shard_.value);
  report.set_incarnation(incarnation_.value);
  report.set_sequence(++sequence_);
  report.set_generation(generation_);
  report.set_cluster(cluster_);
  report.set_orders_seen(orders_version_);
  report.set_memory_room(callbacks_.memory_room());
  report.set_trouble(trouble_);
  report.set_checkpoint_nonce(checkpoint_nonce_);
  report.set_checkpoint_error(checkpoint_error_);
  report.set_draining(draining_);
  report.set_copies_ended(true);
  for (const auto& [address, until] : unreached_) {
    if (loop_->Now() < until) report.add_unreached(address);
  }
  return report;
}

// Only its own cluster's coordinator knows whether this shard's copies are still wanted, and which
// of them are the only ones. No other coordinator may make it drop anything.
absl::Status ShardReporter::CheckCluster(const ShardOrders& orders) const {
  if (cluster_ == 0 || orders.cluster() == cluster_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("this shard belongs to cluster %016x, the coordinator to cluster %016x",
                      cluster_, orders.cluster()));
}

void ShardReporter::OnOrders(Incarnation incarnation, absl::StatusOr<ShardOrders> orders) {
  --under_way_;
  if (leaving_) return;
  if (!registered_ || incarnation != incarnation_) {
    if (registered_ && under_way_ == 0) Send();
    return;
  }
  if (orders.ok()) {
    if (absl::Status status = CheckCluster(*orders); !status.ok()) orders = std::move(status);
  }
  if (!orders.ok()) {
    Complain(orders.status());
    NoteTrouble(orders.status());
    if (retry_set_) return;
    retry_set_ = true;
    loop_->PostAfter(kRetryDelay, [this] {
      retry_set_ = false;
      if (under_way_ == 0) Send();
    });
    return;
  }
  if (silent_) spdlog::info("the coordinator at {} answers again", options_.coordinator);
  silent_ = false;
  heard_ = loop_->Now();
  readiness_.Set("");
  trouble_.clear();
  cluster_ = orders->cluster();
  if (orders->generation() < generation_) {
    spdlog::warn("ignored orders of coordinator generation {}, have seen {}", orders->generation(),
                 generation_);
  } else if (orders->rejoin()) {
    spdlog::warn(
        "the coordinator considers this shard lost; dropping all partitions to register anew");
    generation_ = orders->generation();
    registered_ = false;
    readiness_.Set(absl::StrCat("registers anew with the coordinator at ", options_.coordinator,
                                ", which considered this shard lost"));
    reports_.Clear();
    callbacks_.on_rejoin();
    if (draining_) {
      DrainOrders alone;
      alone.set_may_leave(true);
      alone.set_text("the coordinator has given it up, so it holds nothing");
      return callbacks_.on_drain(alone);
    }
    request_ = MakeRegisterRequest(options_.self, options_.address, options_.insecure);
    Register();
    return;
  } else {
    if (orders->generation() > generation_) reports_.TellAll();
    generation_ = orders->generation();
    if (draining_ && orders->has_drain()) callbacks_.on_drain(orders->drain());
    more_ = reports_.Taken(orders->sequence_taken()) || orders->more();
    if (orders->checkpoint_nonce() != 0)
      callbacks_.on_checkpoint_root(orders->cluster(), orders->checkpoint_nonce());
    if (!orders->unchanged() && orders->version() > orders_version_) {
      orders_version_ = orders->version();
      callbacks_.on_orders(*orders);
    }
  }
  if (under_way_ == 0 || news_ || std::exchange(more_, false)) Send();
}

}  // namespace starling
