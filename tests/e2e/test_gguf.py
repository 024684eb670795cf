# SPDX-License-Identifier: Apache-2.0
"""GGUF files as models: the same tokens and log-probabilities as the folder that a file was made of (float32), and as a folder with the
floats that a file's blocks stand for, or near ones where products are of integers; tokenizers, templates, split files, choice of a file;
what is refused, by name."""
import json
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gguf_blocks
import gguf_files as files
from hub_server import Hub, Repo
from servers import BIN, BUNDLED, MODELS, ROOT, Server

SAME = ("llama", "llama-bias-tied", "llama-rope-linear", "llama-rope-yarn", "llama-rope-llama3", "mixtral", "qwen2", "qwen2_moe", "qwen3",
        "gemma", "phi", "phi3", "phi3-longrope", "gpt2", "stablelm", "stablelm-parallel", "cohere", "cohere2", "olmo", "olmo2", "olmoe",
        "granite", "smollm3", "exaone4", "glm4")
WINDOWS = ("mistral", "starcoder2")  # which ggml's files of these have not
NEAR = ("gemma2", "gemma3")  # q is multiplied in the file (fold_query_scalar)
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
          "NVFP4", "Q1_0", "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
PROMPT = [5, 9, 20, 33, 7, 60, 41]
TOKENIZERS = ROOT / "tests/data/tokenizers"
ROUNDED = 0.006  # of a log-probability: inputs in 15 bits against floats change 0.0032 at most
FEW_RANKS = 3  # tokens of the top 5 that both have


def run(*args, **options):
    return subprocess.run([BIN / "quire", *map(str, args)], capture_output=True, text=True, timeout=120, **options)


def answer(model, *options, max_tokens=24, env=None):
    line = {"prompt_token_ids": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    done = run("generate", model, "--skip-tokenizer-init", "-i", "-", "--dtype", "float32", *options, input=json.dumps(line), env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_near(got, want):
    """The same tokens, and log-probabilities but for the rounding of inputs to 15 bits (kernels/ops/ops_codes.h)."""
    near = lambda value: pytest.approx(value, abs=ROUNDED, rel=0)  # noqa: E731
    assert got["token_ids"] == want["token_ids"] and got["finish_reason"] == want["finish_reason"]
    for ours, theirs in zip(got["logprobs"], want["logprobs"], strict=True):
        assert ours["token_id"] == theirs["token_id"] and ours["logprob"] == near(theirs["logprob"])
        top, other = ({t["token_id"]: t["logprob"] for t in row["top"]} for row in (ours, theirs))
        both = top.keys() & other.keys()
        assert len(both) >= FEW_RANKS and {i: top[i] for i in both} == near({i: other[i] for i in both})


def refused(model, words, *options, env=None):
    done = run("check-model", model, *options, env=env)
    assert done.returncode == 3 and not done.stdout, done.stdout + done.stderr
    for word in words:
        assert str(word) in done.stderr, f"{word} is not in: {done.stderr}"


def with_config(folder, tmp, **keys):
    """A copy of a model folder with other keys in config.json."""
    tmp.mkdir()
    for path in folder.glob("*.safetensors"):
        shutil.copy(path, tmp)
    config = json.loads((folder / "config.json").read_text()) | keys
    (tmp / "config.json").write_text(json.dumps(config))
    return tmp


def distance(a, b):
    """The largest difference of two answers' log-probabilities; the tokens are the same."""
    assert a["token_ids"] == b["token_ids"]
    return max(abs(x["logprob"] - y["logprob"]) for x, y in zip(a["logprobs"], b["logprobs"]))


# ---- architectures ----

@pytest.mark.parametrize("name", SAME)
def test_same_as_the_folder(name, tmp_path):
    files.make_gguf(MODELS / name, tmp_path / "m.gguf")
    assert answer(tmp_path / "m.gguf") == answer(MODELS / name)


@pytest.mark.parametrize("name", WINDOWS)
def test_same_without_the_window(name, tmp_path):
    files.make_gguf(MODELS / name, tmp_path / "m.gguf")
    assert answer(tmp_path / "m.gguf") == answer(with_config(MODELS / name, tmp_path / "model", sliding_window=None))


@pytest.mark.parametrize("name", NEAR)
def test_near_the_folder(name, tmp_path):
    files.make_gguf(MODELS / name, tmp_path / "m.gguf")
    assert distance(answer(tmp_path / "m.gguf"), answer(MODELS / name)) < 1e-4


def test_qwen3_with_experts(tmp_path):
    """The golden's first layer is dense, which such files cannot say; the second one is the model here."""
    tensors = load_file(MODELS / "qwen3_moe/model.safetensors")
    out = {name.replace("layers.1.", "layers.0."): values for name, values in tensors.items() if "layers.0." not in name}
    model = with_config(MODELS / "qwen3_moe", tmp_path / "model", num_hidden_layers=1, mlp_only_layers=[])
    for path in model.glob("*.safetensors"):
        path.unlink()
    save_file(out, model / "model.safetensors")
    files.make_gguf(model, tmp_path / "m.gguf")
    assert answer(tmp_path / "m.gguf") == answer(model)


def test_windows_of_each_layer(tmp_path):
    """A bool for each layer instead of a period."""
    family, config, tensors = files.converted(MODELS / "exaone4")
    del config["sliding_window_pattern"]
    w = files.writer_of(tmp_path / "m.gguf", family, config)
    w.add_array(f"{w.arch}.attention.sliding_window_pattern", [True, True, True, False])
    for name, values in tensors.items():
        w.add_tensor(name, values)
    files.finish(w)
    assert answer(tmp_path / "m.gguf") == answer(MODELS / "exaone4")


def test_a_window_of_zero_is_none(tmp_path):
    """As llama.cpp's converter writes it for Phi-4."""
    model = with_config(MODELS / "phi3", tmp_path / "model", sliding_window=None)
    files.make_gguf(model, tmp_path / "m.gguf", metadata=lambda w: w.add_sliding_window(0))
    assert answer(tmp_path / "m.gguf") == answer(model)


@pytest.mark.parametrize("key", ("rope.scaling.factor", "rope.scale_linear"))
def test_positions_are_divided_without_a_kind(key, tmp_path):
    """Linear is llama.cpp's rule where rope.scaling.type is missing; older files have the other key."""
    model = with_config(MODELS / "llama", tmp_path / "model", rope_scaling={"type": "linear", "factor": 4.0})
    files.make_gguf(MODELS / "llama", tmp_path / "m.gguf", metadata=lambda w: w.add_float32(f"llama.{key}", 4.0))
    assert answer(tmp_path / "m.gguf") == answer(model)


def add_plain_tokens(w):
    """A tokenizer that llama.cpp accepts, of as many tokens as the goldens have."""
    n = 512
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>", *(f"▁t{i}" for i in range(3, n))])
    w.add_token_scores([0.0] * n)
    w.add_token_types([2, 3, 3] + [1] * (n - 3))


LLAMA_CPP = json.loads((ROOT / "tests/data/gguf/llama_cpp.json").read_text())


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_as_llama_cpp(name, tmp_path):
    """Of the same file; llama.cpp keeps K and V in f16."""
    files.make_gguf(MODELS / name, tmp_path / "m.gguf", "F32", add_plain_tokens)
    got, want = answer(tmp_path / "m.gguf", max_tokens=8), LLAMA_CPP[name]
    assert got["token_ids"] == want["token_ids"]
    assert max(abs(t["logprob"] - w) for t, w in zip(got["logprobs"], want["logprobs"])) < 0.02


BLOCKS_BY_LLAMA_CPP = json.loads((ROOT / "tests/data/gguf/llama_cpp_blocks.json").read_text())


@pytest.mark.parametrize("arch,kind", gguf_blocks.CASES)
def test_blocks_as_llama_cpp(arch, kind, tmp_path):
    """Log-probabilities of the next token, of the same file. llama.cpp rounds the inputs of products to 8 bits (of F16 and BF16 weights
    to their type) and K and V to f16, and quire those of Q4_0 to 8 bits; what that changes was computed when the goldens were made, and
    twice as much may differ."""
    golden = BLOCKS_BY_LLAMA_CPP[f"{arch} {kind}"]
    path = tmp_path / "m.gguf"
    gguf_blocks.make(path, arch, kind)
    assert gguf_blocks.sum_of(path) == golden["file"], "the file is not the one that llama.cpp read: run tests/data/gguf/llama_cpp.py anew"
    lines = [json.dumps({"prompt_token_ids": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 20})
             for ids in gguf_blocks.PROMPTS]
    done = run("generate", path, "--skip-tokenizer-init", "-i", "-", "--dtype", "float32", input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    differences = []
    for line, want in zip(done.stdout.splitlines(), golden["prompts"]):
        got = {t["token_id"]: t["logprob"] for t in json.loads(line)["logprobs"][0]["top"]}
        assert len(got) >= 20 and set(want["ids"][:5]) <= set(got)
        differences += [got[i] - x for i, x in zip(want["ids"], want["logprobs"]) if i in got]
    assert len(differences) > 30
    assert np.sqrt(np.mean(np.square(differences))) < 2 * golden["explained"] + 0.001  # the goldens have 4 digits


# ---- types ----

@pytest.mark.parametrize("tied", (False, True))
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks(kind, tied, tmp_path):
    """In every matrix but one a layer, beside the floats that they stand for: MXFP4 and NVFP4 give the same bits."""
    rng = np.random.default_rng(7)
    model = files.random_folder(tmp_path / "model", rng, tie=tied)
    if kind == "Q4_0":  # of most blocks their integers would stay, and inputs become integers too
        same = some_q4_0(tmp_path, model)
    else:
        stands = files.make_blocks(model, tmp_path / "m.gguf", rng, kind, ("attn_v",))
        same = files.folder_of(tmp_path / "floats", model, stands)
    got, want = answer(tmp_path / "m.gguf"), answer(same)
    if kind in ("MXFP4", "NVFP4"):
        assert got == want
    else:
        assert_near(got, want)


def some_q4_0(tmp_path, model):
    """A file with some matrices of Q4_0 and most of Q8_0, so that all become floats; the folder of its floats."""
    family, config, tensors = files.converted(model)
    w = files.writer_of(tmp_path / "m.gguf", family, config)
    stands = {}
    for name, values in tensors.items():
        kind = "F32" if values.ndim == 1 else "Q4_0" if "ffn_down" in name else "Q8_0"
        raw, of = files.packed(values, kind)
        stands[name] = raw if kind == "F32" else files.gguf.dequantize(raw, of)
        w.add_tensor(name, raw, raw_dtype=of)
    files.finish(w)
    return files.folder_of(tmp_path / "floats", model, stands)


@pytest.mark.parametrize("name", ("phi3", "stablelm", "glm4"))
def test_blocks_of_fused_tensors(name, tmp_path):
    """q, k and v, or gate and up, are rows of one tensor in blocks; heads that are no whole panels."""
    kind = lambda name, values: "Q8_0" if values.ndim == 2 and "embd" not in name and values.shape[1] % 32 == 0 else "F32"  # noqa: E731
    stands = files.make_gguf(MODELS / name, tmp_path / "m.gguf", kind)
    assert_near(answer(tmp_path / "m.gguf"), answer(files.folder_of(tmp_path / "floats", MODELS / name, stands)))


@pytest.mark.parametrize("kind", ("F16", "BF16"))
def test_halves(kind, tmp_path):
    stands = files.make_gguf(MODELS / "llama", tmp_path / "m.gguf", kind)
    assert answer(tmp_path / "m.gguf") == answer(files.folder_of(tmp_path / "floats", MODELS / "llama", stands))


def test_experts_in_blocks(tmp_path):
    """A stack of experts is cut where each one begins."""
    stands = files.make_gguf(MODELS / "mixtral", tmp_path / "m.gguf", lambda name, values: "Q8_0" if "exps" in name else "F32")
    tensors = load_file(MODELS / "mixtral/model.safetensors")
    names = {"w1": "gate", "w2": "down", "w3": "up"}
    for name in tensors:
        parts = name.split(".")
        if "experts" in parts:
            tensors[name] = np.ascontiguousarray(stands[f"blk.{parts[2]}.ffn_{names[parts[-2]]}_exps.weight"][int(parts[5])])
    model = with_config(MODELS / "mixtral", tmp_path / "floats")
    save_file(tensors, model / "model.safetensors")
    assert_near(answer(tmp_path / "m.gguf"), answer(model))


def packed_q4_0(folder, raws):
    """compressed-tensors' form of the integers and scales of Q4_0."""
    out = {}
    for name, raw in raws.items():
        blocks = raw.reshape(raw.shape[0], -1, 18)
        q = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).reshape(raw.shape[0], -1).astype(np.uint32)
        eight = q.reshape(q.shape[0], -1, 8)
        base = name.removesuffix(".weight")
        out[base + ".weight_packed"] = (eight << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32).view(np.int32)
        out[base + ".weight_scale"] = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
        out[base + ".weight_shape"] = np.array(q.shape, np.int64)
    return out


def test_q4_0_keeps_its_integers(tmp_path):
    """The same bits as a checkpoint of compressed-tensors with the same integers and scales; check-model says so."""
    rng = np.random.default_rng(3)
    model = files.random_folder(tmp_path / "model", rng)
    family, config, tensors = files.converted(model)
    w = files.writer_of(tmp_path / "m.gguf", family, config)
    stands, raws = {}, {}
    for name, values in tensors.items():
        raw, of = files.packed(values, "Q4_0")
        stands[name] = raw if values.ndim == 1 else files.gguf.dequantize(raw, of)
        raws[name] = raw
        w.add_tensor(name, raw, raw_dtype=of)
    files.finish(w)
    same = files.folder_of(tmp_path / "packed", model, stands)
    floats = load_file(same / "model.safetensors")
    integers = {}
    for name in [n for n in floats if floats[n].ndim == 2 and "embed" not in n]:
        values = floats.pop(name)
        integers[name] = files.packed(values, "Q4_0")[0]
        assert np.array_equal(files.gguf.dequantize(integers[name], files.Type.Q4_0), values)
    save_file(floats | packed_q4_0(same, integers), same / "model.safetensors")
    config = json.loads((same / "config.json").read_text())
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized",
                                     "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    (same / "config.json").write_text(json.dumps(config))
    assert answer(tmp_path / "m.gguf") == answer(same)
    shown = run("check-model", tmp_path / "m.gguf", "--weights").stdout
    assert "int4 in groups of 32" in shown and "as the checkpoint stores it" in shown and "blk.0.attn_output.weight" in shown


@pytest.mark.parametrize("to", ("int8", "int4"))
def test_quantized_while_loading(to, tmp_path):
    """Blocks become what --quantization says, as the folder of their floats does."""
    rng = np.random.default_rng(11)
    model = files.random_folder(tmp_path / "model", rng)
    stands = files.make_blocks(model, tmp_path / "m.gguf", rng, "Q4_K")
    same = files.folder_of(tmp_path / "floats", model, stands)
    assert answer(tmp_path / "m.gguf", "--quantization", to) == answer(same, "--quantization", to)


def test_memory_of_blocks_is_logged(tmp_path):
    rng = np.random.default_rng(11)
    model = files.random_folder(tmp_path / "model", rng)
    files.make_blocks(model, tmp_path / "m.gguf", rng, "Q4_K")
    done = run("check-model", tmp_path / "m.gguf", "--log-level", "info")
    assert done.returncode == 0 and "matrices stay in the checkpoint's own 4 or 8 bits" in done.stderr, done.stderr
    assert "become floats" not in done.stderr, done.stderr


def test_types_differ_as_llama_cpp_mixes_them(tmp_path):
    """q and k of Q4_K beside v of Q6_K, gate of Q8_0 beside up of IQ4_NL: one matrix holds both."""
    rng = np.random.default_rng(5)
    model = files.random_folder(tmp_path / "model", rng)
    family, config, tensors = files.converted(model)
    w = files.writer_of(tmp_path / "m.gguf", family, config)
    kinds = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q5_K", "ffn_gate": "Q8_0", "ffn_up": "IQ4_NL",
             "ffn_down": "Q2_K", "output.": "Q6_K"}
    stands = {}
    for name, values in tensors.items():
        kind = next((k for part, k in kinds.items() if part in name and values.ndim == 2), "F32")
        raw, of = files.packed(values, "F32") if kind == "F32" else files.random_blocks(rng, values.shape, kind, files.ORDINARY.get(kind, 0.002))
        stands[name] = raw if kind == "F32" else files.gguf.dequantize(raw, of)
        w.add_tensor(name, raw, raw_dtype=of)
    files.finish(w)
    assert_near(answer(tmp_path / "m.gguf"), answer(files.folder_of(tmp_path / "floats", model, stands)))
    plan = json.loads(run("check-model", tmp_path / "m.gguf", "--weights", "--json").stdout)
    forms = {row["name"].removeprefix("layers.0."): (row["form"], row["group"]) for row in plan["rows"]}
    assert forms["qkv"] == ("8-bit codes", 16) and forms["out"] == ("8-bit codes", 32), forms
    assert forms["gate_up"] == ("8-bit codes", 32) and forms["down"] == ("4-bit codes", 16), forms


# ---- tokenizers and templates ----

def encoded(model, texts, special=True):
    lines = "\n".join(json.dumps({"text": text, "add_special_tokens": special}) for text in texts)
    done = run("tokenize", model, input=lines)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["ids"] for line in done.stdout.split("\n") if line]


@pytest.mark.parametrize("name,pre", (("llama3", "llama-bpe"), ("qwen2", "qwen2"), ("gpt2", "gpt-2"), ("o200k", "gpt-4o")))
def test_byte_level_tokenizers(name, pre, tmp_path):
    """Ids as of the tokenizer.json that the metadata was made of, and texts back."""
    golden = json.loads((TOKENIZERS / name / "golden.json").read_text())

    def add(w):
        tokens = files.add_tokenizer(w, TOKENIZERS / name / "tokenizer.json", pre)
        if name == "llama3":
            w.add_bos_token_id(tokens.index("<|begin_of_text|>"))
    path = files.metadata_file(tmp_path / "t.gguf", add)
    added = json.loads((TOKENIZERS / name / "tokenizer.json").read_text())["added_tokens"]
    bound = [a["content"] for a in added if a["lstrip"] or a["rstrip"] or a["single_word"] or a["normalized"]]  # GGUF cannot say these
    cases = [case for case in golden["cases"] if not any(text in case["text"] for text in bound)]
    assert len(cases) > 150
    assert encoded(path, [case["text"] for case in cases]) == [case["ids"] for case in cases]
    lines = "\n".join(json.dumps({"ids": case["ids"], "skip_special_tokens": False}) for case in cases)
    shown = run("tokenize", path, input=lines)
    assert [json.loads(line)["text"] for line in shown.stdout.split("\n") if line] == [case["decoded"] for case in cases]


def test_sentencepiece(tmp_path):
    """As the tokenizer.model of a LlamaTokenizer."""
    kept = {}

    def add(w):
        sp = kept["sp"] = files.add_sentencepiece(w, TOKENIZERS / "sp_bpe/tokenizer.model")
        w.add_add_space_prefix(True)
        w.add_add_bos_token(False)
        w.add_unk_token_id(sp.unk_id())
    path = files.metadata_file(tmp_path / "t.gguf", add)
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(TOKENIZERS / "sp_bpe/tokenizer.model", folder)
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    texts = [case["text"] for case in json.loads((TOKENIZERS / "sp_bpe/golden.json").read_text())["cases"]]
    assert encoded(path, texts) == encoded(folder, texts)
    plain = ["naïve", "Hello world", "tabs and  spaces", "12 345"]
    assert encoded(path, plain) == [kept["sp"].encode(text) for text in plain]


@pytest.mark.parametrize("bos,eos", ((True, False), (False, True), (True, True), (False, False)))
def test_ends_of_a_text(bos, eos, tmp_path):
    def add(w):
        tokens = files.add_tokenizer(w, TOKENIZERS / "llama3/tokenizer.json", "llama-bpe")
        w.add_bos_token_id(tokens.index("<|begin_of_text|>"))
        w.add_eos_token_id(tokens.index("<|end_of_text|>"))
        w.add_add_bos_token(bos)
        w.add_add_eos_token(eos)
        add.ids = tokens.index("<|begin_of_text|>"), tokens.index("<|end_of_text|>")
    path = files.metadata_file(tmp_path / "t.gguf", add)
    [plain], [ids] = encoded(path, ["Hello"], False), encoded(path, ["Hello"])
    assert ids == [add.ids[0]] * bos + plain + [add.ids[1]] * eos


def add_chat(w):
    tokens = files.add_tokenizer(w, BUNDLED / "tokenizer.json", "qwen2")
    template = json.loads((BUNDLED / "tokenizer_config.json").read_text())["chat_template"]
    w.add_chat_template(template)
    w.add_eos_token_id(tokens.index("<|im_end|>"))
    w.add_add_bos_token(False)


def test_template(tmp_path):
    """Of the metadata, with the texts of its special tokens."""
    files.make_gguf(BUNDLED, tmp_path / "m.gguf", "F16", add_chat)
    line = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})
    mine, theirs = (run("render", model, input=line) for model in (tmp_path / "m.gguf", BUNDLED))
    assert mine.returncode == 0, mine.stderr
    assert mine.stdout == theirs.stdout


def test_several_templates(tmp_path):
    def add(w):
        add_chat(w)
        w.add_key_value("tokenizer.chat_template.tool_use", "TOOLS", files.gguf.GGUFValueType.STRING)
        w.add_array("tokenizer.chat_templates", ["tool_use"])
    files.make_gguf(BUNDLED, tmp_path / "m.gguf", "F16", add)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    line = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "tools": [tool]})
    done = run("render", tmp_path / "m.gguf", input=line)
    assert done.returncode == 0 and "TOOLS" in done.stdout, done.stdout + done.stderr


def test_generation_ends(tmp_path):
    """At the file's eos token and at control tokens that are known to end turns."""
    files.make_gguf(BUNDLED, tmp_path / "m.gguf", "F16", add_chat)
    line = json.dumps({"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "max_tokens": 200})
    done = run("generate", tmp_path / "m.gguf", "--tokenizer", BUNDLED, "-i", "-", input=line)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["finish_reason"] == "stop" and "quire" in json.dumps(out)


# ---- files ----

def test_split(tmp_path):
    """Three files, named by any of them; one that is missing."""
    files.make_gguf(MODELS / "llama", tmp_path / "m.gguf", "F32", split_max_tensors=8)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 3
    want = answer(MODELS / "llama")
    assert answer(parts[0]) == want and answer(parts[2]) == want and answer(tmp_path) == want
    parts[1].unlink()
    refused(parts[0], [parts[1], "split into 3 files"])


def test_choice_of_a_file(tmp_path):
    for kind in ("F16", "BF16"):
        files.make_gguf(MODELS / "llama", tmp_path / f"tiny-{kind}.gguf", kind)
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    refused(tmp_path, ["several GGUF files", "tiny-BF16.gguf, tiny-F16.gguf", "MODEL:Q4_K_M"])
    refused(f"{tmp_path}:Q4_K_M", ["no GGUF file of Q4_K_M", "tiny-F16.gguf"])
    assert answer(f"{tmp_path}:f16") == answer(tmp_path / "tiny-F16.gguf") != answer(f"{tmp_path}:BF16")
    (tmp_path / "tiny-BF16.gguf").rename(tmp_path / "other.bin")
    assert answer(tmp_path, "--load-format", "gguf") == answer(tmp_path / "tiny-F16.gguf")
    refused(tmp_path / "other.bin", ["a GGUF file", "name that ends with .gguf"])


def test_folder_with_other_weights(tmp_path):
    """Safetensors come first, and both are told apart by name."""
    model = with_config(MODELS / "llama", tmp_path / "model")
    files.make_gguf(MODELS / "llama", model / "m.gguf", "F16")
    assert answer(model) == answer(MODELS / "llama")
    refused(model, ["--load-format gguf", "weights of other formats too"], "--load-format", "gguf")
    refused(model / "m.gguf", ["--load-format safetensors", "is a GGUF file"], "--load-format", "safetensors")
    (model / "model.safetensors").unlink()
    assert answer(model) == answer(model / "m.gguf")


def test_check_model(tmp_path):
    files.make_gguf(MODELS / "qwen3", tmp_path / "m.gguf", "Q8_0")
    shown = json.loads(run("check-model", tmp_path / "m.gguf", "--weights", "--json").stdout)
    assert shown["load_format"] == "gguf"
    stored = {source.get("stored") for row in shown["rows"] for source in row["sources"]}
    assert "Q8_0" in stored
    program = run("check-model", tmp_path / "m.gguf", "--program", "--dtype", "float32")
    assert program.stdout.startswith("Qwen3ForCausalLM: 2 layers")


@pytest.fixture
def hub(tmp_path):
    server = Hub()
    yield server, {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    server.close()


def test_download_of_one_quantization(hub, tmp_path):
    """ORG/NAME:TAG brings the files of that name alone, in whatever letters, and none again."""
    server, env = hub
    for kind in ("F16", "BF16"):
        files.make_gguf(MODELS / "llama", tmp_path / f"tiny-{kind.lower()}.gguf", kind, split_max_tensors=8)
    names = sorted(tmp_path.glob("*.gguf"))
    assert len(names) == 6
    server.repos["org/tiny"] = Repo({path.name: path.read_bytes() for path in names} | {"README.md": b"# tiny"})
    got = answer("org/tiny:BF16", env=env)
    assert got == answer(tmp_path / "tiny-bf16-00001-of-00003.gguf")
    here = {path.name for path in (tmp_path / "home").rglob("*.gguf")}
    assert here == {path.name for path in names if "-bf16-" in path.name}
    before = len(server.requests)
    assert answer("org/tiny:BF16", env=env) == got and len(server.requests) == before
    refused("org/tiny:Q4_K_M", ["Q4_K_M"], env=env)
    refused("org/other", ["org/other"], env=env)


def test_id_without_a_quantization(hub, tmp_path):
    server, env = hub
    server.repos["org/tiny"] = Repo({"tiny.Q4_0.gguf": b"GGUF", "tiny.Q8_0.gguf": b"GGUF"})
    refused("org/tiny", ["GGUF", "org/tiny:Q4_K_M"], env=env)


def test_served(tmp_path):
    """Over HTTP, by the file's name, with the template and the tokenizer of its metadata."""
    files.make_gguf(BUNDLED, tmp_path / "tiny.gguf", "BF16", add_chat)
    server = Server(tmp_path / "tiny.gguf", "--tokenizer", BUNDLED)
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "tiny.gguf"
    status, got = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0})
    assert status == 200 and "quire" in got["choices"][0]["message"]["content"] and got["choices"][0]["finish_reason"] == "stop"
    assert server.stop() == 0


# ---- refusals ----

@pytest.mark.parametrize("kind", ("Q8_1", "Q8_K"))
def test_types_that_are_not_read(kind, tmp_path):
    rng = np.random.default_rng(5)
    family, config, tensors = files.converted(files.random_folder(tmp_path / "model", rng))
    w = files.writer_of(tmp_path / "m.gguf", family, config)
    for name, values in tensors.items():
        raw, of = files.packed(values, "F32") if values.ndim == 1 else files.random_blocks(rng, values.shape, kind)
        w.add_tensor(name, raw, raw_dtype=of)
    files.finish(w)
    refused(tmp_path / "m.gguf", [f"has the type {kind}", "Q4_K_M", "supported are F32, F16"])


def test_settings_that_are_not_supported(tmp_path):
    def made(name, change, arch=None):
        def add(w):
            change(w)
        family, config, tensors = files.converted(MODELS / "llama")
        if arch:
            family = files.Family("x", arch)
        w = files.writer_of(tmp_path / name, family, config)
        add(w)
        for tensor, values in tensors.items():
            w.add_tensor(tensor, values)
        files.finish(w)
        return tmp_path / name
    refused(made("a.gguf", lambda w: None, "mamba"), ["architecture mamba", "supported are cohere2", "llama"])
    refused(made("b.gguf", lambda w: w.add_causal_attention(False)), ["llama.attention.causal is 0", "expected 1"])
    refused(made("c.gguf", lambda w: w.add_max_alibi_bias(8.0)), ["llama.attention.max_alibi_bias is 8"])
    refused(made("d.gguf", lambda w: w.add_string("llama.rope.scaling.type", "other")), ["llama.rope.scaling.type", '"other"', "yarn"])


def test_pre_tokenizers_that_are_not_known(tmp_path):
    path = files.metadata_file(tmp_path / "t.gguf", lambda w: files.add_tokenizer(w, TOKENIZERS / "gpt2/tokenizer.json", "viking"))
    done = run("tokenize", path, input='{"text": "a"}')
    assert done.returncode and 'tokenizer.ggml.pre is "viking"' in done.stderr and "llama-bpe" in done.stderr and "--tokenizer" in done.stderr


def test_damaged_files(tmp_path):
    files.make_gguf(MODELS / "llama", tmp_path / "m.gguf")
    raw = (tmp_path / "m.gguf").read_bytes()

    def put(at, format, value):
        def change(out):
            struct.pack_into(format, out, at, value)
        return change
    for name, change, words in (
            ("version", put(4, "<I", 1), ["GGUF version 1 is not supported, expected 2 or 3"]),
            ("endian", put(4, "<I", 3 << 24), ["big-endian"]),
            ("tensors", put(8, "<Q", 1 << 40), ["byte 8", "do not fit the file"]),
            ("values", put(16, "<Q", 1 << 60), ["byte 8", "do not fit the file"]),
            ("key", put(24, "<Q", 1 << 62), ["byte 32", "a key does not fit the file"])):
        refused(files.copy_with(tmp_path / "m.gguf", tmp_path / f"{name}.gguf", change), [f"{name}.gguf", *words])
    (tmp_path / "short.gguf").write_bytes(raw[:-1000])
    refused(tmp_path / "short.gguf", ["ends behind the file", "incomplete"])
    (tmp_path / "pointer.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    refused(tmp_path / "pointer.gguf", ["Git LFS pointer"])
    (tmp_path / "text.gguf").write_bytes(b"hello world, no model")
    refused(tmp_path / "text.gguf", ['first bytes are not "GGUF"'])
