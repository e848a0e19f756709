#include "tests/sim/seed.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/store.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

// The final values of the seed's first job after so many steps, undisturbed: 0 if there are none.
uint64_t UndisturbedHash(uint64_t seed, uint64_t steps, World* world) {
  ClusterShape solo;
  solo.shards = 1;
  solo.workers = 1;
  solo.faults = false;
  solo.steps = steps;
  Cluster reference(seed, solo);
  reference.Run();
  for (const Violation& v : reference.world().violations())
    world->Violate(v.promise, "solo run: " + v.what);
  return reference.final_hash();
}

// One bit of a tensor of the first file that has one.
void Damage(Random& random, const std::string& checkpoint, MemoryDisk* disk) {
  const auto names = disk->List(checkpoint);
  for (const std::string& name : *names) {
    if (name == kManifestFile) continue;
    std::string bytes = *disk->Get(checkpoint, name);
    uint64_t header = 0;  // safetensors: its length comes first, little-endian
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(bytes[i]);
    const uint64_t data = 8 + header;
    if (data == bytes.size()) continue;
    bytes[data + random.Below(bytes.size() - data)] ^= static_cast<char>(1 << random.Below(8));
    return disk->Put(checkpoint, name, bytes);
  }
}

// The job of one of the checkpoints goes on, on another cluster with another number of shards.
void GoOn(uint64_t seed, const ClusterShape& before, Cluster& first, std::vector<Fault>* faults) {
  World& world = first.world();
  Random random(Mix(seed, 1300));
  const Workload& workload = first.first_workload();
  const bool ends_early = workload.poisoned || workload.spec.stop().wall_time_seconds() > 0 ||
                          workload.overflows_from != std::numeric_limits<uint64_t>::max();
  Source source{first.stored(), "", &workload, nullptr, &first.checkpoints()};
  source.disk->FaultAt(0, DiskFault::kNone);  // one may be left that met no operation
  const auto found = ListCheckpoints(*source.disk);
  std::vector<std::string> ids;
  for (const CheckpointInfo& info : found->whole) {
    if (info.job() == workload.spec.name()) ids.push_back(info.id());
  }
  if (ends_early || ids.empty() || random.Chance(0.3)) return;
  source.checkpoint = ids[random.Below(ids.size())];
  source.truth = first.checkpoints().TruthOf(source.checkpoint);
  source.damaged = random.Chance(0.2) && world.Happens("damaged checkpoint", "disk");
  if (source.damaged) Damage(random, source.checkpoint, source.disk.get());
  ClusterShape shape = before;
  shape.jobs = 1;
  shape.in_turn = false;
  shape.shards = before.shards == 2 ? 3 : static_cast<int>(random.Between(1, 2)) * 2;
  shape.from = &source;
  Workload again = workload;
  again.partitions = random.Chance(0.5) ? 0 : static_cast<uint32_t>(random.Between(1, 3));
  source.workload = &again;
  Cluster second(Mix(seed, 1301), shape);
  second.Run();
  if (!source.damaged) world.Count("jobs that went on from a checkpoint");
  for (const Violation& v : second.world().violations())
    world.Violate(v.promise, absl::StrCat("from ", source.checkpoint, ": ", v.what));
  for (const auto& [what, times] : second.world().counts()) world.Count(what.c_str(), times);
  faults->insert(faults->end(), second.world().faults().begin(), second.world().faults().end());
  world.Trace(second.world().trace(), 0);
  const bool succeeded = second.first_truth() != nullptr && second.first_truth()->succeeded();
  if (source.damaged && succeeded)
    world.Violate(Promise::kGoesOn, "a job went on from a damaged checkpoint");
  if (source.damaged || workload.gradient != GradientKind::kDependent || second.final_hash() == 0)
    return;
  world.Count("jobs that went on, compared with a solo run");
  if (UndisturbedHash(seed, second.final_steps(), &world) == second.final_hash()) return;
  world.Violate(Promise::kGoesOn,
                absl::StrCat("the values of a job that went on from ", source.checkpoint,
                             " are not those of one that never stopped"));
}

}  // namespace

SeedResult RunSeed(uint64_t seed, const std::set<FaultId>* allowed) {
  Random random(Mix(seed, 7));
  ClusterShape shape;
  shape.shards = static_cast<int>(random.Between(2, 3));
  shape.workers = static_cast<int>(random.Between(3, 5));
  shape.jobs = random.Chance(0.2) ? 2 : 1;
  // Draw from their own random numbers.
  if (Random(Mix(seed, 940)).Chance(0.06)) {
    shape.jobs = 4;
    shape.in_turn = true;
  }
  shape.checkpoints = Random(Mix(seed, 945)).Chance(0.4);
  shape.allowed = allowed;
  Cluster cluster(seed, shape);
  cluster.Run();
  World& world = cluster.world();
  if (cluster.first_workload().gradient == GradientKind::kDependent && cluster.final_hash() != 0) {
    world.Count("runs compared with a solo run");
    if (cluster.first_truth()->run().era > 0)
      world.Count("runs that went back, compared with a solo run");
    if (UndisturbedHash(seed, cluster.final_steps(), &world) != cluster.final_hash()) {
      world.Violate(Promise::kG3,
                    "the values are not those of one worker on one shard without faults");
    }
  }
  std::vector<Fault> after;
  if (shape.checkpoints) GoOn(seed, shape, cluster, &after);
  std::vector<Fault> faults = world.faults();
  faults.insert(faults.end(), after.begin(), after.end());
  return {seed,           world.trace(),   world.violations(), world.violated(),
          world.counts(), world.elapsed(), std::move(faults)};
}

}  // namespace starling::sim
