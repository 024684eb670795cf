# SPDX-License-Identifier: Apache-2.0
"""--hf-overrides reach all processes: the answers are those of a folder whose config.json has the values."""
import json
import shutil

from servers import MODELS, Server

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
