// Indexes the images and labels in WebDataset tar files.
#ifndef STARLING_WORKER_DATA_IMAGE_INDEX_H_
#define STARLING_WORKER_DATA_IMAGE_INDEX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/jpeg.h"
#include "worker/data/random_access_file.h"
#include "worker/data/samples.h"

namespace starling {

struct ImageEntry {
  uint64_t offset = 0;  // the image's, in its shard
  uint32_t bytes = 0;
  uint32_t shard = 0;
  int32_t label = 0;
  JpegSize size;
};

// The samples of all shards, in shard order. Immutable.
struct ImageIndex {
  std::vector<std::unique_ptr<RandomAccessFile>> shards;
  std::vector<ImageEntry> entries;
  std::vector<std::string> class_names;  // from the classes file; empty without one
  CorruptSamples corrupt;                // left out because their image has no readable header

  // "shard.tar: 000123.jpg"; reads the shard's headers.
  std::string NameOf(const ImageEntry& entry, const DataSource::WebDataset& source) const;
};

// Reads the headers of tar members and images, and the labels. Members with the same key make up a
// sample: the key is a member's path up to the base name's first dot; the rest, in lower case, is
// its kind. Members whose name begins with `__` or whose base name has no dot are skipped. An image
// whose header cannot be read is left out and counted, the same on every machine. All other faults
// are errors that name shard and sample: a truncated or corrupt tar file, an image without a label
// or a label without an image, two members of one name, a label that is not a class; of several
// errors, the first in shard order. Several threads read, each one shard at a time. Shards are kept
// in memory while `limits.kept_bytes_max` suffices for those opened so far.
absl::StatusOr<ImageIndex> ReadImageIndex(const DataSource::WebDataset& source,
                                          const DataLimits& limits);

// How many names of corrupt samples are kept for display; all are counted.
inline constexpr size_t kCorruptNamesMax = 10;
void AddCorrupt(const std::string& name, const std::string& why, CorruptSamples* out);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_IMAGE_INDEX_H_
