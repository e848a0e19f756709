#include "kernels/cpu/cpu_device.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "kernels/cpu/onednn.h"
#include "kernels/half.h"
#include "kernels/judge.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;

constexpr size_t kAlignment = 64;
// Large blocks use huge pages: otherwise a pass over many megabytes of activations would miss the
// TLB at every 4 KiB page, at twice the cost in a virtual machine.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeBytesMin = 2 * kHugePage;

std::string IsaName(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41: return "sse41";
    case dnnl::cpu_isa::avx: return "avx";
    case dnnl::cpu_isa::avx2: return "avx2";
    case dnnl::cpu_isa::avx2_vnni: return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core: return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni: return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16: return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx: return "avx512_core_amx";
    default: return absl::StrCat("isa_", static_cast<int>(isa));
  }
}

// Whether bf16 saves more than memory: on lesser CPUs oneDNN emulates it with conversions.
bool MultipliesBf16(dnnl::cpu_isa isa) {
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

// Its output is fp32, whatever type the operator computes in.
bool IsLoss(Op op) {
  return op == Op::kSoftmaxCrossEntropy || op == Op::kMeanSquaredError ||
         op == Op::kBinaryCrossEntropy || op == Op::kNegativeSum;
}

class CpuDevice : public Device {
 public:
  CpuDevice()
      : engine_(dnnl::engine::kind::cpu, 0),
        isa_(IsaName(dnnl::get_effective_cpu_isa())),
        multiplies_bf16_(MultipliesBf16(dnnl::get_effective_cpu_isa())),
        multiplies_matrices_(dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx) {}

  std::string name() const override { return "cpu"; }
  std::string instruction_set() const override { return isa_; }
  bool host_reaches_memory() const override { return true; }

  Fusions fusions() const override { return {.batchnorm = true, .packed_attention = true}; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    const size_t alignment = bytes < kHugeBytesMin ? kAlignment : kHugePage;
    const size_t rounded = (bytes / alignment + 1) * alignment;
    void* memory = rounded > bytes ? std::aligned_alloc(alignment, rounded) : nullptr;
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    }
    // A hint: without huge pages nothing changes.
    if (alignment == kHugePage) static_cast<void>(madvise(memory, rounded, MADV_HUGEPAGE));
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  absl::StatusOr<MemoryBytes> Memory() override {
    const size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    return MemoryBytes{AvailableMemoryBytes(), total};
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    try {
      return std::make_unique<CpuStream>(engine_);
    } catch (const dnnl::error& error) {
      return absl::InternalError(absl::StrCat("oneDNN makes no stream: ", error.what()));
    }
  }

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<CpuEvent>();
  }

  absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Copy(to, from, bytes, stream);
  }
  absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Copy(to, from, bytes, stream);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::Status CountCorrect(const Judgement& judgement, const void* logits, const void* labels,
                            uint32_t* correct, Stream&) override {
    CountCorrectOnHost(judgement, static_cast<const float*>(logits), labels, correct);
    return absl::OkStatus();
  }
  absl::Status Zero(void* to, size_t bytes, Stream&) override {
    if (bytes > 0) std::memset(to, 0, bytes);
    return absl::OkStatus();
  }
  absl::Status Add(float* to, const float* from, size_t elements, Stream&) override {
    AddFloats(to, from, elements);
    return absl::OkStatus();
  }

  DataType TypeOf(ValueFormat format) const override { return StoredType(format); }
  absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                         Stream&) override {
    const DataType type = StoredType(format);
    if (type == DataType::kFp32) {
      AddFloats(static_cast<float*>(to), static_cast<const float*>(from), bytes / sizeof(float));
    } else {
      AddNarrow(type, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to),
                static_cast<int64_t>(bytes / sizeof(uint16_t)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(const OperatorSpec& spec) override;

 private:
  CpuKernelPtr MakeNative(const OperatorSpec& spec, const OperatorGeometry& geometry) const;
  CpuKernelPtr MakeOfFp32(const OperatorSpec& spec, const OperatorGeometry& geometry) const;
  CpuKernelPtr Make(const OperatorSpec& spec, const OperatorGeometry& geometry) const;

  const dnnl::engine engine_;
  const std::string isa_;
  const bool multiplies_bf16_, multiplies_matrices_;
};

absl::Status CheckFormats(const OperatorSpec& spec, const OperatorGeometry& geometry) {
  for (size_t i = 0; i < spec.input_formats.size(); ++i) {
    const bool labels = geometry.labels_input && i + 1 == spec.input_formats.size();
    absl::Status status = DescOf(spec.input_shapes[i], spec.input_formats[i]).status();
    if (labels && !spec.input_formats[i].plain()) {
      status = absl::InvalidArgumentError("labels and indices must be plain");
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("operator '", spec.name, "' (", spec.op,
                                                     "), input ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

struct Maker {
  Op op;
  MakeCpuKernel make;
  bool plain_inputs = false;  // it needs contiguous rows
};

const Maker& MakerOf(const OperatorSpec& spec, Op op) {
  static const Maker kMakers[] = {
      {Op::kConv2d, kMakeConvolution},
      {Op::kMaxPool2d, kMakePooling},
      {Op::kAvgPool2d, kMakePooling},
      {Op::kGlobalAvgPool2d, kMakeGlobalAvgPool},
      {Op::kBatchNorm, kMakeBatchNorm},
      {Op::kRelu, kMakeActivation},
      {Op::kGelu, kMakeActivation},
      {Op::kSigmoid, kMakeActivation},
      {Op::kTanh, kMakeActivation},
      {Op::kClip, kMakeActivation},
      {Op::kDropout, kMakeDropout},
      {Op::kAdd, kMakeArithmetic},
      {Op::kMul, kMakeArithmetic},
      {Op::kConcat, kMakeConcat},
      {Op::kSlice, kMakeSlice},
      {Op::kReshape, kMakeReorder},
      {Op::kTranspose, kMakeReorder},
      {Op::kFlatten, kMakeReorder},
      {Op::kNegativeSum, kMakeNegativeSum},
      {Op::kLinear, kMakeLinear, true},
      {Op::kLayerNorm, kMakeLayerNorm, true},
      {Op::kEmbedding, kMakeGatherRows, true},
      {Op::kGatherRows, kMakeGatherRows, true},
      {Op::kPositionEmbedding, kMakePositionEmbedding, true},
      {Op::kMatMul, kMakeMatMul, true},
      {Op::kAttention, kMakeAttention, true},
      {Op::kSoftmaxCrossEntropy, kMakeSoftmaxCrossEntropy, true},
      {Op::kMeanSquaredError, kMakeElementwiseLoss, true},
      {Op::kBinaryCrossEntropy, kMakeElementwiseLoss, true},
  };
  const Maker* maker = std::ranges::find(kMakers, op, &Maker::op);
  STARLING_CHECK(maker != std::end(kMakers), spec.op.c_str());
  return *maker;
}

// An operator on fp32 values in any layout.
CpuKernelPtr CpuDevice::Make(const OperatorSpec& spec, const OperatorGeometry& geometry) const {
  const Maker& maker = MakerOf(spec, geometry.op);
  OperatorSpec inside = spec;
  if (maker.plain_inputs) inside.input_formats.clear();
  return MakeReordered(spec, maker.plain_inputs, maker.make(inside, geometry, engine_), engine_);
}

// Operators that read and write two-byte values themselves: our batch norm, and in bf16 those that
// oneDNN computes with the CPU's own instructions, or moves. nullptr: it is none of them, or its
// shape is faster in fp32 behind conversions.
CpuKernelPtr CpuDevice::MakeNative(const OperatorSpec& spec,
                                   const OperatorGeometry& geometry) const {
  if (spec.type == DataType::kFp32) return nullptr;
  const ValueFormat format = InputFormat(spec, 0);
  const bool stored = StoredType(format) == spec.type;
  if (geometry.op == Op::kBatchNorm) {
    const bool alike = std::count(spec.input_formats.begin(), spec.input_formats.end(), format) ==
                       static_cast<int64_t>(spec.input_formats.size());
    if (!stored || !alike || spec.plain_output) return nullptr;
    return kMakeBatchNorm(spec, geometry, engine_);
  }
  if (spec.type != DataType::kBf16 || !multiplies_bf16_) return nullptr;
  // Without matrix instructions bf16 has at best twice fp32's products per second, and Winograd's
  // algorithm, which oneDNN has only in fp32, needs less than half of them.
  if (geometry.op == Op::kConv2d && !multiplies_matrices_ && FavoursWinograd(geometry.plane)) {
    return nullptr;
  }
  const bool plain_layouts = std::ranges::all_of(
      spec.input_formats, [](ValueFormat input) { return LayoutOf(input).plain(); });
  switch (geometry.op) {
    case Op::kConv2d: break;
    case Op::kLinear:
      if (!plain_layouts) return nullptr;
      break;
    case Op::kMaxPool2d:
    case Op::kAvgPool2d:
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kFlatten:
      if (!stored) return nullptr;
      break;
    default: return nullptr;
  }
  try {
    return MakeReordered(spec, false, MakerOf(spec, geometry.op).make(spec, geometry, engine_),
                         engine_);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return nullptr;
    throw;
  }
}

// Every operator, computed in fp32, for values stored in any type.
CpuKernelPtr CpuDevice::MakeOfFp32(const OperatorSpec& spec,
                                   const OperatorGeometry& geometry) const {
  OperatorSpec inside = spec;
  inside.type = DataType::kFp32;
  for (ValueFormat& format : inside.input_formats) format = LayoutOf(format);
  if (spec.type == DataType::kFp32 && inside.input_formats == spec.input_formats) {
    return Make(spec, geometry);
  }
  const auto make = [this](const OperatorSpec& piece) {
    return Make(piece, ResolveGeometry(piece).value());
  };
  if (CpuKernelPtr pieces = MakeStoredPieces(spec, geometry, make)) return pieces;
  return MakeStored(spec, Make(inside, geometry), spec.plain_output || IsLoss(geometry.op));
}

absl::StatusOr<std::unique_ptr<OperatorKernel>> CpuDevice::CreateOperator(
    const OperatorSpec& given) {
  OperatorSpec spec = given;
  spec.plain_output = given.plain_output || given.judged_output;
  absl::StatusOr<OperatorGeometry> geometry = ResolveGeometry(spec);
  if (!geometry.ok()) return geometry.status();
  if (absl::Status status = CheckFormats(spec, *geometry); !status.ok()) return status;
  if (geometry->gelu) {
    return absl::UnimplementedError(
        absl::StrCat("operator '", spec.name,
                     "' (linear): the CPU has no "
                     "kernel with GELU behind it, expected two operators"));
  }
  if (spec.kernel_threads > omp_get_thread_limit()) {
    return absl::FailedPreconditionError(
        absl::StrCat("kernel_threads is ", spec.kernel_threads, ", but OMP_THREAD_LIMIT allows ",
                     omp_get_thread_limit(), ": unset it for this daemon"));
  }
  CpuKernelPtr kernel;
  absl::Status status = Guarded(spec, [&] {
    kernel = MakeNative(spec, *geometry);
    if (kernel == nullptr) kernel = MakeOfFp32(spec, *geometry);
  });
  if (!status.ok()) return status;
  return kernel;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice() {
  // Has no effect once a kernel was compiled; then an earlier call has set it.
  static_cast<void>(dnnl_set_cpu_isa_hints(dnnl_cpu_isa_no_hints));
  try {
    return std::make_unique<CpuDevice>();
  } catch (const dnnl::error& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("oneDNN cannot use this CPU (it needs SSE4.1): ", error.what()));
  }
}

}  // namespace starling
