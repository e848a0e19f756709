"""The marked phase of tools/chaos.sh: both copies of a partition are killed at once.

Their job goes back to its last checkpoint, once and by itself, and still counts every sample
exactly once. What was acknowledged behind the checkpoint is done again, so the phase is judged
apart from the other faults. It has a cluster of its own, all of whose daemons see one folder.
"""

import random
import time

from tests.e2e.cluster import Cluster, floats, job_file, wait_until
from tests.e2e.long_jobs import BATCH, SAMPLES, WORKER_FLAGS, miscounts

EPOCHS = 40
RULE = {"everySteps": 60, "keep": 2}
DOWN_MAX = 3.0  # seconds from the kills until both shards are started again
JOB = "double"
PROMISE = "both copies of a partition die: exactly one rollback, and each sample counts once"


def submit(cluster):
    job = job_file(
        JOB,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": SAMPLES}}},
        consistency={"ssp": {"staleness": 2}},
        batch={"global": BATCH, "microBatches": 4},
        workers={"min": 1, "max": 3},
        optimizer={"sgd": {"learningRate": 1}},
        stop={"epochs": EPOCHS},
        durability="replicated",
    )
    job["spec"]["checkpoint"] = RULE
    cluster.submit(job)


def both_shards(cluster, chance):
    """The names of the shards with the two copies of one partition."""
    names = {shard["id"]: shard["name"] for shard in cluster.get("shards")}
    view = chance.choice(cluster.describe_all(JOB)["views"])
    return view.get("partition", 0), [names[view["primary"]], names[view["backup"]]]


def run(seed, say, shards=3, workers=3):
    """What happened."""
    chance = random.Random(f"{seed} double")
    with Cluster(
        shards=shards, workers=workers, worker_flags=WORKER_FLAGS, checkpoints=True
    ) as cluster:
        submit(cluster)
        cluster.wait_whole(JOB)
        wait_until(
            lambda: "last" in cluster.describe(JOB).get("checkpoint", {}), 120, "a checkpoint"
        )
        partition, pair = both_shards(cluster, chance)
        say(f"double fault: kill -9 {pair[0]} and {pair[1]}, the copies of partition {partition}")
        begin = time.monotonic()
        for shard in pair:
            cluster.kill(shard)
        time.sleep(chance.uniform(0, DOWN_MAX))
        for shard in pair:
            cluster.start_shard(shard)
        wait_until(
            lambda: cluster.describe(JOB).get("restarts", 0) > 0
            and cluster.describe(JOB)["state"] != "PENDING",
            120,
            "the job to go back",
        )
        seconds = time.monotonic() - begin
        say(f"it runs again, {seconds:.1f} s later: {cluster.describe(JOB)['lastRestart']}")
        cluster.wait(JOB, 600)
        status = cluster.describe(JOB)
        result = {
            "job": JOB,
            "state": status["state"],
            "restarts": status.get("restarts", 0),
            "seconds": round(seconds, 1),
        }
        if status["state"] == "SUCCEEDED":
            rows = floats(cluster.export(JOB)["counter"])
            result["lost"], result["twice"] = miscounts(rows, EPOCHS)
        else:
            result["reason"] = status["reason"]
        cluster.keep = not promise(result)[2]
        return result


def promise(result):
    """(promise, what was found, whether it held)."""
    exact = (result.get("lost"), result.get("twice")) == (0, 0)
    return (
        PROMISE,
        ", ".join(f"{key} {value}" for key, value in result.items()),
        result["state"] == "SUCCEEDED" and result["restarts"] == 1 and exact,
    )
