// Who works on which item of one pass over the data (one epoch's training, or its evaluation):
// docs/protocol.md, section 5. Pure and deterministic; not thread-safe. Exactly-once does not
// depend on it (an item that two workers finish counts once by its key): it decides who does what,
// and when.
#ifndef STARLING_SERVER_COORDINATOR_LEASES_LEASE_TABLE_H_
#define STARLING_SERVER_COORDINATOR_LEASES_LEASE_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/data_plan/coverage.h"
#include "common/protocol/limits.h"
#include "proto/coordinator.pb.h"

namespace starling {

struct LeaseTableOptions {
  Purpose purpose = TRAIN;
  uint32_t epoch = 0;
  uint64_t items = 0;          // at most kLeaseItemsMax
  uint32_t micro_batches = 1;  // an item is the range [item * micro_batches, + micro_batches)
  absl::Duration ahead = absl::Seconds(30);
  uint32_t items_min = 2;  // granted ahead while speed is unknown, and at least
  uint32_t items_max = limits::kLeasesPerWorkerMax;
  // Training: an item that was reported done, and that shards do not cover for so long, is granted
  // again.
  absl::Duration cover_wait = absl::Seconds(10);
};

// A worker holds `ahead` of work by its own measured speed, within [items_min, items_max], but
// never more than its share, by speed, of what is left. While the speed of a worker is unknown,
// the others hold at most twice what they have done (slow start, RFC 5681, 3.1): else the first
// that is measured would get a block of the pass to itself, and the workers of a job would stand
// at far apart items, which a change of policy has to wait for and a learning rate by item mixes.
// When nothing is free any more, a worker
// that is about to run dry takes the newest leases of the one that would finish last, which keeps
// two. Free items go out in order, those that came back first.
//
// A worker's word ends its own leases alone. What it did in training counts when shards cover it
// (Covered); what it only says is granted again after a while (TakeBack), so that a pass never
// waits for an item that nobody is at. Memory goes with what is held, reported or out of order,
// never with the items of the pass.
class LeaseTable {
 public:
  explicit LeaseTable(const LeaseTableOptions& options);

  // Takes part from now on. `seconds_per_item`: as measured in an earlier pass, if it was. No
  // effect on a worker that is here: then true.
  bool AddWorker(uint32_t worker, absl::Time now, std::optional<double> seconds_per_item);

  // What it holds is free again, to be granted with attempt + 1. Returns how many leases that were.
  uint64_t RemoveWorker(uint32_t worker);

  // Keeps what it holds and gets nothing more, also not by taking it from others.
  void StopGranting(uint32_t worker);

  // After a coordinator's start: the worker says that it holds this lease. Ignored when the lease
  // is of another pass, done, or held by somebody else, and when the worker holds items_max
  // already.
  void Adopt(uint32_t worker, uint64_t lease);

  // The worker has finished these leases. Ignored are those that it does not hold, unless they were
  // taken from it and given to another worker, which is spared them then. Returns how many items
  // became done.
  uint64_t Done(uint32_t worker, absl::Span<const uint64_t> leases, absl::Time now);

  // Evaluation: the item's result is here, whoever holds it.
  void Finished(uint32_t worker, uint64_t item, absl::Time now);

  // Items from `end` on are of another pass: nobody gets them, and who holds one that it has not
  // begun gives it back.
  void SetEnd(uint64_t end);

  // The worker is through with the lease, but there is no result: free again, with attempt + 1.
  // Ignored unless the worker holds exactly this lease.
  void Return(uint32_t worker, uint64_t lease);

  // The items [begin, end) need no (other) worker: their contributions are counted. A holder keeps
  // its lease until it reports it done itself.
  void Covered(uint64_t begin, uint64_t end);

  // Of what was reported done and is not covered after cover_wait, items below `end` are free
  // again, to be granted with attempt + 1. Returns how many. `end`: the coverage of items from here
  // on is not known.
  uint64_t TakeBack(uint64_t end, absl::Time now);
  // Items that were reported done and are not covered yet.
  uint64_t unconfirmed() const { return reported_.size(); }

  // Tops everybody up. True when a worker's leases changed.
  bool Grant();

  // In the order in which the worker should do them.
  std::vector<Lease> Held(uint32_t worker) const;
  uint64_t held_count(uint32_t worker) const;

  // Done: covered and not held, or reported done.
  bool AllDone() const { return done_count() == options_.items; }
  uint64_t done_count() const { return covered_.count() - covered_held_ + reported_.size(); }
  uint64_t DoneEnd() const;  // none from here on
  std::optional<double> SecondsPerItem(uint32_t worker) const;
  const LeaseTableOptions& options() const { return options_; }

 private:
  struct Holding {
    uint64_t item = 0;
    uint32_t attempt = 0;
  };
  struct Worker {
    std::vector<Holding> held;           // in the order granted
    std::map<uint64_t, uint32_t> taken;  // from it, and what it may still finish: item -> attempt
    uint64_t unconfirmed = 0;            // items that it reported done and that are not covered yet
    bool granting = true;
    uint64_t finished = 0;  // items, in this pass
    std::optional<double> seconds_per_item;
    absl::Time busy_since;  // when it last finished something, or got work after having none
  };

  struct Free {
    uint64_t end = 0;
    uint32_t attempt = 0;  // the next one
  };
  struct Reported {
    uint32_t worker = 0;
    uint32_t attempt = 0;
    absl::Time since;
  };

  bool MayEnd(uint32_t worker, uint64_t lease);
  bool End(uint32_t worker, uint64_t item, uint32_t attempt);
  void Measure(uint32_t worker, uint64_t own_items);
  void Confirm(std::map<uint64_t, Reported>::iterator report);
  void GiveBack(const Holding& held);
  void EraseFree(uint64_t begin, uint64_t end);
  bool HasFree();
  bool GrantFree();
  bool TakeFromSlow();
  std::optional<Holding> NextFree();
  double DefaultSeconds() const;
  bool AllMeasured() const;
  uint64_t Target(const Worker& worker, double default_seconds) const;

  const LeaseTableOptions options_;
  std::map<uint32_t, Worker> workers_;
  std::map<uint64_t, Free> free_;          // items that came back, by first; disjoint
  uint64_t end_;                           // items from here on are not granted
  uint64_t next_ = 0;                      // items from here on were never granted
  std::map<uint64_t, uint32_t> holder_;    // item -> worker
  std::map<uint64_t, Reported> reported_;  // done, as its worker says; not covered, and not held
  Coverage covered_;                       // evaluation: done
  uint64_t covered_held_ = 0;              // of these, how many are held
  absl::Time now_;                         // of the last call that said it
};

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_LEASES_LEASE_TABLE_H_
