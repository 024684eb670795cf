# SPDX-License-Identifier: Apache-2.0
"""Modules that include each other, for tests/lint.py.

A module is x.c with x.h (or .cu, .cuh). A module of several files has x_internal.h, which is what they share: x and each file that
includes x_internal.h, in its folder or below, are that one module. A cycle of more than one module is a finding: none of
them can then be read, tested or replaced without the others.
"""
import os
import re

INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.M)
SUFFIXES = (".c", ".h", ".cc", ".cu", ".cuh")
PRIVATE = "_internal.h"


def includes_of(path, files):
    """The files of ours that path includes; a name without a folder is looked for beside path."""
    with open(path, encoding="utf-8") as text:
        names = INCLUDE.findall(text.read())
    for name in names:
        for found in (os.path.normpath(os.path.join(os.path.dirname(path), name)), name):
            if found in files:
                yield found
                break


def pair_of(path):
    """engine/sched/kv.h and kv.c: engine/sched/kv; kv_internal.h is of the same pair."""
    if path.endswith(PRIVATE):
        return path[:-len(PRIVATE)]
    return os.path.splitext(path)[0]


def modules_of(includes):
    """The module of each pair: its own, or the one whose private header a file of it includes."""
    module = {pair_of(path): pair_of(path) for path in includes}

    def root(pair):
        while module[pair] != pair:
            pair = module[pair]
        return pair

    for path, found in includes.items():
        for header in found:
            if header.endswith(PRIVATE) and path.startswith(os.path.dirname(header) + "/"):
                module[root(pair_of(path))] = root(pair_of(header))
    return {pair: root(pair) for pair in module}


def components(graph):
    """The strongly connected components of {node: set of nodes} that have more than one node (Tarjan, without recursion)."""
    index, low, stack, found = {}, {}, [], []
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
    return found


def cycles(paths):
    """[(file, text)]: a finding for each cycle among the C and CUDA files of paths, at one of its includes."""
    files = {path for path in paths if path.endswith(SUFFIXES)}
    includes = {path: list(includes_of(path, files)) for path in sorted(files)}
    module = modules_of(includes)
    graph = {root: set() for root in module.values()}
    edges = {}
    for path, found in includes.items():
        for header in found:
            a, b = module[pair_of(path)], module[pair_of(header)]
            if a != b:
                graph[a].add(b)
                edges.setdefault((a, b), f"{path} includes {header}")
    result = []
    for group in components(graph):
        ways = [text for (a, b), text in sorted(edges.items()) if a in group and b in group]
        result.append((ways[0].split(" ")[0], f"{len(group)} modules include each other: " + "; ".join(ways)))
    return sorted(result)
