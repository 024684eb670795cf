# SPDX-License-Identifier: Apache-2.0
"""quire teach: a folder of a teacher's log-probabilities, from quire's server, from a server that fails at times, and from
a model that is loaded; interrupted and gone on with."""
import collections
import contextlib
import http.server
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import numpy
import pytest

from servers import BIN, BUNDLED, MODELS, Http

LLAMA = MODELS / "llama"
Sequence = collections.namedtuple("Sequence", "n_row ids values")


def read_folder(folder):
    """{key: Sequence} of the complete shards, and (top k, vocabulary, teacher)."""
    found, settings = {}, set()
    for path in sorted(folder.glob("*.logprobs")):
        data = path.read_bytes()
        assert data[:8] == b"QTEACH1\n"
        k, n_vocab, n, index, size, _ = struct.unpack_from("<IIQQQQ", data, 8)
        settings.add((k, n_vocab, data[48:248].rstrip(b"\0").decode()))
        assert size == len(data) == index + 40 * n
        for i in range(n):
            low, high, at, n_row, n_counted, _ = struct.unpack_from("<QQQIIQ", data, index + 40 * i)
            m = n_counted * k
            ids = struct.unpack_from(f"<{m}I", data, at)
            values = struct.unpack_from(f"<{m}e", data, at + 4 * m)
            rows = range(0, m, k)
            assert (low, high) not in found
            found[low, high] = Sequence(n_row, [ids[r:r + k] for r in rows], [values[r:r + k] for r in rows])
    assert len(settings) == 1
    return found, settings.pop()


def teach(*args, env=None, **more):
    return subprocess.run([BIN / "quire-teach", *map(str, args)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})}, **more)


def write_samples(path, samples):
    path.write_text("".join(json.dumps({"input_ids": ids, "labels": labels}) + "\n" for ids, labels in samples))
    return path


def make_samples(n, length=30, vocab=500):
    """Samples of different lengths; every third label does not count."""
    samples = []
    for i in range(n):
        ids = [(i * 131 + t * 17 + t * t) % vocab for t in range(4 + (i * 7) % length)]
        samples.append((ids, [-100 if (t + i) % 3 == 0 else x for t, x in enumerate(ids)]))
    return samples


def count_positions(samples):
    return sum(x != -100 for _, labels in samples for x in labels[1:])


# ---- quire's server, and the same model loaded here

def assert_near(a, b):
    assert a.keys() == b.keys()
    for key, x in a.items():
        y = b[key]
        assert x.n_row == y.n_row and x.ids == y.ids
        for row_x, row_y in zip(x.values, y.values):
            assert all(abs(p - q) <= 0.004 * max(1, abs(p)) for p, q in zip(row_x, row_y))


def test_server_and_model_agree(start, tmp_path):
    server = start(LLAMA, "--skip-tokenizer-init", "--dtype", "float32", "--max-logprobs", "30")
    samples = make_samples(23)
    data = write_samples(tmp_path / "data.jsonl", samples)
    by_url = teach("--teacher-url", server.url, "--data", data, "--output", tmp_path / "url", "--top-k", "24")
    assert by_url.returncode == 0, by_url.stderr
    by_model = teach("--teacher", LLAMA, "--dtype", "float32", "--data", data, "--output", tmp_path / "model", "--top-k", "24")
    assert by_model.returncode == 0, by_model.stderr
    assert f"{count_positions(samples)} positions" in by_url.stdout and "23 sequences" in by_model.stdout
    of_url, settings_url = read_folder(tmp_path / "url")
    of_model, settings_model = read_folder(tmp_path / "model")
    assert settings_url[::2] == settings_model[::2] == (24, "llama") and settings_model[1] == 512
    assert_near(of_url, of_model)
    assert sum(len(s.ids) for s in of_url.values()) == count_positions(samples)


def test_what_the_api_says(start, tmp_path):
    """Row t is the distribution of token t + 1, as the server's own answer has it."""
    server = start(LLAMA, "--skip-tokenizer-init", "--dtype", "float32")
    ids = [7, 101, 33, 250, 9, 77]
    data = write_samples(tmp_path / "data.jsonl", [(ids, [-100, -100, 33, 250, -100, 77])])
    assert teach("--teacher-url", server.url + "/v1/", "--data", data, "--output", tmp_path / "out", "--top-k", "3").returncode == 0
    answer = server.complete(ids, max_tokens=1, prompt_logprobs=3)["choices"][0]["prompt_logprobs"]
    (sequence,) = read_folder(tmp_path / "out")[0].values()
    assert sequence.n_row == 6 and len(sequence.ids) == 3
    for row, position in enumerate([2, 3, 5]):
        best = sorted((int(i) for i, x in answer[position].items() if x["rank"] <= 3))
        assert list(sequence.ids[row]) == best
        for token, value in zip(sequence.ids[row], sequence.values[row]):
            assert abs(value - answer[position][str(token)]["logprob"]) < 0.004


def test_text_with_a_tokenizer(bundled, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in
                            ["A quire is a gathering of pages.", "Who are you?", "A quire is a gathering of pages."]))
    args = ("--data", data, "--tokenizer", BUNDLED, "--top-k", "5")
    done = teach("--teacher-url", bundled.url, *args, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "2 sequences" in done.stdout and "1 were there" in done.stdout
    assert len(read_folder(tmp_path / "out")[0]) == 2


# ---- interruptions

def test_goes_on_after_a_kill(tmp_path):
    data = write_samples(tmp_path / "data.jsonl", make_samples(40))
    whole, part = tmp_path / "whole", tmp_path / "part"
    server = Flaky(delay_s=0.02)
    args = ("--teacher-url", server.url, "--data", data, "--top-k", "4", "--connections", "2")
    assert teach(*args, "--output", whole).returncode == 0
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 128 + 15), (signal.SIGINT, 128 + 2)):
        n_before, is_held = sum(1 for _ in part.glob("*")), server.hold(8)
        process = subprocess.Popen([BIN / "quire-teach", *map(str, args), "--output", part], stderr=subprocess.PIPE, text=True)
        while not is_held() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        server.release()
        _, log = process.communicate(timeout=120)
        assert process.returncode == code, (n_before, log)
        assert code < 0 or "the same command goes on" in log
        assert not list(part.glob("*.logprobs"))
    n_asked = server.n_answered
    done = teach(*args, "--output", part)
    assert done.returncode == 0, done.stderr
    assert server.n_answered - n_asked < 40 and " 0 were there" not in done.stdout
    assert read_folder(part) == read_folder(whole)
    n_asked = server.n_answered
    again = teach(*args, "--output", part)
    assert again.returncode == 0 and "0 sequences" in again.stdout and server.n_answered == n_asked
    server.close()


def test_more_data_in_the_same_folder(tmp_path):
    samples = make_samples(12)
    args = ("--teacher", LLAMA, "--dtype", "float32", "--top-k", "4", "--output", tmp_path / "out", "--data")
    assert teach(*args, write_samples(tmp_path / "a.jsonl", samples[:7])).returncode == 0
    done = teach(*args, write_samples(tmp_path / "b.jsonl", samples))
    assert "5 sequences" in done.stdout and "7 were there" in done.stdout
    assert len(read_folder(tmp_path / "out")[0]) == 12
    other = teach(*args[:4], "--top-k", "5", *args[6:], tmp_path / "b.jsonl")
    assert other.returncode == 2 and "has the top 4, asked for is the top 5" in other.stderr


# ---- servers that fail

def logprobs_of(ids, t, k):
    """What the made-up teacher says after token t: ids spread over the vocabulary."""
    base = sum(ids[:t + 1]) * 7 + t
    return {str((base + j * 37) % 1000): -0.5 * (j + 1) for j in range(k)}


class Flaky:
    """Answers as vLLM does, and fails as it is told: failures[i] is (status, headers, body) for request i, None: none."""

    def __init__(self, failures=(), delay_s=0, key=None, change=None, port=0):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def setup(self):
                super().setup()
                outer.connections.append(self.connection)

            def reply(self, status, body, headers=()):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.reply(200, {"object": "list", "data": [{"id": "made-up", "object": "model"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    i, outer.n_asked = outer.n_asked, outer.n_asked + 1
                failure = failures[i] if i < len(failures) else None
                if key and self.headers.get("Authorization") != f"Bearer {key}":
                    failure = (401, (), {"error": {"message": "Unauthorized"}})
                if failure:
                    self.reply(failure[0], failure[2], failure[1])
                    return
                time.sleep(delay_s)
                with outer.lock:
                    outer.lock.wait_for(lambda: outer.n_answer_max is None or outer.n_answered < outer.n_answer_max)
                answer = outer.answer(body)
                self.reply(200, change(answer) if change else answer)
                with outer.lock:
                    outer.n_answered += 1

        self.lock, self.n_asked, self.n_answered, self.bodies, self.connections = threading.Condition(), 0, 0, [], []
        self.n_answer_max = None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, body):
        ids, k = body["prompt"], body["prompt_logprobs"]
        self.bodies.append(body)
        rows = [None]
        for t in range(len(ids) - 1):
            row = {i: {"logprob": x, "rank": j + 1, "decoded_token": "?"}
                   for j, (i, x) in enumerate(logprobs_of(ids, t, k).items())}
            if str(ids[t + 1]) not in row:  # the prompt's token, which is not one of the likeliest
                row = {str(ids[t + 1]): {"logprob": -20.5, "rank": 77, "decoded_token": "!"}, **row}
            rows.append(row)
        return {"id": "x", "object": "text_completion", "model": body["model"],
                "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "prompt_logprobs": rows}]}

    def hold(self, n):
        """After n more answers none is given until release(), but to requests that are being answered. Returns what tells if it is so."""
        with self.lock:
            self.n_answer_max = self.n_answered + n
        return lambda: self.n_answered >= self.n_answer_max

    def release(self):
        with self.lock:
            self.n_answer_max = None
            self.lock.notify_all()

    def close(self):
        """As a server that ends: connections that are open are cut."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def check_made_up(folder, samples, k):
    found, settings = read_folder(folder)
    assert settings == (k, 0, "made-up")
    want = []
    for ids, labels in samples:
        rows = [sorted((int(i), x) for i, x in logprobs_of(ids, t, k).items())
                for t in range(len(ids) - 1) if labels[t + 1] != -100]
        if rows:
            want.append((len(ids), [tuple(i for i, _ in row) for row in rows], [tuple(x for _, x in row) for row in rows]))
    assert sorted(map(tuple, found.values())) == sorted(want)


@pytest.mark.parametrize("status", [429, 503, 502])
def test_asks_again(tmp_path, status):
    samples = make_samples(9)
    busy = (status, (("Retry-After", "1"),) if status == 429 else (), {"error": {"message": "too busy"}})
    server = Flaky(failures=[None, busy, busy, None, busy])
    done = teach("--teacher-url", server.url, "--data", write_samples(tmp_path / "d.jsonl", samples), "--top-k", "6",
                 "--output", tmp_path / "out", "--connections", "3")
    assert done.returncode == 0, done.stderr
    assert f"HTTP {status}: too busy; asking again" in done.stderr
    check_made_up(tmp_path / "out", samples, 6)
    assert server.n_asked == server.n_answered + 3
    server.close()


def test_prompts_are_as_short_as_can_be(tmp_path):
    ids = list(range(10, 30))
    labels = [-100] * 20
    labels[5] = ids[5]
    server = Flaky()
    assert teach("--teacher-url", server.url, "--data", write_samples(tmp_path / "d.jsonl", [(ids, labels)]), "--top-k", "2",
                 "--output", tmp_path / "out", "--served-model-name", "other").returncode == 0
    (body,) = server.bodies
    assert body["prompt"] == ids[:6] and body["model"] == "other" and body["prompt_logprobs"] == 2 and body["max_tokens"] == 1
    server.close()


def test_api_key(tmp_path):
    samples = make_samples(2)
    server = Flaky(key="secret")
    args = ("--teacher-url", server.url, "--data", write_samples(tmp_path / "d.jsonl", samples), "--top-k", "2",
            "--output", tmp_path / "out")
    refused = teach(*args)
    assert refused.returncode == 1 and "HTTP 401: Unauthorized" in refused.stderr
    assert teach(*args, "--api-key", "secret").returncode == 0
    check_made_up(tmp_path / "out", samples, 2)
    server.close()


def no_list(answer):
    answer["choices"][0].pop("prompt_logprobs")
    return answer


def too_few(answer):
    row = answer["choices"][0]["prompt_logprobs"][2]
    while len(row) > 3:
        row.popitem()
    return answer


def too_short(answer):
    answer["choices"][0]["prompt_logprobs"].pop()
    return answer


def no_number(answer):
    next(iter(answer["choices"][0]["prompt_logprobs"][2].values()))["logprob"] = "much"
    return answer


@pytest.mark.parametrize("change, message", [
    (no_list, "the response has no prompt_logprobs: the server must be quire or vLLM"),
    (too_few, "prompt_logprobs[2] has 3 tokens, expected 6 or 7"),
    (too_short, "elements for a prompt of 30 tokens"),
    (no_number, "has no logprob"),
    (lambda answer: b"<html>", "the response is no JSON"),
    (lambda answer: {"choices": []}, "the response has no choices"),
])
def test_answers_that_are_wrong(tmp_path, change, message):
    ids = list(range(30))
    server = Flaky(change=change)
    done = teach("--teacher-url", server.url, "--data", write_samples(tmp_path / "d.jsonl", [(ids, ids)]), "--top-k", "6",
                 "--output", tmp_path / "out")
    assert done.returncode == 1 and message in done.stderr, done.stderr
    server.close()


def test_what_comes_before_an_error_is_kept(tmp_path):
    samples = make_samples(10)
    args = ("--data", write_samples(tmp_path / "d.jsonl", samples), "--top-k", "3", "--output", tmp_path / "out", "--connections", "1")
    server = Flaky(failures=[None] * 6 + [(400, (), {"error": {"message": "prompt is too long"}})])
    first = teach("--teacher-url", server.url, *args)
    assert first.returncode == 2 and "HTTP 400: prompt is too long" in first.stderr
    second = teach("--teacher-url", server.url, *args)
    assert second.returncode == 0 and "4 sequences" in second.stdout and "6 were there" in second.stdout
    check_made_up(tmp_path / "out", samples, 3)
    server.close()


def test_no_server(tmp_path):
    data = write_samples(tmp_path / "d.jsonl", make_samples(2))
    done = teach("--teacher-url", "http://127.0.0.1:9", "--data", data, "--output", tmp_path / "out", "--retries", "1")
    assert done.returncode == 1 and "http://127.0.0.1:9/v1/models" in done.stderr and "asking again in" in done.stderr
    wrong = teach("--teacher-url", "host:8000", "--data", data, "--output", tmp_path / "out")
    assert wrong.returncode == 2 and "is no address of a server" in wrong.stderr


# ---- options

@pytest.mark.parametrize("args, message", [
    (("--data", "x", "--output", "y"), "expected --teacher-url URL or --teacher MODEL"),
    (("--teacher", "m", "--teacher-url", "http://u", "--data", "x", "--output", "y"), "one of them"),
    (("--teacher", "m", "--output", "y"), "expected --data FILE"),
    (("--teacher", "m", "--data", "x"), "expected --output FOLDER"),
    (("--teacher-url", "http://u", "--data", "x", "--output", "y", "--top-k", "0"), "--top-k"),
    (("--teacher", str(LLAMA), "--data", "x", "--output", "y", "--dtype", "int8"), "expected auto, float32, bfloat16 or float16"),
    (("--teacher", str(LLAMA), "--data", "x", "--output", "y", "--quantization", "fp4"), "expected int8 or int4"),
])
def test_options(tmp_path, args, message):
    done = teach(*args, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_folders_that_are_not_there(tmp_path):
    data = write_samples(tmp_path / "d.jsonl", make_samples(1))
    done = teach("--teacher", tmp_path / "none", "--data", data, "--output", tmp_path / "out")
    assert done.returncode == 3 and "none" in done.stderr
    done = teach("--teacher", LLAMA, "--data", tmp_path / "none.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 1 and "none.jsonl" in done.stderr
    done = teach("--teacher", LLAMA, "--data", data, "--output", tmp_path / "out", "--top-k", "1000")
    assert done.returncode == 2 and "top k of 1000: the teacher has 512 tokens" in done.stderr


# ---- what distillation makes of it

def taught(run, folder, *args):
    """The log-probabilities of the run's teacher for its data, and the run with them in place of the teacher."""
    done = teach("--teacher", run.options["teacher"], "--dtype", "float32", "--data", run.options["data"], "--output", folder, *args)
    assert done.returncode == 0, done.stderr
    run.options["teacher-file"] = folder
    del run.options["teacher"]
    return run


@pytest.mark.parametrize("case, division", [
    ("topk20", {}), ("topk20_both", {}), ("topk20", {"pipeline_parallel_size": 2, "micro_batch_size": 1})])
def test_distill_from_the_folder(tmp_path, case, division):
    """As from the teacher itself, but for the rounding of the log-probabilities to 16 bits."""
    from distill_runs import GOLDENS, Run, expected, sketch
    run = taught(Run(tmp_path, case), tmp_path / "taught", "--top-k", "24")
    run.go(**division)
    for line, step in zip(run.lines(), expected(case)["steps"], strict=True):
        assert abs(line["loss"] - step["loss"]) <= 2e-3 * step["loss"]
    got = run.gradients()
    differences = [sketch.Difference(name, got[name].astype(numpy.float64), want)
                   for name, want in sketch.read(GOLDENS / "cases" / case, "grads_step1").items()]
    assert sum(d.squared for d in differences) ** 0.5 <= 3e-2 * sum(d.norm ** 2 for d in differences) ** 0.5


@pytest.mark.parametrize("ranks", [1, 2])
def test_distill_from_a_server(start, tmp_path, ranks):
    """--teacher-url: the folder is written first, and has the bits of one that quire teach writes; a run that goes on asks for nothing."""
    from distill_runs import Run
    run, other = Run(tmp_path, "topk20"), Run(tmp_path, "topk20", "other")
    server = start(run.options["teacher"], "--skip-tokenizer-init", "--dtype", "float32", "--max-logprobs", "20")
    args = ("--teacher-url", server.url, "--data", run.options["data"], "--output", tmp_path / "taught", "--top-k", "20")
    assert teach(*args).returncode == 0
    options = {"teacher": None, "save_steps": None, "pipeline_parallel_size": ranks, "max_restarts": 1}
    other.go(**options, teacher_file=tmp_path / "taught")
    run.go(**options, teacher_url=server.url)
    folder = run.output / "teacher-logprobs"
    assert read_folder(folder) == read_folder(tmp_path / "taught")
    assert run.weight_bytes(10) == other.weight_bytes(10)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    _, err = run.go(**options, teacher_url=server.url)
    assert "all 10 steps are done" in err and before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_server_that_distill_cannot_reach(tmp_path):
    from distill_runs import Run
    _, err = Run(tmp_path, "topk20").go(code=6, teacher=None, teacher_url="http://127.0.0.1:9", retries=0)
    assert "--teacher-url: " in err and "http://127.0.0.1:9/v1/models" in err


def test_order_and_packing_do_not_matter(tmp_path):
    from distill_runs import Run
    run = taught(Run(tmp_path, "topk20_both"), tmp_path / "taught", "--top-k", "20")
    del run.options["no-packing"], run.options["no-shuffle"]
    run.go(global_batch_size=4, seq_length=100)
    assert len(run.lines()) == 10


def test_a_folder_of_other_data(tmp_path):
    from distill_runs import Run
    run = taught(Run(tmp_path, "topk20"), tmp_path / "taught", "--top-k", "20", "--seq-length", "40")
    _, err = run.go(code=2)
    assert "no log-probabilities of the sequence of 48 tokens" in err and "--seq-length" in err
    _, err = run.go(code=2, top_k=21, seq_length=40)
    assert "has the top 20" in err
