// Which images and labels WebDataset's tar files hold.
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
  uint64_t offset = 0;  // of the image in its shard
  uint32_t bytes = 0;
  uint32_t shard = 0;
  int32_t label = 0;
  JpegSize size;
};

// The samples of all shards, in their order. Immutable.
struct ImageIndex {
  std::vector<std::unique_ptr<RandomAccessFile>> shards;
  std::vector<ImageEntry> entries;
  std::vector<std::string> class_names;  // of the classes file; empty without one
  CorruptSamples corrupt;                // left out: their image has no readable header

  // "shard.tar: 000123.jpg", read from the shard's headers.
  std::string NameOf(const ImageEntry& entry, const DataSource::WebDataset& source) const;
};

// Reads headers of tar members and of images, and labels. A sample is what has one key: a member's
// path up to the base name's first dot; what follows, in lower case, says what it is. Members whose
// name begins with `__`, or whose base name has no dot, are passed over. An image whose header
// cannot be read is left out and counted, the same on every machine; everything else that is wrong
// is an error that names shard and sample: a tar file that is truncated or corrupt, an image
// without a label or a label without an image, two members of one name, a label that is no class;
// of several, the first in the shards' order. Several threads read, each a shard at a time. Shards
// stay in memory as long as `limits.kept_bytes_max` is enough for those that were opened so far.
absl::StatusOr<ImageIndex> ReadImageIndex(const DataSource::WebDataset& source,
                                          const DataLimits& limits);

// Names of corrupt samples kept for people; all are counted.
inline constexpr size_t kCorruptNamesMax = 10;
void AddCorrupt(const std::string& name, const std::string& why, CorruptSamples* out);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_IMAGE_INDEX_H_
