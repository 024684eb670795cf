# SPDX-License-Identifier: Apache-2.0
"""tests/lint.py: its rules on small files and repositories, and on headers that need what a machine may lack."""
import importlib.util
import subprocess

import pytest

from servers import ROOT


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """The program as a module, with lists of its own, in a folder of its own."""
    spec = importlib.util.spec_from_file_location("lint", ROOT / "tests/lint.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CUDA_FOLDERS = ()
    monkeypatch.chdir(tmp_path)
    return module


def test_a_header_that_needs_cuda_is_skipped_and_counted(lint, tmp_path):
    (tmp_path / "card.h").write_text("#include <cuda_of_no_machine.h>\nstruct card { cudaStream_t stream; };\n")
    (tmp_path / "through.h").write_text('#include "card.h"\n')
    lint.check_headers_compile(["card.h", "through.h"])
    assert lint.findings == []
    assert lint.skipped == [(name, "cuda_of_no_machine.h (sh deploy/cuda.sh nvcc installs it)") for name in ("card.h", "through.h")]


def test_it_is_compiled_where_the_wheels_are(lint, tmp_path):
    folder = tmp_path / "build/nvcc/lib/python3.11/site-packages/nvidia/cu13/include"
    folder.mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text("typedef struct CUstream_st *cudaStream_t;\n")
    (folder / "cuda_of_no_machine.h").write_text("#include <cuda_runtime_api.h>\n")
    lint.CUDA_FOLDERS = (str(tmp_path / "nothing"), "build/nvcc/lib/python3*/site-packages/nvidia/cu13/include")
    (tmp_path / "card.h").write_text("#include <cuda_of_no_machine.h>\nstruct card { cudaStream_t stream; };\n")
    (tmp_path / "wrong.h").write_text("#include <cuda_of_no_machine.h>\nstruct card { cudaEvent_t event; };\n")
    lint.check_headers_compile(["card.h", "wrong.h"])
    assert lint.skipped == [] and len(lint.findings) == 1 and lint.findings[0].startswith("wrong.h:1: does not compile alone")


def test_any_other_missing_header_is_a_finding(lint, tmp_path):
    (tmp_path / "a.h").write_text("#include <of_no_machine.h>\n")
    (tmp_path / "b.h").write_text("int f(struct unknown s);\n")
    lint.check_headers_compile(["a.h", "b.h"])
    assert [f.split(":")[0] for f in lint.findings] == ["a.h", "b.h"] and lint.skipped == []


def found(lint):
    """Findings as line: text, and none are left for the next."""
    said = [f.split(":", 1)[1].strip() for f in lint.findings]
    lint.findings.clear()
    return said


@pytest.mark.parametrize("text, said", [
    ("x" * 140 + "\n", []),
    ("é" * 140 + "\n", []),
    ("x\n" + "x" * 141 + "\n", ["2: 141 columns, the limit is 140"]),
    ("1. a\n2. b\n   more, see rule 7.\n3. c\n", []),
    ("1. a\n3. b\n4. c\n", ["2: number 3 where 2 is due"]),
    ("1. a\n2. b\n\n2. c\n3. d\n", ["4: number 2 where 3 is due"]),
    ("1. a. 2. b. 3. c\n4. d. 5. e\n6. f\n", []),
    ("1. a.  2. b.\n3. c\n", []),
    ("1. a. 2. b\n4. c\n", ["2: number 4 where 3 is due"]),
    ("# one\n1. a\n2. b\n# two\n1. a\n2. b\n", []),
    ("1. a\n2. b\n\nand\n\n1. c\n2. d\n", []),
    ("```\n1. a\n5. b\n```\n", []),
    ("[x](there.md), [y](there.md#part), [z](https://example.org/a)\n", []),
    ("see `tests/a.c`, `b/c.c`, `tests/<name>.c` and `build/x.c`\n", ["1: names tests/a.c, which is not there"]),
    ("[x](gone.md)\n", ["1: a link to gone.md, which is not there"]),
])
def test_pages_have_short_lines_rules_in_order_and_links_that_lead_somewhere(lint, tmp_path, text, said):
    (tmp_path / "there.md").write_text("")
    (tmp_path / "README.md").write_text(text)
    lint.check_page("README.md")
    assert found(lint) == said


@pytest.mark.parametrize("text, said", [
    ("/* ---- title ---- */\n/* a sentence - with dashes --- and more */\n    /* ---- inner ---- */\n", []),
    ("/* ---- a title whose comment goes on ----\n * and ends */\n", []),
    ("/* --- title --- */\n", ["1: a divider"]),
    ("/* --- title -------------------------------------------- */\n", ["1: a divider"]),
    ("int a;\n/* ==== title ==== */\n", ["2: a divider"]),
    ("// ---- title ----\n", ["1: a divider"]),
    ("/*************/\n", ["1: a divider"]),
    ("int n = sizeof x + sizeof *y / sizeof(int) + sizeof(struct s) + sizeof(uint32_t) + sizeof(T) + sizeof(a + b);\n", []),
    ("typedef double cell;\nint n = sizeof(cell);\n", []),
    ("int n = sizeof(x);\n", ["1: sizeof x"]),
    ("int a;\nint n = sizeof(*p->rows[2]) + sizeof( y );\n", ["2: sizeof *p->rows[2]", "2: sizeof y"]),
    ("#define N(a) (sizeof(a) / \\\n    sizeof((a)[0]))\n/* sizeof(x) */ char *s = \"sizeof(x)\";\n", []),
    ("struct s a = {.x = 1, .y = 2};\nint b[] = {1, 2,\n    3};\n", []),
    ("struct s a = {\n    .x = 1,\n    .y = 2,\n};\n", []),
    ("struct s a = {.x = 1,\n              .y = \"}\"}; /* , */\n", ["2: an initialiser"]),
    ("struct s a[] = {{1, 2},\n                {3, 4}};\n", ["2: an initialiser"]),
    ("struct s a[] = {{1, 2},\n                {3, 4}, /* last */\n};\n", []),
    ("int a[] = {[0] = 1,\n           [1] = 2};\n", ["2: an initialiser"]),
    ("f(&(struct s){.x = 1,\n              .y = 2});\n", ["2: an initialiser"]),
    ("void f(void)\n{\n    if (a) {\n        .x;\n    }\n    do {\n    } while (0);\n}\nstruct s {\n    int x;\n};\n", []),
    ("enum a {\n    B, /* b */\n    C\n};\n", []),
    ("enum a { /* what */\n         B,\n         C\n};\n", ["1: the comment goes before"]),
])
def test_layout(lint, text, said):
    lint.check_layout("a.c", text)
    got = found(lint)
    assert len(got) == len(said) and all(g.startswith(s) for g, s in zip(got, said)), got


def test_old_words(lint, tmp_path):
    lint.OLD_WORDS = ((r"\bseats?\b", "admission", r"engine/sched/"), (r"\bgx_", "expr_", r".*\.[ch]$"))
    (tmp_path / "engine/sched").mkdir(parents=True)
    (tmp_path / "engine/sched/a.c").write_text("int unseated;\nint seat;\ngx_new();\n")
    (tmp_path / "a.c").write_text("int seat;\n")
    for path in ("engine/sched/a.c", "a.c"):
        lint.check_words(path)
    assert found(lint) == ['2: "seat": the glossary (CONTRIBUTING.md) says admission', '3: "gx_": the glossary (CONTRIBUTING.md) says expr_']


def test_cited_sections_and_folders_are_in_the_design(lint, tmp_path):
    (tmp_path / "DESIGN.md").write_text("## 1. One\n## 2. Two\n| `common` | x |\n")
    (tmp_path / "a.c").write_text("/* DESIGN section 2 */\n/* (DESIGN section 3) */\n")
    (tmp_path / "CMakeLists.txt").write_text("layer(common\n  SOURCES a.c)\n# layer(x\nlayer(engine/new SOURCES b.c)\n")
    lint.check_design(["a.c", "CMakeLists.txt"])
    assert lint.findings == ["DESIGN.md:1: section 3 has no row of the folder engine/new", "a.c:2: DESIGN.md has no section 3"]


@pytest.fixture
def repository(lint, tmp_path):
    """A repository with one commit, from which on subjects are checked; commit(SUBJECT) adds another."""
    def git(*words):
        made = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], capture_output=True, text=True, check=True)
        return made.stdout.strip()
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "A subject of long ago, of any form at all and as long as it likes to be, which is left alone")
    lint.SUBJECTS_FROM = git("rev-parse", "HEAD")
    return lambda *words: git("commit", "-q", "--allow-empty", "-m", *words) if len(words) == 1 else git(*words)


def test_subjects_of_commits(lint, repository):
    for good in ("kernels: add a kernel", "common/cpus: x", "options, roles, hub: words of bool", "tests/README: " + "x" * 58,
                 'Revert "kernels: add a kernel, which makes the subject longer than usual"'):
        repository(good)
    lint.check_subjects()
    assert found(lint) == []
    for bad in ("no area", "area:", "area:no blank", "fixup! kernels: x", "two words: x"):
        repository(bad)
        lint.check_subjects()
        assert len(said := found(lint)) == 1 and "area: what it does" in said[0], bad
        repository("commit", "--amend", "-q", "--allow-empty", "-m", "tests: mended")
    repository("kernels: " + "x" * 64)
    lint.check_subjects()
    assert ["a subject of 73 characters" in s for s in found(lint)] == [True]


def test_subjects_before_the_last_tag_are_left_alone(lint, repository):
    repository("no area")
    repository("tag", "v1")
    repository("area: fine")
    lint.check_subjects()
    assert found(lint) == []
    repository("none")
    lint.check_subjects()
    assert len(found(lint)) == 1


def test_a_clone_that_does_not_reach_back_is_skipped_and_counted(lint, repository, tmp_path, monkeypatch):
    for subject in ("no area", "none"):
        repository(subject)
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{tmp_path}", str(tmp_path / "shallow")], check=True)
    monkeypatch.chdir(tmp_path / "shallow")
    lint.check_subjects()
    assert lint.findings == [] and len(lint.skipped) == 1 and "unshallow" in lint.skipped[0][1]
