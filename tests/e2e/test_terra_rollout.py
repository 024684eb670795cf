# SPDX-License-Identifier: Apache-2.0
"""terra-rollout (over the C library) and rollout.py (over HTTP): the goldens' videos from arrays, alone and eight at once, what they cost
beside the decode steps, pictures, and what they refuse."""
import json
import subprocess
import sys
import zlib

import pytest

from servers import Server
from terra import ACTIONS, CASES, DATA, FOLDERS, OPTIONS, PATCHES, PLUGIN, ROLLOUT, ROLLOUT_PY, arrays_of, prefill_of, read_npy, write_npy

TOGETHER = ["two_context_frames", "has_token_zero", "two_context_frames_other_actions"]  # of the same shape
ENGINE = ("--dtype", "float32", "--num-gpu-blocks-override", "512")


def command(program, where, files, out, *options):
    """The same files and options for either program; `where` is a folder, or a server."""
    words = [ROLLOUT, where, "--plugin", PLUGIN] if program == "c" else [sys.executable, ROLLOUT_PY, "--url", where.url]
    words += ["--context", files[0], "--actions", files[1], "--out", out, "--json", *options]
    words += ["--", *ENGINE] if program == "c" else []
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)


def files_of(tmp_path, context, actions):
    return write_npy(tmp_path / "context.npy", context, "i"), write_npy(tmp_path / "actions.npy", actions)


@pytest.fixture(scope="module")
def server():
    server = Server(DATA / "model_mistral", *OPTIONS)
    yield server
    assert server.stop() == 0


def where_of(program, request):
    return DATA / "model" if program == "c" else request.getfixturevalue("server")


@pytest.mark.parametrize("program", ["c", "http"])
@pytest.mark.parametrize("name", CASES)
def test_one_rollout(tmp_path, request, program, name):
    case = CASES[name]
    context, actions, want = arrays_of(case)
    options = ("--frames", len(case["frames"]))
    if program == "http":  # its prefix cache is of the tests before
        connection, answer = request.getfixturevalue("server").raw("POST", "/reset_prefix_cache")
        assert answer.status == 200
        connection.close()
    out = command(program, where_of(program, request), files_of(tmp_path, context, actions), tmp_path / "out.npy", *options)
    assert out.returncode == 0, out.stderr
    assert read_npy(tmp_path / "out.npy") == ((1, len(case["frames"]), PATCHES), want)
    check_figures(json.loads(out.stdout), case, program)


def check_figures(figures, case, program):
    """A frame is a decode step for each token but the first, and a prefill of less than a block beside what is new."""
    first, later = prefill_of(case)
    n = sum(len(frame["tokens"]) for frame in case["frames"])
    again = sum(later) - len(later) * (ACTIONS + 1)
    assert figures["generation_tokens"] == n and again <= 15 * len(later)
    assert figures["prefill"] == {"contexts": first, "later_frames": sum(later), "again": again}
    if program == "c":
        assert figures["steps"] == n  # a prefill is one step, which gives the first token
    else:
        assert [r["prompt_tokens"] - r["cached_tokens"] for r in figures["requests"]] == [first, *later]


@pytest.mark.parametrize("folder", FOLDERS)
def test_eight_rollouts_at_once(tmp_path, folder):
    cases = [CASES[TOGETHER[i % 3]] for i in range(8)]
    arrays = [arrays_of(case) for case in cases]
    files = files_of(tmp_path, [a[0] for a in arrays], [a[1] for a in arrays])
    out = command("c", DATA / folder, files, tmp_path / "out.npy", "--frames", "4")
    assert out.returncode == 0, out.stderr
    assert read_npy(tmp_path / "out.npy") == ((8, 4, PATCHES), [token for a in arrays for token in a[2]])
    figures = json.loads(out.stdout)
    assert figures["generation_tokens"] == 8 * 4 * PATCHES and figures["steps"] < 3 * 4 * PATCHES  # most of them in common
    assert figures["prefill"]["again"] <= 15 * 8 * 3


def test_more_rollouts_than_the_engine_takes(tmp_path):
    """Two run, one waits in the engine's queue, the others until there is room."""
    arrays = [arrays_of(CASES[TOGETHER[i % 3]]) for i in range(8)]
    files = files_of(tmp_path, [a[0] for a in arrays], [a[1] for a in arrays])
    words = [ROLLOUT, DATA / "model", "--plugin", PLUGIN, "--context", files[0], "--actions", files[1], "--out", tmp_path / "out.npy",
             "--frames", "4", "--json", "--", *ENGINE, "--max-num-seqs=2", "--max-num-queued-reqs", "1"]
    out = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert read_npy(tmp_path / "out.npy")[1] == [token for a in arrays for token in a[2]]
    assert "prefill" not in json.loads(out.stdout)  # some contexts came after whole frames


def test_eight_rollouts_at_once_over_http(tmp_path, server):
    arrays = [arrays_of(CASES[TOGETHER[i % 3]]) for i in range(8)]
    files = files_of(tmp_path, [a[0] for a in arrays], [a[1] for a in arrays])
    out = command("http", server, files, tmp_path / "out.npy", "--frames", "4", "--progress")
    assert out.returncode == 0, out.stderr
    assert read_npy(tmp_path / "out.npy") == ((8, 4, PATCHES), [token for a in arrays for token in a[2]])
    assert "frames/s" in out.stderr and "32.0 of 32 frames" in out.stderr


@pytest.mark.parametrize("program", ["c", "http"])
def test_one_context_for_several_trajectories(tmp_path, request, program):
    """An array without the dimension of rollouts counts for all; frames are as many as there are actions for."""
    case = CASES["two_context_frames"]
    context, actions, want = arrays_of(case)
    other = [[[-x for x in row] for row in frame] for frame in actions]
    files = files_of(tmp_path, context, [actions[:3], other[:3], actions[:3]])
    out = command(program, where_of(program, request), files, tmp_path / "out.npy")
    assert out.returncode == 0, out.stderr
    shape, tokens = read_npy(tmp_path / "out.npy")
    n = 2 * PATCHES
    assert shape == (3, 2, PATCHES) and tokens[:n] == want[:n] == tokens[2 * n:] and tokens[n:2 * n] != want[:n]


@pytest.mark.parametrize("program", ["c", "http"])
def test_sampling(tmp_path, request, program):
    """Rollouts of one trajectory differ by their seeds, and a seed gives the same tokens again."""
    context, actions, _ = arrays_of(CASES["two_context_frames"])
    files, where = files_of(tmp_path, context, actions), where_of(program, request)
    found = []
    for n, seed in ((3, 5), (1, 6)):
        out = command(program, where, files, tmp_path / "out.npy", "--frames", "1", "--rollouts", n, "--temperature", "1", "--seed", seed)
        assert out.returncode == 0, out.stderr
        found.append(read_npy(tmp_path / "out.npy")[1])
    rollouts = [tuple(found[0][i * PATCHES:][:PATCHES]) for i in range(3)]
    assert len(set(rollouts)) > 1 and tuple(found[1]) == rollouts[1]


def pixels_of_ppm(data):
    magic, comment, size, most, pixels = data.split(b"\n", 4)
    assert magic == b"P6" and b"stand-in" in comment and most == b"255"
    return tuple(map(int, size.split())), pixels


def pixels_of_png(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and b"stand-in" in data
    at, found = 8, {}
    while at < len(data):
        size, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        found[kind] = data[at + 8:at + 8 + size]
        assert zlib.crc32(data[at + 4:at + 8 + size]) == int.from_bytes(data[at + 8 + size:at + 12 + size], "big")
        at += 12 + size
    width, height = (int.from_bytes(found[b"IHDR"][i:i + 4], "big") for i in (0, 4))
    raw = zlib.decompress(found[b"IDAT"])
    lines = [raw[y * (3 * width + 1):][:3 * width + 1] for y in range(height)]
    assert len(raw) == height * (3 * width + 1) and all(line[0] == 0 for line in lines)
    return (width, height), b"".join(line[1:] for line in lines)


def test_pictures(tmp_path, server):
    """Both programs draw the same picture: 12 patches as 4 x 3 squares, two rollouts of two frames."""
    arrays = [arrays_of(CASES[name]) for name in TOGETHER[:2]]
    files = files_of(tmp_path, [a[0] for a in arrays], [a[1] for a in arrays])
    for program, where, name in (("c", DATA / "model", "a.ppm"), ("http", server, "a.png")):
        out = command(program, where, files, tmp_path / "out.npy", "--frames", "2", "--picture", tmp_path / name)
        assert out.returncode == 0 and "stand-in" in out.stderr, out.stderr
    size, pixels = pixels_of_ppm((tmp_path / "a.ppm").read_bytes())
    assert size == (2 * 4 * 6 + 4, 2 * 3 * 6 + 4) and len(pixels) == 3 * size[0] * size[1]
    assert pixels_of_png((tmp_path / "a.png").read_bytes()) == (size, pixels)
    colours = {}
    for patch, token in enumerate(arrays[0][2][:PATCHES]):
        y, x = patch // 4 * 6 + 3, patch % 4 * 6 + 3
        colours.setdefault(token, set()).add(pixels[3 * (y * size[0] + x):][:3])
    assert all(len(found) == 1 for found in colours.values()) and len({min(found) for found in colours.values()}) == len(colours) > 5


CONTEXT, MOVES = [[1] * PATCHES] * 2, [[[0.5] * 3] * ACTIONS] * 4
REFUSED = {
    "one dimension": ([1] * PATCHES, MOVES, (), "frames, patches of a frame"),
    "flat actions": (CONTEXT, [[0.5] * 3] * 12, (), "frames, actions of a frame"),
    "no actions for so many frames": (CONTEXT, MOVES, ("--frames", "4"), "actions of 4 frames"),
    "no frame that is new": ([[1] * PATCHES] * 9, MOVES, (), "after 9 of context"),
    "numbers of rollouts": ([CONTEXT] * 2, [MOVES] * 3, (), "rollouts, but"),
    "rollouts that are asked for": ([CONTEXT] * 2, MOVES, ("--rollouts", "3"), "3 rollouts, but"),
    "a hole": ([[1] * PATCHES, [1, -1] + [1] * (PATCHES - 2)], MOVES, (), "-1"),
    "a frame of nothing": ([[1] * PATCHES, [-1] * PATCHES], MOVES, (), "-1"),
    "a placeholder": ([[1] * PATCHES, [-3] * PATCHES], MOVES, (), "-3"),
    "too many positions": (CONTEXT, [[[0.5] * 3] * ACTIONS] * 9, (), "90"),
    "an action of two numbers": (CONTEXT, [[[0.5] * 2] * ACTIONS] * 4, (), r"actions"),
    "a token beyond the vocabulary": ([[1] * PATCHES, [96] * PATCHES], MOVES, (), "96"),
    "not a number": (CONTEXT, [[[0.5, float("nan"), 0.5]] * ACTIONS] * 4, (), "actions"),
}


@pytest.mark.parametrize("program", ["c", "http"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path, request, program, name):
    context, actions, options, says = REFUSED[name]
    out = command(program, where_of(program, request), files_of(tmp_path, context, actions), tmp_path / "out.npy", *options)
    assert out.returncode == 1 and says in out.stderr, out.stderr
    assert not (tmp_path / "out.npy").exists() and "Traceback" not in out.stderr


@pytest.mark.parametrize("program", ["c", "http"])
def test_files_that_are_no_arrays(tmp_path, request, program):
    good, bad = files_of(tmp_path, CONTEXT, MOVES), tmp_path / "bad.npy"
    whole = good[0].read_bytes()
    for data in (b"", b"text, no array at all", whole[:-1], whole.replace(b"False", b"True "), whole.replace(b"<i4", b">i4")):
        bad.write_bytes(data)
        out = command(program, where_of(program, request), (bad, good[1]), tmp_path / "out.npy")
        assert out.returncode == 1 and f"{bad}: " in out.stderr and "Traceback" not in out.stderr, out.stderr
    out = command(program, where_of(program, request), (tmp_path / "missing.npy", good[1]), tmp_path / "out.npy")
    assert out.returncode == 1 and "No such file" in out.stderr


def test_usage(tmp_path):
    files = files_of(tmp_path, CONTEXT, MOVES)
    for words, code, says in (([], 2, "are needed"), (["--help"], 0, "usage"), (["--frames", "x"], 2, "--frames"),
                              ([DATA / "model", "--context", files[0], "--actions", files[1], "--out", tmp_path / "o", "--", "--no-such",
                                "1"], 2, "no-such"),
                              ([tmp_path / "none", "--context", files[0], "--actions", files[1], "--out", tmp_path / "o"], 3, "none")):
        out = subprocess.run([str(word) for word in (ROLLOUT, *words)], capture_output=True, text=True, timeout=60)
        assert out.returncode == code and says in out.stdout + out.stderr, (words, out.stderr)
