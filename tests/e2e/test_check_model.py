# SPDX-License-Identifier: Apache-2.0
"""quire check-model: what it prints, and its exit codes."""
import json
import shutil
import subprocess

import pytest

from servers import BIN, MODELS


def check(*args):
    return subprocess.run([BIN / "quire", "check-model", *map(str, args)], capture_output=True, text=True, timeout=60)


def test_good_model_prints_nothing():
    run = check(MODELS / "llama")
    assert (run.returncode, run.stdout) == (0, "")


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


def test_wrong_option():
    assert check(MODELS / "llama", "--dtype", "int3").returncode == 2
