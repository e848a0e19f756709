// A job's curve (proto/coordinator.proto) as TensorBoard events. Tags: loss/train, loss/test,
// accuracy/train, accuracy/test, learning_rate, throughput/samples_per_second,
// throughput/hidden_share, staleness/max, and the histogram staleness.
#ifndef STARLING_COMMON_TENSORBOARD_CURVE_EVENTS_H_
#define STARLING_COMMON_TENSORBOARD_CURVE_EVENTS_H_

#include <optional>

#include "common/tensorboard/event.pb.h"
#include "proto/coordinator.pb.h"

namespace starling::tensorboard {

// One event at the point's last step.
Event PointEvent(const CurvePoint& point);

// Test loss and accuracy at the epoch's last step; nullopt: not evaluated.
std::optional<Event> EpochEvent(const EpochResult& result);

}  // namespace starling::tensorboard

#endif  // STARLING_COMMON_TENSORBOARD_CURVE_EVENTS_H_
