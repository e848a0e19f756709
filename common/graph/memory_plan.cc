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
    plan_.again.resize(request.backward.size());
    plan_.backward_values.resize(values);
    plan_.backward_saved.resize(nodes_);
    plan_.second_workspace.resize(nodes_);
    producer_.assign(values, -1);
    for (int i = 0; i < nodes_; ++i) producer_[request.nodes[i].output] = i;
    value_storage_.assign(values, -1);
    second_storage_.assign(values, -1);
    gradient_storage_.assign(values, -1);
  }

  MemoryPlan Run() {
    OrderBackward();
    FindLastReads();
    PlaceValues();
    for (int step = 0; step < static_cast<int>(request_.backward.size()); ++step) {
      for (int node : plan_.again[step]) PlaceSecond(node);
      PlaceGradients(step);
    }
    AssignOffsets();
    CopyWhatIsNotComputedAgain();
    return std::move(plan_);
  }

 private:
  // The unit that gets an offset: one block, or several that work in place, one after the other.
  struct Storage {
    size_t bytes = 0;
    int begin = 0;
    int end = 0;
    std::vector<Block*> blocks;
  };

  int ForwardTime(int node) const { return 1 + node; }
  int HostTime() const { return 1 + nodes_; }
  int BackwardTime(int step) const { return step_time_[step]; }
  bool RunsAgain(int node) const { return second_time_[node] > 0; }
  // Whether backward reads what a second forward wrote for the value.
  bool IsComputedAgain(int value) const {
    return producer_[value] >= 0 && RunsAgain(producer_[value]);
  }

  // Which forwards run again, and when: before a step, those of the dropped nodes that it needs,
  // and of the dropped nodes that these need, unless they ran for an earlier step.
  void OrderBackward() {
    second_time_.assign(nodes_, 0);
    step_time_.assign(request_.backward.size(), 0);
    node_step_time_.assign(nodes_, 0);
    std::vector<bool> taken(nodes_, false);
    int time = HostTime();
    for (size_t step = 0; step < request_.backward.size(); ++step) {
      std::vector<int>& again = plan_.again[step];
      const auto want = [&](int node) {
        if (node < 0 || request_.dropped.empty() || !request_.dropped[node] || taken[node]) return;
        taken[node] = true;
        again.push_back(node);
      };
      const int index = request_.backward[step].node;
      const PlanNode& node = request_.nodes[index];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.backward_reads_input[i]) want(producer_[node.inputs[i]]);
      }
      const bool saves_much = node.saved_bytes > request_.value_bytes[node.output] / kSavedShare;
      if (node.backward_reads_output || saves_much) want(index);
      for (size_t k = 0; k < again.size(); ++k) {  // `again` grows in the loop
        for (int input : request_.nodes[again[k]].inputs) want(producer_[input]);
      }
      std::sort(again.begin(), again.end());
      for (int second : again) second_time_[second] = ++time;
      step_time_[step] = node_step_time_[index] = ++time;
    }
  }

  void FindLastReads() {
    last_read_.assign(request_.value_bytes.size(), 0);
    second_last_read_.assign(request_.value_bytes.size(), 0);
    auto read = [this](int value, int time) {
      last_read_[value] = std::max(last_read_[value], time);
    };
    auto read_late = [&](int value, int time) {
      if (!IsComputedAgain(value)) return read(value, time);
      second_last_read_[value] = std::max(second_last_read_[value], time);
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
        if (node.backward_reads_input[i]) read_late(node.inputs[i], time);
      }
      if (node.backward_reads_output) read_late(node.output, time);
    }
    for (int i = 0; i < nodes_; ++i) {
      if (!RunsAgain(i)) continue;
      for (int input : request_.nodes[i].inputs) read_late(input, second_time_[i]);
      read_late(request_.nodes[i].output, second_time_[i]);
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
    for (int i = 0; i < nodes_; ++i) {
      const PlanNode& node = request_.nodes[i];
      const int time = ForwardTime(i);
      const int v = node.output;
      value_storage_[v] = PlaceOutput(node, time, false, &plan_.values[v], last_read_[v]);
      const int saved_until = RunsAgain(i) ? time : std::max(time, node_step_time_[i]);
      NewStorage(&plan_.saved[i], node.saved_bytes, time, saved_until);
      NewStorage(&plan_.forward_workspace[i], node.workspace_bytes, time, time);
    }
  }

  void PlaceSecond(int i) {
    const PlanNode& node = request_.nodes[i];
    const int time = second_time_[i];
    const int v = node.output;
    second_storage_[v] =
        PlaceOutput(node, time, true, &plan_.backward_values[v], second_last_read_[v]);
    NewStorage(&plan_.backward_saved[i], node.saved_bytes, time,
               std::max(time, node_step_time_[i]));
    NewStorage(&plan_.second_workspace[i], node.workspace_bytes, time, time);
  }

  // In place if the node supports it and its input has no later reader. `second`: by the second
  // forward.
  int PlaceOutput(const PlanNode& node, int time, bool second, Block* block, int end) {
    const size_t bytes = request_.value_bytes[node.output];
    if (node.forward_in_place && !node.inputs.empty()) {
      const int input = node.inputs[0];
      const bool from_second = second && IsComputedAgain(input);
      const int storage = (from_second ? second_storage_ : value_storage_)[input];
      if (storage >= 0 && (from_second ? second_last_read_ : last_read_)[input] == time &&
          request_.value_bytes[input] == bytes &&
          std::count(node.inputs.begin(), node.inputs.end(), input) == 1) {
        return Join(storage, block, time, end);
      }
    }
    return NewStorage(block, bytes, time, end);
  }

  // The gradient of a node's output was placed by earlier steps; it lives until this step.
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

  void CopyWhatIsNotComputedAgain() {
    for (size_t v = 0; v < plan_.values.size(); ++v) {
      if (!IsComputedAgain(static_cast<int>(v))) plan_.backward_values[v] = plan_.values[v];
    }
    for (int i = 0; i < nodes_; ++i) {
      if (!RunsAgain(i)) plan_.backward_saved[i] = plan_.saved[i];
    }
  }

  // Greedy, in two orders: largest first and earliest first. Neither is always better.
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

  // Puts each storage at the lowest offset that is free while it lives. Returns the arena's size.
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
  MemoryPlan plan_;  // never resized: Storage::blocks points into it
  std::vector<Storage> storages_;
  std::vector<int> producer_;          // by value: node; -1: none
  std::vector<int> second_time_;       // by node: time of its second forward; 0: none
  std::vector<int> step_time_;         // by backward step
  std::vector<int> node_step_time_;    // by node: time of its backward step; 0: none
  std::vector<int> last_read_;         // by value: last read of what forward wrote
  std::vector<int> second_last_read_;  // ... of what the second forward wrote
  std::vector<int> value_storage_;     // by value; -1: none
  std::vector<int> second_storage_;    // ... of what the second forward wrote
  std::vector<int> gradient_storage_;  // by value; -1: none yet
};

}  // namespace

MemoryPlan PlanMemory(const PlanRequest& request) { return Planner(request).Run(); }

}  // namespace starling
