# SPDX-License-Identifier: Apache-2.0
"""`quire download` of one large file from a hub on this machine beside curl, which writes the same bytes and checks no sum.

    python3 tests/bench/download.py [--gigabytes 2] [--rounds 5] [--folder build/download] [--rate MBYTES_S]

The programs alternate; quire's cache and curl's file are removed before each round. The hub is a thread of this script that sends
with sendfile(2). --rate limits each connection, as hubs do: several connections then load more than one. Prints a table in Markdown;
the bar is 0.8 of curl's speed without a limit. QUIRE_BIN: default build/release/bin."""
import argparse
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
ID, NAME, COMMIT = "org/large", "model.safetensors", "0" * 40
SMALL = b'{"architectures": ["LlamaForCausalLM"]}'
PART = 256 << 10  # bytes that are sent at a time where the rate is limited


def make(path, n):
    """n bytes that no disk compresses, and their sum."""
    block, sums = os.urandom(64 << 20), hashlib.sha256()
    with open(path, "wb") as out:
        for at in range(0, n, len(block)):
            part = block[:min(len(block), n - at)]
            out.write(part)
            sums.update(part)
    return sums.hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64

    def __init__(self, path, etag, rate):
        super().__init__(("127.0.0.1", 0), Handler)
        self.path, self.etag, self.rate, self.size = path, etag, rate, path.stat().st_size
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def head(self, status, n, **more):
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", "Content-Length": n, **more}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def small(self, data):
        self.head(200, len(data), ETag='"%s"' % hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
        if self.command == "GET":
            self.wfile.write(data)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        s = self.server
        if self.path.startswith("/api/"):
            return self.small(json.dumps({"id": ID, "sha": COMMIT, "siblings": [{"rfilename": n} for n in ("config.json", NAME)]}).encode())
        if self.path.endswith("config.json"):
            return self.small(SMALL)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first, last = (int(wanted[1]), int(wanted[2] or s.size - 1)) if wanted else (0, s.size - 1)
        more = {"Content_Range": f"bytes {first}-{last}/{s.size}"} if wanted else {}
        self.head(206 if wanted else 200, last + 1 - first, ETag=f'"{s.etag}"', **more)
        if self.command == "GET":
            self.send_part(first, last + 1)
        return None

    def send_part(self, at, end):
        rate, begun, first = self.server.rate, time.monotonic(), at
        with open(self.server.path, "rb") as f:
            self.wfile.flush()
            while at < end:
                at += os.sendfile(self.connection.fileno(), f.fileno(), at, min(end - at, PART if rate else 1 << 30))
                if rate:
                    time.sleep(max(0, begun + (at - first) / (rate * 1e6) - time.monotonic()))


def timed(*command, **options):
    start = time.monotonic()
    subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL, **options)
    return time.monotonic() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--gigabytes", type=float, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--rate", type=float, default=0)
    p.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/download")
    args = p.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    source, target, home = args.folder / "source", args.folder / "curl", args.folder / "home"
    hub = Hub(source, make(source, int(args.gigabytes * 1e9)), args.rate)
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    seconds = {"curl": [], "quire": []}
    for i in range(args.rounds + 1):
        for name in seconds:
            target.unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            if name == "curl":
                took = timed("curl", "-sS", "-o", target, f"{hub.url}/{ID}/resolve/{COMMIT}/{NAME}")
            else:
                took = timed(BIN / "quire", "download", ID, env=env, stderr=subprocess.DEVNULL)
            if i:  # the first round makes the pages of the source
                seconds[name].append(took)
    ratios = [c / q for c, q in zip(seconds["curl"], seconds["quire"])]
    print("| program | s, median | MB/s | spread |\n|---|---|---|---|")
    for name, s in seconds.items():
        print(f"| {name} | {statistics.median(s):.2f} | {hub.size / 1e6 / statistics.median(s):.0f} | {min(s):.2f} to {max(s):.2f} s |")
    print(f"\nquire's speed ÷ curl's: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {args.rounds} rounds")
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
