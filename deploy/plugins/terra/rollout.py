#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Videos' tokens from context frames and actions, over HTTP: what terra-rollout does over the C library.

    quire serve MODEL --plugin terra.so --skip-tokenizer-init &
    python3 rollout.py --context context.npy --actions actions.npy --out frames.npy --picture frames.png

context: token ids, [frames, patches] or [rollouts, frames, patches]; the rest of a last frame that ends in -1 is generated.
actions: numbers, [frames, actions, 3] or [rollouts, frames, actions, 3]: of the context's frames and of all new ones but the last.
An array of one rollout counts for all. One request generates one frame; the next prompt is that prompt, the frame and a placeholder
(-3) for each of its actions, most of which is in the server's prefix cache. Needs the standard library only.
"""
import argparse
import array
import ast
import http.client
import json
import math
import os
import struct
import sys
import threading
import time
import urllib.parse
import zlib

PLACEHOLDER = -3
ROLLOUTS_MAX = 1024  # threads
BUSY_S = 60          # the longest pause before a request is sent again to a server that is busy
CODES = {"<f4": "f", "<f8": "d", "|i1": "b", "|u1": "B", "<i2": "h", "<u2": "H", "<i4": "i", "<u4": "I", "<i8": "q", "<u8": "Q"}


class Refused(Exception):
    """What the user has to change."""


class Busy(Exception):
    """The server takes no more requests for now."""

    def __init__(self, seconds):
        super().__init__(f"the server is busy for {seconds} s")
        self.seconds = seconds


class Stopped(Exception):
    """Another rollout has failed."""


# ---- arrays ----

def read_npy(path):
    """(shape, array of numbers)"""
    with open(path, "rb") as file:
        data = file.read()
    if data[:6] != b"\x93NUMPY" or data[6] not in (1, 2, 3) or len(data) < 12:
        raise Refused(f"{path}: it is not a .npy file")
    size, = struct.unpack_from("<H" if data[6] == 1 else "<I", data, 8)
    start = 8 + (2 if data[6] == 1 else 4)
    try:
        header = ast.literal_eval(data[start:start + size].decode("latin-1"))
        code, shape = CODES[header["descr"]], tuple(header["shape"])
        if header["fortran_order"] or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise KeyError
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise Refused(f"{path}: expected <f4, <f8 or integers in C's order") from None
    numbers, n = array.array(code), math.prod(shape)
    if len(data) < start + size + n * numbers.itemsize:
        raise Refused(f"{path}: it is cut short")
    numbers.frombytes(data[start + size:start + size + n * numbers.itemsize])
    if sys.byteorder == "big":
        numbers.byteswap()
    return shape, numbers


def part_of(path):
    """The file that is written in its place; None: no regular file, which is written as it is."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return None
    if os.path.exists(path):
        with open(path, "r+b"):  # an error where it may not be written
            pass
    return os.path.realpath(path) + ".part"


def check_output(path):
    """Before the work: could it be written?"""
    part = part_of(path)
    if part:
        with open(part, "wb"):
            pass
        os.unlink(part)


def write_file(path, data):
    """As a whole or not at all; what was there before stays until then."""
    part = part_of(path)
    try:
        with open(part or path, "wb") as file:
            file.write(data)
        if part:
            os.replace(part, os.path.realpath(path))
    except OSError as error:
        if part and os.path.exists(part):
            os.unlink(part)
        raise Refused(f"{path}: it cannot be written: {error.strerror}") from None


def write_npy(path, shape, numbers):
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    write_file(path, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
               struct.pack(f"<{len(numbers)}i", *numbers))


def of_rollouts(path, shape, n_dim, text):
    """(rollouts, shape of one)"""
    if len(shape) not in (n_dim, n_dim + 1) or not all(shape):
        raise Refused(f"{path}: its shape is {list(shape)}, expected {text}, with a dimension of rollouts before it or without")
    return (shape[0], shape[1:]) if len(shape) == n_dim + 1 else (1, shape)


# ---- what a rollout starts from ----

class Trajectory:
    """The prompt and the actions of one rollout, and how many tokens are to come."""

    def __init__(self, ids, actions, n_patch):
        """ids: of the given frames; actions: [frames][actions][numbers]"""
        self.n_patch, self.actions = n_patch, actions
        self.prompt = []
        for i, token in enumerate(ids):
            if not 0 <= token < 2**31 or token != int(token):
                raise Refused(f"context: number {i} is {token}, expected token ids from 0 (-1 at the end of the last frame)")
            self.prompt.append(int(token))
            if (i + 1) % n_patch == 0:
                self.prompt += [PLACEHOLDER] * len(actions[0])
        self.n_start = len(ids) % n_patch
        self.new = list(self.prompt[len(self.prompt) - self.n_start:])

    def request(self):
        """(prompt, actions, tokens to come) of the next frame."""
        n_frame = self.prompt.count(PLACEHOLDER) // len(self.actions[0])
        rows = [row for frame in self.actions[:n_frame] for row in frame]
        return self.prompt, rows, self.n_patch - len(self.new) % self.n_patch

    def end_frame(self, tokens):
        self.new += tokens
        self.prompt += tokens + [PLACEHOLDER] * len(self.actions[0])


def read_trajectories(args):
    id_shape, ids = read_npy(args.context)
    action_shape, actions = read_npy(args.actions)
    n_ids, (n_frame, n_patch) = of_rollouts(args.context, id_shape, 2, "[frames, patches of a frame]")
    n_acted, (n_action_frame, n_action, dim) = of_rollouts(
        args.actions, action_shape, 3, "[frames, actions of a frame, numbers of an action]")
    n = args.rollouts or max(n_ids, n_acted)
    if n > ROLLOUTS_MAX:
        raise Refused(f"{n} rollouts, expected at most {ROLLOUTS_MAX}")
    if n_ids not in (1, n) or n_acted not in (1, n):
        raise Refused(f"{n} rollouts, but {args.context} has {n_ids} and {args.actions} has {n_acted}")
    if not all(map(math.isfinite, actions)):
        raise Refused(f"{args.actions}: actions are numbers, and no infinity or NaN")
    out, given_of_first = [], None
    for i in range(n):
        own = list(ids[i % n_ids * n_frame * n_patch:][:n_frame * n_patch])
        given = own.index(-1) if -1 in own else len(own)
        if any(token != -1 for token in own[given:]) or given == 0 or len(own) - given >= n_patch:
            raise Refused(f"{args.context}: -1 stands for tokens at the end of the last frame")
        given_of_first = given if given_of_first is None else given_of_first
        if given != given_of_first:
            raise Refused(f"{args.context}: rollouts have another number of tokens in their last frame")
        flat = actions[i % n_acted * n_action_frame * n_action * dim:]
        rows = [[list(flat[(f * n_action + a) * dim:][:dim]) for a in range(n_action)] for f in range(n_action_frame)]
        out.append(Trajectory(own[:given], rows, n_patch))
    n_context = given_of_first // n_patch
    args.frames = args.frames or n_action_frame - n_context + 1
    if args.frames < 1 or n_action_frame < n_context + args.frames - 1:
        raise Refused(f"{args.actions}: it has actions of {n_action_frame} frames; {max(args.frames, 1)} frames after {n_context} of "
                      f"context take {n_context + max(args.frames, 1) - 1}")
    return out


# ---- requests ----

class Server:
    def __init__(self, url, key):
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        self.kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.address = parts.netloc
        self.headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def connect(self, method, path, body=None):
        connection = self.kind(self.address, timeout=600)
        connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = connection.getresponse()
        if answer.status == 429:
            wait = answer.headers.get("Retry-After") or "1"
            connection.close()
            raise Busy(min(max(int(wait) if wait.isdigit() else 1, 1), BUSY_S))
        if answer.status != 200:
            text = answer.read().decode(errors="replace")
            try:
                text = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise Refused(f"the server answers {answer.status}: {text}")
        return connection, answer

    def model(self):
        connection, answer = self.connect("GET", "/v1/models")
        name = json.loads(answer.read())["data"][0]["id"]
        connection.close()
        return name

    def frame(self, body, on_tokens):
        """(tokens, usage) of a streamed completion."""
        connection, answer = self.connect("POST", "/v1/completions", body)
        tokens, usage, finish = [], {}, None
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Refused(f"the server ends a request: {event['error']['message']}")
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                new = choice.get("token_ids") or []
                tokens += new
                on_tokens(len(new))
                finish = choice.get("finish_reason") or finish
        connection.close()
        if len(tokens) != body["max_tokens"] or finish != "length":
            raise Refused(f"a frame ended after {len(tokens)} tokens of {body['max_tokens']} ({finish})")
        return tokens, usage


class Progress:
    """Tokens of all rollouts; a line on standard error when it is shown."""

    def __init__(self, args, trajectories):
        self.show = args.progress or sys.stderr.isatty()
        self.n_patch, self.n_frame = trajectories[0].n_patch, args.frames * len(trajectories)
        self.left = self.all = sum(args.frames * t.n_patch - t.n_start for t in trajectories)
        self.lock, self.start, self.shown = threading.Lock(), time.monotonic(), 0.0
        self.stop = threading.Event()

    def add(self, n):
        if self.stop.is_set():
            raise Stopped
        with self.lock:
            self.left -= n
            passed, done = time.monotonic() - self.start, 1 - self.left / self.all
            if not self.show or done == 0 or (passed - self.shown < 0.5 and self.left):
                return
            self.shown = passed
            print(f"\r{done * self.n_frame:.1f} of {self.n_frame} frames, {done * self.n_frame / passed:.3f} frames/s, "
                  f"{passed / done - passed:.0f} s left   ", end="" if self.left else "\n", file=sys.stderr, flush=True)


class Rollout(threading.Thread):
    def __init__(self, server, args, trajectory, number, progress):
        super().__init__(daemon=True)
        self.server, self.args, self.trajectory, self.number, self.progress = server, args, trajectory, number, progress
        self.requests, self.error = [], None

    def run(self):
        try:
            for frame in range(self.args.frames):
                self.generate(frame)
        except Stopped:
            pass
        except (Refused, OSError, http.client.HTTPException, ValueError) as error:
            self.error = f"rollout {self.number}, frame {len(self.requests)}: {error or type(error).__name__}"
            self.progress.stop.set()

    def generate(self, frame):
        prompt, rows, n = self.trajectory.request()
        body = {"model": self.args.model, "prompt": prompt, "max_tokens": n, "temperature": self.args.temperature,
                "seed": self.args.seed + self.number, "ignore_eos": True, "detokenize": False, "return_token_ids": True,
                "stream": True, "stream_options": {"include_usage": True}}
        if rows:
            body["multi_modal_data"] = {"actions": rows}
        tokens, usage = self.send(body)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.requests.append({"rollout": self.number, "frame": frame, "prompt_tokens": len(prompt), "cached_tokens": cached,
                              "tokens": len(tokens)})
        self.trajectory.end_frame(tokens)

    def send(self, body):
        while True:
            try:
                return self.server.frame(body, self.progress.add)
            except Busy as busy:
                if self.progress.stop.wait(busy.seconds):
                    raise Stopped from None


# ---- the picture ----

def colour(token):
    """A hue from the id's hash, in one of two brightnesses."""
    spread = token * 2654435769 & 0xffffffff
    hue, value = spread / 2**32 * 6, 235 if spread >> 7 & 1 else 165
    rise = 40 + (value - 40) * (hue % 1)
    fall = value + 40 - rise
    return bytes(map(int, [(value, rise, 40), (fall, value, 40), (40, value, rise), (40, fall, value), (rise, 40, value),
                           (value, 40, fall)][int(hue) % 6]))


def write_png(path, frames, columns, square=6, gap=4):
    """A stand-in for a decoder: each token a square of its own colour. A row is a rollout, its frames from left to right."""
    n_patch = len(frames[0][0])
    columns = columns or next(n_patch // rows for rows in range(math.isqrt(n_patch), 0, -1) if n_patch % rows == 0)
    lines = []
    for i, rollout in enumerate(frames):
        for row in range(n_patch // columns):
            line = (b"\xff" * 3 * gap).join(
                b"".join(colour(token) * square for token in frame[row * columns:][:columns]) for frame in rollout)
            lines += [b"\x00" + line] * square
        lines += [b"\x00" + b"\xff" * (len(lines[0]) - 1)] * (gap if i + 1 < len(frames) else 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    write_file(path, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", (len(lines[0]) - 1) // 3, len(lines), 8, 2, 0, 0, 0)) +
               chunk(b"tEXt", b"Comment\x00a stand-in decoder: each token is a colour") +
               chunk(b"IDAT", zlib.compress(b"".join(lines))) + chunk(b"IEND", b""))
    print(f"rollout.py: {path} is by a stand-in decoder: each token is a colour", file=sys.stderr)


# ---- the program ----

def report(args, rollouts, seconds):
    requests = [r for rollout in rollouts for r in rollout.requests]
    later = [r for r in requests if r["frame"]]
    prefill = [r["prompt_tokens"] - r["cached_tokens"] for r in later]
    again = sum(prefill) - len(later) * (len(rollouts[0].trajectory.actions[0]) + 1)
    figures = {"rollouts": len(rollouts), "frames": args.frames, "patches": rollouts[0].trajectory.n_patch, "seconds": seconds,
               "frames_per_second": len(requests) / seconds, "generation_tokens": sum(r["tokens"] for r in requests),
               "prefill": {"contexts": sum(r["prompt_tokens"] - r["cached_tokens"] for r in requests if not r["frame"]),
                           "later_frames": sum(prefill), "again": again}, "requests": requests}
    if args.json:
        print(json.dumps(figures))
        return
    print(f"{len(requests)} frames in {seconds:.1f} s, {len(requests) / seconds:.3f} frames/s", file=sys.stderr)
    more = f"; then {sum(prefill) / len(later):.1f} a frame, {again / len(later):.1f} of them again" if later else ""
    print(f"prefill: {figures['prefill']['contexts']} tokens of context{more}. Decode: {figures['generation_tokens']} tokens, the "
          "first of each frame by its prefill", file=sys.stderr)


def check_results(args, n_patch):
    """What could not be written when the work is done."""
    for path in filter(None, (args.out, args.picture)):
        try:
            check_output(path)
        except OSError as error:
            raise Refused(f"{path}: it cannot be written: {error.strerror}") from None
    if args.picture and args.columns and n_patch % args.columns:
        raise Refused(f"--columns {args.columns} does not divide {n_patch}, the patches of a frame")


def roll(args):
    trajectories = read_trajectories(args)
    check_results(args, trajectories[0].n_patch)
    server = Server(args.url, args.api_key)
    args.model = args.model or server.model()
    progress = Progress(args, trajectories)
    rollouts = [Rollout(server, args, t, i, progress) for i, t in enumerate(trajectories)]
    start = time.monotonic()
    for rollout in rollouts:
        rollout.start()
    for rollout in rollouts:
        while rollout.is_alive():
            rollout.join(0.2)  # an interrupt just before a wait without an end would be seen at its end
    errors = [rollout.error for rollout in rollouts if rollout.error]
    if errors:
        raise Refused(errors[0])
    report(args, rollouts, time.monotonic() - start)
    new = [t.new for t in trajectories]
    shape = len(new), args.frames, trajectories[0].n_patch
    write_npy(args.out, shape, [token for tokens in new for token in tokens])
    if args.picture:
        write_png(args.picture, [[tokens[f * shape[2]:][:shape[2]] for f in range(args.frames)] for tokens in new], args.columns)


def whole(most):
    def read(text):
        if not text.isascii() or not text.isdigit() or int(text) > most:
            raise argparse.ArgumentTypeError(f'"{text}", expected a whole number from 0 to {most}')
        return int(text)
    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--context", required=True, metavar="FILE")
    parser.add_argument("--actions", required=True, metavar="FILE")
    parser.add_argument("--out", required=True, metavar="FILE", help=".npy to write: int32 tokens, [rollouts, frames, patches]")
    parser.add_argument("--frames", type=whole(65536), default=0, help="new frames; default: as many as there are actions for")
    parser.add_argument("--rollouts", type=whole(ROLLOUTS_MAX), default=0, help="default: as many as the arrays have")
    parser.add_argument("--temperature", type=float, default=0, help="of sampling; default 0: the most likely token")
    parser.add_argument("--seed", type=whole(10**15), default=0, help="of the first rollout, the next one has the next")
    parser.add_argument("--picture", metavar="FILE", help=".png to write, by a stand-in decoder: each token is a colour")
    parser.add_argument("--columns", type=whole(4096), default=0, help="patches of a frame side by side in it; default: nearly a square")
    parser.add_argument("--json", action="store_true", help="print figures as a JSON object on standard output")
    parser.add_argument("--progress", action="store_true", help="show progress on standard error; default: on a terminal")
    args = parser.parse_args()
    try:
        roll(args)
    except (Refused, Busy, OSError, http.client.HTTPException, ValueError) as error:
        print(f"rollout.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nrollout.py: interrupted: nothing is written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
