#include "common/placement/layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_io.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr ParameterKind kKindsInOrder[] = {TRAINABLE, STATISTIC, FROZEN};
// A slice that holds this fraction of the model closes at an operator's end, so that small models
// overlap communication with compute, too.
constexpr uint64_t kOperatorEndFraction = 8;

absl::Status BadParameter(const Parameter& parameter, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter.name(), "\": ", what));
}

absl::StatusOr<uint64_t> CountElements(const Parameter& parameter) {
  if (parameter.shape_size() > static_cast<int>(limits::kTensorDimsMax)) {
    return BadParameter(parameter,
                        absl::StrCat("has ", parameter.shape_size(), " dimensions; at most ",
                                     limits::kTensorDimsMax, " are allowed"));
  }
  int64_t elements = 1;
  for (const int64_t dim : parameter.shape()) {
    if (dim < 1)
      return BadParameter(parameter, absl::StrCat("has dimension ", dim, "; expected at least 1"));
    if (dim > limits::kTensorElementsMax / elements) {
      return BadParameter(parameter,
                          absl::StrCat("has more than ", limits::kTensorElementsMax, " elements"));
    }
    elements *= dim;
  }
  return static_cast<uint64_t>(elements);
}

absl::Status CheckKind(const Parameter& parameter) {
  if (absl::c_linear_search(kKindsInOrder, parameter.kind())) return absl::OkStatus();
  return BadParameter(parameter, absl::StrCat("has kind ", static_cast<int>(parameter.kind()),
                                              "; expected trainable, statistic or frozen"));
}

// The index of the first node that reads each parameter; -1: none.
std::vector<int> FirstReaders(const Graph& graph) {
  absl::btree_map<std::string, int> readers;
  for (int n = 0; n < graph.nodes_size(); ++n) {
    for (const std::string& name : graph.nodes(n).parameters()) readers.try_emplace(name, n);
  }
  std::vector<int> result;
  result.reserve(graph.parameters_size());
  for (const Parameter& parameter : graph.parameters()) {
    const auto it = readers.find(parameter.name());
    result.push_back(it == readers.end() ? -1 : it->second);
  }
  return result;
}

// Appends parameters to slices, one kind after the other. Each class of parameters (a group; for
// statistics a momentum) has one open slice: classes alternate in forward order, but a slice holds
// only one class.
class Packer {
 public:
  Packer(const Graph& graph, const Optimizer& optimizer, Layout* layout)
      : graph_(graph),
        optimizer_(optimizer),
        layout_(*layout),
        readers_(FirstReaders(graph)),
        early_close_(layout->elements / kOperatorEndFraction) {}

  void PackKind(ParameterKind kind) {
    open_.clear();
    for (uint32_t p = 0; p < layout_.parameters.size(); ++p) {
      const Parameter& parameter = graph_.parameters(static_cast<int>(p));
      if (parameter.kind() != kind) continue;
      Slice like;
      like.kind = kind;
      if (kind == STATISTIC) like.statistic_momentum = parameter.statistic_momentum();
      if (kind == TRAINABLE) like.group = GroupOf(optimizer_, parameter);
      Append(p, like);
    }
  }

  // Call once all kinds are packed.
  void PlaceInFlatBuffer() {
    uint64_t end = 0;
    for (Slice& slice : layout_.slices) {
      slice.flat_begin = end;
      end += slice.elements;
      for (const Segment& segment : slice.segments) {
        if (segment.param_begin > 0) continue;
        layout_.parameters[segment.param].flat_begin = slice.flat_begin + segment.slice_begin;
      }
    }
  }

 private:
  using Class = std::pair<GroupIndex, double>;  // group, momentum
  struct Open {
    uint32_t slice;
    int last_reader;
  };

  Slice& At(uint32_t index) { return layout_.slices[index]; }
  uint32_t Room(uint32_t index) {
    return static_cast<uint32_t>(limits::kSliceElementsMax) - At(index).elements;
  }

  // A parameter's slices are adjacent, so that it is contiguous in the flat buffer.
  bool MayTake(const Open& open, uint32_t param) {
    const bool operator_ended = readers_[param] != open.last_reader;
    if (operator_ended && At(open.slice).elements >= early_close_) return false;
    if (open.slice + 1 == layout_.slices.size()) return Room(open.slice) > 0;
    return Room(open.slice) >= layout_.parameters[param].elements;
  }

  void Append(uint32_t param, const Slice& like) {
    ParameterPlace& place = layout_.parameters[param];
    const Class key(like.group, like.statistic_momentum);
    const auto open = open_.find(key);
    const bool joins = open != open_.end() && MayTake(open->second, param);
    uint32_t index = joins ? open->second.slice : AddSlice(like);
    place.first_slice = At(index).id;
    for (uint64_t begin = 0; begin < place.elements;) {
      if (Room(index) == 0) index = AddSlice(like);
      Slice& slice = At(index);
      const uint32_t length =
          static_cast<uint32_t>(std::min<uint64_t>(Room(index), place.elements - begin));
      place.last_slice = slice.id;
      slice.segments.push_back({param, begin, slice.elements, length});
      slice.elements += length;
      begin += length;
    }
    open_[key] = {index, readers_[param]};
  }

  uint32_t AddSlice(const Slice& like) {
    const uint32_t index = static_cast<uint32_t>(layout_.slices.size());
    layout_.slices.push_back(like);
    layout_.slices.back().id = SliceId(index);
    return index;
  }

  const Graph& graph_;
  const Optimizer& optimizer_;
  Layout& layout_;
  const std::vector<int> readers_;
  const uint64_t early_close_;
  absl::btree_map<Class, Open> open_;
};

// The bin of each item: largest first, to the least loaded bin; ties to the lowest index.
std::vector<uint32_t> LargestFirst(absl::Span<const uint64_t> sizes) {
  std::vector<uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sizes[a] > sizes[b]; });
  return order;
}

// The bin of each size: largest first, to the bin with the smallest sum; ties to the first.
std::vector<uint32_t> Balance(const std::vector<uint64_t>& sizes, size_t bins) {
  std::vector<uint64_t> load(bins, 0);
  std::vector<uint32_t> bin_of(sizes.size());
  for (const uint32_t item : LargestFirst(sizes)) {
    const size_t bin = std::min_element(load.begin(), load.end()) - load.begin();
    bin_of[item] = static_cast<uint32_t>(bin);
    load[bin] += sizes[item];
  }
  return bin_of;
}

void MakePartitions(Layout* layout) {
  std::vector<uint64_t> sizes;
  for (const Slice& slice : layout->slices) sizes.push_back(slice.elements);
  layout->partitions.resize(std::min<size_t>(limits::kPartitionsDefault, sizes.size()));
  const std::vector<uint32_t> bin_of = Balance(sizes, layout->partitions.size());
  for (Slice& slice : layout->slices) {
    slice.partition = PartitionId(bin_of[slice.id.value]);
    layout->partitions[slice.partition.value].push_back(slice.id);
  }
}

// Little-endian, fixed widths, lengths before contents: different layouts have different encodings.
uint64_t DigestOf(const Graph& graph, const Layout& layout) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer(uint64_t{layout.parameters.size()});
  for (size_t p = 0; p < layout.parameters.size(); ++p) {
    const std::string& name = graph.parameters(static_cast<int>(p)).name();
    writer(uint64_t{name.size()});
    bytes += name;
    writer(layout.parameters[p].flat_begin, layout.parameters[p].elements);
  }
  writer(uint64_t{layout.partitions.size()}, uint64_t{layout.slices.size()});
  for (const Slice& slice : layout.slices) {
    writer(uint64_t{slice.partition.value}, static_cast<uint64_t>(slice.kind),
           slice.statistic_momentum, static_cast<uint64_t>(slice.group), uint64_t{slice.elements},
           uint64_t{slice.segments.size()});
    for (const Segment& segment : slice.segments) {
      writer(uint64_t{segment.param}, segment.param_begin, uint64_t{segment.slice_begin},
             uint64_t{segment.length});
    }
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

// Splits [begin, end) into maximal aligned ranges, ascending.
Subtrees AlignedPieces(uint32_t begin, uint32_t end) {
  Subtrees pieces;
  while (begin < end) {
    const uint32_t alignment = begin == 0 ? std::bit_floor(end) : begin & (~begin + 1);
    const uint32_t count = std::min(alignment, std::bit_floor(end - begin));
    pieces.push_back({begin, count});
    begin += count;
  }
  return pieces;
}

}  // namespace

absl::StatusOr<Layout> MakeLayout(const Graph& graph, const Optimizer& optimizer) {
  if (graph.parameters_size() == 0) {
    return absl::InvalidArgumentError(
        "the model has no parameters; expected at least one to train");
  }
  if (graph.parameters_size() > static_cast<int>(limits::kTensorsPerJobMax)) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", graph.parameters_size(),
                                                   " parameters; at most ",
                                                   limits::kTensorsPerJobMax, " are allowed"));
  }
  Layout layout;
  layout.parameters.resize(graph.parameters_size());
  for (int p = 0; p < graph.parameters_size(); ++p) {
    STARLING_RETURN_IF_ERROR(CheckKind(graph.parameters(p)));
    STARLING_ASSIGN_OR_RETURN(layout.parameters[p].elements, CountElements(graph.parameters(p)));
    layout.elements += layout.parameters[p].elements;
    if (layout.elements > limits::kParametersPerJobMax) {
      return BadParameter(
          graph.parameters(p),
          absl::StrCat("brings the model above ", limits::kParametersPerJobMax, " elements"));
    }
  }
  STARLING_RETURN_IF_ERROR(CheckGroups(optimizer, graph));
  Packer packer(graph, optimizer, &layout);
  for (const ParameterKind kind : kKindsInOrder) packer.PackKind(kind);
  packer.PlaceInFlatBuffer();
  MakePartitions(&layout);
  layout.digest = DigestOf(graph, layout);
  return layout;
}

std::vector<ShardId> AssignPartitions(absl::Span<const uint64_t> elements,
                                      absl::Span<const uint64_t> bytes,
                                      absl::Span<const ShardLoad> shards) {
  std::vector<ShardId> result(elements.size());
  std::vector<uint64_t> own(shards.size(), 0), taken(shards.size(), 0);
  for (const uint32_t partition : LargestFirst(elements)) {
    const auto load = [&](size_t i) { return std::pair(own[i], shards[i].elements + own[i]); };
    size_t best = shards.size();
    for (size_t i = 0; i < shards.size(); ++i) {
      if (bytes[partition] > shards[i].room_bytes - taken[i]) continue;
      if (best == shards.size() || load(i) < load(best)) best = i;
    }
    if (best == shards.size()) return {};
    result[partition] = shards[best].id;
    own[best] += elements[partition];
    taken[best] += bytes[partition];
  }
  return result;
}

Subtrees AssignSubtrees(uint64_t step, uint64_t member, uint64_t members, uint32_t micro_batches) {
  const uint64_t part = (member + members - step % members) % members;
  return AlignedPieces(static_cast<uint32_t>(part * micro_batches / members),
                       static_cast<uint32_t>((part + 1) * micro_batches / members));
}

}  // namespace starling
