#include "server/coordinator/explain/steps.h"

#include <algorithm>
#include <utility>

#include "server/coordinator/explain/explain.h"

namespace starling::explain {
namespace {

// Lanes without a micro-batch are in no phase, so means over lanes are too small by the share of
// lanes that were used: phases are scaled to the elapsed time of the units. One part of `push` is
// within units, the rest between them.
double Stretch(const StepTimes& times) {
  const double others =
      times.data() + times.forward() + times.backward() + times.pull() + times.wait();
  const double rest = std::max(0.0, times.total() - others);
  const double phases = others + std::min(rest, times.push());
  return phases > 0 ? std::max(1.0, times.total() / phases) : 1;
}

}  // namespace

std::vector<MeanStep> MeanSteps(const Evidence& evidence) {
  std::vector<MeanStep> steps;
  for (const WorkerEvidence& worker : evidence.workers) {
    const StepTimes& times = worker.times;
    if (!worker.member || times.units() < kUnitsMin || times.samples() == 0) continue;
    const double units = static_cast<double>(times.units());
    const double stretched = Stretch(times) / units;
    MeanStep step;
    step.worker = &worker;
    step.samples = static_cast<double>(times.samples()) / units;
    step.data = times.data() * stretched;
    step.compute = (times.forward() + times.backward()) * stretched;
    step.pull = times.pull() * stretched;
    step.wait = times.wait() * stretched;
    step.push = times.push() / units;
    step.idle = times.idle() / units;
    steps.push_back(step);
  }
  return steps;
}

std::vector<PhaseShare> Phases(const Evidence& evidence) {
  const std::vector<MeanStep> steps = MeanSteps(evidence);
  std::vector<PhaseShare> phases;
  if (steps.empty()) return phases;
  const auto add = [&](const char* name, double MeanStep::*phase) {
    PhaseShare share;
    share.set_phase(name);
    share.set_seconds(MedianOf(steps, [phase](const MeanStep& s) { return s.*phase; }));
    share.set_share(MedianOf(steps, [phase](const MeanStep& s) { return s.*phase / s.total(); }));
    phases.push_back(std::move(share));
  };
  add("data", &MeanStep::data);
  add("compute", &MeanStep::compute);
  add("pull", &MeanStep::pull);
  add("wait", &MeanStep::wait);
  add("push", &MeanStep::push);
  add("idle", &MeanStep::idle);
  return phases;
}

}  // namespace starling::explain
