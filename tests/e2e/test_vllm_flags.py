# SPDX-License-Identifier: Apache-2.0
"""vLLM's command lines: every flag of tests/data/vllm_flags.txt, its forms, --config, and what the honoured ones do."""
import json
import os
import re
import signal
import subprocess

import pytest

from servers import BIN, BUNDLED, MODELS, ROOT

TAKES, VERDICT, ARG, WHY = range(4)


def table():
    text = (ROOT / "common/vllm_flags.def").read_text(encoding="utf-8")
    row = r'^(VLLM|EARLIER)\("(--[\w-]+)", "[^"]*", (\w+), (\w+), "([^"]*)", "((?:[^"\\]|\\.)*)"\)$'
    return {m[2]: (m[3], m[4], m[5], m[6].replace('\\"', '"')) for m in re.finditer(row, text, re.M)}


FLAGS = [line.split()[0] for line in (ROOT / "tests/data/vllm_flags.txt").read_text().splitlines() if line.startswith("--")]
ROWS = table()
OPTIONS = set(re.findall(r'^OPT\(\w+, "(--[\w-]+)"', (ROOT / "common/options.def").read_text(encoding="utf-8"), re.M))

# A value that each honoured flag takes; for the others any will do.
VALUES = {
    "--dtype": "half", "--max-model-len": "1.5k", "--load-format": "auto", "--tokenizer-mode": "slow", "--quantization": "None",
    "--gpu-memory-utilization": "0.9", "--device-memory-utilization": "0.9", "--scheduling-policy": "priority", "--device-ids": "0",
    "--kv-cache-memory-bytes": "4g", "--kv-cache-dtype": "auto", "--uvicorn-log-level": "critical", "--log-level": "trace",
    "--generation-config": "vllm", "--chat-template-content-format": "openai", "--sse-keep-alive-interval": "15",
    "--override-generation-config": '{"temperature": 0.5}', "--speculative-config": '{"method": "ngram"}', "--host": "0.0.0.0",
    "--default-chat-template-kwargs": '{"enable_thinking": false}', "--spec-method": "ngram", "--spec-model": "a/b",
    "--tool-call-parser": "hermes", "--reasoning-parser": "qwen3", "--cudagraph-capture-sizes": "1 2 4", "--served-model-name": "a b",
    "--api-key": "a b", "--chat-template": "x.jinja", "--tokenizer": "x", "--revision": "main", "--tokenizer-revision": "main",
    "--download-dir": "/tmp", "--limit-mm-per-prompt": "image=1"}


def serve(*args, model="/gone/quire-test"):
    return subprocess.run([BIN / "quire", "serve", model, *map(str, args)], capture_output=True, text=True, timeout=60)


def words(flag, value=None):
    """The flag with a value that its row accepts, or with this one."""
    takes, verdict, arg, _ = ROWS[flag]
    if takes == "ON":
        return [flag if value is True or (value is None and arg != "false") else "--no-" + flag[2:]]
    if value is None:
        value = VALUES.get(flag) or ("{}" if takes == "JSON" else "1" if arg in ("*", "") or verdict == "AS" else arg.split("|")[0])
    return [flag, *(value.split() if takes == "MANY" else [value])]


def of(verdict):
    return [f for f in FLAGS if ROWS[f][VERDICT] == verdict and not (verdict in ("ACCEPTED", "REFUSED") and serves(f))]


def serves(flag):
    """Is it an option of `quire serve`, whatever the table says?"""
    if flag not in OPTIONS:
        return False
    return f" {flag}" in subprocess.run([BIN / "quire", "serve", "--help"], capture_output=True, text=True).stdout


def test_every_flag_has_a_row_and_the_page_counts_them():
    assert len(FLAGS) == 322 and not set(FLAGS) - set(ROWS)
    page = subprocess.run([BIN / "quire", "help", "vllm"], capture_output=True, text=True)
    assert page.returncode == 0
    counts = [int(n) for n in re.findall(r"(\d+) are supported, (\d+) are accepted without effect, (\d+) are rejected",
                                         " ".join(page.stdout.split()))[0]]
    assert sum(counts) == 322
    assert counts[1] == len(of("ACCEPTED")) and counts[2] == len(of("REFUSED"))
    for flag in FLAGS:
        assert re.search(rf"^  (-\w+, )?{flag}\b", page.stdout, re.M), flag
    assert max(map(len, page.stdout.splitlines())) <= 80


def test_accepted_flags_log_a_line_each_and_nothing_else_is_wrong():
    accepted = of("ACCEPTED")
    assert len(accepted) > 150
    out = serve(*[word for flag in accepted for word in words(flag)])
    assert out.returncode != 2, out.stderr[:500]
    for flag in accepted:
        lines = [line for line in out.stderr.splitlines() if f" {flag} has no effect: " in line]
        assert len(lines) == 1 and ROWS[flag][WHY] in lines[0], flag


def test_a_value_that_would_mean_something_is_refused():
    some = [f for f in of("ACCEPTED") if ROWS[f][ARG] != "*" and ROWS[f][TAKES] in ("ONE", "MANY", "INT")]
    assert "--tensor-parallel-size" in some and "--block-size" in some
    for flag in some:
        out = serve(*words(flag, "31337"))
        assert out.returncode == 2 and f"{flag} 31337 is not supported" in out.stderr and ROWS[flag][WHY] in out.stderr, flag


KINDS = {"INT": ("x", "1.5", "0x10", "1k", "", " 1", "1 "), "COUNT": ("banana", "1q", "1.5M"), "NUM": ("x", "1,5", "", "0.5s"),
         "ON": ("banana", "2", ""), "JSON": ("banana", "[1]", "3", "")}
SAID = {"INT": "is not a whole number", "COUNT": "", "NUM": "is not a number", "ON": "is not true or false", "JSON": "is not a JSON object"}


def test_a_value_of_another_kind_is_refused():
    flags = {f for f in ROWS if ROWS[f][VERDICT] == "ACCEPTED" and ROWS[f][TAKES] in KINDS and not serves(f)}
    assert {"--seed", "--block-size", "--tensor-parallel-size", "--watermark", "--trust-remote-code", "--eplb-config"} <= flags
    for i, flag in enumerate(sorted(flags)):  # each flag with one of the wrong values, in turn
        takes = ROWS[flag][TAKES]
        wrong = KINDS[takes][i % len(KINDS[takes])]
        out = serve(f"{flag}={wrong}")
        assert out.returncode == 2 and len(out.stderr.splitlines()) == 1, (flag, wrong, out.stderr)
        assert flag in out.stderr and SAID[takes] in out.stderr and (wrong in out.stderr), (flag, wrong, out.stderr)


def test_every_wrong_value_of_a_kind_is_refused(tmp_path):
    examples = {"INT": "--seed", "COUNT": "--safetensors-prefetch-block-size", "NUM": "--watermark", "ON": "--trust-remote-code",
                "JSON": "--media-io-kwargs"}
    config = tmp_path / "server.yaml"
    for takes, flag in examples.items():
        assert ROWS[flag][TAKES] == takes
        for wrong in KINDS[takes]:
            out = serve(f"{flag}={wrong}")
            assert out.returncode == 2 and SAID[takes] in out.stderr and flag in out.stderr, (flag, wrong, out.stderr)
        config.write_text(f"{flag[2:]}: banana\n")
        out = serve("--config", config)
        assert out.returncode == 2 and f"{config} line 1: {flag}" in out.stderr and "banana" in out.stderr, out.stderr


def test_every_right_value_of_a_kind_is_accepted():
    for line in ("--seed -5 --seed +7 --seed 18446744073709551615 --seed None", "--safetensors-prefetch-block-size 16M",
                 "--safetensors-prefetch-block-size 25.6k", "--watermark 1e-2 --watermark 0", "--block-size None",
                 "--trust-remote-code=False --trust-remote-code=1", "--media-io-kwargs None --media-io-kwargs.key x",
                 "--moe-backend deep-gemm --attention-backend flash_attn", "--mamba-cache-dtype float16", "-tp 1 -O3 -O O1",
                 "--tokenizer-mode mistral --config-format mistral --load-format mistral",
                 "--hf-token --code-revision= --pt-load-map-location {\"cuda:1\":\"cuda:0\"}"):
        out = serve(*line.split())
        assert out.returncode != 2 and "no effect" in out.stderr, (line, out.stderr)


def test_a_choice_that_vllm_does_not_have_is_refused():
    choices = [f for f in of("ACCEPTED") if "|" in ROWS[f][ARG] and ROWS[f][TAKES] == "ONE"]
    assert len(choices) > 25 and {"--mamba-backend", "--moe-backend", "--attention-backend"} <= set(choices)
    for flag in choices:
        out = serve(flag, "banana")
        assert out.returncode == 2 and f"{flag} banana is not supported, expected {ROWS[flag][ARG]}: " in out.stderr, out.stderr


def test_refused_flags_end_the_program_with_their_reasons():
    refused = of("REFUSED")
    assert len(refused) > 70
    for flag in refused:
        takes = ROWS[flag][TAKES]
        out = serve(*words(flag, True if takes == "ON" else '{"x": 1}' if takes == "JSON" else "x"))
        assert out.returncode == 2 and flag in out.stderr and ROWS[flag][WHY] in out.stderr, flag
        assert "unknown option" not in out.stderr and len(out.stderr.splitlines()) == 1, flag


def test_what_a_refused_flag_does_not_ask_for_is_accepted():
    harmless = [f for f in of("REFUSED") if ROWS[f][ARG] or ROWS[f][TAKES] == "JSON"]
    assert "--enable-tower-connector-lora" in harmless and "--cpu-offload-gb" in harmless
    out = serve(*[word for flag in harmless for word in words(flag)])
    assert out.returncode != 2, out.stderr[:500]
    for flag in harmless:
        assert f" {flag} has no effect: " in out.stderr, flag


def test_honoured_flags_are_options():
    honoured = [f for f in FLAGS if ROWS[f][VERDICT] in ("SAME", "AS") and f not in ("--help", "--config", "--model")]
    assert len(honoured) > 45
    for flag in honoured:
        out = serve(*words(flag))
        assert out.returncode != 2 or "--tokenizer" in flag, (flag, out.stderr[-300:])
        assert "unknown option" not in out.stderr and "no effect" not in out.stderr and "not supported" not in out.stderr, flag


def test_flags_of_older_versions_are_known():
    for flag, (takes, verdict, arg, why) in ROWS.items():
        if flag in FLAGS or verdict == "AS":
            continue
        out = serve(*words(flag, {"ON": verdict == "REFUSED" or None, "JSON": '{"x": 1}'}.get(takes)))
        assert (out.returncode == 2) == (verdict == "REFUSED") and flag in out.stderr and why in out.stderr, flag


@pytest.mark.parametrize("line", [
    "-tp 1 -pp=1 -q none -O3 -cc.mode=3 -dp 1 -n1 -r 0 -asc 1",
    "--trust_remote_code --tensor_parallel_size=1 --no-async-scheduling --compilation-config.level 3",
    "--api-key a b --served-model-name c d --max-model-len 1K --kv-cache-memory-bytes 64M",
    "--limit-mm-per-prompt {\"image\":0} --override-generation-config {\"temperature\":0.5} --hf-token --seed 0",
    "--speculative-config.method ngram --speculative-config.num_speculative_tokens 2 -sc.prompt_lookup_max=3",
    "--cudagraph-capture-sizes 4 2 1 2",
    "-O.level=3 -O.cudagraph_mode PIECEWISE",
    "--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4",
])
def test_forms_that_command_lines_have(line):
    out = serve(*line.split())
    assert out.returncode != 2, out.stderr[-300:]


def test_a_wrong_value_names_the_flag_that_was_typed():
    for line, words in (("--device-ids 0,1", "--device-ids 0,1 is not supported, expected one number"),
                        ("--cudagraph-capture-sizes 1 x", "--cudagraph-capture-sizes x is not supported, expected numbers")):
        out = serve(*line.split())
        assert out.returncode == 2 and words in out.stderr and "cuda:" not in out.stderr, out.stderr


def test_a_misspelt_flag_of_vllm_is_told():
    for wrong, right in (("--tensor-parallel", "--tensor-parallel-size"), ("--enable-chunked-prefil", "--enable-chunked-prefill"),
                         ("--gpu-memory-utilisation", "--gpu-memory-utilization")):
        out = serve(wrong, "1")
        assert out.returncode == 2 and f"did you mean {right}?" in out.stderr


def cmdlines(server):
    found = {}
    for name in ("quire-engine", "quire-frontend"):
        for pid in server.children(name):
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
                found[name] = f.read().replace("\0", " ")
    return found


def test_a_configuration_file(start, tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text(f"model: {MODELS / 'llama'}\nport: 1\nskip-tokenizer-init: true\nserved-model-name: [first, second]\n"
                      "api-key: [secret-one, secret-two]\ntensor-parallel-size: 1\nmax-num-seqs: 3\ndtype: float\n"
                      "num-gpu-blocks-override: 64\nmax-logprobs: 7\n")
    # the command line wins (--port of Server), the environment comes next
    server = start(f"--config={config}", env={"QUIRE_MAX_LOGPROBS": "5"}, key="secret-two")
    assert [m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]] == ["first", "second"]
    lines = cmdlines(server)
    assert "--max-num-seqs=3" in lines["quire-engine"] and "--max-logprobs=5" in lines["quire-frontend"]
    assert "secret" not in "".join(lines.values())
    assert "--tensor-parallel-size has no effect" in server.process.log()
    status, answer = server.post("/v1/completions", {"model": "second", "prompt": [1, 2], "max_tokens": 2, "ignore_eos": True})
    assert status == 200, answer
    server.key = "other"
    assert server.post("/v1/completions", {"model": "second", "prompt": [1, 2]})[0] == 401


def test_mistakes_in_a_configuration_file_have_their_line(tmp_path):
    config = tmp_path / "server.yaml"
    for text, said in (("port: 80\nprot: 81\n", "line 2: unknown option --prot; did you mean --port?"),
                       ("\nenable-tower-connector-lora: true\n", "line 2: --enable-tower-connector-lora is not supported: LoRA"),
                       ("port: [80\n", "not valid YAML")):
        config.write_text(text)
        out = serve("--config", config)
        assert out.returncode == 2 and str(config) in out.stderr and said in out.stderr
    gone = serve("--config", tmp_path / "gone.yaml")
    assert gone.returncode == 2 and "gone.yaml" in gone.stderr


def test_flags_that_change_answers(start):
    template = "{{ greeting }} {% for m in messages %}{{ m.content }}{% endfor %}"  # in place of a file
    server = start(BUNDLED, "--chat-template", template, "--default-chat-template-kwargs", '{"greeting": "Hello"}',
                   "--override-generation-config", '{"temperature": 0, "max_new_tokens": 7}', "--return-tokens-as-token-ids",
                   "--enable-force-include-usage", "--num-gpu-blocks-override", "128")
    chat = {"messages": [{"role": "user", "content": "who"}]}

    def rendered(**more):
        ids = server.post("/tokenize", {**chat, **more})[1]["tokens"]
        return server.post("/detokenize", {"tokens": ids})[1]["prompt"]
    assert "Hello who" in rendered()
    assert "Bye who" in rendered(chat_template_kwargs={"greeting": "Bye"})
    answers = {server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12})[1]["choices"][0]["text"] for _ in range(4)}
    assert len(answers) == 1  # temperature 0 is the default, seeds are drawn
    body = server.post("/v1/chat/completions", {**chat, "ignore_eos": True, "logprobs": True, "top_logprobs": 1})[1]
    assert body["usage"]["completion_tokens"] == 7
    assert all(re.fullmatch(r"token_id:\d+", t["token"]) for t in body["choices"][0]["logprobs"]["content"])
    plain = server.post("/v1/chat/completions", {**chat, "max_tokens": 2, "logprobs": True, "return_tokens_as_token_ids": False})[1]
    assert not any(t["token"].startswith("token_id:") for t in plain["choices"][0]["logprobs"]["content"])
    connection, answer = server.raw("POST", "/v1/chat/completions", {**chat, "stream": True, "max_tokens": 3})
    chunks = [json.loads(line[6:]) for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    connection.close()
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize("interval", ["0", "0.02"])
def test_keep_alive_is_off_at_0_as_vllm_has_it(start, interval):
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--num-gpu-blocks-override", "64", "--engine-timeout", "1",
                   "--heartbeat-ms", "200", "--sse-keep-alive-interval", interval)
    engine = server.children("quire-engine")[0]
    os.kill(engine, signal.SIGSTOP)  # the stream is silent until the engine is given up
    try:
        connection, answer = server.raw("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 4, "stream": True})
        text = answer.read().decode()
        connection.close()
    finally:
        os.kill(engine, signal.SIGCONT)
    # a ping begins the stream; without one there is time for a status that says what is wrong
    assert (answer.status, ": ping" in text) == ((503, False) if interval == "0" else (200, True))
    assert "not available" in text


def test_a_template_that_is_wrong_is_told(tmp_path):
    def render(template):
        return subprocess.run([BIN / "quire", "render", BUNDLED, "--chat-template", template], capture_output=True, text=True, timeout=60)
    assert "--chat-template" in render("{{ greeting").stderr
    assert "gone.jinja" in render(tmp_path / "gone.jinja").stderr
    assert render("{{ greeting }}").returncode == 0


def test_generate_takes_overrides_too():
    def generate(*more):
        return subprocess.run([BIN / "quire", "generate", BUNDLED, "--prompt", "Once upon a time", "--max-tokens", "12", *more],
                              capture_output=True, text=True, timeout=60)
    texts = {generate("--override-generation-config.temperature", "0", "--seed", str(seed)).stdout for seed in range(3)}
    assert len(texts) == 1
    assert generate("--override-generation-config", '{"temprature": 0}').returncode == 2
    chat = generate("--chat-template", "{{ greeting }}{{ messages[0].content }}", "--default-chat-template-kwargs.greeting", "Once",
                    "--json", "--temperature", "0")
    same = generate("--chat-template", "Once{{ messages[0].content }}", "--json", "--temperature", "0")
    assert chat.returncode == 0 and chat.stdout == same.stdout


def test_models_in_a_folder_of_models_by_id(tmp_path):
    snapshot = tmp_path / "models--some--tiny/snapshots/abc"
    snapshot.mkdir(parents=True)
    for file in BUNDLED.iterdir():
        (snapshot / file.name).symlink_to(file)
    (tmp_path / "models--some--tiny/refs").mkdir()
    (tmp_path / "models--some--tiny/refs/main").write_text("abc")
    out = subprocess.run([BIN / "quire", "generate", "some/tiny", "--download-dir", tmp_path, "--prompt", "Hi", "--max-tokens", "3"],
                         capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
