# SPDX-License-Identifier: Apache-2.0
"""config.json of published models, where shared/data is there: check-model says for each which family serves it, or what of it is not
supported, by name."""
import json
import os
import subprocess
from pathlib import Path

import pytest

from servers import BIN, ROOT

CONFIGS = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared")) / "data" / "configs"
FILES = sorted(p for p in CONFIGS.rglob("*.json") if p.name.endswith("config.json") and "architectures" in p.read_text())
# Models of these are served whatever else their config says; what else is refused is refused for a reason that is named.
SERVED = {"Llama4ForConditionalGeneration", "Qwen2ForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM"}
SERVED_TYPES = {"kimi_k2", "minimax_m2", "deepseek_v3", "qwen3_moe", "qwen3", "llama"}


def check(folder, text, *options):
    (folder / "config.json").write_text(text)
    return subprocess.run([BIN / "quire", "check-model", folder, "--program", "--load-format", "dummy", *options], capture_output=True,
                          text=True, timeout=120)


def test_there_are_configs():
    if not FILES:
        pytest.skip(f"{CONFIGS} is not there")
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_a_family_or_a_named_refusal(path, tmp_path):
    text = path.read_text()
    config = json.loads(text)
    run = check(tmp_path, text)
    if run.returncode == 0:
        assert run.stdout.splitlines()[0].split(":")[0].endswith(("ForCausalLM", "Model", "ForSequenceClassification")), run.stdout[:200]
        return
    assert run.returncode == 3, run.stderr
    assert "not supported" in run.stderr, run.stderr
    modelopt = "NVFP4" in path.name or "quant_algo" in text
    served = config["architectures"][0] in SERVED or config.get("model_type") in SERVED_TYPES
    assert modelopt or not served, run.stderr
