# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V3 as it is published: every matrix in fp8 with scales of blocks, K's and V's up-projection too, which no packed matrix
holds. The same tokens and log-probabilities, to the bit, as the folder with the floats that the fp8 numbers stand for."""
import json
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from servers import BIN, MODELS

BLOCK = 32


def e4m3_values():
    """What the 256 codes stand for; 127 and 255 are NaN."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0 ** -6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    size[(code & 127) == 127] = np.nan
    return (np.where(code > 127, -size, size)).astype(np.float32)


VALUES = e4m3_values()


def to_fp8(w):
    """(codes, scales of blocks, the floats that these stand for)"""
    rows, cols = w.shape
    n = [-(-size // BLOCK) for size in (rows, cols)]
    padded = np.zeros((n[0] * BLOCK, n[1] * BLOCK), np.float32)
    padded[:rows, :cols] = w
    blocks = padded.reshape(n[0], BLOCK, n[1], BLOCK)
    scales = np.maximum(np.abs(blocks).max(axis=(1, 3)), 1e-6) / np.float32(448)
    spread = np.repeat(np.repeat(scales, BLOCK, 0), BLOCK, 1)[:rows, :cols].astype(np.float32)
    known = VALUES[:127]
    at = np.abs(w / spread)
    code = np.abs(at[..., None] - known).argmin(axis=-1)
    codes = (code + 128 * (w < 0)).astype(np.uint8)
    return codes, scales.astype(np.float32), (VALUES[codes] * spread).astype(np.float32)


def is_matrix(name, tensor):
    return tensor.ndim == 2 and name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder in fp8, and the one in float32."""
    source = MODELS / "deepseek_v3"
    stored, plain = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not is_matrix(name, tensor):
            stored[name] = plain[name] = tensor.astype(np.float32)
            continue
        codes, scales, floats = to_fp8(tensor.astype(np.float32))
        stored[name], stored[f"{name}_scale_inv"], plain[name] = codes, scales, floats
    made = {}
    for which, tensors in (("fp8", stored), ("plain", plain)):
        made[which] = tmp_path_factory.mktemp(which)
        config = json.loads((source / "config.json").read_text())
        if which == "fp8":
            config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                             "weight_block_size": [BLOCK, BLOCK]}
        (made[which] / "config.json").write_text(json.dumps(config))
        save_file(tensors, made[which] / "model.safetensors")
    mark_fp8(made["fp8"] / "model.safetensors", {name for name in stored if f"{name}_scale_inv" in stored})
    return made


def mark_fp8(path, names):
    """numpy has no e4m3: bytes get the type's name in the header."""
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    for name in names:
        header[name]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])


def answer(model, *options):
    line = {"prompt_token_ids": [5, 9, 20, 33, 7, 60, 41], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    done = subprocess.run([BIN / "quire", "generate", model, "--skip-tokenizer-init", "-i", "-", *options], input=json.dumps(line),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_matrix_in_fp8(folders):
    assert answer(folders["fp8"], "--dtype", "float32") == answer(folders["plain"], "--dtype", "float32")


def test_the_plan_says_what_becomes_of_it(folders):
    done = subprocess.run([BIN / "quire", "check-model", folders["fp8"], "--weights"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "layers.0.self_attn.kv_b_proj" in line or "kv_b" in line][:1]
    assert "F32" in line
