# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run.sh with the real programs and no card: the CUDA kernels on the host emulation (libquire-fake-cuda.so), toy shapes. A
run is killed in the middle, as a machine is that is taken back; the same command then goes on with what is left.

  python3 tests/gpu/rehearse.py BIN LIBRARY [--whole]    folder of the programs; the library. --whole: every job, many minutes

compute-sanitizer and ncu are stand-ins that look at their command lines and run what they are given; there is no torch."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAND_INS = {
    "compute-sanitizer": """
if args == ["--version"]: print("Version 2025.3.1"); sys.exit()
known = {"--tool": ("memcheck", "racecheck"), "--error-exitcode": ("9",), "--target-processes": ("all",), "--print-limit": ("20",)}
while args and args[0].startswith("--"):
    if args[1] not in known[args[0]]: sys.exit("compute-sanitizer: " + " ".join(args[:2]))
    args = args[2:]
rc = subprocess.run(args).returncode
print("========= ERROR SUMMARY: 0 errors" if rc == 0 else "========= ERROR SUMMARY: 1 error")
sys.exit(rc)
""",
    "ncu": """
if args == ["--version"]: print("Version 2025.3.1"); sys.exit()
sections = ("SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "LaunchStats", "Occupancy")
while args and args[0].startswith("--"):
    fine = {"--clock-control": args[1] == "none", "--kernel-name": args[1].startswith("regex:"), "--section": args[1] in sections}
    if not fine[args[0]]: sys.exit("ncu: " + " ".join(args[:2]))
    args = args[2:]
done = subprocess.run(args, capture_output=True, text=True)
print("".join(line + "\\n    Section: GPU Speed Of Light Throughput\\n" for line in done.stdout.splitlines()[1:]))
sys.exit(done.returncode)
""",
}
# A little of every part: emulation takes its time.
SOME = (r"^machine/|^ceilings/|^kernels/(check (embed|rms_norm|silu_mul)|speed$)|^goldens/(llama graphs|as the CPU Llama.*)$"
        r"|^sanitizer/memcheck steps|^bench/Llama-3-8B (latency|http)$|^torch/kernels|^profile/linear$")
KILLED_AFTER = "goldens/llama graphs"


def environment(folder, library):
    (folder / "bin").mkdir()
    (folder / "torch").mkdir()
    (folder / "torch/torch.py").write_text("raise ImportError('torch is not here')\n")
    for name, code in STAND_INS.items():
        path = folder / "bin" / name
        path.write_text(f"#!{sys.executable} -IS\nimport subprocess, sys\nargs = sys.argv[1:]\n{code}")
        path.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return {**env, "QUIRE_CUDA_LIBRARY": library, "PATH": f"{folder}/bin:/usr/bin:/bin", "PYTHONPATH": f"{folder}/torch", "OUT": f"{folder}/out",
            "TMPDIR": str(folder), "BIN": sys.argv[1]}


def jobs(folder):
    try:
        return json.loads((folder / "out/results.json").read_text())["jobs"]
    except FileNotFoundError:
        return {}


def killed(command, env, folder):
    """The jobs that it had done when it was killed."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while KILLED_AFTER not in jobs(folder):
        if process.poll() is not None:
            sys.exit(f"it ended by itself:\n{process.communicate()[0]}")
        time.sleep(0.2)
    process.kill()
    process.communicate()
    return jobs(folder)


def main():
    whole = "--whole" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        env = environment(folder, str(pathlib.Path(sys.argv[2]).resolve()))
        command = ["sh", "tests/gpu/run.sh", "--small", "--times", "1", "--minutes", "600", "--patience", "100", *([] if whole else ["--job", SOME])]
        before = killed(command, env, folder)
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        said, found = done.stdout + done.stderr, jobs(folder)
        print(said)
        wrong = [k for k, v in found.items() if v["status"] == "FAIL"]
        again = [k for k, v in before.items() if found[k]["at"] != v["at"] and not k.startswith("machine/")]
        missing = {"machine", "ceilings", "kernels", "goldens", "sanitizer", "bench", "torch", "profile"} - {k.split("/")[0] for k in found}
        skipped = sorted(k for k, v in found.items() if v["status"] == "skipped" and not whole)
        if done.returncode or wrong or again or missing or "not reached" in said:
            sys.exit(f"failed: {wrong}; run again: {again}; without a job: {missing}; exit {done.returncode}\n"
                     + (folder / "out/log.txt").read_text()[-4000:])
        if skipped not in ([], ["ceilings/torch", "torch/kernels"]):
            sys.exit(f"skipped, and should not be: {skipped}")
        http = found["bench/Llama-3-8B http"]["rows"][0]
        if http["completed"] != 4 or not re.search(r"\| 256|\| decode", (folder / "out/page.md").read_text()):
            sys.exit(f"by HTTP: {http}")
    print("ok   tests/gpu/run.sh on the emulated device")


if __name__ == "__main__":
    main()
