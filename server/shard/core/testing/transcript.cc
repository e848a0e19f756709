#include "server/shard/core/testing/transcript.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace starling {
namespace {

const char* AnswerName(Answer answer) {
  switch (answer) {
    case Answer::kNone: return "none";
    case Answer::kCounted: return "counted";
    case Answer::kAlreadyCounted: return "already-counted";
    case Answer::kStaleRun: return "stale-run";
    case Answer::kStaleView: return "stale-view";
    case Answer::kStaleIncarnation: return "stale-incarnation";
    case Answer::kNotHosted: return "not-hosted";
    case Answer::kBadFrame: return "bad-frame";
    case Answer::kBadDigest: return "bad-digest";
    case Answer::kNonFinite: return "non-finite";
    case Answer::kStopped: return "stopped";
    case Answer::kOverBudget: return "over-budget";
    case Answer::kStaleClock: return "stale-clock";
  }
  return "unknown";
}

std::string WorkText(const WorkRange& work) {
  return absl::StrFormat("%s%d:[%d,%d)", work.purpose == WorkPurpose::kEvaluate ? "evaluate " : "",
                         work.epoch, work.first, work.first + work.count);
}

const char* CloseName(uint16_t flags) {
  if (flags & frame_flags::kEnter) return "enter";
  if (flags & frame_flags::kPark) return "park";
  if (flags & frame_flags::kSkip) return "skip";
  return "close";
}

const char* Skipped(uint16_t flags) { return flags & frame_flags::kSkipped ? " skipped" : ""; }

std::string RequestText(const FrameHeader& h) {
  switch (h.type) {
    case FrameType::kPush:
      return absl::StrFormat("push s%d %s%s", h.key.slice.value, WorkText(h.key.work),
                             Skipped(h.flags));
    case FrameType::kClose:
      if (h.flags != 0) return absl::StrFormat("%s clock %d", CloseName(h.flags), h.clock);
      return absl::StrFormat("close clock %d %s", h.clock, WorkText(h.key.work));
    case FrameType::kPull:
      if (h.key.work.purpose == WorkPurpose::kEvaluate) {
        return absl::StrFormat("pull s%d cut %d", h.key.slice.value, h.key.work.epoch);
      }
      return absl::StrFormat("pull s%d clock %d min_lsn %d", h.key.slice.value, h.clock,
                             h.min_lsn.value);
    case FrameType::kDecision:
      return absl::StrFormat("report of p%d step %d norm2 %g%s", h.reporter.value, h.clock,
                             h.scalar, Skipped(h.flags));
    case FrameType::kReplicate: return absl::StrCat("question in view ", h.view.value);
    default: return absl::StrCat("frame type ", static_cast<int>(h.type));
  }
}

std::string RecordText(const Record& r) {
  switch (r.kind) {
    case RecordKind::kApply:
      if (r.skipped) {
        return absl::StrFormat("lsn %d skip s%d %s by r%d", r.lsn.value, r.slice.value,
                               WorkText(r.work), r.origin.replica.value);
      }
      return absl::StrFormat("lsn %d apply s%d %s rate %g scale %g%s t %d lag %d", r.lsn.value,
                             r.slice.value, WorkText(r.work), r.scalars.rate, r.scalars.scale,
                             r.scalars.decay == 0 ? "" : absl::StrCat(" decay ", r.scalars.decay),
                             r.scalars.t, r.scalars.lag);
    case RecordKind::kClose:
      return absl::StrFormat("lsn %d %s r%d clock %d", r.lsn.value, CloseName(r.flags),
                             r.origin.replica.value, r.clock);
    case RecordKind::kRoster:
      return absl::StrFormat("lsn %d roster %d", r.lsn.value, r.roster.number.value);
    case RecordKind::kPolicy:
      return absl::StrFormat("lsn %d policy %d: %d(%d) at step %d", r.lsn.value,
                             r.policy.number.value, static_cast<int>(r.policy.policy.kind),
                             r.policy.policy.staleness, r.policy.step);
    case RecordKind::kCut: return absl::StrFormat("lsn %d cut %d", r.lsn.value, r.work.epoch);
    case RecordKind::kDecision:
      return absl::StrFormat("lsn %d decision step %d %s", r.lsn.value, r.clock,
                             r.skipped ? "skipped" : absl::StrFormat("scale %g", r.scalars.scale));
  }
  return "unknown record";
}

std::string PayloadText(BufferId payload) {
  return payload.value == 0 ? "" : absl::StrCat(" b", payload.value);
}

struct EventText {
  std::string operator()(const FrameReceived& e) const {
    return absl::StrFormat("c%d r%d.%d %s%s", e.connection.value, e.header.origin.replica.value,
                           e.header.origin.incarnation.value, RequestText(e.header),
                           PayloadText(e.payload));
  }
  std::string operator()(const Verified& e) const {
    return e.first_non_finite < 0
               ? absl::StrCat("verified b", e.payload.value)
               : absl::StrCat("verified b", e.payload.value, " non-finite at ", e.first_non_finite);
  }
  std::string operator()(const Measured& e) const {
    return e.first_non_finite < 0
               ? absl::StrFormat("measured b%d norm2 %g", e.payload.value, e.norm2)
               : absl::StrCat("measured b", e.payload.value, " non-finite at ", e.first_non_finite);
  }
  std::string operator()(const DecisionReceived& e) const {
    if (e.header.type != FrameType::kDecision) return absl::StrCat("refused report: ", e.text);
    if (e.header.answer == Answer::kNone) return absl::StrCat("undecided step ", e.header.clock);
    return absl::StrFormat("decided step %d scale %g%s", e.header.clock, e.header.scalar,
                           Skipped(e.header.flags));
  }
  std::string operator()(const Applied& e) const {
    if (e.first_non_finite >= 0)
      return absl::StrFormat("not applied %d: non-finite at %d", e.lsn.value, e.first_non_finite);
    if (e.new_non_finite >= 0)
      return absl::StrFormat("applied %d: non-finite at %d", e.lsn.value, e.new_non_finite);
    return absl::StrCat("applied lsn ", e.lsn.value);
  }
  std::string operator()(const BackupAnswered& e) const {
    if (e.header.type != FrameType::kAck) return absl::StrCat("backup refuses: ", e.text);
    if (e.header.flags & frame_flags::kSnapshot)
      return absl::StrCat("backup needs a snapshot from frame ", e.header.clock);
    return absl::StrCat("backup has lsn ", e.header.base_lsn.value);
  }
  std::string operator()(const BackupDown& e) const { return absl::StrCat("backup down: ", e.why); }
  std::string operator()(const SnapshotTaken& e) const {
    return absl::StrCat("snapshot of ", e.frames, " frames");
  }
  std::string operator()(const RecordReceived& e) const {
    return absl::StrFormat("c%d replicate %s%s", e.frame.connection.value, RecordText(e.record),
                           PayloadText(e.frame.payload));
  }
  std::string operator()(const SnapshotReceived& e) const {
    return absl::StrFormat("c%d snapshot frame %d of %d%s", e.frame.connection.value,
                           e.frame.header.clock, e.frame.header.samples,
                           PayloadText(e.frame.payload));
  }
  std::string operator()(const OrdersReceived& e) const {
    std::string members;
    for (const RosterMember& m : e.roster.members) {
      absl::StrAppend(&members, " r", m.replica.value, ".", m.incarnation.value);
    }
    const auto policy = [](const char* what, const PolicyAt& p) {
      return p.number.value == 0
                 ? ""
                 : absl::StrFormat(" %s %d: %d(%d) at step %d", what, p.number.value,
                                   static_cast<int>(p.policy.kind), p.policy.staleness, p.step);
    };
    const std::string checkpoint =
        e.checkpoint.has_value()
            ? absl::StrFormat(" checkpoint %d at step %d", e.checkpoint->number, e.checkpoint->step)
            : "";
    return absl::StrFormat(
        "orders generation %d view %d roster %d:%s epoch %d%s", e.generation.value, e.view.value,
        e.roster.number.value, members, e.epoch,
        policy("policy", e.policy) + policy("next policy", e.next_policy.value_or(PolicyAt())) +
            checkpoint);
  }
  std::string operator()(const ConnectionDown& e) const {
    return absl::StrCat("down c", e.connection.value);
  }
  std::string operator()(const ShardTick&) const { return "tick"; }
};

struct ActionText {
  std::string operator()(const Verify& a) const {
    return absl::StrFormat("verify s%d b%d", a.slice.value, a.payload.value);
  }
  std::string operator()(const MergeSums& a) const {
    return absl::StrFormat("merge s%d b%d += b%d", a.slice.value, a.into.value, a.from.value);
  }
  std::string operator()(const Measure& a) const {
    return absl::StrFormat("measure s%d b%d", a.slice.value, a.payload.value);
  }
  std::string operator()(const ReportNorm& a) const {
    return absl::StrFormat("report step %d norm2 %g%s view %d", a.header.clock, a.header.scalar,
                           Skipped(a.header.flags), a.header.view.value);
  }
  std::string operator()(const AskBackup&) const { return "ask the backup"; }
  std::string operator()(const Replicate& a) const {
    return absl::StrCat("replicate ", RecordText(a.record));
  }
  std::string operator()(const TakeSnapshot&) const { return "take a snapshot"; }
  std::string operator()(const SendSnapshot& a) const {
    return absl::StrFormat("snapshot frame %d of %d", a.header.clock, a.header.samples);
  }
  std::string operator()(const KeepPayload& a) const {
    return absl::StrCat("keep b", a.payload.value);
  }
  std::string operator()(const DropSnapshot&) const { return "drop the snapshot"; }
  std::string operator()(const BeginTensors& a) const {
    return absl::StrCat("begin tensors, ", a.two_versions ? "two versions" : "one version");
  }
  std::string operator()(const InstallTensor& a) const {
    return absl::StrFormat("install s%d part %d b%d%s", a.slice.value, static_cast<int>(a.part),
                           a.payload.value, a.newest ? " newest" : "");
  }
  std::string operator()(const ApplyNow& a) const {
    return absl::StrFormat("%s b%d version %d", RecordText(a.record), a.payload.value, a.version);
  }
  std::string operator()(const SwitchPolicy& a) const {
    return absl::StrFormat("switch to policy %d: %s, newest %d", a.number.value,
                           a.two_versions ? "two versions" : "one version", a.version);
  }
  std::string operator()(const CopyForCut& a) const {
    return absl::StrCat("copy for cut ", a.epoch);
  }
  std::string operator()(const DropCopy& a) const { return absl::StrCat("drop copy ", a.epoch); }
  std::string operator()(const CaptureCheckpoint& a) const {
    const LossScale::State& scale = a.state.loss_scale;
    return absl::StrCat("capture checkpoint ", a.number, " at step ", a.state.step,
                        a.state.skipped == 0 ? "" : absl::StrCat(" skipped ", a.state.skipped),
                        scale == LossScale::State{0, 0}
                            ? ""
                            : absl::StrCat(" loss scale 2^", scale.log2, " clean ", scale.clean),
                        a.state.copy.has_value() ? absl::StrCat(" copy ", *a.state.copy) : "");
  }
  std::string operator()(const MissCheckpoint& a) const {
    return absl::StrCat("miss checkpoint ", a.number, ": ", a.why);
  }
  std::string operator()(const SendFrame& a) const {
    if (a.header.type == FrameType::kDecision) {
      return absl::StrFormat(
          "c%d decision for p%d step %d %s", a.connection.value, a.header.reporter.value,
          a.header.clock,
          a.header.answer == Answer::kNone
              ? "waits"
              : absl::StrFormat("scale %g%s", a.header.scalar, Skipped(a.header.flags)));
    }
    return absl::StrFormat("c%d %s #%d %s clock %d lsn %d%s%s", a.connection.value,
                           a.header.type == FrameType::kAck ? "ack" : "error", a.header.request_id,
                           AnswerName(a.header.answer), a.header.clock, a.header.base_lsn.value,
                           a.text.empty() ? "" : ": ", a.text);
  }
  std::string operator()(const SendValue& a) const {
    const int log2 = a.header.loss_scale_log2;
    return absl::StrFormat(
        "c%d value #%d s%d clock %d lsn %d %s %d%s%s%s", a.connection.value, a.header.request_id,
        a.header.key.slice.value, a.header.clock, a.header.base_lsn.value,
        a.source == ValueSource::kCutCopy ? "copy" : "version", a.version,
        log2 == 0 ? "" : absl::StrCat(" loss scale 2^", log2),
        a.header.held_us == 0 ? "" : absl::StrCat(" held ", a.header.held_us / 1000, "ms"),
        a.header.late_us == 0 ? ""
                              : absl::StrFormat(" micro-batch %d late by %dms", a.header.late_part,
                                                a.header.late_us / 1000));
  }
  std::string operator()(const Release& a) const {
    return absl::StrCat("release b", a.buffer.value);
  }
  std::string operator()(const ReportFault& a) const { return absl::StrCat("fault: ", a.message); }
};

}  // namespace

std::string ToString(const PartitionEvent& event) { return std::visit(EventText(), event); }
std::string ToString(const PartitionAction& action) { return std::visit(ActionText(), action); }

}  // namespace starling
