# SPDX-License-Identifier: Apache-2.0
"""--hf-overrides reach all processes: the answers are those of a folder whose config.json has the values."""
import json
import shutil
import subprocess

import pytest

from servers import BIN, MODELS, Server

BODY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
OVERRIDES = {"rope_scaling": {"factor": 2.0}}  # the folder says 4, and the kind


def answer(folder, *args):
    server = Server(folder, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64", *args)
    try:
        choice = server.complete(list(range(20, 60)), prompt_logprobs=0, **BODY)["choices"][0]
        return choice["token_ids"], choice["prompt_logprobs"]
    finally:
        assert server.stop() == 0


def test_answers_are_those_of_an_edited_folder(tmp_path):
    shutil.copytree(MODELS / "llama-rope-linear", tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    config[key] |= OVERRIDES["rope_scaling"]
    path.write_text(json.dumps(config))
    overridden = answer(MODELS / "llama-rope-linear", "--hf-overrides", json.dumps({key: OVERRIDES["rope_scaling"]}))
    assert overridden == answer(tmp_path / "m")
    assert overridden != answer(MODELS / "llama-rope-linear")


@pytest.mark.parametrize("name", ["llama-rope-linear", "llama-rope-yarn"])  # with rope_scaling, and with rope_parameters
def test_rope_flags_of_older_vllm_override_either_spelling(name, tmp_path):
    shutil.copytree(MODELS / name, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    new = "rope_parameters" in config
    assert new == (name == "llama-rope-yarn")
    config["rope_parameters" if new else "rope_scaling"]["factor"] = 2.0
    (config["rope_parameters"] if new else config)["rope_theta"] = 5000.0
    path.write_text(json.dumps(config))
    wanted = answer(tmp_path / "m")
    assert answer(MODELS / name, "--rope-scaling", '{"factor": 2.0}', "--rope-theta", "5000") == wanted
    assert answer(MODELS / name, "--rope-scaling.factor", "2.0") != wanted


def test_an_override_of_rope_that_would_have_no_effect_is_refused():
    run = subprocess.run([BIN / "quire", "check-model", MODELS / "mellum", "--rope-theta", "5000"], capture_output=True, text=True, timeout=60)
    assert run.returncode in (2, 3) and "--hf-overrides: rope_theta has no effect" in run.stderr, run.stderr
