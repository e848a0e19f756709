#include "common/reduce/subtree_sum.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <iterator>

#include "absl/base/internal/raw_logging.h"
#include "common/defences.h"

namespace starling {

SubtreeSum::SubtreeSum(uint32_t leaves) : leaves_(leaves) {
  ABSL_RAW_CHECK(std::has_single_bit(leaves), "leaves must be a power of two");
}

bool SubtreeSum::Holds(uint32_t first, uint32_t count) const {
  auto it = held_.upper_bound(first);
  if (it == held_.begin()) return false;
  --it;
  return first + count <= it->first + it->second.count;
}

SubtreeSum::Held::iterator SubtreeSum::SiblingOf(Held::iterator node) {
  const auto sibling = held_.find(node->first ^ node->second.count);
  return sibling != held_.end() && sibling->second.count == node->second.count ? sibling
                                                                               : held_.end();
}

SubtreeSum::Outcome SubtreeSum::Insert(uint32_t first, uint32_t count, BufferId buffer) {
  ABSL_RAW_CHECK(
      std::has_single_bit(count) && first % count == 0 && uint64_t{first} + count <= leaves_,
      "range is not an aligned subtree");
  Outcome outcome;
  if (Holds(first, count)) {
    outcome.duplicate = true;
    return outcome;
  }
  const bool in_order_of_arrival = DefenceMasked(Defence::kReductionOrder);
  if (in_order_of_arrival) {
    if (running_.value != 0) outcome.merges.push_back({running_, buffer});
    if (running_.value == 0) running_ = buffer;
  }
  auto it = held_.lower_bound(first);
  while (it != held_.end() && it->first < first + count) {
    if (!in_order_of_arrival) outcome.replaced.push_back(it->second.buffer);
    it = held_.erase(it);
  }
  auto node = held_.insert_or_assign(first, Node{count, buffer}).first;
  for (auto sibling = SiblingOf(node); sibling != held_.end(); sibling = SiblingOf(node)) {
    // The older buffer stays: it lies where sums are kept, the new one where frames arrive.
    const Node parent{node->second.count + sibling->second.count, sibling->second.buffer};
    if (!in_order_of_arrival) outcome.merges.push_back({sibling->second.buffer, node->second.buffer});
    const uint32_t parent_first = std::min(node->first, sibling->first);
    const uint32_t other_first = std::max(node->first, sibling->first);
    held_.erase(other_first);
    node = held_.insert_or_assign(parent_first, parent).first;
  }
  if (node->second.count == leaves_) {
    outcome.complete = true;
    outcome.root = in_order_of_arrival ? std::exchange(running_, BufferId()) : node->second.buffer;
    held_.clear();
  }
  return outcome;
}

absl::InlinedVector<BufferId, 4> SubtreeSum::Clear() {
  absl::InlinedVector<BufferId, 4> buffers;
  if (running_.value != 0) {
    held_.clear();
    return {std::exchange(running_, BufferId())};
  }
  for (const auto& [first, node] : held_) buffers.push_back(node.buffer);
  held_.clear();
  return buffers;
}

}  // namespace starling
