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
DOCUMENTS = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
TOP = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", *DOCUMENTS, *FOLDERS}
README_HEADINGS = ("What it is", "Read in this order", "Rules", "Talks to", "How to add", "How to test it")
BANNED = re.compile(r"\b(malloc|calloc|realloc|strdup|strndup|free)\s*\(")
RAW_JSON = re.compile(r"\bjson_load(b|s|f|fd|_file|_callback)\s*\(")
# Tests, and plugins with their programs, which are written as a user's are, over the public headers alone.
CUDA_NAMES = "tests/cuda/fake/"  # declares what CUDA's own headers declare
RAW_ALLOCATION = ("common/mem.c", "tests/", "deploy/plugins/")
# The public header is installed and read alone: one file with everything that a caller may use.
PUBLIC_HEADERS, PUBLIC_HEADER_MAX = ("engine/quire.h", "engine/plugin.h"), 400
SOURCE_MAX, HEADER_MAX, README_MAX, FUNCTION_MAX, COLUMNS_MAX = 1000, 200, 80, 70, 100
TOP_README_MAX, README_COLUMNS_MAX, SUBJECT_MAX = 100, 140, 72
# Subjects of commits are checked from the last tag on; while there is no tag, from this commit on.
SUBJECTS_FROM = "b10250f376e15b0c31c8231cb651a3f50554db64"
SUBJECT = re.compile(r'[\w./*+-]+(, [\w./*+-]+)*: \S|Revert "')

# The layout of dividers, sizeof and initialisers (check_layout).
DIVIDER = re.compile(r"(?:/\*|//|#)\s*([-=*#─]{3,}) ?(.*)")
DIVIDER_OK = re.compile(r"(?:/\*|#) ---- \S.*? ----(?: \*/)?$")
SIZEOF = re.compile(r"\bsizeof\s*\(\s*([*&]*[A-Za-z_]\w*(?:->\w+|\.\w+|\[[^\]()]*\])*)\s*\)")
TYPE = re.compile(r"(?:struct|enum|union|const|unsigned|signed)\b|(?:char|short|int|long|float|double|bool|void)$|\w+_t$|__\w+$|[A-Z]$")
LATE_COMMENT = re.compile(r"^( *)enum (\w+ )?\{ *(/\*(?:[^*]|\*(?!/))*\*/)\n", re.M)
TYPEDEF = re.compile(r"\btypedef\b[^;{(]*?(\w+);")

# What the glossary of CONTRIBUTING.md calls otherwise: (expression, the word that is used, files it is about).
OLD_WORDS = (
    ('\\bKERN_TURN\\b', 'KERN_GATE_INTERLEAVE', '.*\\.(c|h|cu|cuh)$'),
    ('\\bvec_turn', 'vec_transpose', '(kernels|tests)/'),
    ('\\b(un)?seat(ed|s)?\\b', 'admission, release_slot', '(engine|tests/(sim|unit))/.*\\.[ch]$'),
    ('\\bscheduler_unseat\\b|\\bcache_seat\\b', 'scheduler_release_slot, cache_admit', '(engine|tests)/'),
    ('\\bstruct (part|flight|seat)\\b', 'scheduled_seq, inflight_step, admission', '(engine|tests)/.*\\.[ch]$'),
    ('\\b\\w*(guess|foreseen)\\w*\\b', 'draft token, predicted', '(engine/(core|sched|server|worker|library)|proto|tests/sim)/.*\\.[ch]$'),
    ('\\b(msg|core|link|on)_steer\\b|\\bSTEER_', 'control', '(engine|frontend|proto|tests)/.*\\.(c|h|def)$'),
    ('\\b(msg|link|ring)_order(ed|ing)?\\b|\\bORDER_RELOAD\\b', 'command', '(engine|frontend|proto|tests)/.*\\.(c|h|def)$'),
    ('\\bobey\\b', 'run_command', '(engine|frontend|proto)/'),
    ('\\bpeers_\\w+|\\bstruct peers?\\b', 'frontends', 'engine/.*\\.[ch]$'),
    ('\\borigin\\b', 'frontend_id', 'engine/(core|sched|server)/.*\\.[ch]$'),
    ('\\bstruct flow\\b|\\bflow_\\w+', 'generation', 'frontend/.*\\.[ch]$'),
    ('\\bstruct (wish|outside)\\b', 'pending_control, supervisor_resources', 'frontend/.*\\.[ch]$'),
    ('\\bstruct (launch|compiling)\\b|\\b(launch|compiling)_\\w+', 'worker_process, grammar_compiler', 'engine/core/.*\\.[ch]$'),
    ('\\bgpu_(marks|lane)\\b', 'gpu_step_events, gpu_model', 'engine/.*\\.[ch]$'),
    ('\\bworker_land\\b', 'worker_complete_step', '(engine|tests)/.*\\.[ch]$'),
    ('\\b[gG][xX]_\\w+|\\bstruct gx\\b', 'expr', '(engine/grammar|tests/(unit|fuzz))/.*\\.[ch]$'),
    ('\\bconj_\\w+|\\bstruct conj\\b', 'constraints', 'engine/grammar/.*\\.[ch]$'),
    ('\\b(literal_|LITERAL_)\\w+', 'lenient_json', 'common/parsers/.*\\.(c|h|def)$'),
    ('\\bWRITES\\(', 'CALL_GRAMMAR', 'common/parsers/'),
    ('\\bstruct (lanes|served)\\b', 'fair_queue, served_model', 'frontend/.*\\.[ch]$'),
    ('\\blinear_(quant|e4m3|blocks|int4)(?![a-z0-9])|\\bint4_half\\b', 'linear_int8, linear_fp8, linear_fp8_block, linear_w4a8, linear_w4a16', '(kernels|engine|tests)/.*\\.(c|h|cu|cuh|def)$'),
    ('\\blinear_\\w*groups\\b|\\border_rows\\b|\\badd_share\\b', 'linear_*_grouped, permute_cols, moe_add_shared', '(kernels|engine|tests)/.*\\.(c|h|cu|cuh|def)$'),
    ('\\bstruct walk_value\\b|\\bwalk_(next|skip|kind)\\b', 'msgpack_reader', 'proto/'),
    ('\\b(\\w+_walk|struct walk)\\b', 'tile loop, item loop, gpu_forward', '(kernels|engine/worker|tests/kcheck)/.*\\.(c|h|cu|cuh)$'),
    ('\\bATTENTION_SPAN\\b|\\b(n|i|first)_span\\b|\\bstruct span\\b', 'split', 'kernels/(tiling|wide|avx|ref)'),
    ('\\bpart_(row|dim|stride|at|join|plan\\w*)\\b|\\bPART_\\w+', 'partial result, split plan', 'kernels/(tiling|wide|avx|ref)'),
    ('\\bKERN_QUANT_\\w+|\\bquant_(k|panel_bytes|scales_at|index|tiles|layout)\\b', 'KERN_INT8_*, int8_*', '(kernels|engine|tests)/.*\\.(c|h|cu|cuh|def)$'),
    ('\\b(gpu|stream|next|play)_turn\\b|\\b(READ|NEXT_BY)_TURNS\\b|\\bFRAMES_PER_TURN\\b', 'buffer, stage, iteration', '(kernels|engine|tests/sim)/'),
    ('\\bRING_NO_ORDER\\b|\\bmask_asks?\\b', 'RING_NO_COMMAND, mask_job', '(engine|tests)/.*\\.[ch]$'),
    ('\\bFINISH_OF\\b|\\bfinish_ahead\\b', 'EPILOGUE_OF, epilogue_prefetch', 'kernels/'),
)

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


def without_contents(text):
    """Blank out comments, and make the contents of strings and characters x, keeping every position."""
    def blank(match):
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found[0] + "x" * (len(found) - 2) + found[-1]
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)


def without_macros(text):
    """Blank out #define and its lines that go on."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M)


def open_lists(text):
    """Positions behind the last element of every list in braces that has several lines and no comma at its end, where its
    elements have designators (.member =, [index] =) or are lists themselves: without the comma clang-format lays those out
    to the right of the brace. A row of plain values may go on in the next line."""
    code = without_macros(without_contents(text))
    found, stack = [], []
    for match in re.finditer(r"[{}]", code):
        at = match.start()
        if code[at] == "{":
            before = code[:at].rstrip()[-1:]
            is_list = before == "=" or (before in ("{", ",") and bool(stack) and stack[-1][1]) or code[at - 1] == ")"
            stack.append((at, is_list))
        elif stack:
            start, is_list = stack.pop()
            inside = code[start + 1:at].rstrip()
            if is_list and "\n" in code[start:at] and inside.lstrip()[:1] in tuple(".[{") and not inside.endswith(","):
                found.append(start + 1 + len(inside))
    return found


def check_layout(path, raw):
    """One style of dividers, sizeof without parentheses before an expression, a comma at the end of lists of several lines."""
    code = without_macros(without_comments(raw))
    known = set(TYPEDEF.findall(code))
    for number, line in enumerate(raw.split("\n"), 1):
        divider = DIVIDER.match(line.strip())
        if divider and not DIVIDER_OK.match(line.strip()) and not re.match(r"/\* ---- \S.*? ----$", line.strip()):
            report(path, number, "a divider is /* ---- title ---- */")
    for number, line in enumerate(code.split("\n"), 1):
        for found in SIZEOF.findall(line):
            if not TYPE.match(found) and found not in known:
                report(path, number, f"sizeof {found}, without parentheses: they are for types")
    for at in open_lists(raw):
        report(path, raw.count("\n", 0, at) + 1, "an initialiser of several lines ends with a comma, which keeps it from the right")
    for match in LATE_COMMENT.finditer(raw):
        report(path, raw.count("\n", 0, match.start()) + 1, "the comment goes before the enum: behind its brace it moves the list right")


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
    limit = PUBLIC_HEADER_MAX if path in PUBLIC_HEADERS else limit
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
        if BANNED.search(line) and not path.startswith(RAW_ALLOCATION):
            report(path, number, "raw allocation; use common/mem.h")
        if RAW_JSON.search(line) and not path.startswith((*RAW_ALLOCATION, "common/json_read.c")):
            report(path, number, "raw parse of JSON; use common/json_read.h")
        if re.search(r"\btypedef\s+struct\b", line) and not path.startswith(CUDA_NAMES):
            report(path, number, "no typedef for structs")
    check_functions(path, code)
    check_layout(path, raw)


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
                              "-Wextra", "-Werror", "-I.", "-Itests/unit", "-Iengine", *flags, "-x", "c", "-"],
                             input=f'#include "{path}"\n', capture_output=True, text=True)
        if run.returncode == 0:
            continue
        if missing := NO_CUDA.search(run.stderr):
            skipped.append((path, f"{missing[1]} (sh deploy/cuda.sh nvcc installs it)"))
        else:
            report(path, 1, "does not compile alone: " + run.stderr.strip().split("\n")[0])


def check_page(path):
    """Lines within their columns, numbered rules in order, links and sections of the design that are there."""
    due, fenced = 1, False
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line = line.rstrip("\n")
        fenced = fenced != line.startswith("```")
        if len(line) > README_COLUMNS_MAX:
            report(path, number, f"{len(line)} columns, the limit is {README_COLUMNS_MAX}")
        if line.startswith("#"):
            due = 1
        for match in [] if fenced else re.finditer(r"(^|[.:;)] +)(\d{1,2})\. (?=\S)", line):
            if int(match[2]) == due:
                due += 1
            elif match.start() == 0 and int(match[2]) != 1:
                report(path, number, f"number {match[2]} where {due} is due")
                due = int(match[2]) + 1
            elif match.start() == 0:
                due = 2  # another list
        for named in re.findall(r"`([a-z]+/[\w./-]+\.\w+)`", line):
            if named.split("/")[0] in FOLDERS and not os.path.exists(named) and not os.path.exists(os.path.join(os.path.dirname(path), named)):
                report(path, number, f"names {named}, which is not there")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", line):
            if not os.path.exists(os.path.join(os.path.dirname(path), target)):
                report(path, number, f"a link to {target}, which is not there")


def check_design(files):
    """What cites a section of the design cites one that is there; the table of folders has every layer of CMake."""
    design = open("DESIGN.md", encoding="utf-8").read()
    for path in files:
        for folder in re.findall(r"^layer\((\S+)", open(path, encoding="utf-8").read(), re.M) if path.endswith("CMakeLists.txt") else []:
            if f"| `{folder}` |" not in design:
                report("DESIGN.md", 1, f"section 3 has no row of the folder {folder}")
    sections = set(re.findall(r"^## (\d+)\. ", design, re.M))
    for path in files:
        if not path.endswith((".c", ".h", ".cu", ".cuh", ".md", ".py", ".def", "CMakeLists.txt")):
            continue
        for number, line in enumerate(open(path, encoding="utf-8", errors="replace"), 1):
            for cited in re.findall(r"DESIGN section (\d+)", line):
                if cited not in sections:
                    report(path, number, f"DESIGN.md has no section {cited}")


def check_subjects():
    """Subjects of commits since the last tag, or since SUBJECTS_FROM. In a clone that does not reach back so far: skipped."""
    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True)
    tag = git("describe", "--tags", "--abbrev=0")
    start = tag.stdout.strip() if tag.returncode == 0 else SUBJECTS_FROM
    if git("merge-base", "--is-ancestor", start, "HEAD").returncode != 0:
        skipped.append(("subjects of commits", f"{start[:12]} in this clone (git fetch --unshallow gets it)"))
        return
    for line in git("log", "--no-merges", "--format=%h %s", f"{start}..HEAD").stdout.splitlines():
        commit, subject = line.split(" ", 1) if " " in line else (line, "")
        if len(subject) > SUBJECT_MAX and not subject.startswith("Revert "):
            report(f"commit {commit}", 1, f"a subject of {len(subject)} characters, the limit is {SUBJECT_MAX}")
        if not SUBJECT.match(subject):
            report(f"commit {commit}", 1, f'the subject is not of the form "area: what it does": {subject}')


def check_words(path):
    """No word that the glossary calls otherwise."""
    rules = [(re.compile(old), new) for old, new, files in OLD_WORDS if re.match(files, path)]
    if not rules:
        return
    for number, line in enumerate(open(path, encoding="utf-8", errors="replace"), 1):
        for old, new in rules:
            if found := old.search(line):
                report(path, number, f'"{found[0]}": the glossary (CONTRIBUTING.md) says {new}')


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
    for path in files:
        if path.endswith("README.md") or path in DOCUMENTS:
            check_page(path)
        if not path.startswith("tests/lint.py"):
            check_words(path)
    if open("README.md", encoding="utf-8").read().count("\n") > TOP_README_MAX:
        report("README.md", TOP_README_MAX, f"the limit is {TOP_README_MAX} lines")
    check_design(files)
    check_subjects()
    check_headers_compile([f for f in sources if f.endswith(".h") and not f.startswith("tests/")])
    check_readmes(set(files))
    check_conflicts(files)
    check_cycles(files)
    check_format(files)
    for line in findings:
        print(line)
    for path, missing in skipped:
        print(f"{path}: skipped: no {missing}")
    print(f"lint: {len(sources)} C files, {len(findings)} findings, {len(skipped)} checks skipped")
    return 1 if findings or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
