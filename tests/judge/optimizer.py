"""Updates in float64, as proto/job.proto defines them. Shares no code with the product."""

import fnmatch
import math

import numpy as np


def learning_rate(schedule, step, steps):
    """The rate at step `step` of the job; `steps` is the whole job's length, needed by cosine
    only."""
    warmup = int(schedule.get("warmup_steps", 0))
    if "step" in schedule:
        every = schedule["step"]
        rate = every.get("initial", 0) * every.get("factor", 0) ** (
            step // int(every["every_steps"])
        )
    elif "cosine" in schedule:
        if steps is None:
            raise ValueError(
                "a cosine schedule: the record's metadata must say `steps`, the length of the job"
            )
        peak, floor = schedule["cosine"].get("peak", 0), schedule["cosine"].get("floor", 0)
        progress = min(1, max(0, step - warmup) / (steps - warmup)) if steps > warmup else 0
        rate = floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2
    else:
        rate = schedule.get("constant", 0)
    return rate * (step + 1) / warmup if step < warmup else rate


def length(array):
    return float(np.sqrt((array**2).sum()))


def clipped(gradients, clip):
    """Gradients scaled down, each or all together, to the allowed norm."""
    most = clip["norm"]
    if clip["scope"] == "PARAMETER":
        return {
            name: g * min(1, most / length(g)) if length(g) > 0 else g
            for name, g in gradients.items()
        }
    if clip["scope"] != "GLOBAL":
        raise ValueError(f"clip of scope {clip['scope']}: expected PARAMETER or GLOBAL")
    together = math.sqrt(sum(length(g) ** 2 for g in gradients.values()))
    return {
        name: g * min(1, most / together) if together > 0 else g for name, g in gradients.items()
    }


class Optimizer:
    """Keeps its own slots (momentum, h, m, v), fed by the judge's own gradients, from step 0 of the
    job.

    A parameter is one block: no recorded parameter has more elements than a slice.
    """

    KINDS = ("sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb")

    def __init__(self, spec, clip=None):
        self.spec, self.clip = spec, clip
        self.kind = next(kind for kind in self.KINDS if kind in spec)
        self.slots = {}
        self.updates = 0

    def group(self, name, w):
        """The first group that contains the parameter; otherwise a group without settings of its
        own."""
        for group in self.spec.get("groups", []):
            globs = group.get("match", [])
            if (
                any(fnmatch.fnmatchcase(name, glob) for glob in globs)
                or group.get("vectors")
                and w.ndim == 1
            ):
                return group
        return {}

    def step(self, parameters, gradients, step, steps):
        """The parameters after the update. Both arguments are {name: array}; only trainable ones
        change."""
        rate = learning_rate(self.spec["learning_rate"], step, steps)
        self.updates += 1
        gradients = {name: gradients[name] for name in parameters}
        if self.clip is not None:
            gradients = clipped(gradients, self.clip)
        return {name: self.one(name, w, gradients[name], rate) for name, w in parameters.items()}

    def one(self, name, w, g, rate):
        group = self.group(name, w)
        rate = rate * group.get("rate_scale", 1)
        decay = group.get("weight_decay", self.spec.get("weight_decay", 0))
        if self.kind not in ("adamw", "lamb"):
            g = g + decay * w
        if self.kind == "sgd":
            return w - rate * g
        if self.kind in ("momentum", "nesterov"):
            return w - rate * self.velocity(name, g)
        if self.kind == "adagrad":
            return w - rate * self.adapted(name, g)
        direction = self.moments(name, g)
        if self.kind == "adam":
            return w - rate * direction
        direction = direction + decay * w
        if (
            self.kind == "lamb"
            and not group.get("no_trust_ratio")
            and length(w) > 0
            and length(direction) > 0
        ):
            rate = rate * length(w) / length(direction)
        return w - rate * direction

    def velocity(self, name, g):
        momentum = self.spec[self.kind].get("momentum", 0)
        v = self.slots[name] = momentum * self.slots.get(name, 0) + g
        return v if self.kind == "momentum" else g + momentum * v

    def adapted(self, name, g):
        options = self.spec[self.kind]
        h = self.slots[name] = self.slots.get(name, options.get("initial_accumulator", 0)) + g * g
        return g / (np.sqrt(h) + options.get("epsilon", 0))

    def moments(self, name, g):
        options = self.spec[self.kind]
        beta1, beta2 = options.get("beta1", 0), options.get("beta2", 0)
        m, v = self.slots.get(name, (0, 0))
        m, v = self.slots[name] = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**self.updates), v / (1 - beta2**self.updates)
        return m_hat / (np.sqrt(v_hat) + options.get("epsilon", 0))
