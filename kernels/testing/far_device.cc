#include "kernels/testing/far_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

// Blocks of two halves: whose addresses are handed out, and which no one may touch; and where the
// numbers are. Thread-safe.
class FarMemory {
 public:
  ~FarMemory() {
    for (const auto& [begin, bytes] : blocks_) munmap(begin, 2 * bytes);
  }

  absl::StatusOr<void*> Allocate(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t rounded = (bytes / page + 1) * page;
    void* const block =
        mmap(nullptr, 2 * rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
    char* const begin = static_cast<char*>(block);
    ABSL_RAW_CHECK(mprotect(begin + rounded, rounded, PROT_READ | PROT_WRITE) == 0, "mprotect");
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[begin] = rounded;
    return block;
  }

  void Free(void* memory) {
    if (memory == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(static_cast<char*>(memory));
    ABSL_RAW_CHECK(block != blocks_.end(), "freed what is not the device's");
    munmap(block->first, 2 * block->second);
    blocks_.erase(block);
  }

  // Where the numbers of that address are.
  template <typename T>
  T* Near(T* far) {
    if (far == nullptr) return nullptr;
    char* const address = const_cast<char*>(reinterpret_cast<const char*>(far));
    const std::lock_guard<std::mutex> lock(mutex_);
    auto block = blocks_.upper_bound(address);
    ABSL_RAW_CHECK(block != blocks_.begin(), "an operator was given memory that is not the device's");
    --block;
    ABSL_RAW_CHECK(address < block->first + block->second,
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
  std::mutex mutex_;
  std::map<char*, size_t> blocks_;  // from a block's begin to the size of its halves
};

class FarStream : public Stream {
 public:
  explicit FarStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  void Order(std::function<absl::Status(Stream&)> work) { ordered_.push_back(std::move(work)); }

  absl::Status Synchronize() override {
    absl::Status first;
    for (const auto& work : ordered_) first.Update(work(*inner_));
    ordered_.clear();
    first.Update(inner_->Synchronize());
    return first;
  }

 private:
  const std::unique_ptr<Stream> inner_;
  std::vector<std::function<absl::Status(Stream&)>> ordered_;
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
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      input_bytes_.push_back(inner_->input_bytes(i));
      backward_reads_input_.push_back(spec.training && inner_->backward_reads_input(i));
    }
  }

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override {
    Far(stream).Order([this, args, inputs = memory_->Near(args.inputs),
                       parameters = memory_->Near(args.parameters)](Stream& inner) {
      ForwardArgs near = args;
      near.inputs = inputs;
      near.parameters = parameters;
      near.output = memory_->Near(args.output);
      near.saved = memory_->Near(args.saved);
      near.workspace = memory_->Near(args.workspace);
      return inner_->Forward(near, inner);
    });
    return absl::OkStatus();
  }

  absl::Status Backward(const BackwardArgs& args, Stream& stream) override {
    if (!training_) return inner_->Backward(args, stream);  // which refuses
    Far(stream).Order([this, args, inputs = memory_->Near(args.inputs),
                       parameters = memory_->Near(args.parameters),
                       grad_inputs = memory_->Near(args.grad_inputs),
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
      return inner_->Backward(near, inner);
    });
    return absl::OkStatus();
  }

 private:
  const bool training_;
  const std::unique_ptr<OperatorKernel> inner_;
  FarMemory* const memory_;
};

class FarDevice : public Device {
 public:
  explicit FarDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "far " + inner_->name(); }
  std::string instruction_set() const override { return inner_->instruction_set(); }
  Fusions fusions() const override { return inner_->fusions(); }
  bool host_reaches_memory() const override { return false; }

  absl::StatusOr<void*> Allocate(size_t bytes) override { return memory_.Allocate(bytes); }
  void Free(void* memory) override { memory_.Free(memory); }
  absl::StatusOr<MemoryBytes> Memory() override { return inner_->Memory(); }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override { return inner_->Allocate(bytes); }
  void FreeHost(void* memory) override { inner_->Free(memory); }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Stream> inner, inner_->CreateStream());
    return std::make_unique<FarStream>(std::move(inner));
  }

  absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Move(memory_.Near(to), from, bytes, stream);
  }
  absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Move(to, memory_.Near(from), bytes, stream);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Move(memory_.Near(to), memory_.Near(from), bytes, stream);
  }
  absl::Status Zero(void* to, size_t bytes, Stream& stream) override {
    Far(stream).Order([this, near = memory_.Near(to), bytes](Stream& inner) {
      return inner_->Zero(near, bytes, inner);
    });
    return absl::OkStatus();
  }
  absl::Status Add(float* to, const float* from, size_t elements, Stream& stream) override {
    Far(stream).Order([this, to = memory_.Near(to), from = memory_.Near(from),
                       elements](Stream& inner) { return inner_->Add(to, from, elements, inner); });
    return absl::OkStatus();
  }
  DataType TypeOf(ValueFormat format) const override { return inner_->TypeOf(format); }
  absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                         Stream& stream) override {
    Far(stream).Order([this, to = memory_.Near(to), from = memory_.Near(from), bytes,
                       format](Stream& inner) {
      return inner_->AddValues(to, from, bytes, format, inner);
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(
      const OperatorSpec& spec) override {
    STARLING_ASSIGN_OR_RETURN(std::unique_ptr<OperatorKernel> inner, inner_->CreateOperator(spec));
    return std::make_unique<FarKernel>(spec, std::move(inner), &memory_);
  }

 private:
  absl::Status Move(void* to, const void* from, size_t bytes, Stream& stream) {
    Far(stream).Order([this, to, from, bytes](Stream& inner) {
      return inner_->Copy(to, from, bytes, inner);
    });
    return absl::OkStatus();
  }

  const std::unique_ptr<Device> inner_;
  FarMemory memory_;
};

}  // namespace

std::unique_ptr<Device> MakeFarDevice(std::unique_ptr<Device> inner) {
  return std::make_unique<FarDevice>(std::move(inner));
}

}  // namespace starling
