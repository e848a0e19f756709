// starling generate: continues a text, or a sequence of tokens.
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/use_model.h"
#include "tools/cli/verbs.h"
#include "worker/inference/generate.h"

namespace starling::cli {
namespace {

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

absl::Status GenerateTo(const GenerateVerbOptions& options, const Connector& connect,
                        Context& context) {
  STARLING_ASSIGN_OR_RETURN(const SavedModel model, UseModel(options.choice, {}, connect, context));
  STARLING_ASSIGN_OR_RETURN(const auto device, CreateCpuDevice());
  STARLING_ASSIGN_OR_RETURN(
      const auto predictor,
      Predictor::Create(model, {.batch = 1, .kernel_threads = ComputeThreads(options.threads)},
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
  return absl::OkStatus();
}

}  // namespace

int RunGenerate(const GenerateVerbOptions& options, const Connector& connect, Context& context) {
  if (options.prompt.empty() == options.tokens.empty()) {
    return Fail(absl::InvalidArgumentError("expected one of --prompt and --tokens"), context);
  }
  const absl::Status status = GenerateTo(options, connect, context);
  return status.ok() ? kExitOk : Fail(status, context);
}

}  // namespace starling::cli
