#include "worker/data/loader.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/data_plan/epoch_order.h"

namespace starling {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kBatchBytesMax = size_t{4} << 30;
constexpr size_t kElementBytes = 4;  // samples and labels of any type

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

// A micro-batch's memory: one allocation for inputs, sample ids and labels.
struct Buffer : StagedBatch {
  std::unique_ptr<uint8_t, FreeDeleter> memory;
};

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
absl::Span<T> SpanAt(uint8_t* bytes, int64_t n, bool used) {
  return used ? absl::MakeSpan(reinterpret_cast<T*>(bytes), n) : absl::Span<T>();
}

}  // namespace

// Free buffers. Thread-safe.
class BatchPool {
 public:
  // Buffers hold `samples_max` samples of `data`'s format: enough for training and for evaluation.
  BatchPool(const DataSet& data, int64_t samples_max)
      : tokens_(data.format().type == INT32),
        targets_(data.format().label_type == FLOAT32),
        sample_elements_(data.sample_elements()),
        label_elements_(data.label_elements()),
        input_bytes_(Aligned(samples_max * sample_elements_ * kElementBytes)),
        label_bytes_(Aligned(samples_max * label_elements_ * kElementBytes)),
        bytes_(input_bytes_ + label_bytes_ + Aligned(samples_max * sizeof(int64_t))) {}

  // A batch of `samples`, with its spans set but not its contents.
  StagedBatch* Get(int64_t samples) {
    std::unique_ptr<Buffer> buffer = Pop();
    if (buffer->memory == nullptr) Allocate(*buffer);
    uint8_t* bytes = buffer->memory.get();
    buffer->inputs = SpanAt<float>(bytes, samples * sample_elements_, !tokens_);
    buffer->tokens = SpanAt<int32_t>(bytes, samples * sample_elements_, tokens_);
    bytes += input_bytes_;
    buffer->labels = SpanAt<int32_t>(bytes, samples * label_elements_, !targets_);
    buffer->targets = SpanAt<float>(bytes, samples * label_elements_, targets_);
    bytes += label_bytes_;
    buffer->sample_ids = absl::MakeSpan(reinterpret_cast<int64_t*>(bytes), samples);
    return buffer.release();
  }

  // Allocates buffers without touching their memory.
  void Reserve(uint64_t count) {
    MutexLock lock(&mutex_);
    for (free_.reserve(count); free_.size() < count; ++allocated_) {
      free_.push_back(std::make_unique<Buffer>());
      Allocate(*free_.back());
    }
  }

  void Put(StagedBatch* batch) {
    MutexLock lock(&mutex_);
    free_.emplace_back(static_cast<Buffer*>(batch));
  }

  size_t bytes_per_batch() const { return bytes_; }

  uint64_t allocated() const {
    MutexLock lock(&mutex_);
    return allocated_;
  }

 private:
  void Allocate(Buffer& buffer) const {
    buffer.memory.reset(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, bytes_)));
    if (buffer.memory == nullptr) throw std::bad_alloc();
  }

  std::unique_ptr<Buffer> Pop() {
    MutexLock lock(&mutex_);
    if (free_.empty()) {
      ++allocated_;
      if (free_.capacity() < allocated_) free_.reserve(2 * allocated_);  // Put never allocates
      return std::make_unique<Buffer>();
    }
    std::unique_ptr<Buffer> buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  const bool tokens_;
  const bool targets_;
  const int64_t sample_elements_;
  const int64_t label_elements_;
  const size_t input_bytes_;
  const size_t label_bytes_;
  const size_t bytes_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
};

void BatchReturner::operator()(StagedBatch* batch) const { pool->Put(batch); }

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(std::shared_ptr<const DataSet> train,
                                                       std::shared_ptr<const DataSet> test,
                                                       const LoaderOptions& options) {
  STARLING_ASSIGN_OR_RETURN(
      const BatchPlan train_plan,
      BatchPlan::Make(train->samples(), options.global_batch, options.micro_batches));
  std::unique_ptr<Source> test_source;
  if (test != nullptr) {
    if (test->sample_shape() != train->sample_shape() ||
        test->format().type != train->format().type ||
        test->format().label_shape != train->format().label_shape ||
        test->format().label_type != train->format().label_type) {
      return absl::InvalidArgumentError(
          "the samples of data.test and data.train differ in shape or type");
    }
    STARLING_ASSIGN_OR_RETURN(
        const BatchPlan plan,
        BatchPlan::Make(test->samples(), options.global_batch, options.micro_batches));
    test_source = std::make_unique<Source>(Source{std::move(test), plan});
  }
  std::unique_ptr<Loader> loader(
      new Loader(Source{std::move(train), train_plan}, std::move(test_source), options));
  const size_t bytes = loader->pool_->bytes_per_batch();
  if (bytes > kBatchBytesMax) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a micro-batch of ", train_plan.micro_batch_samples(), " samples takes ", bytes,
        " bytes, more than the limit of ", kBatchBytesMax, ": use more, smaller micro-batches"));
  }
  if (options.asked_at_once > 0) {
    const uint64_t batch = std::max<uint64_t>(loader->BytesOf({WorkPurpose::kTrain, 0, 0, 1}), 1);
    const uint64_t ahead = options.read_ahead_bytes_max / batch + 1;
    loader->pool_->Reserve(std::min<uint64_t>(options.asked_at_once, ahead) +
                           options.micro_batches);
  }
  return loader;
}

Loader::Loader(Source train, std::unique_ptr<Source> test, const LoaderOptions& options)
    : train_(std::move(train)),
      test_(std::move(test)),
      options_(options),
      pool_(std::make_shared<BatchPool>(*train_.data, train_.plan.micro_batch_samples())) {
  const int threads = std::min(options_.threads, kLoaderThreadsMax);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Loader::~Loader() {
  Cancel();
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<const Loader::Source*> Loader::CheckedSource(const WorkRange& work) const {
  const Source* source = work.purpose == WorkPurpose::kTrain      ? &train_
                         : work.purpose == WorkPurpose::kEvaluate ? test_.get()
                                                                  : nullptr;
  if (source == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no data for work of purpose ", static_cast<int>(work.purpose)));
  }
  const uint64_t ids = source->plan.ids();
  if (work.count == 0 || work.first >= ids || work.count > ids - work.first) {
    return absl::InvalidArgumentError(absl::StrCat("expected micro-batches within [0, ", ids,
                                                   "), got ", work.count, " from ", work.first));
  }
  return source;
}

const Loader::Source& Loader::SourceOf(const WorkRange& work) const {
  return work.purpose == WorkPurpose::kTrain ? train_ : *test_;
}

uint64_t Loader::BytesOf(const WorkRange& work) const {
  const Source& source = SourceOf(work);
  const uint64_t row =
      (source.data->sample_elements() + source.data->label_elements()) * kElementBytes +
      sizeof(int64_t);
  return static_cast<uint64_t>(source.plan.Positions(work.first, work.count).size()) * row;
}

absl::StatusOr<BatchHandle> Loader::Gather(const WorkRange& work) const {
  const uint64_t begin_us = SpanRing::NowMicros();
  const Source& source = SourceOf(work);
  const PositionRange positions = source.plan.Positions(work.first);
  BatchHandle batch(pool_->Get(positions.size()), BatchReturner{pool_});
  batch->work = work;
  const EpochOrder order(options_.seed, work.epoch, source.data->samples());
  const bool shuffled = work.purpose == WorkPurpose::kTrain;
  for (int64_t i = 0; i < positions.size(); ++i) {
    const int64_t position = positions.begin + i;
    batch->sample_ids[i] = shuffled ? order.SampleAt(position) : position;
  }
  const AugmentDraw draw{options_.seed, work.epoch};
  const absl::Status status = source.data->Gather(batch->sample_ids, shuffled ? &draw : nullptr,
                                                  batch->input_data(), batch->label_data());
  // The file was valid when it was opened, so it has changed.
  if (absl::IsInvalidArgument(status)) return absl::DataLossError(status.message());
  STARLING_RETURN_IF_ERROR(status);
  if (options_.spans != nullptr) {
    options_.spans->Record("gather", SpanCategory::kData, begin_us, SpanRing::NowMicros());
  }
  return batch;
}

absl::Status Loader::Prefetch(const WorkRange& work) {
  STARLING_RETURN_IF_ERROR(CheckedSource(work).status());
  MutexLock lock(&mutex_);
  wanted_.push_back(work);
  changed_.SignalAll();
  return absl::OkStatus();
}

// Removes from wanted_ the first micro-batch that is neither staged nor being gathered.
bool Loader::NextWanted(WorkRange* work) {
  while (!wanted_.empty()) {
    WorkRange& range = wanted_.front();
    *work = range;
    work->count = 1;
    if (staged_.count(*work) == 0 && gathering_.count(*work) == 0) {
      const uint64_t bytes = BytesOf(*work);
      if (ahead_bytes_ > 0 && ahead_bytes_ + bytes > options_.read_ahead_bytes_max) return false;
      ahead_bytes_ += bytes;
    } else {
      work->count = 0;
    }
    ++range.first;
    if (--range.count == 0) wanted_.pop_front();
    if (work->count == 1) return true;
  }
  return false;
}

// Removes a micro-batch that is being taken from wanted_, if it is still there.
void Loader::DropWanted(const WorkRange& work) {
  for (auto range = wanted_.begin(); range != wanted_.end(); ++range) {
    if (range->purpose != work.purpose || range->epoch != work.epoch || work.first < range->first ||
        work.first - range->first >= range->count) {
      continue;
    }
    WorkRange after = *range;
    after.first = work.first + 1;
    after.count = static_cast<uint32_t>(range->first + range->count - after.first);
    range->count = static_cast<uint32_t>(work.first - range->first);
    if (after.count > 0) range = wanted_.insert(range + 1, after) - 1;
    if (range->count == 0) wanted_.erase(range);
    return;
  }
}

void Loader::Run() {
  MutexLock lock(&mutex_);
  while (true) {
    WorkRange work;
    while (!cancelled_ && !NextWanted(&work)) changed_.Wait(&mutex_);
    if (cancelled_) return;
    const uint64_t clears = clears_;
    gathering_.insert(work);
    mutex_.Unlock();
    absl::StatusOr<BatchHandle> batch = Gather(work);
    mutex_.Lock();
    if (clears == clears_) {
      gathering_.erase(work);
      staged_.insert_or_assign(work, std::move(batch));
    }
    changed_.SignalAll();
  }
}

absl::StatusOr<BatchHandle> Loader::Take(const WorkRange& work, absl::Time deadline) {
  STARLING_RETURN_IF_ERROR(CheckedSource(work).status());
  if (work.count != 1) return absl::InvalidArgumentError("one micro-batch can be taken at a time");
  bool waited = false;
  {
    MutexLock lock(&mutex_);
    while (true) {
      if (cancelled_) return absl::CancelledError("the data loader was cancelled");
      const auto staged = staged_.find(work);
      if (staged != staged_.end()) {
        absl::StatusOr<BatchHandle> batch = std::move(staged->second);
        staged_.erase(staged);
        ahead_bytes_ -= BytesOf(work);
        ++(waited ? counts_.waited : counts_.ready);
        changed_.SignalAll();
        return batch;
      }
      if (gathering_.count(work) == 0) break;
      waited = true;
      if (changed_.WaitWithDeadline(&mutex_, deadline) && gathering_.count(work) != 0) {
        return absl::DeadlineExceededError(absl::StrCat("micro-batch ", work.first, " of epoch ",
                                                        work.epoch, " is still being gathered"));
      }
    }
    DropWanted(work);
    ++counts_.waited;
  }
  return Gather(work);
}

bool Loader::Ready(const WorkRange& work) const {
  MutexLock lock(&mutex_);
  return staged_.contains(work);
}

void Loader::Clear() {
  std::vector<absl::StatusOr<BatchHandle>> dropped;  // returned to the pool after unlocking
  MutexLock lock(&mutex_);
  wanted_.clear();
  gathering_.clear();
  for (auto& [work, batch] : staged_) dropped.push_back(std::move(batch));
  staged_.clear();
  ahead_bytes_ = 0;
  ++clears_;
  changed_.SignalAll();
}

void Loader::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.SignalAll();
}

Loader::Counts Loader::counts() const {
  MutexLock lock(&mutex_);
  Counts counts = counts_;
  counts.buffers = pool_->allocated();
  return counts;
}

}  // namespace starling
