# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face hub for tests, on free ports of this machine: the list of files, the resolve route, a second host for the
content of large files, tokens, and faults on demand."""
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LARGE = 4096  # bytes from which a file is "in LFS": its etag is a SHA-256, its content on the second host


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """One model. files: path -> bytes. revisions: branch or tag -> commit."""

    def __init__(self, files, commit=None, private=False, gated=False):
        self.files, self.sums = dict(files), {}
        self.commit = commit or hashlib.sha1(json.dumps(sorted(files)).encode()).hexdigest()
        self.revisions = {"main": self.commit}
        self.private, self.gated = private, gated

    def large(self, path):
        return len(self.files[path]) >= LARGE

    def etag(self, path):
        data = self.files[path]
        if id(data) not in self.sums:  # kept with the data, whose id is then not another's
            self.sums[id(data)] = data, hashlib.sha256(data).hexdigest() if self.large(path) else git_sha1(data)
        return self.sums[id(data)][1]


class Hub:
    """hub.url: HF_ENDPOINT. hub.requests: (host, method, path, headers) of all requests. hub.faults: functions
    (host, method, path, n) -> None or a dict: status and headers of an answer, cut: bytes after which the connection
    ends, data: other content, no_range: ranges are ignored; n counts the requests of this method and path from 0."""

    def __init__(self, token="hf_good"):
        self.repos, self.requests, self.faults, self.token = {}, [], [], token
        self.lock = threading.Lock()
        self.servers = [self.listen("hub"), self.listen("store")]
        self.url, self.store = ("http://127.0.0.1:%d" % s.server_address[1] for s in self.servers)

    def listen(self, host):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            def log_message(self, *_): pass
            def do_HEAD(self): hub.answer(self, host)
            def do_GET(self): hub.answer(self, host)

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64
            def handle_error(self, *_): pass  # clients that hang up

        server = Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def seen(self, method=None, contains="", host=None):
        with self.lock:
            return [r for r in self.requests if (method or r[1]) == r[1] and contains in r[2] and (host or r[0]) == r[0]]

    def answer(self, http_, host):
        method, path = http_.command, urllib.parse.unquote(http_.path)
        with self.lock:
            n = sum(r[1] == method and r[2] == path for r in self.requests)
            self.requests.append((host, method, path, dict(http_.headers.items())))
        fault = next((f for f in (fault(host, method, path, n) for fault in self.faults) if f), {})
        if "status" in fault:
            return self.send(http_, fault["status"], fault.get("headers", {}), fault.get("data", b""))
        if host == "store":
            return self.content(http_, path.split("?")[0].removeprefix("/blob/"), fault)
        return self.hub(http_, path, fault)

    def send(self, http_, status, headers=(), data=b"", cut=None):
        http_.send_response(status)
        for name, value in dict(headers).items():
            http_.send_header(name, str(value))
        if "Content-Length" not in headers:
            http_.send_header("Content-Length", str(len(data)))
        http_.end_headers()
        if http_.command == "HEAD":
            return
        http_.wfile.write(data if cut is None else data[:cut])
        if cut is not None and cut < len(data):
            http_.wfile.flush()
            http_.close_connection = True

    def error(self, http_, status, code="", message=""):
        headers = {name: value for name, value in (("X-Error-Code", code), ("X-Error-Message", message)) if value}
        self.send(http_, status, headers, json.dumps({"error": message}).encode())

    def allowed(self, http_, repo):
        """Is the token right for the repository? Else the error is sent."""
        given = http_.headers.get("Authorization")
        if given and given != f"Bearer {self.token}":
            return self.error(http_, 401, "", "Invalid credentials in Authorization header")
        if repo is None or (repo.private and not given):
            return self.error(http_, 404 if given else 401, "RepoNotFound", "Repository not found")
        if repo.gated and (not given or repo.gated != "open"):
            return self.error(http_, 403 if given else 401, "GatedRepo", "Access to model is restricted")
        return True

    def hub(self, http_, path, fault):
        api = re.fullmatch(r"/api/models/((?:[^/]+/)?[^/]+)/(revision|tree)/(.+?)(\?.*)?", path)
        file = re.fullmatch(r"/((?:[^/]+/)?[^/]+)/resolve/([^/]+)/(.+?)(\?.*)?", path)
        match = api or file
        if not match:
            return self.error(http_, 404)
        repo = self.repos.get(match[1])
        if not self.allowed(http_, repo):
            return None
        revision = match[3] if api else match[2]
        if revision not in repo.revisions and revision not in repo.revisions.values():
            return self.error(http_, 404, "RevisionNotFound", "Invalid rev id: " + revision)
        if api:
            return self.listing(http_, match[1], repo, match[2])
        return self.resolve(http_, repo, match[3], fault)

    def listing(self, http_, name, repo, kind):
        if kind == "tree":
            data = [{"type": "file", "path": p, "size": len(d), "oid": git_sha1(d),
                     **({"lfs": {"oid": repo.etag(p), "size": len(d), "pointerSize": 130}} if repo.large(p) else {})}
                    for p, d in sorted(repo.files.items())]
        else:
            data = {"id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "gated": bool(repo.gated),
                    "siblings": [{"rfilename": p} for p in repo.files]}
        self.send(http_, 200, {"Content-Type": "application/json"}, json.dumps(data).encode())

    def resolve(self, http_, repo, file, fault):
        headers = {"X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        if file not in repo.files:
            return self.send(http_, 404, {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        data, etag = repo.files[file], repo.etag(file)
        if not repo.large(file):
            return self.body(http_, {**headers, "ETag": f'"{etag}"'}, data, fault)
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": len(data), "ETag": '"pointer"',
                    "Location": f"{self.store}/blob/{etag}?signature=x"}
        headers |= fault.get("more", {})
        return self.send(http_, 302, headers)

    def content(self, http_, etag, fault):
        for repo in self.repos.values():
            for path, data in repo.files.items():
                if repo.etag(path) == etag:
                    return self.body(http_, {"ETag": '"of-the-store"'}, fault.get("data", data), fault)
        return self.error(http_, 404)

    def body(self, http_, headers, data, fault):
        data = fault.get("data", data)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", http_.headers.get("Range") or "")
        if not wanted or fault.get("no_range"):
            return self.send(http_, 200, headers, data, fault.get("cut"))
        first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
        if first >= len(data):
            return self.send(http_, 416, {"Content-Range": f"bytes */{len(data)}"})
        headers = {**headers, "Content-Range": f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"}
        return self.send(http_, 206, headers, data[first:last + 1], fault.get("cut"))
