"""Reads and prepares data files with nothing but NumPy. Shares no code with the product."""

import gzip
import math
import struct

import numpy as np


def open_any(path):
    with open(path, "rb") as file:
        magic = file.read(2)
    return gzip.open(path, "rb") if magic == b"\x1f\x8b" else open(path, "rb")


def read_idx(path):
    with open_any(path) as file:
        data = file.read()
    zeros, kind, dims = struct.unpack(">HBB", data[:4])
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path}: not an IDX file of bytes")
    shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def read_csv(path):
    """(values, labels) of rows of numbers, the last of which is the label."""
    with open_any(path) as file:
        rows = np.loadtxt(file, delimiter=",", ndmin=2)
    return rows[:, :-1], rows[:, -1].astype(int)


def philox4x32(counter, key):
    """Philox4x32-10 (Salmon et al. 2011): four words of counter, two of key."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def held_out_rows(labels, fraction, seed):
    """From each class of c rows, the floor(fraction * c + 0.5) with the lowest hash of (seed,
    row)."""

    def hash_of(row):
        low, high = philox4x32(
            (row & 0xFFFFFFFF, row >> 32, 0, 0x484F4C44), (seed & 0xFFFFFFFF, seed >> 32)
        )[:2]
        return high << 32 | low

    out = []
    for label in np.unique(labels):
        rows = sorted((hash_of(int(row)), int(row)) for row in np.flatnonzero(labels == label))
        out += [row for _, row in rows[: math.floor(fraction * len(rows) + 0.5)]]
    return np.array(sorted(out), int)


def part_of_csv(source, labels):
    """The rows that a DataSource.Csv (as JSON) selects."""
    part = source.get("part", "PART_ALL")
    everything = np.arange(len(labels))
    if part == "PART_ALL":
        return everything
    held_out = held_out_rows(
        labels, source.get("holdout_fraction", 0), int(source.get("holdout_seed", 0))
    )
    return held_out if part == "PART_HOLDOUT" else np.setdiff1d(everything, held_out)


def load(source, normalize, shape, files):
    """Samples (float64, [n, *shape]) and labels of a DataSource (as JSON), read from `files`."""
    if "idx" in source:
        if len(files) != 2:
            raise ValueError("this model was trained on IDX files: give images and labels")
        values, labels = read_idx(files[0]) / 255.0, read_idx(files[1]).astype(int)
    else:
        if len(files) != 1:
            raise ValueError("this model was trained on a CSV file: give that")
        values, labels = read_csv(files[0])
        rows = part_of_csv(source["csv"], labels)
        values, labels = values[rows], labels[rows]
    values = values.reshape((len(labels),) + tuple(shape))
    mean, std = (
        np.array(normalize.get(key, default), float)
        for key, default in (("mean", [0]), ("std", [1]))
    )
    spread = (slice(None),) + (None,) * (len(shape) - 1)  # one value, or one per channel
    return (values - mean[spread]) / std[spread], labels
