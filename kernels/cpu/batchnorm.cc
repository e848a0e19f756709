// Batch norm (Ioffe and Szegedy 2015), with sums in double. A float sum of tens of thousands of
// values on one side of zero (an image's background) is wrong by 1e-5 or more, and the gradients of
// earlier layers are small differences of such sums. Here only sixteen values at a time are summed
// in float, which is as fast as memory delivers them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/batchnorm_loops.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/half.h"

namespace starling {
namespace {

enum Parameter { kWeight = 0, kBias = 1, kMean = 2, kVariance = 3 };

// Points of `width` channels, `stride` apart, as rows of contiguous numbers: one row if all are
// contiguous.
struct Rows {
  int64_t count, width;
};
Rows RowsOf(int64_t points, int64_t width, int64_t stride) {
  return stride == width ? Rows{1, points * width} : Rows{points, width};
}

// Keeps its input's format. `saved` holds the micro-batch's mean, then its biased variance.
//
// The fused addition and ReLU are applied piece by piece while the piece is in the L1 cache: in
// forward after the normalisation, in backward (the ReLU's gate) before the sums and again before
// the result. Two-byte values are converted the same way: a piece is widened when it is read and
// rounded when it is written.
class BatchNorm : public CpuKernel {
 public:
  BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry, const dnnl::engine& engine);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  struct alignas(64) Piece {
    float at[kPieceFloats];
  };
  // The gradient after the fused operators, and where the added value's gradient goes (null: not
  // wanted, or already there).
  struct Outer {
    const void* y;
    const void* dy;
    void* added;
  };

  bool fused() const { return geometry_.relu || adds_; }
  bool stored() const { return spec_.type != DataType::kFp32; }
  // How many of a group's channels belong to the value.
  int64_t Used(const Group& g) const { return std::min(g.width, channels_ - g.channel); }
  template <typename Fn>
  void ForEachGroup(Fn fn) const;
  // Calls fn(offset in the value, points) for all of a group's points, run by run; piece by piece
  // if anything is fused or converted.
  template <typename Fn>
  void ForEachPiece(const Group& g, Fn fn) const;
  // Points of a value: in place, or widened into `piece`.
  Points Read(const Group& g, const void* value, int64_t at, int64_t points, Piece* piece) const;
  // Where such points must be written: into the value, or into `piece`, with the stride of Read's
  // result...
  float* Place(void* value, int64_t at, Piece* piece) const {
    return stored() ? piece->at : static_cast<float*>(value) + at;
  }
  // ...and how they then get into the value, rounded.
  void Write(const Group& g, const Piece& piece, int64_t at, int64_t points, void* value) const;
  // The sums of the shifted values and of their squares over all points, or over the first `few`.
  Sums SumSquares(const Group& g, const void* x, const Row& shift) const;
  Sums SumFirst(const Group& g, const void* x, int64_t few) const;
  void Measure(const Group& g, const void* x, float* saved) const;
  void GroupForward(const ForwardArgs& args, const void* added, const Group& g) const;
  void GroupBackward(const BackwardArgs& args, const Outer& outer, const Group& g) const;
  // The gradient of the normalisation's output, in `piece` or in place.
  Points Gate(const Group& g, const Outer& outer, int64_t at, int64_t points, Piece* piece) const;
  void WriteStatistics(const BackwardArgs& args) const;

  const int64_t channels_;
  const bool adds_;
  const std::vector<Group> groups_;
  Staging added_, added_gradient_;  // if the added value has another format
};

BatchNorm::BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
                     const dnnl::engine& engine)
    : CpuKernel(spec, geometry),
      channels_(geometry.inputs),
      adds_(spec.input_shapes.size() == 2),
      groups_(GroupsOf(spec.input_shapes[0], LayoutOf(input_format_))) {
  KeepInputFormat();
  if (adds_) {
    const MemoryDesc added = InputDesc(spec, 1);
    ScratchPlan plan;
    added_ = StageIn(added, input_desc_, engine, plan);
    added_gradient_ = StageOut(input_desc_, added, engine, plan);
    workspace_bytes_ = plan.size();
  }
  forward_in_place_ok_ = !spec.training;
  if (!spec.training) return;
  backward_in_place_ok_ = true;
  saved_bytes_ = 2 * channels_ * sizeof(float);
  backward_reads_input_[0] = true;
  backward_reads_output_ = geometry.relu;  // y > 0 exactly where the gradient passes
}

template <typename Fn>
void BatchNorm::ForEachGroup(Fn fn) const {
  const int64_t count = static_cast<int64_t>(groups_.size());
  ParallelRanges(spec_.kernel_threads, count,
                 static_cast<int64_t>(output_bytes_ / DataTypeBytes(spec_.type)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) fn(groups_[i]);
                 });
}

template <typename Fn>
void BatchNorm::ForEachPiece(const Group& g, Fn fn) const {
  const int64_t piece = fused() || stored() ? kPieceFloats / g.width : g.points;
  for (int64_t run = 0; run < g.runs; ++run) {
    for (int64_t p = 0; p < g.points; p += piece) {
      fn(g.base + run * g.run_stride + p * g.point_stride, std::min(piece, g.points - p));
    }
  }
}

Points BatchNorm::Read(const Group& g, const void* value, int64_t at, int64_t points,
                       Piece* piece) const {
  if (!stored()) return {static_cast<const float*>(value) + at, g.point_stride};
  const uint16_t* const from = static_cast<const uint16_t*>(value) + at;
  const Rows rows = RowsOf(points, g.width, g.point_stride);
  for (int64_t row = 0; row < rows.count; ++row) {
    Widen(spec_.type, from + row * g.point_stride, piece->at + row * rows.width, rows.width);
  }
  return {piece->at, g.width};
}

void BatchNorm::Write(const Group& g, const Piece& piece, int64_t at, int64_t points,
                      void* value) const {
  if (!stored()) return;
  uint16_t* const to = static_cast<uint16_t*>(value) + at;
  const Rows rows = RowsOf(points, g.width, g.point_stride);
  for (int64_t row = 0; row < rows.count; ++row) {
    Narrow(spec_.type, piece.at + row * rows.width, to + row * g.point_stride, rows.width);
  }
}

Sums BatchNorm::SumSquares(const Group& g, const void* x, const Row& shift) const {
  Piece piece;
  Sums sums;
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    const Points some = Read(g, x, at, points, &piece);
    SumPoints(g.width, some, some, shift, shift, points, &sums);
  });
  return sums;
}

Sums BatchNorm::SumFirst(const Group& g, const void* x, int64_t few) const {
  Piece piece;
  Sums sums;
  const Points some = Read(g, x, g.base, few, &piece);
  SumPoints(g.width, some, some, Row(), Row(), few, &sums);
  return sums;
}

// One pass around a guess, the mean of the first run's points. If that was so far from the mean
// that the variance is a small difference, a second pass around the mean.
void BatchNorm::Measure(const Group& g, const void* x, float* saved) const {
  const double count = static_cast<double>(g.count());
  const int64_t few = std::min<int64_t>(g.points, kPieceFloats / 16);
  const Sums first = SumFirst(g, x, few);
  Row about;
  for (int64_t l = 0; l < g.width; ++l) {
    about.at[l] = static_cast<float>(first.plain[l] / static_cast<double>(few));
  }
  for (bool again : {true, false}) {
    const Sums sums = SumSquares(g, x, about);
    bool far = false;
    for (int64_t l = 0; l < Used(g); ++l) {
      const double beside = sums.plain[l] / count;
      const double variance = std::max(sums.product[l] / count - beside * beside, 0.0);
      far |= beside * beside > 16 * variance;
      const float mean = static_cast<float>(about.at[l] + beside);
      saved[g.channel + l] = mean;
      saved[channels_ + g.channel + l] = static_cast<float>(variance);
      about.at[l] = mean;
    }
    if (!again || !far) return;
  }
}

void BatchNorm::Run(const ForwardArgs& args, const CpuStream& stream) {
  const void* const added = adds_ ? added_.In(args.inputs[1], stream, args.workspace) : nullptr;
  ForEachGroup([&](const Group& g) { GroupForward(args, added, g); });
}

void BatchNorm::GroupForward(const ForwardArgs& args, const void* added, const Group& g) const {
  const void* const x = args.inputs[0];
  const float* mean = args.parameters[kMean];
  const float* variance = args.parameters[kVariance];
  if (spec_.training) {
    float* const saved = static_cast<float*>(args.saved);
    Measure(g, x, saved);
    mean = saved;
    variance = saved + channels_;
  }
  Factors f;
  for (int64_t l = 0; l < Used(g); ++l) {
    const int64_t c = g.channel + l;
    f.mean.at[l] = mean[c];
    f.scale.at[l] = static_cast<float>(args.parameters[kWeight][c] /
                                       std::sqrt(variance[c] + geometry_.epsilon));
    f.offset.at[l] = args.parameters[kBias][c];
  }
  Piece piece, added_piece;
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    const Points from = Read(g, x, at, points, &piece);
    float* const to = Place(args.output, at, &piece);
    Normalize(from, f, points, g.width, to);
    if (fused()) {
      const float* const more =
          added == nullptr ? nullptr : Read(g, added, at, points, &added_piece).at;
      const Rows rows = RowsOf(points, g.width, from.stride);
      AddAndRectify(more, geometry_.relu, rows.count, rows.width, from.stride, to);
    }
    Write(g, piece, at, points, args.output);
  });
}

void BatchNorm::RunBackward(const BackwardArgs& args, const CpuStream& stream) {
  Outer outer = {args.output, args.grad_output, nullptr};
  void* const added = adds_ ? args.grad_inputs[1] : nullptr;
  if (added != nullptr) {
    outer.added = added_gradient_.Place(added, args.workspace);
    if (!geometry_.relu) {
      std::memcpy(outer.added, outer.dy, output_bytes_);
      outer.added = nullptr;
    }
  }
  ForEachGroup([&](const Group& g) { GroupBackward(args, outer, g); });
  if (added != nullptr) added_gradient_.Out(added, stream, args.workspace);
  WriteStatistics(args);
}

Points BatchNorm::Gate(const Group& g, const Outer& outer, int64_t at, int64_t points,
                       Piece* piece) const {
  if (!geometry_.relu) return Read(g, outer.dy, at, points, piece);
  Piece y_piece;
  const Points y = Read(g, outer.y, at, points, &y_piece);
  const Points dy = Read(g, outer.dy, at, points, piece);
  const bool direct = outer.added != nullptr && !stored();
  const Points gated = direct ? Points{static_cast<float*>(outer.added) + at, g.point_stride}
                              : Points{piece->at, g.width};
  const Rows rows = RowsOf(points, g.width, y.stride);
  GateRows(y.at, dy.at, rows.count, rows.width, y.stride, const_cast<float*>(gated.at),
           gated.stride);
  if (outer.added != nullptr) Write(g, *piece, at, points, outer.added);
  return gated;
}

// With n elements in a channel, d = 1 / sqrt(variance + epsilon) and z = (x - mean) * d:
// dx = weight * d * (dy - sum(dy) / n - z * sum(dy * z) / n).
void BatchNorm::GroupBackward(const BackwardArgs& args, const Outer& outer, const Group& g) const {
  const void* const x = args.inputs[0];
  const float* const saved = static_cast<const float*>(args.saved);
  const double count = static_cast<double>(g.count());
  Piece x_piece, piece;
  Factors f;
  std::copy_n(saved + g.channel, Used(g), f.mean.at);
  Sums sums;
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    const Points dy = Gate(g, outer, at, points, &piece);
    const Points from = Read(g, x, at, points, &x_piece);
    SumPoints(g.width, dy, from, Row(), f.mean, points, &sums);
  });
  for (int64_t l = 0; l < Used(g); ++l) {
    const int64_t c = g.channel + l;
    const double d = 1 / std::sqrt(saved[channels_ + c] + geometry_.epsilon);
    if (float* const to = args.grad_parameters[kBias]; to != nullptr) {
      to[c] = static_cast<float>(sums.plain[l]);
    }
    if (float* const to = args.grad_parameters[kWeight]; to != nullptr) {
      to[c] = static_cast<float>(sums.product[l] * d);
    }
    f.offset.at[l] = static_cast<float>(sums.plain[l] / count);
    f.slope.at[l] = static_cast<float>(sums.product[l] * d * d / count);
    f.scale.at[l] = static_cast<float>(args.parameters[kWeight][c] * d);
  }
  void* const dx = args.grad_inputs[0];
  if (dx == nullptr) return;
  ForEachPiece(g, [&](int64_t at, int64_t points) {
    const Points dy = outer.added != nullptr ? Read(g, outer.added, at, points, &piece)
                                             : Gate(g, outer, at, points, &piece);
    const Points from = Read(g, x, at, points, &x_piece);
    Denormalize(from, dy, f, points, g.width, Place(dx, at, &x_piece));
    Write(g, x_piece, at, points, dx);
  });
}

void BatchNorm::WriteStatistics(const BackwardArgs& args) const {
  const float* const saved = static_cast<const float*>(args.saved);
  const float share = static_cast<float>(static_cast<double>(geometry_.batch) /
                                         static_cast<double>(args.global_batch));
  for (int statistic : {0, 1}) {
    float* const contribution = args.grad_parameters[kMean + statistic];
    if (contribution == nullptr) continue;
    for (int64_t c = 0; c < channels_; ++c) {
      contribution[c] = saved[statistic * channels_ + c] * share;
    }
  }
}

}  // namespace

const MakeCpuKernel kMakeBatchNorm = MakeKernel<BatchNorm>;

}  // namespace starling
