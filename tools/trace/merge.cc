#include "tools/trace/merge.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace starling::trace {
namespace {

bool IsPush(const ProcessSpans& process, const RecordedSpan& span) {
  return process.worker && span.category == "push" && span.flow != 0;
}

// Converts to our clock, the end as well, so that nested spans stay nested.
RecordedSpan OnOurClock(const ProcessSpans& process, RecordedSpan span) {
  const int64_t begin = process.clock.ToOurs(span.begin_us);
  span.duration_us =
      std::max<int64_t>(0, process.clock.ToOurs(span.begin_us + span.duration_us) - begin);
  span.begin_us = begin;
  return span;
}

bool Within(const RecordedSpan& span, const Window& window) {
  return span.begin_us >= window.begin_us && span.begin_us <= window.end_us;
}

std::set<uint64_t> FlowsOfPushes(const std::vector<ProcessSpans>& processes, const Window& window) {
  std::set<uint64_t> flows;
  for (const ProcessSpans& process : processes) {
    for (const RecordedSpan& span : process.spans) {
      if (IsPush(process, span) && Within(OnOurClock(process, span), window))
        flows.insert(span.flow);
    }
  }
  return flows;
}

// The key of a group of rows: (kind, thread).
using Group = std::pair<std::string, uint64_t>;

// A worker's pushes and pulls belong to no thread: many are in flight at a time.
Group GroupOf(const ProcessSpans& process, const RecordedSpan& span) {
  const bool moves = span.category == "push" || span.category == "pull";
  if (process.worker && moves) return {absl::StrCat(span.category, " under way"), 0};
  if (!process.worker) return {"owner", span.thread};
  if (span.category == "data") return {"loader", span.thread};
  if (span.category == "copy") return {"copies", span.thread};
  return {span.category == "device" ? "device" : "lane", span.thread};
}

// Finds the first row on which a span nests. Spans come in order of begin, the longer first.
class Rows {
 public:
  size_t Place(int64_t begin, int64_t end) {
    for (size_t row = 0;; ++row) {
      if (row == open_.size()) open_.emplace_back();
      std::vector<int64_t>& ends = open_[row];
      while (!ends.empty() && ends.back() <= begin) ends.pop_back();
      if (!ends.empty() && ends.back() < end) continue;
      ends.push_back(end);
      return row;
    }
  }
  size_t count() const { return open_.size(); }

 private:
  std::vector<std::vector<int64_t>> open_;  // per row: ends of open spans, innermost last
};

void AddGroup(size_t process, const std::string& name, std::vector<RecordedSpan> spans,
              Trace* trace) {
  std::sort(spans.begin(), spans.end(), [](const RecordedSpan& a, const RecordedSpan& b) {
    return std::tuple(a.begin_us, -a.duration_us) < std::tuple(b.begin_us, -b.duration_us);
  });
  Rows rows;
  std::vector<std::vector<RecordedSpan>> placed;
  for (RecordedSpan& span : spans) {
    const size_t row = rows.Place(span.begin_us, span.begin_us + span.duration_us);
    placed.resize(rows.count());
    placed[row].push_back(std::move(span));
  }
  for (size_t row = 0; row < placed.size(); ++row) {
    trace->rows.push_back({process, row == 0 ? name : absl::StrCat(name, " (", row + 1, ")")});
    for (RecordedSpan& span : placed[row])
      trace->slices.push_back({trace->rows.size() - 1, std::move(span)});
  }
}

void AddArrows(const std::vector<ProcessSpans>& processes, Trace* trace) {
  std::map<uint64_t, size_t> applies;
  for (size_t i = 0; i < trace->slices.size(); ++i) {
    const RecordedSpan& span = trace->slices[i].span;
    if (span.category == "apply" && span.flow != 0) applies.emplace(span.flow, i);
  }
  for (size_t i = 0; i < trace->slices.size(); ++i) {
    const Trace::Slice& slice = trace->slices[i];
    if (!IsPush(processes[trace->rows[slice.row].process], slice.span)) continue;
    const auto apply = applies.find(slice.span.flow);
    if (apply != applies.end()) trace->arrows.push_back({i, apply->second});
  }
}

}  // namespace

Trace Merge(const std::vector<ProcessSpans>& processes, const Window& window) {
  const std::set<uint64_t> flows = FlowsOfPushes(processes, window);
  Trace trace;
  for (size_t p = 0; p < processes.size(); ++p) {
    std::map<Group, std::vector<RecordedSpan>> groups;
    for (const RecordedSpan& recorded : processes[p].spans) {
      RecordedSpan span = OnOurClock(processes[p], recorded);
      const bool joins = span.category == "apply" && flows.contains(span.flow);
      if (!joins && !Within(span, window)) continue;
      span.begin_us -= window.begin_us;
      groups[GroupOf(processes[p], span)].push_back(std::move(span));
    }
    std::map<std::string, int> threads;  // numbered from 0 within their kind
    for (auto& [group, spans] : groups) {
      const std::string name =
          group.second == 0 ? group.first : absl::StrCat(group.first, " ", threads[group.first]++);
      AddGroup(p, name, std::move(spans), &trace);
    }
  }
  AddArrows(processes, &trace);
  return trace;
}

size_t PushesWithoutApply(const std::vector<ProcessSpans>& processes, const Window& window) {
  std::set<uint64_t> flows = FlowsOfPushes(processes, window);
  for (const ProcessSpans& process : processes) {
    for (const RecordedSpan& span : process.spans) {
      if (span.category == "apply") flows.erase(span.flow);
    }
  }
  return flows.size();
}

}  // namespace starling::trace
