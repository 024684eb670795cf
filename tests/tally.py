# SPDX-License-Identifier: Apache-2.0
"""What a runner did, in a few lines: how many tests passed, failed and were skipped, and what the skipped ones lack.

    python3 tests/tally.py NAME JUNIT.xml

reads the JUnit file of ctest or pytest. A program of ctest's that uses cmocka counts as many tests as it has; one where all
are skipped is not taken for one that passed. Exit status 1 when a test failed or none passed. Of the lines the last one is
the summary.
"""
import collections
import re
import sys
import xml.etree.ElementTree

CMOCKA = re.compile(r"^\[ +(PASSED|FAILED|SKIPPED) +\] (\d+) test\(s\)", re.M)
REASON = re.compile(r"^(?:\[ +\S+ +\] )?skipped: (.*)$", re.M)
OUTSIDE = re.compile(r"no (\.\./shared/data/[^/]+)")


def cases(root):
    """(passed, failed, [why skipped]) of each test in the file."""
    for case in root.iter("testcase"):
        out = case.findtext("system-out") or ""
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail"
        counts = collections.Counter()
        for kind, n in CMOCKA.findall(out):
            counts[kind] += int(n)
        if skipped is not None:
            yield 0, 0, [skipped.get("message") or case.get("name")]
        elif not counts:
            yield int(not failed), int(failed), []
        else:
            why = REASON.findall(out)
            why += [f"{case.get('name')} does not say why"] * (counts["SKIPPED"] - len(why))
            yield counts["PASSED"], max(counts["FAILED"], int(failed)), why


def tally(root):
    n_passed = n_failed = 0
    lacking = collections.Counter()
    for passed, failed, why in cases(root):
        n_passed += passed
        n_failed += failed
        for reason in why:
            outside = OUTSIDE.match(reason)
            lacking["no " + outside[1] if outside else reason] += 1
    return n_passed, n_failed, lacking


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, path = sys.argv[1:]
    n_passed, n_failed, lacking = tally(xml.etree.ElementTree.parse(path).getroot())
    for reason, n in sorted(lacking.items()):
        print(f"{name}: {n} skipped: {reason}")
    print(f"{name}: {n_passed} passed, {n_failed} failed, {sum(lacking.values())} skipped")
    return int(n_failed > 0 or n_passed == 0)


if __name__ == "__main__":
    sys.exit(main())
