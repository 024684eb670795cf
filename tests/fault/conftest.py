# SPDX-License-Identifier: Apache-2.0
"""The servers of tests/e2e, and the library that makes calls of the C library fail."""
import os
import pathlib
import subprocess
import sys

import pytest

E2E = pathlib.Path(__file__).resolve().parents[1] / "e2e"
sys.path.insert(0, str(E2E))
from servers import BIN, Process, Server  # noqa: E402


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
def failing_calls(tmp_path_factory):
    """The path of failing_calls.c as a shared object, for LD_PRELOAD."""
    made = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    source = pathlib.Path(__file__).with_name("failing_calls.c")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", made, source, "-ldl"],
                   check=True)
    return made
