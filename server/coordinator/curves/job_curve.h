// A job's progress as a bounded series of points over its steps (proto/coordinator.proto,
// CurvePoint). A point is added when there are new steps and half a second has passed. When there
// are too many points, each pair of neighbours is merged, and from then on points are added half as
// often. A long job's curve is thus coarser than a short one's, but as even.
#ifndef STARLING_SERVER_COORDINATOR_CURVES_JOB_CURVE_H_
#define STARLING_SERVER_COORDINATOR_CURVES_JOB_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/protocol/limits.h"
#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// Pure and deterministic. Not thread-safe.
class JobCurve {
 public:
  static constexpr double kPeriodSeconds = 0.5;  // between points, before the first merge

  // `points_max` is even and at least 2.
  explicit JobCurve(size_t points_max = limits::kCurvePointsMax);

  // Continues from stored points: ascending steps, at most points_max points (the rest are
  // dropped), after `merges` merges. Those up to the step `earlier` are of an earlier run, whose
  // counters are not those of later moments. What was observed before is void.
  void Restore(std::vector<CurvePoint> points, uint32_t merges, uint64_t earlier = 0);

  // Adds what finished training work reported; it counts for the next point.
  void Observe(double loss_sum, uint64_t samples, uint64_t correct);

  // Whether a point is due at this moment. `last`: no point will follow, so neither the period nor
  // a loss is waited for.
  bool Due(uint64_t step, double seconds, bool last) const;

  // The job's state at one moment.
  struct Moment {
    uint64_t step = 0;   // global batches finished
    double seconds = 0;  // since the job started to run
    double unix_seconds = 0;
    double samples_per_step = 0;
    double learning_rate = 0;
    double hidden_share = 0;
    int64_t labels_per_sample = 0;    // that are right or wrong; 0: none, so no accuracy
    std::vector<uint64_t> staleness;  // pulls answered at each lead since the job's start
    uint64_t staleness_max = 0;       // greatest lead since the job's start
  };
  // Adds the point that ends at `moment` and returns it as it is before any merge. Call only when
  // Due.
  CurvePoint Add(const Moment& moment);

  const std::vector<CurvePoint>& points() const { return points_; }
  uint32_t merges() const { return merges_; }

  // Points [first_unsaved, size) are not stored yet. A merge makes all points unsaved.
  size_t first_unsaved() const { return saved_; }
  void MarkSaved() { saved_ = points_.size(); }
  void MarkUnsaved() { saved_ = 0; }

 private:
  void MergeNeighbours();
  void SetStaleness(const Moment& moment, CurvePoint& point);

  const size_t points_max_;
  std::vector<CurvePoint> points_;
  uint32_t merges_ = 0;
  size_t saved_ = 0;

  uint64_t earlier_ = 0;   // see Restore
  uint64_t seen_max_ = 0;  // the greatest lead since the job's start, as of the last point

  // Reported since the last point.
  double loss_sum_ = 0;
  uint64_t samples_ = 0;
  uint64_t correct_ = 0;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CURVES_JOB_CURVE_H_
