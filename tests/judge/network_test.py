"""The judge's own gradients against finite differences, and its operators against simple
examples."""

import unittest
import unittest.mock

import numpy as np

import network


def node(name, op, inputs, parameters=(), **attributes):
    def value(v):
        return (
            {"i": str(v)}
            if isinstance(v, int)
            else {"f": v}
            if isinstance(v, float)
            else {"ints": {"values": [str(x) for x in v]}}
        )

    return {
        "name": name,
        "op": op,
        "inputs": list(inputs),
        "parameters": list(parameters),
        "attributes": {key: value(v) for key, v in attributes.items()},
    }


def graph(shape, nodes, statistics=(), logits="", loss="softmax_cross_entropy"):
    last = nodes[-1]["name"]
    inputs = [last, "labels"] if loss == "softmax_cross_entropy" else [last]
    names = [p for n in nodes for p in n["parameters"]]
    return {
        "input": {"name": "input", "shape": [str(d) for d in shape]},
        "parameters": [
            {"name": p, "kind": "STATISTIC" if p in statistics else "TRAINABLE"} for p in names
        ],
        "nodes": nodes + [node("loss", loss, inputs)],
        "logits": logits or last,
    }


class FiniteDifferences(unittest.TestCase):
    def check(self, net_graph, shapes, samples=5, classes=4, micro_batches=1, seed=3):
        """Checks every parameter's gradient in three random directions."""
        random = np.random.default_rng(seed)
        net = network.Network(net_graph)
        parameters = {name: random.standard_normal(shape) for name, shape in shapes.items()}
        for name in parameters:
            if "var" in name:
                parameters[name] = np.abs(parameters[name]) + 0.5
        x = random.standard_normal((samples,) + net.input_shape)
        labels = random.integers(0, classes, samples)
        parts = np.array_split(np.arange(samples), micro_batches)

        def both(values):
            loss, gradients = 0.0, {}
            for part in parts:
                one, g = net.contribution(values, x[part], labels[part], global_batch=8)
                loss += one / 8
                gradients = {name: gradients.get(name, 0) + g[name] for name in g}
            return loss, gradients

        _, gradients = both(parameters)
        step = 1e-6
        for name in shapes:
            if net.kind(name) == "STATISTIC":
                continue
            for _ in range(3):
                direction = random.standard_normal(shapes[name])
                high, low = (
                    both(parameters | {name: parameters[name] + s * step * direction})[0]
                    for s in (1, -1)
                )
                slope = (high - low) / (2 * step)
                self.assertAlmostEqual(
                    slope,
                    (gradients[name] * direction).sum(),
                    delta=2e-7 * max(1, abs(slope)),
                    msg=name,
                )

    def test_linear_relu(self):
        nodes = [
            node("a", "linear", ["input"], ["aw", "ab"]),
            node("r", "relu", ["a"]),
            node("b", "linear", ["r"], ["bw"]),
        ]
        self.check(graph([6], nodes), {"aw": (7, 6), "ab": (7,), "bw": (4, 7)})

    def test_convolution_with_stride_and_padding(self):
        nodes = [
            node("c0", "conv2d", ["input"], ["w0"], kernel=1, out_channels=2),
            node("c", "conv2d", ["c0"], ["w", "b"], kernel=[3, 2], stride=[2, 1], padding=[1, 0]),
            node("f", "flatten", ["c"]),
            node("l", "linear", ["f"], ["lw", "lb"]),
        ]
        self.check(
            graph([3, 6, 5], nodes),
            {"w0": (2, 3, 1, 1), "w": (4, 2, 3, 2), "b": (4,), "lw": (4, 48), "lb": (4,)},
        )

    def pooling(self, op, kernel, outputs, **attributes):
        nodes = [
            node("c", "conv2d", ["input"], ["w", "b"], kernel=3, padding=1),
            node("p", op, ["c"], kernel=kernel, **attributes),
            node("f", "flatten", ["p"]),
            node("l", "linear", ["f"], ["lw"]),
        ]
        self.check(graph([2, 6, 6], nodes), {"w": (3, 2, 3, 3), "b": (3,), "lw": (4, 3 * outputs)})

    def test_max_pooling(self):
        self.pooling("maxpool2d", 2, 9)
        self.pooling("maxpool2d", [3, 2], 12, stride=[2, 2], padding=[1, 1])

    def test_average_pooling(self):
        self.pooling("avgpool2d", 2, 9)
        self.pooling("avgpool2d", 3, 9, stride=2, padding=1)

    def test_batch_norm_of_channels_and_features(self):
        nodes = [
            node("c", "conv2d", ["input"], ["w"], kernel=3),
            node("n", "batchnorm", ["c"], ["nw", "nb", "nmean", "nvar"], epsilon=1e-3),
            node("r", "relu", ["n"]),
            node("f", "flatten", ["r"]),
            node("l", "linear", ["f"], ["lw", "lb"]),
            node("m", "batchnorm", ["l"], ["mw", "mb", "mmean", "mvar"]),
        ]
        shapes = {"w": (3, 2, 3, 3), "lw": (4, 12), "lb": (4,)}
        shapes |= {f"n{p}": (3,) for p in ("w", "b", "mean", "var")} | {
            f"m{p}": (4,) for p in ("w", "b", "mean", "var")
        }
        net_graph = graph([2, 4, 4], nodes, statistics=("nmean", "nvar", "mmean", "mvar"))
        self.check(net_graph, shapes, samples=7)
        self.check(net_graph, shapes, samples=7, micro_batches=2)  # statistics per micro-batch

    def test_a_value_that_the_loss_does_not_depend_on(self):
        nodes = [
            node("a", "linear", ["input"], ["w"]),
            node("r", "relu", ["a"]),
            node("s", "linear", ["a"], ["v"]),
        ]
        self.check(graph([3], nodes), {"w": (3, 3), "v": (4, 3)})

    def test_a_value_that_is_read_twice(self):
        class Add(network.Operator):
            def forward(self, inputs, parameters, _training):
                return inputs[0] + inputs[1]

            def backward(self, dy):
                return [dy, dy], []

        with unittest.mock.patch.dict(network.OPERATORS, add=Add):
            nodes = [
                node("a", "linear", ["input"], ["w"]),
                node("r", "relu", ["a"]),
                node("s", "add", ["a", "r"]),
            ]
            self.check(graph([3], nodes), {"w": (4, 3)})

    def test_gather_rows_and_negative_sum(self):
        nodes = [node("row", "gather_rows", ["labels"], ["rows"])]
        net = network.Network(graph([1], nodes, loss="negative_sum"))
        labels = np.array([2, 0, 2])
        loss, gradients = net.contribution(
            {"rows": np.arange(4.0)}, np.zeros((3, 1)), labels, global_batch=1
        )
        self.assertEqual(loss, -4)
        np.testing.assert_array_equal(gradients["rows"], [-1, 0, -2, 0])


class Examples(unittest.TestCase):
    def forward(self, op, x, parameters=(), training=False, **attributes):
        operator = network.OPERATORS[op](node("n", op, ["input"], **attributes))
        return operator.forward(
            [np.array(x, float)], [np.array(p, float) for p in parameters], training
        )

    def test_convolution_is_correlation(self):
        x = np.arange(9.0).reshape(1, 1, 3, 3)
        y = self.forward("conv2d", x, [[[[[1, 0], [0, 10]]]], [0.5]], kernel=2)
        np.testing.assert_array_equal(y[0, 0], [[0 + 40.5, 1 + 50.5], [3 + 70.5, 4 + 80.5]])

    def test_average_pooling_counts_padding(self):
        y = self.forward("avgpool2d", np.ones((1, 1, 2, 2)), kernel=2, stride=2, padding=1)
        np.testing.assert_array_equal(y[0, 0], [[0.25, 0.25], [0.25, 0.25]])

    def test_a_pool_strides_by_its_kernel(self):
        y = self.forward("maxpool2d", np.arange(16.0).reshape(1, 1, 4, 4), kernel=2)
        np.testing.assert_array_equal(y[0, 0], [[5, 7], [13, 15]])

    def test_batch_norm_uses_its_statistics_outside_of_training(self):
        x = [[3.0], [5.0]]
        parameters = ([2], [1], [3], [4])
        np.testing.assert_allclose(
            self.forward("batchnorm", x, parameters, epsilon=1e-12), [[1], [3]]
        )
        np.testing.assert_allclose(
            self.forward("batchnorm", x, parameters, training=True, epsilon=1e-12), [[-1], [3]]
        )

    def test_statistics_are_biased_and_weighted_by_samples(self):
        nodes = [node("n", "batchnorm", ["input"], ["w", "b", "mean", "var"])]
        net = network.Network(graph([2], nodes, statistics=("mean", "var")))
        x = np.array([[1.0, 2.0], [3.0, 6.0]])
        values = {"w": np.ones(2), "b": np.zeros(2), "mean": np.zeros(2), "var": np.ones(2)}
        _, found = net.contribution(values, x, np.array([0, 1]), global_batch=8)
        np.testing.assert_allclose(found["mean"], np.array([2, 4]) * 2 / 8)
        np.testing.assert_allclose(found["var"], np.array([1, 4]) * 2 / 8)

    def test_cross_entropy_does_not_overflow(self):
        net = network.Network(graph([2], [node("r", "relu", ["input"])]))
        loss, _ = net.contribution({}, np.array([[1000.0, 0.0]]), np.array([1]), global_batch=1)
        self.assertEqual(loss, 1000)

    def test_an_empty_micro_batch_adds_nothing(self):
        net = network.Network(graph([2], [node("l", "linear", ["input"], ["w"])]))
        loss, found = net.contribution(
            {"w": np.ones((2, 2))}, np.zeros((0, 2)), np.zeros(0, int), global_batch=4
        )
        self.assertEqual(loss, 0)
        self.assertFalse(found["w"].any())

    def test_relu(self):
        np.testing.assert_array_equal(self.forward("relu", [[-0.5, 0, 2]]), [[0, 0, 2]])

    def test_the_other_side_of_a_kink(self):
        net = network.Network(
            graph((4,), [node("r", "relu", ["input"]), node("w", "linear", ["r"], ["weight"])])
        )
        x, weight = np.array([[1e-9, -1e-9, 2.0, -2.0]]), np.ones((1, 4))
        net.contribution({"weight": weight}, x, np.array([0]), 1)
        self.assertEqual(net.kinks(1e-6), [("r", 0), ("r", 1)])
        relu = net.nodes[0][1]
        self.assertEqual(relu.backward(np.ones((1, 4)))[0][0].tolist(), [[1, 0, 1, 0]])
        net.contribution({"weight": weight}, x, np.array([0]), 1, crossed=net.kinks(1e-6))
        self.assertEqual(relu.backward(np.ones((1, 4)))[0][0].tolist(), [[0, 1, 1, 0]])

    def test_the_other_maximum(self):
        pool = network.MaxPool2d(node("p", "maxpool2d", ["input"], kernel=2))
        x = np.array([1, 5, 5 - 1e-7, 2, 3, 3, 1, 0]).reshape(
            1, 2, 2, 2
        )  # the two equal values are not a kink
        pool.forward([x], [], True)
        self.assertEqual(list(pool.kinks(1e-6)), [0])
        self.assertEqual(
            pool.backward(np.ones((1, 2, 1, 1)))[0][0].flatten().tolist(), [0, 1, 0, 0, 1, 0, 0, 0]
        )
        pool.cross(0)
        self.assertEqual(
            pool.backward(np.ones((1, 2, 1, 1)))[0][0].flatten().tolist(), [0, 0, 1, 0, 1, 0, 0, 0]
        )

    def test_dropout(self):
        self.assertEqual(self.forward("dropout", [[2.0]], rate=0.5), 2)
        with self.assertRaises(NotImplementedError):
            self.forward("dropout", [[2.0]], training=True, rate=0.5)


if __name__ == "__main__":
    unittest.main()
