#!/usr/bin/env python3
"""The accuracy of an exported model, from the file and the data alone.

    evaluate_export.py EXPORT.safetensors IMAGES LABELS    (IDX, also .gz)
    evaluate_export.py EXPORT.safetensors ROWS.csv         (also .gz; recomputes the part held out)

Prints `test_accuracy=0.xxxx`. Needs NumPy only, computes in float64, shares no code with the
product.

From the export's metadata it reads `model`, the Graph, and `preprocessing`, {"train": DataSource,
"test": DataSource, "normalize": Normalize}: protobuf JSON of proto/model.proto and proto/job.proto.
"""

import os
import sys

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # before NumPy: spinning threads slow a busy machine

import datasets
import network
import proto_json
import safetensors_file


def accuracy(export, files, batch=500):
    metadata, parameters = safetensors_file.read(export)
    net = network.Network(proto_json.loads(metadata["model"]))
    preprocessing = proto_json.loads(metadata["preprocessing"])
    source = preprocessing.get("test")
    if not source:
        raise ValueError(f"{export} names no test data")
    x, labels = datasets.load(source, preprocessing.get("normalize") or {}, net.input_shape, files)
    right = 0
    for begin in range(0, len(x), batch):
        part = slice(begin, begin + batch)
        right += (net.logits(parameters, x[part]).argmax(1) == labels[part]).sum()
    return right / len(x)


def main(arguments):
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"test_accuracy={accuracy(arguments[0], arguments[1:]):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
