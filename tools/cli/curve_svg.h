// A job's curves as one picture. Pure.
#ifndef STARLING_TOOLS_CLI_CURVE_SVG_H_
#define STARLING_TOOLS_CLI_CURVE_SVG_H_

#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling::cli {

inline constexpr int kPlotJobsMax = 6;  // as many as there are colours

// Loss, accuracy, throughput and staleness over steps, as a self-contained SVG: no external font,
// script or style. Dark in viewers with a dark theme. Texts are escaped.
std::string CurvesSvg(const CurvesReply& curves);

// Train loss, test accuracy (test loss if no job has one), throughput and staleness of several
// jobs, one colour per job. At most kPlotJobsMax jobs.
std::string CompareSvg(const std::vector<CurvesReply>& jobs);

// About 2 to 7 round numbers (1, 2 or 5 times a power of ten apart) that span [low, high]; low <=
// high, finite.
std::vector<double> AxisTicks(double low, double high);

std::string EscapeXml(const std::string& text);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_CURVE_SVG_H_
