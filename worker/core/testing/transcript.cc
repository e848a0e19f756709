#include "worker/core/testing/transcript.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace starling::session {
namespace {

std::string Text(const WorkRange& w) {
  static constexpr absl::string_view kNames[] = {"none", "train", "evaluate", "outer"};
  return absl::StrCat(kNames[static_cast<int>(w.purpose)], " ", w.epoch, ":[", w.first, ",",
                      w.first + w.count, ")");
}

std::string Text(const Work& w) {
  return Text(WorkRange{static_cast<WorkPurpose>(w.purpose()), w.epoch(), w.first(), w.count()});
}

std::string Text(absl::Span<const WorkRange> ranges) {
  return absl::StrJoin(ranges, " + ",
                       [](std::string* out, const WorkRange& w) { absl::StrAppend(out, Text(w)); });
}

std::string Text(const FrameHeader& h) {
  std::string text;
  switch (h.type) {
    case FrameType::kPush:
      text = absl::StrCat("push slice ", h.key.slice.value, " ", Text(h.key.work));
      break;
    case FrameType::kPull: {
      const bool cut = h.key.work.purpose == WorkPurpose::kEvaluate;
      text = absl::StrCat("pull slice ", h.key.slice.value,
                          cut ? absl::StrCat(" cut ", h.key.work.epoch) : "");
      break;
    }
    case FrameType::kClose:
      text = (h.flags & frame_flags::kEnter)  ? "enter"
             : (h.flags & frame_flags::kPark) ? "park"
             : (h.flags & frame_flags::kSkip) ? "skip"
                                              : absl::StrCat("close ", Text(h.key.work));
      break;
    case FrameType::kAck: text = absl::StrCat("ack ", static_cast<int>(h.answer)); break;
    case FrameType::kValue: text = absl::StrCat("value of slice ", h.key.slice.value); break;
    case FrameType::kError: text = absl::StrCat("error ", static_cast<int>(h.answer)); break;
    default: text = "frame";
  }
  absl::StrAppend(&text, " partition ", h.partition.value, " clock ", h.clock);
  if (h.type == FrameType::kPush) absl::StrAppend(&text, " samples ", h.samples);
  if (h.base_lsn.value != 0) absl::StrAppend(&text, " lsn ", h.base_lsn.value);
  if (h.min_lsn.value != 0) absl::StrAppend(&text, " lsn>=", h.min_lsn.value);
  return absl::StrCat(text, " #", h.request_id);
}

std::string Text(const WorkerReport& r) {
  std::string text = absl::StrCat("report ", r.sequence(), " orders ", r.orders_seen());
  if (r.has_run())
    absl::StrAppend(&text, " job ", r.run().job_uid(), r.prepared() ? " prepared" : "");
  if (r.leases_held_size() > 0)
    absl::StrAppend(&text, " held {", absl::StrJoin(r.leases_held(), ","), "}");
  if (r.leases_done_size() > 0)
    absl::StrAppend(&text, " done {", absl::StrJoin(r.leases_done(), ","), "}");
  for (const StepMetrics& m : r.finished()) {
    absl::StrAppend(&text, " finished ", Text(m.work()));
  }
  for (const Inspection& i : r.inspections()) absl::StrAppend(&text, " inspected ", i.request());
  if (r.has_fault())
    absl::StrAppend(&text, " fault ", Fault::Kind_Name(r.fault().kind()), ": ",
                    r.fault().message());
  if (r.fault().has_work()) absl::StrAppend(&text, "; of ", Text(r.fault().work()));
  return absl::StrCat(text, r.drained() ? " drained" : r.draining() ? " draining" : "");
}

std::string Text(const WorkerOrders& o) {
  std::string text = absl::StrCat("orders ", o.version(), " taken ", o.sequence_taken());
  if (o.rejoin()) absl::StrAppend(&text, " rejoin");
  if (o.unchanged()) return absl::StrCat(text, " unchanged");
  if (!o.has_run()) return absl::StrCat(text, " idle");
  absl::StrAppend(&text, " job ", o.run().job_uid(), " epoch ", o.epoch(), " roster ",
                  o.roster().number(), " {");
  for (const Member& m : o.roster().members())
    absl::StrAppend(&text, " ", m.worker(), ".", m.incarnation());
  absl::StrAppend(&text, " }");
  for (const Lease& l : o.leases()) {
    absl::StrAppend(&text, " lease ", l.id(), " ", Text(l.work()));
  }
  return text;
}

struct EventText {
  std::string operator()(const event::Registered& e) const {
    return absl::StrCat("registered ", e.worker.value, ".", e.incarnation.value);
  }
  std::string operator()(const event::RegisterFailed& e) const {
    return absl::StrCat("register failed: ", e.status.ToString());
  }
  std::string operator()(const event::Orders& e) const { return Text(e.orders); }
  std::string operator()(const event::ReportFailed& e) const {
    return absl::StrCat("report failed: ", e.status.ToString());
  }
  std::string operator()(const event::StreamUp& e) const {
    return absl::StrCat("stream ", e.shard.value, " up");
  }
  std::string operator()(const event::StreamDown& e) const {
    return absl::StrCat("stream ", e.shard.value, " down");
  }
  std::string operator()(const event::Frame& e) const {
    return absl::StrCat("shard ", e.shard.value, ": ", Text(e.header), e.text.empty() ? "" : ": ",
                        e.text);
  }
  std::string operator()(const event::JobPrepared& e) const {
    return absl::StrCat("job ", e.run.job.value,
                        e.device_lost ? " lost its device: " : " prepared: ", e.status.ToString(),
                        ", ", e.slices.size(), " slices");
  }
  std::string operator()(const event::Inspected& e) const {
    return absl::StrCat("inspected ", e.inspection.request());
  }
  std::string operator()(const event::SliceGradient& e) const {
    return absl::StrCat("gradient of unit ", e.unit.value, " range ", e.range, " slice ",
                        e.slice.value, " buffer ", e.buffer.value, e.skipped ? " skipped" : "");
  }
  std::string operator()(const event::UnitComputed& e) const {
    return absl::StrCat("unit ", e.unit.value, " computed", e.finite ? "" : ", not finite");
  }
  std::string operator()(const event::UnitFailed& e) const {
    return absl::StrCat("unit ", e.unit.value,
                        e.device_lost ? " lost its device: " : " failed: ", e.status.ToString());
  }
  std::string operator()(const event::Drain&) const { return "drain"; }
  std::string operator()(const event::Tick&) const { return "tick"; }
};

struct ActionText {
  std::string operator()(const action::Register& a) const {
    return absl::StrCat("register ", a.registration);
  }
  std::string operator()(const action::Report& a) const { return Text(a.report); }
  std::string operator()(const action::Connect& a) const {
    return absl::StrCat("connect ", a.shard.value, " at ", a.address);
  }
  std::string operator()(const action::Disconnect& a) const {
    return absl::StrCat("disconnect ", a.shard.value);
  }
  std::string operator()(const action::Send& a) const {
    return absl::StrCat("to shard ", a.shard.value, ": ", Text(a.header),
                        a.buffer.value != 0 ? absl::StrCat(" buffer ", a.buffer.value) : "");
  }
  std::string operator()(const action::Prepare& a) const {
    return absl::StrCat("prepare job ", a.job.run().job_uid());
  }
  std::string operator()(const action::CloseJob& a) const {
    return absl::StrCat("close job ", a.run.job.value);
  }
  std::string operator()(const action::Inspect& a) const {
    return absl::StrCat("inspect ", a.request.request());
  }
  std::string operator()(const action::Prefetch& a) const {
    return absl::StrCat("prefetch ", Text(a.ranges));
  }
  std::string operator()(const action::Compute& a) const {
    return absl::StrCat("compute unit ", a.unit.value, ": ", Text(a.ranges), " clock ", a.clock,
                        " step ", a.job_step, a.whole ? " whole" : "",
                        a.repeats.value == 0 ? "" : absl::StrCat(" repeats ", a.repeats.value),
                        a.params == Params::kSnapshot ? " on the snapshot" : "");
  }
  std::string operator()(const action::Abandon& a) const {
    return absl::StrCat("abandon unit ", a.unit.value);
  }
  std::string operator()(const action::InstallValue& a) const {
    return absl::StrCat("install slice ", a.slice.value, " version ", a.clock,
                        a.params == Params::kSnapshot ? " in the snapshot" : "",
                        a.loss_scale_log2 == 0
                            ? ""
                            : absl::StrCat(" loss scale 2^", static_cast<int>(a.loss_scale_log2)));
  }
  std::string operator()(const action::ForgetValues& a) const {
    return a.snapshot_too ? "forget values" : "forget live values";
  }
  std::string operator()(const action::ReleaseBuffer& a) const {
    return absl::StrCat("release ", a.buffer.value);
  }
  std::string operator()(const action::Warn& a) const { return absl::StrCat("warn: ", a.text); }
  std::string operator()(const action::Exit& a) const {
    return absl::StrCat("exit: ", a.status.ToString());
  }
};

}  // namespace

std::string ToString(const Event& event) { return std::visit(EventText(), event); }
std::string ToString(const Action& action) { return std::visit(ActionText(), action); }

}  // namespace starling::session
