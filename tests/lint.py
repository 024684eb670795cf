# SPDX-License-Identifier: Apache-2.0
"""The house style as a program: what the compilers and clang-tidy do not check.

Prints every finding as file:line: text and exits 1 when there is one. The last line counts findings and what was skipped.
"""
import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from include_cycles import cycles  # noqa: E402

FOLDERS = ("common", "proto", "kernels", "engine", "frontend", "tests", "deploy")
TOP = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", *FOLDERS}
README_HEADINGS = ("What it is", "Read in this order", "Rules", "Talks to", "How to add", "How to test it")
BANNED = re.compile(r"\b(malloc|calloc|realloc|strdup|strndup|free)\s*\(")
# The public header is installed and read alone: one file with everything that a caller may use.
PUBLIC_HEADER, PUBLIC_HEADER_MAX = "engine/quire.h", 400
# Where cycles of includes stand, and why.
CYCLES = {
    "engine/model/": "its files become the layer program and the loader's plan",
    "common/template/": "one interpreter: values, the tree and its evaluation are defined by each other",
    "common/parsers/": "format.h becomes the private header of the parser",
}
SOURCE_MAX, HEADER_MAX, README_MAX, FUNCTION_MAX, COLUMNS_MAX = 1000, 200, 80, 70, 100

# Headers of CUDA's that ours include: they come with a toolkit or with NVIDIA's wheels (deploy/cuda.sh), not from Debian.
NO_CUDA = re.compile(r"fatal error: ((?:cuda|cublas)\w*\.h): No such file")
CUDA_FOLDERS = ("/usr/local/cuda/include", "build/nvcc/lib/python3*/site-packages/nvidia/cu13/include")

findings = []
skipped = []


def report(path, line, text):
    findings.append(f"{path}:{line}: {text}")


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    return [f for f in out.stdout.splitlines() if os.path.isfile(f)]


def without_comments(text):
    """Blank out comments and string contents, keeping line numbers."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)


def check_functions(path, text):
    """A function of ours starts with '{' in column 0 and ends with '}' in column 0 (clang-format sees to that)."""
    start = None
    for number, line in enumerate(text.split("\n"), 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            if number - start - 1 > FUNCTION_MAX:
                report(path, start, f"function of {number - start - 1} lines, the limit is {FUNCTION_MAX}")
            start = None


def check_c(path):
    raw = open(path, encoding="utf-8").read()
    lines = raw.split("\n")
    code = without_comments(raw)
    if not lines[0].startswith("/* SPDX-License-Identifier: Apache-2.0 */"):
        report(path, 1, "the first line is not the SPDX line")
    limit = HEADER_MAX if path.endswith(".h") and not path.startswith("tests/") else SOURCE_MAX
    limit = PUBLIC_HEADER_MAX if path == PUBLIC_HEADER else limit
    table = os.path.basename(path).endswith(("_table.c", "_table.h", "_data.h"))
    if len(lines) > limit and not table:
        report(path, limit, f"{len(lines)} lines, the limit is {limit}")
    for number, line in enumerate(lines, 1):
        if '#include "../' in line:
            report(path, number, 'include paths name the layer, never "../"')
        if len(line) > COLUMNS_MAX and '"' not in line:  # a string is not broken for the sake of a column
            report(path, number, f"{len(line)} columns, the limit is {COLUMNS_MAX}")
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
            report(path, number, "left-over note; open an issue instead")
    for number, line in enumerate(code.split("\n"), 1):
        if BANNED.search(line) and path != "common/mem.c" and not path.startswith("tests/"):
            report(path, number, "raw allocation; use common/mem.h")
        if re.search(r"\btypedef\s+struct\b", line):
            report(path, number, "no typedef for structs")
    check_functions(path, code)


def cuda_includes():
    """-isystem FOLDER for the first folder that has CUDA's headers; nothing where the compiler's own folders must do."""
    found = [folder for pattern in CUDA_FOLDERS for folder in glob.glob(pattern) if os.path.exists(f"{folder}/cuda_runtime_api.h")]
    return ["-isystem", found[0]] if found else []


def check_headers_compile(headers):
    """Every header stands alone. One compiler run a header, syntax only, with the whole tree as include root. A header
    that needs CUDA's is skipped where those are not there, and counted."""
    flags = subprocess.run(["pkg-config", "--cflags", "libczmq", "msgpack", "jansson", "libuv", "libh2o", "hwloc"],
                           capture_output=True, text=True, check=True).stdout.split() + cuda_includes()
    for path in headers:
        run = subprocess.run(["gcc", "-std=c17", "-D_GNU_SOURCE", '-DQUIRE_VERSION="lint"', "-fsyntax-only", "-Wall",
                              "-Wextra", "-Werror", "-I.", "-Itests/unit", *flags, "-x", "c", "-"],
                             input=f'#include "{path}"\n', capture_output=True, text=True)
        if run.returncode == 0:
            continue
        if missing := NO_CUDA.search(run.stderr):
            skipped.append((path, missing[1]))
        else:
            report(path, 1, "does not compile alone: " + run.stderr.strip().split("\n")[0])


def check_readmes(files):
    folders = {os.path.dirname(f) for f in files if f.endswith((".c", ".cu"))} | set(FOLDERS)
    for folder in sorted(folders):
        if folder.startswith(("tests/", "kernels/")):
            continue  # tests/README.md and kernels/README.md describe their subfolders
        path = f"{folder}/README.md"
        if path not in files:
            report(folder, 1, "folder without README.md")
            continue
        text = open(path, encoding="utf-8").read()
        if text.count("\n") > README_MAX:
            report(path, README_MAX, f"{text.count(chr(10))} lines, the limit is {README_MAX}")
        for heading in README_HEADINGS:
            if not re.search(rf"^#+ {heading}", text, re.M):
                report(path, 1, f'no heading "{heading} …"')


def check_conflicts(files):
    """No file was committed with the marks of an unfinished merge."""
    marks = tuple(sign * 7 + " " for sign in "<>")
    for path in files:
        if path.endswith((".c", ".h", ".cu", ".py", ".sh", ".md", ".txt", ".def")):
            with open(path, encoding="utf-8", errors="replace") as text:
                for number, line in enumerate(text, 1):
                    if line.startswith(marks):
                        report(path, number, "mark of an unfinished merge")


def check_cycles(files):
    for path, text in cycles([f for f in files if f.startswith(FOLDERS) and not f.startswith("tests/")]):
        if not path.startswith(tuple(CYCLES)):
            report(path, 1, text)


def check_format(files):
    sources = [f for f in files if f.endswith((".c", ".h"))]
    run = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *sources], capture_output=True, text=True)
    for path in sorted({line.split(":")[0] for line in run.stderr.splitlines() if "error:" in line}):
        report(path, 1, "not as clang-format-14 lays it out; run clang-format-14 -i on it")


def main():
    files = tracked()
    for name in sorted({f.split("/")[0] for f in files if not f.startswith(".")} - TOP):
        report(name, 1, "not one of the top-level names of the design")
    sources = [f for f in files if f.endswith((".c", ".h"))]
    for path in sources:
        check_c(path)
    check_headers_compile([f for f in sources if f.endswith(".h") and not f.startswith("tests/")])
    check_readmes(set(files))
    check_conflicts(files)
    check_cycles(files)
    check_format(files)
    for line in findings:
        print(line)
    for path, missing in skipped:
        print(f"{path}: skipped: {missing} is not there (sh deploy/cuda.sh nvcc installs it)")
    print(f"lint: {len(sources)} C files, {len(findings)} findings, {len(skipped)} headers skipped")
    return 1 if findings or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
