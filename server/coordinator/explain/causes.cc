#include "server/coordinator/explain/causes.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace starling::explain {
namespace {

constexpr Cause kCauses[] = {
    {"failed", "", "the job failed",
     "read `starling logs JOB`, mend what it names, delete the job and submit it again"},
    {"pending", "s",
     "it does not run: shards, workers, its turn or a checkpoint are missing; since when",
     "start or mend what the sentence names"},
    {"recovering", "s",
     "the coordinator has started again and waits for daemons that it has not heard of; since its "
     "start",
     "wait, or start again what the sentence names"},
    {"missing-shard", "s", "a shard that holds a part of the job is silent; since its last report",
     "look at its process and log; when it does not come back in time, its other copies go on, and "
     "a job without them goes back"},
    {"missing-worker", "s", "a worker of the job is silent or was lost; since its last report",
     "look at its process, its log and its network, and start it again with the same `--name`"},
    {"broken-link", "s", "a worker's stream to a shard is down; since it was first reported",
     "check the shard's address from the worker's machine, the firewall between them, and the "
     "shard's log"},
    {"undelivered", "", "a daemon's reports, or the coordinator's orders to it, do not get through",
     "see the log of what the sentence names: a message may pass its limit; restart it when no job "
     "needs "
     "it"},
    {"slow-backup", "s",
     "for 3 s a partition's second copy has not taken what it is sent, and the first waits for it; "
     "since it last did",
     "check the address from the other shard's machine, the firewall between them, and both logs"},
    {"undecided", "s",
     "for 3 s a shard has not reached the one that decides about each step (global clipping, "
     "fp16); "
     "since it was first reported",
     "check the address from the other shard's machine, the firewall between them, and both logs; "
     "where there are second copies, one of them leads after 30 s"},
    {"no-workers", "s", "no worker serves the job; since it began to run, or the last one left",
     "start workers, or see in `starling get workers` what they do"},
    {"preparing", "s", "a worker has been getting ready for long; since it was chosen",
     "see its log: it opens the data, plans memory and connects to the shards"},
    {"no-memory", "", "a worker has no memory for the job, which does without it",
     "see what else takes memory on its machine or GPU, or lower `batch.global`, and try "
     "`starling advise batch`"},
    {"set-aside", "", "a worker cannot serve the job, which does without it",
     "mend what the finding says, and restart that worker"},
    {"not-finite", "",
     "a worker found a loss or gradient that is not finite; another one does the same work, which "
     "tells whether it or the job is to blame",
     "wait; where it is the job, it ends: see its reason"},
    {"quarantined", "",
     "a worker computed what is not finite again and again, where others did not: the job does "
     "without it",
     "check its machine's memory and GPU, and restart it"},
    {"policy-change", "s",
     "workers hold until a change of the policy takes effect; since it was asked for",
     "wait; the worker or shard that the log's last lines do not name is the one that it waits "
     "for"},
    {"no-progress", "s",
     "no step was finished for long, or nothing of an evaluation; since the last one",
     "see the workers' logs and `starling logs JOB`"},
    {"not-replicated", "s",
     "for a minute partitions have had one copy though the job is to have two: a shard's death may "
     "take it back; since when",
     "start another shard, or mend what the sentence names"},
    {"checkpoint-failing", "s",
     "checkpoints fail, or one has been due for a minute, so that ever more would have to be "
     "computed again; since when",
     "mend what the sentence names: the disk, its mount on that shard, or what keeps the job from "
     "its next step"},
    {"went-back", "",
     "both copies of parameters were lost, or values were not finite: the job went back to a "
     "checkpoint, or to its start",
     "mend what the sentence names, and take checkpoints more often if too much was lost"},
    {"slow-worker", "x", "a worker takes longer for a sample than the others; than their median",
     "see what else runs on its machine, and `starling doctor`; replace it, raise the staleness, "
     "or, in BSP, give the job backup workers (`workers.backup`)"},
    {"data-bound", "s", "workers wait for data; in each step",
     "raise `data.loading.threads` and `data.loading.readAheadMiB`, or bring the data nearer"},
    {"saturated-link", "bytes/s", "the link from a worker to a shard is full; what it carries",
     "a larger `batch.global` sends less often, more shards share the load, or use a faster "
     "network (where it is shared memory, more hosts)"},
    {"far-link", "s", "a message between a worker and a shard takes long; there and back",
     "put them nearer to each other, or raise the staleness or `batch.global`, so that computing "
     "hides it"},
    {"hot-partition", "s",
     "one partition takes longer than the others of its shard; for one update",
     "more shards give it a thread of its own; a smaller model layer makes it smaller"},
    {"slow-shard", "s",
     "a shard takes longer for its updates than the other shards; for one update",
     "see what else runs on its machine, and `starling doctor`; move it"},
    {"apply-bound", "s", "shards take long to apply updates; for one update",
     "add shards, or cores to the shards; a larger `batch.global` needs fewer updates"},
    {"shard-queue", "s", "pushes wait for their turn on a shard; one push",
     "add shards, or cores to this one, and see what else runs on its machine"},
    {"push-bound", "s", "pushes are acknowledged late; from a push to its acknowledgement",
     "see the network between workers and shards with `starling doctor`, or raise `batch.global`"},
    {"pull-bound", "s", "values come late; in each step",
     "see the network between workers and shards with `starling doctor`, or raise `batch.global`"},
    {"uneven-shares", "%", "workers have unequal parts of a step, so some wait; lost of their time",
     "let `workers` divide `batch.microBatches`"},
    {"staleness-wait", "s", "workers wait for the one that is behind; in each step",
     "raise the staleness (`starling set JOB consistency=ssp:N`), or see why that one is behind"},
    {"idle", "s", "workers have nothing to compute; in each step",
     "fewer workers do as well; evaluate less often, or raise the number of batches in an epoch"},
};

}  // namespace

absl::Span<const Cause> Causes() { return kCauses; }

const Cause& CauseOf(absl::string_view word) {
  const auto it = std::find_if(std::begin(kCauses), std::end(kCauses),
                               [word](const Cause& cause) { return cause.word == word; });
  STARLING_CHECK(it != std::end(kCauses), "a cause that is not in the table");
  return *it;
}

}  // namespace starling::explain
