#include "kernels/testing/fake_discrete_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/updating_device.h"

namespace starling {
namespace {

// Blocks of two halves: one whose addresses are handed out and must not be touched, and one that
// holds the numbers. Thread-safe.
class FarMemory {
 public:
  // `bytes`: FarOptions::memory_bytes.
  explicit FarMemory(size_t bytes) : total_(bytes) {}
  ~FarMemory() {
    for (const auto& [begin, bytes] : blocks_) munmap(begin, 2 * bytes);
  }

  absl::StatusOr<void*> Allocate(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t rounded = (bytes / page + 1) * page;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (total_ > 0 && rounded > total_ - used_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory for ", bytes, " bytes: ", total_ - used_, " of ", total_, " are free"));
    }
    void* const block = mmap(nullptr, 2 * rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
    char* const begin = static_cast<char*>(block);
    STARLING_CHECK(mprotect(begin + rounded, rounded, PROT_READ | PROT_WRITE) == 0, "mprotect");
    blocks_[begin] = rounded;
    used_ += rounded;
    return block;
  }

  void Free(void* memory) {
    if (memory == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(static_cast<char*>(memory));
    STARLING_CHECK(block != blocks_.end(), "freed what is not the device's");
    munmap(block->first, 2 * block->second);
    used_ -= block->second;
    blocks_.erase(block);
  }

  // Set if there is a limit.
  std::optional<MemoryBytes> bytes() {
    if (total_ == 0) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    return MemoryBytes{total_ - used_, total_};
  }

  // Where the numbers of that address are.
  template <typename T>
  T* Near(T* far) {
    if (far == nullptr) return nullptr;
    char* const address = const_cast<char*>(reinterpret_cast<const char*>(far));
    const std::lock_guard<std::mutex> lock(mutex_);
    auto block = blocks_.upper_bound(address);
    STARLING_CHECK(block != blocks_.begin(),
                   "an operator was given memory that is not the device's");
    --block;
    STARLING_CHECK(address < block->first + block->second,
                   "an operator was given memory that is not the device's");
    return reinterpret_cast<T*>(address + block->second);
  }

  template <typename T>
  std::vector<T*> Near(absl::Span<T* const> far) {
    std::vector<T*> near;
    for (T* pointer : far) near.push_back(Near(pointer));
    return near;
  }

 private:
  const size_t total_;
  std::mutex mutex_;
  size_t used_ = 0;
  std::map<char*, size_t> blocks_;  // from a block's start to the size of its halves
};

int64_t SteadyNanos() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

absl::Status Lost() { return absl::UnavailableError("the device is lost"); }

using Work = std::function<absl::Status(Stream&)>;

// A stream's work items, numbered from 1. Thread-safe, except that one thread at a time orders
// work.
class WorkQueue {
 public:
  WorkQueue(std::unique_ptr<Stream> inner, std::shared_ptr<FarFault> fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}
  virtual ~WorkQueue() = default;

  virtual void Order(Work work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    works_.push_back(std::move(work));
    ++ordered_;
  }
  uint64_t ordered() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ordered_;
  }
  // Returns when all work up to that number has run, or never will.
  virtual void RunTo(uint64_t number) = 0;
  // No more work is ordered.
  virtual void Close() = 0;
  // The first failure since the last call.
  absl::Status TakeFailure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(failure_, absl::OkStatus());
  }

 protected:
  // Runs the oldest work item, which must exist. `lock` holds mutex_, except while it runs.
  void RunOldest(std::unique_lock<std::mutex>& lock) {
    const Work work = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    const absl::Status status = fault_->lost() ? Lost() : work(*inner_);
    lock.lock();
    failure_.Update(status);
    ++ran_;
  }

  const std::unique_ptr<Stream> inner_;
  const std::shared_ptr<FarFault> fault_;
  std::mutex mutex_;
  std::deque<Work> works_;
  uint64_t ordered_ = 0, ran_ = 0;
  absl::Status failure_;
};

// FarRuns::kLate. `running` is held by the single thread of the device that runs work, for any
// stream.
class LateQueue : public WorkQueue {
 public:
  LateQueue(std::unique_ptr<Stream> inner, std::shared_ptr<FarFault> fault,
            std::shared_ptr<std::recursive_mutex> running)
      : WorkQueue(std::move(inner), std::move(fault)), running_(std::move(running)) {}

  void RunTo(uint64_t number) override {
    const std::lock_guard<std::recursive_mutex> one_at_a_time(*running_);
    std::unique_lock<std::mutex> lock(mutex_);
    if (ran_ >= number) return;
    STARLING_CHECK(!under_way_, "two streams wait for each other");
    under_way_ = true;
    while (ran_ < number && !works_.empty()) RunOldest(lock);
    under_way_ = false;
  }
  void Close() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    works_.clear();
  }

 private:
  const std::shared_ptr<std::recursive_mutex> running_;
  bool under_way_ = false;  // guarded by running_
};

// FarRuns::kBeside.
class BesideQueue : public WorkQueue {
 public:
  BesideQueue(std::unique_ptr<Stream> inner, std::shared_ptr<FarFault> fault)
      : WorkQueue(std::move(inner), std::move(fault)), thread_([this] { Run(); }) {}

  void Order(Work work) override {
    WorkQueue::Order(std::move(work));
    changed_.notify_all();
  }
  void RunTo(uint64_t number) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ran_ >= number; });
  }
  void Close() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !works_.empty(); });
      if (works_.empty()) return;
      if (ran_ % 5 == 0) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        lock.lock();
      }
      RunOldest(lock);
      changed_.notify_all();
    }
  }

  std::condition_variable changed_;
  bool closed_ = false;
  std::thread thread_;  // last: it uses the rest
};

class FarEvent : public Event {
 public:
  // A number in a queue, or in none.
  struct Mark {
    std::shared_ptr<WorkQueue> queue;
    uint64_t number = 0;
    void Pass() const {
      if (queue != nullptr) queue->RunTo(number);
    }
  };

  // When a stream passed the mark that was set last, in monotonic nanoseconds; 0: not yet.
  using Passed = std::atomic<int64_t>;

  FarEvent(std::shared_ptr<FarFault> fault, bool timed)
      : fault_(std::move(fault)), passed_(timed ? std::make_shared<Passed>(0) : nullptr) {}

  absl::Status Synchronize() override {
    const absl::Status status = fault_->Call();
    mark().Pass();
    // Work before the mark may have been dropped meanwhile.
    return fault_->lost() ? Lost() : status;
  }
  void Set(Mark mark) {
    const std::lock_guard<std::mutex> lock(mutex_);
    mark_ = std::move(mark);
  }
  Mark mark() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return mark_;
  }
  // Null: not a timed event.
  const std::shared_ptr<Passed>& passed() const { return passed_; }

 private:
  const std::shared_ptr<FarFault> fault_;
  const std::shared_ptr<Passed> passed_;
  std::mutex mutex_;
  Mark mark_;
};

class FarCaptured : public Captured {
 public:
  FarCaptured(std::vector<Work> works, FarCaptures* captures)
      : works_(std::make_shared<const std::vector<Work>>(std::move(works))), captures_(captures) {
    ++captures_->alive;
  }
  ~FarCaptured() override { --captures_->alive; }

  Work Whole() const {
    return [works = works_, captures = captures_](Stream& inner) {
      ++captures->launched;
      for (const Work& work : *works) STARLING_RETURN_IF_ERROR(work(inner));
      return absl::OkStatus();
    };
  }

 private:
  const std::shared_ptr<const std::vector<Work>> works_;
  FarCaptures* const captures_;
};

class FarStream : public Stream {
 public:
  FarStream(std::shared_ptr<WorkQueue> queue, std::shared_ptr<FarFault> fault,
            FarCaptures* captures, const std::function<int64_t()>& clock)
      : queue_(std::move(queue)), fault_(std::move(fault)), captures_(captures), clock_(clock) {}
  ~FarStream() override { queue_->Close(); }

  absl::Status Order(Work work) {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    if (capturing_) {
      STARLING_CHECK(std::this_thread::get_id() == capturer_, "another thread's capture");
      if (refusing_) {
        failing_ = true;
        return absl::UnavailableError("the capture does not take this call");
      }
      works_.push_back(std::move(work));
    } else {
      queue_->Order(std::move(work));
    }
    return absl::OkStatus();
  }
  bool capturing() const { return capturing_; }
  // For calls that a capture does not accept.
  absl::Status OrderNow(Work work) {
    CheckNotCapturing();
    return Order(std::move(work));
  }

  absl::Status BeginCapture() override {
    CheckNotCapturing();
    STARLING_RETURN_IF_ERROR(fault_->Call());
    const int number = captures_->begun++;
    failing_ = number == captures_->fail_at;
    refusing_ = number == captures_->refuse_at;
    capturing_ = true;
    capturer_ = std::this_thread::get_id();
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Captured>> EndCapture() override {
    STARLING_CHECK(capturing_ && std::this_thread::get_id() == capturer_,
                   "no capture of this thread");
    capturing_ = false;
    std::vector<Work> works = std::exchange(works_, {});
    STARLING_RETURN_IF_ERROR(fault_->Call());
    if (failing_) return absl::InternalError("the test lets this capture fail");
    return std::make_unique<FarCaptured>(std::move(works), captures_);
  }
  absl::Status Launch(Captured& captured) override {
    return OrderNow(static_cast<FarCaptured&>(captured).Whole());
  }

  absl::Status Record(Event& event) override {
    CheckNotCapturing();
    STARLING_RETURN_IF_ERROR(fault_->Call());
    FarEvent& far = static_cast<FarEvent&>(event);
    if (far.passed() != nullptr) {
      *far.passed() = 0;
      queue_->Order([passed = far.passed(), clock = clock_](Stream&) {
        *passed = clock();
        return absl::OkStatus();
      });
    }
    far.Set({queue_, queue_->ordered()});
    return absl::OkStatus();
  }
  absl::Status Wait(Event& event) override {
    return OrderNow([mark = static_cast<FarEvent&>(event).mark()](Stream&) {
      mark.Pass();
      return absl::OkStatus();
    });
  }
  absl::Status Synchronize() override {
    CheckNotCapturing();
    absl::Status status = fault_->Call();
    queue_->RunTo(queue_->ordered());
    status.Update(queue_->TakeFailure());
    return status;
  }

 private:
  void CheckNotCapturing() const { STARLING_CHECK(!capturing_, "a capture takes no such call"); }

  const std::shared_ptr<WorkQueue> queue_;
  const std::shared_ptr<FarFault> fault_;
  FarCaptures* const captures_;
  const std::function<int64_t()> clock_;
  bool capturing_ = false, failing_ = false, refusing_ = false;
  std::thread::id capturer_;
  std::vector<Work> works_;  // the capture's
};

FarStream& Far(Stream& stream) { return static_cast<FarStream&>(stream); }

class FarKernel : public OperatorKernel {
 public:
  FarKernel(const OperatorSpec& spec, std::unique_ptr<OperatorKernel> inner, FarMemory* memory)
      : training_(spec.training), inner_(std::move(inner)), memory_(memory) {
    output_format_ = inner_->output_format();
    output_bytes_ = inner_->output_bytes();
    saved_bytes_ = inner_->saved_bytes();
    workspace_bytes_ = inner_->workspace_bytes();
    forward_in_place_ok_ = inner_->forward_in_place_ok();
    backward_in_place_ok_ = inner_->backward_in_place_ok();
    backward_reads_output_ = inner_->backward_reads_output();
    slower_because_ = inner_->slower_because();
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      input_bytes_.push_back(inner_->input_bytes(i));
      backward_reads_input_.push_back(spec.training && inner_->backward_reads_input(i));
    }
  }

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override {
    CheckRanBefore(Far(stream), &forward_ran_);
    return Far(stream).Order([this, args, inputs = memory_->Near(args.inputs),
                              parameters = memory_->Near(args.parameters)](Stream& inner) {
      ForwardArgs near = args;
      near.inputs = inputs;
      near.parameters = parameters;
      near.output = memory_->Near(args.output);
      near.saved = memory_->Near(args.saved);
      near.workspace = memory_->Near(args.workspace);
      near.values = memory_->Near(args.values);
      return inner_->Forward(near, inner);
    });
  }

  absl::Status Backward(const BackwardArgs& args, Stream& stream) override {
    if (!training_) return inner_->Backward(args, stream);  // which refuses
    CheckRanBefore(Far(stream), &backward_ran_);
    return Far(stream).Order(
        [this, args, inputs = memory_->Near(args.inputs),
         parameters = memory_->Near(args.parameters), grad_inputs = memory_->Near(args.grad_inputs),
         grad_parameters = memory_->Near(args.grad_parameters)](Stream& inner) {
          BackwardArgs near = args;
          near.inputs = inputs;
          near.parameters = parameters;
          near.output = memory_->Near(args.output);
          near.grad_output = memory_->Near(args.grad_output);
          near.grad_inputs = absl::MakeConstSpan(grad_inputs);
          near.grad_parameters = absl::MakeConstSpan(grad_parameters);
          near.saved = memory_->Near(args.saved);
          near.workspace = memory_->Near(args.workspace);
          near.values = memory_->Near(args.values);
          return inner_->Backward(near, inner);
        });
  }

 private:
  // A GPU's libraries load their code at the first call, which a capture does not accept.
  static void CheckRanBefore(const FarStream& stream, bool* ran) {
    STARLING_CHECK(*ran || !stream.capturing(), "the first call of an operator is captured");
    *ran = true;
  }

  const bool training_;
  const std::unique_ptr<OperatorKernel> inner_;
  FarMemory* const memory_;
  bool forward_ran_ = false, backward_ran_ = false;
};

void UpdateFloats(const OptimizerStep& step, const float* gradient, float* w, float* slot0,
                  float* slot1, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    switch (step.kind) {
      case OptimizerStep::kMomentum: MomentumStep(step, gradient[i], w[i], slot0[i]); break;
      case OptimizerStep::kAdam: AdamStep(step, gradient[i], w[i], slot0[i], slot1[i]); break;
      case OptimizerStep::kStatistic: StatisticStep(step, gradient[i], w[i]); break;
    }
  }
}

class FakeDiscreteDevice : public Device, public UpdatingDevice {
 public:
  FakeDiscreteDevice(std::unique_ptr<Device> inner, FarOptions options)
      : inner_(std::move(inner)),
        runs_(options.runs),
        fault_(options.fault != nullptr ? std::move(options.fault) : std::make_shared<FarFault>()),
        captures_(options.captures != nullptr ? options.captures : &own_captures_),
        clock_(options.clock != nullptr ? std::move(options.clock) : SteadyNanos),
        memory_(options.memory_bytes) {}

  std::string name() const override { return "far " + inner_->name(); }
  std::string instruction_set() const override { return inner_->instruction_set(); }
  Fusions fusions() const override { return inner_->fusions(); }
  bool host_reaches_memory() const override { return false; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    return memory_.Allocate(bytes);
  }
  void Free(void* memory) override {
    for (const std::shared_ptr<WorkQueue>& queue : Queues()) queue->RunTo(queue->ordered());
    memory_.Free(memory);
  }
  absl::StatusOr<MemoryBytes> Memory() override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    const std::optional<MemoryBytes> bounded = memory_.bytes();
    return bounded.has_value() ? *bounded : inner_->Memory();
  }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    return inner_->Allocate(bytes);
  }
  void FreeHost(void* memory) override { inner_->Free(memory); }

  bool captures() const override { return captures_->possible; }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Stream> inner, inner_->CreateStream());
    std::shared_ptr<WorkQueue> queue;
    if (runs_ == FarRuns::kBeside) {
      queue = std::make_shared<BesideQueue>(std::move(inner), fault_);
    } else {
      queue = std::make_shared<LateQueue>(std::move(inner), fault_, running_);
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::erase_if(queues_, [](const std::weak_ptr<WorkQueue>& old) { return old.expired(); });
      queues_.push_back(queue);
    }
    return std::make_unique<FarStream>(std::move(queue), fault_, captures_, clock_);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    return std::make_unique<FarEvent>(fault_, /*timed=*/false);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    return std::make_unique<FarEvent>(fault_, /*timed=*/true);
  }
  absl::StatusOr<double> MicrosBetween(Event& from, Event& to) override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    int64_t passed[2] = {};
    for (int i = 0; i < 2; ++i) {
      FarEvent& event = static_cast<FarEvent&>(i == 0 ? from : to);
      STARLING_CHECK(event.passed() != nullptr, "an event that is not timed");
      passed[i] = *event.passed();
      STARLING_CHECK(passed[i] != 0, "asked when a mark was passed, which may not have been yet");
    }
    return 1e-3 * static_cast<double>(passed[1] - passed[0]);
  }

  absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Far(stream).OrderNow(Move(memory_.Near(to), from, bytes));
  }
  absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Far(stream).OrderNow(Move(to, memory_.Near(from), bytes));
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Far(stream).Order(Move(memory_.Near(to), memory_.Near(from), bytes));
  }
  absl::Status SetStepValues(StepValues* to, const StepValues& values, Stream& stream) override {
    return Far(stream).OrderNow([near = memory_.Near(to), values](Stream&) {
      *near = values;
      return absl::OkStatus();
    });
  }
  absl::Status Zero(void* to, size_t bytes, Stream& stream) override {
    return Far(stream).Order([this, near = memory_.Near(to), bytes](Stream& inner) {
      return inner_->Zero(near, bytes, inner);
    });
  }
  absl::Status Add(float* to, const float* from, size_t elements, Stream& stream) override {
    return Far(stream).Order([this, to = memory_.Near(to), from = memory_.Near(from), elements](
                                 Stream& inner) { return inner_->Add(to, from, elements, inner); });
  }
  absl::Status Update(const OptimizerStep& step, const float* gradient, float* w, float* slot0,
                      float* slot1, size_t elements, Stream& stream) override {
    return Far(stream).Order([step, gradient = memory_.Near(gradient), w = memory_.Near(w),
                              slot0 = memory_.Near(slot0), slot1 = memory_.Near(slot1),
                              elements](Stream&) {
      UpdateFloats(step, gradient, w, slot0, slot1, elements);
      return absl::OkStatus();
    });
  }
  absl::Status CountCorrect(const Judgement& judgement, const void* logits, const void* labels,
                            uint32_t* correct, Stream& stream) override {
    return Far(stream).Order([this, judgement, logits = memory_.Near(logits),
                              labels = memory_.Near(labels),
                              correct = memory_.Near(correct)](Stream& inner) {
      return inner_->CountCorrect(judgement, logits, labels, correct, inner);
    });
  }
  DataType TypeOf(ValueFormat format) const override { return inner_->TypeOf(format); }
  absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                         Stream& stream) override {
    return Far(stream).Order(
        [this, to = memory_.Near(to), from = memory_.Near(from), bytes, format](Stream& inner) {
          return inner_->AddValues(to, from, bytes, format, inner);
        });
  }

  absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(
      const OperatorSpec& spec) override {
    STARLING_RETURN_IF_ERROR(fault_->Call());
    STARLING_ASSIGN_OR_RETURN(std::unique_ptr<OperatorKernel> inner, inner_->CreateOperator(spec));
    return std::make_unique<FarKernel>(spec, std::move(inner), &memory_);
  }

 private:
  Work Move(void* to, const void* from, size_t bytes) {
    return [this, to, from, bytes](Stream& inner) { return inner_->Copy(to, from, bytes, inner); };
  }

  // The queues of all existing streams.
  std::vector<std::shared_ptr<WorkQueue>> Queues() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<WorkQueue>> queues;
    for (const std::weak_ptr<WorkQueue>& queue : queues_) {
      if (auto there = queue.lock()) queues.push_back(std::move(there));
    }
    return queues;
  }

  const std::unique_ptr<Device> inner_;
  const FarRuns runs_;
  const std::shared_ptr<FarFault> fault_;
  FarCaptures own_captures_;
  FarCaptures* const captures_;
  const std::function<int64_t()> clock_;
  const std::shared_ptr<std::recursive_mutex> running_ = std::make_shared<std::recursive_mutex>();
  FarMemory memory_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<WorkQueue>> queues_;  // guarded by mutex_
};

}  // namespace

void FarFault::Set(uint64_t call, bool loses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  left_ = call;
  loses_ = loses;
  struck_ = false;
}

bool FarFault::struck() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return struck_;
}

absl::Status FarFault::Call() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (left_ > 0 && --left_ == 0) {
    struck_ = true;
    if (!loses_) return absl::InternalError("this call fails");
  }
  return struck_ && loses_ ? Lost() : absl::OkStatus();
}

bool FarFault::lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return struck_ && loses_;
}

std::unique_ptr<Device> MakeFakeDiscreteDevice(std::unique_ptr<Device> inner, FarOptions options) {
  return std::make_unique<FakeDiscreteDevice>(std::move(inner), std::move(options));
}

}  // namespace starling
