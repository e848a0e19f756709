// Whether two workers see the same data.
#ifndef STARLING_WORKER_DATA_DATA_DIGEST_H_
#define STARLING_WORKER_DATA_DATA_DIGEST_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/data_set.h"

namespace starling {

// XXH3-64 of what the data sets indexed when they were opened (DataSet::index_digest), and of
// samples with their labels that `seed` draws: 32 of `train` and 16 of `test`, which may be null.
// Where files lie, how many threads read, and what is found corrupt elsewhere does not matter.
// Never 0. Reads 64 MiB of samples at most. Errors as DataSet::Gather.
absl::StatusOr<uint64_t> DataDigest(const DataSet& train, const DataSet* test, uint64_t seed);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_DIGEST_H_
