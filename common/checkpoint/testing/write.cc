// write FOLDER: writes a checkpoint of two shards there and prints its name, for the test with the
// real package. real_package_test.py expects these values.
#include <cstdio>

#include "common/checkpoint/disk.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"

namespace starling {
namespace {

absl::Status Write(const char* folder) {
  const auto disk = OpenCheckpointDisk(folder);
  if (!disk.ok()) return disk.status();
  const CheckpointId id{0xc0ffee, JobUid(12), 3};
  std::puts(ToString(id).c_str());
  return WriteTinyCheckpoint(**disk, id, /*step=*/27, /*shards=*/2);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write FOLDER\n");
    return 2;
  }
  const absl::Status status = starling::Write(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "write: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
