#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>

#include <exception>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "cudnn_frontend.h"
#include "kernels/cuda/alignment.h"

// Where the front end looks for cuDNN's functions.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace starling::cuda {
namespace {

namespace fe = cudnn_frontend;

constexpr size_t kMajor = 9;
constexpr int64_t kWorkspaceBytesMax = 256 << 20;

enum Tensor : int64_t { kX = 1, kW = 2, kY = 3 };

absl::Status Said(fe::error_t error, const char* call) {
  if (error.is_good()) return absl::OkStatus();
  const std::string text = absl::StrCat("cuDNN, ", call, ": ", error.get_message());
  if (error.get_code() == fe::error_code_t::GRAPH_NOT_SUPPORTED ||
      error.get_code() == fe::error_code_t::HEURISTIC_QUERY_FAILED) {
    return absl::UnimplementedError(text);
  }
  return absl::InternalError(text);
}

absl::Status Said(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": status ", static_cast<int>(status));
  if (status == CUDNN_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(text);
  if (status == CUDNN_STATUS_EXECUTION_FAILED) {
    return absl::UnavailableError(absl::StrCat(
        "the GPU is lost to this process: ", text,
        "; look at the system's log (Xid), and start the process again"));
  }
  return absl::InternalError(text);
}

// The front end throws where it does not find a library or a function.
template <typename F>
absl::Status Guarded(F f) {
  try {
    return f();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("cuDNN's front end: ", error.what()));
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

// A handle, which one thread at a time gives a stream and work.
struct Handle {
  absl::Mutex mutex;
  cudnnHandle_t handle ABSL_GUARDED_BY(mutex) = nullptr;
};

class PlanOfGraph : public ConvolutionPlan {
 public:
  explicit PlanOfGraph(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}

  absl::Status Build(const ConvolutionKey& key) {
    return Guarded([&] { return BuildUnguarded(key); });
  }

  absl::Status Validate(const ConvolutionKey& key) {
    return Guarded([&] {
      Describe(key);
      return Said(graph_.validate(), "validate");
    });
  }

  size_t workspace_bytes() const override { return ScratchBytes(workspace_bytes_); }

  absl::Status Run(void* x, void* w, void* y, void* workspace, CudaStream& stream) const override {
    return Guarded([&] {
      absl::MutexLock lock(&handle_->mutex);
      pointers_[kX] = x;
      pointers_[kW] = w;
      pointers_[kY] = y;
      STARLING_RETURN_IF_ERROR(
          Said(fe::detail::set_stream(handle_->handle, stream.get()), "cudnnSetStream"));
      return Said(graph_.execute(handle_->handle, pointers_, AlignedScratch(workspace)),
                  "execute");
    });
  }

 private:
  using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

  TensorPtr Given(const std::array<int64_t, 4>& size, Tensor tensor, const ConvolutionKey& key) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(tensor)
                             .set_data_type(TypeOf(key.element))
                             .set_dim(ListOf(size))
                             .set_stride(ListOf(StridesOf(size, key.channels_last))));
  }

  void Made(const TensorPtr& tensor, const std::array<int64_t, 4>& size, Tensor uid,
            const ConvolutionKey& key) {
    tensor->set_uid(uid)
        .set_output(true)
        .set_data_type(TypeOf(key.element))
        .set_dim(ListOf(size))
        .set_stride(ListOf(StridesOf(size, key.channels_last)));
  }

  template <typename Attributes>
  static Attributes Of(const ConvolutionKey& key) {
    return Attributes()
        .set_padding(ListOf(key.padding))
        .set_stride(ListOf(key.stride))
        .set_dilation(ListOf(key.dilation));
  }

  void Describe(const ConvolutionKey& key) {
    graph_.set_io_data_type(TypeOf(key.element))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    switch (key.pass) {
      case Pass::kForward:
        return Made(graph_.conv_fprop(Given(key.input, kX, key), Given(key.weight, kW, key),
                                      Of<fe::graph::Conv_fprop_attributes>(key)),
                    key.output, kY, key);
      case Pass::kInputGradient:
        return Made(graph_.conv_dgrad(Given(key.output, kY, key), Given(key.weight, kW, key),
                                      Of<fe::graph::Conv_dgrad_attributes>(key)),
                    key.input, kX, key);
      case Pass::kWeightGradient:
        return Made(graph_.conv_wgrad(Given(key.output, kY, key), Given(key.input, kX, key),
                                      Of<fe::graph::Conv_wgrad_attributes>(key)),
                    key.weight, kW, key);
    }
  }

  absl::Status BuildUnguarded(const ConvolutionKey& key) {
    Describe(key);
    absl::MutexLock lock(&handle_->mutex);
    STARLING_RETURN_IF_ERROR(Said(graph_.validate(), "validate"));
    STARLING_RETURN_IF_ERROR(
        Said(graph_.build_operation_graph(handle_->handle), "build_operation_graph"));
    STARLING_RETURN_IF_ERROR(
        Said(graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}),
             "create_execution_plans"));
    std::vector<fe::NumericalNote_t> barred = {fe::NumericalNote_t::NONDETERMINISTIC};
    if (key.element == Element::kFloat) {  // tensor cores would round its inputs
      barred.push_back(fe::NumericalNote_t::TENSOR_CORE);
      barred.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
    }
    graph_.deselect_numeric_notes(barred).deselect_workspace_greater_than(kWorkspaceBytesMax);
    STARLING_RETURN_IF_ERROR(Said(graph_.check_support(), "check_support"));
    STARLING_RETURN_IF_ERROR(Said(graph_.build_plans(), "build_plans"));
    int64_t bytes = 0;
    STARLING_RETURN_IF_ERROR(Said(graph_.get_workspace_size(bytes), "get_workspace_size"));
    workspace_bytes_ = static_cast<size_t>(bytes);
    return absl::OkStatus();
  }

  const std::shared_ptr<Handle> handle_;
  fe::graph::Graph graph_;
  size_t workspace_bytes_ = 0;
  // One call at a time fills it, under the handle's mutex; kept, so that a call allocates nothing.
  mutable std::unordered_map<int64_t, void*> pointers_ = {{kX, nullptr}, {kW, nullptr},
                                                          {kY, nullptr}};
};

class CudnnOfFrontEnd : public Cudnn {
 public:
  absl::Status Open(const std::string& name) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(dlerror(), ": cuDNN 9 for CUDA 13 is needed: install it, or put its folder "
                       "into LD_LIBRARY_PATH"));
    }
    STARLING_RETURN_IF_ERROR(CheckVersion(library, name));
    fe::cudnn_dlhandle = library;
    return Guarded([&] {
      absl::MutexLock lock(&handle_->mutex);
      return Said(fe::detail::create_handle(&handle_->handle), "cudnnCreate");
    });
  }

  ~CudnnOfFrontEnd() override {
    absl::MutexLock lock(&handle_->mutex);
    if (handle_->handle != nullptr) static_cast<void>(fe::detail::destroy_handle(handle_->handle));
  }

  absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(const ConvolutionKey& key) override {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<const ConvolutionPlan>& place = plans_[key];
    if (place == nullptr) {
      const auto plan = std::make_shared<PlanOfGraph>(handle_);
      STARLING_RETURN_IF_ERROR(plan->Build(key));
      place = plan;
    }
    return place;
  }

 private:
  // Before version 9 it counted 8907, since then 91900.
  static absl::Status CheckVersion(void* library, const std::string& name) {
    const auto version_of =
        reinterpret_cast<decltype(&::cudnnGetVersion)>(dlsym(library, "cudnnGetVersion"));
    const size_t version = version_of == nullptr ? 0 : version_of();
    const size_t unit = version < 10000 ? 1000 : 10000;
    if (version / unit == kMajor) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is cuDNN ", version / unit, ".", version % unit / 100, ", expected ",
                     kMajor, ".x: install cuDNN 9 for CUDA 13"));
  }

  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
  absl::Mutex mutex_;
  std::map<ConvolutionKey, std::shared_ptr<const ConvolutionPlan>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cudnn>> Cudnn::Load(const std::string& library) {
  auto cudnn = std::make_unique<CudnnOfFrontEnd>();
  STARLING_RETURN_IF_ERROR(cudnn->Open(library));
  return cudnn;
}

absl::Status ValidateConvolution(const ConvolutionKey& key) {
  return PlanOfGraph(std::make_shared<Handle>()).Validate(key);
}

}  // namespace starling::cuda
