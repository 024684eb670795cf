# SPDX-License-Identifier: Apache-2.0
"""What a run of tests/gpu/run.py finds on the machine: the card, the toolkit, cuBLASLt, and what a run before it left there."""
import contextlib
import fcntl
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

CUBLASLT = ("libcublasLt.so.13", "libcublasLt.so.12")
APART = {"QUIRE_CUDA_OFF": "overlap"}  # kernels one after the other
WITHOUT = {"QUIRE_CUDA_OFF": "wgmma,overlap"}  # what does without all that is taken on trial
TOOLKIT = pathlib.Path("/usr/local/cuda")
DRIVER = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")


def said(*args, limit=60):
    """(exit status or None, output) of a program of the system; never fails."""
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
        return done.returncode, (done.stdout + done.stderr).strip()
    except FileNotFoundError:
        return None, f"there is no {args[0]} on this machine"
    except (OSError, subprocess.TimeoutExpired) as e:
        return None, f"{args[0]}: {e}"


def card(device):
    """(card, driver): results go for a card of this name and memory, whichever driver it has. Without a card, how a run goes."""
    library = os.environ.get("QUIRE_CUDA_LIBRARY")
    if library or device.startswith("cpu"):
        return library or device, ""
    rc, text = said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if rc != 0 or text.count(",") < 2:
        why = text if rc is not None else text + ", so no driver"
        raise SystemExit(f"run.sh: no NVIDIA card to test on: {why} (QUIRE_DEVICE and QUIRE_CUDA_LIBRARY choose another device)")
    name, memory, driver = (x.strip() for x in text.splitlines()[0].rsplit(",", 2))
    return f"{name}, {memory}", driver


def tool(name):
    """A program of the toolkit, or None."""
    beside = TOOLKIT / "bin" / name
    return shutil.which(name) or (str(beside) if beside.exists() else None)


def library(names, places):
    """(path, folder that the loader has to be told or None) of the first of `names`, where the loader looks or else in `places`."""
    rc, known = said(shutil.which("ldconfig") or "/sbin/ldconfig", "-p")
    for name in names:
        for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
            if folder and pathlib.Path(folder, name).exists():
                return f"{folder}/{name}", None
        if rc == 0 and (found := re.search(rf"{re.escape(name)} .*=> (.*)", known)):
            return found[1], None
        for folder in places:
            if pathlib.Path(folder, name).exists():
                return f"{folder}/{name}", str(folder)
    return None, None


def cublaslt():
    """Python's packages have one where the toolkit has none."""
    packages = [p for place in sys.path for p in sorted(pathlib.Path(place or ".").glob("nvidia/*/lib"))]
    return library(CUBLASLT, [TOOLKIT / "lib64", TOOLKIT / "targets/x86_64-linux/lib", *packages])


def environment(cache):
    """What our programs are told besides: where the driver and cuBLASLt are, and where choices of algorithms are kept, so that
    they come back with the results."""
    env = {"XDG_CACHE_HOME": str(cache.resolve())}
    told = [library(["libcuda.so.1"], DRIVER)[1], cublaslt()[1]]
    if any(told):
        env["LD_LIBRARY_PATH"] = ":".join(p for p in (os.environ.get("LD_LIBRARY_PATH"), *told) if p)
    return env


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def gib(n):
    return f"{n / (1 << 30):.0f} GiB"


def facts():
    """[(what, is)]"""
    smi = "name,driver_version,memory.total,memory.used,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm,clocks.max.mem,power.limit"
    yield "card", said("nvidia-smi", f"--query-gpu={smi}", "--format=csv,noheader")[1]
    for name, line in (("nvcc", r"release.*"), ("compute-sanitizer", r"[Vv]ersion.*"), ("ncu", r"Version.*")):
        path = tool(name)
        text = said(path, "--version")[1] if path else "none"
        found = re.search(line, text)
        yield name, found[0] if found else text[:80]
    yield "libcuda", library(["libcuda.so.1"], DRIVER)[0] or "none: no driver"
    yield "cuBLASLt", cublaslt()[0] or "none: products of many rows are our own kernels'"
    yield "Python", f"{platform.python_version()}, torch {version_of('torch')}, transformers {version_of('transformers')}"
    yield "system", f"{platform.release()}, {' '.join(platform.libc_ver())}, {os.cpu_count()} cores"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shm = shutil.disk_usage("/dev/shm").free if pathlib.Path("/dev/shm").is_dir() else 0
    yield "room", f"memory {gib(memory)}, free in /dev/shm {gib(shm)}, in /tmp {gib(shutil.disk_usage('/tmp').free)}"


@contextlib.contextmanager
def workspace(parent):
    """A folder quire-gpu-… in `parent` for as long as it is used. Its lock tells other runs so, also those that count processes from another 1."""
    while True:
        path = pathlib.Path(tempfile.mkdtemp(prefix="quire-gpu-", dir=parent))
        lock = os.open(path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # no run that starts now removed it before it was locked
            break
        os.close(lock)
    try:
        yield path
    finally:
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)


def sweep(places):
    """Remove the workspaces of runs that were killed: those that nobody has locked."""
    for place in places:
        for path in place.glob("quire-gpu-*") if place.is_dir() else ():
            if not path.is_dir() or path.is_symlink():
                continue
            lock = os.open(path, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
