# SPDX-License-Identifier: Apache-2.0
"""--log-json: every line is an object, from the first to the last, whatever goes wrong. Pipes in the place of files."""
import json
import os
import shutil
import signal

import pytest

from servers import BIN, MODELS

SMALL = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64", "--heartbeat-ms", "100")


def objects(process):
    return [json.loads(line) for line in process.lines if line is not None]


def test_all_lines_are_json(run):
    server = run(BIN / "quire", "serve", MODELS / "llama", "--port", "0", *SMALL, "--log-json")
    server.wait_line('"message":"ready"')
    mark = len(server.lines)
    os.kill(server.children("quire-engine")[0], signal.SIGSEGV)
    server.wait_line("restarting", start=mark)
    end = next(i for i, line in enumerate(server.lines) if i >= mark and "restarting" in line)
    server.wait_line("link: connected", start=end)  # that of the first connection may come later than the supervisor's "ready"
    assert server.stop() == 0
    server.reader.join(20)
    found = objects(server)
    assert {"serve", "engine", "frontend"} <= {line["component"] for line in found}
    assert any(line["level"] == "ERROR" and "restarting" in line["message"] for line in found)


@pytest.mark.parametrize("args", (("--nonsense", "--log-json"), ("--log-json", "--nonsense"), ("--log-json", "--port", "x"),
                                  ("--log-json", "--dtype", "int3"), ("--log-json", "--max-body-bytes", "2M", "--max-total-body-bytes", "1M")))
def test_errors_of_the_start_are_json(run, args):
    process = run(BIN / "quire", "serve", MODELS / "llama", "--port", "0", *args)
    assert process.exit_code() != 0
    assert objects(process)[-1]["level"] == "ERROR"


@pytest.mark.parametrize("name", ("model.safetensors", "config.json"))
def test_a_pipe_in_place_of_a_file(run, tmp_path, name):
    """Opening one would wait for its writer."""
    shutil.copytree(MODELS / "llama", tmp_path / "m")
    (tmp_path / "m" / name).unlink()
    os.mkfifo(tmp_path / "m" / name)
    process = run(BIN / "quire", "serve", tmp_path / "m", "--port", "0", *SMALL)
    assert process.exit_code() in (2, 3)
    assert name in process.log() and "pipe" in process.log()
