#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "cudnn_frontend.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/plan_timing.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stopwatch.h"

// Where the front end finds cuDNN's functions.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace starling::cuda {
namespace {

namespace fe = cudnn_frontend;

constexpr size_t kMajor = 9;
constexpr int64_t kWorkspaceBytesMax = 256 << 20;

// Candidates for a tuned plan, and timed runs of each after an untimed one.
constexpr size_t kCandidatesMax = 4;
constexpr int kTimedRuns = 5, kCallsOfRun = 8;
// The oldest GPU that the kernels are compiled for, used if there is none to ask.
constexpr int kHopper = 90;

absl::Status Lost(const std::string& text) {
  return absl::UnavailableError(
      absl::StrCat("the GPU is lost to this process: ", text,
                   "; look at the system's log (Xid), and start the process again"));
}

absl::Status Said(fe::error_t error, const char* call) {
  if (error.is_good()) return absl::OkStatus();
  const std::string text = absl::StrCat("cuDNN, ", call, ": ", error.get_message());
  if (absl::StrContains(text, "EXECUTION_FAILED")) return Lost(text);
  return absl::InternalError(text);
}

// Errors during planning. Running out of memory must not look like a refusal: this worker alone
// would then use another plan, which may give other bits. Only the text distinguishes cuDNN's
// errors.
absl::Status SaidOfPlan(fe::error_t error, const char* call) {
  const std::string text = absl::StrCat("cuDNN, ", call, ": ", error.get_message());
  if (error.is_good()) return absl::OkStatus();
  if (absl::StrContains(text, "ALLOC")) return absl::ResourceExhaustedError(text);
  switch (error.get_code()) {
    case fe::error_code_t::GRAPH_NOT_SUPPORTED:
    case fe::error_code_t::HEURISTIC_QUERY_FAILED:
    case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
      return absl::UnimplementedError(text);
    case fe::error_code_t::CUDNN_BACKEND_API_FAILED:
      // A bad parameter is one that this version does not support: shapes were checked before.
      if (absl::StrContains(text, "NOT_SUPPORTED") || absl::StrContains(text, "BAD_PARAM")) {
        return absl::UnimplementedError(text);
      }
      return absl::InternalError(text);
    default: return absl::InternalError(text);
  }
}

absl::Status Said(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": status ", static_cast<int>(status));
  if (status == CUDNN_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(text);
  if (status == CUDNN_STATUS_EXECUTION_FAILED) return Lost(text);
  return absl::InternalError(text);
}

// The front end throws if it does not find a library or function, and for some graphs that it does
// not support.
template <typename F>
absl::Status Guarded(F f) {
  try {
    return f();
  } catch (const std::exception& error) {
    const std::string text = absl::StrCat("cuDNN's front end: ", error.what());
    if (absl::StrContains(text, "No suitable implementation") ||
        absl::StrContains(text, "NOT_SUPPORTED")) {
      return absl::UnimplementedError(text);
    }
    return absl::InternalError(text);
  }
}

fe::DataType_t TypeOf(Element element) {
  switch (element) {
    case Element::kFloat: return fe::DataType_t::FLOAT;
    case Element::kBfloat16: return fe::DataType_t::BFLOAT16;
    case Element::kHalf: return fe::DataType_t::HALF;
  }
  return fe::DataType_t::FLOAT;
}

template <size_t kSize>
std::vector<int64_t> ListOf(const std::array<int64_t, kSize>& array) {
  return std::vector<int64_t>(array.begin(), array.end());
}

// For planning; one thread at a time uses it.
struct Handle {
  int sm_version = kHopper;  // the GPU's; set before the first plan
  absl::Mutex mutex;
  cudnnHandle_t handle ABSL_GUARDED_BY(mutex) = nullptr;
};

// The handle with which plans run on `stream`, made at the first call. Streams share none: a handle
// that moves from one stream to another while both are captured is not safe.
absl::StatusOr<cudnnHandle_t> HandleOf(CudaStream& stream) {
  std::shared_ptr<void>& kept = stream.cudnn_handle();
  if (kept == nullptr) {
    cudnnHandle_t made = nullptr;
    STARLING_RETURN_IF_ERROR(Said(fe::detail::create_handle(&made), "cudnnCreate"));
    std::shared_ptr<void> owned(made, [](void* handle) {
      static_cast<void>(fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle)));
    });
    STARLING_RETURN_IF_ERROR(Said(fe::detail::set_stream(made, stream.get()), "cudnnSetStream"));
    kept = std::move(owned);
  }
  return static_cast<cudnnHandle_t>(kept.get());
}

// A graph, and the plan chosen for it. Subclasses describe the graph.
class PlannedGraph {
 protected:
  using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;
  using Sizes = std::array<int64_t, 4>;
  // A tensor of the graph, by its number there, and its memory address.
  struct Place {
    int64_t tensor = 0;
    const void* memory = nullptr;
  };
  // A tensor's size in bytes.
  struct Extent {
    int64_t tensor = 0;
    size_t bytes = 0;
  };

  explicit PlannedGraph(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {
    graph_.set_sm_version(handle_->sm_version);
    // Plans outlive the CUDA graphs that they are captured into.
    graph_.set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
  }

  void Describe(Element element) {
    graph_.set_io_data_type(TypeOf(element))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  TensorPtr Given(int64_t tensor, Element element, const Sizes& size, const Sizes& strides) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(tensor)
                             .set_data_type(TypeOf(element))
                             .set_dim(ListOf(size))
                             .set_stride(ListOf(strides)));
  }
  static void Made(const TensorPtr& made, int64_t tensor, Element element, const Sizes& size,
                   const Sizes& strides) {
    made->set_uid(tensor)
        .set_output(true)
        .set_data_type(TypeOf(element))
        .set_dim(ListOf(size))
        .set_stride(ListOf(strides));
  }

  absl::Status Validate() { return SaidOfPlan(graph_.validate(), "validate"); }

  // For a described graph, chooses the heuristics' first plan that uses nothing barred, or the
  // fastest of several if `tuned` lists the tensors.
  absl::Status Choose(const std::vector<fe::HeurMode_t>& heuristics,
                      const std::vector<fe::NumericalNote_t>& barred,
                      absl::Span<const Extent> tuned) {
    absl::MutexLock lock(&handle_->mutex);
    STARLING_RETURN_IF_ERROR(Validate());
    STARLING_RETURN_IF_ERROR(
        SaidOfPlan(graph_.build_operation_graph(handle_->handle), "build_operation_graph"));
    STARLING_RETURN_IF_ERROR(
        SaidOfPlan(graph_.create_execution_plans(heuristics), "create_execution_plans"));
    graph_.deselect_numeric_notes(barred);
    std::vector<int64_t> built;
    STARLING_RETURN_IF_ERROR(BuildPlans(tuned.empty() ? 1 : kCandidatesMax, &built));
    chosen_ = built[0];
    if (built.size() > 1) {
      // On a failure the heuristics' choice remains.
      const absl::StatusOr<int64_t> fastest = FastestOf(built, tuned);
      if (fastest.ok()) chosen_ = *fastest;
    }
    STARLING_ASSIGN_OR_RETURN(workspace_bytes_, WorkspaceOf(chosen_));
    return absl::OkStatus();
  }

  size_t workspace_bytes() const { return ScratchBytes(workspace_bytes_); }

  absl::Status Execute(absl::Span<const Place> places, void* workspace, CudaStream& stream) const {
    return Guarded([&] {
      absl::MutexLock lock(&mutex_);
      return ExecutePlan(chosen_, places, AlignedScratch(workspace), stream);
    });
  }

  const std::shared_ptr<Handle> handle_;
  fe::graph::Graph graph_;

 private:
  // The first `most` that can be built, in the heuristics' order.
  absl::Status BuildPlans(size_t most, std::vector<int64_t>* built) {
    std::string refusals;
    const auto count = static_cast<int64_t>(graph_.get_execution_plan_count());
    for (int64_t i = 0; i < count && built->size() < most; ++i) {
      const absl::Status status = SaidOfPlan(graph_.build_plan_at_index(i), "build_plan");
      if (status.ok()) {
        built->push_back(i);
        continue;
      }
      if (absl::IsResourceExhausted(status) && built->empty()) return status;
      absl::StrAppend(&refusals, "; ", status.message());
    }
    if (!built->empty()) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("cuDNN can use none of ", count, " plans", refusals));
  }

  absl::StatusOr<size_t> WorkspaceOf(int64_t plan) const {
    int64_t bytes = 0;
    STARLING_RETURN_IF_ERROR(
        Said(graph_.get_workspace_size_plan_at_index(plan, bytes), "get_workspace_size"));
    return static_cast<size_t>(bytes);
  }

  absl::Status ExecutePlan(int64_t plan, absl::Span<const Place> places, void* workspace,
                           CudaStream& stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Place& place : places) pointers_[place.tensor] = const_cast<void*>(place.memory);
    STARLING_ASSIGN_OR_RETURN(const cudnnHandle_t handle, HandleOf(stream));
    return Said(graph_.execute_plan_at_index(handle, pointers_, workspace, plan), "execute");
  }

  // Times built plans. Blocks as long as they take.
  absl::StatusOr<int64_t> FastestOf(const std::vector<int64_t>& plans,
                                    absl::Span<const Extent> extents) {
    const BesideCaptures beside;
    absl::MutexLock lock(&mutex_);
    const auto whole = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    size_t workspace = 0;
    for (int64_t plan : plans) {
      STARLING_ASSIGN_OR_RETURN(const size_t bytes, WorkspaceOf(plan));
      workspace = std::max(workspace, whole(bytes));
    }
    size_t bytes = workspace;
    for (const Extent& extent : extents) bytes += whole(extent.bytes);
    STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<CudaStream> stream, CudaStream::Create());
    // Otherwise a lack of memory for it would look like a plan that does not run.
    STARLING_RETURN_IF_ERROR(HandleOf(*stream).status());
    STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch,
                              Scratch::Allocate(bytes, *stream));
    STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Stopwatch> watch, Stopwatch::Create());
    std::vector<Place> places;
    size_t offset = workspace;
    for (const Extent& extent : extents) {
      places.push_back({extent.tensor, scratch->at(offset)});
      offset += whole(extent.bytes);
    }
    std::vector<std::vector<float>> times;
    for (int64_t plan : plans) {
      STARLING_ASSIGN_OR_RETURN(times.emplace_back(),
                                TimesOf(plan, places, scratch->at(0), *stream, *watch));
    }
    return plans[Fastest(times)];
  }

  // Empty: cuDNN does not run it. An error: the GPU does not work.
  absl::StatusOr<std::vector<float>> TimesOf(int64_t plan, absl::Span<const Place> places,
                                             void* workspace, CudaStream& stream,
                                             Stopwatch& watch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<float> times;
    for (int run = 0; run <= kTimedRuns; ++run) {
      // Launching a small convolution takes the host longer than running it takes the GPU, so
      // several are queued after the first.
      const int calls = run == 0 ? 1 : kCallsOfRun;
      bool ran = true;
      STARLING_RETURN_IF_ERROR(watch.Begin(stream));
      for (int i = 0; i < calls; ++i)
        ran = ran && ExecutePlan(plan, places, workspace, stream).ok();
      STARLING_ASSIGN_OR_RETURN(const float milliseconds, watch.End(stream));
      if (!ran) return std::vector<float>();
      // The first run also loads the kernel.
      if (run > 0) times.push_back(milliseconds / static_cast<float>(calls));
    }
    return times;
  }

  int64_t chosen_ = 0;
  size_t workspace_bytes_ = 0;
  mutable absl::Mutex mutex_;
  // Filled by one call at a time; kept, so that a call allocates nothing.
  mutable std::unordered_map<int64_t, void*> pointers_ ABSL_GUARDED_BY(mutex_);
};

class PlanOfConvolution : public ConvolutionPlan, private PlannedGraph {
 public:
  PlanOfConvolution(std::shared_ptr<Handle> handle, const ConvolutionKey& key)
      : PlannedGraph(std::move(handle)), key_(key) {}

  absl::Status Build() {
    return Guarded([&] {
      Describe();
      std::vector<fe::NumericalNote_t> barred = {fe::NumericalNote_t::NONDETERMINISTIC};
      // Tensor cores round its inputs to tf32; down-conversion, to less.
      if (key_.element == Element::kFloat) {
        if (!key_.tf32) barred.push_back(fe::NumericalNote_t::TENSOR_CORE);
        barred.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
      }
      graph_.deselect_workspace_greater_than(kWorkspaceBytesMax);
      std::vector<Extent> tuned;
      if (key_.tune) {
        tuned = {{kX, BytesOf(key_.input)}, {kW, BytesOf(key_.weight)}, {kY, BytesOf(key_.output)}};
      }
      return Choose({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}, barred, tuned);
    });
  }

  absl::Status Validate() {
    return Guarded([&] {
      Describe();
      return PlannedGraph::Validate();
    });
  }

  size_t workspace_bytes() const override { return PlannedGraph::workspace_bytes(); }

  absl::Status Run(void* x, void* w, void* y, void* workspace, CudaStream& stream) const override {
    return Execute({{kX, x}, {kW, w}, {kY, y}}, workspace, stream);
  }

 private:
  enum Tensor : int64_t { kX = 1, kW, kY };

  size_t BytesOf(const Sizes& size) const {
    return static_cast<size_t>(size[0] * size[1] * size[2] * size[3]) * ElementBytes(key_.element);
  }
  TensorPtr In(Tensor tensor, const Sizes& size) {
    return Given(tensor, key_.element, size, StridesOf(size, key_.channels_last));
  }
  void Out(const TensorPtr& made, Tensor tensor, const Sizes& size) {
    Made(made, tensor, key_.element, size, StridesOf(size, key_.channels_last));
  }

  template <typename Attributes>
  Attributes Of() const {
    return Attributes()
        .set_padding(ListOf(key_.padding))
        .set_stride(ListOf(key_.stride))
        .set_dilation(ListOf(key_.dilation));
  }

  void Describe() {
    PlannedGraph::Describe(key_.element);
    switch (key_.pass) {
      case Pass::kForward:
        return Out(graph_.conv_fprop(In(kX, key_.input), In(kW, key_.weight),
                                     Of<fe::graph::Conv_fprop_attributes>()),
                   kY, key_.output);
      case Pass::kInputGradient:
        return Out(graph_.conv_dgrad(In(kY, key_.output), In(kW, key_.weight),
                                     Of<fe::graph::Conv_dgrad_attributes>()),
                   kX, key_.input);
      case Pass::kWeightGradient:
        return Out(graph_.conv_wgrad(In(kY, key_.output), In(kX, key_.input),
                                     Of<fe::graph::Conv_wgrad_attributes>()),
                   kW, key_.weight);
    }
  }

  const ConvolutionKey key_;
};

class PlanOfAttention : public AttentionPlan, private PlannedGraph {
 public:
  PlanOfAttention(std::shared_ptr<Handle> handle, const AttentionKey& key)
      : PlannedGraph(std::move(handle)), key_(key) {}

  // Nothing is barred: deterministic backward is requested from the operator itself, and its engine
  // is one that can also be nondeterministic.
  absl::Status Build() {
    return Guarded([&]() -> absl::Status {
      const size_t version = fe::detail::get_backend_version();
      if (version < OldestCudnn(key_)) {
        return absl::UnimplementedError(absl::StrCat("expected cuDNN ", OldestCudnn(key_),
                                                     " or newer for ", key_.positions,
                                                     " positions, here is ", version));
      }
      if (key_.backward && !ScratchIsAligned(key_)) {
        return absl::UnimplementedError("attention's gradient: rows that leave scratch unaligned");
      }
      Describe();
      return Choose({fe::HeurMode_t::A}, {}, {});
    });
  }

  absl::Status Validate() {
    return Guarded([&] {
      Describe();
      return PlannedGraph::Validate();
    });
  }

  size_t workspace_bytes() const override { return PlannedGraph::workspace_bytes(); }

  absl::Status Run(const AttentionValues& at, void* workspace, CudaStream& stream) const override {
    const Place places[] = {{kQuery, at.query},           {kKey, at.key},
                            {kValue, at.value},           {kOutput, at.output},
                            {kStatistics, at.statistics}, {kGradOutput, at.grad_output},
                            {kGradQuery, at.grad_query},  {kGradKey, at.grad_key},
                            {kGradValue, at.grad_value}};
    const size_t used = key_.backward ? kGradValue : key_.statistics ? kStatistics : kOutput;
    return Execute(absl::MakeConstSpan(places, used), workspace, stream);
  }

 private:
  // Forward uses the first four or five, backward all.
  enum Tensor : int64_t {
    kQuery = 1,
    kKey,
    kValue,
    kOutput,
    kStatistics,
    kGradOutput,
    kGradQuery,
    kGradKey,
    kGradValue
  };

  TensorPtr Input(Tensor tensor) {
    return Given(tensor, key_.element, ValueSize(key_), InputStrides(key_));
  }
  TensorPtr Output(Tensor tensor) {
    return Given(tensor, key_.element, ValueSize(key_), OutputStrides(key_));
  }

  template <typename Attributes>
  Attributes Of() const {
    Attributes attributes;
    attributes.set_name("attention").set_attn_scale(1 / std::sqrt(static_cast<float>(key_.width)));
    if (key_.causal) {
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
    }
    return attributes;
  }

  void Describe() {
    PlannedGraph::Describe(key_.element);
    if (key_.backward) return DescribeBackward();
    auto [output, statistics] =
        graph_.sdpa(Input(kQuery), Input(kKey), Input(kValue),
                    Of<fe::graph::SDPA_attributes>()
                        .set_generate_stats(key_.statistics)
                        // The same engine for every mask and version; backward has no other.
                        .set_implementation(fe::AttentionImplementation_t::COMPOSITE));
    Made(output, kOutput, key_.element, ValueSize(key_), OutputStrides(key_));
    if (!key_.statistics) return;
    Made(statistics, kStatistics, Element::kFloat, StatisticsSize(key_), StatisticsStrides(key_));
  }

  void DescribeBackward() {
    const TensorPtr statistics =
        Given(kStatistics, Element::kFloat, StatisticsSize(key_), StatisticsStrides(key_));
    auto gradients = graph_.sdpa_backward(
        Input(kQuery), Input(kKey), Input(kValue), Output(kOutput), Output(kGradOutput), statistics,
        Of<fe::graph::SDPA_backward_attributes>().set_deterministic_algorithm(true));
    const Tensor tensors[] = {kGradQuery, kGradKey, kGradValue};
    for (size_t i = 0; i < gradients.size(); ++i) {
      Made(gradients[i], tensors[i], key_.element, ValueSize(key_), InputStrides(key_));
    }
  }

  const AttentionKey key_;
};

class CudnnOfFrontEnd : public Cudnn {
 public:
  absl::Status Open(const std::string& name) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(dlerror(),
                       ": cuDNN 9 for CUDA 13 is needed: install it, or put its folder "
                       "into LD_LIBRARY_PATH"));
    }
    STARLING_RETURN_IF_ERROR(CheckVersion(library, name));
    fe::cudnn_dlhandle = library;
    STARLING_RETURN_IF_ERROR(Guarded([&] {
      absl::MutexLock lock(&handle_->mutex);
      return Said(fe::detail::create_handle(&handle_->handle), "cudnnCreate");
    }));
    return AskVersionOfGpu();
  }

  ~CudnnOfFrontEnd() override {
    absl::MutexLock lock(&handle_->mutex);
    if (handle_->handle != nullptr) static_cast<void>(fe::detail::destroy_handle(handle_->handle));
  }

  absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(const ConvolutionKey& key) override {
    absl::MutexLock lock(&mutex_);
    return PlanIn<ConvolutionPlan, PlanOfConvolution>(key, convolutions_);
  }

  absl::StatusOr<std::shared_ptr<const AttentionPlan>> Plan(const AttentionKey& key) override {
    absl::MutexLock lock(&mutex_);
    return PlanIn<AttentionPlan, PlanOfAttention>(key, attentions_);
  }

 private:
  // What is known for a key: its plan, or why cuDNN has none.
  template <typename Key, typename Plan>
  using Plans = std::map<Key, absl::StatusOr<std::shared_ptr<const Plan>>>;

  template <typename Plan, typename Made, typename Key>
  absl::StatusOr<std::shared_ptr<const Plan>> PlanIn(const Key& key, Plans<Key, Plan>& plans) {
    if (const auto it = plans.find(key); it != plans.end()) return it->second;
    const auto made = std::make_shared<Made>(handle_, key);
    const absl::Status status = made->Build();
    if (!status.ok() && !absl::IsUnimplemented(status)) return status;
    if (status.ok()) return plans.emplace(key, std::shared_ptr<const Plan>(made)).first->second;
    return plans.emplace(key, status).first->second;
  }

  // The front end would look for it in a second CUDA runtime, which may not exist.
  absl::Status AskVersionOfGpu() {
    int device = 0, major = 0, minor = 0;
    STARLING_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
    STARLING_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    STARLING_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    handle_->sm_version = 10 * major + minor;
    return absl::OkStatus();
  }

  // Version 8.9.7 is 8907; since version 9, 9.19.0 is 91900.
  static absl::Status CheckVersion(void* library, const std::string& name) {
    const auto version_of =
        reinterpret_cast<decltype(&::cudnnGetVersion)>(dlsym(library, "cudnnGetVersion"));
    const size_t version = version_of == nullptr ? 0 : version_of();
    const size_t unit = version < 10000 ? 1000 : 10000;
    if (version / unit == kMajor) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(name, " is cuDNN ", version / unit, ".",
                                                      version % unit / 100, ", expected ", kMajor,
                                                      ".x: install cuDNN 9 for CUDA 13"));
  }

  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
  absl::Mutex mutex_;
  Plans<ConvolutionKey, ConvolutionPlan> convolutions_ ABSL_GUARDED_BY(mutex_);
  Plans<AttentionKey, AttentionPlan> attentions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cudnn>> Cudnn::Load(const std::string& library) {
  auto cudnn = std::make_unique<CudnnOfFrontEnd>();
  STARLING_RETURN_IF_ERROR(cudnn->Open(library));
  return cudnn;
}

absl::Status ValidateConvolution(const ConvolutionKey& key) {
  return PlanOfConvolution(std::make_shared<Handle>(), key).Validate();
}

absl::Status ValidateAttention(const AttentionKey& key) {
  return PlanOfAttention(std::make_shared<Handle>(), key).Validate();
}

}  // namespace starling::cuda
