// Where a step of whole models spends its time on the CPU, with one kernel thread per lane.
//   bazel run -c opt //kernels/cpu:model_benchmark -- [--lanes=N] [--seconds=S] [MODEL...]
// For each model: samples per second (of all lanes together) and samples per second of CPU time,
// which other processes disturb less; then each operator's milliseconds of CPU time in one step's
// forward and backward pass, and the slowest nodes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/geometry.h"

namespace starling {
namespace {

using Clock = std::chrono::steady_clock;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The calling thread's CPU time.
double ProcessorMilliseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

// Floats in [-0.1, 0.1), aligned like a device's memory.
using Floats = std::unique_ptr<float[], decltype(&std::free)>;

Floats MakeFloats(size_t bytes) {
  const size_t rounded = (bytes / 64 + 2) * 64;
  Floats values(static_cast<float*>(std::aligned_alloc(64, rounded)), &std::free);
  for (size_t i = 0; i < rounded / sizeof(float); ++i) {
    values[i] = 0.2f * (i * 2654435761u % 1000) / 1000 - 0.1f;
  }
  return values;
}

struct Node {
  std::string name, op;
  std::unique_ptr<OperatorKernel> kernel;
  std::vector<int> inputs;  // values
  int output = 0;
  std::vector<Floats> parameters, parameter_grads;
  std::vector<const float*> parameter_data;
  std::vector<float*> parameter_grad_data;
  Floats saved = MakeFloats(0), workspace = MakeFloats(0);
  double forward_ms = 0, backward_ms = 0;
};

struct Value {
  Shape shape;
  ValueFormat format;
  Floats data = MakeFloats(0), gradient = MakeFloats(0), aside = MakeFloats(0);
  std::vector<int32_t> integers;
  bool wants_gradient = true;
};

// One lane: every value has its own buffer, nothing is computed in place.
class Net {
 public:
  explicit Net(int64_t batch) : batch_(batch), device_(*CreateCpuDevice()) {
    stream_ = *device_->CreateStream();
  }

  int64_t batch() const { return batch_; }
  std::vector<Node>& nodes() { return nodes_; }
  const Shape& shape(int value) const { return values_[value].shape; }

  int FloatInput(Shape sample) {
    Value value = NewValue(std::move(sample));
    value.data = MakeFloats(ElementCount(value.shape) * sizeof(float));
    value.wants_gradient = false;
    values_.push_back(std::move(value));
    return static_cast<int>(values_.size()) - 1;
  }

  int IntegerInput(Shape sample, int32_t end) {
    Value value = NewValue(std::move(sample));
    for (int64_t i = 0; i < ElementCount(value.shape); ++i) {
      value.integers.push_back(static_cast<int32_t>(i * 2654435761u % static_cast<uint32_t>(end)));
    }
    value.wants_gradient = false;
    values_.push_back(std::move(value));
    return static_cast<int>(values_.size()) - 1;
  }

  // Adds a node and returns its output.
  int Add(const std::string& op, const std::vector<int>& inputs, Shape sample,
          std::vector<Shape> parameters = {}, AttributeMap attributes = {});

  void Step() {
    for (Node& node : nodes_) Forward(node);
    touched_.assign(values_.size(), false);
    for (size_t i = nodes_.size(); i-- > 0;) Backward(nodes_[i]);
  }

 private:
  Value NewValue(Shape sample) const {
    sample.insert(sample.begin(), batch_);
    Value value;
    value.shape = std::move(sample);
    return value;
  }
  const void* Data(int value) const {
    const Value& v = values_[value];
    return v.integers.empty() ? static_cast<const void*>(v.data.get()) : v.integers.data();
  }
  void Forward(Node& node);
  void Backward(Node& node);

  const int64_t batch_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Value> values_;
  std::vector<bool> touched_;  // values whose gradient has been written in this step
  std::vector<Node> nodes_;
};

int Net::Add(const std::string& op, const std::vector<int>& inputs, Shape sample,
             std::vector<Shape> parameters, AttributeMap attributes) {
  Value value = NewValue(std::move(sample));
  OperatorSpec spec;
  spec.name = absl::StrCat(op, nodes_.size());
  spec.op = op;
  spec.attributes = std::move(attributes);
  for (int input : inputs) {
    spec.input_shapes.push_back(values_[input].shape);
    spec.input_formats.push_back(values_[input].format);
  }
  spec.parameter_shapes = std::move(parameters);
  spec.output_shape = value.shape;
  absl::StatusOr<std::unique_ptr<OperatorKernel>> kernel = device_->CreateOperator(spec);
  Check(kernel.status());
  Node node;
  node.name = spec.name;
  node.op = op;
  node.kernel = *std::move(kernel);
  node.inputs = inputs;
  node.output = static_cast<int>(values_.size());
  for (const Shape& s : spec.parameter_shapes) {
    node.parameters.push_back(MakeFloats(ElementCount(s) * sizeof(float)));
    node.parameter_grads.push_back(MakeFloats(ElementCount(s) * sizeof(float)));
    node.parameter_data.push_back(node.parameters.back().get() + 1);  // as in a flat vector
    node.parameter_grad_data.push_back(node.parameter_grads.back().get() + 1);
  }
  node.saved = MakeFloats(node.kernel->saved_bytes());
  node.workspace = MakeFloats(node.kernel->workspace_bytes());
  value.format = node.kernel->output_format();
  value.data = MakeFloats(node.kernel->output_bytes());
  value.gradient = MakeFloats(node.kernel->output_bytes());
  value.aside = MakeFloats(node.kernel->output_bytes());
  values_.push_back(std::move(value));
  nodes_.push_back(std::move(node));
  return nodes_.back().output;
}

void Net::Forward(Node& node) {
  const double begin = ProcessorMilliseconds();
  std::vector<const void*> inputs;
  for (int input : node.inputs) inputs.push_back(Data(input));
  ForwardArgs args;
  args.inputs = inputs;
  args.parameters = node.parameter_data;
  args.output = values_[node.output].data.get();
  args.saved = node.saved.get();
  args.workspace = node.workspace.get();
  Check(node.kernel->Forward(args, *stream_));
  node.forward_ms += ProcessorMilliseconds() - begin;
}

void Net::Backward(Node& node) {
  const double begin = ProcessorMilliseconds();
  std::vector<const void*> inputs;
  std::vector<void*> grads;
  for (int input : node.inputs) {
    Value& value = values_[input];
    inputs.push_back(Data(input));
    grads.push_back(!value.wants_gradient ? nullptr
                    : touched_[input]     ? value.aside.get()
                                          : value.gradient.get());
  }
  BackwardArgs args;
  args.inputs = inputs;
  args.parameters = node.parameter_data;
  args.output = values_[node.output].data.get();
  args.grad_output = values_[node.output].gradient.get();
  args.grad_inputs = absl::MakeConstSpan(grads);
  args.grad_parameters = absl::MakeConstSpan(node.parameter_grad_data);
  args.saved = node.saved.get();
  args.workspace = node.workspace.get();
  args.global_batch = 4 * batch_;
  Check(node.kernel->Backward(args, *stream_));
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int input = node.inputs[i];
    Value& value = values_[input];
    if (touched_[input]) {
      Check(device_->Add(value.gradient.get(), value.aside.get(),
                         node.kernel->input_bytes(i) / sizeof(float), *stream_));
    }
    touched_[input] = true;
  }
  node.backward_ms += ProcessorMilliseconds() - begin;
}

// ---- The models -------------------------------------------------------------------------------

int64_t Dim(const Net& net, int value, int axis) { return net.shape(value)[axis]; }

int Conv(Net& net, int x, int64_t channels, int64_t kernel, int64_t stride, int64_t padding,
         int64_t groups = 1, bool bias = false) {
  const int64_t in = Dim(net, x, 1);
  const int64_t height = (Dim(net, x, 2) + 2 * padding - kernel) / stride + 1;
  const int64_t width = (Dim(net, x, 3) + 2 * padding - kernel) / stride + 1;
  std::vector<Shape> parameters = {{channels, in / groups, kernel, kernel}};
  if (bias) parameters.push_back({channels});
  return net.Add("conv2d", {x}, {channels, height, width}, parameters,
                 {{"stride", stride}, {"padding", padding}, {"groups", groups}});
}

Shape Sample(const Net& net, int value) {
  const Shape& shape = net.shape(value);
  return Shape(shape.begin() + 1, shape.end());
}

int Same(Net& net, const std::string& op, const std::vector<int>& inputs,
         AttributeMap attributes = {}) {
  return net.Add(op, inputs, Sample(net, inputs[0]), {}, std::move(attributes));
}

int BatchNorm(Net& net, int x) {
  const Shape channels = {Dim(net, x, 1)};
  return net.Add("batchnorm", {x}, Sample(net, x), {channels, channels, channels, channels});
}

int Linear(Net& net, int x, int64_t outputs) {
  Shape sample = Sample(net, x);
  const int64_t inputs = sample.back();
  sample.back() = outputs;
  return net.Add("linear", {x}, sample, {{outputs, inputs}, {outputs}});
}

void Classify(Net& net, int x, int64_t classes) {
  const int logits = Linear(net, x, classes);
  const int labels = net.IntegerInput({}, static_cast<int32_t>(classes));
  net.Add("softmax_cross_entropy", {logits, labels}, {});
}

std::unique_ptr<Net> Lenet() {
  auto net = std::make_unique<Net>(32);
  int x = Same(*net, "relu", {Conv(*net, net->FloatInput({1, 28, 28}), 32, 3, 1, 0, 1, true)});
  x = Same(*net, "relu", {Conv(*net, x, 64, 3, 1, 0, 1, true)});
  x = net->Add("maxpool2d", {x}, {64, 12, 12}, {}, {{"kernel", int64_t{2}}});
  x = net->Add("flatten", {Same(*net, "dropout", {x}, {{"rate", 0.25}})}, {9216});
  x = Same(*net, "relu", {Linear(*net, x, 128)});
  Classify(*net, Same(*net, "dropout", {x}, {{"rate", 0.5}}), 10);
  return net;
}

int BasicBlock(Net& net, int x, int64_t channels, int64_t stride) {
  int y = Same(net, "relu", {BatchNorm(net, Conv(net, x, channels, 3, stride, 1))});
  y = BatchNorm(net, Conv(net, y, channels, 3, 1, 1));
  if (Dim(net, x, 1) != channels) x = BatchNorm(net, Conv(net, x, channels, 1, stride, 0));
  return Same(net, "relu", {Same(net, "add", {y, x})});
}

std::unique_ptr<Net> Resnet18() {
  auto net = std::make_unique<Net>(16);
  int x =
      Same(*net, "relu", {BatchNorm(*net, Conv(*net, net->FloatInput({3, 32, 32}), 64, 3, 1, 1))});
  for (int64_t channels : {64, 128, 256, 512}) {
    x = BasicBlock(*net, x, channels, channels == 64 ? 1 : 2);
    x = BasicBlock(*net, x, channels, 1);
  }
  Classify(*net, net->Add("global_avgpool2d", {x}, {512}), 10);
  return net;
}

int InvertedResidual(Net& net, int x, int64_t channels, int64_t stride, int64_t expansion) {
  const AttributeMap relu6 = {{"minimum", 0.0}, {"maximum", 6.0}};
  const int64_t hidden = Dim(net, x, 1) * expansion;
  int y = x;
  if (expansion > 1) y = Same(net, "clip", {BatchNorm(net, Conv(net, y, hidden, 1, 1, 0))}, relu6);
  y = Same(net, "clip", {BatchNorm(net, Conv(net, y, hidden, 3, stride, 1, hidden))}, relu6);
  y = BatchNorm(net, Conv(net, y, channels, 1, 1, 0));
  return stride == 1 && Dim(net, x, 1) == channels ? Same(net, "add", {y, x}) : y;
}

// MobileNet-v2 with strides adapted to 32 x 32 pixels.
std::unique_ptr<Net> Mobilenet() {
  auto net = std::make_unique<Net>(16);
  int x = BatchNorm(*net, Conv(*net, net->FloatInput({3, 32, 32}), 32, 3, 1, 1));
  struct Stage {
    int64_t expansion, channels, blocks, stride;
  };
  for (const Stage& s :
       {Stage{1, 16, 1, 1}, Stage{6, 24, 2, 1}, Stage{6, 32, 3, 2}, Stage{6, 64, 4, 2},
        Stage{6, 96, 3, 1}, Stage{6, 160, 3, 2}, Stage{6, 320, 1, 1}}) {
    for (int64_t i = 0; i < s.blocks; ++i) {
      x = InvertedResidual(*net, x, s.channels, i == 0 ? s.stride : 1, s.expansion);
    }
  }
  x = BatchNorm(*net, Conv(*net, x, 1280, 1, 1, 0));
  Classify(*net, net->Add("global_avgpool2d", {x}, {1280}), 10);
  return net;
}

int LayerNorm(Net& net, int x) {
  const Shape width = {net.shape(x).back()};
  return net.Add("layernorm", {x}, Sample(net, x), {width, width});
}

int Block(Net& net, int x, int64_t heads) {
  const int64_t length = Dim(net, x, 1), width = Dim(net, x, 2);
  const int qkv = Linear(net, LayerNorm(net, x), 3 * width);
  std::vector<int> parts;
  for (int64_t i = 0; i < 3; ++i) {
    parts.push_back(net.Add("slice", {qkv}, {length, width}, {},
                            {{"axis", int64_t{1}}, {"begin", i * width}, {"length", width}}));
  }
  const int y = Same(net, "attention", parts, {{"heads", heads}, {"causal", int64_t{1}}});
  x = Same(net, "add", {x, Linear(net, y, width)});
  const int z =
      Same(net, "gelu", {Linear(net, LayerNorm(net, x), 4 * width)}, {{"approximate", int64_t{1}}});
  return Same(net, "add", {x, Linear(net, z, width)});
}

std::unique_ptr<Net> Gpt() {
  constexpr int64_t kLength = 128, kWidth = 192, kVocabulary = 256;
  auto net = std::make_unique<Net>(16);
  int x = net->Add("embedding", {net->IntegerInput({kLength}, kVocabulary)}, {kLength, kWidth},
                   {{kVocabulary, kWidth}});
  x = net->Add("position_embedding", {x}, {kLength, kWidth}, {{kLength, kWidth}});
  for (int i = 0; i < 6; ++i) x = Block(*net, x, 6);
  const int logits = Linear(*net, LayerNorm(*net, x), kVocabulary);
  net->Add("softmax_cross_entropy", {logits, net->IntegerInput({kLength}, kVocabulary)}, {});
  return net;
}

struct Model {
  const char* name;
  const char* meaning;
  std::unique_ptr<Net> (*make)();
};

constexpr Model kModels[] = {
    {"lenet", "builtin: lenet, batch 32", Lenet},
    {"resnet18", "32 x 32, batch 16", Resnet18},
    {"mobilenet", "MobileNet-v2, 32 x 32, batch 16", Mobilenet},
    {"gpt", "6 layers of width 192, 6 heads, 128 tokens, batch 16", Gpt},
};

// ---- The report -------------------------------------------------------------------------------

double SamplesPerSecond(const Model& model, int lanes, double seconds, std::unique_ptr<Net>* first,
                        int* steps) {
  std::vector<std::unique_ptr<Net>> nets;
  for (int i = 0; i < lanes; ++i) {
    nets.push_back(model.make());
    nets.back()->Step();
    for (Node& node : nets.back()->nodes()) node.forward_ms = node.backward_ms = 0;
  }
  std::vector<int> counts(lanes, 0);
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < lanes; ++i) {
    threads.emplace_back([&, i] {
      for (; counts[i] == 0 || SecondsSince(begin) < seconds; ++counts[i]) {
        nets[i]->Step();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double elapsed = SecondsSince(begin);
  int all = 0;
  for (int count : counts) all += count;
  *steps = counts[0];
  *first = std::move(nets[0]);
  return static_cast<double>(all * (*first)->batch()) / elapsed;
}

void Print(const Model& model, int lanes, double seconds) {
  std::unique_ptr<Net> net;
  int steps = 0;
  const double rate = SamplesPerSecond(model, lanes, seconds, &net, &steps);
  struct Cost {
    double forward = 0, backward = 0;
  };
  std::map<std::string, Cost> costs;
  std::vector<std::pair<double, std::string>> slowest;
  double total = 0;
  for (const Node& node : net->nodes()) {
    const double forward = node.forward_ms / steps, backward = node.backward_ms / steps;
    costs[node.op].forward += forward;
    costs[node.op].backward += backward;
    total += forward + backward;
    slowest.emplace_back(
        forward + backward,
        absl::StrCat(node.name, " [", absl::StrJoin(net->shape(node.output), ","), "]"));
  }
  std::printf("%s (%s), %d lanes: %.1f samples/s, %.1f a second of one processor\n", model.name,
              model.meaning, lanes, rate, 1e3 * static_cast<double>(net->batch()) / total);
  for (const auto& [op, cost] : costs) {
    std::printf("  %-24s %8.2f ms forward %8.2f ms backward %5.1f %%\n", op.c_str(), cost.forward,
                cost.backward, 100 * (cost.forward + cost.backward) / total);
  }
  std::sort(slowest.rbegin(), slowest.rend());
  for (size_t i = 0; i < std::min<size_t>(5, slowest.size()); ++i) {
    std::printf("  slowest: %-40s %8.2f ms\n", slowest[i].second.c_str(), slowest[i].first);
  }
}

int Main(int argc, char** argv) {
  int lanes = 1;
  double seconds = 2;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    absl::string_view text = argv[i];
    if (absl::ConsumePrefix(&text, "--lanes=")) {
      if (!absl::SimpleAtoi(text, &lanes) || lanes < 1) Check(absl::InvalidArgumentError(argv[i]));
    } else if (absl::ConsumePrefix(&text, "--seconds=")) {
      if (!absl::SimpleAtod(text, &seconds)) Check(absl::InvalidArgumentError(argv[i]));
    } else {
      wanted.emplace_back(text);
    }
  }
  for (const Model& model : kModels) {
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), model.name) != wanted.end()) {
      Print(model, lanes, seconds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
