// Starling's side of tools/bench.sh compute: one process that trains nets on data in memory, on
// request line by line, so that it can take turns with another process.
//
//   compute_bench THREADS   (a power of two, at most 8)
//   compute_bench gpu [plain]
//
// On the CPU there is one lane per thread, and one micro-batch of a step per lane. On the GPU there
// is one lane and a step is one micro-batch; its samples are copied there in each step, and
// parameters and the optimizer's state stay there. With `plain` kernels are launched one by one
// instead of in CUDA graphs.
//
// Prints one line of JSON that describes it. Then it answers each line "WHAT PRECISION SECONDS" of
// standard input, where WHAT is a net's name or, on the CPU, "matmul", and PRECISION is fp32 or
// bf16, with {"units": U, "seconds": S}: U samples trained, or floating-point operations of
// oneDNN's matrix product, in S seconds. A net's first request builds it and does its first steps.
// Ends at the end of the input.
#include "tools/bench/compute_bench.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/library.h"
#include "server/shard/apply/init.h"
#include "tools/bench/compute_nets.h"
#include "tools/bench/device_local_update.h"
#include "worker/executor/local_run.h"

namespace starling {
namespace {

struct Measured {
  double units = 0;
  double seconds = 0;
};

// Calls `step`, which returns the units it did, until `seconds` have passed.
template <typename Step>
absl::StatusOr<Measured> Repeat(double seconds, Step step) {
  Measured measured;
  const absl::Time begin = absl::Now();
  while (measured.seconds < seconds) {
    STARLING_ASSIGN_OR_RETURN(const double units, step());
    measured.units += units;
    measured.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  }
  return measured;
}

// The same random samples in every step.
absl::StatusOr<std::unique_ptr<FixedBatches>> RandomSamples(const ComputeNet& net,
                                                            const ResolvedGraph& graph,
                                                            Device* device) {
  const int64_t batch = net.spec.batch().global();
  const int64_t micro_batches = net.spec.batch().micro_batches();
  const FixedBatches::Sizes sizes = {.micro_batches = micro_batches,
                                     .samples = batch / micro_batches,
                                     .input_elements = graph.values[kInputValue].elements,
                                     .label_elements = graph.values[kLabelValue].elements};
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<FixedBatches> samples,
                            FixedBatches::Create(sizes, device));
  std::mt19937 random(1);
  for (int64_t i = 0; i < batch * sizes.input_elements; ++i) {
    if (net.inputs_below > 0) {
      static_cast<int32_t*>(samples->inputs())[i] =
          static_cast<int32_t>(random() % net.inputs_below);
    } else {
      static_cast<float*>(samples->inputs())[i] = std::normal_distribution<float>()(random);
    }
  }
  for (int64_t i = 0; i < batch * sizes.label_elements; ++i) {
    static_cast<int32_t*>(samples->labels())[i] = static_cast<int32_t>(random() % graph.classes);
  }
  return samples;
}

// A net with its parameters, data and optimizer state.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(ComputeNet net, DataType type, int lanes,
                                                         bool capture, Device* device) {
    net.spec.mutable_batch()->set_micro_batches(static_cast<uint32_t>(lanes));
    STARLING_ASSIGN_OR_RETURN(ResolvedGraph graph, Validate(net.spec.model()));
    STARLING_ASSIGN_OR_RETURN(Layout layout, MakeLayout(net.spec));
    std::unique_ptr<Trainer> trainer(
        new Trainer(std::move(net), std::move(graph), std::move(layout)));
    STARLING_RETURN_IF_ERROR(trainer->Prepare(type, lanes, capture, device));
    return trainer;
  }

  absl::StatusOr<double> Step() {
    const uint32_t micro_batches = net_.spec.batch().micro_batches();
    const auto range_of = [&](int64_t step) {
      return WorkRange{WorkPurpose::kTrain, 0, static_cast<uint64_t>(step) * micro_batches,
                       micro_batches};
    };
    const WorkRange range = range_of(step_);
    Unit unit = LocalUnit(range, step_, *update_);
    unit.next = [&] { return range_of(step_ + 1); };
    update_->BeginStep(step_, net_.rate);
    UnitResult result;
    STARLING_RETURN_IF_ERROR(executor_->Train(unit, *batch_, gate_, *update_, &result));
    if (!result.finite) {
      return absl::InternalError(absl::StrCat(net_.name, ", step ", step_, ": the output of ",
                                              result.bad_layer, " is not finite"));
    }
    ++step_;
    return static_cast<double>(result.ranges[0].samples);
  }

 private:
  Trainer(ComputeNet net, ResolvedGraph graph, Layout layout)
      : net_(std::move(net)), graph_(std::move(graph)), layout_(std::move(layout)) {}

  absl::Status Prepare(DataType type, int lanes, bool capture, Device* device) {
    const Batch& batch = net_.spec.batch();
    ExecutorOptions options;
    options.global_batch = batch.global();
    options.micro_batches = batch.micro_batches();
    options.train_samples = {batch.global() / batch.micro_batches()};
    options.lanes = lanes;
    options.type = type;
    options.capture = capture;
    options.tune = true;  // like jobs under SSP: chooses by measurement when the net is made
    options.seed = net_.spec.seed();
    STARLING_ASSIGN_OR_RETURN(executor_,
                              Executor::Create(graph_, layout_, options, device, &spans_));
    for (const std::string& line : executor_->slower_operators()) {
      std::fprintf(stderr, "not the fast way: %s\n", line.c_str());
    }
    STARLING_ASSIGN_OR_RETURN(batch_, RandomSamples(net_, graph_, device));
    STARLING_ASSIGN_OR_RETURN(
        update_, MakeLocalStep(net_.spec, layout_, device, executor_->live_parameters()));
    FirstValues first(net_.spec.seed(), net_.spec.model());
    for (const Slice& slice : layout_.slices) {
      STARLING_RETURN_IF_ERROR(first.Make(slice, executor_->live_parameters() + slice.flat_begin));
    }
    // The first step loads libraries' code, the second captures.
    STARLING_RETURN_IF_ERROR(Step().status());
    return Step().status();
  }

  const ComputeNet net_;
  const ResolvedGraph graph_;
  const Layout layout_;
  OpenGate gate_;
  SpanRing spans_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<FixedBatches> batch_;
  std::unique_ptr<LocalStep> update_;
  int64_t step_ = 0;
};

// The ceiling: oneDNN's products of square matrices of one type into fp32, one per thread at a
// time.
class MatMuls {
 public:
  MatMuls(DataType type, int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0) {
    omp_set_num_threads(1);  // threads per product on this thread
    const dnnl::memory::desc factor = Square(
        type == DataType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32);
    const dnnl::memory::desc product = Square(dnnl::memory::data_type::f32);
    const dnnl::matmul::desc desc(factor, factor, product);
    matmul_ = dnnl::matmul(dnnl::matmul::primitive_desc(desc, engine_));
    for (int i = 0; i < threads; ++i) {
      memory_.push_back({Filled(factor), Filled(factor), Filled(product)});
    }
  }

  absl::StatusOr<Measured> Run(double seconds) {
    std::vector<Measured> measured(threads_);
    std::vector<std::thread> threads;
    for (int i = 0; i < threads_; ++i) {
      threads.emplace_back([this, i, seconds, &measured] {
        omp_set_num_threads(1);
        dnnl::stream stream(engine_);
        measured[i] = *Repeat(seconds, [&]() -> absl::StatusOr<double> {
          matmul_.execute(stream, {{DNNL_ARG_SRC, memory_[i][0]},
                                   {DNNL_ARG_WEIGHTS, memory_[i][1]},
                                   {DNNL_ARG_DST, memory_[i][2]}});
          return 2.0 * kSide * kSide * kSide;
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    Measured sum = measured[0];
    for (int i = 1; i < threads_; ++i) {  // rates add up
      sum.units += measured[i].units * sum.seconds / measured[i].seconds;
    }
    return sum;
  }

 private:
  static constexpr int64_t kSide = 1024;

  static dnnl::memory::desc Square(dnnl::memory::data_type type) {
    return {{kSide, kSide}, type, dnnl::memory::format_tag::ab};
  }

  // A matrix filled with one small number.
  dnnl::memory Filled(const dnnl::memory::desc& desc) const {
    constexpr uint16_t kSmall = 0x3c00;  // 1 / 128 in bf16; two make about that in fp32
    dnnl::memory memory(desc, engine_);
    std::fill_n(static_cast<uint16_t*>(memory.get_data_handle()), desc.get_size() / 2, kSmall);
    return memory;
  }

  const int threads_;
  const dnnl::engine engine_;
  dnnl::matmul matmul_;
  std::vector<std::array<dnnl::memory, 3>> memory_;  // per thread
};

class Bench {
 public:
  // `threads`: of the CPU; 0: `device` is a GPU. `capture`: whether it uses CUDA graphs.
  Bench(int threads, bool capture, std::unique_ptr<Device> device)
      : threads_(threads), capture_(capture), device_(std::move(device)) {}

  absl::Status Describe() const {
    const dnnl_version_t* const version = dnnl_version();
    std::vector<std::string> flops;
    for (const std::string& name : AllComputeNetNames()) {
      STARLING_ASSIGN_OR_RETURN(const ComputeNet net, MakeComputeNet(name));
      STARLING_ASSIGN_OR_RETURN(const ResolvedGraph graph, Validate(net.spec.model()));
      flops.push_back(absl::StrFormat("\"%s\": %.0f", name, StepFlops(graph)));
    }
    std::printf(
        "{\"device\": \"%s\", \"instruction_set\": \"%s\", \"onednn\": \"%d.%d.%d\", "
        "\"flops\": {%s}}\n",
        device_->name().c_str(), device_->instruction_set().c_str(), version->major, version->minor,
        version->patch, absl::StrJoin(flops, ", ").c_str());
    return absl::OkStatus();
  }

  absl::Status Answer(const std::string& what, DataType type, double seconds) {
    absl::StatusOr<Measured> measured;
    if (what == "matmul" && threads_ > 0) {
      std::unique_ptr<MatMuls>& matmuls = matmuls_[type];
      if (matmuls == nullptr) matmuls = std::make_unique<MatMuls>(type, threads_);
      measured = matmuls->Run(seconds);
    } else {
      std::unique_ptr<Trainer>& trainer = trainers_[{what, type}];
      if (trainer == nullptr) {
        STARLING_ASSIGN_OR_RETURN(ComputeNet net, MakeComputeNet(what));
        STARLING_ASSIGN_OR_RETURN(
            trainer,
            Trainer::Create(std::move(net), type, std::max(1, threads_), capture_, device_.get()));
      }
      measured = Repeat(seconds, [&] { return trainer->Step(); });
    }
    if (!measured.ok()) return measured.status();
    std::printf("{\"units\": %.17g, \"seconds\": %.9f}\n", measured->units, measured->seconds);
    return absl::OkStatus();
  }

 private:
  const int threads_;
  const bool capture_;
  const std::unique_ptr<Device> device_;
  std::map<DataType, std::unique_ptr<MatMuls>> matmuls_;
  std::map<std::pair<std::string, DataType>, std::unique_ptr<Trainer>> trainers_;
};

// `threads`: of the CPU; 0: on the GPU, in CUDA graphs if `capture`.
absl::Status Serve(int threads, bool capture) {
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                            threads > 0 ? CreateCpuDevice() : OpenCudaDevice(""));
  Bench bench(threads, capture, std::move(device));
  STARLING_RETURN_IF_ERROR(bench.Describe());
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what, precision;
    double seconds = 0;
    if (!(words >> what >> precision >> seconds) || seconds <= 0 ||
        (precision != "fp32" && precision != "bf16")) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected WHAT fp32|bf16 SECONDS, got '", line, "'"));
    }
    const DataType type = precision == "bf16" ? DataType::kBf16 : DataType::kFp32;
    STARLING_RETURN_IF_ERROR(bench.Answer(what, type, seconds));
  }
  return absl::OkStatus();
}

}  // namespace

int ComputeBenchMain(int argc, char** argv) {
  constexpr const char* kUsage =
      "usage: compute_bench THREADS (a power of two, at most 8), or: compute_bench gpu [plain]\n";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool plain = argc == 3 && std::string(argv[1]) == "gpu" && std::string(argv[2]) == "plain";
  const std::string where = argc == 2 || plain ? argv[1] : "";
  if (where == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  int threads = 0;
  if (where != "gpu" && (!absl::SimpleAtoi(where, &threads) || threads < 1 || threads > 8 ||
                         !std::has_single_bit(static_cast<unsigned>(threads)))) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const absl::Status status = Serve(threads, !plain);
  if (status.ok()) return 0;
  std::fprintf(stderr, "compute_bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace starling
