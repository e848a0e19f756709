// Mixed precision for elementwise operators: piece by piece, so that fp32 data never leaves the L1
// cache, and memory traffic is two bytes per number.
#include <algorithm>
#include <utility>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/half.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;

constexpr int64_t kPieceElements = 2048;  // 8 KiB as fp32, for each value in use
static_assert(kPieceElements < kParallelElements);

// Whether each output element depends only on the inputs' elements at its place. Zeros that pad a
// format stay zeros, except with sigmoid and clip.
bool IsPointwise(Op op, bool padded) {
  switch (op) {
    case Op::kRelu:
    case Op::kGelu:
    case Op::kTanh:
    case Op::kAdd:
    case Op::kMul: return true;
    case Op::kSigmoid:
    case Op::kClip: return !padded;
    default: return false;
  }
}

// The operator on `count` elements, plain and in fp32: too few for a second thread.
OperatorSpec PieceOf(const OperatorSpec& spec, int64_t count) {
  OperatorSpec piece = spec;
  piece.type = DataType::kFp32;
  piece.input_formats.clear();
  piece.input_shapes.assign(spec.input_shapes.size(), {1, count});
  piece.output_shape = {1, count};
  return piece;
}

class StoredPieces : public OperatorKernel {
 public:
  // `make` creates the kernel of a piece.
  StoredPieces(const OperatorSpec& spec, int64_t count,
               absl::FunctionRef<CpuKernelPtr(const OperatorSpec&)> make);

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override;
  absl::Status Backward(const BackwardArgs& args, Stream& stream) override;

 private:
  // One thread's working set.
  struct Worker {
    CpuKernelPtr whole, rest;  // for a piece; for the last one, if it is shorter
    std::vector<const void*> read;
    std::vector<void*> written;
    absl::Status status;
  };

  // Calls fn(worker, its scratch, kernel, first element, elements) for every piece.
  template <typename Fn>
  absl::Status ForPieces(void* workspace, Fn fn);
  // A piece of a value that is stored in `type`: where its numbers are as fp32, which is `scratch`
  // or the value's own memory; and the way back.
  static const float* In(DataType type, const void* stored, int64_t first, int64_t count,
                         float* scratch);
  static float* Place(DataType type, void* stored, int64_t first, float* scratch);
  static void Out(DataType type, const float* from, void* stored, int64_t first, int64_t count);
  // A thread's fp32 pieces.
  float* Scratch(float* scratch, size_t i) const { return scratch + i * kPieceElements; }

  const int threads_;
  const bool training_;
  const int64_t count_;
  std::vector<DataType> types_;  // the inputs'
  DataType output_type_;
  std::vector<Worker> workers_;
};

StoredPieces::StoredPieces(const OperatorSpec& spec, int64_t count,
                           absl::FunctionRef<CpuKernelPtr(const OperatorSpec&)> make)
    : threads_(spec.kernel_threads),
      training_(spec.training),
      count_(count),
      output_type_(spec.plain_output ? DataType::kFp32 : spec.type),
      workers_(spec.kernel_threads) {
  const size_t inputs = spec.input_shapes.size();
  for (Worker& worker : workers_) {
    worker.whole = make(PieceOf(spec, std::min(kPieceElements, count)));
    if (count % kPieceElements != 0) worker.rest = make(PieceOf(spec, count % kPieceElements));
    worker.read.resize(inputs);
    worker.written.resize(inputs);
  }
  static_cast<OperatorKernel&>(*this) = *workers_[0].whole;
  for (size_t i = 0; i < inputs; ++i) {
    types_.push_back(StoredType(InputFormat(spec, i)));
    input_bytes_[i] = count * DataTypeBytes(types_[i]);
  }
  output_format_ = StoredAs(InputFormat(spec, 0), output_type_);
  output_bytes_ = count * DataTypeBytes(output_type_);
  if (types_[0] != output_type_) forward_in_place_ok_ = backward_in_place_ok_ = false;
  workspace_bytes_ = threads_ * (2 * inputs + 2) * kPieceElements * sizeof(float);
}

template <typename Fn>
absl::Status StoredPieces::ForPieces(void* workspace, Fn fn) {
  UseKernelThreads(threads_);
  const int64_t pieces = (count_ + kPieceElements - 1) / kPieceElements;
  const size_t scratch_elements = workspace_bytes_ / sizeof(float) / threads_;
  ParallelRanges(threads_, threads_, count_, [&](int64_t from, int64_t to) {
    for (int64_t thread = from; thread < to; ++thread) {
      Worker& worker = workers_[thread];
      worker.status = absl::OkStatus();
      float* const scratch = static_cast<float*>(workspace) + thread * scratch_elements;
      const int64_t end = pieces * (thread + 1) / threads_;
      for (int64_t p = pieces * thread / threads_; p < end && worker.status.ok(); ++p) {
        const int64_t first = p * kPieceElements;
        const int64_t elements = std::min(kPieceElements, count_ - first);
        const bool rest = elements < kPieceElements && worker.rest != nullptr;
        worker.status = fn(worker, scratch, rest ? *worker.rest : *worker.whole, first, elements);
      }
    }
  });
  for (const Worker& worker : workers_) {
    if (!worker.status.ok()) return worker.status;
  }
  return absl::OkStatus();
}

const float* StoredPieces::In(DataType type, const void* stored, int64_t first, int64_t count,
                              float* scratch) {
  if (stored == nullptr) return nullptr;
  if (type == DataType::kFp32) return static_cast<const float*>(stored) + first;
  Widen(type, static_cast<const uint16_t*>(stored) + first, scratch, count);
  return scratch;
}

float* StoredPieces::Place(DataType type, void* stored, int64_t first, float* scratch) {
  if (stored == nullptr) return nullptr;
  return type == DataType::kFp32 ? static_cast<float*>(stored) + first : scratch;
}

void StoredPieces::Out(DataType type, const float* from, void* stored, int64_t first,
                       int64_t count) {
  if (stored == nullptr || type == DataType::kFp32) return;
  Narrow(type, from, static_cast<uint16_t*>(stored) + first, count);
}

absl::Status StoredPieces::Forward(const ForwardArgs& args, Stream& stream) {
  return ForPieces(args.workspace, [&](Worker& worker, float* scratch, OperatorKernel& kernel,
                                       int64_t first, int64_t count) {
    const size_t inputs = types_.size();
    for (size_t i = 0; i < inputs; ++i) {
      worker.read[i] = In(types_[i], args.inputs[i], first, count, Scratch(scratch, i));
    }
    ForwardArgs inside;
    inside.inputs = worker.read;
    float* const output = Place(output_type_, args.output, first, Scratch(scratch, inputs));
    inside.output = output;
    absl::Status status = kernel.Forward(inside, stream);
    Out(output_type_, output, args.output, first, count);
    return status;
  });
}

absl::Status StoredPieces::Backward(const BackwardArgs& args, Stream& stream) {
  if (!training_) return workers_[0].whole->Backward(args, stream);  // returns the error
  return ForPieces(args.workspace, [&](Worker& worker, float* scratch, OperatorKernel& kernel,
                                       int64_t first, int64_t count) {
    const size_t inputs = types_.size();
    for (size_t i = 0; i < inputs; ++i) {
      const void* const stored = backward_reads_input_[i] ? args.inputs[i] : nullptr;
      worker.read[i] = In(types_[i], stored, first, count, Scratch(scratch, i));
      worker.written[i] =
          Place(types_[i], args.grad_inputs[i], first, Scratch(scratch, inputs + i));
    }
    BackwardArgs inside;
    inside.inputs = worker.read;
    inside.grad_inputs = absl::MakeConstSpan(worker.written);
    const void* const output = backward_reads_output_ ? args.output : nullptr;
    inside.output = In(output_type_, output, first, count, Scratch(scratch, 2 * inputs));
    inside.grad_output =
        In(output_type_, args.grad_output, first, count, Scratch(scratch, 2 * inputs + 1));
    inside.global_batch = args.global_batch;
    absl::Status status = kernel.Backward(inside, stream);
    for (size_t i = 0; i < inputs; ++i) {
      const float* const from = static_cast<const float*>(worker.written[i]);
      Out(types_[i], from, args.grad_inputs[i], first, count);
    }
    return status;
  });
}

}  // namespace

CpuKernelPtr MakeStoredPieces(const OperatorSpec& spec, const OperatorGeometry& geometry,
                              absl::FunctionRef<CpuKernelPtr(const OperatorSpec&)> make) {
  const ValueFormat layout = LayoutOf(InputFormat(spec, 0));
  for (ValueFormat format : spec.input_formats) {
    if (LayoutOf(format) != layout) return nullptr;
  }
  if (spec.plain_output && !layout.plain()) return nullptr;
  const int64_t elements = ElementCount(spec.input_shapes[0]);
  const size_t bytes = DescOf(spec.input_shapes[0], layout)->get_size();
  const auto count = static_cast<int64_t>(bytes / sizeof(float));
  if (!IsPointwise(geometry.op, count != elements)) return nullptr;
  return std::make_unique<StoredPieces>(spec, count, make);
}

}  // namespace starling
