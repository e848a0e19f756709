#include "tools/cli/curve_svg.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/cli/curve_series.h"
#include "tools/cli/output.h"

namespace starling::cli {
namespace {

constexpr double kWidth = 960, kHeight = 640, kHeading = 72, kMargin = 24;
constexpr double kAxisLeft = 60, kAxisBottom = 26, kTitleHeight = 26;

constexpr absl::string_view kStyle = R"(<style>
svg { font-family: system-ui, "Helvetica Neue", Arial, sans-serif; font-size: 12px; background: #ffffff; }
text { fill: #3c4454; } .name { font-size: 18px; font-weight: 600; } .title { font-size: 13px; font-weight: 600; }
.grid { stroke: #e3e7ee; stroke-width: 1; } .axis { stroke: #9aa4b5; stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.first { stroke: #2166ac; } .second { stroke: #d6604d; } .bound { stroke: #8a6d00; stroke-dasharray: 5 4; }
.first-dot { fill: #2166ac; } .second-dot { fill: #d6604d; } .bound-text { fill: #8a6d00; }
.third { stroke: #1b7837; } .fourth { stroke: #762a83; } .fifth { stroke: #b35806; } .sixth { stroke: #01665e; }
.third-dot { fill: #1b7837; } .fourth-dot { fill: #762a83; } .fifth-dot { fill: #b35806; } .sixth-dot { fill: #01665e; }
@media (prefers-color-scheme: dark) {
svg { background: #14171d; } text { fill: #c9d1de; } .grid { stroke: #2a303b; } .axis { stroke: #667085; }
.first { stroke: #6baed6; } .second { stroke: #f4a582; } .bound { stroke: #e0c341; }
.first-dot { fill: #6baed6; } .second-dot { fill: #f4a582; } .bound-text { fill: #e0c341; }
.third { stroke: #7fbf7b; } .fourth { stroke: #c2a5cf; } .fifth { stroke: #fdb863; } .sixth { stroke: #5ab4ac; }
.third-dot { fill: #7fbf7b; } .fourth-dot { fill: #c2a5cf; } .fifth-dot { fill: #fdb863; } .sixth-dot { fill: #5ab4ac; }
}
</style>
)";

constexpr const char* kStyles[] = {"first", "second", "third", "fourth", "fifth", "sixth"};

struct Panel {
  std::string title;
  std::vector<const Series*> lines;  // at most as many as there are styles
  std::optional<double> top;         // the axis extends at least to here
  std::optional<double> bound;       // drawn as a dashed line
  bool from_zero = false;
};

struct Box {
  double left, top, right, bottom;
};

struct Scale {
  double from, to, at_from, at_to;
  double operator()(double value) const {
    return to > from ? at_from + (value - from) / (to - from) * (at_to - at_from)
                     : (at_from + at_to) / 2;
  }
};

std::string TickText(double value) {
  const double size = std::fabs(value);
  if (size >= 1e9) return absl::StrFormat("%gG", value / 1e9);
  if (size >= 1e6) return absl::StrFormat("%gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%gk", value / 1e3);
  return absl::StrFormat("%.6g", size < 1e-12 ? 0 : value);
}

std::string Text(double x, double y, const std::string& text, const char* anchor,
                 const char* style = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y,
                         anchor, *style == '\0' ? "" : absl::StrCat(" class=\"", style, "\""),
                         EscapeXml(text));
}

std::string Straight(double x1, double y1, double x2, double y2, const char* style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                         x1, y1, x2, y2, style);
}

// A line, with dots if the points are few enough to tell apart.
std::string Curve(const Series& series, const Scale& x, const Scale& y, const std::string& style) {
  std::string points, dots;
  for (const SeriesPoint& point : series.points) {
    const double px = x(static_cast<double>(point.step)), py = y(point.value);
    absl::StrAppend(&points, points.empty() ? "" : " ", absl::StrFormat("%.1f,%.1f", px, py));
    if (series.points.size() <= 40) {
      absl::StrAppend(
          &dots, absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" class=\"%s-dot\"/>\n",
                                 px, py, style));
    }
  }
  return absl::StrCat("<polyline class=\"line ", style, "\" points=\"", points, "\"/>\n", dots);
}

// The name and last value of each series, from the right.
std::string Legend(const Panel& panel, const Box& box) {
  std::string text;
  double x = box.right;
  const auto add = [&](const Series& series, const char* style) {
    if (series.points.empty()) return;
    const std::string words =
        absl::StrCat(series.name, " ", NumberText(series.points.back().value));
    absl::StrAppend(&text, Text(x, box.top - 10, words, "end"));
    x -= 7.0 * static_cast<double>(words.size()) + 8;
    absl::StrAppend(
        &text, absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"%s-dot\"/>\n", x,
                               box.top - 14, style));
    x -= 16;
  };
  for (size_t i = panel.lines.size(); i-- > 0;) add(*panel.lines[i], kStyles[i]);
  return text;
}

std::pair<double, double> Range(const Panel& panel) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Series* series : panel.lines) {
    for (const SeriesPoint& point : series->points) {
      low = std::min(low, point.value);
      high = std::max(high, point.value);
    }
  }
  if (panel.bound) high = std::max(high, *panel.bound);
  if (panel.top) high = std::max(high, *panel.top);
  if (panel.from_zero) low = std::min(low, 0.0);
  if (low == high) high = low + (low == 0 ? 1 : std::fabs(low) * 0.1);
  return {low, high};
}

std::string Draw(const Panel& panel, const Box& outer, uint64_t last_step) {
  const Box box = {outer.left + kAxisLeft, outer.top + kTitleHeight, outer.right,
                   outer.bottom - kAxisBottom};
  std::string svg = Text(outer.left, outer.top + 14, panel.title, "start", "title");
  const bool empty = std::all_of(panel.lines.begin(), panel.lines.end(),
                                 [](const Series* series) { return series->points.empty(); });
  if (empty) {
    return absl::StrCat(
        svg, Straight(box.left, box.bottom, box.right, box.bottom, "axis"),
        Text((box.left + box.right) / 2, (box.top + box.bottom) / 2, "none yet", "middle"));
  }
  const auto [low, high] = Range(panel);
  const std::vector<double> ticks = AxisTicks(low, high);
  const Scale y = {std::min(low, ticks.front()), std::max(high, ticks.back()), box.bottom, box.top};
  const Scale x = {0, static_cast<double>(last_step), box.left, box.right};
  for (const double tick : ticks) {
    absl::StrAppend(&svg, Straight(box.left, y(tick), box.right, y(tick), "grid"),
                    Text(box.left - 8, y(tick) + 4, TickText(tick), "end"));
  }
  absl::StrAppend(&svg, Straight(box.left, box.bottom, box.right, box.bottom, "axis"));
  for (const double tick : AxisTicks(0, static_cast<double>(last_step))) {
    if (tick > static_cast<double>(last_step)) continue;
    absl::StrAppend(&svg, Straight(x(tick), box.bottom, x(tick), box.bottom + 4, "axis"),
                    Text(x(tick), box.bottom + 18, TickText(tick), "middle"));
  }
  if (panel.bound) {
    absl::StrAppend(&svg, Straight(box.left, y(*panel.bound), box.right, y(*panel.bound), "bound"),
                    Text(box.left + 6, y(*panel.bound) - 5,
                         absl::StrCat("bound ", TickText(*panel.bound)), "start", "bound-text"));
  }
  for (size_t i = 0; i < panel.lines.size(); ++i)
    absl::StrAppend(&svg, Curve(*panel.lines[i], x, y, kStyles[i]));
  return svg + Legend(panel, box);
}

uint64_t LastStep(const CurvesReply& curves, const CurveSeries& all) {
  uint64_t last = 1;
  if (curves.points_size() > 0)
    last = std::max(last, curves.points(curves.points_size() - 1).step());
  if (!all.test_loss.points.empty()) last = std::max(last, all.test_loss.points.back().step);
  return last;
}

// Four panels below a heading.
std::string Picture(const std::string& name, const std::string& words,
                    const std::vector<Panel>& panels, uint64_t last) {
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
      "role=\"img\">\n",
      kWidth, kHeight, kWidth, kHeight);
  absl::StrAppend(&svg, "<title>", EscapeXml(name), "</title>\n", kStyle,
                  Text(kMargin, 32, name, "start", "name"), Text(kMargin, 52, words, "start"));
  const double width = (kWidth - 3 * kMargin) / 2, height = (kHeight - kHeading - 2 * kMargin) / 2;
  for (int i = 0; i < 4; ++i) {
    const double left = kMargin + (i % 2) * (width + kMargin),
                 top = kHeading + (i / 2) * (height + kMargin);
    absl::StrAppend(&svg, "<g>\n", Draw(panels[i], {left, top, left + width, top + height}, last),
                    "</g>\n");
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace

std::string EscapeXml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML allows no other controls
    }
  }
  return out;
}

std::vector<double> AxisTicks(double low, double high) {
  if (!(high > low)) return {low};
  const double power = std::pow(10, std::floor(std::log10((high - low) / 4)));
  double step = power;
  for (const double factor : {1, 2, 5, 10}) {
    step = factor * power;
    if ((high - low) / step <= 5) break;
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step);
  for (int i = 0; i < 12; ++i) {
    ticks.push_back((first + i) * step);
    if (ticks.back() >= high - step * 1e-9) break;
  }
  return ticks;
}

std::string CurvesSvg(const CurvesReply& curves) {
  const CurveSeries all = MakeSeries(curves);
  const JobStatus& status = curves.status();
  std::optional<double> bound;
  if (status.staleness_bound() < 1'000'000'000)
    bound = static_cast<double>(status.staleness_bound());
  return Picture(status.name(),
                 absl::StrCat(JobState_Name(status.state()), ", ", status.policy(), ", step ",
                              CountText(status.step()), " of ", CountText(status.steps()), ", ",
                              DurationText(status.running_seconds())),
                 {{.title = "loss", .lines = {&all.train_loss, &all.test_loss}},
                  {.title = "accuracy", .lines = {&all.train_accuracy, &all.test_accuracy}},
                  {.title = "throughput", .lines = {&all.samples_per_second}, .from_zero = true},
                  {.title = "staleness",
                   .lines = {&all.staleness},
                   .top = 1,
                   .bound = bound,
                   .from_zero = true}},
                 LastStep(curves, all));
}

std::string CompareSvg(const std::vector<CurvesReply>& jobs) {
  std::vector<CurveSeries> all;
  std::vector<std::string> names;
  uint64_t last = 1;
  bool accuracy = false;
  for (const CurvesReply& curves : jobs) {
    all.push_back(MakeSeries(curves));
    names.push_back(curves.status().name());
    last = std::max(last, LastStep(curves, all.back()));
    accuracy = accuracy || !all.back().test_accuracy.points.empty();
  }
  std::vector<Panel> panels = {{.title = "train loss"},
                               {.title = accuracy ? "test accuracy" : "test loss"},
                               {.title = "samples/s", .from_zero = true},
                               {.title = "staleness", .top = 1, .from_zero = true}};
  for (size_t i = 0; i < all.size(); ++i) {
    Series* const series[] = {&all[i].train_loss,
                              accuracy ? &all[i].test_accuracy : &all[i].test_loss,
                              &all[i].samples_per_second, &all[i].staleness};
    for (size_t panel = 0; panel < panels.size(); ++panel) {
      series[panel]->name = names[i];
      panels[panel].lines.push_back(series[panel]);
    }
  }
  return Picture(absl::StrJoin(names, ", "), absl::StrCat(jobs.size(), " jobs, over their steps"),
                 panels, last);
}

}  // namespace starling::cli
