// Tells whether two workers see the same data.
#ifndef STARLING_WORKER_DATA_DATA_DIGEST_H_
#define STARLING_WORKER_DATA_DATA_DIGEST_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/data_set.h"

namespace starling {

// XXH3-64 of what the data sets indexed when they were opened (DataSet::index_digest), and of
// samples and labels that `seed` draws: 32 of `train` and 16 of `test`, which may be null. Does not
// depend on where files lie, on the number of reading threads, or on corruption found elsewhere.
// Never 0. Reads at most 64 MiB of samples. Errors as DataSet::Gather.
absl::StatusOr<uint64_t> DataDigest(const DataSet& train, const DataSet* test, uint64_t seed);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_DIGEST_H_
