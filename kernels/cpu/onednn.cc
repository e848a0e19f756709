#include "kernels/cpu/onednn.h"

#include <omp.h>

#include <iterator>

#include "absl/strings/str_cat.h"

namespace starling {
namespace {

constexpr uint32_t kLayoutBits = 8;
constexpr DataType kTypes[] = {DataType::kFp32, DataType::kBf16, DataType::kFp16};

Tag TagOf(uint32_t layout) {
  switch (layout) {
    case kChannelsLast: return Tag::nhwc;
    case kBlocked8: return Tag::nChw8c;
    case kBlocked16: return Tag::nChw16c;
    default: return Tag::nchw;
  }
}

}  // namespace

void UseKernelThreads(int threads) {
  thread_local int current = 0;
  if (current == threads) return;
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);
  omp_set_num_threads(threads);
  current = threads;
}

DataType StoredType(ValueFormat format) {
  const uint32_t type = format.id >> kLayoutBits;
  return type < std::size(kTypes) ? kTypes[type] : DataType::kFp32;
}

ValueFormat StoredAs(ValueFormat format, DataType type) {
  uint32_t number = 0;
  while (kTypes[number] != type) ++number;
  return {(format.id & ((1u << kLayoutBits) - 1)) | number << kLayoutBits};
}

dnnl::memory::data_type DnnlType(DataType type) {
  switch (type) {
    case DataType::kBf16: return dnnl::memory::data_type::bf16;
    case DataType::kFp16: return dnnl::memory::data_type::f16;
    case DataType::kFp32: break;
  }
  return dnnl::memory::data_type::f32;
}

MemoryDesc PlainDesc(const Shape& shape, DataType type) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return MemoryDesc(shape, DnnlType(type), strides);
}

absl::StatusOr<MemoryDesc> DescOf(const Shape& shape, ValueFormat format) {
  const DataType type = StoredType(format);
  const uint32_t layout = LayoutOf(format).id;
  const bool known = StoredAs(format, type) == format && layout <= kBlocked16;
  if (known && layout == kPlain) return PlainDesc(shape, type);
  if (!known || shape.size() != 4) {
    return absl::InvalidArgumentError(absl::StrCat("format ", format.id, " of a value of ",
                                                   shape.size(), " dimensions is not the CPU's"));
  }
  return MemoryDesc(shape, DnnlType(type), TagOf(layout));
}

std::optional<ValueFormat> FormatOf(const Shape& shape, const MemoryDesc& desc) {
  for (const DataType type : kTypes) {
    if (desc.data_type() != DnnlType(type)) continue;
    if (desc == PlainDesc(shape, type)) return StoredAs({kPlain}, type);
    if (shape.size() != 4) return std::nullopt;
    for (uint32_t layout : {kChannelsLast, kBlocked8, kBlocked16}) {
      if (desc == MemoryDesc(shape, DnnlType(type), TagOf(layout))) {
        return StoredAs({layout}, type);
      }
    }
  }
  return std::nullopt;
}

absl::Status DnnlError(const OperatorSpec& spec, const dnnl::error& error) {
  return absl::InternalError(absl::StrCat("operator '", spec.name, "' (", spec.op,
                                          "): oneDNN: ", error.what(), " (status ",
                                          static_cast<int>(error.status), ")"));
}

dnnl::primitive_attr DefaultAttr() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attr;
}

Staging::Staging(const MemoryDesc& from, const MemoryDesc& to, const MemoryDesc& staged,
                 const dnnl::engine& engine, ScratchPlan& plan) {
  if (from == to) return;
  const dnnl::reorder::primitive_desc pd(engine, from, engine, to, DefaultAttr());
  reorder_.emplace(dnnl::reorder(pd), pd, engine, plan);
  reorder_->Add(DNNL_ARG_FROM, from);
  reorder_->Add(DNNL_ARG_TO, to);
  offset_ = plan.Take(staged.get_size());
}

const void* Staging::In(const void* data, const CpuStream& stream, void* workspace) {
  if (!reorder_) return data;
  void* staged = static_cast<char*>(workspace) + offset_;
  reorder_->Bind(DNNL_ARG_FROM, data);
  reorder_->Bind(DNNL_ARG_TO, staged);
  reorder_->Run(stream, workspace);
  return staged;
}

void* Staging::Place(void* data, void* workspace) const {
  return reorder_ ? static_cast<char*>(workspace) + offset_ : data;
}

void Staging::Out(void* data, const CpuStream& stream, void* workspace) {
  if (!reorder_) return;
  reorder_->Bind(DNNL_ARG_FROM, static_cast<char*>(workspace) + offset_);
  reorder_->Bind(DNNL_ARG_TO, data);
  reorder_->Run(stream, workspace);
}

CpuKernel::CpuKernel(const OperatorSpec& spec, const OperatorGeometry& geometry)
    : spec_(spec), geometry_(geometry) {
  for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
    const ValueFormat format = spec.input_formats.empty() ? ValueFormat{} : spec.input_formats[i];
    const MemoryDesc desc = *DescOf(spec.input_shapes[i], format);
    if (i == 0) {
      input_format_ = format;
      input_desc_ = desc;
    }
    input_bytes_.push_back(desc.get_size());
  }
  backward_reads_input_.assign(spec.input_shapes.size(), false);
  SetOutput(ValueFormat{}, PlainDesc(spec.output_shape));
}

void CpuKernel::SetOutput(ValueFormat format, const MemoryDesc& desc) {
  output_format_ = format;
  output_desc_ = desc;
  output_bytes_ = desc.get_size();
}

absl::Status CpuKernel::Forward(const ForwardArgs& args, Stream& stream) {
  if (absl::Status status = Check(args); !status.ok()) return status;
  UseKernelThreads(spec_.kernel_threads);
  try {
    Run(args, static_cast<const CpuStream&>(stream));
  } catch (const dnnl::error& error) {
    return DnnlError(spec_, error);
  }
  return absl::OkStatus();
}

absl::Status CpuKernel::Backward(const BackwardArgs& args, Stream& stream) {
  if (!spec_.training) {
    return absl::FailedPreconditionError(
        absl::StrCat("operator '", spec_.name, "' was made for inference: it has no Backward"));
  }
  UseKernelThreads(spec_.kernel_threads);
  try {
    RunBackward(args, static_cast<const CpuStream&>(stream));
  } catch (const dnnl::error& error) {
    return DnnlError(spec_, error);
  }
  return absl::OkStatus();
}

}  // namespace starling
