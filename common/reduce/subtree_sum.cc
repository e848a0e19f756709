#include "common/reduce/subtree_sum.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/defences.h"

namespace starling {

SubtreeSum::SubtreeSum(uint32_t leaves) : leaves_(leaves) {
  STARLING_CHECK(std::has_single_bit(leaves), "leaves must be a power of two");
}

bool SubtreeSum::Holds(uint32_t first, uint32_t count) const {
  auto it = std::upper_bound(held_.begin(), held_.end(), first,
                             [](uint32_t leaf, const Node& node) { return leaf < node.first; });
  if (it == held_.begin()) return false;
  --it;
  return first + count <= it->first + it->count;
}

SubtreeSum::Held::iterator SubtreeSum::AtOrAfter(uint32_t first) {
  return std::lower_bound(held_.begin(), held_.end(), first,
                          [](const Node& node, uint32_t leaf) { return node.first < leaf; });
}

SubtreeSum::Held::iterator SubtreeSum::SiblingOf(Held::iterator node) {
  const uint32_t first = node->first ^ node->count;
  const auto sibling = AtOrAfter(first);
  const bool there =
      sibling != held_.end() && sibling->first == first && sibling->count == node->count;
  return there ? sibling : held_.end();
}

SubtreeSum::Outcome SubtreeSum::Insert(uint32_t first, uint32_t count, BufferId buffer) {
  STARLING_CHECK(
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
  const auto begin = AtOrAfter(first);
  auto end = begin;
  for (; end != held_.end() && end->first < first + count; ++end) {
    if (!in_order_of_arrival) outcome.replaced.push_back(end->buffer);
  }
  auto node = held_.insert(held_.erase(begin, end), Node{first, count, buffer});
  for (auto sibling = SiblingOf(node); sibling != held_.end(); sibling = SiblingOf(node)) {
    // The older buffer stays: it lies where sums are kept, the new one where frames arrive.
    if (!in_order_of_arrival) outcome.merges.push_back({sibling->buffer, node->buffer});
    const auto left = std::min(node, sibling);  // the other one follows it
    *left = Node{left->first, 2 * node->count, sibling->buffer};
    held_.erase(left + 1);
    node = left;
  }
  if (node->count == leaves_) {
    outcome.complete = true;
    outcome.root = in_order_of_arrival ? std::exchange(running_, BufferId()) : node->buffer;
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
  for (const Node& node : held_) buffers.push_back(node.buffer);
  held_.clear();
  return buffers;
}

}  // namespace starling
