# SPDX-License-Identifier: Apache-2.0
"""A deeper model that computes the same as the one it is made from. Stdlib only.

A layer adds two matrices' outputs to its input (o_proj and down_proj). A copy of a layer with zeros
in both adds nothing, so the model says what it said before, and training begins at its quality. The
other matrices of the copy stay, so the zeros get gradients at the first step.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
LAYER = re.compile(r"(model\.layers\.)(\d+)\.(.+)")
OTHER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")

Tensors = dict[str, tuple[str, list[int], bytes]]       # name to dtype, shape and bytes


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def write_tensors(path: Path, tensors: Tensors) -> None:
    """A safetensors file; its header is padded to 8 bytes as the format asks."""
    header: dict = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.writelines(data for _, _, data in tensors.values())


def copies(n_old: int, n_new: int) -> list[tuple[int, bool]]:
    """For each new layer the old one it is made from, and whether it adds nothing; added layers are spread evenly."""
    if not n_old <= n_new <= 2 * n_old:
        raise ValueError(f"{n_new} layers cannot be made from {n_old}; expected {n_old} to {2 * n_old} (a layer is copied once)")
    n_added, out = n_new - n_old, []
    for i in range(n_old):
        out.append((i, False))
        if (i + 1) * n_added // n_old > i * n_added // n_old:
            out.append((i, True))
    return out


def deepen(source: Path, folder: Path, n_layer: int) -> None:
    """Write `folder`, the model of `source` with `n_layer` layers, of which the added ones add nothing."""
    config = json.loads((source / "config.json").read_text())
    old = read_tensors(source / "model.safetensors")
    plan = copies(config["num_hidden_layers"], n_layer)
    new = {name: tensor for name, tensor in old.items() if not LAYER.fullmatch(name)}
    for name, (dtype, shape, data) in old.items():
        layer = LAYER.fullmatch(name)
        for i, (i_old, silent) in enumerate(plan):
            if layer and int(layer[2]) == i_old:
                zero = silent and layer[3] in OUTPUTS
                new[f"{layer[1]}{i}.{layer[3]}"] = (dtype, shape, bytes(len(data)) if zero else data)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", new)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": n_layer}, indent=2) + "\n")
    for name in OTHER_FILES:
        shutil.copyfile(source / name, folder / name)
