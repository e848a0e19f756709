// Early returns for absl::Status and absl::StatusOr, and words before an error's text.
//
//   STARLING_RETURN_IF_ERROR(Check(graph));
//   STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(graph));
//   return Prefixed("port file", ReplaceFile(path, {text}));
#ifndef STARLING_COMMON_BASE_STATUS_MACROS_H_
#define STARLING_COMMON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#define STARLING_STATUS_CONCAT_INNER(a, b) a##b
#define STARLING_STATUS_CONCAT(a, b) STARLING_STATUS_CONCAT_INNER(a, b)

#define STARLING_RETURN_IF_ERROR(expression)           \
  do {                                                 \
    absl::Status starling_status = (expression);       \
    if (!starling_status.ok()) return starling_status; \
  } while (false)

// Two statements: not for the body of an `if` without braces.
#define STARLING_ASSIGN_OR_RETURN(target, expression)                                            \
  STARLING_ASSIGN_OR_RETURN_INNER(STARLING_STATUS_CONCAT(starling_status_or_, __LINE__), target, \
                                  expression)

#define STARLING_ASSIGN_OR_RETURN_INNER(holder, target, expression) \
  auto holder = (expression);                                       \
  if (!holder.ok()) return std::move(holder).status();              \
  target = *std::move(holder)

namespace starling {

// An error becomes "PREFIX: its text", with the same code.
inline absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", status.message()));
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_STATUS_MACROS_H_
