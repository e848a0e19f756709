#include "common/graph/recompute.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

bool IsProduct(OpKind kind) {
  switch (kind) {
    case OpKind::kConv2d:
    case OpKind::kLinear:
    case OpKind::kMatmul:
    case OpKind::kAttention:
    case OpKind::kEmbedding: return true;
    default: return false;
  }
}

// The nodes after which a single value crosses to later nodes; the last node is one of them.
std::vector<int> SingleValueCuts(const ResolvedGraph& graph) {
  const int nodes = static_cast<int>(graph.nodes.size());
  std::vector<int> ending(nodes, 0);  // values whose last consumer is the node
  int live = 0;
  std::vector<int> cuts;
  for (const ResolvedValue& value : graph.values) {
    if (value.producer >= 0 && !value.consumers.empty()) ++ending[value.consumers.back()];
  }
  for (int i = 0; i < nodes; ++i) {
    live += graph.values[graph.nodes[i].output].consumers.empty() ? 0 : 1;
    live -= ending[i];
    if (live == 1 || i + 1 == nodes) cuts.push_back(i);
  }
  return cuts;
}

// Cuts between the products of two blocks at the smallest value, the first of equals, so that the
// cheap nodes after a product are in the next block.
std::vector<int> BlockEnds(const ResolvedGraph& graph, const std::vector<bool>& product) {
  const auto elements = [&](int cut) { return graph.values[graph.nodes[cut].output].elements; };
  std::vector<int> ends;
  int begin = 0;
  int best = -1;  // where the block ends if another one follows; -1: no product yet
  for (int cut : SingleValueCuts(graph)) {
    const auto end = product.begin() + cut + 1;
    if (std::find(product.begin() + begin, end, true) != end) {
      if (best >= 0) ends.push_back(best);
      best = cut;
    } else if (best >= 0 && elements(cut) < elements(best)) {
      best = cut;
    }
    begin = cut + 1;
  }
  ends.push_back(static_cast<int>(graph.nodes.size()) - 1);
  return ends;
}

enum class Keep : uint8_t { kAll, kProducts, kEnd };

// Runs of blocks. Each run has its own Keep.
class Runs {
 public:
  // blocks per run
  Runs(const RecomputeOutline& outline, const PlanRequest& request, int length)
      : outline_(outline), host_read_(request.nodes.size(), false) {
    for (size_t i = length; i < outline.block_ends.size(); i += length) {
      ends_.push_back(outline.block_ends[i - 1]);
    }
    ends_.push_back(outline.block_ends.back());
    for (size_t i = 0; i < request.nodes.size(); ++i) {
      const std::vector<int>& reads = request.host_reads;
      host_read_[i] = std::find(reads.begin(), reads.end(), request.nodes[i].output) != reads.end();
    }
    SortByWorth(request);
  }

  size_t count() const { return ends_.size(); }
  // The runs in order of recompute cost per byte freed, the most expensive first.
  const std::vector<int>& by_worth() const { return by_worth_; }

  std::vector<bool> Dropped(const std::vector<Keep>& keep) const {
    std::vector<bool> dropped(host_read_.size(), false);
    int begin = 0;
    for (size_t run = 0; run < ends_.size(); ++run) {
      for (int i = begin; i < ends_[run]; ++i) {  // the end itself is kept
        dropped[i] = !host_read_[i] && (keep[run] == Keep::kEnd ||
                                        (keep[run] == Keep::kProducts && !outline_.product[i]));
      }
      begin = ends_[run] + 1;
    }
    return dropped;
  }

  // All runs alike but the last: dropping that one whole would free memory only briefly.
  std::vector<Keep> All(Keep rest, Keep last) const {
    std::vector<Keep> keep(ends_.size(), rest);
    keep.back() = last;
    return keep;
  }

 private:
  void SortByWorth(const PlanRequest& request) {
    std::vector<double> worth;
    int begin = 0;
    for (int end : ends_) {
      double cost = 0, bytes = 1;
      for (int i = begin; i < end; ++i) {
        cost += outline_.forward_costs[i];
        bytes += static_cast<double>(request.value_bytes[request.nodes[i].output]);
      }
      worth.push_back(cost / bytes);
      begin = end + 1;
    }
    by_worth_.resize(ends_.size());
    std::iota(by_worth_.begin(), by_worth_.end(), 0);
    std::stable_sort(by_worth_.begin(), by_worth_.end(),
                     [&](int a, int b) { return worth[a] > worth[b]; });
  }

  const RecomputeOutline& outline_;
  std::vector<bool> host_read_;  // by node
  std::vector<int> ends_;        // the last node of each run
  std::vector<int> by_worth_;
};

// Searches for the cheapest choice within a budget. It makes some hundred plans for a graph of
// usual size. A plan's time grows with the square of the graph's size, so huge graphs get fewer
// plans.
class Search {
 public:
  Search(const RecomputeOutline& outline, const PlanRequest& request, size_t bytes)
      : outline_(outline),
        request_(request),
        bytes_(bytes),
        plans_left_(std::max(kPlansMin, kNodePairs / Square(request.nodes.size()))) {}

  // nullopt: no choice fits the budget.
  std::optional<std::vector<bool>> Run() {
    request_.dropped.clear();
    if (Fits()) return request_.dropped;
    const int blocks = static_cast<int>(outline_.block_ends.size());
    for (int length = 1; length <= blocks; length += std::max(1, length / 2)) {
      const Runs runs(outline_, request_, length);
      Try(runs, runs.All(Keep::kEnd, Keep::kAll));  // everyBlocks
      Try(runs, runs.All(Keep::kEnd, Keep::kProducts));
      Try(runs, runs.All(Keep::kProducts, Keep::kProducts));
    }
    return best_;
  }

  size_t least_bytes() const { return least_bytes_; }

 private:
  void Try(const Runs& runs, std::vector<Keep> keep) {
    if (!Fits(runs, keep)) return;
    Loosen(runs, Keep::kAll, &keep);
    Loosen(runs, Keep::kProducts, &keep);
    request_.dropped = runs.Dropped(keep);
    const double share = RecomputedShare(outline_, PlanMemory(request_));
    if (best_.has_value() && share >= best_share_) return;
    best_ = request_.dropped;
    best_share_ = share;
  }

  // Makes as many runs as possible, in order of worth, keep at least what `to` keeps.
  void Loosen(const Runs& runs, Keep to, std::vector<Keep>* keep) {
    const auto with = [&](size_t count) {
      std::vector<Keep> loose = *keep;
      for (size_t i = 0; i < count; ++i) {
        Keep& run = loose[runs.by_worth()[i]];
        run = std::min(run, to);  // kAll is the lowest value
      }
      return loose;
    };
    size_t fits = 0, too_many = runs.count() + 1;
    while (fits + 1 < too_many) {
      const size_t middle = (fits + too_many) / 2;
      (Fits(runs, with(middle)) ? fits : too_many) = middle;
    }
    *keep = with(fits);
  }

  bool Fits(const Runs& runs, const std::vector<Keep>& keep) {
    request_.dropped = runs.Dropped(keep);
    return Fits();
  }

  // Also false if no more plans may be made.
  bool Fits() {
    if (plans_left_ == 0) return false;
    --plans_left_;
    const size_t peak = PlanMemory(request_).peak_bytes;
    least_bytes_ = std::min(least_bytes_, peak);
    return peak <= bytes_;
  }

  static constexpr uint64_t kPlansMin = 16, kNodePairs = uint64_t{1} << 30;
  static uint64_t Square(uint64_t nodes) { return nodes * nodes; }

  const RecomputeOutline& outline_;
  PlanRequest request_;
  const size_t bytes_;
  uint64_t plans_left_;
  size_t least_bytes_ = std::numeric_limits<size_t>::max();
  std::optional<std::vector<bool>> best_;
  double best_share_ = 0;
};

}  // namespace

double ForwardCost(const ResolvedGraph& graph, int node) {
  const ResolvedNode& resolved = graph.nodes[node];
  const auto elements = [&](int value) {
    return static_cast<double>(graph.values[value].elements);
  };
  const auto shape = [&](size_t input) -> const Dims& {
    return graph.values[resolved.inputs[input]].shape;
  };
  const OperatorAttributes& a = resolved.attributes;
  const double output = elements(resolved.output);
  switch (resolved.kind) {
    case OpKind::kConv2d:
      return output * static_cast<double>(shape(0)[0] / a.groups * a.kernel[0] * a.kernel[1]);
    case OpKind::kLinear:
    case OpKind::kMatmul: return output * static_cast<double>(shape(0).back());
    case OpKind::kAttention:  // two products; causal: half of each
      return output * static_cast<double>(shape(0)[0]) * (a.causal ? 1 : 2);
    default: {
      double moved = output;
      for (int input : resolved.inputs) moved += elements(input);
      return kMultiplyAddsPerElement * moved;
    }
  }
}

RecomputeOutline OutlineRecompute(const ResolvedGraph& graph) {
  RecomputeOutline outline;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    outline.product.push_back(IsProduct(graph.nodes[i].kind));
    outline.forward_costs.push_back(ForwardCost(graph, static_cast<int>(i)));
  }
  outline.block_ends = BlockEnds(graph, outline.product);
  return outline;
}

double RecomputedShare(const RecomputeOutline& outline, const MemoryPlan& plan) {
  double again = 0, once = 0;
  for (double cost : outline.forward_costs) once += cost;
  for (const std::vector<int>& nodes : plan.again) {
    for (int node : nodes) again += outline.forward_costs[node];
  }
  return again / once;
}

absl::Status CheckRecompute(const RecomputeOutline& outline, const Recompute& policy) {
  if (policy.policy_case() != Recompute::kEveryBlocks) return absl::OkStatus();
  const size_t blocks = outline.block_ends.size();
  if (policy.every_blocks() >= 1 && policy.every_blocks() < blocks) return absl::OkStatus();
  const std::string expected =
      blocks == 1 ? "so there is nothing to keep between blocks; use recompute.activationBytes"
                  : absl::StrCat("so expected 1 to ", blocks - 1, ", got ", policy.every_blocks());
  return absl::InvalidArgumentError(absl::StrCat(
      "recompute.everyBlocks: this model has ", blocks, blocks == 1 ? " block" : " blocks",
      " (cut where a single value crosses), ", expected));
}

absl::Status ChooseDropped(const RecomputeOutline& outline, const Recompute& policy,
                           PlanRequest* request) {
  request->dropped.clear();
  switch (policy.policy_case()) {
    case Recompute::POLICY_NOT_SET: return absl::OkStatus();
    case Recompute::kEveryBlocks: {
      STARLING_RETURN_IF_ERROR(CheckRecompute(outline, policy));
      const Runs runs(outline, *request, static_cast<int>(policy.every_blocks()));
      request->dropped = runs.Dropped(runs.All(Keep::kEnd, Keep::kAll));
      return absl::OkStatus();
    }
    case Recompute::kActivationBytes: {
      Search search(outline, *request, policy.activation_bytes());
      std::optional<std::vector<bool>> found = search.Run();
      if (!found.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "recompute.activationBytes: the activations of a micro-batch need at least ",
            search.least_bytes(), " bytes here, and the budget is ", policy.activation_bytes(),
            ": raise it, or raise batch.microBatches"));
      }
      request->dropped = *std::move(found);
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

std::string RecomputeText(const Recompute& policy) {
  switch (policy.policy_case()) {
    case Recompute::kEveryBlocks: return absl::StrCat("everyBlocks: ", policy.every_blocks());
    case Recompute::kActivationBytes:
      return absl::StrCat("activationBytes: ", policy.activation_bytes());
    case Recompute::POLICY_NOT_SET: break;
  }
  return "none";
}

}  // namespace starling
