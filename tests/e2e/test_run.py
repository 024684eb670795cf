# SPDX-License-Identifier: Apache-2.0
"""tests/run.sh, tests/tally.py and tests/fresh.sh: what they count, say and end with. The runners are stand-ins."""
import os
import shutil
import subprocess
import sys

import pytest

from servers import ROOT

CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] test_a
[       OK ] test_a
[ RUN      ] test_b
skipped: no ../shared/data/weights/b.json
[  SKIPPED ] test_b
[ RUN      ] test_c
skipped: no ../shared/data/weights/c.json
[  SKIPPED ] test_c
[==========] 3 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 2 test(s), listed below:
[  SKIPPED ] test_b
[  SKIPPED ] test_c
"""
ALL_SKIPPED = """[==========] Running 1 test(s).
skipped: no program zstd
[  PASSED  ] 0 test(s).
[  SKIPPED ] 1 test(s), listed below:
"""
FAILED = """[  PASSED  ] 4 test(s).
[  FAILED  ] 2 test(s), listed below:
[  FAILED  ] test_x
[  FAILED  ] test_y
"""


def case(name, out="", status="run", inside=""):
    return f'<testcase name="{name}" status="{status}">{inside}<system-out>{out}</system-out></testcase>'


def tally(tmp_path, *cases, again=None):
    files = []
    for name, found in (("j.xml", cases), ("again.xml", again)):
        if found is not None:
            files.append(tmp_path / name)
            files[-1].write_text("<testsuite>" + "".join(found) + "</testsuite>")
    done = subprocess.run([sys.executable, ROOT / "tests/tally.py", "unit", *files], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_cases_inside_a_program_count(tmp_path):
    rc, lines = tally(tmp_path, case("a", CMOCKA), case("sim"), case("b", ALL_SKIPPED))
    assert rc == 0
    assert lines == ["unit: 2 skipped: no ../shared/data/weights", "unit: 1 skipped: no program zstd", "unit: 2 passed, 0 failed, 3 skipped"]


def test_a_skip_without_a_reason_is_named(tmp_path):
    rc, lines = tally(tmp_path, case("a", "[  PASSED  ] 1 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n"))
    assert rc == 0 and lines[0] == "unit: 1 skipped: a does not say why"


@pytest.mark.parametrize("bad", [case("x", FAILED, "fail", '<failure message=""/>'), case("x", "", "fail", '<failure message="Timeout"/>'),
                                 case("x", CMOCKA, "fail", '<failure message="leak"/>'), '<testcase name="x"><error message="no fixture"/></testcase>'])
def test_failures(tmp_path, bad):
    rc, lines = tally(tmp_path, case("a"), bad)
    assert rc == 1 and ", 0 failed" not in lines[-1], lines


def test_unsteady(tmp_path):
    """A test that passes by itself is named and no failure; one that fails again, that did not run again, or too many of them are."""
    bad = '<testcase classname="t" name="%s"><failure message=""/></testcase>'
    good = '<testcase classname="t" name="%s"/>'
    unsteady = "unit: unsteady, it failed among the others and passed by itself: t.x%d"
    assert tally(tmp_path, good % "a", bad % "x0", again=[good % "x0"]) == (0, [unsteady % 0, "unit: 1 passed, 0 failed, 0 skipped, 1 unsteady"])
    for again in [bad % "x0"], [good % "x1"], []:
        assert tally(tmp_path, good % "a", bad % "x0", again=again) == (1, ["unit: 1 passed, 1 failed, 0 skipped"])
    names = [f"x{i}" for i in range(4)]
    rc, lines = tally(tmp_path, good % "a", *(bad % name for name in names), again=[good % name for name in names])
    assert rc == 1 and lines[:4] == [unsteady % i for i in range(4)] and lines[-1] == "unit: 1 passed, 4 failed, 0 skipped, 4 unsteady"


def test_pytest_skips(tmp_path):
    skip = '<testcase name="x"><skipped type="pytest.skip" message="no ../shared/data/schemas/JSON-Schema-Test-Suite"/></testcase>'
    assert tally(tmp_path, skip, skip, "<testcase name='y'/>") == (0, ["unit: 2 skipped: no ../shared/data/schemas", "unit: 1 passed, 0 failed, 2 skipped"])


def test_nothing_ran(tmp_path):
    assert tally(tmp_path)[0] == 1
    assert tally(tmp_path, case("a", ALL_SKIPPED))[0] == 1


@pytest.fixture
def place(tmp_path):
    """A checkout of the scripts alone: ctest writes JUNIT and ends with CTEST_RC."""
    for folder in ("tests", "deploy", "bin"):
        (tmp_path / folder).mkdir()
    for name in ("run.sh", "tally.py", "fresh.sh"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    programs = {"deploy/deps.sh": "exit 0", "deploy/build.sh": "exit 0", "bin/cmake": "exit 0", "bin/id": "echo 1000",
                "bin/ctest": 'printf "%s" "$JUNIT" >build/dev/junit.xml; exit "${CTEST_RC:-0}"'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(place, *parts, **env):
    return subprocess.run(["sh", place / "tests/run.sh", *parts], capture_output=True, text=True, timeout=60, check=False,
                          env={"PATH": f"{place}/bin:{os.environ['PATH']}", **env})


def test_the_table_at_the_end(place):
    done = run(place, "unit", JUNIT=f"<testsuite>{case('a', CMOCKA)}</testsuite>")
    end = done.stdout.split("== parts")[1]
    assert done.returncode == 0 and "s of CPU   passed" in end and "unit: 2 skipped: no ../shared/data/weights" in end, done
    assert "unit: 1 passed, 0 failed, 2 skipped" in end and "nothing failed of: unit, in" in end, done


@pytest.mark.parametrize("junit, rc", [(f"<testsuite>{case('a', FAILED, 'fail')}</testsuite>", "8"), ("<testsuite/>", "0"),
                                       (f"<testsuite>{case('a')}</testsuite>", "8")])
def test_a_part_that_fails(place, junit, rc):
    """A test that failed, none that ran, or a runner that says so though its file does not (a program that is not there)."""
    done = run(place, "unit", JUNIT=junit, CTEST_RC=rc)
    assert done.returncode == 1 and "s of CPU   FAILED" in done.stdout and "failed: unit" in done.stdout and "nothing failed" not in done.stdout, done


PYTEST = """for last; do case "$last" in *.xml) junit=$last ;; --last-failed) text=$AGAIN ;; esac; done
printf "%s" "${text-$JUNIT}" >"$junit"
case "${text-$JUNIT}" in *failure*) exit 1 ;; esac
"""


@pytest.mark.parametrize("again, rc", [("<testcase name='x'/>", 0), ("<testcase name='x'><failure/></testcase>", 1)])
def test_tests_that_fail_run_once_more(place, again, rc):
    for name in (".venv", ".venv-agents"):
        (place / "tests" / name / "bin").mkdir(parents=True)
        listed = place / "tests" / f"requirements{name.removeprefix('.venv')}.txt"
        listed.write_text("")
        shutil.copy(listed, place / "tests" / name)
    python = place / "tests/.venv/bin/python"
    python.write_text("#!/bin/sh\n" + PYTEST)
    python.chmod(0o755)
    first = f"<testsuite>{case('a')}<testcase name='x'><failure/></testcase></testsuite>"
    done = run(place, "e2e", JUNIT=first, AGAIN=f"<testsuite>{again}</testsuite>")
    end = done.stdout.split("== parts")[1]
    assert done.returncode == rc, done
    assert ("e2e: 1 passed, 1 failed, 0 skipped" if rc else "e2e: 1 passed, 0 failed, 0 skipped, 1 unsteady") in end, end
    assert ("unsteady" in end) == (not rc) and ("failed: e2e" in end) == bool(rc), end


def test_fresh_says_why_it_is_skipped(place):
    done = run(place, "fresh")
    assert done.returncode == 0 and "s of CPU   skipped" in done.stdout and "fresh: skipped: needs root" in done.stdout.split("== parts")[1], done
    assert "nothing failed of: fresh; skipped: fresh, in" in done.stdout


def test_unknown_part_and_help(place):
    done = run(place, "units")
    assert done.returncode == 2 and 'unknown part "units"' in done.stderr
    done = run(place, "help")
    assert done.returncode == 0 and all(f"\n  {part} " in done.stdout for part in ("lint", "unit", "e2e", "asan", "tsan", "fuzz", "cuda", "fresh", "bench"))
