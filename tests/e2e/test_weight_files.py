# SPDX-License-Identifier: Apache-2.0
"""Weights in other files than model.safetensors: pytorch_model.bin of every kind that torch has written, and Mistral's and Meta's own
layout with params.json. The same tokens and log-probabilities, to the bit, as the safetensors folder with the same numbers; pickles
that do more than build tensors are refused by name, and nothing of them is run."""
import json
import os
import pathlib
import shutil
import struct
import subprocess

import pytest

import torch_files
from servers import BIN, MODELS
from torch_files import Storage, Tensor, save, save_legacy, state_dict, tensors_of

FORMATS = "auto, safetensors, pt (pytorch_model.bin), mistral (consolidated.safetensors), gguf or dummy"


def folder(tmp_path, name):
    """A folder with the golden's config and no weights."""
    out = tmp_path / "model"
    out.mkdir()
    shutil.copy(MODELS / name / "config.json", out)
    return out


def answer(model, *options):
    line = {"prompt_token_ids": [5, 9, 20, 33, 7, 60, 41], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    done = subprocess.run([BIN / "quire", "generate", model, "--skip-tokenizer-init", "-i", "-", *options], input=json.dumps(line),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(model, *options):
    done = subprocess.run([BIN / "quire", "check-model", model, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, done.stdout
    return done.stderr


def transposed(tensor):
    """The same matrix as a view of a storage that holds its columns."""
    dtype, (rows, cols), data = tensor
    size = torch_files.STORAGES[dtype][1]
    cell = [[data[(r * cols + c) * size:(r * cols + c + 1) * size] for c in range(cols)] for r in range(rows)]
    turned = b"".join(cell[r][c] for c in range(cols) for r in range(rows))
    return Tensor(Storage(turned, dtype, "turned"), (rows, cols), (1, rows))


# ---- torch ----

@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol(tmp_path, protocol):
    model = folder(tmp_path, "llama")
    save(model / "pytorch_model.bin", state_dict(tensors_of(MODELS / "llama")), protocol)
    assert answer(model) == answer(MODELS / "llama")


def test_a_plain_dict_of_parameters_and_what_is_no_tensor(tmp_path):
    model = folder(tmp_path, "llama")
    state = {name: Tensor(Storage(data, dtype, f"k{i}"), shape, parameter=True)
             for i, (name, (dtype, shape, data)) in enumerate(tensors_of(MODELS / "llama").items())}
    save(model / "pytorch_model.bin", {**state, "step": 2**70, "lr": 1e-3, "names": ["a", (None, True, b"x")], 7: {"x": {1}}}, 4, "x")
    assert answer(model) == answer(MODELS / "llama")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_format_before_zip(tmp_path, protocol):
    model = folder(tmp_path, "llama-bf16-sharded")
    save_legacy(model / "pytorch_model.bin", state_dict(tensors_of(MODELS / "llama-bf16-sharded")), protocol)
    assert answer(model) == answer(MODELS / "llama-bf16-sharded")
    save_legacy(model / "pytorch_model.bin", state_dict(tensors_of(MODELS / "llama-bf16-sharded")), little=False)
    assert "written by a big-endian machine" in refusal(model)


def test_shared_storages_offsets_and_transposed_views(tmp_path):
    """One storage for all tensors of a type, a tied head that is the same tensor, and a matrix whose storage holds its columns."""
    model = folder(tmp_path, "llama")
    tensors = tensors_of(MODELS / "llama")
    assert {t[0] for t in tensors.values()} == {"F32"}
    whole, offsets = b"\0" * 12, {}
    for name, (_, _, data) in tensors.items():
        offsets[name] = len(whole) // 4
        whole += data
    storage = Storage(whole, "F32", "all")
    state = {name: Tensor(storage, shape, offset=offsets[name]) for name, (_, shape, _) in tensors.items()}
    name = "model.layers.1.mlp.down_proj.weight"
    state[name] = transposed(tensors[name])
    state["model.layers.0.self_attn.o_proj.weight"] = Tensor(storage, (64, 64), (64, 1), offsets["model.layers.0.self_attn.o_proj.weight"])
    save(model / "pytorch_model.bin", state)
    assert answer(model) == answer(MODELS / "llama")
    assert answer(model, "--quantization", "int8") == answer(MODELS / "llama", "--quantization", "int8")


def test_tied_weights_are_one_tensor(tmp_path):
    model = folder(tmp_path, "llama-bias-tied")
    state = state_dict(tensors_of(MODELS / "llama-bias-tied"))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    save(model / "pytorch_model.bin", state)
    assert answer(model) == answer(MODELS / "llama-bias-tied")


def sharded(model, tensors, write=save):
    names = sorted(tensors)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, mine in halves.items():
        write(model / file, state_dict({n: tensors[n] for n in mine}))
    index = {"metadata": {}, "weight_map": {n: file for file, mine in halves.items() for n in mine}}
    (model / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("write", [save, save_legacy])
def test_shards(tmp_path, write):
    model = folder(tmp_path, "llama")
    sharded(model, tensors_of(MODELS / "llama"), write)
    assert answer(model) == answer(MODELS / "llama")
    (model / "pytorch_model-00002-of-00002.bin").unlink()
    assert "the shard pytorch_model-00002-of-00002.bin is missing" in refusal(model)


def test_served_over_http(start, tmp_path):
    model = folder(tmp_path, "llama")
    sharded(model, tensors_of(MODELS / "llama"))
    reference = json.loads((MODELS / "llama/golden.json").read_text())["prompts"][1]
    server = start(model, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--load-format", "pt")
    body = {"prompt": reference["ids"], "max_tokens": len(reference["greedy"]), "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    assert server.post("/v1/completions", body)[1]["choices"][0]["token_ids"] == reference["greedy"]


class Call:
    """Pickles as a call of this function with these arguments."""
    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("function, name", [(os.system, "os.system"), (eval, "builtins.eval"), (subprocess.Popen, "subprocess.Popen"),
                                            (pathlib.PurePosixPath, "PurePosixPath"), (getattr, "builtins.getattr"),
                                            (torch_files.named("torch", "load"), "torch.load"),
                                            (torch_files.named("torch.hub", "load"), "torch.hub.load"),
                                            (torch_files.named("torch._utils", "_rebuild_qtensor"), "torch._utils._rebuild_qtensor"),
                                            (torch_files.named("torch", "QInt8Storage"), "torch.QInt8Storage")])
def test_code_is_refused_by_name_and_not_run(tmp_path, protocol, function, name):
    model, mark = folder(tmp_path, "llama"), tmp_path / "ran"
    state = state_dict(tensors_of(MODELS / "llama"))
    state["evil"] = Call(function, f"touch {mark}")
    save(model / "pytorch_model.bin", state, protocol)
    message = refusal(model)
    assert "refuses " in message and name in message and "a pickle that runs code" in message
    save_legacy(model / "pytorch_model.bin", state)
    assert name in refusal(model)
    done = subprocess.run([BIN / "quire", "generate", model, "--prompt-ids", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and name in done.stderr
    assert not mark.exists()


class Plain:
    pass


def test_objects_of_classes_are_refused(tmp_path):
    model = folder(tmp_path, "llama")
    save(model / "pytorch_model.bin", {"model": Plain()})
    assert "refuses copyreg" in refusal(model) or "refuses test_weight_files.Plain" in refusal(model)


def broken(path, old, new):
    data = path.read_bytes()
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, new))


def test_files_that_are_not_read_say_why(tmp_path):
    model = folder(tmp_path, "llama")
    file, tensors = model / "pytorch_model.bin", tensors_of(MODELS / "llama")
    save(file, state_dict(tensors), compress=True)
    assert "data.pkl is compressed; torch.save stores entries as they are" in refusal(model)
    save(file, state_dict(tensors), byteorder=b"big")
    assert 'its byteorder is not "little"' in refusal(model)
    save(file, {"state": state_dict(tensors), "epoch": 3})
    assert "its pickle is a dict without tensors: state, epoch; expected a dict of names and tensors" in refusal(model)
    save(file, [1, 2])
    assert "its pickle is a list without tensors" in refusal(model)
    file.write_bytes(b"\x80\x04K\x01.")
    assert "not a file that torch.save wrote" in refusal(model)
    save(file, state_dict(tensors))
    file.write_bytes(file.read_bytes()[:-300])
    assert "no end record: the file is truncated" in refusal(model)
    save(file, {"x": Tensor(Storage(b"\0" * 64, "F32", 0), (4, 5))})
    assert "tensor x: offset, shape and strides lead outside of its storage of 64 bytes" in refusal(model)
    save(file, {"x": Tensor(Storage(b"\0" * 64, "F32", 0), (4, 4), offset=1)})
    assert "lead outside of its storage" in refusal(model)
    save(file, {"x": Tensor(Storage(b"\0" * 64, "F32", 0), (1 << 40, 1 << 40), (0, 0))})
    assert "lead outside of its storage" in refusal(model)
    save(file, {"x": Tensor(Storage(b"\0" * 64, "F32", 0), (1 << 20, 4), (0, 1))})
    assert "tensor x repeats elements of its storage (an expanded view)" in refusal(model)
    save(file, {"x": Tensor(Storage(b"\0" * 64, "F32", 0), (4, 4)), "y\n": Tensor(Storage(b"\0" * 64, "F32", 1), (4, 4))})
    assert "the name of a tensor is empty, too long, or no text" in refusal(model)
    save_legacy(file, state_dict(tensors))
    file.write_bytes(file.read_bytes()[:-300])
    assert "the file is truncated" in refusal(model)


# ---- which files ----

def test_load_format_takes_the_named_files(tmp_path):
    model = folder(tmp_path, "llama")
    tensors = tensors_of(MODELS / "llama")
    save(model / "pytorch_model.bin", state_dict({n: (d, s, bytes(len(b))) for n, (d, s, b) in tensors.items()}))
    assert answer(model) == answer(model, "--load-format", "pt") != answer(MODELS / "llama")
    message = refusal(model, "--load-format", "safetensors")
    assert "--load-format safetensors reads one of model.safetensors, model.safetensors.index.json, and none of them exists" in message
    assert "the folder has pytorch_model.bin (--load-format pt)" in message
    shutil.copy(MODELS / "llama/model.safetensors", model)
    assert answer(model) == answer(model, "--load-format", "safetensors") == answer(MODELS / "llama")  # safetensors first
    assert answer(model, "--load-format", "pt") != answer(MODELS / "llama")
    assert "none of them exists; the folder has model.safetensors" in refusal(model, "--load-format", "mistral")
    assert answer(model, "--load-format", "dummy") == answer(model, "--load-format", "dummy") != answer(model)
    for wrong in ("tensorizer", "PT"):
        message = refusal(model, "--load-format", wrong)
        assert f'--load-format is "{wrong}"' in message and f"expected {FORMATS}" in message
    assert "has no GGUF file; it has weights of another format" in refusal(model, "--load-format", "gguf")


def files_of(model, *options):
    done = subprocess.run([BIN / "quire", "check-model", model, "--weights", "--json", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    return plan["load_format"], plan["files"]


def test_check_model_shows_which_files(tmp_path):
    assert files_of(MODELS / "llama") == ("safetensors", "model.safetensors")
    assert files_of(MODELS / "llama-bf16-sharded") == ("safetensors", "model.safetensors.index.json")
    assert files_of(MODELS / "llama-bin") == ("pt", "pytorch_model.bin")
    assert files_of(MODELS / "llama-bin", "--load-format", "dummy") == ("dummy", "")
    done = subprocess.run([BIN / "quire", "check-model", MODELS / "llama-bin", "--weights"], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == "weights of pytorch_model.bin (--load-format pt)"


# ---- names of all kinds, without an index ----

def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_files_without_an_index(tmp_path):
    model = folder(tmp_path, "llama")
    whole = model / "gptq_model-4bit-128g.safetensors"
    shutil.copy(MODELS / "llama/model.safetensors", whole)
    want = answer(MODELS / "llama")
    assert answer(model) == answer(model, "--load-format", "safetensors") == want
    assert files_of(model) == ("safetensors", whole.name)
    assert "the folder has *.safetensors (--load-format safetensors)" in refusal(model, "--load-format", "pt")
    tensors = sorted(tensors_of(MODELS / "llama").items())
    write_safetensors(model / "model-00001-of-00002.safetensors", dict(tensors[::2]))
    assert "and model-00002-of-00002.safetensors is missing: the model is incomplete" in refusal(model)
    write_safetensors(model / "model-00002-of-00002.safetensors", dict(tensors[1::2]))
    twice = refusal(model)
    assert f"{whole} and model-0000" in twice and f"both have the tensor {tensors[0][0]}" in twice
    whole.unlink()
    assert answer(model) == want and files_of(model) == ("safetensors", "*.safetensors")


# ---- Mistral's layout ----

def interleaved(tensor, head):
    """Rows of heads in halves to rows in pairs."""
    dtype, shape, data = tensor
    n = len(data) // shape[0]
    rows = [data[i * n:(i + 1) * n] for i in range(shape[0])]
    half = head // 2
    return dtype, shape, b"".join(rows[h + (i % 2) * half + i // 2] for h in range(0, shape[0], head) for i in range(head))


PARTS = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
         "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
         "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
         "block_sparse_moe.gate": "feed_forward.gate", "block_sparse_moe.experts": "feed_forward.experts"}
WHOLE = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "output.weight"}


def own_names(tensors, head):
    out = {}
    for name, tensor in tensors.items():
        if "rotary_emb" in name:
            continue
        if ".q_proj." in name or ".k_proj." in name:
            tensor = interleaved(tensor, head)
        new = WHOLE.get(name) or name.removeprefix("model.")
        for old, part in PARTS.items():
            new = new.replace(old + ".", part + ".")
        out[new] = tensor
    return out


def params_of(config):
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    params = {"dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "head_dim": head,
              "hidden_dim": config["intermediate_size"], "n_heads": config["num_attention_heads"],
              "n_kv_heads": config["num_key_value_heads"], "norm_eps": config["rms_norm_eps"], "vocab_size": config["vocab_size"],
              "rope_theta": config["rope_theta"], "max_seq_len": config["max_position_embeddings"],
              "sliding_window": config.get("sliding_window"), "tied_embeddings": config.get("tie_word_embeddings", False)}
    if "num_local_experts" in config:
        params["moe"] = {"num_experts": config["num_local_experts"], "num_experts_per_tok": config["num_experts_per_tok"]}
    return params


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def own_layout(tmp_path, name, file="consolidated.safetensors", **changes):
    """The golden in Mistral's layout, without config.json."""
    config = json.loads((MODELS / name / "config.json").read_text())
    params = {**params_of(config), **changes}
    model = tmp_path / name
    model.mkdir()
    (model / "params.json").write_text(json.dumps({k: v for k, v in params.items() if v is not None}))
    tensors = own_names(tensors_of(MODELS / name), params["head_dim"] or config["hidden_size"] // config["num_attention_heads"])
    if file.endswith(".pth"):
        save(model / file, state_dict({**tensors, "rope.freqs": ("F32", (8,), bytes(32))}), folder="consolidated.00")
    else:
        write_safetensors(model / file, tensors)
    return model


@pytest.mark.parametrize("file", ["consolidated.safetensors", "consolidated.00.pth"])
@pytest.mark.parametrize("name", ["mistral", "mixtral", "llama"])
def test_own_layout_gives_the_same_bits(tmp_path, name, file):
    model = own_layout(tmp_path, name, file)
    assert answer(model, "--dtype", "float32") == answer(MODELS / name, "--dtype", "float32")
    assert answer(model, "--quantization", "int8") == answer(MODELS / name, "--quantization", "int8")
    assert files_of(model) == ("mistral", file)


def test_own_layout_in_shards(tmp_path):
    model = own_layout(tmp_path, "mistral")
    tensors = tensors_of(model)
    (model / "consolidated.safetensors").unlink()
    names = sorted(tensors)
    index = {"weight_map": {}}
    for file, mine in (("consolidated-00001-of-00002.safetensors", names[::2]), ("consolidated-00002-of-00002.safetensors", names[1::2])):
        write_safetensors(model / file, {n: tensors[n] for n in mine})
        index["weight_map"].update(dict.fromkeys(mine, file))
    (model / "consolidated.safetensors.index.json").write_text(json.dumps(index))
    assert answer(model) == answer(MODELS / "mistral")


def test_own_names_beside_a_config(tmp_path):
    """As Mistral's repositories are: both layouts. auto takes the Hugging Face files, mistral the others."""
    model = own_layout(tmp_path, "mistral")
    shutil.copy(MODELS / "mistral/config.json", model)
    assert answer(model) == answer(MODELS / "mistral")  # there are no other files
    zeros = {n: (d, s, bytes(len(b))) for n, (d, s, b) in tensors_of(MODELS / "mistral").items()}
    write_safetensors(model / "model.safetensors", zeros)
    assert files_of(model) == ("safetensors", "model.safetensors")
    assert answer(model, "--load-format", "mistral") == answer(MODELS / "mistral") != answer(model)
    (model / "config.json").unlink()
    assert files_of(model) == ("mistral", "consolidated.safetensors")


def test_own_layout_over_http(start, tmp_path):
    model = own_layout(tmp_path, "mistral")
    reference = json.loads((MODELS / "mistral/golden.json").read_text())["prompts"][2]
    server = start(model, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256")
    body = {"prompt": reference["ids"], "max_tokens": len(reference["greedy"]), "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    assert server.post("/v1/completions", body)[1]["choices"][0]["token_ids"] == reference["greedy"]


def test_width_as_meta_computes_it(tmp_path):
    """The llama golden's width is 2/3 of 4 dim, 170 for its 64, rounded up to a multiple of this one."""
    config = json.loads((MODELS / "llama/config.json").read_text())
    width = config["intermediate_size"]
    model = own_layout(tmp_path, "llama", "consolidated.00.pth", hidden_dim=None, multiple_of=width, ffn_dim_multiplier=0.3)
    assert answer(model) == answer(MODELS / "llama")


@pytest.mark.parametrize("changes, part", [
    ({"dim": None}, "params.json: dim is missing; params.json of Mistral's layout has dim, n_layers"),
    ({"hidden_dim": None}, "hidden_dim is missing (or multiple_of, as Meta's have it)"),
    ({"n_heads": "8"}, "n_heads"),
    ({"vocab_size": -1}, "vocab_size is -1, which stands for the tokenizer's; write the number of rows of tok_embeddings.weight"),
    ({"sliding_window": [None, 64]}, "sliding_window is a list, a value for each layer"),
    ({"vision_encoder": {"hidden_size": 8}}, "vision_encoder is not supported in this layout"),
    ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "quantization is not supported in this layout"),
    ({"use_scaled_rope": True}, "use_scaled_rope is not supported in this layout"),
    ({"q_lora_rank": 512}, "the key q_lora_rank is not known, and what it changes would be lost"),
    ({"moe": {"num_experts": 4, "num_experts_per_tok": 2, "expert_hidden_dim": 8}}, "moe.expert_hidden_dim is not supported"),
    ({"vocab_size": 1000}, "has shape"),
])
def test_params_that_are_not_read_say_why(tmp_path, changes, part):
    assert part in refusal(own_layout(tmp_path, "mistral", **changes))


def test_missing_and_divided_files_of_this_layout(tmp_path):
    model = own_layout(tmp_path, "mistral", "consolidated.00.pth")
    shutil.copy(model / "consolidated.00.pth", model / "consolidated.01.pth")
    assert "hold a part of each matrix (tensor parallel)" in refusal(model)
    for file in model.glob("*.pth"):
        file.unlink()
    assert "no weights" in refusal(model)
