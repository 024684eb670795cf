# SPDX-License-Identifier: Apache-2.0
"""quire check-model: what it prints, and its exit codes."""
import json
import shutil
import subprocess

import pytest

from servers import BIN, MODELS


def check(*args):
    return subprocess.run([BIN / "quire", "check-model", *map(str, args)], capture_output=True, text=True, timeout=60)


def test_summary():
    run = check(MODELS / "llama", "--max-num-seqs", "3")
    assert run.returncode == 0, run.stderr
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines() if not line.startswith(" "))
    assert lines["model"] == "LlamaForCausalLM (model_type llama), generates text"
    assert lines["files"] == "model.safetensors (--load-format safetensors): 21 tensors"
    assert lines["KV"] == "cache    F32, 512 B a token, 128 KiB of 256 tokens, 384 KiB of 3 such sequences"


@pytest.mark.parametrize("model, expected", [
    ("llama", {"kv_bytes_per_token": 2 * 2 * 2 * 16 * 4, "kv_bytes_per_sequence": 256 * 512, "state_bytes_per_sequence": 0, "gpu_refuses": None}),
    ("qwen2_moe", {"experts": 6, "dtype": "BF16", "kv_bytes_per_token": 2 * 2 * 2 * 16 * 2}),
    ("llama-gptq", {"quantization": "int4", "unused_tensors": 0, "weight_bytes": 72576}),
    ("llama-torchao-int8-int4", {"quantization": "int4", "unused_tensors": 0}),
    ("llama-torchao-int4", {"quantization": None, "unused_tensors": 0}),
    ("mamba2", {"kv_bytes_per_token": 0, "state_bytes_per_sequence": 11264}),
    ("mistral3-vision", {"architecture": "Ministral3ForCausalLM", "text_model_of": "Mistral3ForConditionalGeneration"}),
])
def test_summary_as_json(model, expected):
    run = check(MODELS / model, "--json")
    summary = json.loads(run.stdout)
    assert run.returncode == 0 and {key: summary[key] for key in expected} == expected
    assert sum(form["bytes"] for form in summary["forms"]) <= summary["weight_bytes"]
    assert summary["sequences_bytes"] == 256 * (summary["kv_bytes_per_sequence"] + summary["state_bytes_per_sequence"])


def test_summary_of_what_a_device_refuses_and_of_unused_tensors(tmp_path):
    summary = json.loads(check(MODELS / "mamba2", "--json").stdout)
    assert summary["gpu_refuses"] is None and summary["state_bytes_per_sequence"] > 0
    shutil.copytree(MODELS / "llama", tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    header["vision.patch"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data) - 8 - n, len(data) - 4 - n]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:] + bytes(4))
    run = check(tmp_path / "m")
    assert ": 22 tensors, 1 of them not used, the first is vision.patch\n" in run.stdout
    assert json.loads(check(tmp_path / "m", "--json").stdout)["first_unused"] == "vision.patch"


@pytest.mark.parametrize("name, within", [("gemma4", "model."), ("gemma3n", "model.language_model.")])
def test_summary_of_the_text_model_of_a_multimodal_folder(tmp_path, name, within):
    """The names and the config of such a folder, of a golden that has the text model alone."""
    config = json.loads((MODELS / name / "config.json").read_text())
    architecture = f"{name.capitalize()}ForConditionalGeneration"
    outer = {"architectures": [architecture], "model_type": name, "torch_dtype": "bfloat16",
             "text_config": {key: value for key, value in config.items() if key != "architectures"}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    data = (MODELS / name / "model.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = {key.replace(within, "model.language_model.", 1): at for key, at in json.loads(data[8:8 + n]).items()}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])
    run, alone = check(tmp_path, "--json"), json.loads(check(MODELS / name, "--json").stdout)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == alone | {"text_model_of": architecture, "images_refused": f"{architecture} is not supported"}


def test_program():
    run = check(MODELS / "qwen3", "--program", "--dtype", "float32")
    assert run.returncode == 0
    assert run.stdout.startswith("Qwen3ForCausalLM: 2 layers, ")
    assert "matmul    h · qkv" in run.stdout


def test_json_has_all_operations_of_all_layers():
    run = check(MODELS / "qwen2_moe", "--program", "--json", "--quantization", "int8")
    operations = [op for stage in json.loads(run.stdout)["stages"] for op in stage["operations"]]
    assert {op.get("layer") for op in operations} == {None, 0, 1}
    assert [op["operation"] for op in operations if op.get("layer") == 0].count("experts") == 2
    assert all(op["in"][0]["dtype"] == "I8" for op in operations if op["operation"] == "experts")


def test_weights():
    run = check(MODELS / "llama", "--weights", "--dtype", "float32")
    lines = run.stdout.splitlines()
    assert run.returncode == 0
    assert "    model.layers.0.self_attn.q_proj.weight [64, 64] F32" in lines
    assert any(line.startswith("layers.1.gate_up ") and "F32, interleaved" in line for line in lines)
    assert lines[-1].startswith("LlamaForCausalLM: ")


def test_weights_as_json():
    run = check(MODELS / "qwen2_moe", "--weights", "--json", "--quantization", "int4")
    plan = json.loads(run.stdout)
    rows = {row["name"]: row for row in plan["rows"]}
    assert rows["layers.0.router"]["form"] == "BF16"
    assert rows["layers.0.router"]["why"] == "a router is never quantized"
    assert rows["lm_head"]["form"] == "int8"
    expert = rows["layers.0.experts.0.gate_up"]
    assert (expert["form"], expert["interleaved"]) == ("int4", True)
    assert [s["tensor"] for s in expert["sources"]] == [f"model.layers.0.mlp.experts.0.{name}_proj.weight" for name in ("gate", "up")]
    assert sum(row["bytes"] for row in plan["rows"]) <= plan["bytes"]


def test_weights_of_an_integer_checkpoint_say_how_they_are_stored():
    run = check(MODELS / "llama-gptq", "--weights")
    assert run.returncode == 0
    assert "gptq, 4 bits" in run.stdout
    assert "as the checkpoint stores it" in run.stdout


def test_weights_without_files(tmp_path):
    shutil.copy(MODELS / "llama" / "config.json", tmp_path)
    assert check(tmp_path, "--weights").returncode == 3
    run = check(tmp_path, "--weights", "--load-format", "dummy")
    assert run.returncode == 0
    assert "lm_head.weight [512, 64] dummy" in run.stdout


@pytest.mark.parametrize("change, words", [
    ({"hidden_act": "gelu"}, 'hidden_act "gelu" is not supported for LlamaForCausalLM, expected "silu"'),
    ({"architectures": ["NoSuchForCausalLM"]}, "NoSuchForCausalLM is not supported"),
    ({"num_hidden_layers": 3}, "model.layers.2."),
])
def test_model_that_cannot_be_served(tmp_path, change, words):
    shutil.copytree(MODELS / "llama", tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    run = check(tmp_path / "m", "--program")
    assert (run.returncode, run.stdout) == (3, "")
    assert words in run.stderr


@pytest.mark.parametrize("model", ["olmo", "llama"])
def test_folder_without_its_embedding(tmp_path, model):
    """Of OLMo, whose last norm is no tensor, too."""
    shutil.copytree(MODELS / model, tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"embed_tokens", b"other_tokens", 1))
    run = check(tmp_path / "m")
    assert run.returncode == 3 and "model.embed_tokens.weight" in run.stderr


def test_wrong_option():
    assert check(MODELS / "llama", "--dtype", "int3").returncode == 2


NAMES = {"awq": "awq-4", "awq_marlin": "awq-4", "gptq": "gptq-4", "gptq_marlin": "gptq-4-act", "auto-round": "auto-round", "fp8": "fp8",
         "compressed-tensors": "packed-4", "modelopt": "fp4-modelopt", "modelopt_fp4": "fp4-modelopt", "torchao": "torchao-int8",
         "bitsandbytes": "bnb-nf4", "hqq": "hqq-4"}


@pytest.mark.parametrize("name", NAMES)
def test_quantization_by_the_name_that_vllm_has(name):
    """The checkpoint's own method changes nothing; of another one both names are told."""
    def summary(*more):
        return check(MODELS.parent / "quantized" / NAMES[name], "--json", *more)
    plain, named = summary(), summary("--quantization", name)
    assert plain.returncode == 0 == named.returncode and plain.stdout == named.stdout, named
    other = "gptq" if name.startswith("awq") else "awq"
    refused = summary("--quantization", other)
    assert refused.returncode == 2 and f'--quantization is "{other}", expected none, int8, int4 or fp8; the checkpoint is of ' in refused.stderr


def test_flags_of_a_command_line_of_vllm():
    words = ["--trust-remote-code", "--revision", "main", "--code-revision", "x", "--tokenizer", "org/none", "--tokenizer-mode", "hf",
             "--tokenizer-revision", "main", "--tensor-parallel-size", "1"]
    done = check(MODELS / "llama", *words)
    assert done.returncode == 0 and "--trust-remote-code has no effect: code in a model folder is never executed" in done.stderr, done
    done = check(MODELS / "llama", "--tensor-parallel-size", "2")
    assert done.returncode == 2 and "tensor parallelism is not supported yet" in done.stderr


def test_hf_overrides_change_the_config():
    run = check(MODELS / "llama", "--program", "--hf-overrides", '{"sliding_window": null, "num_hidden_layers": 1}')
    assert (run.returncode, run.stdout.split(",")[0]) == (0, "LlamaForCausalLM: 1 layers"), run.stderr


@pytest.mark.parametrize("overrides, message", [
    ('{"hidden_size": "64"}', "--hf-overrides: hidden_size is a string, expected a whole number, as config.json has it"),
    ('{"hidden_size": -1}', "hidden_size is -1"),
    ('{"rope_scaling": {"factor": true}}', "rope_scaling.factor is a boolean, expected a number"),
])
def test_hf_overrides_name_the_key(overrides, message):
    run = check(MODELS / "llama-rope-linear", "--hf-overrides", overrides)
    assert run.returncode == 3 and message in run.stderr, run.stderr


def test_hf_config_path(tmp_path):
    config = json.loads((MODELS / "llama" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    for path in tmp_path, tmp_path / "config.json":
        run = check(MODELS / "llama", "--program", "--hf-config-path", path)
        assert (run.returncode, run.stdout.split(",")[0]) == (0, "LlamaForCausalLM: 1 layers"), run.stderr
    run = check(MODELS / "llama", "--hf-config-path", tmp_path / "none")
    assert run.returncode == 3 and "--hf-config-path" in run.stderr


def test_model_that_needs_code_names_the_plugins(tmp_path):
    shutil.copytree(MODELS / "llama", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"architectures": ["FooForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling_foo.FooForCausalLM"}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    run = check(tmp_path / "m")
    assert run.returncode == 3 and "auto_map" in run.stderr and "--plugin" in run.stderr
