#include "tools/trace/perfetto.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace starling::trace {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One event per line, so that a long trace is not held as a tree of values.
class Events {
 public:
  void Add(const Json& event) {
    absl::StrAppend(&text_, text_.empty() ? "\n" : ",\n", Text(event));
  }

  void Describe(const char* what, size_t pid, size_t tid, const char* key, const Json& value) {
    Add({{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{key, value}}}});
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Process and thread ids start at 1: some readers take 0 for the idle thread.
Json At(const Trace& trace, size_t slice) {
  const size_t row = trace.slices[slice].row;
  return {{"ts", trace.slices[slice].span.begin_us},
          {"pid", trace.rows[row].process + 1},
          {"tid", row + 1}};
}

Json Arguments(const RecordedSpan& span) {
  Json arguments = {{"clock", span.clock}};
  if (span.category == "push" || span.category == "pull" || span.category == "apply" ||
      span.category == "wait") {
    arguments["slice"] = span.slice;
  }
  // As text: JSON numbers do not hold 64 bits everywhere.
  if (span.flow != 0) arguments["flow"] = absl::StrFormat("%016x", span.flow);
  return arguments;
}

void AddArrow(const Trace& trace, const Trace::Arrow& arrow, size_t id, Events* events) {
  Json from = {{"name", "push to apply"}, {"cat", "flow"}, {"ph", "s"}, {"id", id}};
  from.update(At(trace, arrow.push));
  events->Add(from);
  Json to = {{"name", "push to apply"}, {"cat", "flow"}, {"ph", "f"}, {"bp", "e"}, {"id", id}};
  to.update(At(trace, arrow.apply));
  events->Add(to);
}

Json AboutProcess(const ProcessSpans& process, const Window& window) {
  const int64_t middle = window.begin_us + (window.end_us - window.begin_us) / 2;
  return {{"name", process.name},
          {"role", process.worker ? "worker" : "shard"},
          {"address", process.address},
          {"clockOffsetMicros", process.clock.OffsetAt(middle)},
          {"clockErrorMicros", process.clock.error()},
          {"spansDropped", process.dropped}};
}

}  // namespace

std::string PerfettoJson(const std::string& job, const std::vector<ProcessSpans>& processes,
                         const Window& window, const Trace& trace) {
  Events events;
  Json about = {{"job", job},
                {"seconds", static_cast<double>(window.end_us - window.begin_us) / 1e6}};
  about["processes"] = Json::array();
  for (size_t p = 0; p < processes.size(); ++p) {
    events.Describe("process_name", p + 1, 0, "name",
                    absl::StrCat(processes[p].worker ? "worker " : "shard ", processes[p].name));
    events.Describe("process_sort_index", p + 1, 0, "sort_index", p + 1);
    about["processes"].push_back(AboutProcess(processes[p], window));
  }
  for (size_t row = 0; row < trace.rows.size(); ++row) {
    const size_t process = trace.rows[row].process + 1;
    events.Describe("thread_name", process, row + 1, "name", trace.rows[row].name);
    events.Describe("thread_sort_index", process, row + 1, "sort_index", row + 1);
  }
  for (size_t i = 0; i < trace.slices.size(); ++i) {
    const RecordedSpan& span = trace.slices[i].span;
    Json event = {
        {"name", span.name}, {"cat", span.category}, {"ph", "X"}, {"dur", span.duration_us}};
    event.update(At(trace, i));
    event["args"] = Arguments(span);
    events.Add(event);
  }
  for (size_t i = 0; i < trace.arrows.size(); ++i) AddArrow(trace, trace.arrows[i], i + 1, &events);
  return absl::StrCat("{\"traceEvents\":[", events.text(),
                      "\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":", Text(about), "}\n");
}

}  // namespace starling::trace
