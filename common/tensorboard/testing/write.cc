// write FOLDER: writes two event files, as for a job resumed at step 30, for the test with the real
// package. tensorboard/real_package_test.py expects these values.
#include <iostream>

#include "common/tensorboard/curve_events.h"
#include "common/tensorboard/event_file.h"

namespace starling::tensorboard {
namespace {

CurvePoint Point(uint64_t step, double loss) {
  CurvePoint point;
  point.set_step(step);
  point.set_unix_seconds(1000 + static_cast<double>(step));
  point.set_train_loss(loss);
  point.set_train_accuracy(1 - loss / 8);
  point.set_learning_rate(0.001 * static_cast<double>(step));
  point.set_samples_per_second(100.0 * static_cast<double>(step));
  point.set_hidden_share(0.5);
  point.set_staleness_max(2);
  for (const uint64_t count : {uint64_t{5}, uint64_t{0}, step})
    point.add_staleness_histogram(count);
  return point;
}

absl::Status Write(const std::string& folder) {
  absl::Time now = absl::FromUnixSeconds(1000);
  for (const uint64_t start : {0, 30}) {
    auto file = EventFile::Create(folder, start, now);
    if (!file.ok()) return file.status();
    // The first session wrote steps 10 to 40; the second resumes after 20, and writes 30 and 40
    // again.
    for (uint64_t step = start == 0 ? 10 : 30; step <= 40; step += 10) {
      const absl::Status status = (*file)->Append(PointEvent(Point(step, start == 0 ? 1.0 : 0.1)));
      if (!status.ok()) return status;
    }
    EpochResult result;
    result.set_epoch(0);
    result.set_step(start + 10);
    result.set_evaluated(true);
    result.set_test_loss(0.3);
    result.set_test_accuracy(0.9);
    if (absl::Status status = (*file)->Append(*EpochEvent(result)); !status.ok()) return status;
    now += absl::Seconds(5);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace starling::tensorboard

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write FOLDER\n";
    return 2;
  }
  const absl::Status status = starling::tensorboard::Write(argv[1]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
