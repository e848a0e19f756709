// The table of builtins: their names and arguments, and how arguments become options.
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/graph/builders.h"
#include "common/graph/builders/families.h"

namespace starling {
namespace {

using Type = BuiltinArgument::Type;

constexpr double kSizeMax = 1 << 20;
constexpr double kRowsMax = (int64_t{1} << 31) - 1;

BuiltinArgument Number(const char* name, Type type, const char* default_text, double minimum,
                       double maximum, const char* meaning) {
  return {name, type, default_text, minimum, maximum, {}, meaning};
}

const BuiltinArgument kHidden =
    Number("hidden", Type::kIntegers, "[128, 64]", 1, kSizeMax, "mlp: hidden sizes");
const BuiltinArgument kClasses =
    Number("classes", Type::kInteger, "", 2, kSizeMax,
           "resnet*, mobilenet_v2, shufflenet_v2: outputs, if more than the data's classes");
const BuiltinArgument kStem = {"stem",
                               Type::kText,
                               "imagenet",
                               0,
                               0,
                               {"imagenet", "cifar"},
                               "resnet*: imagenet (7x7 of stride 2, max pool) or cifar (3x3)"};
const BuiltinArgument kWidthFactor = Number("widthFactor", Type::kNumber, "1", 0.1, 8,
                                            "mobilenet_v2, shufflenet_v2: scales the channels");

// In the order in which the job file's schema shows them.
const std::vector<Builtin>& Table() {
  static const auto* const table = new std::vector<Builtin>{
      {"mlp", "linear layers with ReLU", {kHidden}},
      {"lenet", "PyTorch's MNIST example; 1,199,882 parameters on 28x28", {}},
      {"resnet18", "He et al. 2016; 11,689,512 parameters for ImageNet", {kStem, kClasses}},
      {"resnet34", "21,797,672 parameters for ImageNet", {kStem, kClasses}},
      {"resnet50", "25,557,032 parameters for ImageNet", {kStem, kClasses}},
      {"mobilenet_v2",
       "Sandler et al. 2018; 3,504,872 parameters for ImageNet",
       {kWidthFactor, kClasses}},
      {"shufflenet_v2",
       "Ma et al. 2018; 2,278,604 parameters for ImageNet",
       {kWidthFactor, kClasses}},
      {"gpt2",
       "Radford et al. 2019; 124,439,808 parameters as they are here",
       {Number("depth", Type::kInteger, "12", 1, 1000, "gpt2: blocks"),
        Number("heads", Type::kInteger, "12", 1, 1000, "gpt2: attention heads; they divide width"),
        Number("width", Type::kInteger, "768", 1, kSizeMax, "gpt2: features of a position"),
        Number("context", Type::kInteger, "", 1, kRowsMax,
               "gpt2: positions that the model has; the data's if not given"),
        Number("vocabulary", Type::kInteger, "", 2, kRowsMax,
               "gpt2: tokens that the model has; the data's if not given"),
        Number("tiedHead", Type::kBoolean, "true", 0, 1,
               "gpt2: whether the last layer's weight is the token table"),
        Number("dropout", Type::kNumber, "0", 0, 0.999,
               "gpt2: behind the embeddings and in each residual branch")}},
      {"counter", "counts samples: see data.train.counter", {}},
  };
  return *table;
}

std::string Expectation(const BuiltinArgument& argument) {
  switch (argument.type) {
    case Type::kText: return absl::StrCat("one of ", absl::StrJoin(argument.choices, ", "));
    case Type::kBoolean: return "true or false";
    case Type::kIntegers:
      return absl::StrCat("integers in [", argument.minimum, ", ",
                          static_cast<int64_t>(argument.maximum), "]");
    case Type::kInteger:
      return absl::StrCat("an integer in [", argument.minimum, ", ",
                          static_cast<int64_t>(argument.maximum), "]");
    case Type::kNumber: break;
  }
  return absl::StrCat("a number in [", argument.minimum, ", ", argument.maximum, "]");
}

bool InRange(const BuiltinArgument& argument, double x) {
  return x >= argument.minimum && x <= argument.maximum;  // false for NaN
}

bool Fits(const BuiltinArgument& argument, const Attribute& value) {
  switch (argument.type) {
    case Type::kText:
      return value.has_s() && std::find(argument.choices.begin(), argument.choices.end(),
                                        value.s()) != argument.choices.end();
    case Type::kBoolean:
    case Type::kInteger: return value.has_i() && InRange(argument, static_cast<double>(value.i()));
    case Type::kNumber:
      return (value.has_f() && InRange(argument, value.f())) ||
             (value.has_i() && InRange(argument, static_cast<double>(value.i())));
    case Type::kIntegers:
      for (int64_t x : value.ints().values()) {
        if (!InRange(argument, static_cast<double>(x))) return false;
      }
      return value.has_ints();
  }
  return false;
}

absl::Status CheckArguments(const Builtin& builtin, const BuiltinArguments& arguments) {
  for (const auto& [name, value] : arguments) {
    const auto known = std::find_if(
        builtin.arguments.begin(), builtin.arguments.end(),
        [&name = name](const BuiltinArgument& argument) { return name == argument.name; });
    if (known == builtin.arguments.end()) {
      const std::string names = absl::StrJoin(
          builtin.arguments, ", ",
          [](std::string* out, const BuiltinArgument& a) { absl::StrAppend(out, a.name); });
      return absl::InvalidArgumentError(absl::StrCat("model.", name, ": builtin ", builtin.name,
                                                     " takes ", names.empty() ? "none" : names));
    }
    if (!Fits(*known, value)) {
      return absl::InvalidArgumentError(absl::StrCat("model.", name, " (", known->meaning,
                                                     "): expected ", Expectation(*known), ", got ",
                                                     value.ShortDebugString()));
    }
  }
  return absl::OkStatus();
}

// Reads checked arguments; an option without an argument keeps its default.
class Reader {
 public:
  explicit Reader(const BuiltinArguments& arguments) : arguments_(arguments) {}

  void Read(const char* name, int64_t* out) const {
    if (const Attribute* found = Find(name)) *out = found->i();
  }
  void Read(const char* name, bool* out) const {
    if (const Attribute* found = Find(name)) *out = found->i() != 0;
  }
  void Read(const char* name, double* out) const {
    if (const Attribute* found = Find(name)) {
      *out = found->has_i() ? static_cast<double>(found->i()) : found->f();
    }
  }
  void Read(const char* name, std::vector<int64_t>* out) const {
    if (const Attribute* found = Find(name)) {
      out->assign(found->ints().values().begin(), found->ints().values().end());
    }
  }
  bool Is(const char* name, absl::string_view text) const {
    const Attribute* found = Find(name);
    return found != nullptr && found->s() == text;
  }

 private:
  const Attribute* Find(const char* name) const {
    const auto found = arguments_.find(name);
    return found == arguments_.end() ? nullptr : &found->second;
  }

  const BuiltinArguments& arguments_;
};

absl::StatusOr<Graph> BuildGpt2(const Reader& arguments, const ModelInput& input,
                                const std::string& loss) {
  builders::Gpt2Options options;
  arguments.Read("depth", &options.depth);
  arguments.Read("heads", &options.heads);
  arguments.Read("width", &options.width);
  arguments.Read("context", &options.context);
  arguments.Read("vocabulary", &options.vocabulary);
  arguments.Read("tiedHead", &options.tied_head);
  arguments.Read("dropout", &options.dropout);
  return builders::Gpt2(input, options, loss);
}

absl::StatusOr<Graph> BuildResnet(int depth, const Reader& arguments, const ModelInput& input,
                                  const std::string& loss) {
  builders::ResnetOptions options;
  options.depth = depth;
  options.cifar_stem = arguments.Is("stem", "cifar");
  arguments.Read("classes", &options.classes);
  return builders::Resnet(input, options, loss);
}

absl::StatusOr<Graph> Build(absl::string_view name, const Reader& arguments,
                            const ModelInput& input, const std::string& loss) {
  if (name == "counter") return BuildCounter(input.samples);
  if (name == "lenet") return builders::Lenet(input, loss);
  if (name == "gpt2") return BuildGpt2(arguments, input, loss);
  if (name == "resnet18") return BuildResnet(18, arguments, input, loss);
  if (name == "resnet34") return BuildResnet(34, arguments, input, loss);
  if (name == "resnet50") return BuildResnet(50, arguments, input, loss);
  if (name == "mobilenet_v2") {
    builders::MobilenetV2Options options;
    arguments.Read("widthFactor", &options.width_factor);
    arguments.Read("classes", &options.classes);
    return builders::MobilenetV2(input, options, loss);
  }
  if (name == "shufflenet_v2") {
    builders::ShufflenetV2Options options;
    arguments.Read("widthFactor", &options.width_factor);
    arguments.Read("classes", &options.classes);
    return builders::ShufflenetV2(input, options, loss);
  }
  MlpOptions options;
  arguments.Read("hidden", &options.hidden);
  return builders::Mlp(input, options, loss);
}

}  // namespace

absl::Span<const Builtin> Builtins() { return Table(); }

const Builtin* FindBuiltin(absl::string_view name) {
  for (const Builtin& builtin : Table()) {
    if (name == builtin.name) return &builtin;
  }
  return nullptr;
}

absl::StatusOr<Graph> BuildBuiltin(absl::string_view name, const BuiltinArguments& arguments,
                                   const ModelInput& input, const std::string& loss) {
  const Builtin* const builtin = FindBuiltin(name);
  if (builtin == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.builtin: expected one of ",
        absl::StrJoin(Table(), ", ",
                      [](std::string* out, const Builtin& b) { absl::StrAppend(out, b.name); }),
        ", got \"", name, "\""));
  }
  STARLING_RETURN_IF_ERROR(CheckArguments(*builtin, arguments));
  return Build(name, Reader(arguments), input, loss);
}

}  // namespace starling
