// The JSON that the status page fetches.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_STATUS_JSON_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_STATUS_JSON_H_

#include <string>

#include "server/coordinator/core/coordinator.h"

namespace starling::coordinator {

// Jobs, workers and shards. Names are as users gave them; bytes that are not UTF-8 are replaced.
std::string StatusJson(const ClusterView& view);

// A job's curves as columns, oldest point first; null where a point lacks a value. `test_step` and
// `test_loss` are separate columns with one entry per evaluated epoch.
std::string CurvesJson(const CurvesReply& curves);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_STATUS_JSON_H_
