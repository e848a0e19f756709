"""Updates in float64, as proto/job.proto defines them. Shares no code with the product."""

import math

import numpy as np


def learning_rate(schedule, step, steps):
    """The rate of job step `step`; `steps` is the whole job's length, which only cosine needs."""
    warmup = int(schedule.get("warmup_steps", 0))
    if "step" in schedule:
        every = schedule["step"]
        rate = every.get("initial", 0) * every.get("factor", 0) ** (step // int(every["every_steps"]))
    elif "cosine" in schedule:
        if steps is None:
            raise ValueError("a cosine schedule: the record's metadata must say `steps`, the length of the job")
        peak, floor = schedule["cosine"].get("peak", 0), schedule["cosine"].get("floor", 0)
        progress = min(1, max(0, step - warmup) / (steps - warmup)) if steps > warmup else 0
        rate = floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2
    else:
        rate = schedule.get("constant", 0)
    return rate * (step + 1) / warmup if step < warmup else rate


class Optimizer:
    """Keeps its own slots (momentum, m, v), fed by the judge's own gradients, from the job's step 0 on."""

    def __init__(self, spec):
        self.spec = spec
        self.kind = next(kind for kind in ("sgd", "momentum", "adam", "adamw") if kind in spec)
        self.decay = spec.get("weight_decay", 0)
        self.slots = {}
        self.updates = 0

    def step(self, parameters, gradients, step, steps):
        """The parameters after the update; both arguments are {name: array} of trainable ones."""
        rate = learning_rate(self.spec["learning_rate"], step, steps)
        self.updates += 1
        return {name: self.one(name, w, gradients[name], rate) for name, w in parameters.items()}

    def one(self, name, w, g, rate):
        options = self.spec[self.kind]
        if self.kind != "adamw":
            g = g + self.decay * w
        if self.kind == "sgd":
            return w - rate * g
        if self.kind == "momentum":
            v = options.get("momentum", 0) * self.slots.get(name, 0) + g
            self.slots[name] = v
            return w - rate * v
        beta1, beta2 = options.get("beta1", 0), options.get("beta2", 0)
        m, v = self.slots.get(name, (0, 0))
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        self.slots[name] = m, v
        m_hat, v_hat = m / (1 - beta1**self.updates), v / (1 - beta2**self.updates)
        if self.kind == "adamw":
            w = w - rate * self.decay * w
        return w - rate * m_hat / (np.sqrt(v_hat) + options.get("epsilon", 0))
