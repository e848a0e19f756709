// Prepares batches in the background, ahead of the step that takes them.
#ifndef STARLING_WORKER_DATA_LOADER_H_
#define STARLING_WORKER_DATA_LOADER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/data_plan/batch_plan.h"
#include "common/protocol/types.h"
#include "common/sync/mutex.h"
#include "common/trace/span_ring.h"
#include "worker/data/data_set.h"

namespace starling {

// One micro-batch, gathered and normalised. Its memory is a 64-byte aligned buffer of the loader's
// pool, to which the handle returns it; a handle may outlive the loader.
struct StagedBatch {
  WorkRange work;  // count = 1
  // Samples in the epoch's order. In each pair of spans, the one of the data set's type has
  // samples() x elements, and the other is empty.
  absl::Span<float> inputs;
  absl::Span<int32_t> tokens;
  absl::Span<int32_t> labels;
  absl::Span<float> targets;
  absl::Span<int64_t> sample_ids;  // samples() of them: rows of the data set

  int64_t samples() const {
    return static_cast<int64_t>(sample_ids.size());
  }  // 0: an empty micro-batch
  void* input_data() const {
    return tokens.empty() ? static_cast<void*>(inputs.data()) : tokens.data();
  }
  void* label_data() const {
    return targets.empty() ? static_cast<void*>(labels.data()) : targets.data();
  }
};

class BatchPool;
struct BatchReturner {
  std::shared_ptr<BatchPool> pool;
  void operator()(StagedBatch* batch) const;
};
using BatchHandle = std::unique_ptr<StagedBatch, BatchReturner>;

inline constexpr int kLoaderThreadsMax = 64;

struct LoaderOptions {
  uint64_t seed = 0;
  uint32_t global_batch = 0;
  uint32_t micro_batches = 0;
  // For staged batches and those being prepared; at least one is always staged.
  uint64_t read_ahead_bytes_max = 64 << 20;
  int threads = 1;  // at most kLoaderThreadsMax
  // How many micro-batches will be requested at once. Buffers for those that fit the read-ahead,
  // and for one step under computation, are preallocated; more are allocated as needed.
  uint32_t asked_at_once = 0;
  SpanRing* spans = nullptr;  // records gathering; may be null; outlives the loader
};

// Prepares the micro-batches of training (shuffled by seed and epoch,
// common/data_plan/epoch_order.h, and augmented) and of evaluation (in file order, not augmented),
// as cut by common/data_plan/batch_plan.h. Background threads stage the ranges requested by
// Prefetch, in that order, and also decode. Thread-safe.
class Loader {
 public:
  // `test` may be null: then there is nothing to evaluate. kInvalidArgument: see BatchPlan::Make,
  // or the two have samples of different types or shapes.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(std::shared_ptr<const DataSet> train,
                                                        std::shared_ptr<const DataSet> test,
                                                        const LoaderOptions& options);
  ~Loader();  // cancels, and waits for batches being gathered
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Requests all micro-batches of `work`, after earlier requests. Staged batches are kept until
  // taken or cleared, so request only what will be taken, once. Never blocks. kInvalidArgument: a
  // purpose without data, or ids beyond the epoch.
  absl::Status Prefetch(const WorkRange& work);

  // Takes micro-batch `work` (count = 1). If it is not staged yet, gathers it at once on the
  // caller's thread, regardless of the read-ahead. If it is being gathered, waits:
  // kDeadlineExceeded at `deadline` (on the clock of MonotonicNow). kCancelled after Cancel, also
  // while waiting. kInvalidArgument as in Prefetch. Returns an error of DataSet::Gather once per
  // batch; the next Take tries again.
  absl::StatusOr<BatchHandle> Take(const WorkRange& work, absl::Time deadline);

  // Whether micro-batch `work` (count = 1) is staged, so that Take returns at once.
  bool Ready(const WorkRange& work) const;

  // Discards requests and staged batches (not taken ones).
  void Clear();

  // Wakes every waiting thread; Take fails from now on. Idempotent.
  void Cancel();

  // For metrics: how many Takes found their batch staged, and how many had to gather or wait.
  struct Counts {
    uint64_t ready = 0;
    uint64_t waited = 0;
    uint64_t buffers = 0;  // allocated so far; constant in a steady state
  };
  Counts counts() const;

 private:
  struct Source {
    std::shared_ptr<const DataSet> data;
    BatchPlan plan;
  };

  Loader(Source train, std::unique_ptr<Source> test, const LoaderOptions& options);

  absl::StatusOr<const Source*> CheckedSource(const WorkRange& work) const;
  const Source& SourceOf(const WorkRange& work) const;
  uint64_t BytesOf(const WorkRange& work) const;
  absl::StatusOr<BatchHandle> Gather(const WorkRange& work) const;
  void Run();
  bool NextWanted(WorkRange* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropWanted(const WorkRange& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Source train_;
  const std::unique_ptr<const Source> test_;
  const LoaderOptions options_;
  const std::shared_ptr<BatchPool> pool_;

  mutable Mutex mutex_;
  CondVar changed_;
  // Pools the memory of the next three.
  std::pmr::unsynchronized_pool_resource memory_ ABSL_GUARDED_BY(mutex_);
  // In order; split as they are processed.
  std::pmr::deque<WorkRange> wanted_ ABSL_GUARDED_BY(mutex_){&memory_};
  std::pmr::set<WorkRange> gathering_ ABSL_GUARDED_BY(mutex_){&memory_};
  std::pmr::map<WorkRange, absl::StatusOr<BatchHandle>> staged_ ABSL_GUARDED_BY(mutex_){&memory_};
  uint64_t ahead_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of staged_ and of batches being gathered
  uint64_t clears_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_LOADER_H_
