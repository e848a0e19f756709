// Which worker works on which item of one pass over the data (one epoch's training, or its
// evaluation): docs/protocol.md, section 5. Pure and deterministic; not thread-safe. Exactly-once
// does not depend on it (an item that two workers finish counts once by its key): the table decides
// which worker does what, and when.
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

namespace starling::coordinator {

struct LeaseTableOptions {
  Purpose purpose = TRAIN;
  uint32_t epoch = 0;
  uint64_t items = 0;          // at most kLeaseItemsMax
  uint32_t micro_batches = 1;  // item i is the range [i * micro_batches, (i + 1) * micro_batches)
  absl::Duration ahead = absl::Seconds(30);
  uint32_t items_min = 2;  // granted ahead while speed is unknown, and at least
  uint32_t items_max = limits::kLeasesPerWorkerMax;
  // Training: an item that was reported done and that shards do not cover for this long is granted
  // again.
  absl::Duration cover_wait = absl::Seconds(10);
};

// A worker holds `ahead` of work by its own measured speed, within [items_min, items_max], but
// never more than its share, by speed, of what is left. While the speed of any worker is unknown,
// the others hold at most twice what they have done (slow start, RFC 5681, 3.1). Otherwise the
// first worker to be measured would get a block of the pass to itself, and the workers of a job
// would be at distant items, which a change of policy has to wait for and which mixes learning
// rates that depend on the item. When nothing is free any more, a worker that is about to run dry
// takes the newest leases of the one that would finish last, which keeps two. Free items are
// granted in order, returned ones first.
//
// A worker's report ends only its own leases. What it did in training counts when shards cover it
// (Covered); what is reported but not covered is granted again after a while (TakeBack), so a pass
// never waits for an item that no worker works on. Memory is proportional to the items held,
// reported or out of order, never to the items of the pass.
class LeaseTable {
 public:
  explicit LeaseTable(const LeaseTableOptions& options);

  // Adds a worker. `seconds_per_item`: as measured in an earlier pass, if it was. No effect on a
  // known worker: returns true.
  bool AddWorker(uint32_t worker, absl::Time now, std::optional<double> seconds_per_item);

  // What it holds becomes free, to be granted with attempt + 1. Returns the number of its leases.
  uint64_t RemoveWorker(uint32_t worker);

  // The worker keeps what it holds and gets nothing more, not even by taking it from others.
  void StopGranting(uint32_t worker);

  // After a coordinator's restart: the worker reports that it holds this lease. Ignored if the
  // lease belongs to another pass, is done or is held by another worker, or if the worker already
  // holds items_max.
  void Adopt(uint32_t worker, uint64_t lease);

  // The worker has finished these leases. A lease that it does not hold is ignored, unless it was
  // taken from it and given to another worker, which then need not do it. Returns how many items
  // became done.
  uint64_t Done(uint32_t worker, absl::Span<const uint64_t> leases, absl::Time now);

  // Evaluation: the item's result has arrived, whichever worker holds it.
  void Finished(uint32_t worker, uint64_t item, absl::Time now);

  // Items from `end` on belong to another pass: they are not granted, and a worker that holds one
  // it has not started returns it.
  void SetEnd(uint64_t end);

  // The worker gives the lease up without a result: free again, with attempt + 1. Ignored unless
  // the worker holds exactly this lease.
  void Return(uint32_t worker, uint64_t lease);

  // The items [begin, end) need no (other) worker: their contributions are counted. A holder keeps
  // its lease until it reports the item done itself.
  void Covered(uint64_t begin, uint64_t end);

  // Items below `end` that were reported done and are not covered after cover_wait become free
  // again, to be granted with attempt + 1. Returns how many. `end`: the coverage of items from here
  // on is unknown.
  uint64_t TakeBack(uint64_t end, absl::Time now);
  // Items that were reported done and are not covered yet.
  uint64_t unconfirmed() const { return reported_.size(); }

  // Tops all workers up. Returns whether any worker's leases changed.
  bool Grant();

  // In the order in which the worker should do them.
  std::vector<Lease> Held(uint32_t worker) const;
  uint64_t held_count(uint32_t worker) const;

  // Done: covered and not held, or reported done.
  bool AllDone() const { return done_count() == options_.items; }
  uint64_t done_count() const { return covered_.count() - covered_held_ + reported_.size(); }
  uint64_t DoneEnd() const;  // no item from here on is done
  std::optional<double> SecondsPerItem(uint32_t worker) const;
  const LeaseTableOptions& options() const { return options_; }

 private:
  struct Holding {
    uint64_t item = 0;
    uint32_t attempt = 0;
  };
  struct Worker {
    std::vector<Holding> held;           // in the order granted
    std::map<uint64_t, uint32_t> taken;  // from it, and still finishable by it: item -> attempt
    uint64_t unconfirmed = 0;            // items that it reported done and that are not covered yet
    bool granting = true;
    uint64_t finished = 0;  // items, in this pass
    std::optional<double> seconds_per_item;
    absl::Time busy_since;  // when it last finished an item, or got work after having none
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

  uint64_t IdOf(const Holding& holding) const;
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
  std::map<uint64_t, Free> free_;          // returned items, by first; disjoint
  uint64_t end_;                           // items from here on are not granted
  uint64_t next_ = 0;                      // items from here on were never granted
  std::map<uint64_t, uint32_t> holder_;    // item -> worker
  std::map<uint64_t, Reported> reported_;  // reported done; not covered and not held
  Coverage covered_;                       // evaluation: done
  uint64_t covered_held_ = 0;              // how many of these are held
  absl::Time now_;                         // of the last call that passed it
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_LEASES_LEASE_TABLE_H_
