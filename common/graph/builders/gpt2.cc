#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/graph/builders/families.h"
#include "common/graph/builders/graph_builder.h"

namespace starling::builders {
namespace {

constexpr double kDeviation = 0.02;

class Gpt2Builder {
 public:
  Gpt2Builder(const ModelInput& input, const Gpt2Options& options)
      : options_(options), net_("gpt2", input) {}

  absl::StatusOr<Graph> Build(const std::string& loss) {
    std::string x = net_.Add("embedding", "wte", {kInputName},
                             {{"rows", options_.vocabulary}, {"features", options_.width}},
                             {.init = {{"weight", Normal(kDeviation)}}});
    x = net_.Add("position_embedding", "wpe", {x}, {{"rows", options_.context}},
                 {.init = {{"weight", Normal(kDeviation)}}});
    x = Dropout("drop", x);
    for (int64_t block = 0; block < options_.depth; ++block) x = Block(block, x);
    x = net_.Add("layernorm", "ln_f", {x});
    const Attributes head = {{"out_features", options_.vocabulary}, {"bias", false}};
    x = options_.tied_head
            ? net_.Add("linear", "lm_head", {x}, head, {.of = "wte"})
            : net_.Add("linear", "lm_head", {x}, head, {.init = {{"weight", Normal(kDeviation)}}});
    return net_.Finish(loss, x);
  }

 private:
  std::string Dropout(const std::string& name, const std::string& input) {
    if (options_.dropout == 0) return input;
    return net_.Add("dropout", name, {input}, {{"rate", options_.dropout}});
  }

  std::string Linear(const std::string& name, const std::string& input, int64_t outputs,
                     double deviation) {
    return net_.Add("linear", name, {input}, {{"out_features", outputs}},
                    {.init = {{"weight", Normal(deviation)}, {"bias", Constant(0)}}});
  }

  // Keeps the residual stream's variance from growing with the depth.
  double ResidualDeviation() const {
    return kDeviation / std::sqrt(2.0 * static_cast<double>(options_.depth));
  }

  std::string Attention(const std::string& name, const std::string& input) {
    const std::string all =
        Linear(absl::StrCat(name, ".c_attn"), input, 3 * options_.width, kDeviation);
    std::vector<std::string> parts;
    for (const char* part : {"q", "k", "v"}) {
      parts.push_back(net_.Add("slice", absl::StrCat(name, ".", part), {all},
                               {{"axis", int64_t{1}},
                                {"begin", static_cast<int64_t>(parts.size()) * options_.width},
                                {"length", options_.width}}));
    }
    const std::string x = net_.Add("attention", absl::StrCat(name, ".attention"), parts,
                                   {{"heads", options_.heads}, {"causal", true}});
    return Linear(absl::StrCat(name, ".c_proj"), x, options_.width, ResidualDeviation());
  }

  std::string Mlp(const std::string& name, const std::string& input) {
    std::string x = Linear(absl::StrCat(name, ".c_fc"), input, 4 * options_.width, kDeviation);
    x = net_.Add("gelu", absl::StrCat(name, ".gelu"), {x}, {{"approximate", true}});
    return Linear(absl::StrCat(name, ".c_proj"), x, options_.width, ResidualDeviation());
  }

  std::string Block(int64_t index, const std::string& input) {
    const std::string name = absl::StrCat("h.", index);
    std::string x = net_.Add("layernorm", absl::StrCat(name, ".ln_1"), {input});
    x = Dropout(absl::StrCat(name, ".attn.dropout"), Attention(absl::StrCat(name, ".attn"), x));
    const std::string middle = net_.Add("add", absl::StrCat(name, ".attn.add"), {x, input});
    x = net_.Add("layernorm", absl::StrCat(name, ".ln_2"), {middle});
    x = Dropout(absl::StrCat(name, ".mlp.dropout"), Mlp(absl::StrCat(name, ".mlp"), x));
    return net_.Add("add", absl::StrCat(name, ".mlp.add"), {x, middle});
  }

  const Gpt2Options options_;
  GraphBuilder net_;
};

}  // namespace

absl::StatusOr<Graph> Gpt2(const ModelInput& input, const Gpt2Options& options,
                           const std::string& loss) {
  if (input.sample_type != INT32 || input.sample_shape.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.builtin gpt2: expected samples of int32 tokens, [positions], got ",
                     DimsToString(input.sample_shape),
                     input.sample_type == INT32 ? "" : " numbers: text or token data is needed"));
  }
  Gpt2Options resolved = options;
  if (resolved.context == 0) resolved.context = input.sample_shape[0];
  if (resolved.vocabulary == 0) resolved.vocabulary = std::max(input.vocabulary, input.classes);
  if (resolved.vocabulary < input.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.vocabulary: expected at least ", input.vocabulary,
        ", as the data's tokens go up to ", input.vocabulary - 1, ", got ", resolved.vocabulary));
  }
  return Gpt2Builder(input, resolved).Build(loss);
}

}  // namespace starling::builders
