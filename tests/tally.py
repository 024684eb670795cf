# SPDX-License-Identifier: Apache-2.0
"""What a runner did, in a few lines: how many tests passed, failed and were skipped, and what the skipped ones lack.

    python3 tests/tally.py NAME JUNIT.xml [AGAIN.xml]

reads the JUnit file of ctest or pytest. A program of ctest's that uses cmocka counts as many tests as it has; one where all
are skipped is not taken for one that passed. Exit status 1 when a test failed or none passed. Of the lines the last one is
the summary.

AGAIN.xml is of a second run, of the tests that failed in the first. A test that passes there is unsteady: it is named, and
does not fail the run. It is a defect of the test or of quire all the same. More than UNSTEADY_MAX of them are failures.
"""
import collections
import re
import sys
import xml.etree.ElementTree

CMOCKA = re.compile(r"^\[ +(PASSED|FAILED|SKIPPED) +\] (\d+) test\(s\)", re.M)
REASON = re.compile(r"^(?:\[ +\S+ +\] )?skipped: (.*)$", re.M)
OUTSIDE = re.compile(r"no (\.\./shared/data/[^/]+)")
UNSTEADY_MAX = 3


def cases(root):
    """(name, passed, failed, [why skipped]) of each test in the file."""
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        out = case.findtext("system-out") or ""
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail"
        counts = collections.Counter()
        for kind, n in CMOCKA.findall(out):
            counts[kind] += int(n)
        if skipped is not None:
            yield name, 0, 0, [skipped.get("message") or case.get("name")]
        elif not counts:
            yield name, int(not failed), int(failed), []
        else:
            why = REASON.findall(out)
            why += [f"{case.get('name')} does not say why"] * (counts["SKIPPED"] - len(why))
            yield name, counts["PASSED"], max(counts["FAILED"], int(failed)), why


def tally(root, again=None):
    """(how many passed, how many failed, names of the unsteady, {what is lacking: by how many tests})."""
    n_passed, n_failed, unsteady = 0, 0, []
    steady = set() if again is None else {name for name, passed, failed, _ in cases(again) if passed and not failed}
    lacking = collections.Counter()
    for name, passed, failed, why in cases(root):
        if failed and name in steady:
            unsteady.append(name)
        else:
            n_failed += failed
        n_passed += passed
        for reason in why:
            outside = OUTSIDE.match(reason)
            lacking["no " + outside[1] if outside else reason] += 1
    return n_passed, n_failed, unsteady, lacking


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    name, *paths = sys.argv[1:]
    n_passed, n_failed, unsteady, lacking = tally(*(xml.etree.ElementTree.parse(path).getroot() for path in paths))
    for test in unsteady:
        print(f"{name}: unsteady, it failed among the others and passed by itself: {test}")
    if len(unsteady) > UNSTEADY_MAX:
        print(f"{name}: {len(unsteady)} unsteady tests are failures, at most {UNSTEADY_MAX} are not")
        n_failed += len(unsteady)
    for reason, n in sorted(lacking.items()):
        print(f"{name}: {n} skipped: {reason}")
    more = f", {len(unsteady)} unsteady" if unsteady else ""
    print(f"{name}: {n_passed} passed, {n_failed} failed, {sum(lacking.values())} skipped{more}")
    return int(n_failed > 0 or n_passed == 0)


if __name__ == "__main__":
    sys.exit(main())
