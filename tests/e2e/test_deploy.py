# SPDX-License-Identifier: Apache-2.0
"""deploy/up.sh and deploy/build.sh: the real scripts, in a folder of their own, with programs that stand in for the slow ones."""
import os
import pty
import re
import shutil
import socket
import subprocess
import sys

import pytest

from servers import BIN, BUNDLED, ROOT

SERVER = '''#!{python}
import http.server, json, os, sys
ANSWER = os.environ.get("ANSWER", "I am a stand-in.")
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        self.reply(200, {{"data": [{{"id": "stand-in"}}]}})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if ANSWER == "refuse":
            self.reply(400, {{"error": {{"message": "no such field"}}}})
        else:
            self.reply(200, {{"choices": [{{"message": {{"content": ANSWER}}}}]}})
    def log_message(self, *args):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
try:
    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
except OSError as e:
    sys.exit(f"cannot listen on port {{port}}: {{e}}")
server.serve_forever()
'''


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path):
    """A checkout with deploy/ and nothing else: cmake says what CMAKE_SAYS holds, the server answers what ANSWER holds."""
    (tmp_path / "deploy").mkdir()
    for name in ("up.sh", "build.sh", "cuda.sh"):
        shutil.copy(ROOT / "deploy" / name, tmp_path / "deploy")
    script(tmp_path / "deploy/deps.sh", "exit 0\n")
    script(tmp_path / "bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
    script(tmp_path / "bin/cmake", '''#!/bin/sh
case $1 in
--preset) mkdir -p build/release; echo "CMAKE_GENERATOR:INTERNAL=Ninja" >build/release/CMakeCache.txt ;;
--build) [ -z "${CMAKE_SAYS:-}" ] || cat "$CMAKE_SAYS"; exit "${CMAKE_RC:-0}" ;;
esac
''')
    script(tmp_path / "build/release/bin/quire", SERVER.format(python=sys.executable))
    return tmp_path


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def up(place, *args, port=None, **env):
    return subprocess.run(["sh", place / "deploy/up.sh", "--check", "--port", str(port or free_port()), *args], capture_output=True, text=True,
                          timeout=120, check=False, env={"PATH": f"{place}/bin:{os.environ['PATH']}", "HOME": str(place), **env})


def test_both_answers_are_shown(place):
    done = up(place)
    assert done.returncode == 0, done
    assert "> Who are you?\nI am a stand-in.\n" in done.stdout and done.stdout.count("I am a stand-in.") == 2 and "all good" in done.stdout


def test_the_bundled_model_answers_sensibly(place):
    shutil.rmtree(place / "build/release/bin")
    (place / "build/release/bin").symlink_to(BIN)
    done = up(place, "--model", str(BUNDLED), "--", "--num-gpu-blocks-override", "256")
    assert done.returncode == 0, done
    assert "> Who are you?\nI am the small model that comes with quire." in done.stdout and 'get_weather({"city": "Oslo"})' in done.stdout


def test_the_port_of_another_server(place, bundled):
    """It answers as ours would, so only the listening socket tells them apart."""
    done = up(place, port=re.search(r":(\d+)$", bundled.url)[1])
    assert done.returncode == 1 and "all good" not in done.stdout and "> " not in done.stdout, done
    assert "cannot listen on port" in done.stderr and "another server answers" in done.stderr and "--port" in done.stderr, done


def test_a_server_that_ends_at_once(place):
    script(place / "build/release/bin/quire", "#!/bin/sh\necho 'no such model' >&2\nexit 3\n")
    done = up(place)
    assert done.returncode == 1 and "no such model" in done.stderr and "exited with code 3" in done.stderr, done


@pytest.mark.parametrize("answer, says", [("refuse", "no such field"), ("", "the answer is empty")])
def test_no_answer_is_a_failure(place, answer, says):
    done = up(place, ANSWER=answer)
    assert done.returncode == 1 and says in done.stderr and "all good" not in done.stdout, done


@pytest.mark.parametrize("port", ["0", "70000x", "http", "123456", "-1"])
def test_a_port_that_is_none(place, port):
    done = up(place, port=port)
    assert done.returncode == 2 and f"--port {port}" in done.stderr, done


LOG = [f"[{n:3}%] Building C object common/CMakeFiles/q_common.dir/error_{n}.c.o" for n in range(1, 101)]


def test_progress_where_nobody_watches(place):
    (place / "says.txt").write_text("\n".join(LOG) + "\n")
    done = up(place, CMAKE_SAYS=str(place / "says.txt"))
    assert done.returncode == 0 and "".join(f"{n} %\n" for n in range(10, 101, 10)) in done.stdout, done
    assert (place / "build/release/build.log").read_text() == "\n".join(LOG) + "\n"


def test_progress_on_a_terminal(place):
    (place / "build/release/CMakeCache.txt").write_text("")
    (place / "says.txt").write_text("\n".join(LOG[:42]) + "\n")
    theirs, ours = pty.openpty()
    done = subprocess.run(["sh", place / "deploy/build.sh", "build/release"], cwd=place, stdout=ours, stderr=subprocess.PIPE, timeout=60, check=False,
                          env={"PATH": f"{place}/bin:{os.environ['PATH']}", "CMAKE_SAYS": str(place / "says.txt")})
    os.close(ours)
    said = b""
    try:
        while more := os.read(theirs, 65536):
            said += more
    except OSError:
        pass
    assert done.returncode == 0 and b"\r\x1b[K 42 % Building C object" in said and said.endswith(b"\r\x1b[K"), (done, said)


@pytest.mark.parametrize("error", [
    "/quire/common/json.c:12:5: error: unused variable 'x' [-Werror=unused-variable]",
    "/usr/bin/ld: json.c:(.text+0x12): undefined reference to `json_new'",
    "sh: 1: CCACHE-NOTFOUND: not found",
    'attention.cu(12): error: identifier "x" is undefined',
    "gcc: fatal error: Killed signal terminated program cc1"])
def test_the_error_of_a_failed_build(place, error):
    """Other compilers go on for a while after the one that failed; the end of the log does not hold the error."""
    lines = [*LOG[:30], "json.c: In function 'json_new':", error, "   12 |     int x;", "gmake[2]: *** [a.make:90: json.c.o] Error 1", *LOG[30:90],
             "gmake[1]: *** [CMakeFiles/Makefile2:812: all] Error 2", "gmake: *** [Makefile:146: all] Error 2"]
    (place / "says.txt").write_text("\n".join(lines) + "\n")
    done = up(place, CMAKE_SAYS=str(place / "says.txt"), CMAKE_RC="2")
    assert done.returncode == 1 and "all good" not in done.stdout, done
    assert error in done.stderr and "In function 'json_new'" in done.stderr and "build/release/build.log" in done.stderr, done
    assert done.stderr.count("\n") < 45 and "Building" not in done.stderr, done


def test_a_real_build(tmp_path):
    """make and the compiler as they are: several files at once, one of them wrong."""
    names = [f"f{i}" for i in range(12)]
    for name in names:
        (tmp_path / f"{name}.c").write_text(f"int {name}(void) {{ return {'missing' if name == 'f3' else '1'}; }}\n")
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(p C)\nadd_library(p " + " ".join(f"{n}.c" for n in names) + ")\n")
    subprocess.run(["cmake", "-G", "Unix Makefiles", "-S", tmp_path, "-B", tmp_path / "b"], check=True, capture_output=True)
    done = subprocess.run(["sh", ROOT / "deploy/build.sh", tmp_path / "b"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "'missing' undeclared" in done.stderr and "In function 'f3'" in done.stderr, done
    (tmp_path / "f3.c").write_text("int f3(void) { return 1; }\n")
    done = subprocess.run(["sh", ROOT / "deploy/build.sh", tmp_path / "b"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "100 %" in done.stdout and (tmp_path / "b/libp.a").exists(), done


def test_a_folder_that_is_not_configured(tmp_path):
    done = subprocess.run(["sh", ROOT / "deploy/build.sh", tmp_path / "dev"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is not configured: cmake --preset dev" in done.stderr


def test_kernels_without_a_compiler_cache(tmp_path):
    """The command for a kernel has nothing in the place of a cache that was not found."""
    toolkit = tmp_path / "toolkit"
    script(toolkit / "bin/nvcc", "#!/bin/sh\nexit 0\n")
    (toolkit / "lib64").mkdir()
    (toolkit / "lib64/libcudart_static.a").write_bytes(b"!<arch>\n")
    for cache in ("CCACHE-NOTFOUND", "/usr/bin/env"):
        subprocess.run(["cmake", "--preset", "cuda", "-B", tmp_path / "b", f"-DCCACHE={cache}", f"-DNVCC={toolkit}/bin/nvcc"], cwd=ROOT, check=True,
                       capture_output=True)
        rules = (tmp_path / "b/kernels/cuda/CMakeFiles/quire_cuda.dir/build.make").read_text()
        commands = [line for line in rules.splitlines() if "nvcc.sh" in line and f"{toolkit}/bin/nvcc" in line]
        assert len(commands) > 10 and "NOTFOUND" not in rules
        assert all(("/usr/bin/env" in line) == (cache == "/usr/bin/env") for line in commands), commands[0]
