// A checkpoint's manifest: the file that makes a folder a checkpoint.
//
//   {"format":"starling-checkpoint/1","xxh3":"<32 hex digits>","body":BODY}\n
//
// BODY is the protobuf JSON of a CheckpointManifest, and `xxh3` the XXH3-128 of its bytes. What is
// around BODY is compared literally, so no bit of the file can change unseen. Pure.
#ifndef STARLING_COMMON_CHECKPOINT_MANIFEST_H_
#define STARLING_COMMON_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/names.h"
#include "proto/checkpoint.pb.h"
#include "proto/model.pb.h"

namespace starling {

inline constexpr uint64_t kManifestBytesMax = 64 << 20;
inline constexpr uint32_t kManifestFormat = 1;

std::string EncodeManifest(const CheckpointManifest& manifest);

// kDataLoss: damaged, or not what this release can read (unknown fields); says what was expected.
// The result has an id that parses and is its job's, a model, and at least one file; files have
// names of shards' files, each once, and whole digests.
absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text);

uint64_t ManifestDigest(absl::string_view text);  // XXH3-64, for JobDescription.restore

// For lists. `text` is the manifest's.
CheckpointInfo DescribeCheckpoint(const CheckpointManifest& manifest, absl::string_view text);

// Every tensor that `model` has and the checkpoint lacks, that the checkpoint has and `model`
// lacks, or that has another shape; "" if it fits.
std::string WhyItDoesNotFit(const CheckpointManifest& manifest, const Graph& model);

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_MANIFEST_H_
