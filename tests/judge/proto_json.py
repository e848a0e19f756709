"""Protobuf JSON with either spelling of a field: `holdout_seed`, as in the .proto file, or
`holdoutSeed`."""

import json
import re


def loads(text):
    return json.loads(
        text, object_hook=lambda fields: {snake_case(name): value for name, value in fields.items()}
    )


def snake_case(name):
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda capital: "_" + capital[0].lower(), name)
