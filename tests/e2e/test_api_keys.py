# SPDX-License-Identifier: Apache-2.0
"""--api-key-file: keys, their shares of a busy engine, and which keys may control it."""
import json
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
    return file


def test_shares_of_a_busy_engine(start, keys):
    """With everything queued at once, a key of weight 3 gets three of every four places; at the end both have all they asked for."""
    server = start(MODELS / "llama", *OPTIONS, "--api-key-file", keys, key="sk-root")
    order, lock = [], threading.Lock()

    def ask(key, i):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=300)
        answer = client.completions.create(model=client.models.list().data[0].id, prompt=[5, 6, 7 + i], max_tokens=40, temperature=0,
                                           extra_body={"ignore_eos": True, "enable_prefix_caching": False})
        with lock:
            order.append((key, answer.choices[0].finish_reason))
    server.raw("POST", "/pause?mode=keep")[1].read()
    threads = [threading.Thread(target=ask, args=(key, i), daemon=True) for i in range(24) for key in ("sk-plain", "sk-gold")]
    for t in threads:
        t.start()
    server.wait_metric("vllm:num_requests_waiting", 48, seconds=120)
    server.raw("POST", "/resume")[1].read()
    for t in threads:
        t.join()
    gold = [key == "sk-gold" for key, _ in order]
    assert len(order) == 48 and all(finish == "length" for _, finish in order)
    assert 16 <= sum(gold[:24]) <= 20, gold  # 18 but for the order in which threads here wake up
    assert not any(gold[-12:]) or sum(gold[-12:]) <= 2, gold


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


@pytest.mark.parametrize("text, words", [("a\nsk-secret weight=0\n", "line 2: weight"), ("# none\n", "contains no key"), ("a\na\n", "given twice"),
                                         ("sk-secret tier=3", "weight=N or admin")])
def test_bad_files(tmp_path, text, words):
    file = tmp_path / "keys"
    file.write_text(text)
    done = subprocess.run([BIN / "quire-frontend", MODELS / "llama", "--engine", "ipc:///tmp/never", "--port", "0", "--api-key-file", file],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and words in done.stderr and "sk-secret" not in done.stderr
    assert json.dumps(text) not in done.stderr
