// The table behind JobFileSchema(): every key of the job file.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/config/data_section.h"
#include "common/config/fields.h"
#include "common/config/job_file.h"
#include "common/config/schema.h"
#include "common/graph/builders.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

constexpr Range kRates = {0, 1e6};
constexpr Range kDecays = {0, 1e3};
constexpr Range kScales = {0, 1e3};
constexpr Range kEpsilons = {1e-30, 1};
const Range kBelowOne = {0, std::nextafter(1.0, 0.0)};

Field WarmupField(const std::string& help) {
  return Integer("warmupSteps", {0, static_cast<double>(int64_t{1} << 40)}, "0", help);
}

Field LearningRateField() {
  Field rate = Group("learningRate", T::kOneOf,
                     "a constant rate, or one of constant, step, cosine; with warmupSteps",
                     {
                         Number("constant", kRates, "", "the same rate throughout"),
                         Group("step", T::kMap, "initial * factor^floor(step / everySteps)",
                               {Number("initial", kRates, "", "first rate", true),
                                Number("factor", kRates, "0.1", "multiplies the rate"),
                                Integer("everySteps", {1}, "", "steps between", true),
                                WarmupField("linear from 0 over so many steps")}),
                         Group("cosine", T::kMap, "from peak to floor along half a cosine",
                               {Number("peak", kRates, "", "greatest rate", true),
                                Number("floor", kRates, "0", "last rate"),
                                WarmupField("linear from 0 over so many steps")}),
                         Beside(WarmupField("with constant: linear from 0 over so many steps")),
                     },
                     true);
  rate.number_allowed = true;
  return rate;
}

Field AdamField(const std::string& key, const std::string& help, const std::string& epsilon,
                const std::string& decay) {
  const bool decoupled = key != "adam";
  return Group(key, T::kMap, help,
               {LearningRateField(), Number("beta1", kBelowOne, "0.9", "decay of the first moment"),
                Number("beta2", kBelowOne, "0.999", "decay of the second moment"),
                Number("epsilon", kEpsilons, epsilon, "added to the root of the second moment"),
                Number("weightDecay", kDecays, decay,
                       decoupled ? "decoupled decay" : "added to the gradient")});
}

Field MomentumField(const std::string& key, const std::string& help) {
  return Group(
      key, T::kMap, help,
      {LearningRateField(), Number("momentum", kBelowOne, "0.9", "share of the velocity kept"),
       Number("weightDecay", kDecays, "0", "added to the gradient")});
}

Field GroupsField() {
  return Group(
      "groups", T::kMapList, "parameters with settings of their own; the first that has one counts",
      {Leaf("match", T::kStringList, "", "globs of parameter names, like \"*.bias\""),
       Leaf("vectors", T::kBoolean, "false", "has all parameters of one dimension: biases, norms"),
       Number("rateScale", kScales, "1", "multiplies the learning rate; 0: not trained"),
       Number("weightDecay", kDecays, "", "instead of the optimizer's"),
       ByHand(Leaf("trustRatio", T::kBoolean, "true",
                   "false, with lamb: the step keeps its length"))});
}

Field OptimizerField() {
  return Group(
      "optimizer", T::kOneOf, "how a shard applies gradients",
      {
          Group(
              "sgd", T::kMap, "w -= rate * g",
              {LearningRateField(), Number("weightDecay", kDecays, "0", "added to the gradient")}),
          MomentumField("momentum", "v = momentum * v + g; w -= rate * v"),
          MomentumField("nesterov", "v = momentum * v + g; w -= rate * (g + momentum * v)"),
          Group(
              "adagrad", T::kMap,
              "h += g^2; w -= rate * g / (sqrt(h) + epsilon): Duchi et al. 2011",
              {LearningRateField(), Number("epsilon", kEpsilons, "1e-10", "added to the root of h"),
               Number("initialAccumulator", {0, 1e6}, "0", "h before the first step"),
               Number("weightDecay", kDecays, "0", "added to the gradient")}),
          AdamField("adam", "Kingma and Ba 2015", "1e-8", "0"),
          AdamField("adamw", "Loshchilov and Hutter 2019", "1e-8", "0.01"),
          AdamField("lamb",
                    "You et al. 2020: adamw's step, as long as the parameter is, times the rate",
                    "1e-6", "0.01"),
          Beside(GroupsField()),
      },
      true);
}

T TypeOf(BuiltinArgument::Type type) {
  switch (type) {
    case BuiltinArgument::Type::kInteger: return T::kInteger;
    case BuiltinArgument::Type::kNumber: return T::kNumber;
    case BuiltinArgument::Type::kBoolean: return T::kBoolean;
    case BuiltinArgument::Type::kText: return T::kString;
    case BuiltinArgument::Type::kIntegers: return T::kNumberList;
  }
  return T::kString;
}

// Adds a key for each argument of a builtin.
void AddArguments(Field* model) {
  for (const Builtin& builtin : Builtins()) {
    for (const BuiltinArgument& argument : builtin.arguments) {
      if (FindField(*model, argument.name) != nullptr) continue;
      model->children.push_back(
          Leaf(argument.name, TypeOf(argument.type), argument.default_text, argument.meaning));
    }
  }
}

Field ClipField() {
  Field scope = Required(Word("scope", {"parameter", "worker", "global"},
                              "of what: parameter; in ssp and async worker; in bsp global"));
  scope.default_text.clear();
  return Group("clip", T::kMap, "scales gradients down to a length",
               {Number("norm", {std::numeric_limits<double>::min(), 1e30}, "",
                       "greatest Euclidean length", true),
                scope});
}

Field ModelField() {
  std::string names;
  for (const Builtin& builtin : Builtins()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", builtin.name);
  }
  Field model =
      Group("model", T::kMap, "builtin or layers",
            {
                Leaf("builtin", T::kString, "", names),
                Leaf("layers", T::kLayers, "",
                     "a list of layers: - conv2d: {out_channels: 32, kernel: 3}"),
                Leaf("init", T::kString, "",
                     "a safetensors file to start from, visible to the shards under the same path"),
                Leaf("freeze", T::kStringList, "[]",
                     "parameters that stay as they are, by globs over their names: [\"stem.*\"]"),
            },
            true);
  AddArguments(&model);
  return ByHand(model);
}

Field GuardField() {
  return Beside(Group(
      "guard", T::kMap, "tightens by itself when training goes wrong: async to ssp to bsp",
      {Integer("window", {4, kGuardWindowMax}, "16", "batches whose median loss is looked at"),
       Number("lossFactor", {1}, "2.5", "that median above so many times its best recent one"),
       ZeroIsNone(Integer("lag", {1}, "",
                          "greatest lag: updates between pull and apply; not given: none")),
       Integer("staleness", {0, limits::kStalenessMax}, "1", "of the ssp between async and bsp")}));
}

Field SpecField() {
  return Group(
      "spec", T::kMap, "the job",
      {
          Integer("seed", {0}, "0", "decides initial values, order of samples, dropout"),
          ModelField(),
          DataField(),
          ByHand(Word("loss", {"softmaxCrossEntropy", "meanSquaredError", "binaryCrossEntropy"},
                      "softmaxCrossEntropy, meanSquaredError or binaryCrossEntropy (counter brings "
                      "its own)")),
          Group("batch", T::kMap, "samples per step and how they are cut",
                {Integer("global", {1, limits::kGlobalBatchMax}, "",
                         "samples per step, whatever the number of workers", true),
                 Integer("microBatches", {1, limits::kMicroBatchesMax}, "4",
                         "a power of two that divides global"),
                 Integer("kernelThreads", {1, 256}, "1",
                         "threads inside one micro-batch: part of the result's bits")},
                true),
          Group("recompute", T::kOneOf,
                "activation checkpointing: activations that backward computes again, to need less "
                "memory",
                {Group("none", T::kMap, "none: all that backward reads is kept", {}),
                 Integer("everyBlocks", {1, kRecomputeBlocksMax}, "",
                         "all but what leaves each run of so many blocks of the model"),
                 Integer("activationBytes", {1}, "",
                         "as few as let the activations of a micro-batch fit into so many bytes")}),
          OptimizerField(),
          ClipField(),
          Into("policy",
               Group("consistency", T::kOneOf, "who waits for whom",
                     {Group("bsp", T::kMap,
                            "every step waits for all: bitwise the same for any number of workers",
                            {}),
                      Group("ssp", T::kMap, "workers at most `staleness` steps apart",
                            {Integer("staleness", {0, limits::kStalenessMax}, "", "0 or more",
                                     true)}),
                      Group("async", T::kMap, "nobody waits; staleness is measured", {}),
                      GuardField()})),
          Word("precision", {"fp32", "bf16", "fp16"},
               "of activations and their gradients: fp32, bf16 or fp16, whose loss is scaled"),
          Leaf("tf32", T::kBoolean, "false",
               "with fp32: a GPU may round what it multiplies to tf32; CPUs do not"),
          Word("durability", {"auto", "replicated", "none"},
               "copies of parameters and optimizer state: auto (two where there are two shards), "
               "replicated, or none"),
          Group("checkpoint", T::kOneOf,
                "saves the job's state, from which it, or another job, can be started",
                {Into("every_seconds", Leaf("every", T::kDuration, "",
                                            "running time from one to the next; at least 1s")),
                 ZeroIsNone(Integer("everySteps", {1}, "", "global batches from one to the next")),
                 Beside(Integer("keep", {1, 1000}, "2",
                                "so many of the newest are kept, besides those of starling "
                                "checkpoint create"))}),
          Into("restarts_max",
               Integer("maxRestarts", {0, 1000}, absl::StrCat(limits::kRestartsPerJob),
                       "goes back so often to its last checkpoint, or to its start, before it "
                       "takes a new one; then it fails")),
          Leaf("goBackIfNotFinite", T::kBoolean, "false",
               "goes back to its last checkpoint when a worker is quarantined for values that are "
               "not finite, and, once, when they are the job's own"),
          Group("workers", T::kMap, "how many",
                {Into("workers_min", Integer("min", {1, limits::kWorkersPerJobMax}, "1",
                                             "starts with at least so many")),
                 Into("workers_max", Integer("max", {1, limits::kWorkersPerJobMax}, "1",
                                             "grows to so many; at least min")),
                 Into("workers_backup",
                      Integer("backup", {0, limits::kWorkersPerJobMax}, "0",
                              "bsp: of these, so many repeat the parts of the latest others, so "
                              "that steps do not wait for them; below max")),
                 Word("device", {"auto", "cpu", "gpu"},
                      "auto (a GPU where a worker has one), cpu, or gpu (only workers that have "
                      "one)")}),
          Group("evaluate", T::kMap, "measure accuracy on data.test",
                {ZeroIsNone(Integer("everyEpochs", {1, limits::kEpochsMax}, "1",
                                    "and always after the last epoch"))}),
          Leaf("output", T::kString, "",
               "safetensors file that the coordinator writes when the job succeeds, beneath its "
               "--output-root"),
          Leaf("tensorboard", T::kPath, "",
               "folder for TensorBoard's event files, written by the coordinator"),
          Group(
              "stop", T::kMap, "when the job is done: the first that comes",
              {Integer("epochs", {1, limits::kEpochsMax}, "1", "passes over the data"),
               ZeroIsNone(Integer("steps", {1}, "", "global batches; the last epoch is cut short")),
               Into("wall_time_seconds", Leaf("wallTime", T::kDuration, "", "running time"))}),
      },
      true);
}

}  // namespace

const Field& JobFileSchema() {
  static const Field* schema = new Field(
      Group("", T::kMap, "a job file",
            {
                Required(ByHand(Word("apiVersion", {"starling/v1"}, "version of this schema"))),
                Required(ByHand(Word("kind", {"TrainingJob"}, "what this file describes"))),
                Group("metadata", T::kMap, "name and labels",
                      {Leaf("name", T::kString, "",
                            "lower-case letters, digits and -; unique until deleted", true),
                       ByHand(Leaf("labels", T::kLabels, "{}", "for people"))},
                      true),
                SpecField(),
            }));
  return *schema;
}

}  // namespace starling::config
