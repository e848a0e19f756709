#include "tools/cli/address.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tools/local/state_directory.h"

namespace starling::cli {

absl::StatusOr<std::string> DefaultStateDirectory(const Context& context) {
  const auto state = context.environment("XDG_STATE_HOME");
  if (state && !state->empty()) return absl::StrCat(*state, "/starling/local");
  const auto home = context.environment("HOME");
  if (home && !home->empty()) return absl::StrCat(*home, "/.local/state/starling/local");
  return absl::FailedPreconditionError("neither XDG_STATE_HOME nor HOME is set: give --state DIR");
}

absl::StatusOr<std::string> CoordinatorAddress(const std::string& given, const Context& context) {
  if (!given.empty()) return given;
  STARLING_ASSIGN_OR_RETURN(const std::string directory, DefaultStateDirectory(context));
  const auto address = local::StateDirectory(directory).ReadAddress();
  if (address.ok()) return address;
  return absl::UnavailableError(absl::StrCat(
      "no coordinator is known: --coordinator is not given, STARLING_COORDINATOR is not set, and "
      "no local "
      "cluster runs (",
      directory, ").\nStart one with: starling local up --shards 2 --workers 2 --detach"));
}

}  // namespace starling::cli
