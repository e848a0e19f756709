#include <cstring>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// Brings any format into plain order; a plain input is copied, or nothing happens in place.
class Flatten : public CpuKernel {
 public:
  Flatten(const OperatorSpec& spec, const OperatorGeometry& geometry, const dnnl::engine& engine)
      : CpuKernel(spec, geometry) {
    const MemoryDesc plain = PlainDesc(spec_.input_shapes[0]);
    plain_ = input_desc_ == plain;
    forward_in_place_ok_ = backward_in_place_ok_ = plain_;
    if (plain_) return;
    ScratchPlan plan;
    forward_ = Reorder(input_desc_, plain, engine, plan);
    backward_ = Reorder(plain, input_desc_, engine, plan);
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
  static DnnlCall Reorder(const MemoryDesc& from, const MemoryDesc& to, const dnnl::engine& engine,
                          ScratchPlan& plan) {
    const dnnl::reorder::primitive_desc pd(engine, from, engine, to, DefaultAttr());
    DnnlCall call(dnnl::reorder(pd), pd, engine, plan);
    call.Add(DNNL_ARG_FROM, from);
    call.Add(DNNL_ARG_TO, to);
    return call;
  }

  void Move(DnnlCall& reorder, const void* from, void* to, void* workspace,
            const CpuStream& stream) {
    if (plain_) {
      if (from != to) std::memcpy(to, from, output_bytes_);
      return;
    }
    reorder.Bind(DNNL_ARG_FROM, from);
    reorder.Bind(DNNL_ARG_TO, to);
    reorder.Run(stream, workspace);
  }

  bool plain_ = false;
  DnnlCall forward_, backward_;
};

}  // namespace

CpuKernelPtr MakeFlatten(const OperatorSpec& spec, const OperatorGeometry& geometry,
                         const dnnl::engine& engine) {
  return std::make_unique<Flatten>(spec, geometry, engine);
}

}  // namespace starling
