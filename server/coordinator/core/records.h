// Keys of the coordinator's records in a StateStore.
#ifndef STARLING_SERVER_COORDINATOR_CORE_RECORDS_H_
#define STARLING_SERVER_COORDINATOR_CORE_RECORDS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace starling::records {

inline constexpr uint32_t kSchema = 2;        // 2: curves
inline constexpr uint32_t kSchemaOldest = 1;  // the oldest readable one

inline std::string Cluster() { return "cluster"; }  // StoredCluster
inline std::string Worker(uint32_t id) {
  return absl::StrFormat("worker/%010u", id);
}  // StoredDaemon
inline std::string Shard(uint32_t id) {
  return absl::StrFormat("shard/%010u", id);
}  // StoredDaemon
inline std::string Job(uint64_t uid) { return absl::StrFormat("job/%020u", uid); }  // StoredJob
inline std::string JobState(uint64_t uid) {
  return absl::StrCat(Job(uid), "/state");
}  // StoredJobState
inline std::string JobResult(uint64_t uid, uint32_t epoch) {  // EpochResult
  return absl::StrFormat("%s/result/%010u", Job(uid), epoch);
}
inline std::string JobCurve(uint64_t uid, uint32_t chunk) {  // StoredCurve
  return absl::StrFormat("%s/curve/%010u", Job(uid), chunk);
}

}  // namespace starling::records

#endif  // STARLING_SERVER_COORDINATOR_CORE_RECORDS_H_
