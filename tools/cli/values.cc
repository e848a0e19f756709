// starling export, predict, generate: what a job's parameters, or a file of them, are for.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/npy/npy.h"
#include "common/placement/layout.h"
#include "common/safetensors/safetensors.h"
#include "common/values/model_file.h"
#include "kernels/cpu/cpu_device.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/job_values.h"
#include "tools/cli/output.h"
#include "tools/cli/use_model.h"
#include "tools/cli/verbs.h"
#include "worker/inference/generate.h"
#include "worker/inference/predictor.h"
#include "worker/inference/preprocess.h"

namespace starling::cli {
namespace {

// ---- export -----------------------------------------------------------------------------------

struct ExportOptions {
  std::string name;
  std::string format;  // there is one
  std::string file;
};

// Writes the parameters, with statistics: those at the job's end or, while it runs, those of the
// newest evaluated epoch.
absl::StatusOr<int> RunExport(const ExportOptions& options, Client& client, Context& context) {
  const std::string& name = options.name;
  std::string words;
  const auto write = [&](const JobReply& job, const ReadPoint& point, const Layout& layout,
                         const auto& read) -> absl::Status {
    auto writer = safetensors::Writer::Create(
        options.file, ModelTensors(job.spec().model(), layout), ModelMetadata(job, point));
    if (!writer.ok()) return Local(writer.status());
    STARLING_RETURN_IF_ERROR(read([&](const Slice&, absl::Span<const float> values) {
      return Local(writer->AppendFloats(values));
    }));
    words = absl::StrCat("wrote ", CountText(job.status().parameters()), " parameters of ", name,
                         " to ", options.file, PointText(point));
    return Local(writer->Finish());
  };
  STARLING_RETURN_IF_ERROR(
      Prefixed(absl::StrCat("cannot export ", name), ReadJobValues(name, client, context, write)));
  context.err << words << "\n";
  return kExitOk;
}

// ---- predict ----------------------------------------------------------------------------------

enum class PredictAs { kOutputs, kProbabilities, kClasses };

struct PredictOptions {
  ModelChoice choice;
  std::string input;  // .npy files
  std::string output;
  PredictAs as = PredictAs::kOutputs;
};

constexpr int64_t kBatchBytes = 64 << 20;  // limit of inputs or outputs per batch
constexpr int64_t kBatchMax = 64;

// The outputs of all samples, concatenated.
absl::StatusOr<std::vector<float>> Outputs(const SavedModel& model, const npy::Array& input,
                                           int threads) {
  STARLING_ASSIGN_OR_RETURN(const Preprocessor preprocessor, Preprocessor::Create(model));
  STARLING_RETURN_IF_ERROR(preprocessor.Check(input));
  STARLING_ASSIGN_OR_RETURN(const auto device, CreateCpuDevice());
  const int64_t samples = input.shape[0];
  const int64_t elements = model.resolved.values[kInputValue].elements;
  const int64_t largest = std::max(elements, model.resolved.values[model.resolved.logits].elements);
  const int64_t fitting = std::max<int64_t>(1, kBatchBytes / (4 * largest));
  PredictorOptions options;
  options.batch = std::clamp<int64_t>(samples, 1, std::min(fitting, kBatchMax));
  options.kernel_threads = ComputeThreads(threads);
  STARLING_ASSIGN_OR_RETURN(const auto predictor, Predictor::Create(model, options, device.get()));
  std::vector<float> outputs(static_cast<size_t>(samples) * predictor->output_elements());
  std::vector<float> batch(static_cast<size_t>(options.batch * elements));
  for (int64_t first = 0; first < samples; first += options.batch) {
    const int64_t count = std::min(options.batch, samples - first);
    STARLING_RETURN_IF_ERROR(preprocessor.Apply(input, first, count, batch.data()));
    STARLING_RETURN_IF_ERROR(predictor->Predict(
        batch.data(), count,
        outputs.data() + static_cast<size_t>(first) * predictor->output_elements()));
  }
  return outputs;
}

void Softmax(float* row, size_t classes) {
  const float greatest = *std::max_element(row, row + classes);
  double sum = 0;
  for (size_t i = 0; i < classes; ++i) sum += std::exp(double{row[i]} - greatest);
  for (size_t i = 0; i < classes; ++i)
    row[i] = static_cast<float>(std::exp(double{row[i]} - greatest) / sum);
}

bool HasClasses(const SavedModel& model) {
  return model.resolved.nodes.back().kind == OpKind::kSoftmaxCrossEntropy;
}

npy::Array Floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  npy::Array array{npy::DType::kF32, std::move(shape),
                   std::vector<uint8_t>(values.size() * sizeof(float))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

// The index of each row's greatest value; the first of equals, as accuracy counts.
npy::Array Classes(std::vector<int64_t> shape, const std::vector<float>& values, size_t classes) {
  shape.pop_back();
  npy::Array array{npy::DType::kI64, std::move(shape), {}};
  array.bytes.resize(values.size() / classes * sizeof(int64_t));
  for (size_t row = 0; row < values.size() / classes; ++row) {
    const float* const begin = values.data() + row * classes;
    const int64_t greatest = std::max_element(begin, begin + classes) - begin;
    std::memcpy(array.bytes.data() + row * sizeof(int64_t), &greatest, sizeof(greatest));
  }
  return array;
}

// How many samples have an output that is NaN or infinite, by a NaN or an infinity in the sample or
// in the model, or by an overflow.
size_t NotFinite(const std::vector<float>& outputs, int64_t samples) {
  const size_t each = samples == 0 ? 0 : outputs.size() / static_cast<size_t>(samples);
  size_t count = 0;
  for (size_t at = 0; each > 0 && at < outputs.size(); at += each) {
    count += !std::all_of(outputs.begin() + static_cast<int64_t>(at),
                          outputs.begin() + static_cast<int64_t>(at + each),
                          [](float x) { return std::isfinite(x); });
  }
  return count;
}

absl::StatusOr<npy::Array> Predict(const PredictOptions& options, const CommandLine& line,
                                   Context& context) {
  const absl::StatusOr<npy::Array> read = npy::ReadFile(options.input);
  // A missing file is not a missing job.
  if (!read.ok()) return absl::IsNotFound(read.status()) ? Local(read.status()) : read.status();
  const npy::Array& input = *read;
  const std::vector<int64_t> sample(input.shape.begin() + (input.shape.empty() ? 0 : 1),
                                    input.shape.end());
  STARLING_ASSIGN_OR_RETURN(const SavedModel model,
                            UseModel(options.choice, sample, line, context));
  if (options.as != PredictAs::kOutputs && !HasClasses(model)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's loss is ", Rule(model.resolved.nodes.back().kind).name,
                     ": it has no classes to give probabilities of; expected --as outputs"));
  }
  auto outputs = Outputs(model, input, options.choice.threads);
  STARLING_RETURN_IF_ERROR(Prefixed(options.input, outputs.status()));
  if (const size_t bad = NotFinite(*outputs, input.shape[0]); bad > 0) {
    const std::string what = absl::StrCat(
        options.input, ": the outputs of ", CountText(bad), " of ",
        CountText(static_cast<uint64_t>(input.shape[0])),
        " samples are not finite: look for NaN and infinite values in the samples and the model");
    if (options.as != PredictAs::kOutputs) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "; such samples have no classes (--as outputs writes what there is)"));
    }
    context.err << "warning: " << what << "\n";
  }
  std::vector<int64_t> shape = model.resolved.values[model.resolved.logits].shape;
  const size_t classes = shape.empty() ? 1 : static_cast<size_t>(shape.back());
  shape.insert(shape.begin(), input.shape[0]);
  if (options.as == PredictAs::kClasses) return Classes(shape, *outputs, classes);
  if (options.as == PredictAs::kProbabilities) {
    for (size_t row = 0; row < outputs->size() / classes; ++row)
      Softmax(outputs->data() + row * classes, classes);
  }
  return Floats(shape, *outputs);
}

absl::StatusOr<int> RunPredict(const PredictOptions& options, const CommandLine& line,
                               Context& context) {
  STARLING_ASSIGN_OR_RETURN(const npy::Array array, Predict(options, line, context));
  STARLING_RETURN_IF_ERROR(Local(npy::WriteFile(options.output, array)));
  context.err << "wrote " << CountText(static_cast<uint64_t>(array.shape[0])) << " predictions, "
              << npy::DTypeWords(array.dtype) << " " << DimsToString(array.shape) << ", to "
              << options.output << "\n";
  return kExitOk;
}

// ---- generate ---------------------------------------------------------------------------------

struct GenerateVerbOptions {
  ModelChoice choice;
  std::string prompt;  // exactly one of the two
  std::string tokens;  // "1,2,3"
  int64_t max_new = 200;
  double temperature = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
};

absl::StatusOr<std::vector<int32_t>> ParseTokens(const std::string& text) {
  std::vector<int32_t> tokens;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(part, &token) || token < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tokens: expected whole numbers like 1,2,3, got \"", std::string(part), "\""));
    }
    tokens.push_back(token);
  }
  return tokens;
}

bool IsByteLevel(const SavedModel& model, const LanguageModel& language) {
  return model.preprocessing.train().has_text() && language.vocabulary == kByteVocabulary;
}

// What the model continues: the prompt's bytes or the given tokens.
absl::StatusOr<std::vector<int32_t>> Prompt(const GenerateVerbOptions& options, bool bytes,
                                            int64_t vocabulary) {
  if (!options.tokens.empty()) return ParseTokens(options.tokens);
  if (!bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's ", vocabulary,
                     " tokens are not bytes of text: expected --tokens 1,2,3 with "
                     "numbers of the tokenizer that made its training data, got --prompt"));
  }
  if (options.prompt.empty())
    return absl::InvalidArgumentError("--prompt: expected at least one byte");
  const auto* begin = reinterpret_cast<const uint8_t*>(options.prompt.data());
  return std::vector<int32_t>(begin, begin + options.prompt.size());
}

// Writes output as it is generated: bytes as they are, tokens as numbers.
class Printer {
 public:
  Printer(bool bytes, std::ostream& out) : bytes_(bytes), out_(out) {}

  bool Print(int32_t token) {
    if (bytes_) {
      out_.put(static_cast<char>(token));
    } else {
      if (!first_) out_ << ',';
      out_ << token;
    }
    first_ = false;
    return out_.good();
  }

 private:
  const bool bytes_;
  std::ostream& out_;
  bool first_ = true;
};

absl::StatusOr<int> RunGenerate(const GenerateVerbOptions& options, const CommandLine& line,
                                Context& context) {
  if (options.prompt.empty() == options.tokens.empty()) {
    return absl::InvalidArgumentError("expected one of --prompt and --tokens");
  }
  STARLING_ASSIGN_OR_RETURN(const SavedModel model, UseModel(options.choice, {}, line, context));
  STARLING_ASSIGN_OR_RETURN(const auto device, CreateCpuDevice());
  STARLING_ASSIGN_OR_RETURN(
      const auto predictor,
      Predictor::Create(model,
                        {.batch = 1, .kernel_threads = ComputeThreads(options.choice.threads)},
                        device.get()));
  STARLING_ASSIGN_OR_RETURN(const LanguageModel language, AsLanguageModel(model, predictor.get()));
  const bool bytes = IsByteLevel(model, language);
  STARLING_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                            Prompt(options, bytes, language.vocabulary));
  Printer printer(bytes, context.out);
  GenerateOptions generate;
  generate.tokens_max = options.max_new;
  if (std::isnan(options.temperature))
    return absl::InvalidArgumentError("--temperature: expected a number, got nan");
  generate.sampler = {.temperature = options.temperature, .top_k = options.top_k};
  generate.seed = options.seed;
  bool begun = false;
  const auto emit = [&](int32_t token) {
    if (!begun) {
      for (int32_t given : prompt) printer.Print(given);
    }
    begun = true;
    const bool good = printer.Print(token);
    context.out << std::flush;
    return good;
  };
  STARLING_RETURN_IF_ERROR(Generate(language, prompt, generate, emit));
  context.out << "\n" << std::flush;
  return kExitOk;
}

}  // namespace

void AddValues(CommandLine& line) {
  const auto [write, options] =
      line.Verb<ExportOptions>("export", "write a job's parameters to a file", RunExport);
  AddName(write, "the job", &options->name);
  write->add_option("--format", options->format, "safetensors")
      ->required()
      ->check(Member({"safetensors"}));
  write->add_option("-o,--output", options->file, "the file")->required();

  const auto [predict, prediction] =
      line.Verb<PredictOptions>("predict", "what a model makes of an array", RunPredict);
  AddModelChoice(predict, &prediction->choice);
  predict->add_option("--input", prediction->input, "a .npy file: samples")->required();
  predict->add_option("-o,--output", prediction->output, "the .npy file to write")->required();
  predict
      ->add_option("--as", prediction->as, "outputs (of the last layer), probabilities or classes")
      ->transform(OneOf<PredictAs>({{"outputs", PredictAs::kOutputs},
                                    {"probabilities", PredictAs::kProbabilities},
                                    {"classes", PredictAs::kClasses}}));

  const auto [generate, text] =
      line.Verb<GenerateVerbOptions>("generate", "continue a text", RunGenerate);
  AddModelChoice(generate, &text->choice);
  generate->add_option("--prompt", text->prompt, "the text, for models of bytes");
  generate->add_option("--tokens", text->tokens, "the tokens, for all others: 1,2,3");
  AddNumber(generate, "--max-new", &text->max_new, CLI::Range(int64_t{1}, int64_t{1} << 40),
            "tokens to add");
  AddNumber(generate, "--temperature", &text->temperature, CLI::Range(0.0, 1000.0),
            "below 1 bolder, 0 always the likeliest");
  AddNumber(generate, "--top-k", &text->top_k, CLI::Range(int64_t{0}, int64_t{1} << 31),
            "draw from the k likeliest; 0: from all");
  generate->add_option("--seed", text->seed, "of the draws")->capture_default_str();
}

}  // namespace starling::cli
