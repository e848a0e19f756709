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

absl::Status Guarded(const OperatorSpec& spec, absl::FunctionRef<void()> fn) {
  UseKernelThreads(spec.kernel_threads);
  try {
    fn();
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("operator '", spec.name, "' (", spec.op,
                                            "): oneDNN: ", error.what(), " (status ",
                                            static_cast<int>(error.status), ")"));
  }
  return absl::OkStatus();
}

dnnl::primitive_attr DefaultAttr() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attr;
}

DnnlCall::DnnlCall(const dnnl::primitive_desc_base& pd, ScratchPlan& plan,
                   const std::vector<Argument>& arguments)
    : primitive_(pd.get()) {
  const auto add = [&](const Argument& argument) {
    memories_.push_back(dnnl::memory(argument.desc, pd.get_engine(), DNNL_MEMORY_NONE));
    arguments_.push_back({argument.index, memories_.back().get()});
  };
  for (const Argument& argument : arguments) add(argument);
  const MemoryDesc scratch = pd.scratchpad_desc();
  if (scratch.get_size() == 0) return;
  scratch_ = plan.Take(scratch.get_size());
  add({DNNL_ARG_SCRATCHPAD, scratch});
}

void DnnlCall::Run(const CpuStream& stream, void* workspace, absl::Span<const void* const> data) {
  for (size_t i = 0; i < data.size(); ++i) memories_[i].set_data_handle(const_cast<void*>(data[i]));
  if (scratch_) memories_.back().set_data_handle(static_cast<char*>(workspace) + *scratch_);
  // Not primitive::execute, which rebuilds this list on each call.
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), stream.dnnl().get(),
                             static_cast<int>(arguments_.size()), arguments_.data()),
      "could not execute a primitive");
}

DnnlCall ReorderCall(const MemoryDesc& from, const MemoryDesc& to, const dnnl::engine& engine,
                     ScratchPlan& plan) {
  const dnnl::reorder::primitive_desc pd(engine, from, engine, to, DefaultAttr());
  return DnnlCall(pd, plan, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

Staging::Staging(const MemoryDesc& from, const MemoryDesc& to, const MemoryDesc& staged,
                 const dnnl::engine& engine, ScratchPlan& plan) {
  if (from == to) return;
  reorder_ = ReorderCall(from, to, engine, plan);
  offset_ = plan.Take(staged.get_size());
}

const void* Staging::In(const void* data, const CpuStream& stream, void* workspace) {
  if (!reorder_) return data;
  void* const staged = Place(nullptr, workspace);
  reorder_->Run(stream, workspace, {data, staged});
  return staged;
}

void* Staging::Place(void* data, void* workspace) const {
  return reorder_ ? static_cast<char*>(workspace) + offset_ : data;
}

void Staging::Out(void* data, const CpuStream& stream, void* workspace) {
  if (reorder_) reorder_->Run(stream, workspace, {Place(nullptr, workspace), data});
}

StagedCall::StagedCall(const dnnl::primitive_desc_base& pd, ScratchPlan& plan,
                       const std::vector<Argument>& inputs, const std::vector<Argument>& outputs) {
  std::vector<DnnlCall::Argument> arguments;
  const auto add = [&](const Argument& argument, std::vector<Slot>& slots) -> Slot& {
    slots.push_back({.present = !argument.inside.is_zero()});
    if (slots.back().present) arguments.push_back({argument.index, argument.inside});
    return slots.back();
  };
  const dnnl::engine engine = pd.get_engine();
  for (const Argument& input : inputs) {
    add(input, inputs_).staging = StageIn(input.outside, input.inside, engine, plan);
  }
  for (const Argument& output : outputs) {
    Slot& slot = add(output, outputs_);
    slot.staging = StageOut(output.inside, output.outside, engine, plan);
    if (output.optional && output.inside == output.outside) {
      slot.unwanted = plan.Take(output.inside.get_size());
    }
  }
  call_ = DnnlCall(pd, plan, arguments);
  places_.reserve(arguments.size());
}

void StagedCall::Run(const CpuStream& stream, void* workspace, absl::Span<const void* const> inputs,
                     absl::Span<void* const> outputs) {
  places_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Slot& slot = inputs_[i];
    if (slot.present) places_.push_back(slot.staging.In(inputs[i], stream, workspace));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Slot& slot = outputs_[i];
    void* const unwanted = static_cast<char*>(workspace) + slot.unwanted;
    void* const wanted = outputs[i] != nullptr ? outputs[i] : unwanted;
    if (slot.present) places_.push_back(slot.staging.Place(wanted, workspace));
  }
  call_.Run(stream, workspace, places_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] != nullptr) outputs_[i].staging.Out(outputs[i], stream, workspace);
  }
}

CpuKernel::CpuKernel(const OperatorSpec& spec, const OperatorGeometry& geometry)
    : spec_(spec),
      geometry_(geometry),
      input_format_(InputFormat(spec, 0)),
      input_desc_(InputDesc(spec, 0)) {
  for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
    input_bytes_.push_back(InputDesc(spec, i).get_size());
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
  return Guarded(spec_, [&] { Run(args, static_cast<const CpuStream&>(stream)); });
}

absl::Status CpuKernel::Backward(const BackwardArgs& args, Stream& stream) {
  if (!spec_.training) {
    return absl::FailedPreconditionError(
        absl::StrCat("operator '", spec_.name, "' was made for inference: it has no Backward"));
  }
  return Guarded(spec_, [&] { RunBackward(args, static_cast<const CpuStream&>(stream)); });
}

}  // namespace starling
