// The verbs that show a job's curves: metrics, plot.
#include <cmath>
#include <filesystem>
#include <limits>

#include "nlohmann/json.hpp"
#include "tools/cli/curve_series.h"
#include "tools/cli/curve_svg.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Eight points 100 steps apart, a loss that halves, two epochs.
CurvesReply Curves() {
  CurvesReply curves;
  *curves.mutable_status() = Running();
  double loss = 2;
  for (int i = 1; i <= 8; ++i, loss /= 2) {
    CurvePoint* point = curves.add_points();
    point->set_step(100 * i);
    point->set_steps(100);
    point->set_seconds(i);
    point->set_unix_seconds(1000 + i);
    point->set_train_loss(loss);
    point->set_train_accuracy(1 - loss / 4);
    point->set_learning_rate(0.01);
    point->set_samples_per_second(1500 + i);
    point->set_hidden_share(0.5);
    point->set_staleness_max(i % 3);
    point->add_staleness_histogram(10);
  }
  for (const int step : {400, 800}) {
    AddEpoch(curves.mutable_status(), 0.95);
    EpochResult* result =
        curves.mutable_status()->mutable_epochs_done(curves.status().epochs_done_size() - 1);
    result->set_step(step);
    result->set_test_loss(0.25);
  }
  return curves;
}

Series Of(const std::vector<double>& values) {
  Series series{.name = "x", .points = {}};
  for (size_t i = 0; i < values.size(); ++i) series.points.push_back({i + 1, values[i]});
  return series;
}

// ---- Sparklines ----

TEST(Sparkline, IsAsHighAsItsValues) {
  EXPECT_EQ(Sparkline(Of({0, 1, 2, 3, 4, 5, 6, 7}), 8, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline(Of({7, 0}), 2, 2), "█▁");
  EXPECT_EQ(Sparkline(Of({5, 5, 5}), 3, 3), "▁▁▁") << "one value is flat";
}

TEST(Sparkline, ColumnsAreMeansAndGapsRepeatWhatWasBefore) {
  EXPECT_EQ(Sparkline(Of({0, 8, 0, 8, 8, 8}), 6, 3), "▅▅█");
  EXPECT_EQ(Sparkline({.name = "x", .points = {{50, 1}, {100, 0}}}, 100, 6), "  ███▁");
  EXPECT_EQ(Sparkline(Of({}), 10, 5), "");
}

// Forty epochs within the time of two points.
TEST(Series, EachEpochHasAPoint) {
  CurvesReply curves;
  for (int epoch = 1; epoch <= 40; ++epoch) {
    EpochResult* result = curves.mutable_status()->add_epochs_done();
    result->set_step(10 * epoch);
    result->set_train_loss(1.0 / epoch);
  }
  for (const int step : {195, 400}) {
    CurvePoint* point = curves.add_points();
    point->set_step(step);
    point->set_train_loss(0.5);
  }
  const std::vector<SeriesPoint> points = MakeSeries(curves).train_loss.points;
  ASSERT_EQ(points.size(), 40u);
  EXPECT_EQ(points[18].step, 190u);
  EXPECT_EQ(points[19].step, 195u) << "within the twentieth";
  EXPECT_EQ(points[39].step, 400u);
  EXPECT_EQ(points[39].value, 0.5) << "one of the curve, not the epoch's";
}

TEST(Series, TakesWhatIsThereAndIsANumber) {
  CurvesReply curves = Curves();
  curves.mutable_points(2)->clear_train_loss();
  curves.mutable_points(3)->set_train_loss(std::nan(""));
  curves.mutable_status()->mutable_epochs_done(1)->set_evaluated(false);
  const CurveSeries all = MakeSeries(curves);
  EXPECT_EQ(all.train_loss.points.size(), 6u);
  EXPECT_EQ(all.staleness.points.size(), 8u);
  ASSERT_EQ(all.test_accuracy.points.size(), 1u);
  EXPECT_EQ(all.test_accuracy.points[0].step, 400u);
}

// ---- starling metrics ----

TEST_F(CliTest, MetricsDrawsEachCurveWithItsLastValueAndRange) {
  cluster_.curves = {Curves()};
  context_.columns = 58;  // leaves eight for the line, which has at least ten
  EXPECT_EQ(Run({"metrics", "digits"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), StartsWith("digits  RUNNING  ssp(2)  step 812 of 2,345, "));
  EXPECT_THAT(out_.str(),
              AllOf(HasSubstr("\ntrain loss       █▄▂▁▁▁▁▁▁  0.015625  0.015625 to 2\n"),
                    HasSubstr("\ntest accuracy "), HasSubstr("\nlearning rate    "),
                    HasSubstr(" 1,508     1,501 to 1,508\n"), HasSubstr("\nhidden share")));
}

TEST_F(CliTest, MetricsOfAJobWithoutStepsSaysSo) {
  CurvesReply curves;
  *curves.mutable_status() = Running();
  cluster_.curves = {curves};
  EXPECT_EQ(Run({"metrics", "digits"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("no curve yet"));
  cluster_.curves.clear();
  EXPECT_EQ(Run({"metrics", "nothing"}), kExitNotFound);
}

TEST_F(CliTest, MetricsAsJsonHasEveryPoint) {
  cluster_.curves = {Curves()};
  EXPECT_EQ(Run({"metrics", "digits", "-o", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  ASSERT_EQ(json["points"].size(), 8u);
  EXPECT_EQ(json["points"][7]["step"], 800);
  EXPECT_EQ(json["points"][0]["trainLoss"], 2);
  EXPECT_EQ(json["status"]["epochsDone"][1]["step"], 800);
}

TEST_F(CliTest, MetricsWatchesToTheEndInPlace) {
  CurvesReply ended = Curves();
  ended.mutable_status()->set_state(SUCCEEDED);
  context_.terminal = true;
  cluster_.curves = {Curves(), absl::UnavailableError("away"), Curves(), ended};
  EXPECT_EQ(Run({"metrics", "digits", "--watch"}), 0);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("\x1b[10A\x1b[J"), HasSubstr("SUCCEEDED")));
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(3));
  cluster_.curves = {Curves()};
  interrupt_at_ = now_ + absl::Seconds(5);
  EXPECT_EQ(Run({"metrics", "digits", "--watch"}), 0) << "Ctrl-C ends it";
  EXPECT_EQ(Run({"metrics", "digits", "--watch", "-o", "json"}), kExitUsage);
}

TEST_F(CliTest, MetricsWritesEventFiles) {
  cluster_.curves = {Curves()};
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/events/new");
  EXPECT_EQ(Run({"metrics", "digits", "--tensorboard", folder}), 0) << err_.str();
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("wrote 8 points of digits"),
                                HasSubstr("tensorboard --logdir " + folder)));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++files;
    EXPECT_GT(entry.file_size(), 500u);
  }
  EXPECT_EQ(files, 1);
  EXPECT_EQ(Run({"metrics", "digits", "--tensorboard", "/proc/nothing"}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("/proc/nothing"));
}

// ---- starling plot ----

TEST(Axis, TicksAreRoundAndSpanTheRange) {
  EXPECT_THAT(AxisTicks(0, 1),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}));
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0.03, 2.3}, {-5, 5}, {999, 1001}, {1e-9, 3e-9}, {0, 123456789}, {0.1, 0.1000001}}) {
    const std::vector<double> ticks = AxisTicks(low, high);
    EXPECT_LE(ticks.front(), low);
    EXPECT_GE(ticks.back(), high - (high - low) * 1e-6);
    EXPECT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 8u);
  }
  EXPECT_EQ(AxisTicks(3, 3).size(), 1u);
}

std::string Svg(const CurvesReply& curves) { return CurvesSvg(curves); }

size_t Count(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(Svg, DrawsEachCurveAndNeedsNothingFromOutside) {
  const std::string svg = Svg(Curves());
  EXPECT_EQ(Count(svg, "<polyline"), 6u)
      << "loss and accuracy of training and tests, throughput, staleness";
  for (const char* word :
       {"loss", "accuracy", "throughput", "staleness", "bound 2", "digits", "test loss 0.25"}) {
    EXPECT_THAT(svg, HasSubstr(word));
  }
  EXPECT_EQ(Count(svg, "http"), 1u) << "the namespace";
  EXPECT_EQ(Count(svg, "url("), 0u);
  EXPECT_EQ(Count(svg, "<g>"), Count(svg, "</g>"));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf\""))));
}

TEST(Svg, ComparesJobsInOnePicture) {
  std::vector<CurvesReply> jobs = {Curves(), Curves(), Curves()};
  jobs[1].mutable_status()->set_name("wider");
  jobs[2].mutable_status()->set_name("longer");
  const std::string svg = CompareSvg(jobs);
  EXPECT_EQ(Count(svg, "<polyline"), 12u) << "loss, accuracy, throughput and staleness of each";
  for (const char* word : {"digits, wider, longer", "3 jobs", "train loss", "test accuracy",
                           "samples/s", "staleness", "class=\"line third\"", ">longer "}) {
    EXPECT_THAT(svg, HasSubstr(word));
  }
  EXPECT_EQ(Count(svg, "<g>"), Count(svg, "</g>"));
}

TEST(Svg, NamesAreEscaped) {
  CurvesReply curves = Curves();
  curves.mutable_status()->set_name("<script>&\"'\x01");
  const std::string svg = Svg(curves);
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;&quot;&#39; "));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
}

TEST(Svg, WhatAJobDoesNotHaveIsSaid) {
  CurvesReply curves = Curves();
  for (CurvePoint& point : *curves.mutable_points()) point.clear_train_accuracy();
  curves.mutable_status()->clear_epochs_done();
  curves.mutable_status()->set_staleness_bound(std::numeric_limits<uint64_t>::max());
  const std::string svg = Svg(curves);
  EXPECT_EQ(Count(svg, "none yet"), 1u);
  EXPECT_EQ(Count(svg, ">bound "), 0u);
}

TEST_F(CliTest, PlotWritesAPicture) {
  cluster_.curves = {Curves()};
  const std::string file = absl::StrCat(std::getenv("TEST_TMPDIR"), "/curve.svg");
  EXPECT_EQ(Run({"plot", "digits", "-o", file}), 0) << err_.str();
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(), Svg(Curves()));
  EXPECT_EQ(Run({"plot", "digits", "-o", "/dev/full"}), kExitUsage);
  const std::string full = absl::StrCat(std::getenv("TEST_TMPDIR"), "/full.svg");
  std::filesystem::create_symlink("/dev/full", full);
  EXPECT_EQ(Run({"plot", "digits", "-o", full}), kExitError);
  EXPECT_THAT(err_.str(),
              HasSubstr(absl::StrCat("cannot write ", full, ": No space left on device")));
  EXPECT_EQ(Run({"plot", "digits", "-o", "curve.png"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr(".svg"));
  EXPECT_EQ(Run({"plot", "digits", "-o", "/proc/nothing/a.svg"}), kExitError);
  EXPECT_EQ(Run({"plot", "digits", "wider", "-o", file}), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr(" points of digits, wider to "));
  EXPECT_EQ(Run({"plot", "1", "2", "3", "4", "5", "6", "7", "-o", file}), kExitUsage);
  cluster_.curves = {CurvesReply()};
  EXPECT_EQ(Run({"plot", "digits", "-o", file}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("no curve yet"));
}

}  // namespace
}  // namespace starling::cli
