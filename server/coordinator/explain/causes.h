// What `starling explain` can name: one row a cause. docs/diagnosis.md shows the same table, and a
// test holds the two together.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_CAUSES_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_CAUSES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace starling::explain {

struct Cause {
  absl::string_view word;     // stable: scripts read it
  absl::string_view unit;     // of the figure; empty: there is none
  absl::string_view meaning;  // and what the figure is
  absl::string_view remedy;   // what to try
};

// The gravest first: what stops a job, then what slows it.
absl::Span<const Cause> Causes();

// `word` is of the table.
const Cause& CauseOf(absl::string_view word);

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_CAUSES_H_
