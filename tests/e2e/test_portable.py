# SPDX-License-Identifier: Apache-2.0
"""The portable programs (the target `portable`): they need the C library and nothing else, and run from a folder that was
copied elsewhere, without anything in the environment."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from servers import BIN, BUNDLED, MODELS, ROOT, Process

PORTABLE = BIN.parent / "portable"
C_LIBRARY = re.compile(r"(lib(c|m|dl|pthread|rt)\.so\.[0-9]+|ld-linux.*\.so\.[0-9]+)")
BESIDE = {"quire-frontend", "quire-run-batch"}  # what h2o shares with them comes along in lib
VERBS = sorted(p.name for p in BIN.glob("quire*"))
pytestmark = pytest.mark.skipif(not (PORTABLE / "bin/quire-generate").exists(), reason=f"no {PORTABLE}: cmake --build {BIN.parent} --target portable")


def needed(path):
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def test_every_verb_is_there():
    assert len(VERBS) > 10 and sorted(p.name for p in (PORTABLE / "bin").glob("quire*")) == VERBS


def test_what_is_installed(tmp_path):
    """The programs, and none of the tests'."""
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", tmp_path], check=True, capture_output=True)
    assert sorted(p.name for p in (tmp_path / "bin").iterdir()) == VERBS


def test_needs():
    for path in [*(PORTABLE / "bin" / name for name in set(VERBS) - BESIDE), *(PORTABLE / "lib").glob("libquire-*.so")]:
        assert needed(path) and all(C_LIBRARY.fullmatch(n) for n in needed(path)), path
    there = {p.name for p in (PORTABLE / "lib").iterdir()}
    for path in [*(PORTABLE / "bin" / name for name in BESIDE), *(PORTABLE / "lib").glob("*.so*")]:
        assert all(n in there or C_LIBRARY.fullmatch(n) or n == "libresolv.so.2" for n in needed(path)), path


@pytest.fixture
def elsewhere(tmp_path):
    """A copy of all of it, far from the build."""
    return pathlib.Path(shutil.copytree(PORTABLE, tmp_path / "far away", symlinks=True))


def run(*args, **env):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=120, env=env, cwd="/")


def test_every_verb_runs_elsewhere(elsewhere):
    said = run(elsewhere / "bin/quire", "help").stdout
    for name in VERBS[1:]:
        verb = name.removeprefix("quire-")
        done = run(elsewhere / "bin/quire", verb, "--help")
        assert done.returncode == 0 and "usage: quire" in done.stdout, (name, done)
        assert re.search(rf"^ *{verb}\b", said, re.M) or verb == "worker", said
    done = run(elsewhere / "bin/quire", "bench", "kernels", "--op", "nonsense")
    assert done.returncode == 2 and 'no operation is named "nonsense"' in done.stderr, done


def test_run_batch_elsewhere(elsewhere, tmp_path):
    body = {"model": str(BUNDLED), "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    (tmp_path / "in.jsonl").write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    done = run(elsewhere / "bin/quire", "run-batch", BUNDLED, "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl",
               "--num-gpu-blocks-override", 256)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["response"]["status_code"] == 200


def test_generate_elsewhere(elsewhere):
    golden = json.loads((MODELS / "llama/golden.json").read_text())["prompts"][0]
    done = run(elsewhere / "bin/quire-generate", MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--json", "--temperature", 0,
               "--ignore-eos", "--prompt-ids", ",".join(map(str, golden["ids"])), "--max-tokens", len(golden["greedy"]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == golden["greedy"]


def mapped(pid):
    """Paths of the libraries that a process has loaded."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {m for m in re.findall(r"(/.*\.so[.0-9]*)$", maps, re.M)}


def test_serve_and_bench_elsewhere(elsewhere):
    server = Process("/usr/bin/env", "-i", elsewhere / "bin/quire", "serve", MODELS / "llama", "--skip-tokenizer-init", "--port", "0",
                     "--num-gpu-blocks-override", "64")
    try:
        url = server.wait_line(r"listening on (http://\S+)")[1]
        server.wait_line(r"serve: ready")
        for name, ours in (("quire-engine", False), ("quire-frontend", True)):
            [pid] = server.children(name)
            others = {p for p in mapped(pid) if not C_LIBRARY.fullmatch(os.path.basename(p))}
            assert all(p.startswith(f"{elsewhere}/lib/") for p in others) and bool(others) == ours, others
        args = ("serve", "--base-url", url, "--num-prompts", 3, "--input-len", 8, "--output-len", 4, "--vocab-size", 256, "--json", "-")
        done = run(elsewhere / "bin/quire-bench", *args)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["results"][0]["total_output_tokens"] == 12
        done = run(elsewhere / "bin/quire-bench", *args, QUIRE_CURL_LIBRARY="/nowhere/libcurl.so")
        assert done.returncode == 1 and "/nowhere/libcurl.so" in done.stderr and "QUIRE_CURL_LIBRARY" in done.stderr, done.stderr
    finally:
        server.stop()


def test_the_library_elsewhere(elsewhere, tmp_path):
    """A program of someone's, linked with nothing but libquire.a."""
    (tmp_path / "mine.c").write_text("""
#include <stdio.h>
#include "engine/quire.h"
int main(int argc, char **argv)
{
    struct quire_options o;
    struct quire_error e;
    struct quire_engine *engine = NULL;
    quire_options_init(&o, sizeof o);
    o.model = argv[argc - 1];
    o.skip_tokenizer = true;
    if (quire_engine_open(&engine, &o, &e) != QUIRE_OK) {
        puts(e.message);
        return 1;
    }
    quire_engine_close(engine);
    printf("quire %s\\n", quire_version());
    return 0;
}
""")
    mine = elsewhere / "bin/mine"
    built = run("/usr/bin/gcc", "-I", ROOT, "-o", mine, tmp_path / "mine.c", elsewhere / "lib/libquire.a", "-lm", PATH="/usr/bin:/bin")
    assert built.returncode == 0, built.stderr
    assert all(C_LIBRARY.fullmatch(n) for n in needed(mine))
    done = run(mine, MODELS / "llama")
    assert done.returncode == 0 and done.stdout.startswith("quire "), done


def test_the_gpu_script_from_its_bundle(tmp_path):
    """What is packed for a GPU machine, unpacked elsewhere and run on the CPU: real programs, toy shapes."""
    packed = tmp_path / "quire-gpu.tar.gz"
    env = {**os.environ, "BUILD": str(BIN.parent), "TAR": str(packed)}
    subprocess.run(["sh", "tests/gpu/run.sh", "bundle"], cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
    subprocess.run(["tar", "xf", packed], cwd=tmp_path, check=True, timeout=120)
    done = run("sh", tmp_path / "quire-gpu/tests/gpu/run.sh", "--small", "--job", "goldens/llama |same bits llama|bench/Llama", "goldens", "bench",
               PATH="/usr/bin:/bin", QUIRE_DEVICE="cpu", OUT=str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = json.loads((tmp_path / "out/results.json").read_text())["jobs"]
    others = {name: job["status"] for name, job in jobs.items() if job["status"] != "ok"}
    assert set(others) <= {"bench/Llama-3-8B fp8", "bench/Llama-3-8B fp8, cache fp8"} and set(others.values()) <= {"skipped"}, jobs
    assert len(jobs) == 11 and jobs["bench/Llama-3-8B http"]["rows"][0]["start_to_ready_s"] > 0
    assert "Llama-3-8B bf16, 256 x 1 k in, 128 out, by HTTP" in (tmp_path / "out/page.md").read_text()
