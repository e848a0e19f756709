#include "server/shard/host/partition_host.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
#include "common/trace/flow.h"
#include "server/shard/apply/measure.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

// `value`: a VALUE's header, which repeats the pull's fields.
bool IsTrainingPull(const FrameHeader& value) {
  return value.key.work.purpose != WorkPurpose::kEvaluate &&
         (value.flags & frame_flags::kReader) == 0;
}

// Also true if the last other holder, on another thread, has just released it. The fence puts its
// reads before our writes.
bool OnlyOurs(const std::shared_ptr<float>& data) {
  if (data.use_count() != 1 && !DefenceMasked(Defence::kValueInUse)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

// Measures time since its construction, by the owner's clock and for spans.
class Stopwatch {
 public:
  explicit Stopwatch(const EventLoop* clock) : clock_(clock) {}
  absl::Duration elapsed() const { return clock_->Now() - begin_; }
  uint64_t begin_us() const { return begin_us_; }

 private:
  const EventLoop* const clock_;
  const absl::Time begin_ = clock_->Now();
  const uint64_t begin_us_ = SpanRing::NowMicros();
};

absl::StatusOr<std::shared_ptr<float>> Allocate(ShardMemory& from, size_t elements) {
  std::shared_ptr<float> memory = from.Allocate(elements);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", elements, " elements"));
  }
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartitionHost>> PartitionHost::Create(
    std::shared_ptr<const ShardJobPlan> plan, PartitionId partition, Environment environment) {
  STARLING_ASSIGN_OR_RETURN(
      PartitionConfig config,
      MakePartitionConfig(plan->description, plan->layout, partition, environment.self));
  std::unique_ptr<PartitionHost> host(
      new PartitionHost(std::move(plan), std::move(config), std::move(environment)));
  STARLING_RETURN_IF_ERROR(host->MakeFirstValues());
  host->PublishIfDue(false);
  return host;
}

PartitionHost::PartitionHost(std::shared_ptr<const ShardJobPlan> plan, PartitionConfig config,
                             Environment environment)
    : plan_(std::move(plan)),
      environment_(std::move(environment)),
      owner_(environment_.owner),
      memory_(environment_.memory.get()),
      spans_(environment_.spans),
      micro_batches_(config.micro_batches),
      two_versions_(plan_->bsp()),
      core_(std::move(config)) {
  for (const SliceId id : plan_->layout.partitions[core_.config().partition.value]) {
    value_bytes_ += plan_->layout.slices[id.value].elements * sizeof(float);
  }
  memory_->AddHosted(value_bytes_);
  plan_->metrics->parameter_bytes += static_cast<int64_t>(value_bytes_);
  ++plan_->metrics->partitions;
  if (environment_.observer == nullptr) return;
  core_.ObserveEffects(
      [this](const Record& record) { environment_.observer->OnEffect(core_, record); });
}

PartitionHost::~PartitionHost() {
  ObserveGone();
  if (paused_.has_value()) owner_->Cancel(paused_->timer);
  RefuseArrived("the partition is not hosted here any more");
  for (const auto& [id, store] : slices_) {
    for (const Value* value : {&store.versions[0], &store.versions[1], &store.cut})
      LetGo(store, *value);
  }
  memory_->RemoveHosted(value_bytes_);
  plan_->metrics->parameter_bytes -= static_cast<int64_t>(value_bytes_);
  --plan_->metrics->partitions;
  memory_->ReturnWaiting(waiting_bytes_);
}

// A partition that stopped for lack of memory has the values of its last update.
std::unique_ptr<EndedPartition> PartitionHost::End(std::optional<uint64_t> keep_version) {
  ObserveGone();
  const PartitionStatus status = core_.Status();
  EndedPartition::Position position{
      core_.config().run,        core_.config().partition,
      ViewNumber(status.view()), RosterNumber(status.roster()),
      Lsn(status.lsn()),         two_versions_ ? keep_version : std::nullopt};
  std::map<SliceId, EndedPartition::Slice> slices;
  for (auto& [id, store] : slices_) {
    const bool chosen = position.version.has_value() && store.slice->kind != FROZEN;
    const size_t kept = chosen && !DefenceMasked(Defence::kKeepVersion) ? *position.version % 2
                        : two_versions_                                 ? store.current
                                                                        : 0;
    Value& value = store.versions[kept];
    if (store.cut.data == value.data) store.cut = {};  // so that it does not count as an old value
    slices[id] = {std::move(value.data), static_cast<uint32_t>(store.slice->elements),
                  value.digest};
    value = {};
  }
  return std::make_unique<EndedPartition>(position, std::move(slices), environment_.memory);
}

absl::Status PartitionHost::MakeFirstValues() {
  for (const SliceId id : plan_->layout.partitions[core_.config().partition.value]) {
    SliceStore& store = slices_[id];
    store.slice = &plan_->layout.slices[id.value];
    store.rule = &plan_->rules[id.value];
    const size_t elements = store.slice->elements;
    STARLING_ASSIGN_OR_RETURN(store.versions[0].data, Allocate(*memory_, elements));
    STARLING_RETURN_IF_ERROR(plan_->first_values(*store.slice, store.versions[0].data.get()));
    if (store.slice->kind == FROZEN) continue;
    if (two_versions_) {
      STARLING_ASSIGN_OR_RETURN(store.versions[1].data, Allocate(*memory_, elements));
      std::memset(store.versions[1].data.get(), 0, elements * sizeof(float));
    }
    for (int slot = 0; slot < store.rule->slots(); ++slot) {
      std::shared_ptr<float>& memory = slot == 0 ? store.slot0 : store.slot1;
      STARLING_ASSIGN_OR_RETURN(memory, Allocate(*memory_, elements));
      std::fill_n(memory.get(), elements, slot == 0 ? store.rule->first_slot0 : 0.0f);
    }
  }
  return absl::OkStatus();
}

void PartitionHost::OnFrame(std::shared_ptr<ShardConnection> connection, const FrameHeader& header,
                            ReceivedPayload payload, absl::Time arrived) {
  if (!fault_.empty()) return SendRefusal(*connection, header, Answer::kNotHosted, fault_);
  const ConnectionId id = connection->id();
  connections_.try_emplace(id, std::move(connection));
  if (header.type == FrameType::kPush) {
    const absl::Duration queued = owner_->Now() - arrived;
    ++times_.pushes;
    times_.received_bytes += payload.size();
    times_.queue += queued;
    plan_->metrics->received_bytes += payload.size();
    plan_->metrics->queue_us += static_cast<uint64_t>(absl::ToInt64Microseconds(queued));
  }
  BufferId buffer;
  bool may_wait = true;
  if (payload.size() > 0) {
    may_wait = memory_->ReserveWaiting(payload.size());
    if (may_wait) waiting_bytes_ += payload.size();
    buffer = BufferId(++last_buffer_);
    const size_t elements = payload.size() / sizeof(float);
    buffers_.emplace(buffer, Buffer{std::move(payload), nullptr, elements, header, arrived});
    new_buffers_.push_back(buffer);
  }
  Handle(FrameReceived{id, header, buffer, may_wait});
}

void PartitionHost::OnConnectionDown(ConnectionId connection) {
  if (connections_.erase(connection) > 0) Handle(ConnectionDown{connection});
}

void PartitionHost::OnOrders(OrdersReceived orders) {
  at_once_ = true;
  Handle(std::move(orders));
}

void PartitionHost::OnDecision(const FrameHeader& answer, std::string text) {
  Handle(DecisionReceived{answer, std::move(text)});
}

void PartitionHost::OnTick() {
  if (paused_.has_value()) return;
  Handle(ShardTick{});
  changed_ = changed_ || core_.HoldsTrainingPulls();
  PublishIfDue(true);
}

void PartitionHost::Handle(PartitionEvent event) {
  if (!fault_.empty()) return PublishIfDue(false);
  if (!std::holds_alternative<ShardTick>(event)) changed_ = true;
  arrived_.push_back(std::move(event));
  if (!paused_.has_value()) HandleWaiting();
}

void PartitionHost::HandleWaiting() {
  const absl::Time now = owner_->Now();
  while (fault_.empty() && !paused_.has_value()) {
    std::deque<PartitionEvent>& from = events_.empty() ? arrived_ : events_;
    if (from.empty()) break;
    const PartitionEvent next = std::move(from.front());
    from.pop_front();
    PartitionActions actions;
    core_.Step(next, now, actions);
    if (environment_.observer != nullptr) environment_.observer->OnStep(core_, next, actions);
    Carry(std::move(actions), 0);
  }
  if (paused_.has_value()) return;
  MoveNewBuffers();
  const uint64_t waiting = core_.parked_bytes();
  memory_->ReturnWaiting(waiting_bytes_ - waiting);
  waiting_bytes_ = waiting;
  // The coordinator waits for cuts, and for partitions that have drained for a policy.
  const PartitionCounters& counters = core_.counters();
  if (std::exchange(cuts_reported_, counters.cuts) != counters.cuts) at_once_ = true;
  if (std::exchange(drains_reported_, counters.drains) != counters.drains) at_once_ = true;
  PublishIfDue(false);
}

HostedSlice PartitionHost::Hosted(SliceId id, const SliceStore& store) {
  const auto floats = [&](const std::shared_ptr<float>& data) {
    return absl::MakeConstSpan(data.get(), data == nullptr ? 0 : store.slice->elements);
  };
  return {id,
          floats(store.versions[store.current].data),
          floats(store.versions[1 - store.current].data),
          {floats(store.slot0), floats(store.slot1)}};
}

void PartitionHost::ObserveGone() const {
  if (environment_.observer == nullptr) return;
  std::vector<HostedSlice> slices;
  for (const auto& [id, store] : slices_) slices.push_back(Hosted(id, store));
  environment_.observer->OnGone(core_, slices);
}

void PartitionHost::Carry(PartitionActions actions, size_t next) {
  for (; next < actions.size(); ++next) {
    std::visit([this](const auto& a) { Do(a); }, actions[next]);
    if (missing_ > 0) return Pause(std::move(actions), next);
    memory_deadline_ = absl::InfinitePast();
    if (!std::holds_alternative<SendFrame>(actions[next])) changed_ = true;
  }
}

// The action has changed nothing. No job may fail because streams hold memory without sending it,
// so they are closed first, and what they were sending is free soon.
void PartitionHost::Pause(PartitionActions actions, size_t next) {
  constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(1);
  const absl::Time now = owner_->Now();
  if (memory_deadline_ == absl::InfinitePast() && relieved_)
    memory_deadline_ = now + ShardMemory::kClosedAfter;
  if (now >= memory_deadline_) return OutOfMemory();
  missing_ = 0;
  relieved_ = false;
  paused_ = Paused{std::move(actions), next};
  paused_->timer = owner_->PostAfter(kLookAgainAfter, [this] { Resume(); });
}

void PartitionHost::Resume() {
  Paused paused = *std::move(paused_);
  paused_.reset();
  Carry(std::move(paused.actions), paused.next);
  if (!paused_.has_value()) HandleWaiting();
}

void PartitionHost::PublishIfDue(bool tick) {
  if (!at_once_ && !(tick && changed_)) return;
  PartitionStatus status = core_.Status();
  AddTimes(status);
  if (!fault_.empty()) status.set_fault(fault_);
  status.set_bsp_bytes_more(plan_->BspBytesMore(core_.config().partition));
  environment_.report(status, at_once_);
  at_once_ = false;
  changed_ = false;
}

void PartitionHost::AddTimes(PartitionStatus& status) const {
  PartitionTimes& times = *status.mutable_times();
  times.set_pushes(times_.pushes);
  times.set_received_bytes(times_.received_bytes);
  times.set_sent_bytes(times_.sent_bytes);
  times.set_queue(absl::ToDoubleSeconds(times_.queue));
  times.set_verify(absl::ToDoubleSeconds(times_.verify));
  times.set_apply(absl::ToDoubleSeconds(times_.apply));
  times.set_applies(times_.applies);
}

// False: there is no memory, and the buffer stays where it is. `relieve`: streams may be closed to
// free memory.
bool PartitionHost::MoveToOwnMemory(Buffer& buffer, bool relieve) {
  if (buffer.own != nullptr) return true;
  const size_t elements = (buffer.received.size() + sizeof(float) - 1) / sizeof(float);
  buffer.own = relieve ? AllocateOrRelieve(elements) : memory_->Allocate(elements);
  if (buffer.own == nullptr) return false;
  buffer.received.CopyTo(buffer.own.get());
  buffer.received = ReceivedPayload();
  return true;
}

// Moves buffers that the core keeps beyond the event: sums that wait for siblings, frames that wait
// for orders. A buffer without memory holds back the sender's credit and is tried again after the
// next event.
void PartitionHost::MoveNewBuffers() {
  std::erase_if(new_buffers_, [this](BufferId id) {
    const auto it = buffers_.find(id);
    return it == buffers_.end() || MoveToOwnMemory(it->second, /*relieve=*/false);
  });
}

// The values are those of the last update. The rest of the step's actions are dropped, so the core
// must not be stepped again.
void PartitionHost::OutOfMemory() {
  fault_ = absl::StrCat("the shard has no memory for ", missing_, " more elements (",
                        memory_->allocated() >> 20,
                        " MiB are in use): add shards or memory, or look for stalled readers");
  spdlog::error("job {} partition {} stopped: {}", plan_->description.spec().name(),
                core_.config().partition.value, fault_);
  missing_ = 0;
  RefuseArrived(fault_);
  events_.clear();
  at_once_ = true;
}

// Refuses frames that arrived while the partition was paused.
void PartitionHost::RefuseArrived(const std::string& why) {
  for (const PartitionEvent& event : arrived_) {
    const auto* const frame = std::get_if<FrameReceived>(&event);
    if (frame == nullptr) continue;
    const auto connection = connections_.find(frame->connection);
    if (connection == connections_.end()) continue;
    SendRefusal(*connection->second, frame->header, Answer::kNotHosted, why);
  }
  arrived_.clear();
}

template <typename Fn>
void PartitionHost::WithPayload(const Buffer& buffer, Fn&& fn) {
  if (buffer.own == nullptr) return fn(buffer.received.pieces());
  const PayloadPiece piece(reinterpret_cast<const uint8_t*>(buffer.own.get()),
                           buffer.elements * sizeof(float));
  fn(Payload(&piece, 1));
}

void PartitionHost::Do(const Verify& action) {
  const Buffer& buffer = buffers_.at(action.payload);
  const Stopwatch watch(owner_);
  WithPayload(buffer, [&](Payload payload) {
    const PayloadVerdict verdict = VerifyPayload(payload);
    events_.push_back(Verified{action.payload, verdict.digest, verdict.first_non_finite});
  });
  times_.verify += watch.elapsed();
  plan_->metrics->push.ObserveMicros(
      static_cast<uint64_t>(absl::ToInt64Microseconds(owner_->Now() - buffer.arrived)));
  spans_->Record(absl::StrCat("push slice ", action.slice.value), SpanCategory::kPush,
                 watch.begin_us(), SpanRing::NowMicros(),
                 {buffer.header.clock, action.slice.value,
                  FlowOf(plan_->run, action.slice, buffer.header.key.work, micro_batches_)});
}

void PartitionHost::Do(const MergeSums& action) {
  Buffer& into = buffers_.at(action.into);
  if (!MoveToOwnMemory(into, /*relieve=*/true)) {
    missing_ = into.elements;
    return;
  }
  const Stopwatch watch(owner_);
  WithPayload(buffers_.at(action.from), [&](Payload payload) {
    into.first_non_finite = AddPayload(payload, into.own.get());
  });
  times_.apply += watch.elapsed();
}

void PartitionHost::Do(const Measure& action) {
  const Stopwatch watch(owner_);
  WithPayload(buffers_.at(action.payload), [&](Payload payload) {
    const PayloadMeasure measure = MeasurePayload(payload);
    events_.push_back(Measured{action.payload, measure.norm2, measure.first_non_finite});
  });
  times_.verify += watch.elapsed();
}

void PartitionHost::Do(const ReportNorm& action) { environment_.send_report(action.header); }

void PartitionHost::Do(const Replicate& action) {
  // Orders with a backup are refused before they reach the core.
  spdlog::critical("a record at {} is to be replicated, but there is no replication",
                   action.record.lsn.value);
  std::abort();
}

// Returns `reuse`, if given and no stream holds it, or new memory. If there is none, closes streams
// to free some. Null: none is free yet; relieved_ is set if streams were closed.
std::shared_ptr<float> PartitionHost::AllocateOrRelieve(size_t elements,
                                                        const std::shared_ptr<float>* reuse) {
  const auto take = [&] {
    return reuse != nullptr && OnlyOurs(*reuse) ? *reuse : memory_->Allocate(elements);
  };
  std::shared_ptr<float> memory = take();
  while (memory == nullptr && memory_->CloseWorst(elements * sizeof(float), /*any=*/true)) {
    relieved_ = true;
    memory = take();
  }
  return memory;
}

// The slice's value is about to be replaced or dropped. If streams still have to send it, it
// becomes an old value.
void PartitionHost::LetGo(const SliceStore& store, const Value& value) {
  if (value.data == nullptr) return;
  int64_t ours = 0;
  for (const Value* own : {&store.versions[0], &store.versions[1], &store.cut}) {
    if (own->data == value.data) ++ours;
  }
  if (value.data.use_count() > ours) memory_->Retire(value.data);
}

void PartitionHost::Do(const ApplyNow& action) {
  const int64_t first_non_finite = buffers_.at(action.payload).first_non_finite;
  if (first_non_finite >= 0) {
    events_.push_back(Applied{action.record.lsn, first_non_finite});
    return;
  }
  const Stopwatch watch(owner_);
  SliceStore& store = slices_.at(action.record.slice);
  const uint32_t into = two_versions_ ? (action.version + 1) % 2 : 0;
  const Value& from = store.versions[two_versions_ ? action.version % 2 : 0];
  // In place, or in new memory while the old value is still read.
  std::shared_ptr<float> out = AllocateOrRelieve(store.slice->elements, &store.versions[into].data);
  if (out == nullptr) {
    missing_ = store.slice->elements;
    return;
  }
  if (environment_.apply_wait > absl::ZeroDuration()) absl::SleepFor(environment_.apply_wait);
  if (action.record.skipped) {
    if (out != from.data)
      std::memcpy(out.get(), from.data.get(), store.slice->elements * sizeof(float));
  } else {
    WithPayload(buffers_.at(action.payload), [&](Payload payload) {
      ApplyUpdate(*store.rule, action.record.scalars, payload,
                  {from.data.get(), out.get(), store.slot0.get(), store.slot1.get(),
                   store.slice->elements});
    });
  }
  if (out != store.versions[into].data) LetGo(store, store.versions[into]);
  store.versions[into] = Value{std::move(out), 0};
  store.current = into;
  if (environment_.observer != nullptr) {
    WithPayload(buffers_.at(action.payload), [&](Payload payload) {
      environment_.observer->OnCarriedOut(core_, action.record, payload,
                                          Hosted(action.record.slice, store));
    });
  }
  events_.push_back(Applied{action.record.lsn});
  const absl::Duration took = watch.elapsed();
  times_.apply += took;
  ++times_.applies;
  plan_->metrics->apply.ObserveMicros(static_cast<uint64_t>(absl::ToInt64Microseconds(took)));
  spans_->Record(absl::StrCat("apply slice ", action.record.slice.value), SpanCategory::kApply,
                 watch.begin_us(), SpanRing::NowMicros(),
                 {action.record.clock, action.record.slice.value,
                  FlowOf(plan_->run, action.record.slice, action.record.work, micro_batches_)});
}

// Allocates everything before anything is moved. False: there is no memory for missing_ elements.
// Memory that was allocated is kept for the next attempt.
bool PartitionHost::TakeMemoryForTwoVersions() {
  for (const auto& [id, store] : slices_) {
    if (store.slice->kind == FROZEN) continue;
    std::shared_ptr<float>& second = second_versions_[id];
    if (second == nullptr) second = AllocateOrRelieve(store.slice->elements);
    if (second != nullptr) continue;
    missing_ = store.slice->elements;
    return false;
  }
  return true;
}

// Moves the newest value to where the next policy expects it.
void PartitionHost::Do(const SwitchPolicy& action) {
  const bool kept = two_versions_ == action.two_versions;  // it is already there
  if (!kept && action.two_versions && !TakeMemoryForTwoVersions()) return;
  spdlog::info("job {} partition {} follows policy {} from step {}",
               plan_->description.spec().name(), core_.config().partition.value,
               action.number.value, action.version);
  if (kept) return;
  two_versions_ = action.two_versions;
  for (auto& [id, store] : slices_) {
    if (store.slice->kind == FROZEN) continue;
    LetGo(store, store.versions[1 - store.current]);
    Value newest = std::move(store.versions[store.current]);
    store.versions = {};
    store.current = action.two_versions ? action.version % 2 : 0;
    store.versions[store.current] = std::move(newest);
    if (!action.two_versions) continue;
    Value& other = store.versions[1 - store.current];
    other.data = std::move(second_versions_.at(id));
    std::memset(other.data.get(), 0, store.slice->elements * sizeof(float));
  }
  second_versions_.clear();
}

// The copy is a reference, so the slice's next update goes to new memory.
void PartitionHost::Do(const CopyForCut&) {
  for (auto& [id, store] : slices_) {
    store.cut = store.versions[store.current];
    if (DefenceMasked(Defence::kSlotsByRecords) && store.slot0 != nullptr)
      store.slot0.get()[0] += 1;
  }
}

void PartitionHost::Do(const DropCopy&) {
  for (auto& [id, store] : slices_) {
    if (store.cut.data != store.versions[0].data && store.cut.data != store.versions[1].data) {
      LetGo(store, store.cut);
    }
    store.cut = Value();
  }
}

void PartitionHost::Do(const SendFrame& action) {
  const auto connection = connections_.find(action.connection);
  if (connection == connections_.end()) return;
  FrameHeader header = action.header;
  OutgoingPayload payload;
  if (!action.text.empty()) payload = TextPayload(action.text, &header);
  connection->second->Send(header, std::move(payload), -1);
}

void PartitionHost::Do(const SendValue& action) {
  const auto connection = connections_.find(action.connection);
  if (connection == connections_.end()) return;
  const uint64_t begin = SpanRing::NowMicros();
  const SliceId id = action.header.key.slice;
  SliceStore& store = slices_.at(id);
  const bool two_versions = two_versions_ && store.slice->kind != FROZEN;
  Value& value = action.source == ValueSource::kCutCopy
                     ? store.cut
                     : store.versions[two_versions ? action.version % 2 : 0];
  FrameHeader header = action.header;
  OutgoingPayload payload = ValuePayload(value.data, store.slice->elements, &value.digest, &header);
  times_.sent_bytes += header.payload_bytes;
  plan_->metrics->sent_bytes += header.payload_bytes;
  if (IsTrainingPull(header)) plan_->metrics->pull.ObserveMicros(header.held_us);
  // In forward order: slices that are needed first are sent first.
  connection->second->Send(header, std::move(payload), id.value);
  spans_->Record(absl::StrCat("value slice ", id.value), SpanCategory::kPull, begin,
                 SpanRing::NowMicros(), {header.clock, id.value, 0});
}

void PartitionHost::Do(const Release& action) { buffers_.erase(action.buffer); }

void PartitionHost::Do(const ReportFault& action) {
  spdlog::error("job {} partition {} stopped: {}", plan_->description.spec().name(),
                core_.config().partition.value, action.message);
  at_once_ = true;
}

}  // namespace starling
