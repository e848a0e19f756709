"""What two copies of each update cost, from the turns of tools/bench/replication.py. Pure."""

import statistics
from dataclasses import dataclass

NONE, REPLICATED, TCP = "none", "replicated", "tcp"
GB = 1e9


@dataclass(frozen=True)
class Turn:
    """What one contender did: bytes that are acknowledged, or received."""

    bytes: int
    seconds: float
    cpu_seconds: float  # of all its processes

    @property
    def rate(self):
        """GB/s."""
        return self.bytes / GB / self.seconds

    @property
    def cost(self):
        """CPU seconds per GB."""
        return self.cpu_seconds / (self.bytes / GB)

    @property
    def cores(self):
        """How many processors were busy with it, on average."""
        return self.cpu_seconds / self.seconds


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarize(rounds):
    """`rounds`: a map from contender to its turn, for each. Ratios are of turns of one round."""
    return {
        "rounds": len(rounds),
        "rate": {who: spread([turns[who].rate for turns in rounds]) for who in rounds[0]},
        "cost": {who: spread([turns[who].cost for turns in rounds]) for who in rounds[0]},
        "cores": {who: spread([turns[who].cores for turns in rounds]) for who in rounds[0]},
        "rate_ratio": spread([t[REPLICATED].rate / t[NONE].rate for t in rounds]),
        "cost_ratio": spread([t[REPLICATED].cost / t[NONE].cost for t in rounds]),
        "of_tcp": spread([t[NONE].rate / t[TCP].rate for t in rounds]),
    }


def words(values, digits=2):
    return "{median:.{d}f} ({min:.{d}f} to {max:.{d}f})".format(**values, d=digits)


def table(summary):
    """The summary as lines of text."""
    lines = [f"{'':12}{'GB/s stored':>25}{'CPU s per GB':>25}{'processors busy':>25}"]
    for who in (NONE, REPLICATED, TCP):
        lines.append(
            f"{who:12}"
            + "".join(f"{words(summary[what][who], 3):>25}" for what in ("rate", "cost", "cores"))
        )
    return lines
