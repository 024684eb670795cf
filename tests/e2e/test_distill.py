# SPDX-License-Identifier: Apache-2.0
"""quire distill: goldens under every division into ranks, resumption, failures, reports, and what becomes of a checkpoint."""
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from distill_runs import CASES, GOLDENS, Run, check_golden, check_steps, write_samples
from servers import BIN, BUNDLED, MODELS, ROOT

SHORT = {"steps": 10, "save_steps": None, "save_gradients": None}


# ---- goldens ----

DIVISIONS = {
    "one rank": {},
    "micro batches of 1": {"micro_batch_size": 1},
    "2 stages": {"pipeline_parallel_size": 2},
    "3 stages": {"pipeline_parallel_size": 3, "micro_batch_size": 1},
    "teacher on one rank of 2": {"pipeline_parallel_size": 2, "teacher_pipeline_parallel_size": 1},
    "teacher on 3 ranks, student on 2": {"pipeline_parallel_size": 2, "teacher_pipeline_parallel_size": 3, "micro_batch_size": 1},
}


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("case", CASES)
def test_golden(tmp_path, case, division):
    run = Run(tmp_path, case)
    run.go(**DIVISIONS[division])
    check_golden(run)


SOME_DIVISIONS = {
    "interleaved": {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2, "micro_batch_size": 1},
    "interleaved, teacher on one rank": {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2, "micro_batch_size": 1,
                                         "teacher_pipeline_parallel_size": 1},
    "interleaved, teacher on 2 tensor ranks": {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2, "micro_batch_size": 1,
                                               "teacher_tensor_parallel_size": 2},
    "2 replicas": {"data_parallel_size": 2},
    "2 replicas of 2 stages": {"data_parallel_size": 2, "pipeline_parallel_size": 2, "micro_batch_size": 1},
    "recomputed": {"recompute": True},
    "2 stages, recomputed": {"pipeline_parallel_size": 2, "recompute": True, "threads": 4},
}


@pytest.mark.parametrize("division", SOME_DIVISIONS)
@pytest.mark.parametrize("case", ["fkl_T1", "tied_fkl_T2_ce05_ragged"])
def test_golden_of_other_divisions(tmp_path, case, division):
    run = Run(tmp_path, case)
    run.go(**SOME_DIVISIONS[division])
    check_golden(run)


@pytest.mark.parametrize("case", ["fkl_T1", "jsd_skew_T15", "fkl_ce05", "topk20_both"])
def test_golden_of_two_tensor_ranks(tmp_path, case):
    run = Run(tmp_path, case)
    run.go(tensor_parallel_size=2)
    check_golden(run)


def test_bfloat16_is_near_the_goldens(tmp_path):
    """Within a loss of 2e-3, gradient L2 4e-2 over all parameters, cosine of a tensor 0.99."""
    run = Run(tmp_path, "fkl_T2")
    run.go(dtype="bfloat16")
    for line, step in zip(run.lines(), run.expected["steps"], strict=True):
        assert abs(line["loss"] - step["loss"]) <= 2e-3 * step["loss"]
    want, got = load_file(GOLDENS / "cases/fkl_T2/grads_step1.safetensors"), run.gradients()
    off = sum(((got[name] - g) ** 2).sum() for name, g in want.items()) ** 0.5
    assert off <= 4e-2 * sum((g ** 2).sum() for g in want.values()) ** 0.5
    for name, g in want.items():
        assert (got[name] * g).sum() >= 0.99 * numpy.linalg.norm(g) * numpy.linalg.norm(got[name]), name


# ---- bits ----

@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_and_stages_give_the_same_bits(tmp_path, dtype):
    run = Run(tmp_path, "fkl_ce05")
    run.go(threads=1, dtype=dtype)
    first = run.weight_bytes(10)
    for name, change in {"threads": {"threads": 2}, "stages": {"pipeline_parallel_size": 2},
                         "all": {"pipeline_parallel_size": 3, "threads": 6}, "kept": {"recompute": True}}.items():
        again = Run(tmp_path, "fkl_ce05", name)
        again.go(dtype=dtype, **change)
        assert again.weight_bytes(10) == first, name


def run_with_stop(run, stop, after=3, held=True, **changes):
    """A run that `stop` ends after so many steps, or some more. held: it cannot be over before."""
    process = (run.start_held if held else run.start)(**changes, json=held or None)
    while not run.metrics.exists() or run.metrics.read_text().count("\n") < after:
        if held:
            assert process.stdout.readline(), process.communicate()[1]
        else:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
    stop(process)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


LONG = {"steps": 300, "warmup_steps": 10, "save_steps": None, "save_gradients": None, "state_every": 20}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    bits = {}
    for ranks in (1, 2):
        run = Run(folder, "tied_fkl_T2_ce05_ragged", f"ranks{ranks}")
        run.go(**LONG, shuffle=True, no_shuffle=None, pipeline_parallel_size=ranks)
        bits[ranks] = run.weight_bytes(300), run.lines()
    return bits


def same_numbers(a, b):
    names = ("step", "loss", "kd_loss", "ce_loss", "grad_norm", "lr", "n_tokens")
    return [[line[name] for name in names] for line in a] == [[line[name] for name in names] for line in b]


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_finishes_the_step_and_the_run_goes_on(tmp_path, undisturbed, ranks):
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    options = {**LONG, "shuffle": True, "no_shuffle": None, "pipeline_parallel_size": ranks}
    code, _, err = run_with_stop(run, lambda process: process.terminate(), held=False, **options)  # --json does not say how it ends
    assert code == 0, err
    done = run.lines()[-1]["step"]
    assert done < 300 and (run.output / f"state-{done}").is_dir()
    assert re.search(rf"stopped by a signal after step {done} of 300; the same command goes on", err)
    run.go(**options)
    assert run.weight_bytes(300) == undisturbed[ranks][0]
    assert same_numbers(run.lines(), undisturbed[ranks][1])


def ranks_of(process):
    """Processes that the launcher has started."""
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()]


def kill_a_rank(i):
    def stop(process):
        os.kill(ranks_of(process)[i], signal.SIGKILL)
    return stop


@pytest.mark.parametrize("i", [0, 1])
def test_a_killed_rank_ends_the_run_and_it_resumes(tmp_path, undisturbed, i):
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    options = {**LONG, "shuffle": True, "no_shuffle": None, "pipeline_parallel_size": 2}
    code, _, err = run_with_stop(run, kill_a_rank(i), after=50, **options)
    assert code == 128 + signal.SIGKILL, err
    assert f"rank {i}" in err
    run.go(**options)
    assert run.weight_bytes(300) == undisturbed[2][0]
    assert same_numbers(run.lines(), undisturbed[2][1])


def test_a_killed_rank_is_started_again(tmp_path, undisturbed):
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    options = {**LONG, "shuffle": True, "no_shuffle": None, "pipeline_parallel_size": 2, "max_restarts": 2}
    code, _, err = run_with_stop(run, kill_a_rank(1), after=50, **options)
    assert code == 0, err
    assert run.weight_bytes(300) == undisturbed[2][0]
    assert same_numbers(run.lines(), undisturbed[2][1])


def test_a_run_killed_without_ranks_resumes(tmp_path, undisturbed):
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    options = {**LONG, "shuffle": True, "no_shuffle": None}
    run_with_stop(run, lambda process: process.kill(), after=50, **options)
    with open(run.metrics, "a", encoding="utf-8") as out:
        out.write('{"step": 99, "lo')  # as a write that was cut
    run.go(**options)
    assert run.weight_bytes(300) == undisturbed[1][0]
    assert same_numbers(run.lines(), undisturbed[1][1])


def test_a_resumed_run_must_be_the_same_run(tmp_path):
    run = Run(tmp_path)
    run.go(**SHORT)
    _, err = run.go(code=2, **{**SHORT, "lr": 0.5})
    assert "lr" in err and "0.5" in err and "0.001" in err
    _, err = run.go(code=2, **SHORT, no_resume=True)
    assert "--no-resume" in err
    _, err = run.go(**SHORT)
    assert "all 10 steps are done" in err


# ---- options ----

BAD = [
    ({"beta": 0.3}, "--beta is 0.3 and --loss is fkl; only --loss jsd has a beta"),
    ({"loss": "jsd", "beta": 1}, "--beta is 1, expected a number above 0 and below 1"),
    ({"loss": "kl"}, '--loss is "kl", expected fkl, rkl or jsd'),
    ({"loss": "rkl", "top_k": 20}, "--top-k is 20 with --loss rkl and --top-k-student full"),
    ({"loss": "jsd", "top_k": 20}, "--top-k is 20 with --loss jsd and --top-k-student full"),
    ({"top_k_student": "renorm"}, "--top-k-student is renorm without --top-k"),
    ({"top_k": 20, "top_k_student": "half"}, '--top-k-student is "half", expected full or renorm'),
    ({"temperature": 0}, '--temperature: "0" is not a number from 0.01'),
    ({"kd_weight": 0}, "--kd-weight, --ce-weight and --hidden-weight are 0"),
    ({"teacher_url": "http://127.0.0.1:9"}, "--teacher and --teacher-url are both given"),
    ({"teacher": None, "teacher_url": "http://127.0.0.1:9", "loss": "rkl"}, "--teacher-url is http://127.0.0.1:9 with --loss rkl"),
    ({"device": "cuda"}, "--device is cuda: training on GPUs is not supported; expected auto or cpu"),
    ({"steps": None}, "--steps is missing"),
    ({"student": None}, "--student is missing"),
    ({"data": None}, "--data is missing"),
    ({"output": None}, "--output is missing"),
    ({"teacher": None}, "--teacher is missing"),
    ({"teacher": None, "kd_weight": 0, "ce_weight": 1, "teacher_quantization": "int8"}, "--teacher-quantization is given without"),
    ({"teacher_file": "x"}, "--teacher and --teacher-file are both given"),
    ({"global_batch_size": 15}, "--global-batch-size is 15, expected a multiple of 2"),
    ({"global_batch_size": 18, "data_parallel_size": 2}, "expected a multiple of 4"),
    ({"pipeline_parallel_size": 5}, "make 5 stages, but the student has 4 layers"),
    ({"pipeline_parallel_size": 2, "teacher_pipeline_parallel_size": 7}, "makes 7 stages, but the teacher has 6 layers"),
    ({"tensor_parallel_size": 3}, "--tensor-parallel-size is 3, but the student has 4 attention heads"),
    ({"virtual_pipeline_size": 2}, "--virtual-pipeline-size is 2 with one pipeline rank"),
    ({"warmup_steps": 11}, "--warmup-steps is 11, more than the 10 of --steps"),
    ({"min_lr": 1}, "--min-lr is 1, more than the 0.001 of --lr"),
    ({"adam_beta2": 1}, "--adam-beta2 is 1, expected a number from 0 to below 1"),
    ({"adam_eps": 0}, "--adam-eps is 0, expected a number above 0"),
    ({"save_steps": "1,11"}, '--save-steps: "11" is not a whole number from 1 to 10'),
    ({"save_steps": "1,,2"}, '--save-steps: "" is not a whole number'),
    ({"save_gradients": 11}, "--save-gradients is 11, expected a step up to the 10 of --steps"),
    ({"spike_factor": 1}, "--spike-factor is 1, expected a number above 1"),
    ({"eval_steps": 5}, "--eval-steps is 5 without --eval-data"),
    ({"seq_length": 4096}, "--seq-length is 4096, more than the 128 positions of the student (max_position_embeddings 128"),
    ({"save_dtype": "int8"}, '--save-dtype is "int8", expected auto, float32, bfloat16 or float16'),
    ({"plugin": "/nowhere.so"}, "plugin /nowhere.so: no such file"),
    ({"dtype": "float16"}, '--dtype is "float16", expected auto, float32 or bfloat16'),
    ({"teacher": "/nowhere"}, "--teacher: /nowhere"),
    ({"data": "/nowhere.jsonl"}, "--data /nowhere.jsonl: there is no such file"),
    ({"student": MODELS / "llama-gptq"}, "is quantized (gptq)"),
]


@pytest.mark.parametrize("changes, message", BAD, ids=[message[:40] for _, message in BAD])
def test_bad_options_are_named(tmp_path, changes, message):
    run = Run(tmp_path)
    _, err = run.go(code=2, **changes)
    assert message in err
    assert err.count("\n") == 1, err


def changed_folder(source, folder, config=None, weights=None):
    """A copy of a model folder with changes: of config.json, and of the tensors by a function."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | (config or {})))
    tensors = load_file(source / "model.safetensors")
    save_file(weights(tensors) if weights else tensors, folder / "model.safetensors")
    return folder


def without(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def cut_rows(name):
    return lambda tensors: tensors | {name: numpy.ascontiguousarray(tensors[name][:-1])}


DOWN = "model.layers.1.mlp.down_proj.weight"

# What is wrong with a folder: --teacher or --student, its folder, the message. Four ranks: the command says it once, none has started.
BAD_FOLDERS = {
    "a student with experts": ("student", lambda tmp: MODELS / "qwen2_moe", "--student: .*only dense families are supported"),
    "a student without weights": ("student", lambda tmp: changed_folder(PAIR / "student", tmp / "m", weights=without(DOWN)),
                                  f"--student: .*{DOWN}"),
    "a student of other shapes": ("student", lambda tmp: changed_folder(PAIR / "student", tmp / "m", weights=cut_rows(DOWN)),
                                  f"--student: .*{DOWN}"),
    "a teacher without weights": ("teacher", lambda tmp: changed_folder(PAIR / "teacher", tmp / "m", weights=without(DOWN)),
                                  f"--teacher: .*{DOWN}"),
    "a teacher of other shapes": ("teacher", lambda tmp: changed_folder(PAIR / "teacher", tmp / "m", weights=cut_rows(DOWN)),
                                  f"--teacher: .*{DOWN}"),
    "a teacher of no family": ("teacher", lambda tmp: changed_folder(PAIR / "teacher", tmp / "m", {"architectures": ["NoModel"]}),
                               "NoModel"),
}
PAIR = GOLDENS / "pairA"


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_what_is_wrong_with_a_folder_is_said_once(tmp_path, case):
    which, folder, message = BAD_FOLDERS[case]
    run = Run(tmp_path)
    _, err = run.go(code=2, pipeline_parallel_size=2, data_parallel_size=2, **{which: folder(tmp_path)})
    assert re.search(message, err), err
    assert err.count("\n") == 1 and "rank" not in err, err


def test_sizes_that_do_not_divide_are_said_once(tmp_path):
    """Heads divide, the intermediate size does not."""
    for which, flag in (("student", "tensor_parallel_size"), ("teacher", "teacher_tensor_parallel_size")):
        folder = changed_folder(PAIR / which, tmp_path / which, {"intermediate_size": 129})
        _, err = Run(tmp_path).go(code=2, **{which: folder, flag: 2})
        assert f"--{which}: " in err and "129" in err and err.count("\n") == 1, err


def test_rope_scaling_allows_longer_sequences(tmp_path):
    """128 positions, stretched twice: 256 tokens are taken, 257 are not."""
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}}
    folders = {which: changed_folder(PAIR / which, tmp_path / which, scaled) for which in ("teacher", "student")}
    data = tmp_path / "long.jsonl"
    ids = [i * 7 % 256 for i in range(300)]
    data.write_text("".join(json.dumps({"input_ids": ids[i:], "labels": ids[i:]}) + "\n" for i in range(16)))
    _, err = Run(tmp_path, name="over").go(code=2, data=data, seq_length=257, **folders)
    assert "--seq-length is 257, more than the 256 positions" in err
    for change in ({}, {"teacher_tensor_parallel_size": 2}):
        run = Run(tmp_path, name=f"run{len(change)}")
        run.go(**SHORT, data=data, seq_length=256, **folders, **change)
        assert run.lines()[0]["n_tokens"] == 16 * 255
        assert all(line["loss"] < 100 for line in run.lines())


@pytest.mark.parametrize("save_dtype, stored", [("auto", "F32"), ("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")])
def test_weights_are_written_in_the_type_that_is_asked_for(tmp_path, save_dtype, stored):
    run = Run(tmp_path)
    run.go(**SHORT, save_dtype=save_dtype)
    folder = run.output / "step-10"
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    assert {t["dtype"] for name, t in header.items() if name != "__metadata__"} == {stored}
    config = json.loads((folder / "config.json").read_text())
    names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    assert config.get("dtype", config.get("torch_dtype")) == names[stored]
    subprocess.run([BIN / "quire", "check-model", folder], check=True, capture_output=True)


def test_a_teacher_of_a_plugin(tmp_path):
    """Its architecture is built in as well, under another name: the same bits."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not cc:
        pytest.skip("no C compiler")
    plugin = tmp_path / "operation.so"
    subprocess.run([cc, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-I", ROOT, "-o", plugin,
                    ROOT / "tests/plugins/operation.c", "-lm", "-ldl"], check=True)
    teacher = changed_folder(MODELS / "llama", tmp_path / "teacher", {"architectures": ["OperationForCausalLM"]})
    options = SHORT | {"allow_different_tokenizers": True, "student": PAIR / "student"}
    run = Run(tmp_path)
    _, err = run.go(code=2, **options, teacher=teacher)
    assert "OperationForCausalLM" in err
    _, err = run.go(**options, teacher=teacher, plugin=plugin, pipeline_parallel_size=2, teacher_pipeline_parallel_size=1)
    assert err.count("serves OperationForCausalLM") == 1, err
    same = Run(tmp_path, name="same")
    same.go(**options, teacher=MODELS / "llama", pipeline_parallel_size=2, teacher_pipeline_parallel_size=1)
    assert run.weight_bytes(10) == same.weight_bytes(10)
    _, err = Run(tmp_path, name="ranks").go(code=2, **options, teacher=teacher, plugin=plugin, teacher_tensor_parallel_size=2)
    assert "cannot be divided among tensor-parallel ranks; use one, and pipeline stages for more ranks" in err and "rank 0:" not in err, err
    _, err = Run(tmp_path, name="student").go(code=2, **options | {"student": teacher}, teacher=MODELS / "llama", plugin=plugin)
    assert "--student: OperationForCausalLM: architectures of plugins are not supported" in err, err


def test_vocabularies_that_differ_are_named(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    config = json.loads((GOLDENS / "pairA/teacher/config.json").read_text()) | {"vocab_size": 256 + 1025}
    (folder / "config.json").write_text(json.dumps(config))
    run = Run(tmp_path)
    _, err = run.go(code=2, teacher=folder)
    assert "1281 tokens (teacher) and 256 (student), which differ by more than padding (1024)" in err
    _, err = run.go(code=2, teacher=folder, allow_different_tokenizers=True)
    assert "--teacher: " in err and "model.safetensors" in err  # beyond the check: there are no weights


def test_defaults_may_be_given_with_any_loss(tmp_path):
    run = Run(tmp_path)
    run.go(**SHORT, beta=0.5, top_k=0, top_k_student="full", t2=True, resume=True)
    check_steps(run, run.lines())


def test_tokenizers_that_differ_are_named(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    for file in BUNDLED.iterdir():
        (folder / file.name).symlink_to(file)
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    a, b = [word for word, i in vocab.items() if i in (500, 501)]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    run = Run(tmp_path)
    _, err = run.go(code=2, teacher=folder, student=BUNDLED)
    assert "the tokenizers differ: token 500" in err


# ---- numbers that are none ----

def poisoned(tmp_path):
    """A student with a weight that is no number."""
    folder = tmp_path / "poisoned"
    folder.mkdir()
    source = GOLDENS / "pairA/student"
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = load_file(source / "model.safetensors")
    weights["model.norm.weight"][3] = numpy.nan
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("which", ["student", "teacher"])
def test_an_output_that_is_a_model_folder_is_left_alone(tmp_path, which):
    folder = changed_folder(PAIR / which, tmp_path / which)
    before = sorted(path.name for path in folder.iterdir())
    _, err = Run(tmp_path).go(code=2, output=folder, **{which: folder})
    assert "is a model folder (it has " in err and err.count("\n") == 1, err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_one_run_writes_to_an_output(tmp_path):
    run = Run(tmp_path)
    run.output.mkdir()
    (run.output / "state-1.tmp").mkdir()  # what the other run is writing
    other = os.open(run.output, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    _, err = run.go(code=2)
    assert err.count("another run is writing there") == 1 and str(run.output) in err, err
    assert (run.output / "state-1.tmp").is_dir() and not run.metrics.exists()
    os.close(other)
    run.go()
    assert not (run.output / "state-1.tmp").exists()


def test_data_that_are_a_folder_are_named(tmp_path):
    for option in ("data", "eval_data"):
        _, err = Run(tmp_path).go(code=2, **{option: tmp_path})
        assert f"--{option.replace('_', '-')} {tmp_path} is a folder, expected a JSONL file" in err


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_ends_stops_the_run_behind_its_step(tmp_path, undisturbed, ranks, stream):
    """As `quire distill --json | head -1` does: the state is written, and the same command goes on to the same bits. Lines of standard
    output that were lost make the exit code 1."""
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    options = LONG | {"shuffle": True, "no_shuffle": None, "pipeline_parallel_size": ranks, "state_every": 0}
    process = run.start_held(**options, **({"json": True} if stream == "stdout" else {}))
    getattr(process, stream).readline()
    getattr(process, stream).close()
    assert process.wait(timeout=300) == (1 if stream == "stdout" else 0)
    states = [path.name for path in run.output.glob("state-*")]
    assert len(states) == 1 and 0 < int(states[0].split("-")[1]) < 300
    run.go(**options)
    assert run.weight_bytes(300) == undisturbed[ranks][0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, ranks):
    run = Run(tmp_path)
    _, err = run.go(code=7, student=poisoned(tmp_path), pipeline_parallel_size=ranks, max_bad_steps=3)
    assert "3 steps in a row were skipped (--max-bad-steps)" in err
    lines = run.lines()
    assert len(lines) == 3 and all(line["loss"] is None and "the loss is" in line["skipped"] for line in lines)


def test_spikes_are_skipped(tmp_path):
    """One sequence a step: norms differ much. A skipped step changes nothing, so the next state is that of the step before."""
    run = Run(tmp_path, "fkl_T1_ragged")
    options = {"steps": 60, "micro_batch_size": 1, "global_batch_size": 1, "spike_factor": 1.3, "save_gradients": None,
               "max_bad_steps": 60, "save_steps": ",".join(map(str, range(1, 61)))}
    run.go(**options)
    skipped = [line["step"] for line in run.lines() if "skipped" in line and "above 1.3 times" in line["skipped"]]
    assert skipped and min(skipped) > 20
    for step in range(2, 61):
        changed = run.weight_bytes(step) != run.weight_bytes(step - 1)
        assert changed == ("skipped" not in run.lines()[step - 1]), step


# ---- reports ----

def test_json_lines(tmp_path):
    run = Run(tmp_path)
    out, err = run.go(**SHORT, json=True, quiet=True, pipeline_parallel_size=2)
    data, cut, *steps = map(json.loads, out.splitlines())
    assert data["samples"] == 160 and data["counted_tokens"] == 7520
    assert [rank["student_layers"][1] for rank in cut["ranks"]] in ([2, 2], [3, 1])
    assert cut["ranks"][0]["embedding"] and not cut["ranks"][0]["head"] and cut["ranks"][1]["head"]
    assert abs(sum(rank["work"] for rank in cut["ranks"]) - 1) < 1e-9 and 0 < cut["predicted_bubble"] < 1
    check_steps(run, steps)
    assert all(0 <= step["agreement"] <= 1 and 0 <= step["bubble"] < 1 and len(step["peak_rss_mb"]) == 2 for step in steps)
    assert err == ""


def cut_of(run, **changes):
    out, err = run.go(**SHORT, json=True, pipeline_parallel_size=2, micro_batch_size=1, **changes)
    return json.loads(out.splitlines()[1]), err


def test_virtual_stages_divide_the_teacher(tmp_path):
    """The teacher costs three times the student here: the predicted bubble is that of all work divided into virtual stages."""
    plain, _ = cut_of(Run(tmp_path, name="plain"))
    both, err = cut_of(Run(tmp_path, name="both"), virtual_pipeline_size=2)
    assert [(rank["student_stages"], rank["teacher_stages"]) for rank in both["ranks"]] == [(2, 2), (2, 2)]
    assert sum(rank["teacher_layers"][1] for rank in both["ranks"]) == 6
    assert both["predicted_bubble"] < plain["predicted_bubble"] and "WARN" not in err.upper()
    whole, err = cut_of(Run(tmp_path, name="whole"), virtual_pipeline_size=2, teacher_pipeline_parallel_size=3)
    assert [rank["teacher_stages"] for rank in whole["ranks"]] == [1, 1, 1]


def test_text_of_a_run(tmp_path):
    run = Run(tmp_path)
    _, err = run.go(**SHORT)
    assert re.search(r"0 +0-3 +0-5 +embedding, head +100.0 %", err)
    assert re.search(r"step 10/10: loss \d.*agreement .*norm .*lr 0.0001, \d+ tokens/s .*MB, 0 s left", err)
    assert f"done: quire serve {run.output}/step-10" in err


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    run = Run(tmp_path)
    run.metrics.write_text("a list\n")
    _, err = run.go(code=2, **SHORT)
    assert "is none of a run" in err and run.metrics.read_text() == "a list\n"


def test_evaluation_on_other_data(tmp_path):
    """On the training data with a learning rate of 0: the mean of all steps' losses, weighted by tokens."""
    run = Run(tmp_path, "fkl_ce05")
    still = {**SHORT, "lr": 0, "min_lr": 0, "eval_data": run.options["data"], "eval_steps": 5}
    results = []
    for ranks in (1, 2):
        run = Run(tmp_path, "fkl_ce05", f"ranks{ranks}")
        run.go(**still, pipeline_parallel_size=ranks)
        lines = run.lines()
        steps, evaluations = [x for x in lines if "loss" in x], [x for x in lines if "eval_loss" in x]
        assert [x["step"] for x in evaluations] == [5, 10]
        n = sum(x["n_tokens"] for x in steps)
        for name in ("loss", "kd_loss", "ce_loss"):
            mean = sum(x[name] * x["n_tokens"] for x in steps) / n
            for x in evaluations:
                assert x["eval_n_tokens"] == n and abs(x[f"eval_{name}"] - mean) < 1e-6 * mean
        assert 0 <= evaluations[0]["eval_agreement"] <= 1
        results.append(evaluations)
    assert results[0] == results[1]


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def records(data):
    """Payloads of a TFRecord file, whose checksums are right."""
    while data:
        def masked(part):
            crc = crc32c(part)
            return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
        n, = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        yield data[12:12 + n]
        assert struct.unpack("<I", data[12 + n:16 + n])[0] == masked(data[12:12 + n])
        data = data[16 + n:]


def fields(message):
    """(number, value) of a protobuf message."""
    def varint(at):
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7f) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at
    at = 0
    while at < len(message):
        key, at = varint(at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, at = varint(at)
        else:
            if size is None:
                size, at = varint(at)
            value, at = message[at:at + size], at + size
        yield key >> 3, value


def scalars(folder):
    """{tag: {step: value}} of all event files."""
    found = {}
    for path in sorted(folder.iterdir()):
        events = [dict(fields(event)) for event in records(path.read_bytes())]
        assert events[0][3] == b"brain.Event:2"
        for event in events:
            for _, value in fields(event.get(5, b"")):
                parts = dict(fields(value))
                found.setdefault(parts[1].decode(), {})[event[2]] = struct.unpack("<f", parts[2])[0]
    return found


def test_tensorboard_files(tmp_path):
    run = Run(tmp_path)
    run.go(**SHORT, tensorboard=tmp_path / "events", eval_data=run.options["data"])
    found, lines = scalars(tmp_path / "events"), run.lines()
    for line in lines[:10]:
        assert found["train/loss"][line["step"]] == numpy.float32(line["loss"])
        assert found["train/grad_norm"][line["step"]] == numpy.float32(line["grad_norm"])
    assert set(found["eval/kd_loss"]) == {10} and 0 <= found["train/agreement"][1] <= 1


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_metrics_port(tmp_path):
    run, port = Run(tmp_path), free_port()
    process = run.start(**{**LONG, "steps": 100000}, metrics_port=port)
    try:
        deadline = time.monotonic() + 60
        while not run.metrics.exists() or run.metrics.read_text().count("\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=10)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["quire:distill_step"]) >= 3 and float(values["quire:distill_steps"]) == 100000
    assert float(values["quire:distill_loss"]) > 0
    assert float(values['quire:distill_peak_rss_bytes{rank="0"}']) > 1e6
    _, err = run.go(code=6, **{**LONG, "steps": 100000}, metrics_port=occupied(tmp_path))
    assert "--metrics-port" in err and "in use" in err


def occupied(_):
    occupied.socket = socket.socket()
    occupied.socket.bind(("127.0.0.1", 0))
    occupied.socket.listen()
    return occupied.socket.getsockname()[1]


# ---- data and checkpoints ----

def test_a_checkpoint_is_a_model_folder(tmp_path):
    run = Run(tmp_path)
    run.go()
    folder = run.output / "step-10"
    done = subprocess.run([BIN / "quire-generate", folder, "--prompt-ids", "1,2,3", "--skip-tokenizer-init", "--max-tokens", "4",
                           "--dtype", "float32", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["token_ids"]) == 4
    assert sorted(p.name for p in run.output.iterdir() if p.name.startswith("step-")) == ["step-1", "step-10", "step-2"]


def test_transformers_loads_a_checkpoint(tmp_path):
    transformers = pytest.importorskip("transformers")
    run = Run(tmp_path, "tied_fkl_T1")
    run.go()
    _, info = transformers.AutoModelForCausalLM.from_pretrained(run.output / "step-10", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_a_student_equal_to_its_teacher_has_no_difference(tmp_path):
    """Text and conversations of the bundled model: the tokenizer and the chat template take part."""
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(sample) + "\n" for sample in [
        {"messages": [{"role": "user", "content": "What is a quire?"}, {"role": "assistant", "content": "A gathering of pages."}]},
        {"text": "Pages are folded once and sewn together."},
        {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello! What may I do?"}]}]))
    run = Run(tmp_path)
    run.go(teacher=BUNDLED, student=BUNDLED, data=data, steps=2, warmup_steps=0, global_batch_size=4, seq_length=64, lr=1e-5,
           min_lr=0, save_steps=None, save_gradients=None, no_packing=None, no_shuffle=None, ce_weight=0.1)
    first = run.lines()[0]
    assert abs(first["kd_loss"]) < 1e-6 < first["ce_loss"] and first["n_tokens"] > 10
    done = subprocess.run([BIN / "quire-generate", run.output / "step-2", "What can you do?", "--max-tokens", "8"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_cross_entropy_alone_needs_no_teacher(tmp_path):
    run = Run(tmp_path, "fkl_ce05")
    run.go(**SHORT, teacher=None, kd_weight=0, ce_weight=1)
    step, want = run.lines()[0], run.expected["steps"][0]
    ce = sum(batch["ce_sum"] for batch in want["micro_batches"]) / want["n_tokens"]
    assert abs(step["loss"] - ce) < 1e-5 * ce and step["kd_loss"] == 0


def test_a_quantized_teacher(tmp_path):
    run = Run(tmp_path)
    run.go(**SHORT, teacher_quantization="int8")
    want = run.expected["steps"][0]["loss"]
    got = run.lines()[0]["loss"]
    assert got != want and abs(got - want) < 0.05 * want


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_teacher_from_a_file(tmp_path, ranks):
    """Log-probabilities of 20 tokens in f16: near the golden of the same teacher as a model."""
    run = Run(tmp_path, "topk20")
    subprocess.run([BIN / "quire-teach", "--teacher", run.options["teacher"], "--data", run.options["data"], "--output",
                    tmp_path / "taught", "--top-k", "20", "--seq-length", "128", "--dtype", "float32"], check=True, capture_output=True)
    run.go(teacher=None, teacher_file=tmp_path / "taught", pipeline_parallel_size=ranks, eval_data=run.options["data"])
    lines = run.lines()
    for line, step in zip(lines, run.expected["steps"], strict=False):
        assert abs(line["loss"] - step["loss"]) < 1e-3 * step["loss"]
        assert abs(line["grad_norm"] - step["grad_norm"]) < 5e-3 * step["grad_norm"]
    assert lines[10]["eval_kd_loss"] > 0 and 0 <= lines[10]["eval_agreement"] <= 1
    _, err = run.go(code=2, teacher=None, teacher_file=tmp_path / "taught", loss="rkl", top_k=None, output=tmp_path / "other")
    assert "--teacher-file is" in err and "expected --top-k-student renorm, or --loss fkl" in err
    other = Run(tmp_path, "topk20_both", "missing")
    _, err = other.go(code=2, teacher=None, teacher_file=tmp_path / "taught")
    assert "--teacher-file" in err


def test_memory_does_not_grow_with_the_global_batch(tmp_path):
    peaks = []
    for n in (1, 160):
        run = Run(tmp_path, name=f"batch{n}")
        run.go(**{**SHORT, "steps": 2, "warmup_steps": 0}, micro_batch_size=1, global_batch_size=n, pipeline_parallel_size=2)
        peaks.append(run.lines()[-1]["peak_rss_mb"])
    assert all(large <= 1.05 * small + 1 for small, large in zip(*peaks, strict=True)), peaks


def test_write_samples_leaves_no_padding(tmp_path):
    lines = [json.loads(line) for line in write_samples(tmp_path / "x.jsonl", "ragged").read_text().splitlines()]
    assert len(lines) == 160 and {len(line["input_ids"]) == len(line["labels"]) for line in lines} == {True}
    assert min(len(line["input_ids"]) for line in lines) == 1
