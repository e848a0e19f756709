// A job's curve (server/coordinator/curves): when a point is made, what it contains, how it is
// stored. The curve is stored at every cut, at the job's end, and every few seconds in between. A
// crash loses the points of the last seconds, and the next point spans them.
#include <algorithm>
#include <utility>

#include "common/data_plan/job_steps.h"
#include "common/graph/graph.h"
#include "common/schedule/learning_rate.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kCurveSavePeriod = absl::Seconds(5);
constexpr size_t kCurveChunkPoints = 64;  // in one record

uint32_t Chunks(size_t points) {
  return static_cast<uint32_t>((points + kCurveChunkPoints - 1) / kCurveChunkPoints);
}

}  // namespace

void Core::On(const event::Curves& event) {
  const Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  CurvesReply reply;
  *reply.mutable_status() = StatusOf(*job, event.brief ? Epochs::kTested : Epochs::kAll);
  for (const CurvePoint& point : job->curve.points()) *reply.add_points() = point;
  Reply(event.call, std::move(reply));
}

// The point of the job's last step is made at the job's end, when the last losses have arrived.
void Core::AdvanceCurve(Job& job, bool last) {
  if (!job.running() || job.state.started_us() == 0) return;
  const bool trained = job.state.epoch() >= job.epochs();
  const bool cut_seen = job.last_cut != absl::Time();
  const absl::Time until =
      last && trained && cut_seen ? job.last_cut : now_;  // an evaluation may have followed
  const double seconds = RunningSeconds(job) - absl::ToDoubleSeconds(now_ - until);
  if (!last && !job.curve.Due(job.steps() + 1, seconds, false)) return;  // fast path
  const uint64_t step = StepsDone(job);
  if (!last && step == job.steps()) return;
  if (!job.curve.Due(step, seconds, last)) return;
  const absl::Time at = wall() - (now_ - until);
  const CurvePoint point = job.curve.Add(CurveMoment(job, step, seconds, at));
  TellCurve(job, &point, nullptr);
  if (now_ - job.curve_saved >= kCurveSavePeriod) SaveCurve(job);
}

JobCurve::Moment Core::CurveMoment(Job& job, uint64_t step, double seconds, absl::Time wall) const {
  JobCurve::Moment moment;
  moment.step = step;
  moment.seconds = seconds;
  moment.unix_seconds = absl::ToDoubleSeconds(wall - absl::UnixEpoch());
  const uint64_t epoch_steps = std::max<uint64_t>(1, job.epoch_steps());
  moment.samples_per_step = static_cast<double>(job.samples()) / static_cast<double>(epoch_steps);
  const auto rate = LearningRate::Make(job.spec().optimizer().learning_rate(), job.steps());
  if (rate.ok()) moment.learning_rate = rate->At(static_cast<int64_t>(step) - 1);
  if (!job.labels_per_sample) job.labels_per_sample = JudgedLabels(job.spec().model());
  moment.labels_per_sample = *job.labels_per_sample;
  JobStatus status;
  AddWorkerMetrics(job, status);
  moment.hidden_share = status.hidden_share();
  AddReported(job, status);
  moment.staleness.assign(status.lag_histogram().begin(), status.lag_histogram().end());
  moment.staleness_max = status.staleness_max();
  return moment;
}

void Core::SaveCurve(Job& job) {
  job.curve_saved = now_;
  const std::vector<CurvePoint>& points = job.curve.points();
  if (job.curve.first_unsaved() == points.size()) return;
  if (job.loss) job.state.set_train_loss(*job.loss);
  SaveState(job);  // with the points' running time, so that later points come after it
  const uint32_t chunks = Chunks(points.size());
  for (auto chunk = static_cast<uint32_t>(job.curve.first_unsaved() / kCurveChunkPoints);
       chunk < chunks; ++chunk) {
    StoredCurve stored;
    stored.set_merges(job.curve.merges());
    const size_t begin = chunk * kCurveChunkPoints;
    const size_t end = std::min(points.size(), begin + kCurveChunkPoints);
    for (size_t i = begin; i < end; ++i) *stored.add_points() = points[i];
    Put(records::JobCurve(job.uid(), chunk), stored.SerializeAsString());
  }
  for (uint32_t chunk = chunks; chunk < job.curve_chunks; ++chunk)
    Delete(records::JobCurve(job.uid(), chunk));
  job.curve_chunks = chunks;
  job.curve.MarkSaved();
}

void Core::DeleteCurve(const Job& job) {
  for (uint32_t chunk = 0; chunk < job.curve_chunks; ++chunk)
    Delete(records::JobCurve(job.uid(), chunk));
}

void Core::RestoreCurve(Job& job, std::map<uint32_t, StoredCurve> chunks) {
  std::vector<CurvePoint> points;
  uint32_t merges = 0;
  for (auto& [number, chunk] : chunks) {
    for (CurvePoint& point : *chunk.mutable_points()) points.push_back(std::move(point));
    merges = std::max(merges, chunk.merges());
    job.curve_chunks = number + 1;
  }
  job.curve.Restore(std::move(points), merges, job.first_step());
  if (!job.curve.points().empty()) job.curve_session = job.curve.points().back().step() + 1;
}

// ---- Event files ----

void Core::TellCurve(const Job& job, const CurvePoint* point, const EpochResult* result,
                     bool over) {
  if (job.spec().tensorboard().empty()) return;
  CurveNews news;
  news.job = job.uid();
  news.folder = job.spec().tensorboard();
  news.session_step = job.curve_session;
  news.era = job.run().era();
  if (point != nullptr) news.point = *point;
  if (result != nullptr) news.result = *result;
  news.over = over;
  curve_news_.push_back(std::move(news));
}

// After a start, the files' results after the last stored point are void, so they are written
// again.
void Core::TellCurveAgain(const Job& job) {
  for (const auto& [epoch, result] : job.results) {
    if (job.running() && result.evaluated() && result.step() >= job.curve_session)
      TellCurve(job, nullptr, &result);
  }
}

}  // namespace starling::coordinator
