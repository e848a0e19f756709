// Losses for people: in logs, tables and lines of progress.
#ifndef STARLING_COMMON_BASE_LOSS_TEXT_H_
#define STARLING_COMMON_BASE_LOSS_TEXT_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace starling {

// Four decimals, as "0.1504". A loss that those do not show, or that would take a line, has four
// digits and an exponent: "2.53e-07", "1.234e+38". Also "nan" and "inf". Thread-safe.
std::string LossText(double loss);

// The training loss of an epoch, and if it is over a part of the epoch, over how much of it:
// "0.1504 (of 320 of 400 samples)". "not reported" if nothing was. Thread-safe.
std::string TrainLossText(const EpochResult& result);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_LOSS_TEXT_H_
