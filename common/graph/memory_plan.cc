#include "common/graph/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace starling {
namespace {

class Planner {
 public:
  explicit Planner(const PlanRequest& request)
      : request_(request), nodes_(static_cast<int>(request.nodes.size())) {
    const size_t values = request.value_bytes.size();
    plan_.values.resize(values);
    plan_.gradients.resize(values);
    plan_.saved.resize(nodes_);
    plan_.forward_workspace.resize(nodes_);
    plan_.backward_workspace.resize(request.backward.size());
    plan_.aside.resize(request.backward.size());
    value_storage_.assign(values, -1);
    gradient_storage_.assign(values, -1);
  }

  MemoryPlan Run() {
    FindLastReads();
    PlaceValues();
    for (int step = 0; step < static_cast<int>(request_.backward.size()); ++step) {
      PlaceGradients(step);
    }
    AssignOffsets();
    return std::move(plan_);
  }

 private:
  // What gets an offset: one block, or several that work in place one after the other.
  struct Storage {
    size_t bytes = 0;
    int begin = 0;
    int end = 0;
    std::vector<Block*> blocks;
  };

  int ForwardTime(int node) const { return 1 + node; }
  int HostTime() const { return 1 + nodes_; }
  int BackwardTime(int step) const { return 2 + nodes_ + step; }

  void FindLastReads() {
    last_read_.assign(request_.value_bytes.size(), 0);
    auto read = [this](int value, int time) {
      last_read_[value] = std::max(last_read_[value], time);
    };
    for (int i = 0; i < nodes_; ++i) {
      for (int input : request_.nodes[i].inputs) read(input, ForwardTime(i));
      read(request_.nodes[i].output, ForwardTime(i));
    }
    for (int value : request_.host_reads) read(value, HostTime());
    for (size_t step = 0; step < request_.backward.size(); ++step) {
      const PlanNode& node = request_.nodes[request_.backward[step].node];
      const int time = BackwardTime(static_cast<int>(step));
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.backward_reads_input[i]) read(node.inputs[i], time);
      }
      if (node.backward_reads_output) read(node.output, time);
    }
  }

  int NewStorage(Block* block, size_t bytes, int begin, int end) {
    if (bytes == 0) return -1;
    storages_.push_back({bytes, begin, end, {}});
    return Join(static_cast<int>(storages_.size()) - 1, block, begin, end);
  }

  int Join(int storage, Block* block, int begin, int end) {
    storages_[storage].end = std::max(storages_[storage].end, end);
    storages_[storage].blocks.push_back(block);
    *block = {0, storages_[storage].bytes, begin, end};
    return storage;
  }

  void PlaceValues() {
    std::vector<bool> produced(request_.value_bytes.size(), false);
    for (const PlanNode& node : request_.nodes) produced[node.output] = true;
    for (size_t v = 0; v < produced.size(); ++v) {
      if (produced[v] || last_read_[v] == 0) continue;
      value_storage_[v] = NewStorage(&plan_.values[v], request_.value_bytes[v], 0, last_read_[v]);
    }
    std::vector<int> saved_until(nodes_);
    for (int i = 0; i < nodes_; ++i) saved_until[i] = ForwardTime(i);
    for (size_t step = 0; step < request_.backward.size(); ++step) {
      saved_until[request_.backward[step].node] = BackwardTime(static_cast<int>(step));
    }
    for (int i = 0; i < nodes_; ++i) {
      const PlanNode& node = request_.nodes[i];
      const int time = ForwardTime(i);
      const int v = node.output;
      value_storage_[v] =
          ForwardInPlace(node, time)
              ? Join(value_storage_[node.inputs[0]], &plan_.values[v], time, last_read_[v])
              : NewStorage(&plan_.values[v], request_.value_bytes[v], time, last_read_[v]);
      NewStorage(&plan_.saved[i], node.saved_bytes, time, saved_until[i]);
      NewStorage(&plan_.forward_workspace[i], node.workspace_bytes, time, time);
    }
  }

  bool ForwardInPlace(const PlanNode& node, int time) const {
    if (!node.forward_in_place || node.inputs.empty()) return false;
    const int input = node.inputs[0];
    return value_storage_[input] >= 0 && last_read_[input] == time &&
           request_.value_bytes[input] == request_.value_bytes[node.output] &&
           std::count(node.inputs.begin(), node.inputs.end(), input) == 1;
  }

  // The gradient of a node's output was placed by the steps before; it lives until this step.
  void PlaceGradients(int step) {
    const BackwardStep& backward = request_.backward[step];
    const PlanNode& node = request_.nodes[backward.node];
    const int time = BackwardTime(step);
    const int output_gradient = gradient_storage_[node.output];
    if (output_gradient >= 0) {
      storages_[output_gradient].end = time;
      plan_.gradients[node.output].end = time;
    }
    plan_.aside[step].resize(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = node.inputs[i];
      const size_t bytes = request_.value_bytes[value];
      if (backward.inputs[i] == GradientUse::kAdd) {
        NewStorage(&plan_.aside[step][i], bytes, time, time);
        storages_[gradient_storage_[value]].end = time;
        plan_.gradients[value].end = time;
      }
      if (backward.inputs[i] != GradientUse::kWrite) continue;
      const bool in_place = i == 0 && node.backward_in_place && output_gradient >= 0 &&
                            bytes == request_.value_bytes[node.output];
      gradient_storage_[value] = in_place
                                     ? Join(output_gradient, &plan_.gradients[value], time, time)
                                     : NewStorage(&plan_.gradients[value], bytes, time, time);
    }
    NewStorage(&plan_.backward_workspace[step], node.workspace_bytes, time, time);
  }

  // Greedy, in two orders: the largest first, or the earliest first. Neither is always better.
  void AssignOffsets() {
    std::vector<int> order(storages_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [this](int a, int b) { return storages_[a].bytes > storages_[b].bytes; });
    std::vector<size_t> offsets;
    plan_.peak_bytes = OffsetsInOrder(order, &offsets);
    std::stable_sort(order.begin(), order.end(),
                     [this](int a, int b) { return storages_[a].begin < storages_[b].begin; });
    std::vector<size_t> others;
    const size_t other_peak = OffsetsInOrder(order, &others);
    if (other_peak < plan_.peak_bytes) {
      plan_.peak_bytes = other_peak;
      offsets.swap(others);
    }
    for (size_t i = 0; i < storages_.size(); ++i) {
      for (Block* block : storages_[i].blocks) block->offset = offsets[i];
    }
  }

  // Each storage at the lowest offset that is free while it lives. Returns the arena's size.
  size_t OffsetsInOrder(const std::vector<int>& order, std::vector<size_t>* offsets) const {
    offsets->assign(storages_.size(), 0);
    std::vector<int> placed;  // by offset
    size_t peak = 0;
    for (int index : order) {
      const Storage& storage = storages_[index];
      size_t offset = 0;
      for (int other_index : placed) {
        const Storage& other = storages_[other_index];
        if (other.end < storage.begin || storage.end < other.begin) continue;
        if ((*offsets)[other_index] >= offset + storage.bytes) break;
        const size_t after = (*offsets)[other_index] + other.bytes;
        offset =
            std::max(offset, (after + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment);
      }
      (*offsets)[index] = offset;
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), index,
                           [offsets](int a, int b) { return (*offsets)[a] < (*offsets)[b]; }),
          index);
      peak = std::max(peak, offset + storage.bytes);
    }
    return peak;
  }

  const PlanRequest& request_;
  const int nodes_;
  MemoryPlan plan_;  // sized once: Storage::blocks points into it
  std::vector<Storage> storages_;
  std::vector<int> last_read_;         // by value: time
  std::vector<int> value_storage_;     // by value; -1: none
  std::vector<int> gradient_storage_;  // by value; -1: none yet
};

}  // namespace

MemoryPlan PlanMemory(const PlanRequest& request) { return Planner(request).Run(); }

}  // namespace starling
