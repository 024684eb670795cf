# SPDX-License-Identifier: Apache-2.0
"""quire distill against what befalls a long run: states and caches whose bytes have changed, runs that are prolonged, data files that are
none, data that change, signals at any moment, folders that cannot be written, disks that are full."""
import contextlib
import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from safetensors.numpy import load_file, save_file

from distill_runs import Run

CASE = "tied_fkl_T2_ce05_ragged"
SHORT = {"steps": 20, "warmup_steps": 5, "save_steps": None, "save_gradients": None, "state_every": 5, "no_shuffle": None,
         "micro_batch_size": 1}
RANKS = [1, 2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Final weights by the number of ranks: the two gradients of a tied table are added in an order of the stages."""
    folder, weights = tmp_path_factory.mktemp("undisturbed"), {}
    for ranks in RANKS:
        run = Run(folder, CASE, f"ranks{ranks}")
        run.go(**SHORT, pipeline_parallel_size=ranks)
        weights[ranks] = run.weight_bytes(20)
    return weights


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# ---- bytes that change ----

def flip(path, chance):
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return at


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("file", ["state.safetensors", "state.json"])
def test_a_flipped_bit_of_a_state_is_found_and_the_state_before_is_taken(tmp_path, undisturbed, ranks, file):
    chance, run = random.Random(f"{file} {ranks}"), Run(tmp_path, CASE)
    options = {**SHORT, "pipeline_parallel_size": ranks}
    run.go(**options)
    for _ in range(6):
        at = flip(run.output / "state-20" / file, chance)
        _, err = run.go(**options)
        assert "the state of step 20 cannot be read: " in err and f"state-20/{file}: " in err, (at, err)
        assert "the run goes on from the state of step 15" in err
        assert "state-20.bad" in err and names(run.output)[-4:] == ["state-15", "state-20", "state-20.bad", "step-20"]
        assert run.weight_bytes(20) == undisturbed[ranks]
        assert [line["step"] for line in run.lines()] == list(range(1, 21))


@pytest.mark.parametrize("ranks", RANKS)
def test_a_run_without_a_good_state_does_not_begin_again(tmp_path, ranks):
    run = Run(tmp_path, CASE)
    options = {**SHORT, "pipeline_parallel_size": ranks}
    run.go(**options)
    os.truncate(run.output / "state-20/state.safetensors", 5000)
    (run.output / "state-15/state.json").unlink()
    before = names(run.output)
    for _ in range(2):
        _, err = run.go(code=2, **options)
        assert "has no state that can be read" in err and "state-20/state.safetensors" in err and "state-15/state.json" in err, err
        assert names(run.output) == before
    _, err = run.go(code=2, **options, max_restarts=3)
    assert "has no state that can be read" in err and names(run.output) == before


def test_changed_tokens_are_made_again(tmp_path, undisturbed):
    chance, run = random.Random(5), Run(tmp_path, CASE)
    run.go(**{**SHORT, "steps": 20})
    shutil.rmtree(run.output / "state-20")
    (file,) = (run.output / "data-cache").glob("*.sequences")
    data = bytearray(file.read_bytes())
    data[chance.randrange(300, len(data))] ^= 4
    file.write_bytes(data)
    _, err = run.go(**SHORT)
    assert "cannot be used: the tokenized data: its checksum is wrong; the data are tokenized again" in err
    assert run.weight_bytes(20) == undisturbed[1]


# ---- other numbers of steps ----

def constant(steps):
    return SHORT | {"steps": steps, "min_lr": 0.001}


@pytest.mark.parametrize("ranks", RANKS)
def test_a_constant_rate_is_prolonged_to_the_same_bits(tmp_path, ranks):
    whole, run = Run(tmp_path, CASE, "whole"), Run(tmp_path, CASE)
    whole.go(**constant(24), pipeline_parallel_size=ranks)
    for steps in (8, 17, 24):
        run.go(**constant(steps), pipeline_parallel_size=ranks)
        assert (run.output / f"step-{steps}").is_dir()
    assert run.weight_bytes(24) == whole.weight_bytes(24)
    assert [(line["step"], line["loss"], line["lr"]) for line in run.lines()] == \
        [(line["step"], line["loss"], line["lr"]) for line in whole.lines()]


def test_a_run_in_its_warm_up_may_get_another_end(tmp_path):
    whole, run = Run(tmp_path, CASE, "whole"), Run(tmp_path, CASE)
    whole.go(**SHORT | {"steps": 12, "min_lr": 0.0003})
    run.go(**SHORT | {"steps": 5})
    run.go(**SHORT | {"steps": 12, "min_lr": 0.0003})
    assert run.weight_bytes(12) == whole.weight_bytes(12)


def test_what_would_change_steps_that_are_done_is_refused(tmp_path):
    run = Run(tmp_path, CASE)
    run.go(**SHORT)
    before = run.weight_bytes(20)
    _, err = run.go(code=2, **SHORT | {"steps": 30})
    assert "started with --steps 20 and is now asked for with --steps 30, which changes steps that are done: step 6 had" in err, err
    assert "--min-lr equal to --lr" in err
    for change, flag in (({"lr": 0.002}, "--lr 0.001 and is now asked for with --lr 0.002"),
                         ({"warmup_steps": 6}, "--warmup-steps 5 and is now asked for with --warmup-steps 6"),
                         ({"min_lr": 0.0002, "steps": 25},
                          "--steps 20, --min-lr 0.0001 and is now asked for with --steps 25, --min-lr 0.0002")):
        _, err = run.go(code=2, **SHORT | change)
        assert flag in err and "changes steps that are done" in err, err
    assert run.weight_bytes(20) == before


def test_fewer_steps(tmp_path):
    """Fewer than are done are refused; as many as are done give their model."""
    run, short = Run(tmp_path, CASE), Run(tmp_path, CASE, "short")
    run.go(**constant(12))
    _, err = run.go(code=2, **constant(11))
    assert "has done step 12 already; expected --steps of 12 or more" in err
    shutil.rmtree(run.output / "state-12")
    _, err = run.go(**constant(10))
    assert f"all 10 steps are done; the model is in {run.output}/step-10" in err
    short.go(**constant(10))
    assert run.weight_bytes(10) == short.weight_bytes(10)


# ---- data ----

SAMPLES = b'{"input_ids": [1, 2, 3, 4]}\n' * 20


def bad_data(folder, kind):
    path = folder / f"data of {kind}"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "gzip":
        path.write_bytes(gzip.compress(SAMPLES))
    elif kind == "utf-16":
        path.write_bytes(SAMPLES.decode().encode("utf-16"))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "broken":
        path.write_bytes(b'{"input_ids": [1, 2], "input_ids": [3]}\n{"input_ids": [300, 1]}\n\xff\xff\n')
    return path


BAD_DATA = {
    "folder": "is a folder, expected a JSONL file",
    "fifo": "is a FIFO, which can be read only once, expected a JSONL file",
    "gzip": "is compressed by gzip, expected a JSONL file in UTF-8: decompress it with gunzip",
    "utf-16": "is UTF-16 text, expected a JSONL file in UTF-8",
    "empty": "no usable sample in 0 lines",
    "broken": "no usable sample in 3 lines: 3 are broken, 0 have no token that counts; the first: ",
}


@pytest.mark.parametrize("option", ["data", "eval_data"])
@pytest.mark.parametrize("kind", BAD_DATA)
def test_data_that_are_none(tmp_path, kind, option):
    path = bad_data(tmp_path, kind)
    _, err = Run(tmp_path).go(code=2, **{option: path})
    assert BAD_DATA[kind] in err and str(path) in err, err
    assert kind != "broken" or f"{path}:1: the text has a key twice in one object" in err


def test_broken_lines_are_counted_and_named(tmp_path):
    run, plain = Run(tmp_path), Run(tmp_path, name="plain")
    good = run.options["data"].read_bytes().splitlines(keepends=True)
    bad = [b'{"input_ids": [1, 2], "labels": [1, 2], "labels": [1, -100]}\n', b'{"input_ids": [1, 4294967296]}\n', b"\x00\n",
           b'{"input_ids": [1, 2.5]}\n', b'{"input_ids": [1, 256]}\r\n', b'{"text": "\xc3("}\n']
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(b"\xef\xbb\xbf" + good[0] + b"".join(bad) + b"\r\n\n" + b"".join(line[:-1] + b"\r\n" for line in good[1:]))
    out, err = run.go(data=mixed, json=True)
    assert json.loads(out.splitlines()[0])["broken_lines"] == len(bad) and f"broken lines: {len(bad)};" in err
    for i, reason in enumerate(["has a key twice", "input_ids[1] is 4294967296, expected 0 to 255", "is not valid JSON",
                                "expected a token id, got a number", "input_ids[1] is 256", "is not valid JSON"]):
        assert any(line.endswith("the line is left out") and f"mixed.jsonl:{i + 2}: " in line and reason in line
                   for line in err.splitlines()), (reason, err)
    plain.go()
    assert run.weight_bytes(10) == plain.weight_bytes(10)


def wait_for(condition, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)


def n_line(run):
    return run.metrics.read_text().count("\n") if run.metrics.exists() else 0


def test_data_that_change_during_the_run_do_not_change_it(tmp_path, undisturbed):
    """The run has its own copy; the next start names what has changed."""
    run = Run(tmp_path, CASE)
    process = run.start(**SHORT)
    wait_for(lambda: n_line(run) >= 2, process)
    lines = run.options["data"].read_text().splitlines(keepends=True)
    sample = json.loads(lines[3])
    sample["input_ids"][0] ^= 1
    run.options["data"].write_text("".join(lines[:3]) + json.dumps(sample) + "\n" + "".join(lines[4:]))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert run.weight_bytes(20) == undisturbed[1]
    _, err = run.go(code=2, **SHORT)
    assert "the run was started with data_hash = " in err, err


# ---- signals ----

@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_at_any_moment(tmp_path, undisturbed, ranks, number):
    """While options are read, models loaded, states written, evaluations computed. Interrupted so until it is done, the run gives the bits
    of an undisturbed one."""
    chance, run = random.Random(ranks), Run(tmp_path, CASE)
    options = {**SHORT, "pipeline_parallel_size": ranks, "state_every": 1, "eval_data": run.options["data"], "eval_steps": 1,
               "save_every": 1}
    for i in range(12):
        process = run.start(**options)
        time.sleep(0.02 * i + chance.random() * 0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, -number, 128 + number), (process.returncode, out, err)
        assert process.returncode != 0 or "stopped by a signal after step" in err or "done: quire serve" in err \
            or "all 20 steps are done" in err, err
        assert not [name for name in names(run.output) if name.endswith(".tmp")] or number == signal.SIGKILL
    run.go(**options)
    assert run.weight_bytes(20) == undisturbed[ranks]
    steps = [line["step"] for line in run.lines() if "loss" in line]
    assert steps == list(range(1, 21))


def test_a_rank_that_always_dies_ends_the_run(tmp_path):
    """Each death before the next state: the restarts are used up, and the code is that of the signal."""
    run = Run(tmp_path, CASE)
    options = SHORT | {"steps": 100000, "state_every": 0, "pipeline_parallel_size": 2, "max_restarts": 2}
    process = run.start(**options)
    n_killed = 0
    while process.poll() is None:
        path = f"/proc/{process.pid}/task/{process.pid}/children"
        with contextlib.suppress(OSError, ProcessLookupError):
            ranks = [int(pid) for pid in open(path, encoding="utf-8").read().split()]
            if len(ranks) == 2:
                os.kill(ranks[1], signal.SIGKILL)
                n_killed += 1
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL and n_killed >= 3, err
    assert err.count("rank 1 was ended by signal 9 (Killed)") == 3 and "2 restarts have not helped" in err, err


# ---- places that cannot be written ----

def test_two_runs_with_one_output(tmp_path):
    """The second one ends, and the first does not notice it."""
    run = Run(tmp_path, CASE)
    process = run.start(**SHORT | {"steps": 100000})
    wait_for(lambda: n_line(run) >= 1, process)
    second = subprocess.run(run.command(**SHORT | {"steps": 100000, "metrics": tmp_path / "second.jsonl"}), capture_output=True, text=True,
                            timeout=60, check=False)
    assert second.returncode == 2 and "another run is writing there" in second.stderr, second.stderr
    n = n_line(run)
    wait_for(lambda: n_line(run) > n, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.fixture
def shown_folder():
    """A folder that other users may enter."""
    path = tempfile.mkdtemp(prefix="quire-distill-", dir="/tmp")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def test_an_output_that_cannot_be_written(tmp_path, shown_folder):
    """A folder of another user's, existing or not, and one that cannot be."""
    shutil.copytree(Run(tmp_path).options["teacher"].parent, f"{shown_folder}/pair")
    run = Run(shown_folder)
    run.options |= {which: f"{shown_folder}/pair/{which}" for which in ("teacher", "student")}
    run.output.mkdir()
    os.chmod(run.output, 0o555)
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    for output in (run.output, run.output / "below"):
        done = subprocess.run(run.command(output=output, metrics=None), capture_output=True, text=True, timeout=60, check=False, **user)
        assert done.returncode in (2, 6) and str(run.output) in done.stderr and "Permission denied" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1 and not names(run.output)
    _, err = run.go(code=2, output="/proc/quire/out", metrics=None)
    assert "--output: /proc/quire: cannot create the folder" in err


@pytest.mark.parametrize("ranks", RANKS)
def test_a_full_disk_loses_no_checkpoint(tmp_path, undisturbed, ranks):
    """Files of more than 250000 bytes cannot be written: the model can, the state cannot. The error says how much it needs, once."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))
    run = Run(tmp_path, CASE)
    options = {**SHORT, "save_every": 5, "pipeline_parallel_size": ranks}
    run.go(**{**options, "steps": 20})
    for name in ("state-20", "step-20"):
        shutil.rmtree(run.output / name)
    model, state = run.weight_bytes(15), (run.output / "state-15/state.safetensors").stat().st_size
    assert len(model) < 250_000 < state
    done = subprocess.run(run.command(**options), capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit)
    assert done.returncode == 6, done.stderr
    errors = [line for line in done.stderr.splitlines() if "File too large" in line]
    assert len(errors) >= 1 and f"a checkpoint of {state} bytes" in errors[0] and "state-20" in errors[0], done.stderr
    assert errors[0].count("File too large") == 1
    assert [name for name in names(run.output) if name.startswith("st")] == ["state-15", "step-15", "step-20"]
    assert run.weight_bytes(15) == model
    run.go(**options)
    assert run.weight_bytes(20) == undisturbed[ranks]


@pytest.mark.parametrize("ranks", RANKS)
def test_metrics_that_cannot_be_written_end_the_run(tmp_path, ranks):
    """A device that is always full; one that takes everything; folders that are not there."""
    run = Run(tmp_path, CASE)
    options = {**SHORT, "pipeline_parallel_size": ranks}
    _, err = run.go(code=6, **options, metrics="/dev/full")
    assert "--metrics /dev/full: cannot write: No space left on device" in err, err
    run.go(**options, metrics="/dev/null")
    for name, value, message in (("metrics", tmp_path / "none/x.jsonl", "No such file or directory"), ("metrics", tmp_path, "Is a directory"),
                                 ("tensorboard", run.options["data"], "Not a directory"),
                                 ("data_cache", run.options["data"], "Not a directory")):
        _, err = run.go(code=6, **{**options, name: value, "output": tmp_path / "other"})
        assert str(value) in err and message in err, err


# ---- the schedule ----

def deepen(source, folder, n_layer):
    """A copy of a model folder with more layers, repeated in turn."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    tensors, deep = load_file(source / "model.safetensors"), {}
    for name, tensor in tensors.items():
        before, layers, after = name.partition("layers.")
        first, _, rest = after.partition(".")
        for i in range(int(first), n_layer, config["num_hidden_layers"]) if layers else [0]:
            deep[f"{before}layers.{i}.{rest}" if layers else name] = tensor
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": n_layer}))
    save_file(deep, folder / "model.safetensors")
    return folder


def test_virtual_stages_that_do_not_help_are_named(tmp_path):
    """A teacher on fewer ranks than the student waits for more of the virtual stages than it waits for whole ones."""
    run = Run(tmp_path)
    options = {"pipeline_parallel_size": 4, "virtual_pipeline_size": 2, "micro_batch_size": 1, "global_batch_size": 8, "steps": 1,
               "warmup_steps": 0, "save_steps": None, "student": deepen(run.options["student"], tmp_path / "student", 8),
               "teacher": deepen(run.options["teacher"], tmp_path / "teacher", 12)}
    _, err = run.go(**options, teacher_pipeline_parallel_size=2)
    (warning,) = [line for line in err.splitlines() if "--virtual-pipeline-size 2: the predicted bubble is" in line]
    with_virtual, without = [float(part.split(" %")[0]) for part in warning.split(" is ")[1:3]]
    assert with_virtual >= without > 0
    _, err = Run(tmp_path, name="divided").go(**options)
    assert "the predicted bubble is" not in err
