// The table behind JobFileSchema(): every key of the job file.
#include <algorithm>
#include "common/config/data_section.h"
#include "common/config/fields.h"

#include "absl/strings/str_cat.h"
#include "common/config/schema.h"
#include "common/graph/builders.h"

namespace starling::config {
namespace {

Field LearningRateField() {
  Field rate = Group(
      "learningRate", T::kMap, "a number, or one of constant, step, cosine; with warmupSteps",
      {
          Leaf("constant", T::kNumber, "", "the same rate throughout"),
          Group("step", T::kMap, "initial * factor^floor(step / everySteps)",
                {Leaf("initial", T::kNumber, "", "first rate", true),
                 Leaf("factor", T::kNumber, "0.1", "multiplies the rate"),
                 Leaf("everySteps", T::kInteger, "", "steps between", true),
                 Leaf("warmupSteps", T::kInteger, "0", "linear from 0 over so many steps")}),
          Group("cosine", T::kMap, "from peak to floor along half a cosine",
                {Leaf("peak", T::kNumber, "", "greatest rate", true),
                 Leaf("floor", T::kNumber, "0", "last rate"),
                 Leaf("warmupSteps", T::kInteger, "0", "linear from 0 over so many steps")}),
          Leaf("warmupSteps", T::kInteger, "0", "with constant: linear from 0 over so many steps"),
      },
      true);
  rate.number_allowed = true;
  return rate;
}

Field AdamField(const std::string& key, const std::string& help, const std::string& epsilon,
                const std::string& decay) {
  const bool decoupled = key != "adam";
  return Group(key, T::kMap, help,
               {LearningRateField(), Leaf("beta1", T::kNumber, "0.9", "decay of the first moment"),
                Leaf("beta2", T::kNumber, "0.999", "decay of the second moment"),
                Leaf("epsilon", T::kNumber, epsilon, "added to the root of the second moment"),
                Leaf("weightDecay", T::kNumber, decay,
                     decoupled ? "decoupled decay" : "added to the gradient")});
}

Field MomentumField(const std::string& key, const std::string& help) {
  return Group(
      key, T::kMap, help,
      {LearningRateField(), Leaf("momentum", T::kNumber, "0.9", "share of the velocity kept"),
       Leaf("weightDecay", T::kNumber, "0", "added to the gradient")});
}

Field GroupsField() {
  Field groups = Group(
      "groups", T::kMapList, "parameters with settings of their own; the first that has one counts",
      {Leaf("match", T::kStringList, "", "globs of parameter names, like \"*.bias\""),
       Leaf("vectors", T::kBoolean, "false", "has all parameters of one dimension: biases, norms"),
       Leaf("rateScale", T::kNumber, "1", "multiplies the learning rate; 0: not trained"),
       Leaf("weightDecay", T::kNumber, "", "instead of the optimizer's"),
       Leaf("trustRatio", T::kBoolean, "true", "false, with lamb: the step keeps its length")});
  groups.beside = true;
  return groups;
}

Field OptimizerField() {
  return Group(
      "optimizer", T::kOneOf, "how a shard applies gradients",
      {
          Group(
              "sgd", T::kMap, "w -= rate * g",
              {LearningRateField(), Leaf("weightDecay", T::kNumber, "0", "added to the gradient")}),
          MomentumField("momentum", "v = momentum * v + g; w -= rate * v"),
          MomentumField("nesterov", "v = momentum * v + g; w -= rate * (g + momentum * v)"),
          Group(
              "adagrad", T::kMap,
              "h += g^2; w -= rate * g / (sqrt(h) + epsilon): Duchi et al. 2011",
              {LearningRateField(), Leaf("epsilon", T::kNumber, "1e-10", "added to the root of h"),
               Leaf("initialAccumulator", T::kNumber, "0", "h before the first step"),
               Leaf("weightDecay", T::kNumber, "0", "added to the gradient")}),
          AdamField("adam", "Kingma and Ba 2015", "1e-8", "0"),
          AdamField("adamw", "Loshchilov and Hutter 2019", "1e-8", "0.01"),
          AdamField("lamb",
                    "You et al. 2020: adamw's step, as long as the parameter is, times the rate",
                    "1e-6", "0.01"),
          GroupsField(),
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
      const bool known =
          std::any_of(model->children.begin(), model->children.end(),
                      [&](const Field& field) { return field.key == argument.name; });
      if (known) continue;
      model->children.push_back(
          Leaf(argument.name, TypeOf(argument.type), argument.default_text, argument.meaning));
    }
  }
}

Field ClipField() {
  return Group("clip", T::kMap, "scales gradients down to a length",
               {Leaf("norm", T::kNumber, "", "greatest Euclidean length", true),
                Leaf("scope", T::kString, "",
                     "of what: parameter; in ssp and async worker; in bsp global", true)});
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
  return model;
}

Field GuardField() {
  Field guard = Group(
      "guard", T::kMap, "tightens by itself when training goes wrong: async to ssp to bsp",
      {Leaf("window", T::kInteger, "16", "batches whose median loss is looked at"),
       Leaf("lossFactor", T::kNumber, "2.5", "that median above so many times its best recent one"),
       Leaf("lag", T::kInteger, "",
            "greatest lag: updates between pull and apply; not given: none"),
       Leaf("staleness", T::kInteger, "1", "of the ssp between async and bsp")});
  guard.beside = true;
  return guard;
}

Field SpecField() {
  return Group(
      "spec", T::kMap, "the job",
      {
          Leaf("seed", T::kInteger, "0", "decides initial values, order of samples, dropout"),
          ModelField(),
          DataField(),
          Leaf("loss", T::kString, "softmaxCrossEntropy",
               "softmaxCrossEntropy, meanSquaredError or binaryCrossEntropy (counter brings its "
               "own)"),
          Group("batch", T::kMap, "samples per step and how they are cut",
                {Leaf("global", T::kInteger, "", "samples per step, whatever the number of workers",
                      true),
                 Leaf("microBatches", T::kInteger, "4", "a power of two that divides global"),
                 Leaf("kernelThreads", T::kInteger, "1",
                      "threads inside one micro-batch: part of the result's bits")},
                true),
          Group("recompute", T::kOneOf,
                "activation checkpointing: activations that backward computes again, to need less "
                "memory",
                {Group("none", T::kMap, "none: all that backward reads is kept", {}),
                 Leaf("everyBlocks", T::kInteger, "",
                      "all but what leaves each run of so many blocks of the model"),
                 Leaf("activationBytes", T::kInteger, "",
                      "as few as let the activations of a micro-batch fit into so many bytes")}),
          OptimizerField(),
          ClipField(),
          Group("consistency", T::kOneOf, "who waits for whom",
                {Group("bsp", T::kMap,
                       "every step waits for all: bitwise the same for any number of workers", {}),
                 Group("ssp", T::kMap, "workers at most `staleness` steps apart",
                       {Leaf("staleness", T::kInteger, "", "0 or more", true)}),
                 Group("async", T::kMap, "nobody waits; staleness is measured", {}), GuardField()}),
          Leaf("precision", T::kString, "fp32",
               "of activations and their gradients: fp32, bf16 or fp16, whose loss is scaled"),
          Leaf("tf32", T::kBoolean, "false",
               "with fp32: a GPU may round what it multiplies to tf32; CPUs do not"),
          Group("workers", T::kMap, "how many",
                {Leaf("min", T::kInteger, "1", "starts with at least so many"),
                 Leaf("max", T::kInteger, "1", "grows to so many; at least min"),
                 Leaf("device", T::kString, "auto",
                      "auto (a GPU where a worker has one), cpu, or gpu (only workers that have "
                      "one)")}),
          Group("evaluate", T::kMap, "measure accuracy on data.test",
                {Leaf("everyEpochs", T::kInteger, "1", "and always after the last epoch")}),
          Leaf("output", T::kString, "",
               "safetensors file that the coordinator writes when the job succeeds, beneath its "
               "--output-root"),
          Leaf("tensorboard", T::kString, "",
               "folder for TensorBoard's event files, written by the coordinator"),
          Group("stop", T::kMap, "when the job is done: the first that comes",
                {Leaf("epochs", T::kInteger, "1", "passes over the data"),
                 Leaf("steps", T::kInteger, "", "global batches; the last epoch is cut short"),
                 Leaf("wallTime", T::kDuration, "", "running time")}),
      },
      true);
}

}  // namespace

const Field& JobFileSchema() {
  static const Field* schema = new Field(
      Group("", T::kMap, "a job file",
            {
                Leaf("apiVersion", T::kString, "starling/v1", "version of this schema", true),
                Leaf("kind", T::kString, "TrainingJob", "what this file describes", true),
                Group("metadata", T::kMap, "name and labels",
                      {Leaf("name", T::kString, "",
                            "lower-case letters, digits and -; unique until deleted", true),
                       Leaf("labels", T::kLabels, "{}", "for people")},
                      true),
                SpecField(),
            }));
  return *schema;
}

}  // namespace starling::config
