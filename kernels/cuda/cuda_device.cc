#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/survey.h"
#include "kernels/cuda/update.h"
#include "kernels/updating_device.h"

namespace starling::cuda {
namespace {

using Op = OperatorGeometry::Op;

Survey LookAround() {
  Survey survey;
  survey.toolkit = CUDART_VERSION;
  if (cudaDriverGetVersion(&survey.driver) != cudaSuccess) survey.driver = 0;
  cudaError_t error = cudaGetDeviceCount(&survey.gpus);
  cudaDeviceProp properties = {};
  if (error == cudaSuccess && survey.gpus > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) {
    survey.error = absl::StrCat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  }
  survey.name = properties.name;
  survey.compute_major = properties.major;
  survey.compute_minor = properties.minor;
  return survey;
}

// Threads need not select the GPU: the first is each thread's default.
class CudaDevice : public Device, public UpdatingDevice {
 public:
  CudaDevice(const Survey& survey, Libraries libraries)
      : libraries_(std::move(libraries)),
        name_(survey.name),
        instruction_set_(absl::StrCat("sm_", survey.compute_major, survey.compute_minor, ", CUDA ",
                                      VersionText(survey.toolkit))) {}

  std::string name() const override { return name_; }
  std::string instruction_set() const override { return instruction_set_; }
  bool host_reaches_memory() const override { return false; }
  Fusions fusions() const override {
    return {.batchnorm = true, .packed_attention = true, .linear_gelu = true};
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
    absl::Status status = CudaStatus(error, "cudaMalloc");
    if (status.ok()) return memory;
    if (!absl::IsResourceExhausted(status)) return status;
    STARLING_ASSIGN_OR_RETURN(const MemoryBytes left, Memory());
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes on ", name_,
                                                     ": ", left.available, " of ", left.total,
                                                     " are free"));
  }
  // Waits for running work; errors here cannot be handled.
  void Free(void* memory) override { static_cast<void>(cudaFree(memory)); }

  absl::StatusOr<MemoryBytes> Memory() override {
    MemoryBytes bytes;
    STARLING_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&bytes.available, &bytes.total));
    return bytes;
  }

  // Pinned, so that copy engines do the copies beside kernels.
  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&memory, std::max<size_t>(bytes, 1), cudaHostAllocDefault);
    absl::Status status = CudaStatus(error, "cudaHostAlloc");
    if (status.ok()) return memory;
    // The second error: the system does not allow that many pinned pages.
    if (error != cudaErrorMemoryAllocation && error != cudaErrorOperatingSystem) return status;
    return absl::ResourceExhaustedError(
        absl::StrCat("no pinned memory for ", bytes, " bytes: ", status.message()));
  }
  void FreeHost(void* memory) override { static_cast<void>(cudaFreeHost(memory)); }

  bool captures() const override { return true; }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return CudaStream::Create(); }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return CudaEvent::Create(/*timed=*/false);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() override {
    return CudaEvent::Create(/*timed=*/true);
  }
  absl::StatusOr<double> MicrosBetween(Event& from, Event& to) override {
    float milliseconds = 0;
    STARLING_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, EventOf(from), EventOf(to)));
    return 1e3 * static_cast<double>(milliseconds);
  }

  absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Move(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Move(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    return Move(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  absl::Status Zero(void* to, size_t bytes, Stream& stream) override {
    if (bytes == 0) return absl::OkStatus();
    return STARLING_CUDA_STATUS(cudaMemsetAsync(to, 0, bytes, StreamOf(stream)));
  }
  absl::Status Add(float* to, const float* from, size_t elements, Stream& stream) override {
    return STARLING_CUDA_STATUS(
        LaunchAdd(Element::kFloat, to, from, to, static_cast<int64_t>(elements), StreamOf(stream)));
  }

  absl::Status SetStepValues(StepValues* to, const StepValues& values, Stream& stream) override {
    return STARLING_CUDA_STATUS(LaunchSetStepValues(values, to, StreamOf(stream)));
  }

  absl::Status Update(const OptimizerStep& step, const float* gradient, float* w, float* slot0,
                      float* slot1, size_t elements, Stream& stream) override {
    return STARLING_CUDA_STATUS(LaunchUpdate(step, gradient, w, slot0, slot1,
                                             static_cast<int64_t>(elements), StreamOf(stream)));
  }

  absl::Status CountCorrect(const Judgement& judgement, const void* logits, const void* labels,
                            uint32_t* correct, Stream& stream) override {
    STARLING_RETURN_IF_ERROR(Zero(correct, judgement.samples * sizeof(uint32_t), stream));
    const int64_t rows = judgement.samples * judgement.labels, classes = judgement.classes;
    if (judgement.binary) {
      return STARLING_CUDA_STATUS(LaunchCountSigns(static_cast<const float*>(logits),
                                                   static_cast<const float*>(labels), rows,
                                                   judgement.labels, correct, StreamOf(stream)));
    }
    STARLING_ASSIGN_OR_RETURN(const Format format,
                              FromValueFormat({rows, classes}, judgement.logits));
    return STARLING_CUDA_STATUS(LaunchCountGreatest({.element = format.element,
                                                     .data = logits,
                                                     .rows = rows,
                                                     .columns = classes,
                                                     .row_stride = RowStride(classes, format)},
                                                    static_cast<const int32_t*>(labels),
                                                    judgement.labels, correct, StreamOf(stream)));
  }
  DataType TypeOf(ValueFormat format) const override {
    return static_cast<DataType>(ElementOf(format));
  }
  absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                         Stream& stream) override {
    const Element element = ElementOf(format);
    const auto count = static_cast<int64_t>(bytes / ElementBytes(element));
    return STARLING_CUDA_STATUS(LaunchAdd(element, to, from, to, count, StreamOf(stream)));
  }

  absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(const OperatorSpec& spec) override;

 private:
  static cudaStream_t StreamOf(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }
  static cudaEvent_t EventOf(Event& event) { return static_cast<CudaEvent&>(event).get(); }
  static absl::Status Move(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                           Stream& stream) {
    if (bytes == 0) return absl::OkStatus();
    return STARLING_CUDA_STATUS(cudaMemcpyAsync(to, from, bytes, kind, StreamOf(stream)));
  }

  const Libraries libraries_;
  const std::string name_;
  const std::string instruction_set_;
};

// The inputs' formats; labels and indices must be plain.
absl::StatusOr<std::vector<Format>> FormatsOf(const OperatorSpec& spec,
                                              const OperatorGeometry& geometry) {
  std::vector<Format> formats(spec.input_shapes.size());
  for (size_t i = 0; i < spec.input_formats.size(); ++i) {
    const bool labels = geometry.labels_input && i + 1 == spec.input_formats.size();
    const absl::StatusOr<Format> format =
        FromValueFormat(spec.input_shapes[i], spec.input_formats[i]);
    if (format.ok() && !(labels && !format->plain())) {
      formats[i] = *format;
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("operator '", spec.name, "' (", spec.op, "), input ", i, ": ",
                     format.ok() ? "labels and indices must be plain" : format.status().message()));
  }
  return formats;
}

MakeCudaKernel MakerOf(Op op) {
  switch (op) {
    case Op::kRelu:
    case Op::kGelu:
    case Op::kSigmoid:
    case Op::kTanh:
    case Op::kClip: return kMakeActivation;
    case Op::kDropout: return kMakeDropout;
    case Op::kAdd: return kMakeAdd;
    case Op::kMul: return kMakeMul;
    case Op::kReshape:
    case Op::kFlatten: return kMakeReshape;
    case Op::kTranspose: return kMakeTranspose;
    case Op::kConcat: return kMakeConcat;
    case Op::kSlice: return kMakeSlice;
    case Op::kLayerNorm: return kMakeLayerNorm;
    case Op::kEmbedding:
    case Op::kGatherRows: return kMakeTable;
    case Op::kPositionEmbedding: return kMakePositionEmbedding;
    case Op::kSoftmaxCrossEntropy: return kMakeSoftmaxCrossEntropy;
    case Op::kMeanSquaredError:
    case Op::kBinaryCrossEntropy:
    case Op::kNegativeSum: return kMakeValueLoss;
    case Op::kBatchNorm: return kMakeBatchNorm;
    case Op::kMaxPool2d: return kMakeMaxPool;
    case Op::kAvgPool2d: return kMakeAveragePool;
    case Op::kGlobalAvgPool2d: return kMakeGlobalAvgPool;
    case Op::kLinear: return kMakeLinear;
    case Op::kMatMul: return kMakeMatMul;
    case Op::kAttention: return kMakeAttention;
    case Op::kConv2d: return kMakeConvolution;
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<OperatorKernel>> CudaDevice::CreateOperator(
    const OperatorSpec& spec) {
  STARLING_ASSIGN_OR_RETURN(const OperatorGeometry geometry, ResolveGeometry(spec));
  STARLING_ASSIGN_OR_RETURN(const std::vector<Format> given, FormatsOf(spec, geometry));
  const FormatPlan plan = PlanFormats(spec, geometry, given);
  const MakeCudaKernel make = MakerOf(geometry.op);
  STARLING_CHECK(make != nullptr, spec.op.c_str());
  STARLING_ASSIGN_OR_RETURN(CudaKernelPtr kernel, make(spec, geometry, plan, libraries_));
  Format output = spec.plain_output ? Format{} : plan.output;
  if (spec.judged_output) output.channels_last = false;
  if (given == plan.inputs && output == plan.output) return kernel;
  return MakeConverting(spec, plan, given, output, std::move(kernel));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice() {
  const Survey survey = LookAround();
  STARLING_RETURN_IF_ERROR(CheckSurvey(survey));
  // Waiting threads sleep, because loaders and shards on this machine need the CPU.
  STARLING_RETURN_IF_CUDA_ERROR(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  Libraries libraries;
  STARLING_ASSIGN_OR_RETURN(libraries.products, CublasLt::Load());
  STARLING_ASSIGN_OR_RETURN(libraries.cudnn, Cudnn::Load());
  return std::make_unique<CudaDevice>(survey, std::move(libraries));
}

}  // namespace starling::cuda
