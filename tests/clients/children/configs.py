"""Read torchao configs back; say for each whether this release takes it, and what it makes of it."""

from __future__ import annotations

import json
import sys

from torchao.core.config import config_from_dict, config_to_dict

made = []
for config in json.load(sys.stdin):
    try:
        made.append(config_to_dict(config_from_dict(config)))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        made.append(repr(error))
print(json.dumps(made))
