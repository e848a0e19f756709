// starling set: changes a setting of a running job.
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/protocol/limits.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

absl::StatusOr<Policy> ParsePolicy(absl::string_view text) {
  Policy policy;
  if (text == "bsp") {
    policy.set_kind(Policy::BSP);
    return policy;
  }
  if (text == "async") {
    policy.set_kind(Policy::ASYNC);
    return policy;
  }
  uint32_t staleness = 0;
  if (absl::StartsWith(text, "ssp:") && absl::SimpleAtoi(text.substr(4), &staleness) &&
      staleness <= limits::kStalenessMax) {
    policy.set_kind(Policy::SSP);
    policy.set_staleness(staleness);
    return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("consistency: expected bsp, ssp:0 to ssp:", limits::kStalenessMax,
                   " or async, got \"", text, "\""));
}

}  // namespace

int RunSet(const std::string& name, const std::string& assignment, Client& client,
           Context& context) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  if (parts.first != "consistency") {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
                    "expected consistency=bsp, consistency=ssp:3 or consistency=async, got \"",
                    assignment, "\"")),
                context);
  }
  const absl::StatusOr<Policy> policy = ParsePolicy(parts.second);
  if (!policy.ok()) return Fail(policy.status(), context);
  SetPolicyRequest request;
  request.set_name(name);
  *request.mutable_policy() = *policy;
  request.set_nonce(context.random());
  const auto reply = client.SetPolicy(request);
  if (!reply.ok()) return Fail(reply.status(), context);
  for (const PolicyRecord& record : reply->status().policies()) {
    if (record.number() != reply->number()) continue;
    context.err
        << name << ": policy " << record.number() << ", " << PolicyText(record.policy())
        << (record.in_force()
                ? ", is in force\n"
                : absl::StrCat(
                      ", takes effect as soon as its clock is decided; see: starling describe job ",
                      name, "\n"));
  }
  return kExitOk;
}

}  // namespace starling::cli
