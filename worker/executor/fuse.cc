#include "worker/executor/fuse.h"

#include <utility>
#include <vector>

namespace starling {
namespace {

class Fuser {
 public:
  Fuser(const ResolvedGraph& graph, const Fusions& fusions)
      : given_(graph),
        fusions_(fusions),
        nodes_(graph.nodes),
        values_(graph.values),
        gone_(graph.nodes.size(), false),
        producers_(graph.values.size(), -1),
        readers_(graph.values.size(), 0) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      producers_[nodes_[i].output] = static_cast<int>(i);
      for (int input : nodes_[i].inputs) ++readers_[input];
    }
    ++readers_[graph.logits];
  }

  ResolvedGraph Run() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const int node = static_cast<int>(i);
      switch (nodes_[i].kind) {
        case OpKind::kAdd: JoinAdd(node); break;
        case OpKind::kRelu: JoinRelu(node); break;
        case OpKind::kGelu: JoinGelu(node); break;
        case OpKind::kMaxPool2d: PoolFirst(node); break;
        case OpKind::kAttention: Unslice(node); break;
        default: break;
      }
    }
    return Compact();
  }

 private:
  // The node of this kind that produces the value for a single reader; -1: there is none.
  int SoleProducer(int value, OpKind kind) const {
    const int producer = producers_[value];
    return producer >= 0 && readers_[value] == 1 && nodes_[producer].kind == kind ? producer : -1;
  }

  // Such a batch norm to which one more operator can be fused.
  int OpenBatchNorm(int value) const {
    const int norm = SoleProducer(value, OpKind::kBatchNorm);
    if (norm < 0 || !fusions_.batchnorm || nodes_[norm].attributes.relu) return -1;
    for (int p : nodes_[norm].parameters) {
      if (p == nodes_[norm].parameters[2] || p == nodes_[norm].parameters[3]) {
        if (given_.parameters[p].kind == FROZEN) return -1;
      }
    }
    return norm;
  }

  // Moves `first`, which now produces the output of `last`, to the place of `last`, where all its
  // inputs exist.
  void Join(int first, int last) {
    nodes_[first].output = nodes_[last].output;
    nodes_[last] = std::move(nodes_[first]);
    producers_[nodes_[last].output] = last;
    gone_[first] = true;
  }

  void JoinAdd(int add) {
    const std::vector<int> inputs = nodes_[add].inputs;
    for (int i : {0, 1}) {
      const int norm = OpenBatchNorm(inputs[i]);
      if (norm < 0 || nodes_[norm].inputs.size() > 1) continue;
      nodes_[norm].inputs.push_back(inputs[1 - i]);
      return Join(norm, add);
    }
  }

  void JoinRelu(int relu) {
    const int norm = OpenBatchNorm(nodes_[relu].inputs[0]);
    if (norm < 0) return;
    nodes_[norm].attributes.relu = true;
    Join(norm, relu);
  }

  void JoinGelu(int gelu) {
    if (!fusions_.linear_gelu || !nodes_[gelu].attributes.approximate) return;
    const int linear = SoleProducer(nodes_[gelu].inputs[0], OpKind::kLinear);
    if (linear < 0 || nodes_[linear].attributes.gelu) return;
    nodes_[linear].attributes.gelu = true;
    Join(linear, gelu);
  }

  void PoolFirst(int pool) {
    const int between = nodes_[pool].inputs[0], result = nodes_[pool].output;
    const int relu = SoleProducer(between, OpKind::kRelu);
    if (relu < 0) return;
    nodes_[pool].inputs = nodes_[relu].inputs;
    nodes_[pool].output = between;
    nodes_[relu].inputs = {between};
    nodes_[relu].output = result;
    values_[between].shape = values_[result].shape;
    values_[between].elements = values_[result].elements;
    std::swap(nodes_[relu], nodes_[pool]);
    producers_[between] = relu;
    producers_[result] = pool;
  }

  void Unslice(int attention) {
    if (!fusions_.packed_attention || nodes_[attention].inputs.size() != 3) return;
    const std::vector<int> parts = nodes_[attention].inputs;
    int whole = -1;
    for (int i = 0; i < 3; ++i) {
      const int slice = SoleProducer(parts[i], OpKind::kSlice);
      if (slice < 0) return;
      const OperatorAttributes& a = nodes_[slice].attributes;
      const int64_t width = values_[parts[i]].shape.back();
      const int source = nodes_[slice].inputs[0];
      if (whole < 0) whole = source;
      if (source != whole || a.axis != 1 || a.begin != i * width ||
          values_[whole].shape.back() != 3 * width) {
        return;
      }
    }
    for (int part : parts) gone_[producers_[part]] = true;
    nodes_[attention].inputs = {whole};
    readers_[whole] -= 2;
  }

  // The remaining nodes and their values, renumbered.
  ResolvedGraph Compact() {
    ResolvedGraph graph = given_;
    std::vector<int> places(values_.size(), -1);
    graph.nodes.clear();
    graph.values.clear();
    for (int value : {kInputValue, kLabelValue}) {
      places[value] = static_cast<int>(graph.values.size());
      graph.values.push_back(values_[value]);
      graph.values.back().consumers.clear();
    }
    for (ResolvedParameter& parameter : graph.parameters) parameter.users.clear();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (gone_[i]) continue;
      ResolvedNode node = std::move(nodes_[i]);
      const int index = static_cast<int>(graph.nodes.size());
      for (int& input : node.inputs) {
        input = places[input];
        graph.values[input].consumers.push_back(index);
      }
      for (int p : node.parameters) graph.parameters[p].users.push_back(index);
      places[node.output] = OutputValue(index);
      graph.values.push_back(std::move(values_[node.output]));
      graph.values.back().producer = index;
      graph.values.back().consumers.clear();
      node.output = OutputValue(index);
      graph.nodes.push_back(std::move(node));
    }
    graph.logits = places[given_.logits];
    return graph;
  }

  const ResolvedGraph& given_;
  const Fusions fusions_;
  std::vector<ResolvedNode> nodes_;    // with the places and values of the given graph
  std::vector<ResolvedValue> values_;  // their shapes; the rest is as given
  std::vector<bool> gone_;             // by node
  std::vector<int> producers_;         // by value; -1: input and labels
  std::vector<int> readers_;           // by value: how many, including predictions
};

}  // namespace

ResolvedGraph Fuse(const ResolvedGraph& graph, const Fusions& fusions) {
  return Fuser(graph, fusions).Run();
}

}  // namespace starling
