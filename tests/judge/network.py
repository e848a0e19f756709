"""The net in float64: forward, loss and gradients of a Graph (proto/model.proto, as JSON).

Written from the definitions of the operators, to be checked by eye, and tested with finite
differences (network_test.py). Shares no code with the product.
"""

import numpy as np


def attribute(node, name, default=None):
    value = node.get("attributes", {}).get(name)
    if value is None:
        return default
    if "i" in value:
        return int(value["i"])
    if "f" in value:
        return float(value["f"])
    return [int(v) for v in value["ints"]["values"]]


def pair(node, name, default):
    value = attribute(node, name, default)
    value = [value] if isinstance(value, int) else list(value)
    return value[0], value[-1]


class Operator:
    """One node. `inputs` and `parameters` are lists of arrays; backward returns their gradients."""

    def __init__(self, node):
        self.node = node

    def kinks(self, _bound):
        """Where the input of the last forward is so close to a kink of this operator that float32
        may have been on its other side: flat indices of the output, distance at most bound *
        rms(input).
        """
        return []

    def cross(self, index):
        """Makes backward differentiate on the other side of the kink at this index."""
        raise NotImplementedError


def rms(x):
    return np.sqrt((x**2).mean()) if x.size else 0.0


class Windows(Operator):
    """Shared by convolution and pooling: [N,C,H,W] as windows [N,C,kh,kw,H',W']."""

    def __init__(self, node):
        super().__init__(node)
        self.kernel = pair(node, "kernel", None)
        self.stride = pair(node, "stride", 1 if node["op"] == "conv2d" else self.kernel)
        self.padding = pair(node, "padding", 0)

    def split(self, x, fill=0.0):
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.padding
        x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
        height, width = (x.shape[2] - kh) // sh + 1, (x.shape[3] - kw) // sw + 1
        out = np.empty(x.shape[:2] + (kh, kw, height, width))
        for i in range(kh):
            for j in range(kw):
                out[:, :, i, j] = x[:, :, i : i + sh * height : sh, j : j + sw * width : sw]
        return out

    def join(self, windows, shape):
        """The transpose of split: sums the values of each element of x over its windows."""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.padding
        n, c, h, w = shape
        out = np.zeros((n, c, h + 2 * ph, w + 2 * pw))
        height, width = windows.shape[4:]
        for i in range(kh):
            for j in range(kw):
                out[:, :, i : i + sh * height : sh, j : j + sw * width : sw] += windows[:, :, i, j]
        return out[:, :, ph : ph + h, pw : pw + w]


class Conv2d(Windows):
    def forward(self, inputs, parameters, _training):
        self.shape = inputs[0].shape
        windows = self.split(inputs[0])
        n, c, kh, kw, self.height, self.width = windows.shape
        self.columns = windows.reshape(n, c * kh * kw, self.height * self.width)
        self.weight = parameters[0]
        out = self.weight.reshape(len(self.weight), -1) @ self.columns
        if len(parameters) > 1:
            out += parameters[1][:, None]
        return out.reshape(n, -1, self.height, self.width)

    def backward(self, dy):
        n, c = self.shape[:2]
        dy = dy.reshape(n, len(self.weight), -1)
        dweight = np.einsum("nop,nkp->ok", dy, self.columns, optimize=True).reshape(
            self.weight.shape
        )
        dcolumns = self.weight.reshape(len(self.weight), -1).T @ dy
        dx = self.join(dcolumns.reshape(n, c, *self.kernel, self.height, self.width), self.shape)
        return [dx], [dweight, dy.sum((0, 2))]


class MaxPool2d(Windows):
    def forward(self, inputs, parameters, _training):
        self.shape = inputs[0].shape
        windows = self.split(inputs[0], fill=-np.inf)
        n, c, kh, kw, h, w = windows.shape
        windows = windows.reshape(n, c, kh * kw, h, w)
        self.first = windows.argmax(2)[:, :, None]  # the first of equals, row by row
        self.windows, self.scale = windows, rms(inputs[0])
        return np.take_along_axis(windows, self.first, 2)[:, :, 0]

    def kinks(self, bound):
        """Equals are not kinks: they come from the same inputs, so it does not matter which is
        taken."""
        if self.windows.shape[2] < 2:
            return []
        second, first = np.moveaxis(np.partition(self.windows, -2, axis=2)[:, :, -2:], 2, 0)
        gap = first - second
        return np.flatnonzero((gap > 1e-12 * self.scale) & (gap <= bound * self.scale))

    def cross(self, index):
        n, c, h, w = np.unravel_index(index, np.delete(self.windows.shape, 2))
        self.first[n, c, 0, h, w] = self.windows[n, c, :, h, w].argsort()[-2]

    def backward(self, dy):
        n, c, h, w = dy.shape
        windows = np.zeros((n, c, self.kernel[0] * self.kernel[1], h, w))
        np.put_along_axis(windows, self.first, dy[:, :, None], 2)
        return [self.join(windows.reshape(n, c, *self.kernel, h, w), self.shape)], []


class AvgPool2d(Windows):
    def forward(self, inputs, parameters, _training):
        self.shape = inputs[0].shape
        return self.split(inputs[0]).mean((2, 3))  # padding counts

    def backward(self, dy):
        n, c, h, w = dy.shape
        share = dy[:, :, None, None] / (self.kernel[0] * self.kernel[1])
        return [self.join(np.broadcast_to(share, (n, c, *self.kernel, h, w)), self.shape)], []


class Linear(Operator):
    def forward(self, inputs, parameters, _training):
        self.x, self.weight = inputs[0], parameters[0]
        out = self.x @ self.weight.T
        return out + parameters[1] if len(parameters) > 1 else out

    def backward(self, dy):
        return [dy @ self.weight], [dy.T @ self.x, dy.sum(0)]


class BatchNorm(Operator):
    """Ioffe and Szegedy 2015. The variance is biased, also in the moving average."""

    def forward(self, inputs, parameters, training):
        x = inputs[0]
        self.axes = (0,) if x.ndim == 2 else (0, 2, 3)
        self.spread = (None, slice(None)) + (None,) * (x.ndim - 2)  # [C], to broadcast over x
        self.weight, bias, running_mean, running_variance = parameters
        self.mean, self.variance = running_mean, running_variance
        if training:
            self.mean = x.mean(self.axes)
            self.variance = ((x - self.mean[self.spread]) ** 2).mean(self.axes)
        self.deviation = np.sqrt(self.variance + attribute(self.node, "epsilon", 1e-5))
        self.normal = (x - self.mean[self.spread]) / self.deviation[self.spread]
        return self.normal * self.weight[self.spread] + bias[self.spread]

    def backward(self, dy):
        dbias, dweight = dy.sum(self.axes), (dy * self.normal).sum(self.axes)
        dnormal = dy * self.weight[self.spread]
        dx = dnormal - dnormal.mean(self.axes)[self.spread]
        dx -= self.normal * (dnormal * self.normal).mean(self.axes)[self.spread]
        return [dx / self.deviation[self.spread]], [dweight, dbias, self.mean, self.variance]


class Relu(Operator):
    def forward(self, inputs, parameters, _training):
        self.x, self.positive = inputs[0], inputs[0] > 0
        return self.x * self.positive

    def kinks(self, bound):
        return np.flatnonzero(np.abs(self.x) <= bound * rms(self.x))

    def cross(self, index):
        self.positive.flat[index] ^= True

    def backward(self, dy):
        return [dy * self.positive], []


class Dropout(Operator):
    def forward(self, inputs, parameters, training):
        if training and attribute(self.node, "rate", 0.5) > 0:
            raise NotImplementedError(
                f"{self.node['name']}: which elements dropout takes is not recorded; train with "
                "rate 0"
            )
        return inputs[0]

    def backward(self, dy):
        return [dy], []


class Flatten(Operator):
    def forward(self, inputs, parameters, _training):
        self.shape = inputs[0].shape
        return inputs[0].reshape(len(inputs[0]), -1)

    def backward(self, dy):
        return [dy.reshape(self.shape)], []


class GatherRows(Operator):
    def forward(self, inputs, parameters, _training):
        self.rows, self.shape = inputs[0], parameters[0].shape
        return parameters[0][self.rows].reshape(len(self.rows), -1)

    def backward(self, dy):
        out = np.zeros(self.shape)
        np.add.at(out, self.rows, dy.reshape((len(self.rows),) + self.shape[1:]))
        return [None], [out]


class SoftmaxCrossEntropy(Operator):
    def forward(self, inputs, parameters, _training):
        x, self.labels = inputs
        x = x - x.max(1, keepdims=True)
        log_sum = np.log(np.exp(x).sum(1, keepdims=True))
        self.probability = np.exp(x - log_sum)
        return (log_sum[:, 0] - x[np.arange(len(x)), self.labels]) if len(x) else np.zeros(0)

    def backward(self, dy):
        out = self.probability.copy()
        out[np.arange(len(out)), self.labels] -= 1
        return [out * dy[:, None], None], []


class NegativeSum(Operator):
    def forward(self, inputs, parameters, _training):
        self.shape = inputs[0].shape
        return -inputs[0].reshape(len(inputs[0]), -1).sum(1)

    def backward(self, dy):
        return [-np.broadcast_to(dy.reshape((-1,) + (1,) * (len(self.shape) - 1)), self.shape)], []


OPERATORS = {
    "conv2d": Conv2d,
    "maxpool2d": MaxPool2d,
    "avgpool2d": AvgPool2d,
    "linear": Linear,
    "batchnorm": BatchNorm,
    "relu": Relu,
    "dropout": Dropout,
    "flatten": Flatten,
    "gather_rows": GatherRows,
    "softmax_cross_entropy": SoftmaxCrossEntropy,
    "negative_sum": NegativeSum,
}


class Network:
    def __init__(self, graph):
        self.graph = graph
        self.input_shape = tuple(int(dim) for dim in graph["input"].get("shape", []))
        self.parameters = {p["name"]: p for p in graph.get("parameters", [])}
        self.nodes = [(node, OPERATORS[node["op"]](node)) for node in graph["nodes"]]
        self.used = {name for node, _ in self.nodes for name in node.get("parameters", [])}

    def kind(self, name):
        return self.parameters[name].get("kind", "TRAINABLE")

    def run(self, parameters, x, labels, training):
        """Every value by name; the last node's is the loss of each sample."""
        values = {self.graph["input"]["name"]: x, "labels": labels}
        for node, operator in self.nodes:
            inputs = [values[name] for name in node.get("inputs", [])]
            values[node["name"]] = operator.forward(
                inputs, [parameters[name] for name in node.get("parameters", [])], training
            )
        return values

    def logits(self, parameters, x):
        unused = np.zeros(len(x), int)
        return self.run(parameters, x, unused, training=False)[self.graph["logits"]]

    def kinks(self, bound):
        """Those of the last micro-batch: [(node's name, index)]."""
        return [
            (node["name"], index)
            for node, operator in self.nodes
            for index in operator.kinks(bound)
        ]

    def contribution(self, parameters, x, labels, global_batch, crossed=()):
        """One micro-batch: the sum of its losses, and for each parameter the gradient of (1/B)
        times that sum, or for a statistic (n/B) times the batch's mean or variance. At the kinks
        `crossed` the derivative is that of the other side."""
        gradients = {name: np.zeros_like(parameters[name]) for name in self.used}
        if len(x) == 0:
            return 0.0, gradients
        losses = self.run(parameters, x, labels, training=True)[self.nodes[-1][0]["name"]]
        for name, index in crossed:
            next(operator for node, operator in self.nodes if node["name"] == name).cross(index)
        flowing = {self.nodes[-1][0]["name"]: np.full(len(x), 1.0 / global_batch)}
        for node, operator in reversed(self.nodes):
            if node["name"] not in flowing:
                continue  # the loss does not depend on it
            dinputs, dparameters = operator.backward(flowing.pop(node["name"]))
            for name, gradient in zip(node.get("inputs", []), dinputs):
                if gradient is not None:
                    flowing[name] = flowing.get(name, 0) + gradient
            for name, gradient in zip(node.get("parameters", []), dparameters):
                scale = len(x) / global_batch if self.kind(name) == "STATISTIC" else 1
                gradients[name] = gradients[name] + gradient * scale
        return losses.sum(), gradients
