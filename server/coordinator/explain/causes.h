// The causes that `starling explain` can name, one row each. A test keeps the table in
// docs/diagnosis.md equal to this one.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_CAUSES_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_CAUSES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace starling::explain {

struct Cause {
  absl::string_view word;     // stable: scripts read it
  absl::string_view unit;     // of the figure; empty: the cause has none
  absl::string_view meaning;  // including what the figure is
  absl::string_view remedy;   // what to try
};

// Gravest first: what stops a job, then what slows it.
absl::Span<const Cause> Causes();

// `word` must be in the table.
const Cause& CauseOf(absl::string_view word);

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_CAUSES_H_
