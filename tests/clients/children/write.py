"""Write small models the way transformers and diffusers used to: pickled shards of torchao weights, index, config.

In, a list of: the folder, which model, which torchao config by name, how it is declared (as a config unless given), the
stem and number of shards. Out, for each: what the model is and does under this release of torchao.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import models
import torch
from torchao import quantization
from torchao.core.config import config_to_dict


def main() -> None:
    quantization.quant_api.is_sm_at_least_89 = lambda: True  # the float8 configs want a GPU, what they make does not
    quantization.quant_api._check_hardware_support = lambda _: None
    print(json.dumps([write(job) for job in json.load(sys.stdin)]))


def write(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    folder.mkdir(parents=True)
    model = getattr(models, job["model"])()
    fields = {"granularity": quantization.PerRow()} if "Float8Dynamic" in job["config"] else {}
    scheme = getattr(quantization, job["config"])(**fields)
    quantization.quantize_(
        model, scheme, lambda module, name: isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    model.save_config(folder) if hasattr(model, "save_config") else model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    declared = job["declared"] if "declared" in job else {"default": config_to_dict(scheme)}
    config["quantization_config"] = {"quant_method": "torchao", "quant_type": declared, "modules_to_not_convert": None}
    if "declared" in job:
        config["quantization_config"]["quant_type_kwargs"] = {}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if "tag" in job:
        content = {"format": job["tag"], "metadata": {"scheme": "int8"}, "state_dict": model.state_dict()}
        torch.save(content, folder / f"{job['stem']}.pt")
    else:
        save(model.state_dict(), folder, job["stem"], job["shards"])
    return models.described(model)


def save(state_dict: dict[str, torch.Tensor], folder: Path, stem: str, count: int) -> None:
    if count == 1:
        torch.save(state_dict, folder / f"{stem}.bin")
        return
    names = list(state_dict)
    places = {name: f"{stem}-{i * count // len(names) + 1:05d}-of-{count:05d}.bin" for i, name in enumerate(names)}
    for file in sorted(set(places.values())):
        torch.save({name: state_dict[name] for name in names if places[name] == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / f"{stem}.bin.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


main()
