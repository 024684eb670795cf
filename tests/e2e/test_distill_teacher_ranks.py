# SPDX-License-Identifier: Apache-2.0
"""quire distill with a teacher over several tensor-parallel ranks: goldens beside every division of the student, the same
bits for any threads, evaluation, and teachers that cannot be divided."""
import json
import os
import pathlib
import signal
import time

import numpy
import pytest
from safetensors.numpy import save_file

from distill_runs import GOLDENS, Run, check_golden
from servers import MODELS

T, P, TT, TP = "tensor_parallel_size", "pipeline_parallel_size", "teacher_tensor_parallel_size", "teacher_pipeline_parallel_size"
SHORT = {"steps": 10, "save_steps": None, "save_gradients": None}

DIVISIONS = {
    "teacher on 2, student on 1": {TT: 2},
    "both on 2": {TT: 2, T: 2},
    "teacher on 1, student on 2": {TT: 1, T: 2},
    "teacher on 2, student on 1, 2 stages": {TT: 2, P: 2},
    "both on 2, 2 stages, micro batches of 1": {TT: 2, T: 2, P: 2, "micro_batch_size": 1},
    "teacher on 1, student on 2, 2 stages": {TT: 1, T: 2, P: 2},
    "teacher on 2 of one stage, student on 1 of 2 stages": {TT: 2, TP: 1, P: 2},
    "teacher on 2 of 3 stages, student on 2 of 2": {TT: 2, TP: 3, T: 2, P: 2, "micro_batch_size": 1},
}


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("case", ["fkl_T2", "jsd_skew_T15", "topk20_both", "tied_fkl_T2_ce05_ragged"])
def test_golden(tmp_path, case, division):
    run = Run(tmp_path, case)
    run.go(**DIVISIONS[division])
    check_golden(run)


@pytest.mark.parametrize("sizes", [(4, 1), (4, 2), (2, 4), (4, 4)], ids=str)
def test_golden_of_four_ranks(tmp_path, sizes):
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    run.go(**dict(zip((TT, T), sizes, strict=True)))
    check_golden(run)


def test_golden_of_two_replicas(tmp_path):
    run = Run(tmp_path, "fkl_T1_ragged")
    run.go(data_parallel_size=2, **{TT: 2})
    check_golden(run)


def test_threads_give_the_same_bits(tmp_path):
    """With 1 and 2 threads a rank."""
    weights = set()
    for threads in (2, 4):
        run = Run(tmp_path, name=f"threads{threads}")
        run.go(threads=threads, **{TT: 2})
        weights.add(run.weight_bytes(10))
    assert len(weights) == 1


def test_a_killed_rank_of_the_teacher_alone_is_started_again(tmp_path):
    """The run goes on from its state, to the bits of an undisturbed one."""
    options = {"steps": 300, "warmup_steps": 10, "save_steps": None, "save_gradients": None, "state_every": 20, TT: 2}
    undisturbed, run = Run(tmp_path, name="undisturbed"), Run(tmp_path)
    undisturbed.go(**options)
    process = run.start(**options, max_restarts=2)
    deadline = time.monotonic() + 60
    while not run.metrics.exists() or run.metrics.read_text().count("\n") < 50:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    ranks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "rank 1 was ended by signal 9" in err, err
    assert run.weight_bytes(300) == undisturbed.weight_bytes(300)


def test_evaluation_has_a_divided_teacher(tmp_path):
    values = []
    for ranks in (1, 2):
        run = Run(tmp_path, name=f"ranks{ranks}")
        run.go(**SHORT, eval_data=run.options["data"], **{TT: ranks})
        values.append(run.lines()[-1])
    for name in ("eval_kd_loss", "eval_ce_loss", "eval_agreement"):
        assert values[0][name] > 0 and abs(values[1][name] - values[0][name]) < 1e-4 * values[0][name], name


def test_bfloat16_teacher(tmp_path):
    """A divided teacher rounds as the one that is served does: near it, and not the f32 one."""
    losses = {}
    for name, changes in {"f32": {}, "bf16": {"teacher_dtype": "bfloat16"}, "divided": {"teacher_dtype": "bfloat16", TT: 2}}.items():
        run = Run(tmp_path, name=name)
        run.go(**SHORT, **changes)
        losses[name] = run.lines()[0]["loss"]
    assert abs(losses["divided"] - losses["bf16"]) < 5e-3 * losses["bf16"]
    assert losses["divided"] != losses["f32"]


def make_llama(folder, hidden, layers, vocab):
    """A Llama of random f32 weights: the config of the golden teacher in other sizes."""
    folder.mkdir()
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "num_attention_heads": 8,
             "num_key_value_heads": 4, "head_dim": hidden // 8, "vocab_size": vocab}
    config = json.loads((GOLDENS / "pairA/teacher/config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    rng, kv, inner = numpy.random.default_rng(1), hidden // 2, 3 * hidden
    shapes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden), "model.norm": (hidden,)}
    for i in range(layers):
        of_layer = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                    "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                    "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in of_layer.items()}
    save_file({f"{name}.weight": rng.standard_normal(shape, dtype=numpy.float32) * 0.02 for name, shape in shapes.items()},
              folder / "model.safetensors")


def test_ranks_share_the_memory_of_a_teacher(tmp_path):
    """Peaks with more than 100 MB of weights: neither gradients nor the whole file are resident on a rank that has half of them."""
    make_llama(tmp_path / "large", hidden=512, layers=6, vocab=8192)
    peaks, losses = {}, {}
    for ranks in (1, 2):
        run = Run(tmp_path, name=f"ranks{ranks}")
        run.go(**{**SHORT, "steps": 2, "warmup_steps": 0}, teacher=tmp_path / "large", allow_different_tokenizers=True, **{TT: ranks})
        peaks[ranks], losses[ranks] = run.lines()[-1]["peak_rss_mb"], run.lines()[0]["loss"]
    assert abs(losses[2] - losses[1]) < 1e-5 * losses[1]
    assert (tmp_path / "large/model.safetensors").stat().st_size / 2**20 > 100
    assert max(peaks[2]) < 0.75 * peaks[1][0], peaks


# Fused layouts (phi3: qkv_proj and gate_up_proj; falcon: query_key_value of one K and V), and others whose parts are cut in their own way.
FAMILIES = ["phi3", "phi3-longrope", "falcon", "gptj", "phi", "starcoder2", "cohere2", "gemma2", "glm4", "exaone4", "qwen3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_divided_teacher_gives_the_same_loss(tmp_path, family):
    losses = []
    for ranks in (1, 2):
        run = Run(tmp_path, name=f"ranks{ranks}")
        run.go(**SHORT | {"steps": 1, "warmup_steps": 0}, teacher=MODELS / family, teacher_dtype="float32",
               allow_different_tokenizers=True, seq_length=32, **{TT: ranks})
        losses.append(run.lines()[0]["kd_loss"])
    assert losses[0] > 0 and abs(losses[1] - losses[0]) < 1e-5 * losses[0]


ACCEPTED = "over 2 tensor-parallel ranks a teacher is a dense model of float weights, any other takes --teacher-tensor-parallel-size 1"

REFUSED = [
    ({"teacher_quantization": "int8"}, "--teacher-quantization int8 cannot be divided among ranks", ACCEPTED),
    ({"teacher_dtype": "float16"}, "--teacher-dtype is float16, expected float32 or bfloat16", ACCEPTED),
    ({"teacher": MODELS / "llama-gptq"}, "its weights are quantized (gptq)", ACCEPTED),
    ({"teacher": MODELS / "qwen3_moe"}, "cannot be divided among ranks: only dense families are supported", ACCEPTED),
    ({"teacher": MODELS / "gpt_neox"}, "has its rows by heads of K and V, a layout that is not supported", ACCEPTED),
    ({"teacher": GOLDENS / "pairC/teacher"}, "--teacher-tensor-parallel-size is 2, but the teacher has 5 attention heads", "divisor of 5"),
]


@pytest.mark.parametrize("changes, cause, accepted", REFUSED, ids=[cause[:40] for _, cause, _ in REFUSED])
def test_refused_before_ranks_start(tmp_path, changes, cause, accepted):
    run = Run(tmp_path)
    _, err = run.go(code=2, allow_different_tokenizers=True, **{TT: 2}, **changes)
    assert cause in err and accepted in err
    assert err.count("\n") == 1 and "rank 0:" not in err, err
    assert not run.output.exists()


def test_a_vocabulary_that_does_not_divide_is_named(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    config = json.loads((GOLDENS / "pairA/teacher/config.json").read_text()) | {"vocab_size": 255}
    (folder / "config.json").write_text(json.dumps(config))
    _, err = Run(tmp_path).go(code=2, teacher=folder, **{TT: 2})
    assert "--teacher-tensor-parallel-size 2 does not divide the teacher's vocab_size of 255" in err
    assert err.count("\n") == 1, err


def test_missing_weights_are_named_before_ranks_start(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text((GOLDENS / "pairA/teacher/config.json").read_text())
    _, err = Run(tmp_path).go(code=2, teacher=folder, **{TT: 2})
    assert "--teacher: " in err and "model.safetensors" in err and err.count("\n") == 1, err
