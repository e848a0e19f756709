#include "tests/sim/shard_node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "common/version/version.h"
#include "server/shard/apply/verify.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

PayloadPiece BytesOf(const Values& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

RosterList RosterOf(const Roster& roster) {
  RosterList list{RosterNumber(roster.number()), {}};
  for (const Member& m : roster.members()) {
    list.members.push_back({ReplicaId(m.replica()), WorkerId(m.worker()),
                            Incarnation(m.incarnation()), m.joined_clock()});
  }
  return list;
}

RunId RunOf(const Run& run) { return {JobUid(run.job_uid()), run.era()}; }

}  // namespace

ShardNode::ShardNode(Cluster* cluster, const std::string& process_name, uint64_t seed)
    : cluster_(cluster), world_(&cluster->world()), seed_(seed) {
  name = process_name;
}

void ShardNode::Start() {
  ++life;
  alive = true;
  registered_ = false;
  nonce_ = Mix(seed_, life);
  generation_ = 0;
  reports_under_way_ = 0;
  Register();
  Tick();
}

void ShardNode::Crash() {
  alive = false;
  ++life;
  for (auto& [key, hosted] : hosted_) Count(hosted);
  hosted_.clear();
  reports_.Clear();
  book_.Clear();
  for (auto& [id, stream] : streams_) cluster_->network().Close(stream, 1);
  streams_.clear();
}

void ShardNode::Register() {
  RegisterRequest request;
  request.set_role(SHARD);
  request.set_name(name);
  request.set_address(name);
  request.set_nonce(nonce_);
  request.mutable_version()->set_version("0.1.0");
  request.mutable_version()->set_protocol(ProtocolVersion());
  cluster_->Register(this, request, [this, nonce = nonce_](absl::StatusOr<RegisterReply> reply) {
    if (registered_ || nonce != nonce_) return;
    if (!reply.ok() || !reply->refused().empty()) {
      return world_->After(absl::Milliseconds(100), this, [this, nonce] {
        if (!registered_ && nonce == nonce_) Register();
      });
    }
    registered_ = true;
    id_ = reply->id();
    incarnation_ = reply->incarnation();
    generation_ = std::max(generation_, reply->generation());
    cluster_of_values_ = reply->cluster();
    sequence_ = 0;
    orders_version_ = 0;
    reports_.Clear();
    book_.Clear();
    Report();
  });
}

void ShardNode::Report() {
  ShardReport report;
  report.set_shard(id_);
  report.set_incarnation(incarnation_);
  report.set_memory_room(uint64_t{1} << 40);
  report.set_sequence(++sequence_);
  report.set_generation(generation_);
  report.set_cluster(cluster_of_values_);
  report.set_orders_seen(orders_version_);
  for (auto& [key, hosted] : hosted_) {
    if (hosted.over) continue;
    const PartitionStatus status = hosted.core->Status();
    std::string text = status.SerializeAsString();
    if (text != hosted.reported) reports_.Update(status);
    hosted.reported = std::move(text);
  }
  reports_.Fill(sequence_, report);
  ++reports_under_way_;
  CoordinatorNode& coordinator = cluster_->coordinator();
  cluster_->Call<ShardOrders>(
      this, generation_,
      [report](coordinator::CallId call) {
        return coordinator::event::ShardReport{call, report};
      },
      [this, incarnation = incarnation_](std::optional<ShardOrders> orders) {
        if (!registered_ || incarnation != incarnation_) return;
        --reports_under_way_;
        if (orders.has_value()) OnOrders(*orders);
        if (!registered_) return;
        const absl::Duration wait =
            orders.has_value() ? absl::ZeroDuration() : absl::Milliseconds(50);
        world_->After(wait, this, [this, incarnation] {
          if (registered_ && incarnation == incarnation_ && reports_under_way_ == 0) Report();
        });
      });
  (void)coordinator;
}

void ShardNode::OnOrders(const ShardOrders& orders) {
  if (orders.cluster() != cluster_of_values_) return;
  const bool old = orders.generation() < generation_;
  if (old) world_->Count("orders of an old generation");
  if (old && !DefenceMasked(Defence::kGeneration)) return;
  if (orders.generation() > generation_) reports_.TellAll();
  generation_ = std::max(generation_, orders.generation());
  if (orders.rejoin()) {
    if (old) world_->Violate(Promise::kG5, "a shard rejoined for an old coordinator");
    for (auto& [key, hosted] : hosted_) Count(hosted);
    hosted_.clear();
    registered_ = false;
    nonce_ = Mix(nonce_, 1);
    world_->Count("shard rejoins");
    return Register();
  }
  if (reports_.Taken(orders.sequence_taken())) world_->Count("reports in parts");
  if (orders.unchanged() || orders.version() <= orders_version_) return;
  if (old) world_->Violate(Promise::kG5, "a shard took orders of an old coordinator");
  orders_version_ = orders.version();
  const ShardOrderBook::Changes changes = book_.Take(orders);
  for (const uint64_t uid : changes.dropped) {
    reports_.Drop(uid);
    for (auto it = hosted_.begin(); it != hosted_.end();) {
      const Key key = it->first;
      ++it;
      if (key.first.job.value == uid) Drop(key);
    }
  }
  for (const ShardJob& job : changes.jobs) {
    reports_.Hold(job.run());
    job.over() ? End(job) : TakeJob(job, Generation(orders.generation()));
  }
}

void ShardNode::TakeJob(const ShardJob& job, Generation generation) {
  for (const PartitionOrders& p : job.partitions()) {
    Hosted* hosted = Host(job, PartitionId(p.partition()));
    if (hosted == nullptr) continue;
    OrdersReceived orders;
    orders.generation = generation;
    orders.view = ViewNumber(p.view().number());
    orders.primary = ShardId(p.view().primary());
    orders.backup = ShardId(p.view().backup());
    orders.roster = RosterOf(job.roster());
    const Policy& policy = job.policy().policy();
    orders.policy = {PolicyNumber(static_cast<uint32_t>(job.policy().number())),
                     {static_cast<PolicyKind>(policy.kind()), policy.staleness()},
                     job.policy().step()};
    orders.policy_in_force = job.policy().in_force();
    orders.epoch = job.epoch();
    orders.discard_cuts_before = job.discard_cuts_before();
    if (job.has_training_end()) orders.training_end = job.training_end();
    orders.decider = ViewNumber(job.decider().number());
    hosted->decider = job.decider().primary_address();
    hosted->orders = orders;
    hosted->truth->OnRoster(hosted->id, orders.roster);
    hosted->truth->OnPolicyOrdered(hosted->id, orders.policy);
    Step(*hosted, orders);
  }
}

// Keeps only values. What is to be read of them must be among them.
void ShardNode::End(const ShardJob& job) {
  uint64_t bytes = 0;
  for (auto& [key, hosted] : hosted_) {
    if (key.first != RunOf(job.run())) continue;
    hosted.over = true;
    hosted.buffers.clear();
    hosted.pushes.clear();
    for (auto& [id, store] : hosted.slices) {
      bytes += store.versions[0].size() * sizeof(float);
      for (Values& values : store.slots) values.clear();
      store.copy.clear();
      if (!hosted.two_versions || !job.has_keep_version()) continue;
      const uint64_t keep = job.keep_version();
      if (store.sealed != 0 && keep != store.sealed && keep + 1 != store.sealed) {
        world_->Violate(Promise::kG1, absl::StrCat("version ", keep, " is to be kept, and slice ",
                                                   id.value, " has sealed ", store.sealed));
      }
    }
  }
  world_->Count("jobs that ended on a shard");
  reports_.End(job.run(), bytes);
}

ShardNode::Hosted* ShardNode::Host(const ShardJob& orders, PartitionId partition) {
  const Key key{RunOf(orders.run()), partition};
  if (const auto it = hosted_.find(key); it != hosted_.end()) return &it->second;
  if (!orders.has_job()) {
    world_->Violate(Promise::kG8, "orders for a partition that is not there have no description");
    return nullptr;
  }
  const JobDescription& job = orders.job();
  JobTruth* truth = cluster_->Truth(job);
  const Layout& layout = truth->layout();
  auto config = MakePartitionConfig(job, layout, partition, ShardId(id_));
  if (!config.ok() || layout.digest != job.layout_digest()) {
    world_->Violate(Promise::kG8, absl::StrCat("a partition cannot be made: ",
                                               std::string(config.status().message())));
    return nullptr;
  }
  Hosted& hosted = hosted_[key];
  hosted.number = ++last_number_;
  hosted.run = key.first;
  hosted.id = partition;
  hosted.truth = truth;
  hosted.two_versions = config->policy.kind == PolicyKind::kBsp;
  hosted.core = std::make_unique<Partition>(*std::move(config));
  for (const Slice& slice : layout.slices) {
    if (slice.partition != partition) continue;
    SliceStore& store = hosted.slices[slice.id];
    store.rule = MakeUpdateRule(job.spec(), slice).value();
    for (Values& values : store.versions) values = InitialValues(slice);
    store.slots[0].assign(slice.elements, store.rule.first_slot0);
    store.slots[1].assign(slice.elements, 0);
  }
  return &hosted;
}

void ShardNode::Drop(const Key& key) {
  Count(hosted_.at(key));
  hosted_.erase(key);
}

void ShardNode::Tick() {
  world_->After(kShardTickPeriod, this, [this] {
    for (auto& [key, hosted] : hosted_) Step(hosted, ShardTick{});
    Tick();
  });
}

void ShardNode::OnConnected(const Network::StreamPtr& stream) {
  streams_[ConnectionId(stream->id)] = stream;
}

void ShardNode::OnDown(const Network::StreamPtr& stream) {
  streams_.erase(ConnectionId(stream->id));
  for (auto& [key, hosted] : hosted_) Step(hosted, ConnectionDown{ConnectionId(stream->id)});
}

void ShardNode::OnFrame(const Network::StreamPtr& stream, const Message& message) {
  const FrameHeader& h = message.header;
  // The run's era is the core's to judge: a job is found by its uid and partition.
  const auto it = std::find_if(hosted_.begin(), hosted_.end(), [&](const auto& entry) {
    return entry.first.first.job == h.key.run.job && entry.first.second == h.partition;
  });
  if (it == hosted_.end() || it->second.over) {
    Message answer;
    answer.header = h;
    answer.header.type = FrameType::kError;
    answer.header.answer = Answer::kNotHosted;
    answer.text = "not hosted";
    world_->Count("frames for partitions that are not hosted");
    return cluster_->network().Send(stream, 0, std::move(answer));
  }
  Hosted& hosted = it->second;
  BufferId buffer;
  if (message.payload != nullptr) {
    buffer = BufferId(++last_buffer_);
    hosted.buffers[buffer] = std::make_shared<Values>(*message.payload);
    hosted.pushes[buffer] = h;
  }
  Step(hosted, FrameReceived{ConnectionId(stream->id), h, buffer});
}

void ShardNode::Step(Hosted& hosted, const PartitionEvent& event) {
  if (hosted.over) return;
  PartitionActions actions;
  const PartitionStatus before = hosted.core->Status();
  hosted.core->Step(event, world_->now(), actions);
  const PartitionStatus after = hosted.core->Status();
  for (const PartitionAction& action : actions) {
    std::visit([&](const auto& a) { Do(hosted, a); }, action);
  }
  const bool news = after.policy() != before.policy() || after.cut_epochs() != before.cut_epochs();
  if (news && registered_ && reports_under_way_ < 2) Report();
}

void ShardNode::Later(const Hosted& hosted, absl::Duration delay, PartitionEvent event) {
  const Key key{hosted.run, hosted.id};
  world_->After(delay, this, [this, key, number = hosted.number, event = std::move(event)] {
    const auto it = hosted_.find(key);
    if (it != hosted_.end() && it->second.number == number) Step(it->second, event);
  });
}

void ShardNode::Do(Hosted& hosted, const Verify& a) {
  const FrameHeader& push = hosted.pushes.at(a.payload);
  hosted.truth->OnAccepted(hosted.id, push, hosted.run, hosted.orders.view);
  const PayloadPiece piece = BytesOf(*hosted.buffers.at(a.payload));
  const PayloadVerdict verdict = VerifyPayload({&piece, 1}, InstructionSet::kPortable);
  Random& random = world_->random();
  // Sometimes long enough for a reconnect and a retry.
  const absl::Duration most =
      random.Chance(0.05) ? absl::Milliseconds(30) : absl::Microseconds(300);
  Later(hosted, random.Between(absl::Microseconds(10), most),
        Verified{a.payload, verdict.digest, verdict.first_non_finite});
}

void ShardNode::Do(Hosted& hosted, const MergeSums& a) {
  const Values& from = *hosted.buffers.at(a.from);
  Values& into = *hosted.buffers.at(a.into);
  for (size_t i = 0; i < into.size(); ++i) into[i] += from[i];
  world_->Count("merged subtrees");
}

void ShardNode::Do(Hosted&, const Replicate&) {
  world_->Violate(Promise::kG8, "a record is replicated although no view has a backup");
}

void ShardNode::Do(Hosted& hosted, const ApplyNow& a) {
  SliceStore& store = hosted.slices.at(a.record.slice);
  const bool bsp = hosted.two_versions;
  const Values& in = store.versions[bsp ? a.version % 2 : 0];
  Values& out = store.versions[bsp ? (a.version + 1) % 2 : 0];
  const PayloadPiece piece = BytesOf(*hosted.buffers.at(a.payload));
  const int slots = store.rule.slots();
  if (a.record.skipped) {
    out = Values(in);
  } else {
    ApplyUpdate(store.rule, a.record.scalars, {&piece, 1},
                {in.data(), out.data(), slots > 0 ? store.slots[0].data() : nullptr,
                 slots > 1 ? store.slots[1].data() : nullptr, in.size()},
                InstructionSet::kPortable);
  }
  store.sealed = a.version + 1;
  hosted.truth->OnApplied(hosted.id, a.record, hosted.pushes.at(a.payload));
  world_->Trace(a.record.lsn.value, a.record.work.first);
  Random& random = world_->random();
  const absl::Duration most =
      random.Chance(0.05) ? absl::Milliseconds(10) : absl::Microseconds(200);
  Later(hosted, random.Between(absl::Microseconds(5), most), Applied{a.record.lsn});
}

void ShardNode::Do(Hosted& hosted, const SwitchPolicy& a) {
  hosted.truth->OnPolicySwitched(hosted.id, a.number);
  constexpr float kNobodyReads = 1e6F;
  for (auto& [slice, store] : hosted.slices) {
    const Values newest = store.versions[hosted.two_versions ? store.sealed % 2 : 0];
    for (Values& values : store.versions) values.assign(newest.size(), kNobodyReads);
    store.versions[a.two_versions ? a.version % 2 : 0] = newest;
    store.sealed = a.version;
  }
  hosted.two_versions = a.two_versions;
}

void ShardNode::Do(Hosted& hosted, const CopyForCut& a) {
  for (auto& [slice, store] : hosted.slices) {
    store.copy = store.versions[hosted.two_versions ? store.sealed % 2 : 0];
    hosted.truth->OnCut(slice, a.epoch, store.copy);
  }
  world_->Count("copies for evaluation");
}

void ShardNode::Do(Hosted&, const DropCopy&) {}

void ShardNode::Do(Hosted&, const SendFrame& a) {
  if (const auto reporter = reporters_.find(a.connection); reporter != reporters_.end()) {
    ShardNode* const to = reporter->second;
    return cluster_->network().SendDecision(
        to, [to, header = a.header, text = a.text] { to->OnDecision(header, text); });
  }
  const auto it = streams_.find(a.connection);
  if (it == streams_.end()) return;
  Message message;
  message.header = a.header;
  message.text = a.text;
  cluster_->network().Send(it->second, 0, std::move(message));
}

void ShardNode::Do(Hosted& hosted, const SendValue& a) {
  const auto it = streams_.find(a.connection);
  if (it == streams_.end()) return;
  const SliceId slice = a.header.key.slice;
  const SliceStore& store = hosted.slices.at(slice);
  const bool copy = a.source == ValueSource::kCutCopy;
  Message message;
  message.header = a.header;
  message.header.payload_bytes = a.header.elements * sizeof(float);
  message.payload = std::make_shared<Values>(copy                  ? store.copy
                                             : hosted.two_versions ? store.versions[a.version % 2]
                                                                   : store.versions[0]);
  message.truth = hosted.truth->OnValueSent(hosted.id, slice, a.version, a.header.base_lsn);
  message.truth.run = hosted.run;
  cluster_->network().Send(it->second, 0, std::move(message));
}

void ShardNode::Do(Hosted& hosted, const Release& a) {
  hosted.buffers.erase(a.buffer);
  hosted.pushes.erase(a.buffer);
}

void ShardNode::Do(Hosted& hosted, const ReportFault& a) {
  world_->Count("partitions that stopped themselves");
  (void)hosted;
  (void)a;
}

ValuesPtr ShardNode::ValuesOf(RunId run, SliceId slice) const {
  for (const auto& [key, hosted] : hosted_) {
    if (key.first != run) continue;
    const auto it = hosted.slices.find(slice);
    if (it == hosted.slices.end()) continue;
    return std::make_shared<Values>(
        it->second.versions[hosted.two_versions ? it->second.sealed % 2 : 0]);
  }
  return nullptr;
}

void ShardNode::Count(const Hosted& hosted) const {
  const PartitionCounters& c = hosted.core->counters();
  world_->Count("dedup hits", c.already_counted);
  world_->Count("joined retries", c.joined);
  world_->Count("blocked pulls", c.blocked_pulls);
  world_->Count("superseded pulls", c.superseded_pulls);
  world_->Count("frames that waited for orders", c.parked);
  world_->Count("fenced requests", c.fenced);
  world_->Count("refused requests", c.refused);
  world_->Count("replaced subtrees", c.replaced_sums);
  world_->Count("duplicate subtrees", c.duplicate_sums);
  world_->Count("sealed steps", c.sealed);
  world_->Count("cuts", c.cuts);
  world_->Count("requests of an earlier policy", c.earlier_policy);
  world_->Count("held sums", c.held_sums);
  world_->Count("decisions", c.decisions);
  world_->Count("repeated reports", c.repeated_reports);
  world_->Count("duplicate reports", c.duplicate_reports);
  world_->Count("stale decisions", c.stale_decisions);
}

std::string ShardNode::ToString() const {
  std::string text = absl::StrCat(name, alive ? "" : " is down");
  for (const auto& [key, hosted] : hosted_) {
    const PartitionStatus status = hosted.core->Status();
    absl::StrAppend(&text, " [job ", key.first.job.value, " partition ", key.second.value,
                    " epoch ", status.epoch(), " cut ", status.cut_epochs(), " covered ",
                    status.covered_floor(), " roster ", status.roster(), " policy ",
                    status.policy(), " begun ", status.begun_steps(), " clocks ",
                    status.clock_min(), "-", status.clock_max(), "]");
  }
  return text;
}

void ShardNode::AddCounters() const {
  for (const auto& [key, hosted] : hosted_) Count(hosted);
}

}  // namespace starling::sim
