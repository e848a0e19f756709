"""What contenders of a bench did in their turns, and tables of it. Pure."""

import statistics
from dataclasses import dataclass

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
    """`rounds`: a map from contender to its turn, for each."""
    summary = {"rounds": len(rounds)}
    for what in ("rate", "cost", "cores"):
        summary[what] = {who: spread([getattr(t[who], what) for t in rounds]) for who in rounds[0]}
    return summary


def ratio(rounds, what, who, to):
    """Of turns of one round. `what`: rate or cost."""
    return spread([getattr(turns[who], what) / getattr(turns[to], what) for turns in rounds])


def words(values, digits=2):
    return "{median:.{d}f} ({min:.{d}f} to {max:.{d}f})".format(**values, d=digits)


def table(summary):
    """The summary as lines of text."""
    lines = [f"{'':12}{'GB/s':>25}{'CPU s per GB':>25}{'processors busy':>25}"]
    for who in summary["rate"]:
        lines.append(
            f"{who:12}"
            + "".join(f"{words(summary[what][who], 3):>25}" for what in ("rate", "cost", "cores"))
        )
    return lines
