// Reads the values of a checkpoint, in pieces of any cut: restoring needs neither the shards nor
// the slices that it was written with.
#ifndef STARLING_COMMON_CHECKPOINT_READER_H_
#define STARLING_COMMON_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/shard_file.h"
#include "proto/checkpoint.pb.h"

namespace starling {

// Thread-safe. Calls block as the disk does. It keeps its files open, so a checkpoint that is
// deleted meanwhile can be read to its end (not on every shared mount). kDataLoss names the file,
// the entry, what was expected and what came.
class CheckpointReader {
 public:
  // `digest`: of the manifest (ManifestDigest); nullopt: any. Checks the manifest, headers and
  // sizes, and that every value of the model is there exactly once; not the data. kNotFound: no
  // such checkpoint. kFailedPrecondition: its manifest has another digest.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::shared_ptr<CheckpointDisk> disk, const CheckpointId& id, std::optional<uint64_t> digest);

  // The same checks of a checkpoint that lies in another folder: what passes can be opened once the
  // folder has its name.
  static absl::Status Check(CheckpointDisk& disk, const std::string& folder, const CheckpointId& id,
                            uint64_t digest);

  const CheckpointManifest& manifest() const { return manifest_; }

  // Elements [begin, begin + out.size()) of the parameter. Each block is checked when it is read.
  // kNotFound: not all are there.
  absl::Status Read(absl::string_view parameter, uint64_t begin, BlockPart part,
                    absl::Span<float> out) const;

  // Reads every byte and checks all digests. `progress`: bytes read so far; called on this thread,
  // after each block. kCancelled: it returned false.
  absl::Status VerifyAll(absl::FunctionRef<bool(uint64_t)> progress) const;

 private:
  struct File {
    std::string path;  // "FOLDER/NAME", for errors
    std::unique_ptr<CheckpointDisk::Readable> file;
    std::vector<StoredBlock> blocks;  // as they lie in the file
  };
  struct Place {
    const File* file = nullptr;
    const StoredBlock* block = nullptr;
  };

  explicit CheckpointReader(CheckpointManifest manifest) : manifest_(std::move(manifest)) {}
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenFolder(
      CheckpointDisk& disk, const std::string& folder, const CheckpointId& id,
      std::optional<uint64_t> digest);
  absl::Status OpenFiles(CheckpointDisk& disk, const std::string& folder, const CheckpointId& id);
  // Fills the index. kDataLoss: the blocks do not make the model's parameters.
  absl::Status Index();
  static absl::Status SortWithoutOverlaps(std::vector<Place>* places);
  // The block with this element; empty: none has it.
  Place Find(absl::string_view parameter, uint64_t element, BlockPart part) const;

  const CheckpointManifest manifest_;
  std::vector<File> files_;  // as in the manifest; constant after Open, like the index
  // Ascending `begin`, without overlaps.
  std::map<std::pair<std::string, BlockPart>, std::vector<Place>> index_;
};

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_READER_H_
