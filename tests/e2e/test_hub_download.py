# SPDX-License-Identifier: Apache-2.0
"""Models of a hub: what is downloaded, resumed and refused, and the cache that huggingface_hub and quire share."""
import fcntl
import hashlib
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

import pytest

from hub_server import Hub, Repo
from servers import BIN, BUNDLED, MODELS, Process

LORA = pathlib.Path(__file__).parents[1] / "data" / "lora"
OK, DISK, USAGE, MODEL, NETWORK = 0, 1, 2, 3, 4
ID = "org/tiny"
HUB_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE",
                 "TRANSFORMERS_OFFLINE", "QUIRE_DOWNLOAD_DIR", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def blob(n, seed=1):
    return random.Random(seed).randbytes(n)


SHARDS = {f"model-0000{i}-of-00003.safetensors": blob(200_000 + i, i) for i in (1, 2, 3)}
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}', "generation_config.json": b"{}", "tokenizer.json": blob(9000, 9),
    "tokenizer_config.json": b"{ }", "chat_template.jinja": b"{{ messages }}", "README.md": b"# tiny", "LICENSE.txt": b"free",
    "modeling_tiny.py": b"raise SystemExit", "original/consolidated.00.pth": blob(5000), "onnx/model.onnx": blob(5000),
    "pytorch_model-00001-of-00001.bin": blob(5000), "pytorch_model.bin.index.json": b"{}", "flax_model.msgpack": blob(5000),
    "consolidated.safetensors": blob(5000), "1_Pooling/config.json": b'{"a": 1}', "additional_chat_templates/tool_use.jinja": b"x",
    "model.safetensors.index.json": json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(SHARDS)}}).encode(), **SHARDS,
}
NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "1_Pooling/config.json",
          "additional_chat_templates/tool_use.jinja", "model.safetensors.index.json", *SHARDS}


@pytest.fixture
def hub():
    server = Hub()
    server.repos[ID] = Repo(FILES)
    yield server
    server.close()


@pytest.fixture
def env(hub, tmp_path):
    """Variables of a user of this hub whose cache is empty."""
    out = {k: v for k, v in os.environ.items() if k not in HUB_VARIABLES}
    return {**out, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}


def quire(env, *args, seconds=120):
    return subprocess.run([str(BIN / "quire"), *map(str, args)], env=env, capture_output=True, text=True, timeout=seconds)


def download(env, *args, code=OK):
    out = quire(env, "download", *args)
    assert out.returncode == code, out
    return out


def refused(env, code, words, *args):
    out = download(env, *args, code=code)
    lines = [line for line in out.stderr.splitlines() if " INFO " not in line and " WARN" not in line]
    assert len(lines) == 1 and not out.stdout, out
    for word in words:
        assert word in lines[0], lines
    return lines[0]


def repo_dir(env, name="models--org--tiny"):
    return pathlib.Path(env["HF_HOME"], "hub", name)


def files_of(folder):
    return {str(p.relative_to(folder)) for p in pathlib.Path(folder).rglob("*") if not p.is_dir()}


def check_cache(hub, env, files=NEEDED, revision="main"):
    """Blobs, links, refs and contents, as huggingface_hub lays them out."""
    repo, folder = hub.repos[ID], repo_dir(env)
    assert (folder / "refs" / revision).read_text() == repo.commit
    snapshot = folder / "snapshots" / repo.commit
    assert files_of(snapshot) == set(files)
    for name in files:
        path = snapshot / name
        depth = "../" * (2 + name.count("/"))
        assert os.readlink(path) == f"{depth}blobs/{repo.etag(name)}"
        assert path.read_bytes() == repo.files[name]
    assert {p.name for p in (folder / "blobs").iterdir()} == {repo.etag(name) for name in files}
    return snapshot


def test_download_and_layout(hub, env):
    out = download(env, ID)
    snapshot = check_cache(hub, env)
    assert out.stdout == f"{snapshot}\n"
    assert "org/tiny: downloading" in out.stderr
    locks = repo_dir(env).parent / ".locks/models--org--tiny"
    assert {p.name for p in locks.iterdir()} == {hub.repos[ID].etag(name) + ".lock" for name in NEEDED}
    no_exist = repo_dir(env) / ".no_exist" / hub.repos[ID].commit
    assert "special_tokens_map.json" in files_of(no_exist) and not files_of(no_exist) & set(FILES)
    before = len(hub.requests)
    assert download(env, ID).stdout == out.stdout  # all is there: one question
    assert [r[1:3] for r in hub.requests[before:]] == [("GET", f"/api/models/{ID}/revision/main")]


def test_home_in_variables(hub, env, tmp_path):
    """"~" that no shell has expanded, as huggingface_hub takes it."""
    env = {**env, "HOME": str(tmp_path)}
    out = download({**env, "HF_HOME": "~/models"}, ID)
    assert out.stdout.startswith(str(tmp_path / "models/hub/models--org--tiny/snapshots"))
    assert download({**env, "HF_HUB_CACHE": "~/cache"}, ID).stdout.startswith(str(tmp_path / "cache/models--org--tiny"))


def test_choices(hub, env, tmp_path):
    def names(*args, **repo):
        if repo:
            hub.repos[ID] = Repo(repo["files"], commit=hashlib.sha1(str(sorted(repo["files"])).encode()).hexdigest())
        out = download(env, ID, "--download-dir", tmp_path / str(len(hub.requests)), *args)
        return files_of(out.stdout.strip())
    assert names("--no-weights") == NEEDED - set(SHARDS) - {"model.safetensors.index.json"}
    assert names("--include", "*.py", "--include", "original/") == {"modeling_tiny.py", "original/consolidated.00.pth"}
    assert names("--include", "*", "--exclude", "*.safetensors", "--exclude", "*.md") == {
        n for n in FILES if not n.endswith((".safetensors", ".md"))}
    assert names("--exclude", "*-00002-*") == NEEDED - {"model-00002-of-00003.safetensors"}
    texts = {"config.json": b"{}", "tokenizer.model": b"x"}
    one = {"model.safetensors": b"1", "model.fp16.safetensors": b"2", "pytorch_model.bin": b"3", "consolidated.safetensors": b"4"}
    assert names(files={**texts, **one}) == {*texts, "model.safetensors"}
    assert names("--load-format", "pt") == {*texts, "pytorch_model.bin"}
    assert names("--load-format", "mistral") == {*texts, "consolidated.safetensors"}
    assert names(files={**texts, "pytorch_model.bin": b"3", "training_args.bin": b"x"}) == {*texts, "pytorch_model.bin"}
    assert names(files={**texts, "params.json": b"{}", "consolidated.00.pth": b"4"}) == {*texts, "params.json", "consolidated.00.pth"}
    loose = {"model-q4.safetensors": b"1", "m-00001-of-00002.safetensors": b"2", "m-00002-of-00002.safetensors": b"3"}
    beside = {"adapter_model.safetensors": b"4", "vae/m.safetensors": b"7"}
    assert names(files={**texts, **loose, **beside}) == {*texts, *loose}  # without an index: what a folder of them is loaded from
    assert names(files={**texts, **loose, "pytorch_model.bin": b"6"}) == {*texts, "pytorch_model.bin"}
    assert names("--load-format", "safetensors") == {*texts, *loose}
    assert names(files={"adapter_config.json": b"{}", "adapter_model.safetensors": b"1"}) == {"adapter_config.json", "adapter_model.safetensors"}
    hub.repos[ID] = Repo({"config.json": b"{}", "tiny.Q4.gguf": b"GGUF", "tiny.Q8.gguf": b"GGUF"})
    refused(env, MODEL, ["GGUF", "tiny.Q4.gguf", f"{ID}:Q4_K_M", "--include"], ID)
    assert names("--include", "*Q8*") == {"tiny.Q8.gguf"}
    refused(env, MODEL, ["no file that matches", "*.xyz"], ID, "--include", "*.xyz")
    hub.repos[ID] = Repo({"config.json": b"{}"})
    refused(env, MODEL, ["no weights"], ID)
    refused(env, USAGE, ["--load-format", "mistral"], ID, "--load-format", "tensors")


def test_revisions(hub, env):
    repo = hub.repos[ID]
    repo.revisions |= {"v1.0": repo.commit, "refs/pr/3": repo.commit, repo.commit[:7]: repo.commit}
    for revision in ("v1.0", "refs/pr/3", repo.commit[:7], repo.commit):
        download(env, ID, "--revision", revision)
    refs = repo_dir(env) / "refs"
    assert files_of(refs) == {"v1.0", "refs/pr/3", repo.commit[:7]}
    assert len(hub.seen("HEAD")) == len(NEEDED)  # one commit
    refused(env, MODEL, ['no revision "v2"', f"{hub.url}/{ID}/refs"], ID, "--revision", "v2")
    refused(env, USAGE, ["not a revision"], ID, "--revision", "../x")
    repo.files["config.json"] = b'{"new": 1}'  # main moves on: its other files are the same blobs
    repo.revisions["main"] = repo.commit = "f" * 40
    download(env, ID)
    assert (refs / "main").read_text() == "f" * 40
    assert len(hub.seen("GET", "model-00001", host="hub")) == 1


def test_token_stays_at_home(hub, env, tmp_path):
    hub.repos[ID].private = True
    refused(env, MODEL, [ID, "HF_TOKEN"], ID)
    refused({**env, "HF_TOKEN": "hf_bad"}, MODEL, ["does not accept the token in HF_TOKEN", "settings/tokens"], ID)
    refused({**env, "HF_TOKEN": "two words"}, USAGE, ["HF_TOKEN: not a token"], ID)
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home/token").write_text("hf_good\n")
    refused({**env, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, MODEL, ["HF_TOKEN"], ID)
    download(env, ID)
    assert hub.seen(host="store") and all("Authorization" not in r[3] for r in hub.seen(host="store"))
    before = len(hub.requests)
    (tmp_path / "other").write_text("hf_other")
    download({**env, "HF_TOKEN_PATH": str(tmp_path / "other"), "HF_TOKEN": "hf_good"}, ID)
    download({**env, "HF_TOKEN_PATH": "~/$MINE/token", "HOME": str(tmp_path), "MINE": "home"}, ID)
    assert [r[3]["Authorization"] for r in hub.requests[before:]] == ["Bearer hf_good"] * 2
    secret = [p for p in repo_dir(env).parent.rglob("*") if p.is_file() and b"hf_good" in p.read_bytes()]
    assert not secret


def test_refusals(hub, env):
    hub.repos["org/gated"] = Repo(FILES, gated="auto")
    refused(env, MODEL, ["org/gated is gated", f"licence at {hub.url}/org/gated", "HF_TOKEN", "Access to model is restricted"], "org/gated")
    refused({**env, "HF_TOKEN": "hf_good"}, MODEL, ["is gated", "no access", "HF_TOKEN"], "org/gated")
    refused(env, MODEL, ["org/none", "does not exist"], "org/none")
    refused({**env, "HF_TOKEN": "hf_good"}, MODEL, ["org/none", "does not exist"], "org/none")
    refused(env, USAGE, ["no model id"], "a/b/c")
    refused({**env, "HF_HUB_OFFLINE": "1"}, NETWORK, ["HF_HUB_OFFLINE"], ID)
    refused({**env, "HF_ENDPOINT": "ftp://x"}, USAGE, ["HF_ENDPOINT", "ftp://x"], ID)
    hub.faults = [lambda host, method, path, n: {"status": 403} if "/api/" in path else None]
    refused(env, MODEL, ["without a token", "licence"], ID)
    hub.faults = [lambda host, method, path, n: {"status": 404} if "/api/" in path else None]
    refused(env, MODEL, ["no model org/tiny", "revision"], ID)
    hub.faults = [lambda host, method, path, n: {"status": 404, "headers": {"X-Error-Code": "EntryNotFound"}} if method == "HEAD" else None]
    refused(env, MODEL, ["has no file"], ID)


@pytest.mark.parametrize("fault", ["429", "503", "cut list", "cut file"])
def test_again_after_a_fault(fault, hub, env):
    answers = {
        "429": lambda h, m, p, n: {"status": 429, "headers": {"Retry-After": "0"}} if n < 2 else None,
        "503": lambda h, m, p, n: {"status": 503} if n == 0 and "model-00001" in p and m == "GET" else None,
        "cut list": lambda h, m, p, n: {"cut": 10} if n == 0 and m == "HEAD" else None,
        "cut file": lambda h, m, p, n: {"cut": 70_000} if n < 2 and h == "store" and m == "GET" else None,
    }
    hub.faults = [answers[fault]]
    download(env, ID)
    check_cache(hub, env)
    if fault == "cut file":
        ranges = [r[3].get("Range") for r in hub.seen("GET", hub.repos[ID].etag("model-00001-of-00003.safetensors"), "store")]
        assert ranges == [None, "bytes=70000-", "bytes=140000-"]


def test_too_many_faults(hub, env):
    hub.faults = [lambda h, m, p, n: {"status": 429, "headers": {"Retry-After": "3600"}}]
    refused(env, NETWORK, ["limits the rate", "3600 s", "HF_TOKEN"], ID)
    hub.faults = [lambda h, m, p, n: {"status": 500, "headers": {"Retry-After": "0"}}]
    refused(env, NETWORK, ["HTTP status 500", ID], ID)
    assert len(hub.seen("GET", "/api/")) == 1 + 6


def test_the_storage_refuses(hub, env):
    """The second host's errors are not the hub's: no word on licences, and none of the signature in its URL."""
    hub.faults = [lambda h, m, p, n: {"status": 403, "data": b"Request has expired"} if h == "store" else None]
    line = refused(env, NETWORK, ["tokenizer.json", hub.store, "HTTP status 403"], ID, "--include", "tokenizer.json")
    assert "licence" not in line and "signature" not in line


@pytest.mark.parametrize("status", [405, 501, 403])
@pytest.mark.parametrize("more", [{}, {"no_range": True}])
def test_a_mirror_without_head(status, more, hub, env):
    """The beginning of a GET has the same headers; a server that has no HEAD is not asked so for each file."""
    hub.repos[ID].files["generation_config.json"] = b""
    hub.faults = [lambda h, m, p, n: {"status": status} if m == "HEAD" else more]
    download(env, ID)
    check_cache(hub, env)
    n_head = len(hub.seen("HEAD"))
    assert n_head == len(NEEDED) if status == 403 else 0 < n_head < len(NEEDED)
    commit = hub.repos[ID].commit
    assert [r[3].get("Range") for r in hub.seen("GET", commit + "/config.json")] == ["bytes=0-0", None]
    empty = [r[3].get("Range") for r in hub.seen("GET", commit + "/generation_config.json")]
    assert empty == (["bytes=0-0", None] if more else ["bytes=0-0", None, None])  # it has no first byte


def test_a_mirror_without_head_that_redirects(hub, env):
    """The hop that refuses HEAD is asked again; a size that is not the file's would end the download."""
    def fault(host, method, path, n):
        if host == "hub" and "/resolve/" in path and not path.endswith("?moved"):
            return {"status": 307, "headers": {"Location": path + "?moved"}}
        return {"status": 405} if method == "HEAD" else None
    hub.faults = [fault]
    download(env, ID)
    check_cache(hub, env)
    assert any(path.endswith("?moved") for _, _, path, headers in hub.seen("GET") if headers.get("Range") == "bytes=0-0")


def test_a_refusal_of_the_hub_is_no_mirror_without_head(hub, env):
    hub.faults = [lambda h, m, p, n: {"status": 403, "headers": {"X-Error-Code": "GatedRepo"}} if m == "HEAD" else None]
    refused(env, MODEL, ["is gated"], ID)
    assert not hub.seen("GET", "/resolve/")
    hub.faults = [lambda h, m, p, n: {"status": 405} if "/resolve/" in p else None]
    refused(env, NETWORK, ["HTTP status 405"], ID)


def test_size_of_a_redirect_is_not_the_file(hub, env):
    """Without X-Linked-Size the length of a file is not known before it comes."""
    hub.faults = [lambda h, m, p, n: {"more": {"X-Linked-Size": "unknown"}} if m == "HEAD" else None]
    download(env, ID)
    check_cache(hub, env)


def test_no_connection(env):
    refused({**env, "HF_ENDPOINT": "http://127.0.0.1:1"}, NETWORK, ["no connection to 127.0.0.1:1", "HF_ENDPOINT"], ID)


def test_resume(hub, env):
    name = "model-00002-of-00003.safetensors"
    etag = hub.repos[ID].etag(name)
    blobs = repo_dir(env) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag}.incomplete").write_bytes(FILES[name][:123_456])
    download(env, ID)
    check_cache(hub, env)
    assert [r[3].get("Range") for r in hub.seen("GET", etag, "store")] == ["bytes=123456-"]


def test_resume_where_the_server_has_not_the_range(hub, env):
    """416, as a proxy answers that knows another length: the file is loaded from its first byte on."""
    name = "model-00002-of-00003.safetensors"
    etag, blobs = hub.repos[ID].etag(name), repo_dir(env) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag}.incomplete").write_bytes(FILES[name][:123_456])
    hub.faults = [lambda h, m, p, n: {"status": 416, "headers": {"Content-Range": "bytes */7"}} if h == "store" and etag in p and n == 0 else None]
    download(env, ID)
    check_cache(hub, env)
    assert [r[3].get("Range") for r in hub.seen("GET", etag, "store")] == ["bytes=123456-", None]
    hub.faults = [lambda h, m, p, n: {"status": 416} if h == "store" else None]
    refused(env, NETWORK, ["HTTP status 416"], ID, "--download-dir", blobs)


@pytest.mark.parametrize("start", ["other bytes", "too long", "whole"])
def test_resume_of_something_else(start, hub, env):
    name = "model-00002-of-00003.safetensors"
    data = FILES[name]
    beginnings = {"other bytes": b"x" * 1000, "too long": data + b"x", "whole": data}
    etag, blobs = hub.repos[ID].etag(name), repo_dir(env) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag}.incomplete").write_bytes(beginnings[start])
    out = download(env, ID)
    check_cache(hub, env)
    assert ("damaged" in out.stderr) == (start == "other bytes")
    assert len(hub.seen("GET", etag, "store")) == {"other bytes": 2, "too long": 1, "whole": 0}[start]


def test_server_without_ranges(hub, env):
    hub.faults = [lambda h, m, p, n: {"cut": 70_000, "no_range": True} if n == 0 and h == "store" else {"no_range": True}]
    download(env, ID)
    check_cache(hub, env)


# ---- files that are loaded in ranges ----

RANGE = 32 << 20  # bytes
LARGE = "model.safetensors"
LARGE_DATA = random.Random(7).randbytes(1 << 20) * 70 + b"end"  # three ranges
WHOLE = ["bytes=0-33554431", "bytes=33554432-67108863", f"bytes=67108864-{len(LARGE_DATA) - 1}"]


@pytest.fixture
def large(hub, env):
    """The etag of a file of three ranges, and the folder of blobs."""
    hub.repos[ID] = Repo({"config.json": b"{}", LARGE: LARGE_DATA})
    blobs = repo_dir(env) / "blobs"
    blobs.mkdir(parents=True)
    return hub.repos[ID].etag(LARGE), blobs


def ranges_of(hub, etag):
    return sorted((r[3].get("Range") for r in hub.seen("GET", etag, "store")), key=lambda text: int(text[6:].split("-")[0]))


def numbers(there):
    """The end of a file that is loaded in ranges: what is there of each."""
    return b"QRANGES1" + struct.pack(f"<{1 + len(there)}Q", RANGE, *there)


def test_ranges(large, hub, env):
    etag, _ = large
    download(env, ID)
    check_cache(hub, env, {"config.json", LARGE})
    assert ranges_of(hub, etag) == WHOLE


def test_each_range_goes_on(large, hub, env):
    """After an error what every range has stays, and only the rest is asked for."""
    etag, blobs = large
    hub.faults = [lambda h, m, p, n: ({"cut": 1 << 20} if n == 1 else {"status": 403} if n > 1 else None) if h == "store" and m == "GET" else None]
    refused(env, NETWORK, [LARGE, "HTTP status 403"], ID)
    partial = blobs / f"{etag}.ranges.incomplete"
    raw = partial.read_bytes()
    there = struct.unpack("<3Q", raw[-24:])
    assert raw[len(LARGE_DATA):] == numbers(there) and 0 < sum(there) < len(LARGE_DATA), there
    for i, n in enumerate(there):
        assert raw[i * RANGE:i * RANGE + n] == LARGE_DATA[i * RANGE:i * RANGE + n]
    hub.faults, hub.requests = [], []
    download(env, ID)
    check_cache(hub, env, {"config.json", LARGE})
    ends = [int(text.split("-")[1]) for text in WHOLE]
    assert ranges_of(hub, etag) == [f"bytes={i * RANGE + n}-{ends[i]}" for i, n in enumerate(there) if i * RANGE + n <= ends[i]]


def test_a_cut_range_is_asked_for_again(large, hub, env):
    etag, _ = large
    hub.faults = [lambda h, m, p, n: {"cut": 1 << 20} if n == 0 and h == "store" and m == "GET" else None]
    download(env, ID)
    check_cache(hub, env, {"config.json", LARGE})
    assert ranges_of(hub, etag) == [WHOLE[0], "bytes=1048576-33554431", *WHOLE[1:]]


@pytest.mark.parametrize("start", ["a beginning", "a wrong beginning", "wrong numbers", "wrong bytes", "whole", "another layout"])
def test_what_is_there_of_a_large_file(start, large, hub, env):
    """A beginning without holes that any program left, ranges of an earlier download, and what is neither."""
    etag, blobs = large
    size = len(LARGE_DATA)
    there = [RANGE, 0, size - 2 * RANGE]
    name, content = {
        "a beginning": (".incomplete", LARGE_DATA[:RANGE + 5]),
        "a wrong beginning": (".incomplete", bytes(RANGE + 5)),
        "wrong numbers": (".ranges.incomplete", LARGE_DATA + numbers([RANGE + 1, 0, 0])),
        "wrong bytes": (".ranges.incomplete", bytes(size) + numbers(there)),
        "whole": (".ranges.incomplete", LARGE_DATA + numbers([RANGE, RANGE, size - 2 * RANGE])),
        "another layout": (".ranges.incomplete", LARGE_DATA + b"x"),
    }[start]
    (blobs / (etag + name)).write_bytes(content)
    out = download(env, ID)
    check_cache(hub, env, {"config.json", LARGE})
    rest = ["bytes=33554437-67108863", WHOLE[2]]
    assert ranges_of(hub, etag) == {
        "a beginning": rest, "a wrong beginning": sorted([*rest, *WHOLE], key=lambda text: int(text[6:].split("-")[0])), "wrong numbers": WHOLE,
        "wrong bytes": sorted([WHOLE[1], *WHOLE], key=lambda text: int(text[6:].split("-")[0])), "whole": [], "another layout": WHOLE}[start]
    assert ("damaged" in out.stderr) == start.startswith(("a wrong", "wrong bytes"))


@pytest.mark.parametrize("cut", [None, 40 << 20])
def test_large_file_of_a_server_without_ranges(cut, large, hub, env):
    etag, blobs = large
    (blobs / f"{etag}.ranges.incomplete").write_bytes(LARGE_DATA + numbers([5, 0, 7]))
    hub.faults = [lambda h, m, p, n: {"no_range": True, "cut": cut if n == 0 else None} if h == "store" else None]
    download(env, ID)
    check_cache(hub, env, {"config.json", LARGE})
    assert len(hub.seen("GET", etag, "store")) == (1 if cut is None else 2)


def test_python_leaves_a_large_file_to_quire(large, hub, env):
    """huggingface_hub does not see ranges; what quire began is removed when it finds the other's blob."""
    pytest.importorskip("huggingface_hub")
    etag, blobs = large
    (blobs / f"{etag}.ranges.incomplete").write_bytes(LARGE_DATA + numbers([5, 0, 0]))
    assert python(env, ID).wait() == 0
    assert (blobs / etag).read_bytes() == LARGE_DATA
    (repo_dir(env) / "snapshots" / hub.repos[ID].commit / LARGE).unlink()
    download(env, ID)
    check_cache(hub, env, {"config.json", LARGE})


def test_wrong_checksum(hub, env, tmp_path):
    name = "model-00003-of-00003.safetensors"
    etag = hub.repos[ID].etag(name)
    hub.faults = [lambda h, m, p, n: {"data": bytes(len(FILES[name]))} if h == "store" and etag in p else None]
    refused(env, DISK, [name, "wrong checksum", etag], ID)
    assert not (repo_dir(env) / "blobs" / etag).exists() and not (repo_dir(env) / "blobs" / f"{etag}.incomplete").exists()
    assert not (repo_dir(env) / "refs/main").exists()
    hub.faults = [lambda h, m, p, n: {"data": b'{"architectures": ["LlamaForCausalXX"]}'} if m == "GET" and "config.json" in p else None]
    refused(env, DISK, ["config.json: wrong checksum"], ID, "--include", "config.json", "--download-dir", tmp_path / "fresh")
    hub.faults = []
    download(env, ID)
    check_cache(hub, env)


def test_disk_space(hub, env):
    hub.faults = [lambda h, m, p, n: {"more": {"X-Linked-Size": 10**15}} if m == "HEAD" and "model-00001" in p else None]
    refused(env, DISK, ["needs 1.00 PB", "B free", "--download-dir"], ID)
    assert not hub.seen("GET", "model-00001")


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "a//b", "./a", "a\\b", "a\nb", "x/" + "y" * 300, "a/.."])
def test_hostile_names(name, hub, env, tmp_path):
    hub.repos[ID] = Repo({**FILES, name: b"evil"})
    refused(env, DISK, ["no path inside of a folder"], ID)
    assert not hub.seen("HEAD") and not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("text, words", [
    ("", ["not valid JSON"]), ("[]", ["object"]), ('{"sha": "x"}', ["siblings"]), ('{"siblings": []}', ["sha"]),
    ('{"sha": "../x", "siblings": []}', ["sha"]), ('{"sha": "x", "siblings": [{"name": "a"}]}', ["siblings[0]", "rfilename"]),
    ('{"sha": "x", "siblings": [{"rfilename": "a\\u0000b"}]}', ["JSON"]),
    (json.dumps({"sha": "x", "siblings": [{"rfilename": f"f{i}"} for i in range(100_001)]}), ["100001 files", "100000"]),
])
def test_hostile_lists(text, words, hub, env):
    hub.faults = [lambda h, m, p, n: {"status": 200, "data": text.encode()} if "/api/" in p else None]
    refused(env, DISK, [ID, *words], ID)


@pytest.mark.parametrize("etag", ["../../evil", "", "a/b", "x" * 200, "-x"])
def test_hostile_etags(etag, hub, env):
    hub.faults = [lambda h, m, p, n: {"status": 200, "headers": {"ETag": f'"{etag}"'}} if m == "HEAD" else None]
    refused(env, NETWORK, ["has no ETag"], ID)


def test_renamed_repository_and_circles(hub, env):
    def moved(host, method, path, n):
        if path.startswith("/org/old/") or path.startswith("/api/models/org/old/"):
            return {"status": 307, "headers": {"Location": path.replace("org/old", ID)}}
        return None
    hub.faults = [moved]
    out = download(env, "org/old")
    assert files_of(out.stdout.strip()) == NEEDED
    hub.faults = [lambda h, m, p, n: {"status": 302, "headers": {"Location": p}}]
    refused(env, NETWORK, ["in a circle"], "org/other")


def test_json(hub, env):
    out = download(env, ID, "--json")
    lines = [json.loads(line) for line in out.stdout.splitlines()]
    assert {x["file"]: (x["size"], x["status"]) for x in lines if "file" in x} == {n: (len(FILES[n]), "downloaded") for n in NEEDED}
    assert lines[-1] == {"model": ID, "revision": "main", "commit": hub.repos[ID].commit, "files": len(NEEDED),
                         "downloaded_bytes": sum(len(FILES[n]) for n in NEEDED), "path": str(repo_dir(env) / "snapshots" / hub.repos[ID].commit)}


def test_waits_for_the_lock(hub, env):
    """A blob that another process writes is not loaded a second time."""
    name = "model-00001-of-00003.safetensors"
    etag = hub.repos[ID].etag(name)
    locks, blobs = repo_dir(env).parent / ".locks/models--org--tiny", repo_dir(env) / "blobs"
    locks.mkdir(parents=True)
    blobs.mkdir(parents=True)
    with open(locks / f"{etag}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen([str(BIN / "quire"), "download", ID], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while not (repo_dir(env) / "snapshots" / hub.repos[ID].commit / "model-00003-of-00003.safetensors").exists():
            time.sleep(0.01)
        assert process.poll() is None
        (blobs / f"{etag}.other").write_bytes(FILES[name])
        (blobs / f"{etag}.other").rename(blobs / etag)
    assert process.wait(60) == 0
    assert not hub.seen("GET", etag, "store")
    check_cache(hub, env)


def test_two_at_once(hub, env):
    processes = [subprocess.Popen([str(BIN / "quire"), "download", ID], env=env, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [p.wait(60) for p in processes] == [0] * 4
    check_cache(hub, env)
    for name in NEEDED:
        repo = hub.repos[ID]
        path = f"/blob/{repo.etag(name)}?signature=x" if repo.large(name) else f"/{ID}/resolve/{repo.commit}/{name}"
        assert sum(r[2] == path for r in hub.seen("GET")) == 1, name


PYTHON = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], max_workers=4, allow_patterns=sys.argv[2:] or None))
"""


def python(env, *args):
    return subprocess.Popen([sys.executable, "-c", PYTHON, *args], env=env, stdout=subprocess.PIPE, text=True)


def test_python_reads_what_quire_wrote(hub, env):
    pytest.importorskip("huggingface_hub")
    ours = download(env, ID).stdout
    code = ("import sys; from huggingface_hub import snapshot_download, try_to_load_from_cache, scan_cache_dir, _CACHED_NO_EXIST\n"
            f"print(snapshot_download('{ID}', local_files_only=True))\n"
            f"assert try_to_load_from_cache('{ID}', 'special_tokens_map.json') is _CACHED_NO_EXIST\n"
            "info = scan_cache_dir()\n"
            "assert not info.warnings, info.warnings\n"
            "[repo] = info.repos\n"
            "[revision] = repo.revisions\n"
            f"assert repo.repo_id == '{ID}' and revision.refs == {{'main'}}, repo\n"
            f"assert len(revision.files) == {len(NEEDED)}\n")
    out = subprocess.run([sys.executable, "-c", code], env={**env, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout == ours


def test_quire_reads_what_python_wrote(hub, env):
    pytest.importorskip("huggingface_hub")
    theirs = python(env, ID, *NEEDED)
    folder = theirs.communicate(timeout=120)[0]
    assert theirs.returncode == 0
    n_load = len(hub.seen("GET", host="store"))
    assert download(env, ID).stdout == folder
    assert len(hub.seen("GET", host="store")) == n_load
    assert files_of(folder.strip()) == NEEDED


def test_both_at_once(hub, env):
    pytest.importorskip("huggingface_hub")
    ours = subprocess.Popen([str(BIN / "quire"), "download", ID], env=env, stdout=subprocess.PIPE, text=True)
    theirs = python(env, ID, *NEEDED)
    assert ours.communicate(timeout=120)[0] == theirs.communicate(timeout=120)[0]
    assert ours.returncode == theirs.returncode == 0
    check_cache(hub, env)


def test_cache_ls(hub, env):
    assert quire(env, "cache", "ls").stdout.endswith("0 models, 0 B\n")
    download(env, ID)
    repo = hub.repos[ID]
    size = sum(len(FILES[n]) for n in NEEDED)
    text = quire(env, "cache", "ls")
    assert text.returncode == 0 and ID in text.stdout and repo.commit in text.stdout and "main" in text.stdout
    assert "kB" in text.stdout and "0.00" not in text.stdout, text.stdout
    [line] = quire(env, "cache", "ls", "--json").stdout.splitlines()
    assert json.loads(line) == {"model": ID, "path": str(repo_dir(env)), "bytes": size, "incomplete_bytes": 0, "revisions": [
        {"commit": repo.commit, "refs": "main", "files": len(NEEDED), "bytes": size}]}
    (repo_dir(env) / "blobs/x.incomplete").write_bytes(bytes(1000))
    assert json.loads(quire(env, "cache", "ls", ID, "--json").stdout)["incomplete_bytes"] == 1000
    assert quire(env, "cache", "ls", "org/none").returncode == MODEL
    for args in (("fly",), ("rm",), ("ls", "../x")):
        out = quire(env, "cache", *args)
        assert out.returncode == USAGE and out.stderr.startswith("quire cache: "), out


def test_cache_without_links(hub, env):
    """Files in snapshots, as huggingface_hub has them where links cannot be made or are switched off."""
    pytest.importorskip("huggingface_hub")
    theirs = python({**env, "HF_HUB_DISABLE_SYMLINKS": "1"}, ID, *NEEDED)
    snapshot = theirs.communicate(timeout=120)[0]
    assert not any(p.is_symlink() for p in repo_dir(env).rglob("*"))
    n = len(hub.seen("GET", host="store"))
    assert download(env, ID).stdout == snapshot and len(hub.seen("GET", host="store")) == n
    size = sum(len(FILES[name]) for name in NEEDED)
    found = json.loads(quire(env, "cache", "ls", "--json").stdout)
    assert found["bytes"] == found["revisions"][0]["bytes"] == size
    assert quire(env, "cache", "rm", ID, "--revision", "main").returncode == 0 and not repo_dir(env).exists()


def test_cache_rm(hub, env):
    repo = hub.repos[ID]
    download(env, ID)
    first = repo.commit
    repo.files = {**FILES, "config.json": b'{"new": 1}'}
    repo.revisions["main"] = repo.commit = "f" * 40
    download(env, ID)
    assert (repo_dir(env) / "refs/main").read_text() == "f" * 40
    lock = repo_dir(env).parent / ".locks/models--org--tiny" / (repo.etag("config.json") + ".lock")
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        out = quire(env, "cache", "rm", ID)
        assert out.returncode == 1 and "is being downloaded" in out.stderr
    assert quire(env, "cache", "rm", ID, "--revision", "v9").returncode == MODEL
    assert quire(env, "cache", "rm", ID, "--revision", first).returncode == 0
    check_cache(hub, env)  # blobs of the other revision are all there, and no other ones
    assert quire(env, "cache", "rm", ID, "--revision", "main").returncode == 0
    assert not repo_dir(env).exists()
    download(env, ID)
    assert quire(env, "cache", "rm", ID).returncode == 0 and not repo_dir(env).exists()
    assert quire(env, "cache", "rm", ID).returncode == MODEL


def share(cache, blob, known=True):
    """Move a blob into the store that huggingface_hub 2.4 has for files of all models."""
    name = "ab" + hashlib.sha256(blob.read_bytes()).hexdigest()[2:]
    stored, refs = cache / "blobs/ab" / name, cache / "blobs/ab" / f"{name}.refs"
    stored.parent.mkdir(parents=True, exist_ok=True)
    (cache / "blobs/.huggingface-shared-blobs").write_text("1\n")
    blob.rename(stored)
    blob.symlink_to(f"../../blobs/ab/{name}")
    if known:
        refs.write_text((refs.read_text() if refs.exists() else "") + f"{blob.relative_to(cache)}\n")
    return stored


def test_cache_rm_of_shared_blobs(hub, env):
    """A file of the store goes with the last model that links to it; one whose links are not known stays."""
    cache, other = repo_dir(env).parent, "org/other"
    hub.repos[other] = Repo(FILES)
    download(env, ID)
    download(env, other)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    etags = [hub.repos[ID].etag(name) for name in names]
    both = [share(cache, repo_dir(env, d) / "blobs" / etags[0]) for d in ("models--org--tiny", "models--org--other")][0]
    one, unknown = share(cache, repo_dir(env) / "blobs" / etags[1]), share(cache, repo_dir(env) / "blobs" / etags[2], known=False)
    assert json.loads(quire(env, "cache", "verify", ID, "--json").stdout)["verified"] == len(NEEDED)
    n = len(hub.seen("GET", host="store"))
    download(env, ID)
    assert len(hub.seen("GET", host="store")) == n
    assert quire(env, "cache", "rm", ID).returncode == 0
    assert both.exists() and not one.exists() and not one.with_name(one.name + ".refs").exists() and unknown.exists()
    assert quire(env, "cache", "verify", other).returncode == 0
    assert quire(env, "cache", "rm", other, "--revision", "main").returncode == 0
    assert not both.exists() and unknown.exists()


def test_cache_verify(hub, env):
    download(env, ID)
    good = quire(env, "cache", "verify")
    assert good.returncode == 0 and f"{ID}: {len(NEEDED)} files verified, 0 damaged" in good.stdout
    path = repo_dir(env) / "snapshots" / hub.repos[ID].commit / "model-00001-of-00003.safetensors"
    path.write_bytes(b"x" + FILES[path.name][1:])
    bad = quire(env, "cache", "verify", ID)
    assert bad.returncode == 1 and path.name in bad.stdout and "wrong checksum" in bad.stdout and f"quire cache rm {ID}" in bad.stdout
    report = json.loads(quire(env, "cache", "verify", "--json").stdout)
    assert (report["verified"], report["damaged"], report["without_checksum"]) == (len(NEEDED) - 1, 1, 0)


@pytest.fixture
def bundled(hub):
    """The bundled model on the hub."""
    if not (BUNDLED / "model.safetensors").exists():
        pytest.skip(f"the bundled model is not there: {BUNDLED}")
    hub.repos["org/bundled"] = Repo({p.name: p.read_bytes() for p in BUNDLED.iterdir() if p.is_file()})
    return "org/bundled"


def test_serve_of_an_id(bundled, hub, env, start):
    server = start(bundled, env=env)
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == bundled
    weights = hub.repos[bundled].etag("model.safetensors")
    assert len(hub.seen("GET", weights, "store")) == 1
    n = len(hub.requests)
    assert server.stop() == 0
    again = start(bundled, env=env)  # cached: the hub is not asked
    assert len(hub.requests) == n and again.stop() == 0
    hub.close()
    assert start(bundled, env={**env, "HF_HUB_OFFLINE": "1"}).stop() == 0


def test_adapters_of_ids(hub, env, start):
    """--lora-modules NAME=ORG/NAME: its two files are downloaded at the start; requests find what is cached, and download nothing."""
    files = {p.name: p.read_bytes() for p in (LORA / "llama-lora-r4").iterdir() if p.name.startswith("adapter_")}
    beside = {"README.md": b"x", "tokenizer.json": b"{}", "adapter_model.bin": b"pickle", "checkpoint-1/adapter_model.safetensors": b"x"}
    for name in ("org/r4", "org/later", "org/never"):
        hub.repos[name] = Repo({**files, **beside})
    options = ("--skip-tokenizer-init", "--num-gpu-blocks-override", "64", "--enable-lora", "--lora-modules")
    server = start(MODELS / "llama", *options, "one=org/r4", json.dumps({"name": "two", "path": "org/r4"}), env=env)
    assert {p.name for p in repo_dir(env, "models--org--r4").glob("snapshots/*/*")} == set(files)
    assert {m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]} >= {"one", "two"}
    n = len(hub.requests)
    status, text = server.post("/v1/load_lora_adapter", {"lora_name": "three", "lora_path": "org/later"})
    assert status == 404 and "requests start no download; download it with `quire download org/later" in json.dumps(text)
    assert len(hub.requests) == n
    download(env, "org/later", "--load-format", "adapter")
    connection, answer = server.raw("POST", "/v1/load_lora_adapter", {"lora_name": "three", "lora_path": "org/later"})
    assert answer.status == 200, answer.read()
    connection.close()
    assert server.stop() == 0
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    assert start(MODELS / "llama", *options, "one=org/r4", env=offline).stop() == 0
    refused = quire(offline, "serve", MODELS / "llama", "--port", "0", *options, "one=org/never")
    assert refused.returncode == MODEL and "--lora-modules one: org/never is neither a folder nor in the Hugging Face cache" in refused.stderr


def test_the_format_that_is_loaded_is_downloaded(bundled, hub, env):
    """safetensors are there too; a cached folder with these alone does not do."""
    files = dict(hub.repos[bundled].files)
    files["pytorch_model.bin"] = b"no weights"
    hub.repos[bundled] = Repo(files)
    assert quire(env, "generate", bundled, "Hello", "--max-tokens", "1").returncode == 0
    assert not hub.seen("GET", hub.repos[bundled].etag("pytorch_model.bin"), "store")
    wrong = quire(env, "generate", bundled, "Hello", "--max-tokens", "1", "--load-format", "pt")
    assert wrong.returncode == MODEL and "pytorch_model.bin" in wrong.stderr, wrong
    assert "downloading" in wrong.stderr


def test_verbs_download(bundled, hub, env):
    generate = quire(env, "generate", bundled, "What can you do?", "--max-tokens", "4")
    assert generate.returncode == 0 and generate.stdout, generate
    assert "downloading" in generate.stderr and "downloading" not in generate.stdout
    n = len(hub.requests)
    tokenize = subprocess.run([str(BIN / "quire"), "tokenize", bundled], input='{"text": "Hello"}\n', env=env, capture_output=True, text=True)
    assert tokenize.returncode == 0 and "ids" in tokenize.stdout, tokenize
    assert len(hub.requests) == n


def test_a_tokenizer_needs_no_weights(bundled, hub, env):
    out = subprocess.run([str(BIN / "quire"), "tokenize", bundled], input='{"text": "Hello"}\n', env=env, capture_output=True, text=True)
    assert out.returncode == 0, out
    assert not hub.seen("GET", "model.safetensors")
    assert quire(env, "generate", bundled, "Hi", "--max-tokens", "1").returncode == 0  # the rest
    assert len(hub.seen("GET", "model.safetensors", host="hub")) == 1


@pytest.mark.parametrize("verb", [("serve", "--port", "0"), ("generate", "x"), ("tokenize",), ("check-model",)])
def test_errors_of_other_verbs(verb, hub, env):
    """The downloader's error is the verb's one line."""
    for model, variables, words in (("org/none", {}, ["org/none does not exist"]),
                                    ("org/none", {"HF_HUB_OFFLINE": "1"}, ["neither a folder nor in", "`quire download org/none`"]),
                                    ("org/none", {"HF_ENDPOINT": "http://127.0.0.1:1"}, ["no connection to 127.0.0.1:1"])):
        out = quire({**env, **variables}, verb[0], model, *verb[1:])
        lines = out.stderr.splitlines()
        assert out.returncode == MODEL and len(lines) == 1, out
        for word in words:
            assert word in lines[0], lines


def test_no_network_and_no_tokenizer(hub, env, start):
    """A cached folder that lacks a tokenizer alone is used when the hub does not answer."""
    config = (MODELS / "llama/config.json").read_bytes()
    hub.repos[ID] = Repo({"config.json": config})
    download(env, ID, "--include", "config.json")
    (repo_dir(env) / ".no_exist" / hub.repos[ID].commit / "tokenizer.json").unlink()
    gone = {**env, "HF_ENDPOINT": "http://127.0.0.1:1"}
    server = start(ID, "--skip-tokenizer-init", "--load-format", "dummy", "--num-gpu-blocks-override", "64", env=gone)
    assert "has no tokenizer; " in server.process.log() and server.stop() == 0


def test_interrupted_serve(hub, env):
    """SIGTERM to the supervisor ends its download too; the next start goes on."""
    hub.repos[ID] = Repo(FILES)
    hub.faults = [lambda h, m, p, n: time.sleep(1.5) if h == "store" and m == "GET" and "x" in p and n == 0 else None]
    process = Process(BIN / "quire", "serve", ID, "--port", "0", env=env)
    while not hub.seen("GET", host="store"):
        time.sleep(0.01)
    process.process.send_signal(signal.SIGTERM)
    assert process.exit_code() != 0
    snapshot = repo_dir(env) / "snapshots"
    time.sleep(0.3)
    n = len(hub.requests)
    time.sleep(0.5)
    assert len(hub.requests) == n and not (repo_dir(env) / "refs/main").exists(), snapshot
