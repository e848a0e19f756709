// starling plot: a job's curves as a picture.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/cli/curve_series.h"
#include "tools/cli/curve_svg.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/verbs.h"

namespace starling::cli {

int RunPlot(const std::vector<std::string>& names, const std::string& file, Client& client,
            Context& context) {
  if (!absl::EndsWith(file, ".svg")) {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("-o: expected a name that ends with .svg, got ", file)),
                context);
  }
  std::vector<CurvesReply> all;
  size_t points = 0;
  for (const std::string& name : names) {
    auto curves = client.Curves(name);
    if (!curves.ok()) return Fail(curves.status(), context);
    if (curves->points_size() == 0) {
      return Fail(absl::FailedPreconditionError(absl::StrCat(
                      "job ", name, " has no curve yet (", JobState_Name(curves->status().state()),
                      "): points come with the first finished steps")),
                  context);
    }
    points += MakeSeries(*curves).train_loss.points.size();
    all.push_back(*std::move(curves));
  }
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << (all.size() == 1 ? CurvesSvg(all[0]) : CompareSvg(all));
  out.close();
  if (!out) {
    return Fail(absl::FailedPreconditionError(
                    absl::StrCat("cannot write ", file, ": ", std::strerror(errno))),
                context);
  }
  context.err << "wrote " << points << " points of " << absl::StrJoin(names, ", ") << " to " << file
              << "\n";
  return kExitOk;
}

}  // namespace starling::cli
