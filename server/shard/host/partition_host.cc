#include "server/shard/host/partition_host.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/trace/flow.h"
#include "server/shard/apply/measure.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

// Of a VALUE, which repeats what the pull said.
bool IsTrainingPull(const FrameHeader& value) {
  return value.key.work.purpose != WorkPurpose::kEvaluate &&
         (value.flags & frame_flags::kReader) == 0;
}

absl::Span<const uint8_t> AsBytes(const float* values, size_t elements) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values), elements * sizeof(float));
}

// Also true when the last other holder, on another thread, has just let go; then its reads came
// before our writes.
bool OnlyOurs(const std::shared_ptr<float>& data) {
  if (data.use_count() != 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

absl::StatusOr<std::shared_ptr<float>> Allocate(ShardMemory& from, size_t elements) {
  std::shared_ptr<float> memory = from.Allocate(elements);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", elements, " elements"));
  }
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartitionHost>> PartitionHost::Create(
    std::shared_ptr<const ShardJobPlan> plan, PartitionId partition, ShardId self,
    std::shared_ptr<ShardMemory> memory, SpanRing* spans, Report report, SendReport send_report) {
  STARLING_ASSIGN_OR_RETURN(PartitionConfig config,
                            MakePartitionConfig(plan->description, plan->layout, partition, self));
  std::unique_ptr<PartitionHost> host(new PartitionHost(std::move(plan), std::move(config),
                                                        std::move(memory), spans, std::move(report),
                                                        std::move(send_report)));
  STARLING_RETURN_IF_ERROR(host->MakeFirstValues());
  host->PublishIfDue(false);
  return host;
}

PartitionHost::PartitionHost(std::shared_ptr<const ShardJobPlan> plan, PartitionConfig config,
                             std::shared_ptr<ShardMemory> memory, SpanRing* spans, Report report,
                             SendReport send_report)
    : plan_(std::move(plan)),
      memory_(std::move(memory)),
      spans_(spans),
      report_(std::move(report)),
      send_report_(std::move(send_report)),
      micro_batches_(config.micro_batches),
      two_versions_(plan_->bsp()),
      core_(std::move(config)) {
  for (const SliceId id : plan_->layout.partitions[core_.config().partition.value]) {
    value_bytes_ += plan_->layout.slices[id.value].elements * sizeof(float);
  }
  memory_->AddHosted(value_bytes_);
  plan_->metrics->parameter_bytes += static_cast<int64_t>(value_bytes_);
  ++plan_->metrics->partitions;
}

PartitionHost::~PartitionHost() {
  for (const auto& [id, store] : slices_) {
    for (const Value* value : {&store.versions[0], &store.versions[1], &store.cut})
      LetGo(store, *value);
  }
  memory_->RemoveHosted(value_bytes_);
  plan_->metrics->parameter_bytes -= static_cast<int64_t>(value_bytes_);
  --plan_->metrics->partitions;
  memory_->ReturnWaiting(waiting_bytes_);
}

// A partition that stopped for want of memory has the values of its last update.
std::unique_ptr<EndedPartition> PartitionHost::End(std::optional<uint64_t> keep_version) {
  const PartitionStatus status = core_.Status();
  EndedPartition::Position position{
      core_.config().run,        core_.config().partition,
      ViewNumber(status.view()), RosterNumber(status.roster()),
      Lsn(status.lsn()),         two_versions_ ? keep_version : std::nullopt};
  std::map<SliceId, EndedPartition::Slice> slices;
  for (auto& [id, store] : slices_) {
    const bool chosen = position.version.has_value() && store.slice->kind != FROZEN;
    size_t kept = chosen ? *position.version % 2 : two_versions_ ? store.current : 0;
    // Out of memory in mid-switch to BSP: the values are where they were.
    if (store.versions[kept].data == nullptr) kept = store.current;
    Value& value = store.versions[kept];
    if (store.cut.data == value.data) store.cut = {};  // it is not an old value
    slices[id] = {std::move(value.data), static_cast<uint32_t>(store.slice->elements),
                  value.digest};
    value = {};
  }
  return std::make_unique<EndedPartition>(position, std::move(slices), memory_);
}

absl::Status PartitionHost::MakeFirstValues() {
  for (const SliceId id : plan_->layout.partitions[core_.config().partition.value]) {
    SliceStore& store = slices_[id];
    store.slice = &plan_->layout.slices[id.value];
    store.rule = &plan_->rules[id.value];
    const size_t elements = store.slice->elements;
    STARLING_ASSIGN_OR_RETURN(store.versions[0].data, Allocate(*memory_, elements));
    STARLING_RETURN_IF_ERROR(plan_->first_values->Make(*store.slice, store.versions[0].data.get()));
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
                            ReceivedPayload payload, uint64_t arrived_us) {
  if (!fault_.empty()) return SendRefusal(*connection, header, Answer::kNotHosted, fault_);
  const ConnectionId id = connection->id();
  connections_.try_emplace(id, std::move(connection));
  if (header.type == FrameType::kPush) {
    const uint64_t queued_us = SpanRing::NowMicros() - arrived_us;
    ++times_.pushes;
    times_.received_bytes += payload.size();
    times_.queue_us += queued_us;
    plan_->metrics->received_bytes += payload.size();
    plan_->metrics->queue_us += queued_us;
  }
  BufferId buffer;
  bool may_wait = true;
  if (payload.size() > 0) {
    may_wait = memory_->ReserveWaiting(payload.size());
    if (may_wait) waiting_bytes_ += payload.size();
    buffer = BufferId(++last_buffer_);
    const size_t elements = payload.size() / sizeof(float);
    buffers_.emplace(buffer, Buffer{std::move(payload), nullptr, elements, header, arrived_us});
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
  Handle(ShardTick{});
  changed_ = changed_ || core_.HoldsTrainingPulls();
  PublishIfDue(true);
}

void PartitionHost::Handle(PartitionEvent event) {
  if (!fault_.empty()) return PublishIfDue(false);
  last_now_ = MonotonicNow();
  if (!std::holds_alternative<ShardTick>(event)) changed_ = true;
  events_.push_back(std::move(event));
  while (!events_.empty() && fault_.empty()) {
    const PartitionEvent next = std::move(events_.front());
    events_.pop_front();
    Carry(next);
  }
  for (const BufferId id : new_buffers_) MoveToOwnMemory(id);
  new_buffers_.clear();
  const uint64_t waiting = core_.parked_bytes();
  memory_->ReturnWaiting(waiting_bytes_ - waiting);
  waiting_bytes_ = waiting;
  if (core_.counters().cuts != cuts_reported_) {
    cuts_reported_ = core_.counters().cuts;
    at_once_ = true;
  }
  if (core_.counters().drains != drains_reported_) {
    drains_reported_ = core_.counters().drains;
    at_once_ = true;
  }
  PublishIfDue(false);
}

void PartitionHost::Carry(const PartitionEvent& event) {
  core_.Step(event, last_now_, actions_);
  PartitionActions actions;
  actions.swap(actions_);
  for (const PartitionAction& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
    if (!std::holds_alternative<SendFrame>(action)) changed_ = true;
    if (!fault_.empty()) return;
  }
}

void PartitionHost::PublishIfDue(bool tick) {
  if (!at_once_ && !(tick && changed_)) return;
  PartitionStatus status = core_.Status();
  AddTimes(status);
  if (!fault_.empty()) status.set_fault(fault_);
  status.set_bsp_bytes_more(plan_->BspBytesMore(core_.config().partition));
  report_(status, at_once_);
  at_once_ = false;
  changed_ = false;
}

void PartitionHost::AddTimes(PartitionStatus& status) const {
  PartitionTimes& times = *status.mutable_times();
  times.set_pushes(times_.pushes);
  times.set_received_bytes(times_.received_bytes);
  times.set_sent_bytes(times_.sent_bytes);
  times.set_queue(1e-6 * static_cast<double>(times_.queue_us));
  times.set_verify(1e-6 * static_cast<double>(times_.verify_us));
  times.set_apply(1e-6 * static_cast<double>(times_.apply_us));
  times.set_applies(times_.applies);
}

// What the core keeps beyond the event: sums that wait for siblings, frames that wait for orders.
// False, and they stay where they are, where there is no memory.
bool PartitionHost::MoveToOwnMemory(BufferId id) {
  const auto it = buffers_.find(id);
  if (it == buffers_.end() || it->second.own != nullptr) return true;
  Buffer& buffer = it->second;
  buffer.own = AllocateOrRelieve((buffer.received.size() + sizeof(float) - 1) / sizeof(float));
  if (buffer.own == nullptr) return false;
  buffer.received.CopyTo(buffer.own.get());
  buffer.received = ReceivedPayload();
  return true;
}

// Nothing was changed: the values are those of the last update. What is still to be done of the
// step is not, so the core must not be asked again.
void PartitionHost::OutOfMemory(size_t elements) {
  fault_ = absl::StrCat(
      "the shard has no memory for ", elements, " elements more (", memory_->allocated() >> 20,
      " MiB are in use): add shards, or memory, or look for readers that do not read");
  spdlog::error("job {} partition {} stopped: {}", plan_->description.spec().name(),
                core_.config().partition.value, fault_);
  events_.clear();
  at_once_ = true;
}

template <typename Fn>
void PartitionHost::WithPayload(const Buffer& buffer, Fn&& fn) {
  if (buffer.own == nullptr) return fn(buffer.received.pieces());
  const PayloadPiece piece = AsBytes(buffer.own.get(), buffer.elements);
  fn(Payload(&piece, 1));
}

PartitionHost::SliceStore& PartitionHost::Store(SliceId slice) { return slices_.at(slice); }

void PartitionHost::Do(const Verify& action) {
  const Buffer& buffer = buffers_.at(action.payload);
  const uint64_t begin = SpanRing::NowMicros();
  WithPayload(buffer, [&](Payload payload) {
    const PayloadVerdict verdict = VerifyPayload(payload);
    events_.push_back(Verified{action.payload, verdict.digest, verdict.first_non_finite});
  });
  const uint64_t end = SpanRing::NowMicros();
  times_.verify_us += end - begin;
  plan_->metrics->push.ObserveMicros(end - buffer.arrived_us);
  spans_->Record(absl::StrCat("push slice ", action.slice.value), SpanCategory::kPush, begin, end,
                 {buffer.header.clock, action.slice.value,
                  FlowOf(plan_->run, action.slice, buffer.header.key.work, micro_batches_)});
}

void PartitionHost::Do(const MergeSums& action) {
  Buffer& into = buffers_.at(action.into);
  if (!MoveToOwnMemory(action.into)) return OutOfMemory(into.elements);
  const uint64_t begin = SpanRing::NowMicros();
  WithPayload(buffers_.at(action.from), [&](Payload payload) {
    into.first_non_finite = AddPayload(payload, into.own.get());
  });
  times_.apply_us += SpanRing::NowMicros() - begin;
}

void PartitionHost::Do(const Measure& action) {
  const uint64_t begin = SpanRing::NowMicros();
  WithPayload(buffers_.at(action.payload), [&](Payload payload) {
    const PayloadMeasure measure = MeasurePayload(payload);
    events_.push_back(Measured{action.payload, measure.norm2, measure.first_non_finite});
  });
  times_.verify_us += SpanRing::NowMicros() - begin;
}

void PartitionHost::Do(const ReportNorm& action) { send_report_(action.header); }

void PartitionHost::Do(const Replicate& action) {
  // Orders with a backup are refused before they reach the core.
  spdlog::critical("a record at {} is to be replicated, but there is no replication",
                   action.record.lsn.value);
  std::abort();
}

// Where the next value may be written: in place, or new memory while somebody still reads the old;
// nullptr where there is none.
std::shared_ptr<float> PartitionHost::Writable(const Value& value, size_t elements) {
  return AllocateOrRelieve(elements, &value.data);
}

// `reuse`, if given, as soon as no stream has it, or new memory. No job ends because streams hold
// what they do not send: they end first. Blocks for kClosedAfter at most.
std::shared_ptr<float> PartitionHost::AllocateOrRelieve(size_t elements,
                                                        const std::shared_ptr<float>* reuse) {
  const auto take = [&] {
    return reuse != nullptr && OnlyOurs(*reuse) ? *reuse : memory_->Allocate(elements);
  };
  std::shared_ptr<float> memory = take();
  bool closed = false;
  while (memory == nullptr && memory_->CloseWorst(elements * sizeof(float), /*any=*/true)) {
    closed = true;
    memory = take();
  }
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoSeconds(ShardMemory::kClosedAfter);
  while (closed && memory == nullptr && std::chrono::steady_clock::now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    memory = take();
  }
  return memory;
}

// The slice's value is about to be replaced or dropped. Where streams have still to send it, it is
// theirs.
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
  const uint64_t begin = SpanRing::NowMicros();
  if (apply_wait_ > absl::ZeroDuration()) absl::SleepFor(apply_wait_);
  SliceStore& store = Store(action.record.slice);
  const uint32_t into = two_versions_ ? (action.version + 1) % 2 : 0;
  const Value& from = store.versions[two_versions_ ? action.version % 2 : 0];
  std::shared_ptr<float> out = Writable(store.versions[into], store.slice->elements);
  if (out == nullptr) return OutOfMemory(store.slice->elements);
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
  events_.push_back(Applied{action.record.lsn});
  const uint64_t end = SpanRing::NowMicros();
  times_.apply_us += end - begin;
  ++times_.applies;
  plan_->metrics->apply.ObserveMicros(end - begin);
  spans_->Record(absl::StrCat("apply slice ", action.record.slice.value), SpanCategory::kApply,
                 begin, end,
                 {action.record.clock, action.record.slice.value,
                  FlowOf(plan_->run, action.record.slice, action.record.work, micro_batches_)});
}

// The newest value goes to where the next policy looks for it.
void PartitionHost::Do(const SwitchPolicy& action) {
  spdlog::info("job {} partition {} follows policy {} from step {}",
               plan_->description.spec().name(), core_.config().partition.value,
               action.number.value, action.version);
  if (two_versions_ == action.two_versions) return;  // it is there already
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
    other.data = AllocateOrRelieve(store.slice->elements);
    if (other.data == nullptr) return OutOfMemory(store.slice->elements);
    std::memset(other.data.get(), 0, store.slice->elements * sizeof(float));
  }
}

// The copy is a reference: the next update of a slice that is kept so goes to new memory.
void PartitionHost::Do(const CopyForCut&) {
  for (auto& [id, store] : slices_) store.cut = store.versions[store.current];
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
  SliceStore& store = Store(id);
  const bool two_versions = two_versions_ && store.slice->kind != FROZEN;
  Value& value = action.source == ValueSource::kCutCopy
                     ? store.cut
                     : store.versions[two_versions ? action.version % 2 : 0];
  OutgoingPayload payload{AsBytes(value.data.get(), store.slice->elements), value.data};
  if (value.digest == 0) value.digest = VerifyPayload(Payload(&payload.bytes, 1)).digest;
  FrameHeader header = action.header;
  header.kind = PayloadKind::kDense;
  header.codec = Codec::kFp32;
  header.elements = store.slice->elements;
  header.payload_bytes = static_cast<uint32_t>(payload.bytes.size());
  header.digest = value.digest;
  times_.sent_bytes += header.payload_bytes;
  plan_->metrics->sent_bytes += header.payload_bytes;
  if (IsTrainingPull(header)) plan_->metrics->pull.ObserveMicros(header.held_us);
  // Forward order: the slices that are needed first are sent first.
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
