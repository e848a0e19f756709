"""Reads a safetensors file with nothing but NumPy. Shares no code with the product."""

import json
import struct

import numpy as np

DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "u1"}


def read(path):
    """Returns (metadata, {name: array}); floats are float64."""
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        if not 8 + size <= begin <= end <= len(data):
            raise ValueError(f"{path}: tensor {name!r} lies outside of the file")
        array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return metadata, tensors


def write(path, metadata, tensors):
    """For tests: F32, F64 and I32 arrays."""
    names = {np.dtype(numpy): name for name, numpy in DTYPES.items()}
    header, blobs, end = {"__metadata__": metadata}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + len(blob)],
        }
        blobs.append(blob)
        end += len(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
