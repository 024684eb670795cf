# SPDX-License-Identifier: Apache-2.0
"""deploy/cuda.sh: what it says of a machine's cards and compilers, with programs that stand in for NVIDIA's."""
import os
import subprocess

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "deploy", "cuda.sh")


def stub(folder, name, says, status=0):
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    path.chmod(0o755)
    return path


def run(verb, folder, **env):
    return subprocess.run(["sh", SCRIPT, verb], capture_output=True, text=True, check=False,
                          env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), **env})


def test_one_capability_each(tmp_path):
    stub(tmp_path, "nvidia-smi", "9.0\n8.6\n9.0\n10.0\n12.0")
    done = run("archs", tmp_path)
    assert done.returncode == 0 and sorted(done.stdout.strip().split(";")) == ["100", "120", "86", "90a"]


def test_an_old_card_is_left_out(tmp_path):
    stub(tmp_path, "nvidia-smi", "7.5\n8.9")
    done = run("archs", tmp_path)
    assert done.returncode == 0 and done.stdout == "89\n" and "compute capability 7.5: quire needs 8.0 or newer" in done.stderr


def test_no_card_to_use(tmp_path):
    stub(tmp_path, "nvidia-smi", "7.5")
    done = run("archs", tmp_path)
    assert done.returncode == 1 and done.stdout == "" and "no supported GPU found" in done.stderr


def test_a_driver_that_fails(tmp_path):
    stub(tmp_path, "nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)
    done = run("archs", tmp_path)
    assert done.returncode == 1 and "couldn't communicate" in done.stderr


def test_no_driver(tmp_path):
    done = run("archs", tmp_path)
    assert done.returncode == 1 and "nvidia-smi not found" in done.stderr


def test_the_compiler_of_the_right_version(tmp_path):
    other, right = tmp_path / "other", tmp_path / "right"
    other.mkdir()
    right.mkdir()
    stub(other, "nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    path = stub(right, "nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    done = run("nvcc", other, NVCC=str(path))
    assert done.returncode == 0 and done.stdout == f"{path}\n"
    done = run("nvcc", right, NVCC=str(other / "nvcc"))
    assert done.returncode == 0 and done.stdout == f"{path}\n"


def test_it_says_what_it_can_do(tmp_path):
    done = run("", tmp_path)
    assert done.returncode == 2 and "sh deploy/cuda.sh archs" in done.stderr
