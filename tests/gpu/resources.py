# SPDX-License-Identifier: Apache-2.0
"""Registers and spills of every CUDA kernel, as the compiler reports them, against a committed table.

  python3 tests/gpu/resources.py [--arch 90a,80] [--only attention,mla] [--jobs 1] [--build build/cuda] [--update]

Without a card; needs nvcc (13.0: another version allocates otherwise, and then only spills are compared).
A kernel that spills is an error, in the table too, unless MAY_SPILL below names it; so is one that takes 8 registers more
than the table says or that the table does not have, and one whose products by wgmma the compiler lets wait for each other
or whose warpgroups do not get the registers that they ask for.
So is a row of the table whose kernel is gone.
--only: sources by name; --update writes their rows of the table. A target takes about three minutes of CPU, two of them
attention. --build: nothing is compiled, what that build said is read (NAME.o.txt beside each object of libquire-cuda.so); this
is what tests/run.sh cuda does. Its targets are those of that build.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(TREE, "tests", "gpu", "resources.txt")
ARCHS = ("80", "86", "89", "90a", "100")
VERSION = "13.0"
SLACK = 8  # registers
MAY_SPILL = ()  # names of kernels without their <…>, each with a reason: none that runs in a step may


def of_cache(build, name):
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as cache:
        return re.search(rf"^{name}:\w+=(.+)$", cache.read(), re.M).group(1)


def nvcc(options):
    if options.build:
        return of_cache(options.build, "NVCC")
    for path in (os.environ.get("NVCC"), "/usr/local/cuda/bin/nvcc"):
        if path and os.path.exists(path):
            return path
    return None


def plain(symbol):
    """_Z16attention_kernelILi128EL5dtype2ELj4EEv… -> attention_kernel<128,2,4>"""
    match = re.match(r"_Z(?:L|N\d+_GLOBAL__N_\w+?)?(\d+)", symbol)
    start, n = match.end(), int(match.group(1))
    name, rest = symbol[start:start + n], symbol[start + n:]
    values = re.findall(r"L(?:[ijb]|\d[a-z_]*?)(\d+)E", rest.split("Ev")[0] + "E") if rest.startswith("I") else []
    return f"{name}<{','.join(values)}>" if values else name


def parse(lines):
    """What ptxas says of each kernel: {(arch, name): (registers, bytes spilled)}"""
    rows, key, spill = {}, None, 0
    for line in lines:
        if match := re.search(r"entry function '(\w+)' for 'sm_(\w+)'", line):
            key = match.group(2), plain(match.group(1))
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spill = int(match.group(1)) + int(match.group(2))
        elif key and (match := re.search(r"Used (\d+) registers", line)):
            rows[key] = (int(match.group(1)), spill)
            key = None
    return rows


def rows_of(source, said):
    if "Potential Performance Loss" in said:  # ptxas lets products by wgmma wait for each other, or ignores setmaxnreg
        sys.exit(f"{source}:\n{said}")
    return parse(said.splitlines())


def compile_one(job):
    compiler, source, arch = job
    virtual = "80" if arch == "86" else arch  # as kernels/cuda/CMakeLists.txt has it
    run = subprocess.run([compiler, "-std=c++17", "-O3", "--fmad=false", "-Xptxas", "-v",
                          f"-gencode=arch=compute_{virtual},code=sm_{arch}", f"-I{TREE}", "-cubin", source, "-o", "/dev/null"],
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{source} for sm_{arch}:\n{run.stderr}")
    return rows_of(f"{source} for sm_{arch}", run.stderr)


def read_table():
    rows = {}
    if os.path.exists(TABLE):
        for line in open(TABLE, encoding="utf-8"):
            if line.strip() and not line.startswith("#"):
                name, arch, registers, spill = line.split()
                rows[(arch, name)] = (int(registers), int(spill))
    return rows


def write_table(rows):
    with open(TABLE, "w", encoding="utf-8") as out:
        out.write("# kernel, target, registers, bytes spilled; made by tests/gpu/resources.py --update, "
                  f"nvcc {VERSION}\n")
        for (arch, name), (registers, spill) in sorted(rows.items(), key=lambda r: (r[0][1], ARCHS.index(r[0][0]))):
            out.write(f"{name} {arch} {registers} {spill}\n")


def spilling(rows):
    return [f"{name} for sm_{arch} spills {spill} bytes" for (arch, name), (_, spill) in sorted(rows.items())
            if spill and name.split("<")[0] not in MAY_SPILL]


def compare(found, table, exact, gone):
    wrong = spilling({**table, **found})
    wrong += [f"{name} for sm_{arch} is in the table, and no such kernel was built" for arch, name in sorted(gone)]
    for (arch, name), (registers, spill) in sorted(found.items()):
        if (arch, name) not in table:
            wrong.append(f"{name} for sm_{arch} is not in the table")
            continue
        had, _ = table[(arch, name)]
        if exact and registers > had + SLACK:
            wrong.append(f"{name} for sm_{arch} takes {registers} registers, the table has {had}")
    return wrong


def sources(options):
    return [source for source in sorted(glob.glob(os.path.join(TREE, "kernels", "cuda", "*.cu")))
            if not options.only or os.path.basename(source)[:-3] in options.only.split(",")]


def read_build(options):
    found = {}
    for source in sources(options):
        report = os.path.join(options.build, "kernels", "cuda", os.path.basename(source)[:-3] + ".o.txt")
        with open(report, encoding="utf-8", errors="replace") as said:
            found.update(rows_of(source, said.read()))
    return {k: v for k, v in found.items() if k[0] in options.arch.split(",")}


def compile_all(compiler, options):
    jobs = [(compiler, source, arch) for arch in options.arch.split(",") for source in sources(options)]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for rows in pool.map(compile_one, jobs):
            found.update(rows)
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", help="default: those of the build, without one all")
    options.add_argument("--only", default="")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--build", help="do not compile: read what this build said")
    options.add_argument("--update", action="store_true")
    options = options.parse_args()
    if not options.arch:
        options.arch = of_cache(options.build, "QUIRE_CUDA_ARCHS").replace(";", ",") if options.build else ",".join(ARCHS)
    compiler = nvcc(options)
    if not compiler:
        print("resources: no nvcc, nothing compared")
        return 77
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    table, exact = read_table(), f"release {VERSION}" in version
    found = read_build(options) if options.build else compile_all(compiler, options)
    gone = set() if options.only else {k for k in table if k[0] in options.arch.split(",") and k not in found}
    if options.update:
        write_table({**{k: v for k, v in table.items() if k not in gone}, **found})
        print(f"resources: {len(found)} rows written")
        for line in spilling(found):
            print(line)
        return 1 if spilling(found) else 0
    wrong = compare(found, table, exact, gone)
    for line in wrong:
        print(line)
    print(f"resources: {len(found)} kernels, {len(wrong)} findings")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
