# SPDX-License-Identifier: Apache-2.0
"""--api-key-file: keys, their shares of a busy engine, and which keys may control it."""
import json
import signal
import subprocess
import threading

import openai
import pytest

from servers import BIN, MODELS, Http

OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64", "--heartbeat-ms", "500", "--max-num-seqs", "1")


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# who\nsk-gold weight=3\nsk-plain\nsk-root admin\n")
    file.chmod(0o600)
    return file


def test_shares_of_a_busy_engine(start, keys, tmp_path):
    """With everything queued at once, a key of weight 3 gets three of every four places; at the end both have all they asked for."""
    server = start(MODELS / "llama", *OPTIONS, "--api-key-file", keys, "--record-requests", tmp_path / "requests", key="sk-root")

    def ask(key, i):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=300)
        prompt = [5, 6, 7 + i] + [8] * (key == "sk-gold")
        client.completions.create(model=client.models.list().data[0].id, prompt=prompt, max_tokens=40, temperature=0,
                                  extra_body={"ignore_eos": True, "enable_prefix_caching": False})
    server.raw("POST", "/pause?mode=keep")[1].read()
    threads = [threading.Thread(target=ask, args=(key, i), daemon=True) for i in range(24) for key in ("sk-plain", "sk-gold")]
    for t in threads:
        t.start()
    server.wait_metric("vllm:num_requests_waiting", 48, seconds=120)
    server.raw("POST", "/resume")[1].read()
    for t in threads:
        t.join()
    server.stop()
    order = [json.loads(line) for line in (tmp_path / "requests").read_text().splitlines()]  # of their ends; threads here wake up in another
    gold = [line["input_length"] == 4 for line in order]
    assert len(order) == 48 and all(line["finish"] == "length" for line in order)
    assert 17 <= sum(gold[:24]) <= 19 and not any(gold[-12:]), gold


def test_which_keys_may_control(start, keys):
    server = start(MODELS / "llama", *OPTIONS, "--api-key-file", keys, "--api-key", "sk-line")
    for key, pause, models in [(None, 401, 401), ("sk-nobody", 401, 401), ("sk-gold", 403, 200), ("sk-line", 403, 200), ("sk-root", 200, 200)]:
        asked = Http(server.url, key)
        status, body = asked.post("/pause?mode=keep", None)
        assert status == pause and asked.get("/v1/models")[0] == models
        assert status != 403 or "admin" in body["error"]["message"]
    for path in ("/resume", "/sleep", "/wake_up", "/reload_weights", "/start_profile", "/stop_profile", "/reset_prefix_cache"):
        assert Http(server.url, "sk-gold").post(path, None)[0] == 403
    assert Http(server.url, "sk-gold").get("/is_paused")[0] == 200
    assert Http(server.url, "sk-root").post("/resume", None)[0] == 200
    assert Http(server.url, "sk-gold").complete([5], max_tokens=2)["usage"]["completion_tokens"] == 2


def test_hashes_names_and_models(start, tmp_path):
    """A hash in place of the key, made by `quire keygen`; SIGHUP reads the file again while a request runs; a model that is not listed is refused."""
    file = tmp_path / "keys"
    made = subprocess.run([BIN / "quire", "keygen", "--api-key-name", "alice"], capture_output=True, text=True, timeout=60, check=True)
    alice = made.stderr.split()[-1]
    assert alice not in made.stdout and made.stdout.endswith(" name=alice\n")
    file.write_text(made.stdout + "sk-small models=small\n")
    file.chmod(0o600)
    server = start(MODELS / "llama", *OPTIONS, "--api-key-file", file, "--served-model-name", "large", key=alice)
    assert server.complete([5], max_tokens=2)["usage"]["completion_tokens"] == 2
    small = Http(server.url, "sk-small")
    for path, body in (("/v1/completions", {"prompt": [5], "max_tokens": 1}), ("/v1/completions", {"model": "large", "prompt": [5], "max_tokens": 1})):
        status, answer = small.post(path, body)
        assert status == 403 and answer["error"]["param"] == "model" and "large" in answer["error"]["message"]
    assert json.loads(small.get("/v1/models")[1])["data"] == [] and small.get("/v1/models/large")[0] == 403
    assert len(json.loads(server.get("/v1/models")[1])["data"]) == 1
    stream = server.events("/v1/completions", {"prompt": [5], "max_tokens": 200, "ignore_eos": True})
    next(stream)
    server.post("/v1/completions", {"prompt": [5]})
    file.write_text("sk-small models=large\n")
    server.process.process.send_signal(signal.SIGHUP)
    server.process.wait_line("read 1 API keys")
    assert Http(server.url, alice).get("/v1/models")[0] == 401 and small.complete([5], max_tokens=1)
    assert [c for c in stream if isinstance(c, dict)][-1]["choices"][0]["finish_reason"] == "length"  # it had begun with its key
    for text, mode, words in (("", 0o600, "no key"), ("sk-new\n", 0o644, "every user of this machine may read it")):
        file.write_text(text)
        file.chmod(mode)
        server.process.process.send_signal(signal.SIGHUP)
        server.process.wait_line("the API keys stay as they were: .*" + words)
        assert small.get("/v1/models")[0] == 200 and Http(server.url, "sk-new").get("/v1/models")[0] == 401


def test_keys_of_the_command_line_are_hidden(start):
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "secret-one", "secret-two", "--api-key=secret-three", key="secret-two")
    assert all(Http(server.url, k).get("/v1/models")[0] == 200 for k in ("secret-one", "secret-two", "secret-three"))
    for pid in [server.process.process.pid] + server.children("quire-frontend") + server.children("quire-engine"):
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
            text = f.read()
        assert "secret" not in text and "llama" in text


@pytest.mark.parametrize("text, words", [("a\nsk-secret weight=0\n", "line 2: weight"), ("# none\n", "contains no key"), ("a\na\n", "given twice"),
                                         ("sk-secret tier=3", "weight=N, models=")])
def test_bad_files(tmp_path, text, words):
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    done = subprocess.run([BIN / "quire-frontend", MODELS / "llama", "--engine", "ipc:///tmp/never", "--port", "0", "--api-key-file", file],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and words in done.stderr and "sk-secret" not in done.stderr
    assert json.dumps(text) not in done.stderr


def test_steering_without_an_admin_key(start):
    """Keys of which none is admin steer nothing; --enable-steering lets every key. The use is logged with the key's name."""
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", key="alpha")
    status, answer = server.post("/reset_prefix_cache", None)
    assert status == 403 and "--enable-steering" in answer["error"]["message"]
    assert server.complete([5], max_tokens=1)
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", "--enable-steering", key="alpha")
    assert Http(server.url, "beta").post("/reset_prefix_cache", None)[0] == 401
    assert server.raw("POST", "/reset_prefix_cache")[1].status == 200
    server.process.wait_line(r"POST /reset_prefix_cache: used with key [0-9a-f]{8}")


def test_hosts_that_are_named(start):
    """Administration from a page whose name was given this machine's address; --allowed-hosts for all routes."""
    def status(server, path, host):
        return server.raw("POST", path, {"prompt": [5], "max_tokens": 1} if path.startswith("/v1") else None, {"Host": host})[1].status
    server = start(MODELS / "llama", *OPTIONS)
    for host, steers in (("evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("localhost:8000", 200), ("LOCALHOST", 200),
                         ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("localhost.evil", 403), ("x", 403),
                         ("[::1", 403), ("[evil.example]:80", 403), ("[fe80::1]", 200)):
        assert status(server, "/reset_prefix_cache", host) == steers, host
        assert status(server, "/v1/completions", host) == 200, host
    server = start(MODELS / "llama", *OPTIONS, "--allowed-hosts", '["api.example"]')
    for host, want in (("api.example", 200), ("API.example:443", 200), ("other.example", 403), ("api.example.evil", 403), ("10.0.0.1", 200)):
        assert status(server, "/v1/completions", host) == want, host
        assert status(server, "/reset_prefix_cache", host) == want, host
    server = start(MODELS / "llama", *OPTIONS, "--allowed-hosts", "*")
    assert status(server, "/reset_prefix_cache", "any.example") == 200
