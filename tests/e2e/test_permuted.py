# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for interleaved rope (rows of each head in pairs, as Mistral's own) through a plugin's rules: q, k and v stacked or fused
in one tensor, and quantized in every form: the same tokens and log-probabilities as the checkpoint that has its rows in halves."""
import json
import math
import shutil
import struct
import subprocess

import pytest

from servers import BIN, MODELS, ROOT

QUANTIZED = ROOT / "tests/data/quantized"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "permuted.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-I", ROOT, "-o", path, ROOT / "tests/plugins/permuted.c"], check=True)
    return path


def read(path):
    """name -> [dtype, shape, bytes]"""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    return {name: [v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]]
            for name, v in json.loads(data[8:8 + n]).items() if name != "__metadata__"}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def stored_row(r, head):
    """Where the row lies that is row r of heads in halves."""
    return r // head * head + r % head % (head // 2) * 2 + r % head // (head // 2)


def in_pairs(rows, head):
    out = [None] * len(rows)
    for r, row in enumerate(rows):
        out[stored_row(r, head)] = row
    return out


def rows_of(t):
    n = len(t[2]) // t[1][0]
    return [t[2][i * n:(i + 1) * n] for i in range(t[1][0])]


def permute_rows(t, head):
    return [t[0], t[1], b"".join(in_pairs(rows_of(t), head))]


def permute_columns(t, head):
    n = len(t[2]) // (t[1][0] * t[1][1])
    rows = [in_pairs([row[i * n:(i + 1) * n] for i in range(t[1][1])], head) for row in rows_of(t)]
    return [t[0], t[1], b"".join(b"".join(row) for row in rows)]


AWQ = [0, 4, 1, 5, 2, 6, 3, 7]


def permute_nibbles(t, head, order=range(8)):
    """Eight outputs in an int32 along the second dimension."""
    out = b""
    for row in rows_of(t):
        words = struct.unpack(f"<{t[1][1]}I", row)
        values = in_pairs([words[i // 8] >> 4 * list(order)[i % 8] & 15 for i in range(8 * len(words))], head)
        new = [sum(values[8 * w + i] << 4 * list(order)[i] for i in range(8)) for w in range(len(words))]
        out += struct.pack(f"<{len(new)}I", *new)
    return [t[0], t[1], out]


def permute(name, t, head, method):
    end = name.rsplit(".", 1)[1]
    if end in ("g_idx", "weight_shape", "input_scale") or math.prod(t[1]) == 1 or end == "weight_scale_inv":
        return t
    if method == "gptq":
        return permute_nibbles(t, head) if end == "qzeros" else permute_columns(t, head)
    if method == "awq":
        return permute_columns(t, head) if end == "scales" else permute_nibbles(t, head, AWQ)
    if end == "weight_zero_point":
        rows, cols = t[1]
        columns = [rows_of(t)[i // cols][i % cols * 4:i % cols * 4 + 4] for i in range(rows * cols)]
        turned = permute_nibbles(["I32", [cols, rows], b"".join(columns[r * cols + c] for c in range(cols) for r in range(rows))], head)
        cells = [turned[2][i * 4:i * 4 + 4] for i in range(rows * cols)]
        return [t[0], t[1], b"".join(cells[c * rows + r] for r in range(rows) for c in range(cols))]
    return permute_rows(t, head)


def folder_of(source, target, architecture, change):
    target.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, target)
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    write(target / "model.safetensors", change(read(source / "model.safetensors"), config))
    return target


def head_of(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def answer(model, *options):
    line = {"prompt_token_ids": [5, 9, 20, 33, 7, 60, 41], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    done = subprocess.run([BIN / "quire", "generate", model, "--skip-tokenizer-init", "-i", "-", *options], input=json.dumps(line),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stack(tensors, layer, names):
    first = tensors[f"{layer}.self_attn.q_proj.{names}"]
    parts = [tensors.pop(f"{layer}.self_attn.{p}_proj.{names}") for p in "qkv"]
    rows = sum(p[1][0] for p in parts)
    return [first[0], [rows, *first[1][1:]], b"".join(p[2] for p in parts)]


def permuted(tensors, config, method):
    return {name: permute(name, t, head_of(config), method) if ".q_proj." in name or ".k_proj." in name else t
            for name, t in tensors.items()}


@pytest.mark.parametrize("name", ["int8", "fp8", "fp8-channel", "fp8-block", "gptq-4", "gptq-4-act", "gptq-4-asym", "awq-4", "packed-4",
                                  "packed-4-asym", "llama"])
def test_matrices_of_their_own(plugin, tmp_path, name):
    source = MODELS / "llama" if name == "llama" else QUANTIZED / name
    model = folder_of(source, tmp_path / "m", "PermutedLlama", lambda t, c: permuted(t, c, name.split("-")[0]))
    want = answer(source)
    assert answer(model, "--plugin", plugin) == want
    rows = read(model / "model.safetensors")
    plain = read(source / "model.safetensors")
    assert sum(rows[n] != plain[n] for n in rows) >= 2 # the test permutes something, and the rules put it back
    other = folder_of(source, tmp_path / "n", "LlamaForCausalLM", lambda t, c: permuted(t, c, name.split("-")[0]))
    assert answer(other) != want


@pytest.mark.parametrize("name", ["llama", "int8", "fp8", "fp8-channel"])
def test_stacked(plugin, tmp_path, name):
    def change(tensors, config):
        tensors = permuted(tensors, config, name)
        for i in range(config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            for end in [n.rsplit(".", 1)[1] for n in tensors if n.startswith(f"{layer}.self_attn.q_proj.")]:
                if math.prod(tensors[f"{layer}.self_attn.q_proj.{end}"][1]) == 1: # one number for all three
                    one = [tensors.pop(f"{layer}.self_attn.{p}_proj.{end}") for p in "qkv"][0]
                    tensors[f"{layer}.self_attn.qkv.{end}"] = one
                    continue
                tensors[f"{layer}.self_attn.qkv.{end}"] = stack(tensors, layer, end)
        return tensors
    def one_scale(tensors, _):
        for key in [n for n in tensors if math.prod(tensors[n][1]) == 1 and ("k_proj" in n or "v_proj" in n)]:
            tensors[key] = tensors[key.replace("k_proj", "q_proj").replace("v_proj", "q_proj")]
        return tensors
    source = MODELS / "llama" if name == "llama" else QUANTIZED / name
    source = folder_of(source, tmp_path / "source", "LlamaForCausalLM", one_scale)
    model = folder_of(source, tmp_path / "m", "PermutedLlama", change)
    assert sum(".qkv." in n for n in read(model / "model.safetensors")) >= 1
    assert answer(model, "--plugin", plugin) == answer(source)
    if name == "llama":
        assert answer(model, "--plugin", plugin, "--quantization", "int8") == answer(source, "--quantization", "int8")


@pytest.mark.parametrize("name, architecture", [("phi3", "PermutedPhi3"), ("gpt_neox", "PermutedNeoX")])
def test_fused_by_the_family(plugin, tmp_path, name, architecture):
    def change(tensors, config):
        head, n_head = head_of(config), config["num_attention_heads"]
        n_kv = config.get("num_key_value_heads") or n_head
        for key, t in tensors.items():
            rows = rows_of(t)
            if "qkv_proj." in key: # all of q, all of k, all of v
                q, k = n_head * head, (n_head + n_kv) * head
                tensors[key] = [t[0], t[1], b"".join(in_pairs(rows[:q], head) + in_pairs(rows[q:k], head) + rows[k:])]
            if "query_key_value." in key: # of each head q, k, v
                out = []
                for h in range(n_head):
                    at = rows[3 * h * head:3 * (h + 1) * head]
                    out += in_pairs(at[:head], head) + in_pairs(at[head:2 * head], head) + at[2 * head:]
                tensors[key] = [t[0], t[1], b"".join(out)]
        return tensors
    model = folder_of(MODELS / name, tmp_path / "m", architecture, change)
    assert answer(model, "--plugin", plugin) == answer(MODELS / name)


@pytest.mark.parametrize("name, architecture, says", [
    ("llama", "WrongStack", "its rule permutes q or k, and none of its parts"),
    ("phi3", "WrongWhole", "holds gate and up, which have no heads")])
def test_what_has_no_heads_is_refused_by_name(plugin, tmp_path, name, architecture, says):
    def change(tensors, config):
        for i in range(config["num_hidden_layers"] if name == "llama" else 0):
            parts = [tensors.pop(f"model.layers.{i}.mlp.{p}_proj.weight") for p in ("gate", "up")]
            tensors[f"model.layers.{i}.mlp.both.weight"] = [parts[0][0], [2 * parts[0][1][0], parts[0][1][1]], parts[0][2] + parts[1][2]]
        return tensors
    model = folder_of(MODELS / name, tmp_path / "m", architecture, change)
    done = subprocess.run([BIN / "quire", "generate", model, "--skip-tokenizer-init", "--prompt-ids", "1", "--plugin", plugin],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 3) and says in done.stderr and ("both.weight" in done.stderr or "gate_up_proj" in done.stderr), done.stderr


def test_check_model_has_the_names_of_the_file(plugin, tmp_path):
    def change(tensors, config):
        tensors = permuted(tensors, config, "llama")
        tensors["model.layers.0.self_attn.qkv.weight"] = stack(tensors, "model.layers.0", "weight")
        return tensors | {"model.layers.0.self_attn.q_proj.other": tensors["model.norm.weight"]}
    model = folder_of(MODELS / "llama", tmp_path / "m", "PermutedLlama", change)

    def check(*options):
        done = subprocess.run([BIN / "quire", "check-model", model, "--plugin", plugin, "--weights", *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done
    lines = check("--dtype", "float32").stdout.splitlines()
    apart = ", rows of heads from pairs to halves"
    stacked = "    model.layers.0.self_attn.qkv.weight rows"
    assert f"{stacked} 0 to 63 [64, 64] F32 -> model.layers.0.self_attn.q_proj.weight{apart}" in lines
    assert f"{stacked} 64 to 95 [32, 64] F32 -> model.layers.0.self_attn.k_proj.weight{apart}" in lines
    assert f"{stacked} 96 to 127 [32, 64] F32 -> model.layers.0.self_attn.v_proj.weight" in lines
    assert f"    model.layers.1.self_attn.q_proj.weight [64, 64] F32 -> as it is named{apart}" in lines
    assert "    model.layers.1.self_attn.v_proj.weight [32, 64] F32" in lines
    done = check("--json")
    sources = [s for row in json.loads(done.stdout)["rows"] for s in row["sources"]]
    k = next(s for s in sources if s.get("slice") == "rows 64 to 95")
    assert (k["tensor"], k["mapped_to"]) == ("model.layers.0.self_attn.qkv.weight", f"model.layers.0.self_attn.k_proj.weight{apart}")
    assert "the first is model.layers.0.self_attn.q_proj.other" in done.stderr
