# SPDX-License-Identifier: Apache-2.0
"""quire distill --hidden-loss: goldens with and without a projection under divisions into ranks, bits, resumption, what is written."""
import json

import numpy
import pytest
from safetensors.numpy import load_file

from distill_runs import Run, check_golden
from servers import ROOT

GOLDENS = ROOT / "tests/data/distill/hidden"
PROJECTION = "hidden_projection.weight"
T, P, TT, TP = "tensor_parallel_size", "pipeline_parallel_size", "teacher_tensor_parallel_size", "teacher_pipeline_parallel_size"
SETS = {"projected": "hidden_mse", "same_width": "hidden_cosine"}
SHORT = {"steps": 10, "save_steps": None, "save_gradients": None}

DIVISIONS = {
    "one rank": {},
    "micro batches of 1": {"micro_batch_size": 1},
    "3 stages, recomputed": {P: 3, "micro_batch_size": 1, "recompute": True},
    "teacher on 3 ranks, student on 2": {P: 2, TP: 3, "micro_batch_size": 1},
    "2 replicas": {"data_parallel_size": 2, "micro_batch_size": 1},
    "both on 2 tensor ranks": {T: 2, TT: 2},
    "student on 2 tensor ranks, 2 stages": {T: 2, P: 2},
    "teacher on 2 tensor ranks, 2 stages": {TT: 2, P: 2},
}


def run_of(tmp_path, kind, name="out"):
    return Run(tmp_path, SETS[kind], name, GOLDENS / kind)


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("kind", SETS)
def test_golden(tmp_path, kind, division):
    run = run_of(tmp_path, kind)
    run.go(**DIVISIONS[division])
    check_golden(run)


def test_bfloat16_is_near_the_golden(tmp_path):
    for kind in SETS:
        run = run_of(tmp_path, kind, kind)
        run.go(dtype="bfloat16")
        for line, step in zip(run.lines(), run.expected["steps"], strict=True):
            assert abs(line["loss"] - step["loss"]) <= 4e-3 * step["loss"]
        want, got = load_file(run.goldens / f"cases/{SETS[kind]}/grads_step1.safetensors"), run.gradients()
        for name, g in want.items():
            assert (got[name] * g).sum() >= 0.99 * numpy.linalg.norm(g) * numpy.linalg.norm(got[name]), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_and_stages_give_the_same_bits(tmp_path, dtype):
    bits = set()
    for name, changes in {"1": {"threads": 1}, "2": {"threads": 2}, "stages": {P: 2}, "all": {P: 3, "threads": 6}}.items():
        run = run_of(tmp_path, "projected", name)
        run.go(dtype=dtype, **changes)
        bits.add((run.weight_bytes(10), (run.output / "gradients-1.safetensors").read_bytes()))
    assert len(bits) == 1


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)], ids=str)
def test_a_resumed_run_has_the_projection(tmp_path, sizes):
    """The state has it, models that are written do not."""
    options = {"min_lr": 0.001, "save_steps": None, "save_gradients": None, P: sizes[0], T: sizes[1]}
    whole, parts = run_of(tmp_path, "projected", "whole"), run_of(tmp_path, "projected", "parts")
    whole.go(**options, steps=9)
    for steps in (4, 5, 9):
        parts.go(**options, steps=steps)
    assert parts.weight_bytes(9) == whole.weight_bytes(9)
    assert PROJECTION not in parts.weights(9)
    states = [load_file(run.output / "state-9/state.safetensors") for run in (whole, parts)]
    for array in "wmv":
        name = f"{array}.{PROJECTION}"
        assert states[0][name].shape == (24, 16) and (states[0][name] == states[1][name]).all()
    _, err = parts.go(code=2, **options, steps=9, hidden_weight=0.5)
    assert "hidden_weight = 0.69" in err and "0.5" in err
    _, err = parts.go(code=2, **options, steps=9, hidden_loss=None, hidden_weight=None)
    assert "hidden_loss" in err


def test_evaluation_and_reports(tmp_path):
    run = run_of(tmp_path, "same_width")
    out, _ = run.go(**SHORT, eval_data=run.options["data"], json=True, tensorboard=tmp_path / "events")
    line = run.lines()[-1]
    assert line["eval_hidden_loss"] > 0
    assert line["eval_loss"] == pytest.approx(line["eval_kd_loss"] + 2 * line["eval_hidden_loss"], rel=1e-12)
    assert all("hidden_loss" in json.loads(text) for text in out.splitlines() if '"kd_loss"' in text)
    (events,) = (tmp_path / "events").iterdir()
    assert b"train/hidden_loss" in events.read_bytes() and b"eval/hidden_loss" in events.read_bytes()
    plain = run_of(tmp_path, "same_width", "plain")
    plain.go(**SHORT, hidden_loss=None, hidden_weight=None)
    assert not any("hidden_loss" in line for line in plain.lines())


def test_hidden_states_alone(tmp_path):
    """Without KL and cross-entropy the student's states come near the teacher's, and the head gets no gradient."""
    run = run_of(tmp_path, "projected")
    run.go(kd_weight=0, ce_weight=0, lr=0.01, weight_decay=0, hidden_loss="cosine", hidden_weight=1)
    lines = run.lines()
    assert lines[-1]["hidden_loss"] < 0.9 * lines[0]["hidden_loss"]
    assert lines[0]["loss"] == pytest.approx(lines[0]["hidden_loss"], rel=1e-12)
    gradients = run.gradients()
    assert not gradients["lm_head.weight"].any() and gradients[PROJECTION].any()


@pytest.mark.parametrize("changes, message", [
    ({"hidden_loss": "l2"}, '--hidden-loss is "l2", expected none, cosine or mse'),
    ({"hidden_loss": None}, "--hidden-weight is 2 without --hidden-loss"),
    ({"teacher": None, "teacher_file": "x"}, "--hidden-loss is cosine without --teacher"),
    ({"hidden_weight": 0, "kd_weight": 0}, "--kd-weight, --ce-weight and --hidden-weight are 0; expected one above 0, or"),
])
def test_options(tmp_path, changes, message):
    _, err = run_of(tmp_path, "same_width").go(code=2, **changes)
    assert message in err and err.count("\n") == 1, err
