// Writes a trace as the JSON that Perfetto (ui.perfetto.dev) and Chrome (about:tracing) read.
#ifndef STARLING_TOOLS_TRACE_PERFETTO_H_
#define STARLING_TOOLS_TRACE_PERFETTO_H_

#include <string>
#include <vector>

#include "tools/trace/merge.h"

namespace starling::trace {

// Processes and threads have names. `otherData` has the job's name and, for each process, its
// clock's offset from ours in the window's middle, the bound on that offset's error, and how many
// spans were lost. Names are escaped; bytes that are not UTF-8 are replaced.
std::string PerfettoJson(const std::string& job, const std::vector<ProcessSpans>& processes,
                         const Window& window, const Trace& trace);

}  // namespace starling::trace

#endif  // STARLING_TOOLS_TRACE_PERFETTO_H_
