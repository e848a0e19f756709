"""trainer.py passes records that are right within float32 and fails each kind of wrong one.

The records are made here with float32 parameters and the updates written out plainly.
"""

import contextlib
import io
import json
import os
import tempfile
import unittest
import unittest.mock

import numpy as np

import network
import optimizer
import safetensors_file
import trainer

GRAPH = {
    "input": {"name": "input", "shape": ["1", "6", "6"]},
    "parameters": [
        {"name": "c.weight", "kind": "TRAINABLE"},
        {"name": "n.weight", "kind": "TRAINABLE"},
        {"name": "n.bias", "kind": "TRAINABLE"},
        {"name": "n.mean", "kind": "STATISTIC", "statistic_momentum": 0.1},
        {"name": "n.var", "kind": "STATISTIC", "statistic_momentum": 0.1},
        {"name": "l.weight", "kind": "TRAINABLE"},
        {"name": "l.bias", "kind": "TRAINABLE"},
    ],
    "nodes": [
        {
            "name": "c",
            "op": "conv2d",
            "inputs": ["input"],
            "parameters": ["c.weight"],
            "attributes": {"kernel": {"i": "3"}, "out_channels": {"i": "4"}, "bias": {"i": "0"}},
        },
        {
            "name": "n",
            "op": "batchnorm",
            "inputs": ["c"],
            "parameters": ["n.weight", "n.bias", "n.mean", "n.var"],
        },
        {"name": "r", "op": "relu", "inputs": ["n"]},
        {
            "name": "p",
            "op": "maxpool2d",
            "inputs": ["r"],
            "attributes": {"kernel": {"ints": {"values": ["2", "2"]}}},
        },
        {"name": "f", "op": "flatten", "inputs": ["p"]},
        {"name": "l", "op": "linear", "inputs": ["f"], "parameters": ["l.weight", "l.bias"]},
        {"name": "loss", "op": "softmax_cross_entropy", "inputs": ["l", "labels"]},
    ],
    "logits": "l",
    "classes": "3",
}
SHAPES = {
    "c.weight": (4, 1, 3, 3),
    "n.weight": (4,),
    "n.bias": (4,),
    "n.mean": (4,),
    "n.var": (4,),
    "l.weight": (3, 16),
    "l.bias": (3,),
}
ADAMW = {
    "adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "weight_decay": 0.01,
    "learning_rate": {"constant": 0.01},
}


def plain_update(kind, w, g, slots, t, rate=0.01):
    """One step, written out independently."""
    if kind == "sgd":
        return w - rate * g
    if kind == "momentum":
        slots["v"] = 0.9 * slots.get("v", 0) + g
        return w - rate * slots["v"]
    if kind == "nesterov":
        slots["v"] = 0.9 * slots.get("v", 0) + g
        return w - rate * (g + 0.9 * slots["v"])
    if kind == "adagrad":
        slots["h"] = slots.get("h", 0.5) + g * g
        return w - rate * g / np.sqrt(slots["h"])
    slots["m"] = 0.9 * slots.get("m", 0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0) + 0.001 * g * g
    if kind == "lamb":
        r = (slots["m"] / (1 - 0.9**t)) / (
            np.sqrt(slots["v"] / (1 - 0.999**t)) + 1e-8
        ) + 0.01 * w
        return w - rate * np.linalg.norm(w) / np.linalg.norm(r) * r
    w = w * (1 - rate * 0.01)
    return w - rate * (slots["m"] / (1 - 0.9**t)) / (
        np.sqrt(slots["v"] / (1 - 0.999**t)) + 1e-8
    )


def record(folder, spec, kind, steps=6, spoil=None):
    """Records a training run; `spoil(number, tensors)` may change what is written."""
    random = np.random.default_rng(1)
    net = network.Network(GRAPH)
    parameters = {n: random.standard_normal(s).astype(np.float32) * 0.3 for n, s in SHAPES.items()}
    parameters["n.var"] = np.ones(4, np.float32)
    slots = {name: {} for name in SHAPES}
    for number in range(steps):
        sizes = [4, 4, 4, 4] if number % 3 != 2 else [4, 3, 0, 0]  # an occasional short step
        n = sum(sizes)
        x = random.standard_normal((n, 1, 6, 6)).astype(np.float32)
        labels = random.integers(0, 3, n).astype(np.int32)
        loss, gradients, begin = 0.0, {name: 0.0 for name in SHAPES}, 0
        for size in sizes:
            part = slice(begin, begin + size)
            one, g = net.contribution(
                {k: v.astype(float) for k, v in parameters.items()},
                x[part].astype(float),
                labels[part],
                16,
            )
            loss, begin = loss + one, begin + size
            gradients = {name: gradients[name] + g[name] for name in SHAPES}
        tensors = {f"param/{k}": v for k, v in parameters.items()}
        tensors |= {f"grad/{k}": v.astype(np.float32) for k, v in gradients.items()}
        tensors |= {"input": x, "label": labels, "loss": np.array(loss / n)}
        if spoil is not None:
            spoil(number, tensors)
        metadata = {
            "model": json.dumps(GRAPH),
            "optimizer": json.dumps(spec),
            "batch": json.dumps({"global": 16, "micro_batches": 4}),
            "micro_batch_samples": json.dumps(sizes),
        }
        safetensors_file.write(
            os.path.join(folder, f"step-{number:06d}.safetensors"), metadata, tensors
        )
        for name, w in parameters.items():
            g = gradients[name] * 16 / n
            if net.kind(name) == "STATISTIC":
                w = 0.9 * w + 0.1 * g
            else:
                w = plain_update(kind, w, g, slots[name], number + 1)
            parameters[name] = w.astype(np.float32)


class Trainer(unittest.TestCase):
    def judge(self, spec=None, kind="adamw", **options):
        with tempfile.TemporaryDirectory() as folder:
            record(folder, spec or ADAMW, kind, **options)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = trainer.main([folder])
            return status, out.getvalue()

    def test_good_records(self):
        sgd = {"sgd": {}, "learning_rate": {"constant": 0.01}}
        momentum = {"momentum": {"momentum": 0.9}, "learning_rate": {"constant": 0.01}}
        nesterov = {"nesterov": {"momentum": 0.9}, "learning_rate": {"constant": 0.01}}
        adagrad = {"adagrad": {"initial_accumulator": 0.5}, "learning_rate": {"constant": 0.01}}
        lamb = {"lamb": ADAMW["adamw"], "weight_decay": 0.01, "learning_rate": {"constant": 0.01}}
        for spec, kind in (
            (sgd, "sgd"),
            (momentum, "momentum"),
            (nesterov, "nesterov"),
            (adagrad, "adagrad"),
            (ADAMW, "adamw"),
            (lamb, "lamb"),
        ):
            status, out = self.judge(spec, kind)
            self.assertEqual(status, 0, out)
            self.assertIn("steps=6", out)
            self.assertNotIn("MISS", out)

    def spoiled(self, name, factor, number=3):
        def spoil(step, tensors):
            if step == number:
                tensors[name] = (tensors[name] * factor).astype(tensors[name].dtype)

        return self.judge(spoil=spoil)

    def test_a_wrong_loss(self):
        self.assertEqual(self.spoiled("loss", 1 + 5e-6)[0], 0)
        status, out = self.spoiled("loss", 1 + 2e-5)
        self.assertEqual(status, 1)
        self.assertRegex(out, r"loss: worst 2e-05 at step 3, bound 1e-05, 6 compared: MISS")

    def test_a_wrong_gradient(self):
        for name in ("c.weight", "n.bias", "l.bias", "n.mean", "n.var"):
            self.assertEqual(self.spoiled(f"grad/{name}", 1 + 5e-5)[0], 0)
            status, out = self.spoiled(f"grad/{name}", 1 + 2e-4)
            self.assertEqual(status, 1)
            self.assertRegex(
                out, rf"gradient: worst 0.0002 at step 3, {name}, bound 0.0001, 42 compared: MISS"
            )

    def test_the_other_side_of_a_kink_is_right_too(self):
        def crossed(bound):
            """Flips step 3's derivative at one kink that matters."""

            def spoil(number, tensors):
                if number != 3:
                    return
                net = network.Network(GRAPH)
                parameters = {
                    n[6:]: t.astype(float) for n, t in tensors.items() if n.startswith("param/")
                }
                batch = parameters, tensors["input"][:4].astype(float), tensors["label"][:4], 16
                _, right = net.contribution(*batch)
                others = [net.contribution(*batch, crossed=[kink])[1] for kink in net.kinks(bound)]
                other = next(o for o in others if abs(o["n.bias"] - right["n.bias"]).max() > 1e-3)
                for name in SHAPES:
                    tensors[f"grad/{name}"] = (
                        tensors[f"grad/{name}"] + other[name] - right[name]
                    ).astype(np.float32)

            return spoil

        # Random inputs are never within 1e-5 of a kink: the same difference far from one is wrong.
        status, out = self.judge(spoil=crossed(0.1))
        self.assertEqual(status, 1)
        self.assertIn("kinks on whose other side float32 was: 0, in 0 steps", out)
        self.assertRegex(out, "gradient: worst .* at step 3, .*: MISS")
        with unittest.mock.patch.object(trainer, "KINK", 0.1), unittest.mock.patch.object(
            trainer, "NORM_BOUND", 1e-3
        ):
            status, out = self.judge(spoil=crossed(0.1))
        self.assertRegex(out, "kinks on whose other side float32 was: 1, in 1 steps")
        self.assertRegex(out, "gradient: worst .*: ok")

    def test_a_wrong_update(self):
        for name in ("c.weight", "l.weight", "l.bias"):
            # Step 2 does not lead there, nor step 3 from there to step 4.
            status, out = self.spoiled(f"param/{name}", 1.0003)
            self.assertEqual(status, 1)
            self.assertRegex(
                out,
                rf"updated parameter: worst 0.0003\d* at step [23], {name}, bound 0.0001, 35 "
                r"compared: MISS",
            )

    def test_a_gradient_of_nan_misses(self):
        self.assertEqual(self.spoiled("grad/l.bias", np.nan)[0], 1)
        self.assertEqual(self.spoiled("loss", np.nan)[0], 1)

    def test_the_wrong_optimizer(self):
        status, out = self.judge({"sgd": {}, "learning_rate": {"constant": 0.01}}, "momentum")
        self.assertEqual(status, 1)
        self.assertIn("updated parameter: worst", out)

    def test_records_with_gaps(self):
        with tempfile.TemporaryDirectory() as folder:
            record(folder, ADAMW, "adamw", steps=3)
            os.remove(os.path.join(folder, "step-000001.safetensors"))
            with self.assertRaises(ValueError):
                trainer.run(folder)
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(ValueError):
            trainer.run(folder)


class Schedules(unittest.TestCase):
    def test_schedules(self):
        rate = optimizer.learning_rate
        self.assertEqual(rate({"constant": 0.5}, 9, None), 0.5)
        self.assertEqual(rate({"constant": 0.5, "warmup_steps": "4"}, 0, None), 0.125)
        self.assertEqual(rate({"constant": 0.5, "warmup_steps": "4"}, 4, None), 0.5)
        step = {"step": {"initial": 1.0, "factor": 0.5, "every_steps": "10"}}
        self.assertEqual([rate(step, i, None) for i in (0, 9, 10, 25)], [1, 1, 0.5, 0.25])
        cosine = {"cosine": {"peak": 2.0, "floor": 1.0}, "warmup_steps": "10"}
        self.assertAlmostEqual(rate(cosine, 4, 110), 1.0)
        self.assertAlmostEqual(rate(cosine, 10, 110), 2.0)
        self.assertAlmostEqual(rate(cosine, 60, 110), 1.5)
        self.assertAlmostEqual(rate(cosine, 110, 110), 1.0)
        with self.assertRaises(ValueError):
            rate(cosine, 0, None)

    def test_adam_adds_decay_to_the_gradient(self):
        adam = optimizer.Optimizer(
            {
                "adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 0.0},
                "weight_decay": 0.5,
                "learning_rate": {"constant": 0.01},
            }
        )
        found = adam.step({"w": np.array([2.0])}, {"w": np.array([-2.0])}, 0, None)
        np.testing.assert_allclose(found["w"], [2.01])  # g = -2 + 0.5 * 2 = -1: one rate up
        sgd = optimizer.Optimizer(
            {"sgd": {}, "weight_decay": 0.5, "learning_rate": {"constant": 0.1}}
        )
        np.testing.assert_allclose(
            sgd.step({"w": np.array([2.0])}, {"w": np.array([1.0])}, 0, None)["w"], [1.8]
        )

    def test_groups(self):
        sgd = optimizer.Optimizer(
            {
                "sgd": {},
                "weight_decay": 0.5,
                "learning_rate": {"constant": 0.1},
                "groups": [
                    {"match": ["head.*"], "rate_scale": 10.0},
                    {"vectors": True, "weight_decay": 0.0},
                ],
            }
        )
        w = {
            "head.bias": np.array([2.0]),
            "body.bias": np.array([2.0]),
            "body.weight": np.array([[2.0]]),
        }
        g = {name: np.ones_like(one) for name, one in w.items()}
        found = sgd.step(w, g, 0, None)
        self.assertAlmostEqual(
            found["head.bias"][0], 0
        )  # the first group: its own rate, the common decay
        self.assertAlmostEqual(found["body.bias"][0], 1.9)
        self.assertAlmostEqual(found["body.weight"][0, 0], 1.8)

    def test_clipping(self):
        g = {"a": np.array([3.0, 4.0]), "b": np.array([0.0, 0.0]), "c": np.array([12.0])}
        each = optimizer.clipped(g, {"scope": "PARAMETER", "norm": 2.5})
        np.testing.assert_allclose(each["a"], [1.5, 2])
        np.testing.assert_allclose(each["b"], [0, 0])
        np.testing.assert_allclose(each["c"], [2.5])
        together = optimizer.clipped(g, {"scope": "GLOBAL", "norm": 6.5})
        np.testing.assert_allclose(together["a"], [1.5, 2])
        np.testing.assert_allclose(together["c"], [6])


if __name__ == "__main__":
    unittest.main()
