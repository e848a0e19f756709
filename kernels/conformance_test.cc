// One suite for every device: each operator, forward and backward, against the reference; and the
// reference against its own finite differences.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/library.h"
#include "kernels/device.h"
#include "kernels/geometry.h"
#include "kernels/half.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/case_runner.h"
#include "kernels/testing/fake_discrete_device.h"
#include "kernels/testing/operator_cases.h"
#include "kernels/updating_device.h"

namespace starling {
namespace {

// How far a result may be from the reference's, in norm. In fp32, rounding in the sums of the
// longest rows. Otherwise only roundings of the type itself count: of inputs (parameters and the
// graph's inputs, if the device multiplies in the type), of the output, and of what backward reads.
double Tolerance(DataType type) { return type == DataType::kFp32 ? 1e-5 : 4 * UnitRoundoff(type); }
// With tf32, rounding of the products' inputs to 11 bits, including the hidden one.
constexpr double kTf32Tolerance = 4.0 / (1 << 11);

double NormRelative(const Doubles& got, const Doubles& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// ---- The device under test --------------------------------------------------------------------

// "cpu"; "gpu", this machine's, from the shared object that workers open; "emulated", the same
// kernels and host code on the CPU; "far", the fake discrete device.
std::string DeviceName() {
  const char* const name = std::getenv("STARLING_CONFORMANCE_DEVICE");
  return name == nullptr ? "cpu" : name;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice() {
  const std::string name = DeviceName();
  constexpr const char* kBuilt = "worker/libstarling_cuda.so";  // else it is beside the program
  if (name == "gpu") return OpenCudaDevice(std::filesystem::exists(kBuilt) ? kBuilt : "");
  if (name == "emulated") return OpenCudaDevice("kernels/cuda/emulation/libstarling_cuda.so");
  absl::StatusOr<std::unique_ptr<Device>> cpu = CreateCpuDevice();
  if (name == "far" && cpu.ok()) return MakeFakeDiscreteDevice(*std::move(cpu));
  if (name == "cpu") return cpu;
  return absl::InvalidArgumentError(
      "STARLING_CONFORMANCE_DEVICE: expected cpu, far, emulated or gpu");
}

// Opened once, by TheDevice().
const absl::StatusOr<std::unique_ptr<Device>>& Opened() {
  static const auto* const device = new absl::StatusOr<std::unique_ptr<Device>>(OpenDevice());
  return *device;
}
Device& TheDevice() { return **Opened(); }

// Skips each test. If the environment skipped them, GoogleTest would report them as passed.
class SkipsEachTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    GTEST_SKIP() << Opened().status().message();
  }
};

// A machine without a GPU is not a failure, and its tests are skipped.
class NeedsDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (Opened().ok()) {
      std::printf("conformance of %s (%s)\n", TheDevice().name().c_str(),
                  TheDevice().instruction_set().c_str());
      return;
    }
    ASSERT_EQ(DeviceName(), "gpu") << Opened().status();
    ::testing::UnitTest::GetInstance()->listeners().Append(new SkipsEachTest);
  }
};
[[maybe_unused]] const auto* const kNeedsDevice =
    ::testing::AddGlobalTestEnvironment(new NeedsDevice);

// ---- The fast operators against the reference ------------------------------------------------

struct Parameter {
  OperatorCase test_case;
  Formatted formatted = Formatted::kNone;
  int threads = 1;
  bool in_place = false;
  DataType type = DataType::kFp32;
};

std::string Label(const Parameter& p) {
  const char* format = p.formatted == Formatted::kNone     ? "_plain"
                       : p.formatted == Formatted::kStored ? "_stored"
                       : p.formatted == Formatted::kFirst  ? "_formatted"
                                                           : "_all_formatted";
  return absl::StrCat(DeviceName(), "_", DataTypeName(p.type), "_", p.test_case.label, format,
                      "_threads", p.threads, p.in_place ? "_in_place" : "");
}
void PrintTo(const Parameter& p, std::ostream* out) { *out << Label(p); }

// Whether a device may compute it from less than fp32 when allowed.
bool Multiplies(const OperatorCase& c) {
  static const std::set<std::string> kProducts = {"conv2d", "linear", "matmul", "attention"};
  return kProducts.contains(c.spec.op);
}

OperatorCase WithTf32(OperatorCase c) {
  c.label += "_tf32";
  c.spec.tf32 = true;
  return c;
}

// The CPU also computes on two threads. Sanitizers find on one thread what they find on two.
int ThreadsMax() {
#ifdef STARLING_SANITIZED
  return 1;
#else
  return DeviceName() == "cpu" ? 2 : 1;
#endif
}

// Every case in every type, with every set of formats that its inputs can have, and in place; on
// each number of threads up to ThreadsMax().
std::vector<Parameter> Parameters() {
  std::vector<Parameter> all;
  std::set<std::string> operators;
  size_t cases = 0;
  std::string not_judged;
  for (const OperatorCase& c : OperatorCases()) {
    if (Opened().ok() && !c.TakenBy(TheDevice())) {
      absl::StrAppend(&not_judged, " ", c.label);
      continue;
    }
    ++cases;
    operators.insert(c.spec.op);
    if (Multiplies(c)) all.push_back({WithTf32(c)});
    for (int threads = 1; threads <= ThreadsMax(); ++threads) {
      for (DataType type : {DataType::kFp32, DataType::kBf16, DataType::kFp16}) {
        const bool fp32 = type == DataType::kFp32;
        all.push_back({c, Formatted::kNone, threads, false, type});
        if (!fp32) all.push_back({c, Formatted::kStored, threads, false, type});
        const Formatted in_place = fp32 ? Formatted::kNone : Formatted::kStored;
        all.push_back({c, in_place, threads, true, type});
        if (c.spec.input_shapes[0].size() == 4 && !c.labels(0)) {
          all.push_back({c, Formatted::kFirst, threads, false, type});
        }
        if (PlaneInputs(c) > (fp32 ? 1 : 0)) {
          all.push_back({c, Formatted::kAll, threads, false, type});
        }
      }
    }
  }
  std::printf("conformance: %zu runs of %zu cases of %zu operators\n", all.size(), cases,
              operators.size());
  if (!not_judged.empty()) {
    std::printf("NOT JUDGED, as this device does not claim to fuse so:%s\n", not_judged.c_str());
  }
  return all;
}

// What the reference computes. Keeps the last result: runs of a case in several formats often have
// the same arguments.
struct Expected {
  std::string label;
  std::vector<Doubles> inputs, parameters;
  Doubles grad_output;
  Doubles output;
  ReferenceGradients gradients;  // empty where nothing is trained
};

const Expected& TheReferences(const OperatorCase& c, const ReferenceArgs& args,
                              const Doubles& grad_output) {
  static Expected last;
  const std::string label(absl::StripSuffix(c.label, "_tf32"));
  if (last.label != label || last.inputs != args.inputs || last.parameters != args.parameters ||
      last.grad_output != grad_output) {
    last = {label, args.inputs, args.parameters, grad_output, *ReferenceForward(c.spec, args), {}};
    if (c.spec.training) last.gradients = *ReferenceBackward(c.spec, args, grad_output);
  }
  return last;
}

class ConformanceTest : public ::testing::TestWithParam<Parameter> {};

TEST_P(ConformanceTest, AgreesWithTheReference) {
  const auto& [test_case, formatted, threads, in_place, type] = GetParam();
  CaseRunner runner(TheDevice(), test_case, formatted, threads, in_place, type);
  ASSERT_NE(runner.kernel(), nullptr);
  // A GPU's operators accept only their own type: which of two values is greater, or whether one is
  // clipped, depends on what rounding leaves.
  const bool narrows = DeviceName() == "gpu" || DeviceName() == "emulated";
  const ReferenceArgs args = runner.Given(RandomArgs(test_case), narrows);
  const Doubles grad_output = runner.GivenGradient(GradOutput(test_case), narrows);
  const bool rounds = test_case.spec.tf32 && DeviceName() == "gpu";
  const double tolerance = rounds ? kTf32Tolerance : Tolerance(type);
  const Outcome got = runner.Run(args, grad_output);
  // A case that takes a slower path must not pass as if it had taken the fast one.
  if (const std::string& why = runner.kernel()->slower_because(); !why.empty()) {
    std::printf("NOT THE FAST WAY: %s, %s: %s\n", test_case.spec.op.c_str(), DataTypeName(type),
                why.c_str());
  }
  if (TheDevice().captures()) {
    runner.Capture();
    EXPECT_EQ(runner.Run(args, grad_output), got) << "captured, and launched";
  }

  const Expected& reference = TheReferences(test_case, args, grad_output);
  EXPECT_LE(NormRelative(got.output, reference.output), tolerance);
  if (!test_case.spec.training) return;
  const ReferenceGradients& expected = reference.gradients;
  ASSERT_EQ(got.gradients.inputs.size(), expected.inputs.size());
  ASSERT_EQ(got.gradients.parameters.size(), expected.parameters.size());
  for (size_t i = 0; i < expected.inputs.size(); ++i) {
    EXPECT_LE(NormRelative(got.gradients.inputs[i], expected.inputs[i]), tolerance)
        << "input " << i;
  }
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_LE(NormRelative(got.gradients.parameters[i], expected.parameters[i]), tolerance)
        << "parameter " << i;
  }
}

// An image's background: most values far from zero on one side. In every format.
TEST(BatchNormTest, SumsAreExactFarFromZero) {
  int judged = 0;
  for (const char* label : {"batchnorm_background", "batchnorm_vector_channels"}) {
    for (const OperatorCase& test_case : OperatorCases()) {
      if (test_case.label != label) continue;
      for (Formatted formatted : {Formatted::kNone, Formatted::kFirst}) {
        SCOPED_TRACE(absl::StrCat(label, ", formatted ", static_cast<int>(formatted)));
        ++judged;
        CaseRunner runner(TheDevice(), test_case, formatted, /*threads=*/1);
        ReferenceArgs args = RandomArgs(test_case);
        for (size_t i = 0; i < args.inputs[0].size(); ++i) {
          double& x = args.inputs[0][i];
          x = i % 5 == 0 ? static_cast<float>(x) : -3.25;
        }
        const Doubles grad_output = GradOutput(test_case);
        const Outcome got = runner.Run(args, grad_output);
        const auto expected = *ReferenceBackward(test_case.spec, args, grad_output);
        EXPECT_LE(NormRelative(got.gradients.inputs[0], expected.inputs[0]), 1e-6);
        for (size_t i = 0; i < expected.parameters.size(); ++i) {
          EXPECT_LE(NormRelative(got.gradients.parameters[i], expected.parameters[i]), 1e-6) << i;
        }
      }
    }
  }
  EXPECT_EQ(judged, 4);
}

INSTANTIATE_TEST_SUITE_P(Device, ConformanceTest, ::testing::ValuesIn(Parameters()),
                         [](const ::testing::TestParamInfo<Parameter>& info) {
                           return Label(info.param);
                         });

// ---- The reference against finite differences --------------------------------------------------

class GradientTest : public ::testing::TestWithParam<OperatorCase> {};

// The scalar whose gradient the analytic one is: a loss's scaled sum, else <grad_output, output>.
double Objective(const OperatorCase& c, const ReferenceArgs& args, const Doubles& grad_output) {
  const Doubles y = *ReferenceForward(c.spec, args);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += c.loss() ? y[i] : y[i] * grad_output[i];
  if (!c.loss()) return sum;
  return ResolveGeometry(c.spec)->mean_reduction ? sum / static_cast<double>(args.global_batch)
                                                 : sum;
}

void CheckGradient(const OperatorCase& c, ReferenceArgs args, const Doubles& grad_output,
                   std::vector<Doubles> ReferenceArgs::*group, size_t index,
                   const Doubles& analytic) {
  constexpr double kStep = 1e-6;
  Doubles numeric, exact;
  const size_t count = analytic.size();
  const size_t stride = count / 12 + 1;  // a dozen elements of each
  for (size_t i = 0; i < count; i += stride) {
    double& x = (args.*group)[index][i];
    const double at = x;
    x = at + kStep;
    const double above = Objective(c, args, grad_output);
    x = at - kStep;
    const double below = Objective(c, args, grad_output);
    x = at;
    numeric.push_back((above - below) / (2 * kStep));
    exact.push_back(analytic[i]);
  }
  double scale = 1e-3;
  for (double e : exact) scale = std::max(scale, std::abs(e));
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(exact[i], numeric[i], 1e-5 * scale) << "element " << i * stride;
  }
}

// The cases that have a gradient that no smaller case covers.
std::vector<OperatorCase> GradientCases() {
  std::vector<OperatorCase> cases = OperatorCases();
  std::erase_if(cases, [](const OperatorCase& c) { return !c.spec.training || c.large; });
  return cases;
}

TEST_P(GradientTest, IsTheFiniteDifference) {
  const OperatorCase& c = GetParam();
  const ReferenceArgs args = RandomArgs(c);
  const Doubles grad_output = GradOutput(c);
  const ReferenceGradients gradients = *ReferenceBackward(c.spec, args, grad_output);
  for (size_t i = 0; i < gradients.inputs.size(); ++i) {
    if (gradients.inputs[i].empty()) continue;  // labels
    SCOPED_TRACE(absl::StrCat("input ", i));
    CheckGradient(c, args, grad_output, &ReferenceArgs::inputs, i, gradients.inputs[i]);
  }
  for (size_t i = 0; i < gradients.parameters.size(); ++i) {
    if (c.spec.op == "batchnorm" && i >= 2) continue;  // statistics: contributions, no gradients
    SCOPED_TRACE(absl::StrCat("parameter ", i));
    CheckGradient(c, args, grad_output, &ReferenceArgs::parameters, i, gradients.parameters[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, GradientTest, ::testing::ValuesIn(GradientCases()),
                         [](const ::testing::TestParamInfo<OperatorCase>& info) {
                           return info.param.label;
                         });

// ---- What a device refuses ---------------------------------------------------------------------

TEST(RefusalTest, NamesWhatItLacks) {
  OperatorSpec spec = OperatorCases()[0].spec;
  for (const uint32_t format : {77u, 0x100u + 77u, 0x300u, 0x10000u}) {
    spec.input_formats = {ValueFormat{format}};
    const absl::Status status = TheDevice().CreateOperator(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("is not the "), std::string::npos) << status;
  }

  spec = OperatorCases()[0].spec;
  spec.training = false;
  const std::unique_ptr<Stream> stream = *TheDevice().CreateStream();
  for (DataType type : {DataType::kFp32, DataType::kBf16, DataType::kFp16}) {
    spec.type = type;
    EXPECT_EQ((*TheDevice().CreateOperator(spec))->Backward(BackwardArgs(), *stream).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(RefusalTest, WhatIsNotClaimedIsUnimplemented) {
  for (const OperatorCase& c : OperatorCases()) {
    if (c.TakenBy(TheDevice())) continue;
    const absl::Status status = TheDevice().CreateOperator(c.spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.label << ": " << status;
  }
}

TEST(RefusalTest, AnIndexOutsideTheTableIsAnError) {
  const std::unique_ptr<Stream> stream = *TheDevice().CreateStream();
  OperatorSpec spec;
  spec.name = "wte";
  spec.op = "embedding";
  spec.input_shapes = {{2, 3}};
  spec.parameter_shapes = {{5, 1}};
  spec.output_shape = {2, 3, 1};
  const std::unique_ptr<OperatorKernel> kernel = *TheDevice().CreateOperator(spec);
  const float values[5] = {1, 2, 3, 4, 5};
  const Buffer table(TheDevice(), *stream, sizeof(values));
  const Buffer indices(TheDevice(), *stream, 6 * sizeof(int32_t));
  const Buffer output(TheDevice(), *stream, kernel->output_bytes());
  const Buffer work(TheDevice(), *stream, kernel->workspace_bytes());
  ASSERT_TRUE(TheDevice().CopyToDevice(table.data(), values, sizeof(values), *stream).ok());
  const auto* const parameter = static_cast<const float*>(table.data());
  const void* const input = indices.data();
  for (int32_t bad :
       {5, -1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    const int32_t ids[6] = {0, 4, 1, 2, bad, 3};
    ASSERT_TRUE(TheDevice().CopyToDevice(indices.data(), ids, sizeof(ids), *stream).ok());
    ForwardArgs args;
    args.inputs = absl::MakeConstSpan(&input, 1);
    args.parameters = absl::MakeConstSpan(&parameter, 1);
    args.output = output.data();
    args.workspace = work.data();
    absl::Status status = kernel->Forward(args, *stream);
    status.Update(stream->Synchronize());  // where an asynchronous device reports it
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find(absl::StrCat("'wte' (embedding): position 1 of sample 1 in its "
                                                 "micro-batch holds ",
                                                 bad, ", expected 0 to 4")),
              std::string::npos)
        << status;
  }
}

// ---- How streams wait for each other ----------------------------------------------------------

TEST(StreamTest, WaitsForWhatTheOtherHasPassed) {
  const std::unique_ptr<Stream> first = *TheDevice().CreateStream();
  const std::unique_ptr<Stream> second = *TheDevice().CreateStream();
  const std::unique_ptr<Event> written = *TheDevice().CreateEvent();
  const std::unique_ptr<Event> read = *TheDevice().CreateEvent();
  EXPECT_TRUE(read->Synchronize().ok());  // nothing was recorded
  constexpr size_t kCount = 1 << 16;
  const size_t bytes = kCount * sizeof(float);
  const Buffer from(TheDevice(), *first, bytes), to(TheDevice(), *second, bytes);
  ASSERT_TRUE(first->Synchronize().ok());
  ASSERT_TRUE(second->Synchronize().ok());
  for (float round = 1; round <= 20; ++round) {
    const std::vector<float> values(kCount, round);
    std::vector<float> got(kCount);
    ASSERT_TRUE(first->Wait(*read).ok());
    ASSERT_TRUE(TheDevice().CopyToDevice(from.data(), values.data(), bytes, *first).ok());
    ASSERT_TRUE(first->Record(*written).ok());
    ASSERT_TRUE(second->Wait(*written).ok());
    ASSERT_TRUE(TheDevice().Copy(to.data(), from.data(), bytes, *second).ok());
    ASSERT_TRUE(second->Record(*read).ok());
    ASSERT_TRUE(TheDevice().CopyFromDevice(got.data(), to.data(), bytes, *second).ok());
    ASSERT_TRUE(second->Record(*written).ok());  // the first stream's mark is no longer needed
    ASSERT_TRUE(written->Synchronize().ok());
    ASSERT_EQ(got, values);
  }
  EXPECT_TRUE(first->Synchronize().ok());
  EXPECT_TRUE(second->Synchronize().ok());
}

// Captured once, launched twice, each time with what memory holds at the launch.
TEST(StreamTest, LaunchesWhatItCaptured) {
  if (!TheDevice().captures()) GTEST_SKIP() << "this device captures nothing";
  const std::unique_ptr<Stream> stream = *TheDevice().CreateStream();
  constexpr size_t kCount = 1000;
  const size_t bytes = kCount * sizeof(float);
  const Buffer from(TheDevice(), *stream, bytes), to(TheDevice(), *stream, bytes);
  const auto captured_calls = [&] {
    EXPECT_TRUE(TheDevice().Zero(to.data(), bytes, *stream).ok());
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(TheDevice()
                      .Add(static_cast<float*>(to.data()), static_cast<const float*>(from.data()),
                           kCount, *stream)
                      .ok());
    }
  };
  captured_calls();
  ASSERT_TRUE(stream->Synchronize().ok());
  ASSERT_TRUE(stream->BeginCapture().ok());
  captured_calls();
  absl::StatusOr<std::unique_ptr<Captured>> captured = stream->EndCapture();
  ASSERT_TRUE(captured.ok()) << captured.status();
  for (float round = 1; round <= 2; ++round) {
    const std::vector<float> values(kCount, round), twice(kCount, 2 * round);
    std::vector<float> got(kCount);
    ASSERT_TRUE(TheDevice().CopyToDevice(from.data(), values.data(), bytes, *stream).ok());
    ASSERT_TRUE(stream->Launch(**captured).ok());
    ASSERT_TRUE(TheDevice().CopyFromDevice(got.data(), to.data(), bytes, *stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(got, twice);
  }
}

// ---- What differs from step to step -----------------------------------------------------------

// Values in device memory have the same effect as in arguments, which hold others meanwhile.
TEST(StepValuesTest, AreReadFromMemory) {
  int cases = 0;
  for (const OperatorCase& c : OperatorCases()) {
    if (c.large || !c.spec.training || (c.spec.op != "dropout" && !c.loss())) continue;
    SCOPED_TRACE(c.label);
    const ReferenceArgs args = RandomArgs(c);
    const auto run = [&](StepValuesIn where, float loss_scale) {
      CaseRunner runner(TheDevice(), c, Formatted::kNone, 1);
      runner.SetStepValues(where, loss_scale);
      return runner.Run(args, GradOutput(c));
    };
    const Outcome expected = run(StepValuesIn::kArguments, 8);
    EXPECT_EQ(run(StepValuesIn::kMemory, 8), expected);
    if (c.loss()) {
      EXPECT_FALSE(run(StepValuesIn::kArguments, 1) == expected);
    }
    ++cases;
  }
  EXPECT_GT(cases, 4);
}

// ---- What operators do with padding and with NaN ----------------------------------------------

// Seventeen channels do not fill a block. Whatever the operator makes of zero, padding must stay
// zero, so the sum over the whole buffer equals that over the value.
TEST(PaddingTest, StaysZero) {
  int judged = 0;
  for (const OperatorCase& c : OperatorCases()) {
    if (PlaneInputs(c) == 0 || c.spec.output_shape.size() != 4 || !c.spec.training) continue;
    for (DataType type : {DataType::kFp32, DataType::kBf16, DataType::kFp16}) {
      CaseRunner runner(TheDevice(), c, Formatted::kAll, /*threads=*/1, /*in_place=*/false, type);
      const ReferenceArgs args = runner.Given(RandomArgs(c));
      double sum = 0, norm = 0;
      for (float y : runner.RawOutput(args)) {
        sum += y;
        norm += std::abs(y);
      }
      const Doubles reference = *ReferenceForward(c.spec, args);
      const double expected = std::accumulate(reference.begin(), reference.end(), 0.0);
      EXPECT_NEAR(sum, expected, Tolerance(type) * norm + 1e-6) << c.label;
      ++judged;
    }
  }
  EXPECT_GT(judged, 90);
}

// ---- Predictions ------------------------------------------------------------------------------

std::vector<uint32_t> CountCorrect(const Judgement& judgement, const std::vector<float>& logits,
                                   const void* labels) {
  Device& device = TheDevice();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  const size_t logit_bytes = logits.size() * sizeof(float);
  const size_t label_bytes = judgement.samples * judgement.labels * sizeof(float);
  std::vector<uint32_t> correct(judgement.samples, 99);
  const size_t bytes = correct.size() * sizeof(uint32_t);
  const Buffer x(device, *stream, logit_bytes), y(device, *stream, label_bytes);
  const Buffer out(device, *stream, bytes);
  EXPECT_TRUE(device.CopyToDevice(x.data(), logits.data(), logit_bytes, *stream).ok());
  EXPECT_TRUE(device.CopyToDevice(y.data(), labels, label_bytes, *stream).ok());
  const absl::Status status =
      device.CountCorrect(judgement, static_cast<const float*>(x.data()), y.data(),
                          static_cast<uint32_t*>(out.data()), *stream);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(device.CopyFromDevice(correct.data(), out.data(), bytes, *stream).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
  return correct;
}

TEST(JudgementTest, TheGreatestLogitPredicts) {
  // More columns than a warp is wide; equal logits, and infinite ones.
  constexpr int64_t kSamples = 5, kLabels = 7, kClasses = 83;
  std::mt19937 random(3);
  std::vector<float> logits(kSamples * kLabels * kClasses);
  for (float& x : logits) x = static_cast<float>(random() % 16);
  for (int64_t i = 0; i < kClasses; ++i) logits[i] = -std::numeric_limits<float>::infinity();
  std::vector<int32_t> labels(kSamples * kLabels);
  std::vector<uint32_t> expected(kSamples, 0);
  for (size_t row = 0; row < labels.size(); ++row) {
    int32_t first = 0;
    for (int32_t i = 1; i < kClasses; ++i) {
      if (logits[row * kClasses + i] > logits[row * kClasses + first]) first = i;
    }
    const bool right = row % 3 != 1;
    labels[row] = right ? first : (first + 1) % kClasses;
    expected[row / kLabels] += right;
  }
  EXPECT_EQ(CountCorrect({kSamples, kLabels, kClasses, false}, logits, labels.data()), expected);
}

TEST(JudgementTest, SignsPredict) {
  const std::vector<float> logits = {1, -1, 0, 2, -3, 0.5f};
  const std::vector<float> labels = {1, 1, 0, 0.9f, 0, 0.5f};
  EXPECT_EQ(CountCorrect({2, 3, 0, true}, logits, labels.data()), (std::vector<uint32_t>{2, 2}));
}

// ---- Logits -------------------------------------------------------------------------------------

// A linear operator's logits and their loss, forward and backward.
struct LogitsOutcome {
  std::vector<float> losses, dx, dweight, dbias;
  std::vector<uint32_t> correct;
};

// `judged`: the logits have the format that the device prefers; otherwise they are plain.
LogitsOutcome RunLogits(bool judged, DataType type, int64_t rows, int64_t features, int64_t classes,
                        const std::vector<float>& values, const std::vector<int32_t>& labels) {
  Device& device = TheDevice();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  OperatorSpec head = {.name = "head",
                       .op = "linear",
                       .type = type,
                       .input_shapes = {{rows, features}},
                       .parameter_shapes = {{classes, features}, {classes}},
                       .output_shape = {rows, classes},
                       .plain_output = !judged,
                       .judged_output = judged};
  const std::unique_ptr<OperatorKernel> linear = *device.CreateOperator(head);
  OperatorSpec loss_spec = {.name = "loss",
                            .op = "softmax_cross_entropy",
                            .attributes = {{"reduction", std::string("mean")}},
                            .type = type,
                            .input_shapes = {{rows, classes}, {rows}},
                            .input_formats = {linear->output_format(), ValueFormat()},
                            .output_shape = {rows},
                            .plain_output = true};
  const std::unique_ptr<OperatorKernel> loss = *device.CreateOperator(loss_spec);
  EXPECT_EQ(loss->input_bytes(0), linear->output_bytes());
  const auto buffer = [&](size_t bytes) {
    return std::make_unique<Buffer>(device, *stream, std::max<size_t>(bytes, 4));
  };
  const auto uploaded = [&](const void* from, size_t bytes) {
    std::unique_ptr<Buffer> to = buffer(bytes);
    EXPECT_TRUE(device.CopyToDevice(to->data(), from, bytes, *stream).ok());
    return to;
  };
  const size_t x_count = rows * features, w_count = classes * features;
  const auto x = uploaded(values.data(), x_count * 4);
  const auto w = uploaded(values.data() + x_count, w_count * 4);
  const auto b = uploaded(values.data() + x_count + w_count, classes * 4);
  const auto y = uploaded(labels.data(), rows * 4);
  const auto logits = buffer(linear->output_bytes()), gradient = buffer(linear->output_bytes());
  const auto losses = buffer(rows * 4), dx = buffer(x_count * 4), dw = buffer(w_count * 4);
  const auto db = buffer(classes * 4), correct = buffer(rows * 4);
  const auto saved = buffer(linear->saved_bytes()), loss_saved = buffer(loss->saved_bytes());
  const auto work = buffer(std::max(linear->workspace_bytes(), loss->workspace_bytes()));

  const void* const linear_inputs[] = {x->data()};
  const float* const parameters[] = {static_cast<const float*>(w->data()),
                                     static_cast<const float*>(b->data())};
  const void* const loss_inputs[] = {logits->data(), y->data()};
  EXPECT_TRUE(linear
                  ->Forward({.inputs = linear_inputs,
                             .parameters = parameters,
                             .output = logits->data(),
                             .saved = saved->data(),
                             .workspace = work->data()},
                            *stream)
                  .ok());
  EXPECT_TRUE(loss->Forward({.inputs = loss_inputs,
                             .output = losses->data(),
                             .saved = loss_saved->data(),
                             .workspace = work->data()},
                            *stream)
                  .ok());
  EXPECT_TRUE(device
                  .CountCorrect({rows, 1, classes, false, linear->output_format()}, logits->data(),
                                y->data(), static_cast<uint32_t*>(correct->data()), *stream)
                  .ok());
  void* const loss_gradients[] = {gradient->data(), nullptr};
  EXPECT_TRUE(loss->Backward({.inputs = loss_inputs,
                              .output = losses->data(),
                              .grad_inputs = loss_gradients,
                              .saved = loss_saved->data(),
                              .workspace = work->data(),
                              .global_batch = rows},
                             *stream)
                  .ok());
  void* const linear_gradients[] = {dx->data()};
  float* const parameter_gradients[] = {static_cast<float*>(dw->data()),
                                        static_cast<float*>(db->data())};
  EXPECT_TRUE(linear
                  ->Backward({.inputs = linear_inputs,
                              .parameters = parameters,
                              .output = logits->data(),
                              .grad_output = gradient->data(),
                              .grad_inputs = linear_gradients,
                              .grad_parameters = parameter_gradients,
                              .saved = saved->data(),
                              .workspace = work->data(),
                              .global_batch = rows},
                             *stream)
                  .ok());
  const auto read = [&]<typename T>(const Buffer& from, size_t count, std::vector<T>* to) {
    to->resize(count);
    EXPECT_TRUE(device.CopyFromDevice(to->data(), from.data(), count * 4, *stream).ok());
  };
  LogitsOutcome outcome;
  read(*losses, rows, &outcome.losses);
  read(*dx, x_count, &outcome.dx);
  read(*dw, w_count, &outcome.dweight);
  read(*db, classes, &outcome.dbias);
  read(*correct, rows, &outcome.correct);
  EXPECT_TRUE(stream->Synchronize().ok());
  return outcome;
}

// Whatever format the logits have, they mean the same to the loss, its gradient and the judgement.
TEST(LogitsTest, MeanTheSameInTheDevicesFormat) {
  constexpr int64_t kRows = 70, kFeatures = 24;
  for (const DataType type : {DataType::kFp32, DataType::kBf16, DataType::kFp16}) {
    for (const int64_t classes : {int64_t{10}, int64_t{96}, int64_t{301}}) {
      SCOPED_TRACE(absl::StrCat(DataTypeName(type), ", ", classes, " classes"));
      std::mt19937 random(static_cast<uint32_t>(classes));
      std::vector<float> values(kRows * kFeatures + classes * kFeatures + classes);
      for (float& v : values) v = std::normal_distribution<float>()(random);
      std::vector<int32_t> labels(kRows);
      for (int32_t& label : labels) label = static_cast<int32_t>(random() % classes);
      const LogitsOutcome plain = RunLogits(false, type, kRows, kFeatures, classes, values, labels);
      const LogitsOutcome judged = RunLogits(true, type, kRows, kFeatures, classes, values, labels);
      EXPECT_EQ(plain.correct, judged.correct);
      const double tolerance = type == DataType::kFp32 ? 1e-5 : 0.02;
      const auto alike = [&](const std::vector<float>& a, const std::vector<float>& b) {
        double difference = 0, size = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          difference += std::pow(double{a[i]} - b[i], 2);
          size += std::pow(double{a[i]}, 2);
        }
        EXPECT_GT(size, 0);
        EXPECT_LE(difference, tolerance * tolerance * size);  // not if either is NaN
      };
      alike(plain.losses, judged.losses);
      alike(plain.dx, judged.dx);
      alike(plain.dweight, judged.dweight);
      alike(plain.dbias, judged.dbias);
    }
  }
}

TEST(UpdatingDeviceTest, OnlyTheCpuRunsNoOptimizerSteps) {
  EXPECT_EQ(dynamic_cast<UpdatingDevice*>(&TheDevice()) == nullptr, DeviceName() == "cpu");
}

// Three optimizer steps, on devices that can run them.
class UpdateTest : public ::testing::TestWithParam<OptimizerStep::Kind> {};

TEST_P(UpdateTest, IsTheReferences) {
  const bool adam = GetParam() == OptimizerStep::kAdam;
  const OptimizerStep step = {.kind = GetParam(),
                              .scale = 0.5f,
                              .decay = 0.01f,
                              .rate = 0.125f,
                              .momentum = 0.75f,
                              .beta1 = 0.875f,
                              .beta2 = 0.9375f,
                              .keep = 0.99f,
                              .root = 1.5f,
                              .epsilon = 1e-3f};
  constexpr size_t kCount = 100'003;  // not a multiple of a warp or block
  std::vector<float> gradient(kCount), first(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    gradient[i] = std::sin(static_cast<float>(i));
    first[i] = std::cos(static_cast<float>(3 * i));
  }
  Device& device = TheDevice();
  auto* const updating = dynamic_cast<UpdatingDevice*>(&device);
  ASSERT_NE(updating, nullptr);
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  constexpr size_t kBytes = kCount * sizeof(float);
  const Buffer g(device, *stream, kBytes), w(device, *stream, kBytes);
  const Buffer slot0(device, *stream, kBytes), slot1(device, *stream, kBytes);
  ASSERT_TRUE(device.CopyToDevice(g.data(), gradient.data(), kBytes, *stream).ok());
  ASSERT_TRUE(device.CopyToDevice(w.data(), first.data(), kBytes, *stream).ok());
  ASSERT_TRUE(device.Zero(slot0.data(), kBytes, *stream).ok());
  ASSERT_TRUE(device.Zero(slot1.data(), kBytes, *stream).ok());
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = updating->Update(
        step, static_cast<const float*>(g.data()), static_cast<float*>(w.data()),
        step.kind == OptimizerStep::kStatistic ? nullptr : static_cast<float*>(slot0.data()),
        adam ? static_cast<float*>(slot1.data()) : nullptr, kCount, *stream);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<float> got(kCount);
  ASSERT_TRUE(device.CopyFromDevice(got.data(), w.data(), kBytes, *stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());

  Doubles expected(first.begin(), first.end());
  for (size_t i = 0; i < kCount; ++i) {
    double m = 0, v = 0, &x = expected[i];
    for (int k = 0; k < 3; ++k) {
      const double gradient_of_loss = 0.5 * gradient[i] + static_cast<double>(step.decay) * x;
      if (step.kind == OptimizerStep::kMomentum) {
        v = 0.75 * v + gradient_of_loss;
        x -= 0.125 * v;
      } else if (adam) {
        m = 0.875 * m + 0.125 * gradient_of_loss;
        v = 0.9375 * v + 0.0625 * gradient_of_loss * gradient_of_loss;
        x = static_cast<double>(step.keep) * x -
            0.125 * m / (1.5 * std::sqrt(v) + static_cast<double>(step.epsilon));
      } else {
        x = 0.25 * x + 0.75 * gradient_of_loss;
      }
    }
  }
  EXPECT_LT(NormRelative(Doubles(got.begin(), got.end()), expected), 1e-6);
}

std::vector<OptimizerStep::Kind> UpdateKinds() {
  if (DeviceName() == "cpu") return {};
  return {OptimizerStep::kMomentum, OptimizerStep::kAdam, OptimizerStep::kStatistic};
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(UpdateTest);
INSTANTIATE_TEST_SUITE_P(Optimizers, UpdateTest, ::testing::ValuesIn(UpdateKinds()));

TEST(NanTest, GoesThrough) {
  std::set<std::string> judged;
  for (const OperatorCase& c : OperatorCases()) {
    static const std::set<std::string> kElementwise = {"relu", "gelu", "sigmoid", "tanh", "clip"};
    if (!kElementwise.contains(c.spec.op) || !c.spec.training) continue;
    ReferenceArgs args = RandomArgs(c);
    for (double& x : args.inputs[0]) x = std::numeric_limits<double>::quiet_NaN();
    for (DataType type : {DataType::kFp32, DataType::kBf16, DataType::kFp16}) {
      CaseRunner runner(TheDevice(), c, Formatted::kStored, /*threads=*/1, /*in_place=*/false,
                        type);
      for (double y : runner.Run(args, GradOutput(c)).output) {
        ASSERT_TRUE(std::isnan(y)) << c.label << " " << DataTypeName(type);
      }
    }
    judged.insert(c.spec.op);
  }
  EXPECT_EQ(judged.size(), 5u);
}

}  // namespace
}  // namespace starling
