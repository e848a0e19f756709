#!/usr/bin/env python3
"""An independent trainer in float64 that judges the steps that a worker recorded.

    trainer.py RECORD_DIR

RECORD_DIR holds step-000000.safetensors and following, one per step, from the job's first step on:
  param/NAME      the parameter before the step
  input, label    the step's samples, in the order of its micro-batches
  grad/NAME       the step's contribution: for a trainable parameter the gradient of (1/B) * sum of
                  the losses, for a statistic the sum of (n_m/B) * statistic_m over micro-batches
  loss            the mean loss of the step's samples
  metadata        model, optimizer, batch: protobuf JSON; micro_batch_samples: "[32, 32]"; for a
                  cosine schedule also steps, the length of the job; clip if gradients are clipped

At each step it starts from the recorded parameters and computes loss, gradients and the update
itself; the update is compared with the next step's recorded parameters. Momentum, m and v are the
judge's own, fed by its own gradients. Prints the worst errors, and exits with 1 if one is beyond
its bound: loss 1e-5 relative; gradients and parameters 1e-4, relative in norm. A gradient whose
norm is below 1e-6 of all gradients' together is compared with that norm instead: it is zero but for
rounding (the bias of a convolution before a batch norm).

ReLU and max pooling have kinks. Where an input lies within KINK of one, float32 may be on its other
side, and both derivatives are right. Only there, and only in a step that misses otherwise, the
judge takes the side that agrees better. It prints how often.
"""

import glob
import json
import os
import sys

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # before NumPy: spinning threads slow a busy machine

import numpy as np

import network
import optimizer
import proto_json
import safetensors_file

LOSS_BOUND = 1e-5
NORM_BOUND = 1e-4
ZERO_GRADIENT = 1e-6  # relative to the norm of all gradients
KINK = 1e-5  # relative to the root mean square of the operator's input
KINKS_MAX = 64  # tried in one step


class Worst:
    """The greatest error of one kind, and where it occurred."""

    def __init__(self, what, bound):
        self.what, self.bound, self.error, self.where, self.count = what, bound, 0.0, "", 0

    def add(self, error, where):
        self.count += 1
        if not np.isnan(self.error) and not error <= self.error:  # NaN is the worst, and stays
            self.error, self.where = error, where

    def good(self):
        return self.count > 0 and self.error <= self.bound

    def __str__(self):
        verdict = "ok" if self.good() else "MISS" if self.count else "MISS: nothing was compared"
        return (
            f"{self.what}: worst {self.error:.3g} at {self.where}, bound {self.bound:g}, "
            f"{self.count} compared: {verdict}"
        )


def norm(array):
    return float(np.sqrt((array.astype(np.float64) ** 2).sum()))


def relative(found, expected, floor=0.0):
    if found.shape != expected.shape:
        raise ValueError(f"expected shape {expected.shape}, got {found.shape}")
    scale = max(norm(expected), floor)
    difference = norm(found - expected)
    return difference / scale if scale > 0 else (0.0 if difference == 0 else np.inf)


class Step:
    def __init__(self, path):
        self.metadata, self.tensors = safetensors_file.read(path)
        self.parameters = {
            name[6:]: t for name, t in self.tensors.items() if name.startswith("param/")
        }

    def micro_batches(self):
        sizes = json.loads(self.metadata["micro_batch_samples"])
        if sum(sizes) != len(self.tensors["label"]):
            raise ValueError(
                f"micro-batches of {sizes} samples, and {len(self.tensors['label'])} labels"
            )
        begin = 0
        for size in sizes:
            yield self.tensors["input"][begin : begin + size], self.tensors["label"][
                begin : begin + size
            ]
            begin += size


class Judge:
    def __init__(self, first):
        self.net = network.Network(proto_json.loads(first.metadata["model"]))
        clip = proto_json.loads(first.metadata["clip"]) if "clip" in first.metadata else None
        self.optimizer = optimizer.Optimizer(proto_json.loads(first.metadata["optimizer"]), clip)
        self.global_batch = int(proto_json.loads(first.metadata["batch"])["global"])
        self.steps = int(first.metadata["steps"]) if "steps" in first.metadata else None
        self.loss = Worst("loss", LOSS_BOUND)
        self.gradient = Worst("gradient", NORM_BOUND)
        self.parameter = Worst("updated parameter", NORM_BOUND)
        self.crossed = self.crossed_steps = 0

    def judge(self, number, step):
        """Compares loss and gradients; returns the parameters that the update must produce."""
        batches = list(step.micro_batches())
        parts = [
            self.net.contribution(step.parameters, x, labels, self.global_batch)
            for x, labels in batches
        ]
        loss, samples = sum(part[0] for part in parts), sum(len(labels) for _, labels in batches)
        if not 0 < samples <= self.global_batch:
            raise ValueError(
                f"step {number} has {samples} samples, and a global batch {self.global_batch}"
            )
        expected = loss / samples
        self.loss.add(abs(float(step.tensors["loss"]) - expected) / abs(expected), f"step {number}")
        gradients = self.settle(step, batches, [part[1] for part in parts])
        for name, error in self.gradient_errors(step, gradients).items():
            self.gradient.add(error, f"step {number}, {name}")
        rescaled = {name: g * (self.global_batch / samples) for name, g in gradients.items()}
        return self.update(number, step.parameters, rescaled)

    def gradient_errors(self, step, gradients):
        everything = np.sqrt(
            sum(norm(g) ** 2 for n, g in gradients.items() if self.net.kind(n) == "TRAINABLE")
        )
        errors = {}
        for name, expected in gradients.items():
            kind = self.net.kind(name)
            if kind == "FROZEN":
                continue
            floor = ZERO_GRADIENT * everything if kind == "TRAINABLE" else 0.0
            errors[name] = relative(step.tensors[f"grad/{name}"], expected, floor)
        return errors

    def settle(self, step, batches, parts):
        """The sum of the micro-batches' gradients, on the record's side of kinks if it misses
        otherwise."""

        def total(parts):
            return {name: sum(part[name] for part in parts) for name in parts[0]}

        errors = self.gradient_errors(step, total(parts))
        if all(error <= NORM_BOUND for error in errors.values()):
            return total(parts)
        tried, crossed_here = 0, 0
        for m, (x, labels) in enumerate(batches):
            if len(x) == 0:
                continue
            self.net.contribution(step.parameters, x, labels, self.global_batch)
            crossed = []
            for kink in self.net.kinks(KINK)[: KINKS_MAX - tried]:
                tried += 1
                _, part = self.net.contribution(
                    step.parameters, x, labels, self.global_batch, crossed + [kink]
                )
                others = parts[:m] + [part] + parts[m + 1 :]
                crossed_errors = self.gradient_errors(step, total(others))
                if sum(e**2 for e in crossed_errors.values()) < sum(
                    e**2 for e in errors.values()
                ):
                    parts, errors, crossed = others, crossed_errors, crossed + [kink]
            crossed_here += len(crossed)
        self.crossed += crossed_here
        self.crossed_steps += crossed_here > 0
        return total(parts)

    def update(self, number, parameters, gradients):
        def of(kind):
            return {name: parameters[name] for name in gradients if self.net.kind(name) == kind}

        out = self.optimizer.step(of("TRAINABLE"), gradients, number, self.steps) | of("FROZEN")
        for name, value in of("STATISTIC").items():
            momentum = self.net.parameters[name]["statistic_momentum"]
            out[name] = (1 - momentum) * value + momentum * gradients[name]
        return out

    def compare_parameters(self, number, found, expected):
        for name, value in expected.items():
            self.parameter.add(relative(found[name], value), f"step {number}, {name}")

    def verdicts(self):
        return [self.loss, self.gradient, self.parameter]


def run(folder):
    """Judges all recorded steps and returns the judge; each file is read once."""
    paths = sorted(glob.glob(os.path.join(folder, "step-*.safetensors")))
    expected_names = [f"step-{i:06d}.safetensors" for i in range(len(paths))]
    if [os.path.basename(path) for path in paths] != expected_names or len(paths) < 2:
        raise ValueError(
            f"{folder}: expected at least two steps, from step-000000.safetensors on without a gap"
        )
    judge, expected = None, None
    for number, path in enumerate(paths):
        step = Step(path)
        judge = judge or Judge(step)
        if expected is not None:
            judge.compare_parameters(number - 1, step.parameters, expected)
        expected = judge.judge(number, step)
    return judge, len(paths)


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    judge, steps = run(arguments[0])
    print(f"steps={steps} optimizer={judge.optimizer.kind} parameters={len(judge.net.used)}")
    print(f"kinks on whose other side float32 was: {judge.crossed}, in {judge.crossed_steps} steps")
    for worst in judge.verdicts():
        print(worst)
    return 0 if all(worst.good() for worst in judge.verdicts()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
