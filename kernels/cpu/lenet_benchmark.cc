// Where a micro-batch of `builtin: lenet` spends its time on the CPU, one kernel thread.
//   bazel run -c opt //kernels/cpu:lenet_benchmark
// "forward/conv1" is one operator; "step" is forward and backward of all, and "step/threads:2" is
// two lanes at once. The rate of "step" is in samples.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/geometry.h"

namespace starling {
namespace {

constexpr int64_t kBatch = 32;

struct Layer {
  std::string name, op;
  Shape output;  // without the batch
  std::vector<Shape> parameters;
  AttributeMap attributes;
};

std::vector<Layer> Lenet() {
  return {
      {"conv1", "conv2d", {32, 26, 26}, {{32, 1, 3, 3}, {32}}, {}},
      {"relu1", "relu", {32, 26, 26}, {}, {}},
      {"conv2", "conv2d", {64, 24, 24}, {{64, 32, 3, 3}, {64}}, {}},
      {"relu2", "relu", {64, 24, 24}, {}, {}},
      {"pool", "maxpool2d", {64, 12, 12}, {}, {{"kernel", int64_t{2}}}},
      {"dropout1", "dropout", {64, 12, 12}, {}, {{"rate", 0.25}}},
      {"flatten", "flatten", {9216}, {}, {}},
      {"dense1", "linear", {128}, {{128, 9216}, {128}}, {}},
      {"relu3", "relu", {128}, {}, {}},
      {"dropout2", "dropout", {128}, {}, {{"rate", 0.5}}},
      {"dense2", "linear", {10}, {{10, 128}, {10}}, {}},
      {"loss", "softmax_cross_entropy", {}, {}, {}},
  };
}

// A buffer of floats in [-0.1, 0.1).
std::vector<float> Floats(size_t bytes) {
  std::vector<float> values(bytes / sizeof(float) + 16);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.2f * (i * 2654435761u % 1000) / 1000 - 0.1f;
  return values;
}

struct Node {
  std::string name;
  std::unique_ptr<OperatorKernel> kernel;
  std::vector<const void*> inputs;
  std::vector<std::vector<float>> parameters, parameter_grads;
  std::vector<const float*> parameter_data;
  std::vector<float*> parameter_grad_data;
  std::vector<float> output, output_grad;
  std::vector<void*> input_grads;
  std::vector<char> saved, workspace;
};

// One lane: every value has a buffer of its own.
class Net {
 public:
  Net() : device_(*CreateCpuDevice()), stream_(*device_->CreateStream()), labels_(kBatch) {
    input_ = Floats(kBatch * 784 * sizeof(float));
    for (int64_t i = 0; i < kBatch; ++i) labels_[i] = static_cast<int32_t>(i % 10);
    Shape shape = {kBatch, 1, 28, 28};
    ValueFormat format;
    for (const Layer& layer : Lenet()) Add(layer, &shape, &format);
    for (size_t i = 0; i < nodes_.size(); ++i) Connect(i);
  }

  std::vector<Node>& nodes() { return nodes_; }

  void Forward(Node& node) {
    ForwardArgs args;
    args.inputs = node.inputs;
    args.parameters = node.parameter_data;
    args.output = node.output.data();
    args.saved = node.saved.data();
    args.workspace = node.workspace.data();
    Check(node.kernel->Forward(args, *stream_));
  }

  void Backward(Node& node) {
    BackwardArgs args;
    args.inputs = node.inputs;
    args.parameters = node.parameter_data;
    args.output = node.output.data();
    args.grad_output = node.output_grad.data();
    args.grad_inputs = absl::MakeConstSpan(node.input_grads);
    args.grad_parameters = absl::MakeConstSpan(node.parameter_grad_data);
    args.saved = node.saved.data();
    args.workspace = node.workspace.data();
    args.global_batch = 4 * kBatch;
    Check(node.kernel->Backward(args, *stream_));
  }

  void Step() {
    for (Node& node : nodes_) Forward(node);
    for (size_t i = nodes_.size(); i-- > 0;) Backward(nodes_[i]);
  }

 private:
  static void Check(const absl::Status& status) {
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::abort();
    }
  }

  void Add(const Layer& layer, Shape* shape, ValueFormat* format) {
    OperatorSpec spec;
    spec.name = layer.name;
    spec.op = layer.op;
    spec.attributes = layer.attributes;
    spec.input_shapes = {*shape};
    spec.input_formats = {*format};
    if (layer.name == "loss") {
      spec.input_shapes.push_back({kBatch});
      spec.input_formats.push_back({});
    }
    spec.parameter_shapes = layer.parameters;
    spec.output_shape = {kBatch};
    spec.output_shape.insert(spec.output_shape.end(), layer.output.begin(), layer.output.end());
    absl::StatusOr<std::unique_ptr<OperatorKernel>> kernel = device_->CreateOperator(spec);
    Check(kernel.status());
    Node node;
    node.name = layer.name;
    node.kernel = *std::move(kernel);
    for (const Shape& s : layer.parameters) {
      node.parameters.push_back(Floats(ElementCount(s) * sizeof(float)));
      node.parameter_grads.push_back(node.parameters.back());
    }
    node.output = Floats(node.kernel->output_bytes());
    node.output_grad = node.output;
    node.saved.resize(node.kernel->saved_bytes());
    node.workspace.resize(node.kernel->workspace_bytes() + 64);
    *shape = spec.output_shape;
    *format = node.kernel->output_format();
    nodes_.push_back(std::move(node));
  }

  void Connect(size_t i) {
    Node& node = nodes_[i];
    node.inputs = {i == 0 ? input_.data() : nodes_[i - 1].output.data()};
    node.input_grads = {i == 0 ? nullptr : nodes_[i - 1].output_grad.data()};
    if (node.name == "loss") {
      node.inputs.push_back(labels_.data());
      node.input_grads.push_back(nullptr);
    }
    for (auto& p : node.parameters) node.parameter_data.push_back(p.data() + 1);
    for (auto& p : node.parameter_grads) node.parameter_grad_data.push_back(p.data() + 1);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<float> input_;
  std::vector<int32_t> labels_;
  std::vector<Node> nodes_;
};

void Step(benchmark::State& state) {
  Net net;
  for (auto _ : state) net.Step();
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(Step)->Name("step")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(Step)->Name("step")->Unit(benchmark::kMillisecond)->UseRealTime()->Threads(2);

void RegisterOperators() {
  static Net net;
  net.Step();
  for (size_t i = 0; i < net.nodes().size(); ++i) {
    using Run = void (Net::*)(Node&);
    for (const auto& [direction, run] :
         {std::pair<std::string, Run>{"forward/", &Net::Forward}, {"backward/", &Net::Backward}}) {
      const Run call = run;
      benchmark::RegisterBenchmark((direction + net.nodes()[i].name).c_str(),
                                   [call, i](benchmark::State& state) {
                                     for (auto _ : state) (net.*call)(net.nodes()[i]);
                                   })
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  starling::RegisterOperators();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
