// What the coordinator knows of a daemon. Internal to this folder.
#ifndef STARLING_SERVER_COORDINATOR_CORE_DAEMON_H_
#define STARLING_SERVER_COORDINATOR_CORE_DAEMON_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/views.h"
#include "server/coordinator/explain/window.h"

namespace starling::coordinator {

struct Job;

inline bool SameRun(const Run& a, const Run& b) {
  return a.job_uid() == b.job_uid() && a.era() == b.era();
}

struct ParkedCall {  // a held report: answered when there is news
  CallId call;
  absl::Time until;
  uint64_t orders_seen = 0;
};

// The latest orders for a job. Its description, views and roster are left out for a daemon that has
// seen them, so each of these parts has the version in which it last changed.
class Told {
 public:
  // Whether these are the orders for `job` (null: for none). `rest`: the parts that are never left
  // out, serialized.
  bool Is(const Job* job, const std::string& rest) const;
  // `described`: the daemon has the job's description from the previous coordinator.
  void Tell(const Job* job, std::string rest, uint64_t version, bool described);
  const Run& run() const { return run_; }
  uint64_t version() const { return version_; }
  bool ViewsUnseen(uint64_t seen) const { return views_at_ > seen; }
  // The oldest version of a part that a daemon at version `seen` lacks.
  uint64_t OldestUnseen(uint64_t seen) const;
  // Adds the description and the roster if the daemon lacks them.
  template <typename Orders>
  void AddUnseen(const Job& job, uint64_t seen, bool described, Orders& orders) const;

 private:
  Run run_;
  uint64_t views_ = 0, roster_ = 0;  // numbers
  std::string rest_;
  uint64_t described_at_ = 0, views_at_ = 0, roster_at_ = 0, version_ = 0;
};

struct Daemon {
  StoredDaemon stored;    // durable
  bool heard = false;     // in this generation
  absl::Time last_heard;  // while awaited: the coordinator's start
  bool awaited = false;   // it has not come since the coordinator's start: calls may reach it
  uint64_t sequence = 0;  // of the last accepted report
  uint64_t orders_version = 0;
  std::optional<ParkedCall> parked;

  uint32_t id() const { return stored.id(); }
  const std::string& name() const { return stored.registration().name(); }
  bool fenced() const { return stored.fenced(); }
  bool left() const { return stored.left(); }
  bool live() const { return heard && !fenced(); }
};

struct Worker : Daemon {
  WorkerReport report;                      // the last accepted one
  Told told;                                // the content of orders_version
  std::map<uint64_t, uint64_t> inspect_at;  // by request: the version that first had it
  uint64_t job = 0;                         // the job that it is ordered to serve; 0: none
  uint64_t member_of = 0;                   // the job whose roster has it; 0: none
  // From hold_version on, the orders tell the worker to start no work of its job until the step of
  // this policy is decided. 0: they do not.
  uint64_t hold_policy = 0;
  uint64_t hold_version = 0;
  uint64_t ordered_at = 0;   // grows with each order: the largest one joined its job last
  absl::Time release_since;  // when it was last ordered to a job, or to none
  Run counted;               // what `counters` belong to
  explain::Window<explain::WorkerCounters> counters;
  std::map<uint32_t, absl::Time> links_down;  // by shard: since when
  // Shards that others reach and it does not: for how long, up to its report of then.
  std::map<uint32_t, absl::Duration> cut_off;
  absl::Time cut_off_at = absl::InfinitePast();
  // Why this incarnation is set aside for a job.
  struct Aside {
    uint32_t era = 0;                            // of the job
    uint64_t at = 0;                             // when, on the scale of ordered_at
    Fault::Kind kind = Fault::KIND_UNSPECIFIED;  // unspecified: it made no progress
    std::string why;
    bool ask_again = false;                      // once it is idle, since the cause may be gone
    absl::Time ask_at = absl::InfiniteFuture();  // sets ask_again
    int times = 0;                               // how often it was set aside without progress
    bool quarantined = false;                    // in later eras, too
  };
  std::map<uint64_t, Aside> aside;  // by job
  bool slow_to_look = false;        // its last inspection of data took too long
  bool quarantined() const { return !stored.quarantine().empty(); }
  bool releasing() const { return member_of != 0 && job != member_of; }
  bool idle() const {
    return live() && job == 0 && member_of == 0 && !report.draining() &&
           report.run().job_uid() == 0;
  }
};

struct Shard : Daemon {
  std::optional<uint64_t> memory_room;         // bytes, as it last reported
  uint64_t named_by = 0;                       // views of kept jobs that name any incarnation of it
  uint64_t partitions = 0;                     // those of these views that name this incarnation
  uint64_t elements = 0;                       // in those partitions
  uint64_t planned_bytes = 0;                  // for those partitions
  std::string trouble;                         // see ShardReport
  absl::Time reported = absl::InfinitePast();  // when the last report came; not shifted by pauses
  absl::Time report_by = absl::InfiniteFuture();   // heartbeats after that do not count
  absl::Time steady_since = absl::InfinitePast();  // when it was heard again after a silence

  absl::Time since;               // when it registered, or the coordinator started
  uint64_t checkpoint_nonce = 0;  // as it last reported, like the next
  std::string checkpoint_error;
  absl::Time checkpoint_moved = absl::InfinitePast();  // when a part of a checkpoint came further

  std::map<uint64_t, Told> told;         // by uid: jobs that the shard has not ended
  std::map<uint64_t, uint64_t> changed;  // uids by Told::version
  std::map<uint64_t, Run> dropped;       // by version, until the shard has seen that version
  // What it last reported to hold. `whole`: it has reported everything since this coordinator's
  // start.
  std::map<uint64_t, HeldJob> held;
  bool whole = false;
  uint64_t value_bytes = 0;  // sum over `held`

  // Somebody's connection to it broke, and it is asked whether it lives: see silence.cc.
  struct Suspicion {
    std::string why;
    uint64_t question;                      // the first one
    absl::Time until;                       // of the last question
    std::optional<absl::Time> asked_again;  // when
  };
  std::optional<Suspicion> suspicion;
  absl::Time trusted_until = absl::InfinitePast();  // it is not asked again before
  struct Trust {
    absl::Time until;
    absl::Duration time;
  };
  std::map<std::string, Trust> trusted;  // by why it was asked, and has answered
  // Why it would have been asked if it were not trusted, and since when. Void once it is heard.
  std::string doubt;
  absl::Time doubted;
  std::string
      absent;  // why it does not answer: what has another copy goes on there; empty: it does

  // Of a shard that was asked to stop: see drain.cc.
  bool draining = false;      // as it last reported, like the next
  bool copies_ended = false;  // see ShardReport
  DrainOrders drain;          // as it was last told
  // Jobs and partitions that went elsewhere, and have no second copy there yet.
  std::set<std::pair<uint64_t, uint32_t>> handed_over;
  absl::Time drain_at;  // when it is looked at next
  // Jobs that are over are looked at in passes: when the next part of one is due, and the job that
  // it begins with.
  struct JobsPass {
    absl::Time at = absl::InfinitePast();
    uint64_t from = 0;
  };
  JobsPass silent_pass, drain_pass;
  // Such jobs, of a shard that drains: see drain_ended.cc.
  struct EndedCount {
    uint64_t here = 0;     // with values that have no whole copy elsewhere
    uint64_t fixed = 0;    // the same, and they cannot be copied
    uint64_t bytes = 0;    // of those that can
    bool results = false;  // some are results: see Archived
    std::string job, why;  // of one that can
  };
  EndedCount ended, ended_next;  // of the last whole pass, and of the one under way
  bool ended_counted = false;    // none is under way, and there was one
  uint64_t ended_seen = 0;       // of Core::ended_changes_, by the last pass

  // This incarnation, as views name it.
  ShardAt at() const { return {id(), stored.incarnation(), stored.registration().address()}; }
  bool leads(const View& view) const {
    return view.primary() == id() && view.primary_incarnation() == stored.incarnation();
  }
  bool backs(const View& view) const {
    return view.backup() == id() && view.backup_incarnation() == stored.incarnation();
  }
  bool hosts(const View& view) const { return leads(view) || backs(view); }
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_DAEMON_H_
