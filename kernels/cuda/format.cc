#include "kernels/cuda/format.h"

#include "absl/strings/str_cat.h"

namespace starling::cuda {
namespace {

using Op = OperatorGeometry::Op;

// Two of each element, row-major and channels last; then one of each, padded.
constexpr uint32_t kFormats = 9, kFirstPadded = 6;

// The order of the axes of [N, C, H, W] in [N, H, W, C].
constexpr int64_t kAxisWithChannelsLast[] = {0, 3, 1, 2};

bool IsPlane(const Shape& shape) { return shape.size() == 4; }

}  // namespace

Element ElementOf(DataType type) {
  static_assert(static_cast<int>(DataType::kFp32) == static_cast<int>(Element::kFloat));
  static_assert(static_cast<int>(DataType::kBf16) == static_cast<int>(Element::kBfloat16));
  static_assert(static_cast<int>(DataType::kFp16) == static_cast<int>(Element::kHalf));
  return static_cast<Element>(type);
}

Element ElementOf(ValueFormat format) {
  const uint32_t at = format.id < kFirstPadded ? format.id / 2 : format.id - kFirstPadded;
  return static_cast<Element>(at + 1);
}

ValueFormat ToValueFormat(const Format& format) {
  const uint32_t at = static_cast<uint32_t>(format.element) - 1;
  if (format.padded) return {kFirstPadded + at};
  return {2 * at + (format.channels_last ? 1 : 0)};
}

absl::StatusOr<Format> FromValueFormat(const Shape& shape, ValueFormat format) {
  if (format.id >= kFormats) {
    return absl::InvalidArgumentError(
        absl::StrCat("format ", format.id, " is not the GPU's, which are 0 to ", kFormats - 1));
  }
  const bool padded = format.id >= kFirstPadded;
  const Format known = {ElementOf(format), !padded && format.id % 2 == 1, padded};
  if (padded && shape.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("format ", format.id, " is for values with rows, and this one has none"));
  }
  if (known.channels_last && !IsPlane(shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "format ", format.id, " is for values of 4 dimensions, and this one has ", shape.size()));
  }
  return known;
}

size_t ValueBytes(const Shape& shape, const Format& format) {
  int64_t count = ElementCount(shape);
  if (format.padded) count = count / shape.back() * RowStride(shape.back(), format);
  return static_cast<size_t>(count) * ElementBytes(format.element);
}

Shape MemoryShape(const Shape& shape, const Format& format) {
  Shape memory = shape;
  if (!format.channels_last) return memory;
  for (int64_t axis = 0; axis < 4; ++axis) memory[MemoryAxis(axis, format)] = shape[axis];
  return memory;
}

int64_t MemoryAxis(int64_t axis, const Format& format) {
  return format.channels_last ? kAxisWithChannelsLast[axis] : axis;
}

FormatPlan PlanFormats(const OperatorSpec& spec, const OperatorGeometry& geometry,
                       const std::vector<Format>& given) {
  const Element element = ElementOf(spec.type);
  const Format rows = {element, false};
  const Format planes = {element, IsPlane(spec.input_shapes[0])};
  const auto all = [&](const Format& inputs, const Format& output) {
    return FormatPlan{std::vector<Format>(spec.input_shapes.size(), inputs), output};
  };
  switch (geometry.op) {
    // cuDNN's plans that round nothing are for row-major planes.
    case Op::kConv2d: return spec.type == DataType::kFp32 ? all(rows, rows) : all(planes, planes);
    case Op::kMaxPool2d:
    case Op::kAvgPool2d:
    case Op::kBatchNorm:
    // Random numbers are indexed channels last.
    case Op::kDropout: return all(planes, planes);
    case Op::kGlobalAvgPool2d: return all(planes, rows);
    case Op::kRelu:
    case Op::kGelu:
    case Op::kSigmoid:
    case Op::kTanh:
    case Op::kClip:
    case Op::kAdd:
    case Op::kMul:
    case Op::kConcat:
    case Op::kSlice: {
      const Format same = {element, given[0].channels_last};
      return all(same, same);
    }
    case Op::kLinear: {
      FormatPlan plan = all(rows, rows);
      plan.output.padded = spec.judged_output && !geometry.gelu && element != Element::kFloat &&
                           geometry.outputs % kRowUnit != 0;
      return plan;
    }
    case Op::kLayerNorm:
    case Op::kPositionEmbedding:
    case Op::kMatMul:
    case Op::kAttention:
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kFlatten: return all(rows, rows);
    case Op::kEmbedding:
    case Op::kGatherRows: return all(Format{}, rows);
    // Losses are computed in float, whatever their inputs' type.
    case Op::kSoftmaxCrossEntropy: {
      FormatPlan plan = all(Format{}, Format{});
      if (!given[0].channels_last) plan.inputs[0] = given[0];  // reads any type
      return plan;
    }
    case Op::kMeanSquaredError:
    case Op::kBinaryCrossEntropy:
    case Op::kNegativeSum: return all(Format{}, Format{});
  }
  return all(Format{}, Format{});
}

}  // namespace starling::cuda
