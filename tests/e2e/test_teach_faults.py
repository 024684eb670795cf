# SPDX-License-Identifier: Apache-2.0
"""quire teach against killed processes, servers that are slow, restart or deny, data that are no samples, and plugins: the folder is the
one of an undisturbed run, byte for byte."""
import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from servers import BIN, MODELS, ROOT
from test_distill_robust import BAD_DATA, bad_data
from test_teach import LLAMA, Flaky, check_made_up, make_samples, read_folder, teach, write_samples


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- killed at random moments

@pytest.mark.parametrize("source", ["server", "model"])
def test_killed_at_random_moments_it_writes_the_same_bytes(tmp_path, source):
    chance, server = random.Random(source), Flaky(delay_s=0.002)
    data = write_samples(tmp_path / "data.jsonl", make_samples(150))
    teacher = ("--teacher-url", server.url, "--connections", "3") if source == "server" else ("--teacher", LLAMA, "--dtype", "float32")
    args = (*teacher, "--data", data, "--top-k", "4", "--quiet")
    start = time.monotonic()
    assert teach(*args, "--output", tmp_path / "whole").returncode == 0
    whole_s, part, n_killed = time.monotonic() - start, tmp_path / "part", 0
    for i in range(15):
        process = subprocess.Popen([BIN / "quire-teach", *map(str, args), "--output", part], stderr=subprocess.PIPE)
        time.sleep(whole_s * chance.random() * i / 14)      # the first process at once
        process.kill()
        process.communicate(timeout=30)
        n_killed += process.returncode == -signal.SIGKILL
    assert n_killed > 0
    done = teach(*args, "--output", part)
    assert done.returncode == 0, done.stderr
    assert contents(part) == contents(tmp_path / "whole")
    server.close()


def test_a_torn_write_is_cut_off(tmp_path):
    """Any end of the file that was being written: what is whole stays, the rest is asked for again."""
    data = write_samples(tmp_path / "data.jsonl", make_samples(12))
    args = ("--teacher", LLAMA, "--dtype", "float32", "--data", data, "--top-k", "4", "--quiet")
    assert teach(*args, "--output", tmp_path / "whole").returncode == 0
    whole, chance = contents(tmp_path / "whole"), random.Random(3)
    ((name, complete),) = whole.items()
    end = int.from_bytes(complete[24:32], "little")     # of the entries
    for _ in range(12):
        part = tmp_path / "part"
        part.mkdir()
        n = chance.randrange(0, end)
        torn = bytearray(complete[:n])
        torn[16:48] = bytes(len(torn[16:48]))           # the counts of a file that is not complete
        if chance.random() < 0.5 and n > 300:
            torn[chance.randrange(256, n)] ^= 16
        (part / f"{name}.tmp").write_bytes(torn)
        done = teach(*args, "--output", part)
        assert done.returncode == 0, done.stderr
        assert read_folder(part) == read_folder(tmp_path / "whole")
        shutil.rmtree(part)


# ---- servers

def test_a_slow_server_is_asked_again(tmp_path):
    """Answers that come after --timeout."""
    samples, server = make_samples(3), Flaky(delay_s=3)
    args = ("--teacher-url", server.url, "--data", write_samples(tmp_path / "d.jsonl", samples), "--top-k", "2",
            "--output", tmp_path / "out", "--timeout", "0.3", "--retries", "1", "--connections", "1")
    done = teach(*args)
    assert done.returncode == 1 and "asking again in" in done.stderr and "imed out" in done.stderr, done.stderr
    assert server.n_asked >= 2
    server.close()
    server = Flaky(delay_s=0.1)
    again = teach(*args[:1], server.url, *args[2:], "--timeout", "30")
    assert again.returncode == 0, again.stderr
    check_made_up(tmp_path / "out", samples, 2)
    server.close()


def test_a_server_that_restarts_in_the_middle(tmp_path):
    """Connections are cut and refused for a while; the run waits and goes on with the same requests."""
    samples = make_samples(40)
    server = Flaky(delay_s=0.02)
    port, is_held = server.server.server_port, server.hold(10)
    process = subprocess.Popen([BIN / "quire-teach", "--teacher-url", server.url, "--data",
                                write_samples(tmp_path / "d.jsonl", samples), "--top-k", "3", "--output", tmp_path / "out",
                                "--connections", "2"], stderr=subprocess.PIPE, text=True)
    while not is_held():
        assert process.poll() is None
        time.sleep(0.01)
    server.close()
    server.release()
    time.sleep(1)
    assert process.poll() is None
    server = Flaky(delay_s=0, port=port)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "asking again in" in err
    check_made_up(tmp_path / "out", samples, 3)
    server.close()


def test_real_server_that_needs_a_key_and_is_restarted(start, tmp_path):
    """quire's own server: without the key and with another model's name it refuses; ended and started again, it is asked again."""
    options = ("--skip-tokenizer-init", "--dtype", "float32", "--api-key", "secret")
    server = start(LLAMA, *options, key="secret")
    samples = make_samples(30)
    data = write_samples(tmp_path / "d.jsonl", samples)
    args = ("--teacher-url", server.url, "--data", data, "--top-k", "5", "--output", tmp_path / "out")
    denied = teach(*args)
    assert denied.returncode == 1 and "HTTP 401" in denied.stderr, denied.stderr
    other = teach(*args, "--api-key", "secret", "--served-model-name", "other")
    assert other.returncode == 1 and "HTTP 404" in other.stderr and "other" in other.stderr, other.stderr
    done = teach(*args, "--api-key", "secret")
    assert done.returncode == 0, done.stderr
    by_model = teach("--teacher", LLAMA, "--dtype", "float32", "--data", data, "--top-k", "5", "--output", tmp_path / "model")
    assert by_model.returncode == 0
    found, wanted = read_folder(tmp_path / "out")[0], read_folder(tmp_path / "model")[0]
    assert {k: s.ids for k, s in found.items()} == {k: s.ids for k, s in wanted.items()}


def wrong_count(answer):
    answer["choices"][0]["prompt_logprobs"].append({"5": {"logprob": -1.0, "rank": 1}})
    return answer


def none_inside(answer):
    answer["choices"][0]["prompt_logprobs"][2] = None
    return answer


def no_id(answer):
    row = answer["choices"][0]["prompt_logprobs"][2]
    row["12x"] = row.pop(next(iter(row)))
    return answer


def huge_id(answer):
    row = answer["choices"][0]["prompt_logprobs"][2]
    row["4294967296"] = row.pop(next(iter(row)))
    return answer


def not_finite(answer):
    next(iter(answer["choices"][0]["prompt_logprobs"][2].values()))["logprob"] = float("nan")
    return answer


def positive(answer):
    next(iter(answer["choices"][0]["prompt_logprobs"][2].values()))["logprob"] = 3.5
    return answer


@pytest.mark.parametrize("change", [wrong_count, none_inside, no_id, huge_id, not_finite, positive])
def test_answers_that_are_wrong_write_nothing(tmp_path, change):
    ids = list(range(30))
    server = Flaky(change=change)
    done = teach("--teacher-url", server.url, "--data", write_samples(tmp_path / "d.jsonl", [(ids, ids)]), "--top-k", "6",
                 "--output", tmp_path / "out")
    assert done.returncode == 1 and server.url in done.stderr, done.stderr
    assert not list((tmp_path / "out").glob("*.logprobs"))
    server.close()


# ---- data and folders

@pytest.mark.parametrize("kind", BAD_DATA)
def test_data_that_are_none(tmp_path, kind):
    path = bad_data(tmp_path, kind)
    if kind == "broken":    # 300 is a token of this model
        path.write_bytes(path.read_bytes().replace(b"300", b"4294967296"))
    done = teach("--teacher", LLAMA, "--data", path, "--output", tmp_path / "out")
    assert done.returncode in (1, 2), done.stderr
    assert BAD_DATA[kind] in done.stderr and str(path) in done.stderr, done.stderr


def test_an_output_that_cannot_be_written(tmp_path):
    data = write_samples(tmp_path / "d.jsonl", make_samples(2))
    (tmp_path / "file").write_text("x")
    for output in ("/proc/quire", tmp_path / "file"):
        done = teach("--teacher", LLAMA, "--data", data, "--output", output)
        assert done.returncode == 1 and str(output) in done.stderr, done.stderr


def test_a_flipped_bit_of_a_folder_is_found_by_the_run(tmp_path):
    """Wherever it is: before the first step, or in the step that reads the sequence; never other weights."""
    from distill_runs import Run
    chance, run = random.Random(11), Run(tmp_path, "topk20")
    taught = tmp_path / "taught"
    done = teach("--teacher", run.options["teacher"], "--dtype", "float32", "--data", run.options["data"], "--output", taught,
                 "--top-k", "20", "--seq-length", "128")
    assert done.returncode == 0, done.stderr
    (file,) = taught.iterdir()
    data = file.read_bytes()
    options = {"teacher": None, "teacher_file": taught, "seq_length": 128}
    for i in range(12):
        broken = bytearray(data)
        at = (3, 60, 250, len(data) - 5)[i] if i < 4 else chance.randrange(len(data))
        broken[at] ^= 1 << chance.randrange(8)
        file.write_bytes(broken)
        _, err = Run(tmp_path, "topk20", f"out{i}").go(code=2, **options)
        assert str(taught) in err and ("checksum" in err or "no file of `quire teach`" in err), (at, err)
    file.write_bytes(data)
    run.go(**options)


# ---- plugins

def test_a_teacher_of_a_plugin(tmp_path):
    """Its architecture is built in as well, under another name: the same values; and distillation reads them."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not cc:
        pytest.skip("no C compiler")
    plugin, teacher = tmp_path / "operation.so", tmp_path / "teacher"
    subprocess.run([cc, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-I", ROOT, "-o", plugin,
                    ROOT / "tests/plugins/operation.c", "-lm", "-ldl"], check=True)
    shutil.copytree(MODELS / "llama", teacher)
    config = json.loads((teacher / "config.json").read_text()) | {"architectures": ["OperationForCausalLM"]}
    (teacher / "config.json").write_text(json.dumps(config))
    args = ("--dtype", "float32", "--data", write_samples(tmp_path / "d.jsonl", make_samples(9)), "--top-k", "7")
    without = teach("--teacher", teacher, *args, "--output", tmp_path / "none")
    assert without.returncode == 3 and "OperationForCausalLM" in without.stderr, without.stderr
    by_option = teach("--teacher", teacher, *args, "--output", tmp_path / "option", "--plugin", plugin)
    assert by_option.returncode == 0, by_option.stderr
    (tmp_path / "plugins").mkdir()
    os.rename(plugin, tmp_path / "plugins/OperationForCausalLM.so")
    by_path = teach("--teacher", teacher, *args, "--output", tmp_path / "path", "--plugin-path", tmp_path / "plugins")
    assert by_path.returncode == 0, by_path.stderr
    plain = teach("--teacher", MODELS / "llama", *args, "--output", tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    wanted = read_folder(tmp_path / "plain")[0]
    assert read_folder(tmp_path / "option")[0] == wanted and read_folder(tmp_path / "path")[0] == wanted
    missing = teach("--teacher", teacher, *args, "--output", tmp_path / "none", "--plugin", tmp_path / "none.so")
    assert missing.returncode == 3 and "none.so" in missing.stderr, missing.stderr
