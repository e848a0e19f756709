// Concat, slice, transpose and reshape.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// A value's memory split at one axis: [outer][axis units][inner], in the order of its format. In a
// blocked format a unit of channels is a block.
struct Runs {
  int64_t outer = 1, axis = 1, inner = 1;
  int64_t run() const { return axis * inner; }
};

Runs RunsOf(const Shape& shape, ValueFormat format, int64_t axis) {
  Shape physical = shape;
  if (format.id == kChannelsLast) {
    physical = {shape[0], shape[2], shape[3], shape[1]};
    if (axis > 0) axis = axis == 1 ? 3 : axis - 1;
  } else if (const int64_t block = BlockOf(format); block > 1) {
    physical[1] = (shape[1] + block - 1) / block;
    physical.push_back(block);
  }
  Runs runs;
  for (size_t i = 0; i < physical.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    (at < axis ? runs.outer : at == axis ? runs.axis : runs.inner) *= physical[i];
  }
  return runs;
}

void CopyRuns(int64_t outer, int64_t run, const float* from, int64_t from_stride, float* to,
              int64_t to_stride) {
  for (int64_t o = 0; o < outer; ++o, from += from_stride, to += to_stride) {
    std::memcpy(to, from, run * sizeof(float));
  }
}

// All inputs have one format, and no boundary splits its blocks.
class Concat : public CpuKernel {
 public:
  Concat(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry), whole_(RunsOf(spec.output_shape, input_format_, geometry.axis)) {
    SetOutput(input_format_, *DescOf(spec.output_shape, input_format_));
    for (const Shape& shape : spec.input_shapes) {
      parts_.push_back(RunsOf(shape, input_format_, geometry.axis));
    }
  }

  static bool Takes(const OperatorSpec& spec, const OperatorGeometry& geometry) {
    const ValueFormat format = InputFormat(spec, 0);
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      if (InputFormat(spec, i) != format) return false;
      if (geometry.axis == 1 && spec.input_shapes[i][1] % BlockOf(format) != 0) return false;
    }
    return true;
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    float* to = static_cast<float*>(args.output);
    for (size_t i = 0; i < parts_.size(); ++i) {
      CopyRuns(whole_.outer, parts_[i].run(), static_cast<const float*>(args.inputs[i]),
               parts_[i].run(), to, whole_.run());
      to += parts_[i].run();
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    const float* from = static_cast<const float*>(args.grad_output);
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (float* const to = static_cast<float*>(args.grad_inputs[i]); to != nullptr) {
        CopyRuns(whole_.outer, parts_[i].run(), from, whole_.run(), to, parts_[i].run());
      }
      from += parts_[i].run();
    }
  }

 private:
  const Runs whole_;
  std::vector<Runs> parts_;
};

// In a format whose blocks the slice's ends do not split.
class Slice : public CpuKernel {
 public:
  Slice(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry),
        whole_(RunsOf(spec.input_shapes[0], input_format_, geometry.axis)),
        part_(RunsOf(spec.output_shape, input_format_, geometry.axis)) {
    SetOutput(input_format_, *DescOf(spec.output_shape, input_format_));
    const int64_t unit = geometry.axis == 1 ? BlockOf(input_format_) : 1;
    offset_ = geometry.begin / unit * part_.inner;
  }

  static bool Takes(const OperatorSpec& spec, const OperatorGeometry& geometry) {
    const int64_t block = geometry.axis == 1 ? BlockOf(InputFormat(spec, 0)) : 1;
    const int64_t end = geometry.begin + geometry.length;
    return geometry.begin % block == 0 &&
           (end % block == 0 || end == spec.input_shapes[0][geometry.axis]);
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    CopyRuns(whole_.outer, part_.run(), static_cast<const float*>(args.inputs[0]) + offset_,
             whole_.run(), static_cast<float*>(args.output), part_.run());
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* to = static_cast<float*>(args.grad_inputs[0]);
    if (to == nullptr) return;
    const float* from = static_cast<const float*>(args.grad_output);
    for (int64_t o = 0; o < whole_.outer; ++o, from += part_.run(), to += whole_.run()) {
      std::fill_n(to, offset_, 0.0f);
      std::memcpy(to + offset_, from, part_.run() * sizeof(float));
      std::fill(to + offset_ + part_.run(), to + whole_.run(), 0.0f);
    }
  }

 private:
  const Runs whole_, part_;
  int64_t offset_ = 0;  // the slice's, within a run
};

// One reorder from the input's memory, viewed with its axes permuted, to the plain output. With the
// axes in order (flatten, reshape) a plain input is copied, or nothing is done if in place. The
// output has the input's type.
class Reorder : public CpuKernel {
 public:
  Reorder(const OperatorSpec& spec, const OperatorGeometry& geometry, const dnnl::engine& engine)
      : CpuKernel(spec, geometry) {
    const bool transpose = geometry.op == OperatorGeometry::Op::kTranspose;
    const MemoryDesc from = transpose ? Permuted(geometry.axes) : input_desc_;
    const DataType type = StoredType(input_format_);
    const MemoryDesc to = PlainDesc(transpose ? spec.output_shape : spec.input_shapes[0], type);
    SetOutput(StoredAs({kPlain}, type), PlainDesc(spec.output_shape, type));
    copies_ = from == to;
    forward_in_place_ok_ = backward_in_place_ok_ = copies_;
    if (copies_) return;
    ScratchPlan plan;
    forward_ = ReorderCall(from, to, engine, plan);
    backward_ = ReorderCall(to, from, engine, plan);
    workspace_bytes_ = plan.size();
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override {
    Move(forward_, args.inputs[0], args.output, args.workspace, stream);
  }
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override {
    if (args.grad_inputs[0] == nullptr) return;
    Move(backward_, args.grad_output, args.grad_inputs[0], args.workspace, stream);
  }

 private:
  MemoryDesc Permuted(const std::vector<int64_t>& axes) const {
    std::vector<int> permutation(axes.size());
    for (size_t i = 0; i < axes.size(); ++i) permutation[axes[i]] = static_cast<int>(i);
    return input_desc_.permute_axes(permutation);
  }

  void Move(DnnlCall& reorder, const void* from, void* to, void* workspace,
            const CpuStream& stream) {
    if (copies_) {
      if (from != to) std::memcpy(to, from, output_bytes_);
      return;
    }
    reorder.Run(stream, workspace, {from, to});
  }

  bool copies_ = false;
  DnnlCall forward_, backward_;
};

// In the input's format if the kernel takes that, else plain.
template <typename Kernel>
CpuKernelPtr MakePart(const OperatorSpec& spec, const OperatorGeometry& geometry,
                      const dnnl::engine& engine) {
  if (Kernel::Takes(spec, geometry)) return std::make_unique<Kernel>(spec, geometry);
  OperatorSpec plain = spec;
  plain.input_formats.clear();
  return MakeReordered(spec, true, std::make_unique<Kernel>(plain, geometry), engine);
}

}  // namespace

const MakeCpuKernel kMakeConcat = MakePart<Concat>;
const MakeCpuKernel kMakeSlice = MakePart<Slice>;
const MakeCpuKernel kMakeReorder = MakeKernel<Reorder>;

}  // namespace starling
