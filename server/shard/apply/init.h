// Initial parameter values, computed on the shard as functions of (job's seed, parameter's name,
// element index) alone, so that neither slicing nor placement changes them and no client uploads
// noise.
//
// Philox4x64-10 (Salmon et al. 2011, Random123) with the key (seed, XXH3-64 of the name) and the
// counter (element, 0, 0, 0).
#ifndef STARLING_SERVER_SHARD_APPLY_INIT_H_
#define STARLING_SERVER_SHARD_APPLY_INIT_H_

#include <cstdint>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "proto/model.pb.h"

namespace starling {

// out[i] = initial value of element begin + i of the parameter, for i in [0, length). Computed in
// double, rounded once. An initializer without kind is CONSTANT 0. Thread-safe.
void InitParameter(uint64_t seed, absl::string_view name, const Initializer& init, uint64_t begin,
                   uint64_t length, float* out);

// Initial values of a job's slices, including those read from the graph's file. Thread-safe. All of
// the job's partitions share one, so each parameter's bytes in the file are compared once, not once
// per partition that has a part of it.
class FirstValues {
 public:
  // `graph` must outlive this.
  FirstValues(uint64_t seed, const Graph& graph) : seed_(seed), graph_(graph) {}
  FirstValues(const FirstValues&) = delete;
  FirstValues& operator=(const FirstValues&) = delete;

  // `out` has slice.elements elements. kFailedPrecondition: the file does not exist, cannot be
  // read, or lacks the bytes with which the job was accepted; the message names the parameter. The
  // file is open only during the call. While one call compares a parameter, others that need the
  // file wait.
  absl::Status Make(const Slice& slice, float* out);

 private:
  // Tells a file from one that replaced it.
  struct FileId {
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t bytes = 0;
    int64_t changed_ns = 0;
    friend bool operator==(const FileId&, const FileId&) = default;
  };
  struct OpenFile;

  absl::Status Read(const OpenFile& file, const Segment& segment, float* out);
  absl::Status VerifyOnce(const OpenFile& file, uint32_t param);
  absl::StatusOr<OpenFile> Open() const;

  const uint64_t seed_;
  const Graph& graph_;
  Mutex mutex_;  // held while a parameter's bytes are compared
  FileId verified_file_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> verified_ ABSL_GUARDED_BY(mutex_);  // parameters, in that file
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_INIT_H_
