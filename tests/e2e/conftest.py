# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests, ended with the test or the session."""
import json
import signal

import pytest

from servers import BIN, BUNDLED, MODELS, Process, Server

signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and shells' background jobs ignore it, and so would all programs


@pytest.fixture
def start():
    """start(model, *options, ...) -> Server; stopped at the end of the test."""
    servers = []

    def begin(*args, **more):
        servers.append(Server(*args, **more))
        return servers[-1]
    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def run():
    """run(program, *args) -> Process; stopped at the end of the test."""
    processes = []

    def begin(program, *args, **more):
        processes.append(Process(BIN / program, *args, **more))
        return processes[-1]
    yield begin
    for process in reversed(processes):
        process.stop()


@pytest.fixture(scope="session")
def bundled():
    """One server on the bundled model for all tests that only ask questions."""
    server = Server(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "1024")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def client(bundled):
    import openai
    return openai.OpenAI(base_url=bundled.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def wide():
    """A server on the llama golden: random weights, long nonsense answers, token ids only."""
    server = Server(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """A model folder of random weights that is slow enough for things to happen while it answers."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 512,
        "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}))
    return folder
