// Shared by the CPU's kernels: value formats, oneDNN calls bound to buffers, scratch offsets,
// exceptions converted to Status. Private to kernels/cpu.
#ifndef STARLING_KERNELS_CPU_ONEDNN_H_
#define STARLING_KERNELS_CPU_ONEDNN_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/geometry.h"

// A function in one version per instruction set, chosen at program start. Only for arithmetic whose
// order the source fixes: every version gives the same bits.
#if defined(__x86_64__) && !defined(STARLING_SANITIZED)
#define STARLING_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define STARLING_VECTOR_CLONES
#endif

namespace starling {

using MemoryDesc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

// Streams run inline, so there is nothing to wait for.
class CpuEvent : public Event {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

class CpuStream : public Stream {
 public:
  explicit CpuStream(const dnnl::engine& engine) : stream_(engine) {}
  absl::Status Record(Event&) override { return absl::OkStatus(); }
  absl::Status Wait(Event&) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  const dnnl::stream& dnnl() const { return stream_; }

 private:
  dnnl::stream stream_;
};

// Makes primitives created or run on this thread use exactly `threads` OpenMP threads, whatever
// OMP_NUM_THREADS, OMP_DYNAMIC or OMP_MAX_ACTIVE_LEVELS say. Cheap if nothing changed.
void UseKernelThreads(int threads);

// The layouts of values on the CPU: the low byte of ValueFormat::id. The bits above it are the type
// in which the numbers are stored, 0 for fp32.
enum CpuFormat : uint32_t { kPlain = 0, kChannelsLast = 1, kBlocked8 = 2, kBlocked16 = 3 };

DataType StoredType(ValueFormat format);
// The same layout with another type; for fp32 it is the layout alone.
ValueFormat StoredAs(ValueFormat format, DataType type);
inline ValueFormat LayoutOf(ValueFormat format) { return StoredAs(format, DataType::kFp32); }
dnnl::memory::data_type DnnlType(DataType type);

// A value's memory descriptor. Only four-dimensional values have layouts other than plain.
absl::StatusOr<MemoryDesc> DescOf(const Shape& shape, ValueFormat format);
MemoryDesc PlainDesc(const Shape& shape, DataType type = DataType::kFp32);
// The format of an operator's input i, and its memory descriptor.
inline ValueFormat InputFormat(const OperatorSpec& spec, size_t i) {
  return spec.input_formats.empty() ? ValueFormat{} : spec.input_formats[i];
}
inline MemoryDesc InputDesc(const OperatorSpec& spec, size_t i) {
  return *DescOf(spec.input_shapes[i], InputFormat(spec, i));
}
// How many channels a layout keeps together: 1 unless it is blocked.
inline int64_t BlockOf(ValueFormat layout) {
  return layout.id == kBlocked16 ? 16 : layout.id == kBlocked8 ? 8 : 1;
}
// The format that is exactly `desc`, or nullopt if none of ours is.
std::optional<ValueFormat> FormatOf(const Shape& shape, const MemoryDesc& desc);

// The attributes of every primitive: we provide the scratch memory, fp32 stays fp32.
dnnl::primitive_attr DefaultAttr();

// Offsets of 64-byte aligned pieces of one workspace.
class ScratchPlan {
 public:
  size_t Take(size_t bytes) {
    const size_t offset = size_;
    size_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

// A primitive with its memory objects, created once; only addresses change between calls.
class DnnlCall {
 public:
  struct Argument {
    int index;  // DNNL_ARG_...
    MemoryDesc desc;
  };
  DnnlCall() = default;
  // `pd` was created with DefaultAttr(); its scratchpad is taken from `plan`.
  DnnlCall(const dnnl::primitive_desc_base& pd, ScratchPlan& plan,
           const std::vector<Argument>& arguments);

  // `data`: an address for each argument, in their order.
  void Run(const CpuStream& stream, void* workspace, absl::Span<const void* const> data);

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // one per argument, then the scratchpad's
  std::vector<dnnl_exec_arg_t> arguments_;
  std::optional<size_t> scratch_;
};

DnnlCall ReorderCall(const MemoryDesc& from, const MemoryDesc& to, const dnnl::engine& engine,
                     ScratchPlan& plan);

// A buffer in one layout for a primitive that wants another: a place in the workspace and a
// reorder, or nothing if the layouts agree.
class Staging {
 public:
  Staging() = default;
  // A reorder from `from` to `to`; the primitive's side of it lies in the workspace.
  Staging(const MemoryDesc& from, const MemoryDesc& to, const MemoryDesc& staged,
          const dnnl::engine& engine, ScratchPlan& plan);

  // For a primitive's input: brings `data` into the wanted layout and returns its place.
  const void* In(const void* data, const CpuStream& stream, void* workspace);
  // For its output: where to write, before it runs...
  void* Place(void* data, void* workspace) const;
  // ...and the reorder to `data`, after it ran.
  void Out(void* data, const CpuStream& stream, void* workspace);

 private:
  std::optional<DnnlCall> reorder_;
  size_t offset_ = 0;
};

inline Staging StageIn(const MemoryDesc& have, const MemoryDesc& want, const dnnl::engine& engine,
                       ScratchPlan& plan) {
  return Staging(have, want, want, engine, plan);
}
inline Staging StageOut(const MemoryDesc& made, const MemoryDesc& want, const dnnl::engine& engine,
                        ScratchPlan& plan) {
  return Staging(made, want, made, engine, plan);
}

// A primitive whose arguments may lie in other layouts than it wants.
class StagedCall {
 public:
  struct Argument {
    int index;                   // DNNL_ARG_...
    MemoryDesc outside, inside;  // the caller's, and the primitive's. Empty: no such argument
    bool optional = false;       // an output that a call may not want
  };
  StagedCall() = default;
  // As for DnnlCall.
  StagedCall(const dnnl::primitive_desc_base& pd, ScratchPlan& plan,
             const std::vector<Argument>& inputs, const std::vector<Argument>& outputs);

  // An address for each argument, in their order; null if there is no such argument, or if this
  // output is not wanted.
  void Run(const CpuStream& stream, void* workspace, absl::Span<const void* const> inputs,
           absl::Span<void* const> outputs);

 private:
  struct Slot {
    bool present;
    Staging staging;
    size_t unwanted = 0;  // offset of a place for an output that is neither wanted nor staged
  };

  DnnlCall call_;
  std::vector<Slot> inputs_, outputs_;
  std::vector<const void*> places_;  // of the current call
};

// Calls `fn` with the operator's threads. kInternal with the operator's name: it threw a
// dnnl::error.
absl::Status Guarded(const OperatorSpec& spec, absl::FunctionRef<void()> fn);

// What every CPU kernel does around its arithmetic: threads, exceptions, sizes.
class CpuKernel : public OperatorKernel {
 public:
  absl::Status Forward(const ForwardArgs& args, Stream& stream) final;
  absl::Status Backward(const BackwardArgs& args, Stream& stream) final;

 protected:
  // Sizes and formats of the inputs come from the spec (already checked). Until the subclass says
  // otherwise, Backward reads nothing and the output is plain.
  CpuKernel(const OperatorSpec& spec, const OperatorGeometry& geometry);

  // Rejects input contents that Run cannot process, before anything is written.
  virtual absl::Status Check(const ForwardArgs&) const { return absl::OkStatus(); }
  // May throw dnnl::error.
  virtual void Run(const ForwardArgs& args, const CpuStream& stream) = 0;
  virtual void RunBackward(const BackwardArgs& args, const CpuStream& stream) = 0;

  void SetOutput(ValueFormat format, const MemoryDesc& desc);
  void KeepInputFormat() { SetOutput(input_format_, input_desc_); }

  const OperatorSpec spec_;
  const OperatorGeometry geometry_;
  ValueFormat input_format_;  // the format of inputs[0]
  MemoryDesc input_desc_;
  MemoryDesc output_desc_;
};

// to[i] += from[i].
void AddFloats(float* to, const float* from, size_t count);

// Throws dnnl_unimplemented if oneDNN has only its reference implementation for `type`, which is
// far slower than a fast fp32 one behind conversions.
inline void WantFast(DataType type, const dnnl::primitive_desc_base& pd) {
  if (type == DataType::kFp32 || std::strncmp(pd.impl_info_str(), "ref", 3) != 0) return;
  throw dnnl::error(dnnl_unimplemented, "only a reference implementation");
}

// Whether Winograd's F(4x4, 3x3) (Lavin and Gray 2016) is worth requesting: it computes 16 outputs
// with 36 products instead of 144, but transforms inputs, weights and outputs, so it needs many
// channels, and many tiles per weight. Depends only on the shape, because the bits must.
bool FavoursWinograd(const Geometry2d& p);

using CpuKernelPtr = std::unique_ptr<OperatorKernel>;
using MakeCpuKernel = CpuKernelPtr (*)(const OperatorSpec&, const OperatorGeometry&,
                                       const dnnl::engine&);

template <typename Kernel>
CpuKernelPtr MakeKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                        [[maybe_unused]] const dnnl::engine& engine) {
  if constexpr (std::is_constructible_v<Kernel, const OperatorSpec&, const OperatorGeometry&,
                                        const dnnl::engine&>) {
    return std::make_unique<Kernel>(spec, geometry, engine);
  } else {
    return std::make_unique<Kernel>(spec, geometry);
  }
}

// One per group of operators. `geometry` is ResolveGeometry(spec); formats are known ones. All
// accept an fp32 spec with values stored as fp32. Convolution, pooling, linear and reorder also
// accept bf16; batch norm also accepts any type in which all of its inputs are stored, in one
// format. May throw dnnl::error; dnnl_unimplemented: not in this type.
extern const MakeCpuKernel kMakeConvolution, kMakePooling, kMakeGlobalAvgPool, kMakeBatchNorm,
    kMakeActivation, kMakeDropout, kMakeArithmetic, kMakeConcat, kMakeSlice, kMakeReorder,
    kMakeNegativeSum;
// These accept plain inputs only; linear in any type that oneDNN multiplies.
extern const MakeCpuKernel kMakeLinear, kMakeLayerNorm, kMakeGatherRows, kMakePositionEmbedding,
    kMakeMatMul, kMakeAttention, kMakeSoftmaxCrossEntropy, kMakeElementwiseLoss;

// Wraps `inner`, which computes in fp32 on values of the same layouts as those of `spec`, in
// conversions of the values that are stored in another type. The output is stored in spec.type
// unless `plain_output`.
CpuKernelPtr MakeStored(const OperatorSpec& spec, CpuKernelPtr inner, bool plain_output);

// The same for an elementwise operator, in pieces, each computed by a kernel that `make` creates
// from an fp32 spec. nullptr: it is not elementwise, or its inputs differ in layout.
CpuKernelPtr MakeStoredPieces(const OperatorSpec& spec, const OperatorGeometry& geometry,
                              absl::FunctionRef<CpuKernelPtr(const OperatorSpec&)> make);

// Wraps `inner` in reorders: of the inputs, if it takes them plain and they are not, and of its
// output, if `spec` wants that plain and it is not. `inner` itself if there is nothing to reorder.
CpuKernelPtr MakeReordered(const OperatorSpec& spec, bool plain_inputs, CpuKernelPtr inner,
                           const dnnl::engine& engine);

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_ONEDNN_H_
