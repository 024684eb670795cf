# SPDX-License-Identifier: Apache-2.0
"""quire distill with a teacher over several tensor-parallel ranks: goldens beside every division of the student, the same
bits for any threads and as one rank has, evaluation, memory."""
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
        assert values[0][name] > 0 and values[1][name] == values[0][name], name


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
    assert losses[2] == losses[1]
    assert (tmp_path / "large/model.safetensors").stat().st_size / 2**20 > 100
    assert max(peaks[2]) < 0.75 * peaks[1][0], peaks


def test_missing_weights_are_named_before_ranks_start(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text((GOLDENS / "pairA/teacher/config.json").read_text())
    _, err = Run(tmp_path).go(code=2, teacher=folder, **{TT: 2})
    assert "--teacher: " in err and "model.safetensors" in err and err.count("\n") == 1, err
