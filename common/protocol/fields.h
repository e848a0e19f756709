// The fields of the protocol's values, in the order in which records and a partition's state have
// them: for ByteWriter and ByteReader. A change of one is another kRecordVersion.
#ifndef STARLING_COMMON_PROTOCOL_FIELDS_H_
#define STARLING_COMMON_PROTOCOL_FIELDS_H_

#include "common/base/byte_io.h"
#include "common/protocol/types.h"

namespace starling {

template <typename IO, LikeType<WorkRange> T>
void Fields(IO& io, T& work) {
  io(work.purpose, work.epoch, work.first, work.count);
}

template <typename IO, LikeType<Origin> T>
void Fields(IO& io, T& origin) {
  io(origin.replica, origin.worker, origin.incarnation, origin.attempt);
}

template <typename IO, LikeType<RosterMember> T>
void Fields(IO& io, T& member) {
  io(member.replica, member.worker, member.incarnation, member.joined);
}

template <typename IO, LikeType<PolicyAt> T>
void Fields(IO& io, T& policy) {
  io(policy.number, policy.policy.kind, policy.policy.staleness, policy.step);
}

}  // namespace starling

#endif  // STARLING_COMMON_PROTOCOL_FIELDS_H_
