# SPDX-License-Identifier: Apache-2.0
"""quire distill --attention-loss: goldens under divisions into ranks, bits, resumption, other windows and families, what is refused."""
import json

import numpy
import pytest

from distill_runs import Run, check_golden
from servers import MODELS, ROOT

GOLDENS = ROOT / "tests/data/distill/attention"
T, P, TT, TP = "tensor_parallel_size", "pipeline_parallel_size", "teacher_tensor_parallel_size", "teacher_pipeline_parallel_size"
SHORT = {"steps": 10, "save_steps": None, "save_gradients": None}

DIVISIONS = {
    "one rank": {},
    "micro batches of 1": {"micro_batch_size": 1},
    "3 stages, recomputed": {P: 3, "micro_batch_size": 1, "recompute": True},
    "teacher on 3 ranks, student on 2": {P: 2, TP: 3, "micro_batch_size": 1},
    "2 replicas": {"data_parallel_size": 2, "micro_batch_size": 1},
    "teacher on 2 tensor ranks, 2 stages": {TT: 2, P: 2},
}


def run_of(tmp_path, name="out"):
    return Run(tmp_path, "attention", name, GOLDENS)


@pytest.mark.parametrize("division", DIVISIONS)
def test_golden(tmp_path, division):
    run = run_of(tmp_path)
    run.go(**DIVISIONS[division])
    check_golden(run)


def test_packed_sequences(tmp_path):
    """Samples behind one another in a sequence do not attend to each other: one packed sequence has the losses and gradients of all."""
    samples = [[(i * 11 + k * 5) % 33 for i in range(n)] for k, n in enumerate((17, 3, 30, 9))]
    data = tmp_path / "samples.jsonl"
    data.write_text("".join(json.dumps({"input_ids": ids, "labels": [-100] * (len(ids) // 3) + ids[len(ids) // 3:]}) + "\n" for ids in samples))
    runs = [run_of(tmp_path, name=name) for name in ("apart", "packed")]
    options = {"steps": 1, "save_steps": None, "warmup_steps": 0, "data": data, "micro_batch_size": 1}
    runs[0].go(**options, global_batch_size=4)
    runs[1].go(**options, global_batch_size=1, no_packing=None, seq_length=64)
    (a, b), (of_a, of_b) = (run.lines()[0] for run in runs), (run.gradients() for run in runs)
    assert a["n_tokens"] == b["n_tokens"] > 30
    assert all(b[name] == pytest.approx(a[name], rel=1e-5) for name in ("loss", "attention_loss", "value_loss"))
    assert all(numpy.abs(of_a[name] - of_b[name]).max() <= 1e-4 * numpy.abs(of_a[name]).max() for name in of_a)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_and_stages_give_the_same_bits(tmp_path, dtype):
    """The table of this student is its head too: over stages its gradients are summed apart first, so two stages are compared with three."""
    def bits(name, **changes):
        run = run_of(tmp_path, name=name)
        run.go(dtype=dtype, **changes)
        return run.weight_bytes(10), (run.output / "gradients-1.safetensors").read_bytes()
    assert bits("1", threads=1) == bits("2", threads=2) == bits("recomputed", recompute=True)
    assert bits("stages", **{P: 2}) == bits("more", **{P: 3, TP: 2}, threads=6)


def test_bfloat16_is_near_the_golden(tmp_path):
    run = run_of(tmp_path)
    run.go(dtype="bfloat16")
    for line, step in zip(run.lines(), run.expected["steps"], strict=True):
        assert abs(line["loss"] - step["loss"]) <= 5e-3 * step["loss"]


def test_a_resumed_run(tmp_path):
    options = {"min_lr": 0.001, "save_steps": None, "save_gradients": None}
    whole, parts = run_of(tmp_path, name="whole"), run_of(tmp_path, name="parts")
    whole.go(**options, steps=9)
    for steps in (4, 9):
        parts.go(**options, steps=steps)
    assert parts.weight_bytes(9) == whole.weight_bytes(9)
    _, err = parts.go(code=2, **options, steps=9, attention_weight=0.5)
    assert "attention_weight = 0.69" in err and "0.5" in err


def test_evaluation_and_reports(tmp_path):
    run = run_of(tmp_path)
    out, _ = run.go(**SHORT, eval_data=run.options["data"], json=True, tensorboard=tmp_path / "events", kd_weight=0, ce_weight=0)
    line = run.lines()[-1]
    weights = run.expected["case"]
    assert line["eval_loss"] == pytest.approx(
        weights["w_attention"] * line["eval_attention_loss"] + weights["w_value"] * line["eval_value_loss"], rel=1e-12)
    assert all("attention_loss" in json.loads(text) for text in out.splitlines() if '"kd_loss"' in text)
    (events,) = (tmp_path / "events").iterdir()
    data = events.read_bytes()
    assert all(of in data for of in (b"train/attention_loss", b"train/value_loss", b"eval/attention_loss", b"eval/value_loss"))


@pytest.mark.parametrize("weights, silent", [((1, 0), "value_loss"), ((0, 1), "attention_loss")])
def test_one_of_both_losses(tmp_path, weights, silent):
    """Attention alone trains: its loss falls; nothing behind the last layer's attention has a gradient."""
    run = run_of(tmp_path)
    run.go(kd_weight=0, ce_weight=0, lr=0.01, weight_decay=0, attention_weight=weights[0], value_weight=weights[1])
    lines = run.lines()
    assert silent not in lines[0] and lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    gradients = run.gradients()
    last = max(int(name.split(".")[2]) for name in gradients if ".layers." in name)
    behind = [name for name in gradients if "lm_head" in name or name == "model.norm.weight" or
              f"layers.{last}.mlp" in name or f"layers.{last}.self_attn.o_proj" in name]
    assert behind and not any(gradients[name].any() for name in behind)
    of = "v_proj" if weights[1] else "q_proj"
    assert gradients[f"model.layers.{last}.self_attn.{of}.weight"].any()


@pytest.mark.parametrize("teacher", ["qwen3_moe", "gpt2", "bloom", "gemma2", "llama-gptq"])
def test_teachers_of_other_families(tmp_path, teacher):
    """What the executor that serves it shows of attention: a model that is its own teacher has no difference to it."""
    run = Run(tmp_path)
    heads = [json.loads((MODELS / name / "config.json").read_text()) for name in (teacher, "llama")]
    equal = len({c.get("num_attention_heads") or c.get("n_head") for c in heads}) == 1
    samples = "".join(json.dumps({"input_ids": [(i * 7 + k) % 100 for i in range(20)], "labels": [1] * 20}) + "\n" for k in range(4))
    (tmp_path / "data.jsonl").write_text(samples)
    options = {**SHORT, "steps": 1, "warmup_steps": 0, "data": tmp_path / "data.jsonl", "micro_batch_size": 2, "global_batch_size": 4,
               "allow_different_tokenizers": True, "attention_loss": "minilm", "teacher": MODELS / teacher, "student": MODELS / "llama",
               "teacher_dtype": "float32", "kd_weight": 0}
    run.go(**options, attention_weight=int(equal), value_weight=1)
    line = run.lines()[0]
    assert line["value_loss"] > 1e-3 and line["loss"] > 1e-3
    if teacher in ("bloom", "gemma2", "gpt2"):
        itself = Run(tmp_path, name="itself")
        itself.go(**{**options, "student": MODELS / teacher})
        assert abs(itself.lines()[0]["attention_loss"]) < 1e-5 and abs(itself.lines()[0]["value_loss"]) < 1e-5


@pytest.mark.parametrize("changes, message", [
    ({"attention_loss": "kl"}, '--attention-loss is "kl", expected none or minilm'),
    ({"attention_loss": None}, "--attention-weight is given without --attention-loss"),
    ({"attention_weight": 0, "value_weight": 0}, "--attention-weight and --value-weight are 0; expected one above 0"),
    ({"teacher": None, "teacher_file": "x"}, "--attention-loss is minilm without --teacher; --teacher-file and --teacher-url give"),
    ({T: 2}, "--attention-loss is not supported with --tensor-parallel-size 2; expected 1"),
    ({"teacher": MODELS / "deepseek_v3"}, "--attention-loss: --teacher: DeepseekV3ForCausalLM: the last layer has latent attention"),
    ({"teacher": MODELS / "lfm2-bias"}, "--attention-loss: --teacher: Lfm2ForCausalLM: the last layer has no attention"),
    ({"teacher": MODELS / "gpt_oss"}, "the last layer has attention sinks"),
    ({"teacher": MODELS / "gemma4"}, "the last layer has K and V of another layer"),
    ({"teacher": MODELS / "smollm3"}, "the teacher has 8 attention heads and the student 4: distributions are compared head by head"),
])
def test_what_is_refused(tmp_path, changes, message):
    _, err = run_of(tmp_path).go(code=2, allow_different_tokenizers=True, **changes)
    assert message in err and err.count("\n") == 1, err


def test_what_the_golden_has():
    """Heads of K and V differ, as do windows, of which both models' rows are longer; both differences count."""
    step = json.loads((GOLDENS / "cases/attention/expected.json").read_text())["steps"][0]
    assert all(sum(batch[of] for batch in step["micro_batches"]) > 1 for of in ("attention_sum", "value_sum"))
    teacher, student = (json.loads((GOLDENS / f"pairA/{which}/config.json").read_text()) for which in ("teacher", "student"))
    assert teacher["num_attention_heads"] == student["num_attention_heads"] == 4
    assert (teacher["num_key_value_heads"], student["num_key_value_heads"]) == (4, 2)
    lines = json.loads((GOLDENS / "data/ragged.json").read_text())["attention_mask"][0]
    assert max(sum(mask) for batch in lines for mask in batch) > teacher["sliding_window"] > student["sliding_window"]
