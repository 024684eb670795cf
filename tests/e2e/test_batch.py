# SPDX-License-Identifier: Apache-2.0
"""quire run-batch: the reference's tokens, every kind of line, interruptions of every kind without a line lost or doubled."""
import json
import os
import signal
import subprocess
import time

import pytest

from servers import BIN, BUNDLED, HANG_S, MODELS

FAST = ("--dtype", "float32", "--skip-tokenizer-init", "--num-gpu-blocks-override", "256")


def line(custom_id, body, url="/v1/completions", **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


def command(model, source, result, *options):
    return [str(a) for a in (BIN / "quire-run-batch", model, "-i", source, "-o", result, *options)]


def run_batch(*args, **more):
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=120, **more)


def results(path):
    """custom_id -> result; each once."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    by_id = {r["custom_id"]: r for r in lines}
    assert len(by_id) == len(lines), "a custom_id has two results"
    return by_id


def tokens(result):
    assert result["error"] is None and result["response"]["status_code"] == 200, result
    return [c["token_ids"] for c in result["response"]["body"]["choices"]]


def test_the_reference_tokens_come_out(tmp_path):
    reference = json.loads((MODELS / "llama/golden.json").read_text())["prompts"]
    (tmp_path / "in").write_text("\ufeff" + "\n".join(
        line(f"p{i}", {"prompt": p["ids"], "max_tokens": len(p["greedy"]), "temperature": 0, "ignore_eos": True, "n": 1 + i % 2})
        for i, p in enumerate(reference * 3)))  # a byte order mark before, no newline at the end
    done = run_batch(MODELS / "llama", tmp_path / "in", tmp_path / "out", *FAST, "--json")
    assert done.returncode == 0, done.stderr
    by_id = results(tmp_path / "out")
    for i, p in enumerate(reference * 3):
        assert tokens(by_id[f"p{i}"]) == [p["greedy"]] * (1 + i % 2)
    summary = json.loads(done.stdout)
    assert summary["lines"] == summary["answered"] == 3 * len(reference) and summary["exit_code"] == 0
    assert summary["prompt_tokens"] == 3 * sum(len(p["ids"]) for p in reference)


def test_responses(tmp_path):
    """The same answers as of chat completions, and tokens counted as theirs."""
    greedy = {"temperature": 0}
    (tmp_path / "in").write_text("\n".join([
        line("chat", {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 200, **greedy}, "/v1/chat/completions"),
        line("response", {"input": "Who are you?", "max_output_tokens": 200, **greedy}, "/v1/responses"),
        line("refused", {"input": "Who are you?", "background": True}, "/v1/responses")]))
    done = run_batch(BUNDLED, tmp_path / "in", tmp_path / "out", "--num-gpu-blocks-override", "256", "--json")
    by_id, summary = results(tmp_path / "out"), json.loads(done.stdout)
    chat, response = (by_id[name]["response"]["body"] for name in ("chat", "response"))
    assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"] and response["status"] == "completed"
    assert summary["prompt_tokens"] == 2 * chat["usage"]["prompt_tokens"] and summary["answered"] == 2
    assert summary["completion_tokens"] == 2 * chat["usage"]["completion_tokens"]
    assert "responses are not kept" in json.dumps(by_id["refused"])


def test_lines_that_are_bodies(tmp_path):
    """A prompt by itself is a question to a chat model, and a plain prompt with --raw; messages are messages. Started again,
    no line is done twice, though none has a custom_id."""
    greedy = {"max_tokens": 8, "temperature": 0}
    (tmp_path / "in").write_text("\n".join(json.dumps({**body, **greedy}) for body in (
        {"prompt": "Who are you?"}, {"messages": [{"role": "user", "content": "Who are you?"}]}, {"prompt": [40, 41]})))
    for _ in range(2):
        done = run_batch(BUNDLED, tmp_path / "in", tmp_path / "out")
        assert done.returncode == 0, done.stderr
    by_id = {k: r["response"]["body"] for k, r in results(tmp_path / "out").items()}
    asked, messages, ids = (by_id[f"line-{i}"] for i in (1, 2, 3))
    assert asked["object"] == messages["object"] == "chat.completion" and ids["object"] == "text_completion"
    assert asked["choices"][0]["message"]["content"] == messages["choices"][0]["message"]["content"] != ""
    done = run_batch(BUNDLED, tmp_path / "in", tmp_path / "raw", "--raw")
    assert done.returncode == 1, done.stderr
    raw = results(tmp_path / "raw")
    assert raw["line-1"]["response"]["body"]["object"] == "text_completion"
    assert "messages: not accepted with --raw" in raw["line-2"]["error"]["message"]


def test_every_kind_of_line(tmp_path):
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 8, "temperature": 0}
    (tmp_path / "in").write_text("\n".join([
        line("chat", chat, "/v1/chat/completions"), line("text", {"prompt": "Once", "max_tokens": 4}), "", "no JSON",
        line("chat", chat, "/v1/chat/completions"), line("vector", {"input": "x"}, "/v1/moderations"),
        line("stream", {**chat, "stream": True}, "/v1/chat/completions"), line("hot", {"prompt": "x", "temperature": 9}),
        line("name", {"prompt": "x", "model": "other"}), '{"custom_id": 7}', line("é", {"prompt": "x", "max_tokens": 1})]) + "\r\n")
    done = run_batch(BUNDLED, tmp_path / "in", tmp_path / "out", "--served-model-name", "tiny")
    assert done.returncode == 1, done.stderr
    lines = [json.loads(text) for text in (tmp_path / "out").read_text().splitlines()]
    assert len(lines) == 10 and all(set(r) == {"id", "custom_id", "response", "error"} for r in lines)
    assert len({r["id"] for r in lines}) == 10
    good = {r["custom_id"]: r["response"]["body"] for r in lines if r["response"] and r["response"]["status_code"] == 200}
    assert set(good) == {"chat", "text", "é"}
    assert good["chat"]["object"] == "chat.completion" and good["chat"]["choices"][0]["message"]["content"]
    assert good["text"]["usage"]["completion_tokens"] <= 4
    refused = {r["custom_id"]: r["response"] for r in lines if r["response"] and r["response"]["status_code"] != 200}
    assert {k: v["status_code"] for k, v in refused.items()} == {"hot": 400, "name": 404}
    assert refused["hot"]["body"]["error"]["param"] == "temperature"
    bad = {(r["custom_id"], r["error"]["line"]): r["error"] for r in lines if r["error"]}
    assert {k: v["code"] for k, v in bad.items()} == {
        (None, 4): "invalid_line", ("chat", 5): "duplicate_custom_id", ("vector", 6): "not_supported",
        ("stream", 7): "not_supported", (None, 10): "invalid_line"}
    assert "/v1/moderations is not supported" in bad["vector", 6]["message"]
    # A second run finds everything done, and still says that some lines failed.
    before = (tmp_path / "out").read_bytes()
    again = run_batch(BUNDLED, tmp_path / "in", tmp_path / "out", "--served-model-name", "tiny", "--json")
    assert again.returncode == 1 and json.loads(again.stdout)["done_before"] == 10
    assert (tmp_path / "out").read_bytes() == before


def test_lines_that_are_read_on_a_thread(tmp_path):
    """Long bodies are, whatever program the frontend is in."""
    (tmp_path / "in").write_text("\n".join(line(str(i), {"prompt": [3, 4], "max_tokens": 1, "user": "x" * 70_000}) for i in range(9)))
    done = run_batch(MODELS / "llama", tmp_path / "in", tmp_path / "out", *FAST)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path / "out")) == 9


def test_pipes(tmp_path):
    text = "\n".join(line(str(i), {"prompt": [3, 4], "max_tokens": 3}) for i in range(5))
    done = run_batch(MODELS / "llama", "-", "-", *FAST, input=text)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(r)["custom_id"] for r in done.stdout.splitlines()) == list("01234")


@pytest.fixture
def long_batch(tmp_path):
    """Some lines, the first ones short, the others long enough to be met in the middle."""
    (tmp_path / "in").write_text("\n".join(
        line(f"r{i}", {"prompt": [5 + i, 6, 7], "max_tokens": 8 if i < 6 else 200, "temperature": 0, "ignore_eos": True})
        for i in range(16)) + "\n")
    return tmp_path


def begin(folder, model, *options):
    """A run that has written a result or more and is not through."""
    process = subprocess.Popen(command(model, folder / "in", folder / "out", "--load-format", "dummy", "--skip-tokenizer-init",
                                       "--num-gpu-blocks-override", "512", *options), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + HANG_S
    while not (folder / "out").exists() or (folder / "out").stat().st_size == 0:
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.005)
    return process


def engine_of(process):
    for entry in os.listdir("/proc"):
        try:
            fields = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split() if entry.isdigit() else ["", ""]
            if fields[1] == str(process.pid) and os.readlink(f"/proc/{entry}/exe").endswith("quire-engine"):
                return int(entry)
        except OSError:
            continue
    raise AssertionError("no engine")


def finish(folder, model):
    done = run_batch(model, folder / "in", folder / "out", "--load-format", "dummy", "--skip-tokenizer-init",
                     "--num-gpu-blocks-override", "512", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), results(folder / "out")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_goes_on(long_batch, large, number):
    process = begin(long_batch, large)
    process.send_signal(number)
    process.stderr.read()
    assert process.wait(HANG_S) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    with open(long_batch / "out", "a") as out:
        out.write('{"id":"batch_req_torn","custom')  # as a full disk leaves it
    left = len((long_batch / "out").read_text().splitlines()) - 1
    summary, by_id = finish(long_batch, large)
    assert summary["done_before"] == left and summary["answered"] == 16 - left > 0
    assert set(by_id) == {f"r{i}" for i in range(16)}


def test_the_engine_may_die(long_batch, large):
    process = begin(long_batch, large)
    os.kill(engine_of(process), signal.SIGKILL)
    log = process.stderr.read()
    assert process.wait(HANG_S) == 0, log
    assert "restarting it" in log
    first = {k: tokens(r) for k, r in results(long_batch / "out").items()}
    (long_batch / "out").unlink()
    assert first == {k: tokens(r) for k, r in finish(long_batch, large)[1].items()}


def test_what_cannot_be_started_says_why(tmp_path):
    (tmp_path / "in").write_text(line("a", {"prompt": [1]}) + "\n")
    (tmp_path / "other").write_text("not results\nof any batch\n")
    model = MODELS / "llama"
    for args, code, says in [
            ((model, tmp_path / "in", ""), 2, "-o OUTPUT is missing"), ((model, "", tmp_path / "out"), 2, "-i INPUT is missing"),
            ((model, tmp_path / "none", tmp_path / "out"), 6, "none: No such file"),
            ((model, tmp_path / "in", tmp_path / "other"), 6, "line 1 is not a batch result"),
            ((model, tmp_path / "in", tmp_path / "none/out"), 6, "No such file"),
            ((tmp_path / "nowhere", tmp_path / "in", tmp_path / "out"), 3, "nowhere"),
            ((model, tmp_path / "in", tmp_path / "out", "--port", "1"), 2, "--port is not an option of quire run-batch")]:
        done = run_batch(*args, *FAST)
        assert done.returncode == code, (args, done.stderr)
        assert says in done.stderr
    assert (tmp_path / "other").read_text() == "not results\nof any batch\n"
    done = subprocess.run([BIN / "quire-run-batch", "--model", model, "-i", tmp_path / "in", "-o", tmp_path / "out", *FAST],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_start_that_fails_ends_by_its_own_code(tmp_path):
    """The tokenizer is still read on a thread then, and the end of the process waits for nothing of it."""
    for _ in range(20):
        done = run_batch(BUNDLED, tmp_path / "none", tmp_path / "out")
        assert done.returncode == 6 and "none: No such file" in done.stderr, done


@pytest.mark.parametrize("model, prompt, code", [(MODELS / "llama", [1], 6), (MODELS / "llama", [10**6], 1), ("nowhere/model", [1], 3)])
def test_a_summary_that_is_lost(tmp_path, model, prompt, code):
    """The run ends as it would have ended; with 6 instead of 0."""
    (tmp_path / "in").write_text(line("a", {"prompt": prompt, "max_tokens": 1}))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(model, tmp_path / "in", tmp_path / "out", *FAST, "--json"), stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=120)
    assert done.returncode == code and ("cannot write to standard output" in done.stderr) == (code != 3), done


@pytest.mark.parametrize("how", ["unbuffered", "closed", "closed all"])
def test_a_summary_that_is_lost_however_it_is_written(tmp_path, how):
    """Written at once, or to a stream that is closed: then no other file receives it."""
    (tmp_path / "in").write_text(line("a", {"prompt": [1], "max_tokens": 1}))
    args = command(MODELS / "llama", tmp_path / "in", tmp_path / "out", *FAST, "--json")
    shell = {"unbuffered": 'stdbuf -o0 "$@" > /dev/full', "closed": '"$@" >&-', "closed all": '"$@" <&- >&- 2>&-'}[how]
    done = subprocess.run(["sh", "-c", shell, "sh", *map(str, args)], stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 6 and ("cannot write to standard output" in done.stderr) == (how != "closed all"), done
    assert [json.loads(row)["custom_id"] for row in (tmp_path / "out").read_text().splitlines()] == ["a"]


def test_results_that_are_lost(tmp_path):
    """On standard output, or in a file; the summary says the exit code."""
    (tmp_path / "in").write_text(line("a", {"prompt": [1], "max_tokens": 1}))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(MODELS / "llama", tmp_path / "in", "-", *FAST, "--json"), stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=120)
    assert done.returncode == 6 and '"exit_code":6' in done.stderr, done
    done = run_batch(MODELS / "llama", tmp_path / "in", "/dev/full", *FAST, "--json")
    assert done.returncode == 6, done
    assert not done.stdout or json.loads(done.stdout)["exit_code"] == 6


def test_unknown_fields(tmp_path):
    """Ignored and told, or with --strict-fields refused."""
    (tmp_path / "in").write_text(line("a", {"prompt": [1], "max_tokens": 1, "temperatur": 0}))
    done = run_batch(MODELS / "llama", tmp_path / "in", tmp_path / "out", *FAST)
    assert done.returncode == 0 and "temperatur (did you mean temperature?)" in done.stderr
    assert tokens(results(tmp_path / "out")["a"])
    run_batch(MODELS / "llama", tmp_path / "in", tmp_path / "strict", *FAST, "--strict-fields")
    answer = results(tmp_path / "strict")["a"]["response"]
    assert answer["status_code"] == 400 and answer["body"]["error"]["param"] == "temperatur"
