// One decision for a whole step of the job. Sealed sums are held; their norm, and whether a
// gradient overflowed, are reported to partition 0, which answers with its decision.
// docs/protocol.md, section 9.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/defences.h"
#include "common/placement/layout.h"
#include "server/shard/core/partition.h"

namespace starling {
namespace {

constexpr char kNotFp16[] = "a skipped step; the job's precision is not fp16";

}  // namespace

// ---- The waiting partition --------------------------------------------------------------------

void Partition::Hold(Record record, BufferId sum, Waiters waiters) {
  ++counters_.held_sums;
  if (held_.empty()) held_.Begin(UndecidedSlices(record.clock));
  std::optional<double> norm2;
  if (FindSlice(record.slice)->info.clipped) {
    Do(Measure{record.slice, sum});
  } else {
    norm2 = 0;
  }
  held_.Add({std::move(record), sum, std::move(waiters), norm2});
}

void Partition::On(const Measured& measured) {
  HeldStep::Sum* sum = held_.FindPayload(measured.payload);
  if (sum == nullptr) return;
  if (measured.first_non_finite < 0 || DefenceMasked(Defence::kFiniteCheck)) {
    sum->norm2 = measured.norm2;
    return;
  }
  if (!fault_.empty()) return;
  fault_ = OverflowText(sum->record.slice, measured.first_non_finite, held_.step());
  diverged_ = true;
  Do(ReportFault{fault_, Origin()});
  RefuseHeld(Answer::kStopped, fault_);
}

void Partition::RefuseHeld(Answer answer, const std::string& text) {
  for (auto& [slice, held] : held_.Take()) {
    for (const Waiter& waiter : held.waiters) Refuse(waiter, answer, text, waiter.request.clock);
    Do(Release{held.payload});
  }
}

std::string Partition::OverflowText(SliceId slice, int64_t element, int64_t step) const {
  return absl::StrCat("the sum of the workers' gradients is not finite for ",
                      config_.name_of_element(slice, static_cast<uint32_t>(element)), " in step ",
                      step, ", although each worker's own was: it overflowed");
}

std::string Partition::NotFiniteText(SliceId slice, int64_t element, int64_t step) const {
  return absl::StrCat("the update of step ", step, ", or one of the ", kUpdatesToLook - 1,
                      " of these parameters before it, makes ",
                      config_.name_of_element(slice, static_cast<uint32_t>(element)),
                      ", or what the optimizer keeps for it, not finite, although the gradient "
                      "was: it is too large, or the values are (a gradient above 1e19 has an "
                      "infinite square)");
}

// Slices of which the log has no decided sum for the step yet. These are all, unless the previous
// primary died when its backup had some of them. Then the step is decided, and the answer does not
// depend on what is reported.
size_t Partition::UndecidedSlices(Clock step) const {
  return static_cast<size_t>(std::ranges::count_if(slices_, [&](const auto& slice) {
    return slice.second.info.decided &&
           ordered_.slice(slice.first).updates == static_cast<uint64_t>(step);
  }));
}

// Reports and answers may get lost, so the report is repeated, until the coordinator has another
// partition lead or the link is back.
void Partition::TryReport() {
  if (!fault_.empty() || held_.empty()) return;
  const std::optional<StepReport> whole = held_.Whole();
  if (!whole.has_value()) return;
  if (held_.reported()) {
    if (now_ < held_.next_report()) return;
    if (DefenceMasked(Defence::kReportRepeat)) return held_.Reported(now_ + kReportPeriod);
    ++counters_.repeated_reports;
  }
  held_.Reported(now_ + kReportPeriod);
  FrameHeader header;
  header.type = FrameType::kDecision;
  header.key.run = config_.run;
  header.partition = kDecidingPartition;
  header.view = decider_view_;
  header.reporter = config_.partition;
  header.clock = held_.step();
  header.scalar = whole->norm2;
  if (whole->overflowed.has_value()) {
    header.flags = frame_flags::kSkipped;
    header.origin = *whole->overflowed;
  }
  Do(ReportNorm{header});
}

// Empty: the decider answers, or nothing is held.
std::string Partition::UndecidedText() const {
  if (held_.unanswered() < kUnansweredReports) return "";
  return absl::StrCat("step ", held_.step(), " waits for the decision by partition ",
                      kDecidingPartition.value, " (view ", decider_view_.value,
                      "): ", held_.last_error().empty() ? "no answer" : held_.last_error());
}

void Partition::On(const DecisionReceived& decision) {
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
  const bool skipped = (h.flags & frame_flags::kSkipped) != 0;
  if (skipped && !config_.scales_loss) return held_.Refused(kNotFp16);
  // All gradients of a step were computed with the present scale.
  LossScale::State loss_scale;
  if (held_.Find(kLossScaleSlice) != nullptr &&
      !NextLossScale(kLossScaleSlice, skipped, ordered_.loss_scale().log2, held_.step(), h.origin,
                     &loss_scale)) {
    return RefuseHeld(Answer::kStopped, fault_);
  }
  for (auto& [slice, sum] : held_.Take()) {
    if (!DefenceMasked(Defence::kSkipTogether)) sum.record.skipped = skipped;
    if (sum.record.skipped) sum.record.origin = h.origin;
    if (slice == kLossScaleSlice) sum.record.loss_scale = loss_scale;
    sum.record.scalars.scale *= static_cast<float>(h.scalar);
    Order(std::move(sum.record), sum.payload, std::move(sum.waiters));
  }
}

// ---- The deciding partition -------------------------------------------------------------------

void Partition::OnReport(const FrameReceived& frame) {
  const FrameHeader& h = frame.header;
  const auto refuse = [&](Answer answer, std::string text) {
    Refuse(frame, {Verdict::kRefuse, answer, std::move(text)});
  };
  if (view_.value == 0 || !decider_.has_value() || h.partition != config_.partition) {
    return refuse(Answer::kNotHosted, absl::StrCat("partition ", h.partition.value,
                                                   " decides nothing here (yet): try again"));
  }
  if (h.key.run != config_.run) return refuse(Answer::kStaleRun, "this is another run");
  if (h.view < since_ || h.view > view_ || !IsPrimary())
    return refuse(Answer::kStaleView, StaleViewText(h));
  if (log_stopped_) return refuse(Answer::kStopped, fault_);
  if (h.clock >= static_cast<Clock>(config_.steps)) {
    return refuse(Answer::kBadFrame,
                  absl::StrCat("step ", h.clock, "; the job has ", config_.steps, " steps"));
  }
  const bool skipped = (h.flags & frame_flags::kSkipped) != 0;
  if (skipped && !config_.scales_loss) return refuse(Answer::kBadFrame, kNotFp16);
  const Waiter waiter{frame.connection, h};
  StepReport report{h.scalar, std::nullopt};
  if (skipped) report.overflowed = h.origin;
  switch (decider_->Report(h.reporter, h.clock, report)) {
    case StepDecider::Outcome::kWaits: reporters_.insert_or_assign(h.reporter, waiter); return;
    case StepDecider::Outcome::kRepeated:
      ++counters_.duplicate_reports;
      reporters_.insert_or_assign(h.reporter, waiter);
      return AnswerReport(waiter, Answer::kNone, {h.clock, 0});
    case StepDecider::Outcome::kComplete:
      reporters_.insert_or_assign(h.reporter, waiter);
      return OrderDecision();
    case StepDecider::Outcome::kDecided:
      ++counters_.duplicate_reports;
      if (!applied_.decided().has_value() || applied_.decided()->step != h.clock) {
        reporters_.insert_or_assign(h.reporter, waiter);  // the decision has not taken effect yet
        return AnswerReport(waiter, Answer::kNone, {h.clock, 0});
      }
      return AnswerReport(waiter, Answer::kCounted, *applied_.decided());
    case StepDecider::Outcome::kOtherStep:
      return refuse(Answer::kStaleClock, absl::StrCat("step ", h.clock, "; step ", decider_->step(),
                                                      " is decided next"));
    case StepDecider::Outcome::kOtherNorm:
      return refuse(Answer::kBadFrame, absl::StrCat("partition ", h.reporter.value,
                                                    " reported something else about step ", h.clock,
                                                    " before: run the same release everywhere"));
    case StepDecider::Outcome::kBadNorm:
      return refuse(Answer::kBadFrame, absl::StrCat("a squared norm of ", h.scalar,
                                                    "; expected a finite number, at least 0"));
    case StepDecider::Outcome::kStranger:
      return refuse(Answer::kBadFrame,
                    absl::StrCat("partition ", h.reporter.value, " has nothing to report"));
  }
}

void Partition::OrderDecision() {
  const Clock step = decider_->step();
  const uint64_t steps = config_.FullSteps();
  const uint64_t micro = config_.micro_batches;
  const WorkRange item{WorkPurpose::kTrain,
                       static_cast<uint32_t>(static_cast<uint64_t>(step) / steps),
                       static_cast<uint64_t>(step) % steps * micro, config_.micro_batches};
  const double samples = static_cast<double>(config_.SamplesIn(item));
  ++counters_.decisions;
  Record record;
  record.kind = RecordKind::kDecision;
  record.clock = step;
  const StepReport whole = decider_->Decide();
  if (whole.overflowed.has_value()) {
    record.skipped = true;
    record.origin = *whole.overflowed;
  } else if (config_.clip_norm > 0) {
    record.scalars.scale =
        ClipScale(config_.clip_norm, whole.norm2, static_cast<double>(config_.batch) / samples);
  }
  Order(std::move(record), BufferId(), {});
}

void Partition::FinishDecision() {
  for (const auto& [partition, waiter] : std::exchange(reporters_, {}))
    AnswerReport(waiter, Answer::kCounted, *applied_.decided());
}

void Partition::AnswerReport(const Waiter& waiter, Answer answer, const StepDecision& decision) {
  SendFrame send{waiter.connection, AnswerTo(waiter.request, FrameType::kDecision, answer), ""};
  send.header.scalar = decision.scale;
  send.header.flags = decision.skipped.has_value() ? frame_flags::kSkipped : 0;
  send.header.origin = decision.skipped.value_or(Origin());
  Do(std::move(send));
}

}  // namespace starling
