#include "server/shard/core/orders.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace starling {
namespace {

PolicyAt ToPolicyAt(const PolicyRecord& record) {
  ConsistencyPolicy policy{PolicyKind::kBsp, record.policy().staleness()};
  if (record.policy().kind() == Policy::SSP) policy.kind = PolicyKind::kSsp;
  if (record.policy().kind() == Policy::ASYNC) policy.kind = PolicyKind::kAsync;
  return {PolicyNumber(static_cast<uint32_t>(record.number())), policy, record.step()};
}

}  // namespace

absl::StatusOr<OrdersReceived> ToPartitionOrders(const ShardJob& job,
                                                 const PartitionOrders& partition,
                                                 uint64_t generation) {
  OrdersReceived orders;
  orders.generation = Generation(generation);
  orders.view = ViewNumber(partition.view().number());
  orders.primary = ShardId(partition.view().primary());
  orders.backup = ShardId(partition.view().backup());
  orders.backup_address = partition.view().backup_address();
  orders.roster.number = RosterNumber(job.roster().number());
  for (const Member& member : job.roster().members()) {
    orders.roster.members.push_back({ReplicaId(member.replica()), WorkerId(member.worker()),
                                     Incarnation(member.incarnation()), member.joined_clock()});
  }
  std::vector<RosterMember>& members = orders.roster.members;
  std::sort(members.begin(), members.end());
  const auto twice = std::adjacent_find(
      members.begin(), members.end(),
      [](const RosterMember& a, const RosterMember& b) { return a.replica == b.replica; });
  if (twice != members.end()) {
    return absl::InvalidArgumentError(absl::StrCat("roster ", orders.roster.number.value,
                                                   " has replica ", twice->replica.value,
                                                   " twice: its coordinator is damaged"));
  }
  if (job.has_policy() && !job.policy().in_force()) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy ", job.policy().number(),
                     " is ordered before it is in force: the coordinator is of another release"));
  }
  orders.policy = ToPolicyAt(job.policy());
  if (job.has_next_policy()) orders.next_policy = ToPolicyAt(job.next_policy());
  orders.epoch = job.epoch();
  orders.discard_cuts_before = job.discard_cuts_before();
  if (job.has_training_end()) orders.training_end = job.training_end();
  orders.decider = ViewNumber(job.decider().number());
  if (job.has_checkpoint())
    orders.checkpoint = {job.checkpoint().number(), job.checkpoint().step()};
  return orders;
}

}  // namespace starling
