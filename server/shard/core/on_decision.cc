// One scale for a whole step of the job: sealed sums are held, their norm goes to partition 0, whose
// decision comes back. docs/protocol.md, section 9.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

// ---- The partition that waits -----------------------------------------------------------------

void Partition::Hold(LogRecord record, BufferId sum, Waiters waiters, PartitionActions& actions) {
  ++counters_.held_sums;
  actions.push_back(Measure{record.slice, sum});
  held_.Add({std::move(record), sum, std::move(waiters), std::nullopt});
}

void Partition::OnMeasured(const Measured& measured, PartitionActions& actions) {
  HeldStep::Sum* sum = held_.FindPayload(measured.payload);
  if (sum == nullptr) return;
  if (measured.first_non_finite < 0 || DefenceMasked(Defence::kFiniteCheck)) {
    sum->norm2 = measured.norm2;
    return;
  }
  if (!fault_.empty()) return;
  fault_ = OverflowText(sum->record.slice, measured.first_non_finite, held_.step());
  actions.push_back(ReportFault{fault_, Origin()});
  for (auto& [slice, held] : held_.Take()) {
    for (const Waiter& waiter : held.waiters)
      Refuse(waiter, Answer::kNonFinite, fault_, actions, waiter.request.clock);
    actions.push_back(Release{held.payload});
  }
}

std::string Partition::OverflowText(SliceId slice, int64_t element, int64_t step) const {
  return absl::StrCat("the sum of the workers' gradients is not finite for ",
                      config_.name_of_element(slice, static_cast<uint32_t>(element)), " in step ",
                      step, ", although each worker's own was: it overflowed");
}

// Whatever is lost on the way there or back is made up for by the next repetition.
void Partition::TryReport(absl::Time now, PartitionActions& actions) {
  if (!fault_.empty() || held_.empty()) return;
  const std::optional<double> norm2 = held_.Norm2(clipped_slices_);
  if (!norm2.has_value()) return;
  if (held_.reported()) {
    if (now < held_.next_report()) return;
    if (held_.unanswered() >= kUnansweredReportsMax) return StopWaiting(actions);
    if (DefenceMasked(Defence::kReportRepeat)) return held_.Reported(now + kReportPeriod);
    ++counters_.repeated_reports;
  }
  held_.Reported(now + kReportPeriod);
  FrameHeader header;
  header.type = FrameType::kDecision;
  header.key.run = config_.run;
  header.partition = kDecidingPartition;
  header.view = decider_view_;
  header.reporter = config_.partition;
  header.clock = held_.step();
  header.scalar = *norm2;
  actions.push_back(ReportNorm{header});
}

void Partition::StopWaiting(PartitionActions& actions) {
  fault_ = absl::StrCat("partition ", config_.partition.value, " waited ",
                        absl::FormatDuration(kDecisionDeadline), " for the decision about step ",
                        held_.step(), " by partition ", kDecidingPartition.value, " (view ",
                        decider_view_.value, "): ",
                        held_.last_error().empty() ? "no answer" : held_.last_error());
  actions.push_back(ReportFault{fault_, Origin()});
}

void Partition::OnDecision(const DecisionReceived& decision, PartitionActions& actions) {
  const FrameHeader& h = decision.header;
  const bool ours = h.key.run == config_.run && h.reporter == config_.partition;
  if (!ours || !held_.reported() ||
      (h.clock != held_.step() && !DefenceMasked(Defence::kDecisionStep))) {
    ++counters_.stale_decisions;
    return;
  }
  if (h.type != FrameType::kDecision) return held_.Refused(decision.text);
  if (h.answer == Answer::kNone) return held_.Heard();
  if (!(h.scalar >= 0 && h.scalar <= 1)) {
    return held_.Refused(absl::StrCat("a scale of ", h.scalar, "; expected 0 to 1"));
  }
  for (auto& [slice, sum] : held_.Take()) {
    sum.record.scalars.scale *= static_cast<float>(h.scalar);
    Order(std::move(sum.record), sum.payload, std::move(sum.waiters), actions);
  }
}

// ---- The partition that decides ---------------------------------------------------------------

void Partition::OnReport(const FrameReceived& frame, PartitionActions& actions) {
  const FrameHeader& h = frame.header;
  const auto refuse = [&](Answer answer, std::string text) {
    Refuse(frame, {Verdict::kRefuse, answer, std::move(text)}, actions);
  };
  if (view_.value == 0 || !decider_.has_value() || h.partition != config_.partition) {
    return refuse(Answer::kNotHosted, absl::StrCat("partition ", h.partition.value,
                                                   " decides nothing here (yet): try again"));
  }
  if (h.key.run != config_.run) return refuse(Answer::kStaleRun, "this is another run");
  if (h.view != view_ || primary_ != config_.self) {
    return refuse(Answer::kStaleView, absl::StrCat("view ", h.view.value, "; here is ", view_.value,
                                                   " on shard ", primary_.value));
  }
  const Waiter waiter{frame.connection, h};
  switch (decider_->Report(h.reporter, h.clock, h.scalar)) {
    case StepDecider::Outcome::kWaits:
      reporters_.insert_or_assign(h.reporter, waiter);
      return;
    case StepDecider::Outcome::kRepeated:
      ++counters_.duplicate_reports;
      reporters_.insert_or_assign(h.reporter, waiter);
      return AnswerReport(waiter, Answer::kNone, 0, actions);
    case StepDecider::Outcome::kComplete:
      reporters_.insert_or_assign(h.reporter, waiter);
      return OrderDecision(actions);
    case StepDecider::Outcome::kDecided:
      ++counters_.duplicate_reports;
      if (!decided_.has_value() || decided_->step != h.clock) {  // ordered and not committed yet
        reporters_.insert_or_assign(h.reporter, waiter);
        return;
      }
      return AnswerReport(waiter, Answer::kCounted, decided_->scale, actions);
    case StepDecider::Outcome::kOtherStep:
      return refuse(Answer::kStaleClock, absl::StrCat("step ", h.clock, "; step ", decider_->step(),
                                                      " is decided next"));
    case StepDecider::Outcome::kOtherNorm:
      return refuse(Answer::kBadFrame, absl::StrCat("partition ", h.reporter.value,
                                                    " reported another norm for step ", h.clock,
                                                    " before: run the same release everywhere"));
    case StepDecider::Outcome::kBadNorm:
      return refuse(Answer::kBadFrame, absl::StrCat("a squared norm of ", h.scalar,
                                                    "; expected a finite number, at least 0"));
    case StepDecider::Outcome::kStranger:
      return refuse(Answer::kBadFrame, absl::StrCat("partition ", h.reporter.value,
                                                    " has no gradients that are clipped"));
  }
}

void Partition::OrderDecision(PartitionActions& actions) {
  const Clock step = decider_->step();
  const uint64_t steps = config_.FullSteps();
  const uint64_t micro = config_.micro_batches;
  const WorkRange item{WorkPurpose::kTrain,
                       static_cast<uint32_t>(static_cast<uint64_t>(step) / steps),
                       static_cast<uint64_t>(step) % steps * micro, config_.micro_batches};
  const double samples = static_cast<double>(config_.SamplesIn(item));
  ++counters_.decisions;
  LogRecord record;
  record.kind = RecordKind::kDecision;
  record.clock = step;
  record.scalars.scale = ClipScale(config_.clip_norm, decider_->Decide(),
                                   static_cast<double>(config_.batch) / samples);
  Order(std::move(record), BufferId(), {}, actions);
}

void Partition::CommitDecision(const LogRecord& record, PartitionActions& actions) {
  decided_ = {record.clock, record.scalars.scale};
  for (const auto& [partition, waiter] : std::exchange(reporters_, {}))
    AnswerReport(waiter, Answer::kCounted, record.scalars.scale, actions);
}

void Partition::AnswerReport(const Waiter& waiter, Answer answer, float scale,
                             PartitionActions& actions) {
  SendFrame send{waiter.connection, AnswerTo(waiter.request, FrameType::kDecision, answer), ""};
  send.header.scalar = scale;
  actions.push_back(std::move(send));
}

}  // namespace starling
