# SPDX-License-Identifier: Apache-2.0
"""deploy/container, deploy/kubernetes, deploy/systemd: their command lines, read out of the files, run as processes with the real programs.

Replaced in a command line are only places: the model, folders of keys, addresses, ports, and --shutdown-timeout, so that a busy
machine does not cut a drain off. Containers and systemd themselves are not needed (tests/containers.sh builds and runs the image)."""
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time

import pytest
import yaml

from hub_server import Hub, Repo
from servers import BIN, BUNDLED, HANG_S, ROOT, Http, Process

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "container/compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OBJECTS = [o for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for o in yaml.safe_load_all(path.read_text())]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CONTAINERFILE = (DEPLOY / "container/Containerfile").read_text()
HEALTHCHECK = DEPLOY / "container/healthcheck"
CONFIG = next(o for o in OBJECTS if o["kind"] == "ConfigMap")["data"]
TINY_BLOCKS = {"QUIRE_NUM_GPU_BLOCKS_OVERRIDE": "512", "QUIRE_HEARTBEAT_MS": "200"}


# ---- what the files say ----

def kind(name):
    return {o["metadata"]["name"]: o for o in OBJECTS if o["kind"] == name}


def pod(name):
    return kind("Deployment")[name]["spec"]["template"]["spec"]


def of_compose(name):
    """The words behind `quire` of a service."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in SERVICES[name]["command"]]


def of_pod(container):
    return [re.sub(r"\$\((\w+)\)", lambda m: CONFIG[m[1]], word) for word in container["args"]]


def unit(path):
    """Sections of (key, value) lists."""
    found, section = {}, None
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, value = line.split("=", 1)
            section.setdefault(key, []).append(value)
    return found


def of_unit(path):
    words = shlex.split(unit(path)["Service"]["ExecStart"][0])
    assert words[0] == "/usr/local/bin/quire"
    return words[1:]


def env_file():
    """quire.env, and what it shows commented out."""
    text = (DEPLOY / "systemd/quire.env").read_text()
    return {k: v for k, v in re.findall(r"^([A-Z_]+)=(.*)$", text, re.M)}, re.findall(r"^#?([A-Z_]+)=", text, re.M)


def of_readmes():
    """(file, words) of every example with `quire VERB`, also behind docker run."""
    for path in sorted(DEPLOY.glob("*/README.md")):
        if path.parent.name not in ("container", "kubernetes", "systemd"):
            continue
        text = path.read_text()
        lines = re.findall(r"^    (.*)", text, re.M) + re.findall(r"`([^`]*\n?[^`]*)`", text)
        for line in lines:
            line = re.split(r"\s+#|\s+>>|\s+&&", " ".join(line.split()))[0]
            if match := re.search(r"(?:^|\bquire(?:-cache:\S+)? |\S+/quire:\S+ )(?:quire )?\b(serve|keygen|download|cache|engine|frontend) (.*)", line):
                yield path.parent.name, [match[1], *shlex.split(match[2])]


COMMANDS = [
    *[(f"compose {name}", of_compose(name)) for name in ("engine", "frontend", "serve")],
    ("compose keys", ["keygen", "keys"]),
    *[(f"{name} {c['name']}", of_pod(c)) for name in kind("Deployment") for c in pod(name).get("initContainers", []) + pod(name)["containers"]],
    *[(path.name, of_unit(path)) for path in UNITS],
    ("Containerfile", json.loads(re.search(r"^CMD (.*)", CONTAINERFILE, re.M)[1])),
    *of_readmes(),
]


# ---- command lines ----

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Place:
    """A machine's places for the command lines of one test, in a folder."""

    def __init__(self, folder, model=BUNDLED):
        self.folder, self.model, self.engine, self.http = folder, model, free_port(), free_port()
        (folder / "api-keys").write_text("sk-alice name=alice\n")
        (folder / "api-keys").chmod(0o600)

    def word(self, word):
        for old, new in {"/usr/local/share/quire/quire-tiny": str(self.model), "Qwen/Qwen3-0.6B": str(self.model), "ORG/NAME": str(self.model),
                         "/etc/quire/keys": str(self.folder / "keys"), "/etc/quire/api/api-keys": str(self.folder / "api-keys"),
                         "deploy/kubernetes/keys": str(self.folder / "new"), "/out/keys": str(self.folder / "new"),
                         "ipc:///run/quire/engine": f"ipc://{self.folder}/engine",
                         "/etc/quire/api-keys": str(self.folder / "api-keys")}.items():
            if word == old:
                return new
        return re.sub(r"^tcp://[\w.-]+:5555$", f"tcp://127.0.0.1:{self.engine}", word)

    def words(self, words, port=None):
        out = [self.word(w) for w in words]
        for flag, value in (("--port", str(port or self.http)), ("--host", "127.0.0.1"), ("--shutdown-timeout", "3600")):
            if flag in out:
                out[out.index(flag) + 1] = value
        return out

    def keygen(self):
        subprocess.run([BIN / "quire", "keygen", self.folder / "keys"], check=True, stdout=subprocess.DEVNULL)


def environment(**more):
    """Without options of the person's own."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(("QUIRE_", "HF_")) or k == "QUIRE_BIN"}, **more}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def begin(place):
    """begin(words, port=, **variables) -> Process of `quire WORDS` in the place's folder, killed at the end of the test."""
    processes = []

    def start(words, port=None, **more):
        command = ["env", "-C", place.folder, *(f"{k}={v}" for k, v in {**TINY_BLOCKS, **more}.items()), BIN / "quire", *place.words(words, port)]
        processes.append(Process(*command))
        return processes[-1]
    yield start
    for process in reversed(processes):
        process.process.kill()
        process.exit_code()


def test_each_file_has_command_lines():
    """What the next test reads is what there is."""
    assert len([w for w, _ in COMMANDS if w.startswith("compose")]) == len(SERVICES)
    assert sum(w.endswith(".service") for w, _ in COMMANDS) == len(UNITS) == 3
    assert {"container", "kubernetes", "systemd"} <= {w for w, _ in COMMANDS}, COMMANDS
    assert {words[0] for _, words in COMMANDS} == {"serve", "engine", "frontend", "keygen", "download", "cache"}


@pytest.mark.parametrize("where, words", COMMANDS, ids=[f"{w} {c[0]} {i}".replace(" ", "-") for i, (w, c) in enumerate(COMMANDS)])
def test_every_command_line_is_accepted(place, begin, where, words):
    """Engine and frontend check all that is possible before listening; serve starts; the others do what they do."""
    verb = words[0]
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(place.folder / "home")}
    if where.endswith(".service"):
        variables.update(unit_variables(place, DEPLOY / "systemd" / where))
    if verb != "keygen":
        place.keygen()
    if verb == "serve":
        process = begin(words, **variables)
        process.wait_line("listening on http://")
        assert process.stop() == 0, process.log()
        return
    if verb in ("engine", "frontend"):
        variables["QUIRE_CHECK"] = "1"
    process = begin(words, **variables)
    code = process.exit_code()
    if verb == "download":  # its command line is read before; test_pods_download_and_serve has a hub
        assert code == 4 and "HF_HUB_OFFLINE is set, so nothing is downloaded" in process.log(), process.log()
    else:
        assert code == 0, process.log()


@pytest.mark.parametrize("word", ("--shutdown-timeouts", "--no-such-option"))
def test_a_command_line_that_is_not(begin, word):
    """The check above would see a word that is no option."""
    process = begin([*of_compose("engine"), word], QUIRE_CHECK="1")
    assert process.exit_code() == 2 and f"unknown option {word}" in process.log()


def option_variables():
    flags = re.findall(r'^OPT\(\w+, "--([a-z0-9-]+)"', (ROOT / "common/options.def").read_text(), re.M)
    return {"QUIRE_" + f.replace("-", "_").upper() for f in flags}


def test_variables_are_options():
    names = [n for n in env_file()[1] if n != "HF_TOKEN"] + list(CONFIG)
    names += re.findall(r"\b(QUIRE_[A-Z_]+)=", CONTAINERFILE + "".join(p.read_text() for p in UNITS))
    for page in DEPLOY.glob("*/README.md"):
        if page.parent.name in ("container", "kubernetes", "systemd"):
            names += re.findall(r"-e (QUIRE_[A-Z_]+)=", page.read_text())
    of_compose_file = {"QUIRE_MODEL", "QUIRE_PORTS"}  # of compose.yaml, in the shell of the person
    assert len(names) > 10 and set(names) - of_compose_file <= option_variables(), set(names) - option_variables()


# ---- the image ----

def words_after(instruction):
    return re.findall(rf"^{instruction} (.*)", CONTAINERFILE, re.M)


def test_the_image_and_its_users_agree():
    version = re.search(r"project\(quire VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert f"ARG VERSION={version}" in CONTAINERFILE
    assert next(o for o in OBJECTS if o["kind"] == "Kustomization")["images"] == [{"name": "registry.example.com/quire", "newTag": version}]
    [user] = words_after("USER")
    assert user == "10001:10001" and words_after("STOPSIGNAL") == ["SIGTERM"] and words_after("EXPOSE") == ["8000"]
    assert json.loads(words_after("ENTRYPOINT")[0]) == ["quire"]
    [volume] = words_after("VOLUME")
    assert f"HF_HOME={volume}/" in CONTAINERFILE and f"XDG_CACHE_HOME={volume} " in CONTAINERFILE
    for name in kind("Deployment"):
        assert f"{pod(name)['securityContext']['runAsUser']}:{pod(name)['securityContext']['runAsGroup']}" == user
        for c in pod(name)["initContainers"] + pod(name)["containers"]:
            assert volume in [m["mountPath"] for m in c["volumeMounts"]] and c["image"] == "registry.example.com/quire"
    for name in ("engine", "frontend", "serve"):
        assert f"cache:{volume}" in SERVICES[name]["volumes"]


def test_the_context_is_enough(tmp_path):
    """What .dockerignore lets through has what the Containerfile copies, and cmake configures it."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    admitted, excluded = [r[2:] for r in rules if r.startswith("!/")], [r[1:] for r in rules if r.startswith("/")]
    assert rules[0] == "*" and admitted and excluded and all(r[:2] in ("*", "!/", "**") or r[0] == "/" for r in rules)
    for path in admitted:
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, tmp_path / path, ignore=lambda folder, names: {
                n for n in names if n == "__pycache__" or os.path.relpath(os.path.join(folder, n), ROOT) in excluded})
        else:
            shutil.copy(ROOT / path, tmp_path / path)
    copied = [w for line in words_after("COPY") if "--from" not in line for w in line.split()[:-1]]
    assert len(copied) > 4 and all((tmp_path / w).exists() for w in copied)
    done = subprocess.run(["cmake", "--preset", "release"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def routes():
    return re.findall(r'^ROUTE\(GET, "([^"]+)", PUBLIC', (ROOT / "frontend/api/routes.def").read_text(), re.M)


def test_probes_are_routes_that_need_no_key():
    paths = [p["httpGet"]["path"] for c in pod("quire-frontend")["containers"] for n, p in c.items() if n.endswith("Probe")]
    paths += [w for s in SERVICES.values() for w in s.get("healthcheck", {}).get("test", []) if w.startswith("/")]
    paths += json.loads(re.search(r"^HEALTHCHECK .*CMD (.*)", CONTAINERFILE, re.M)[1])[1:]
    assert len(paths) == 6 and set(paths) == {"/health", "/ready"} <= set(routes())
    c = pod("quire-frontend")["containers"][0]
    assert c["livenessProbe"]["httpGet"]["path"] == c["startupProbe"]["httpGet"]["path"] == "/health" != c["readinessProbe"]["httpGet"]["path"]


# ---- agreement between the files ----

def flag(words, name):
    return words[words.index(name) + 1]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s?", str(text))[1])


def test_ports_agree():
    engine, frontend = (pod(f"quire-{n}")["containers"][0] for n in ("engine", "frontend"))
    ports = {p["name"]: p["containerPort"] for c in (engine, frontend) for p in c["ports"]}
    assert flag(of_pod(engine), "--listen").endswith(f":{ports['engine']}") and flag(of_pod(frontend), "--port") == str(ports["http"])
    services = kind("Service")
    assert flag(of_pod(frontend), "--engine") == f"tcp://quire-engine:{services['quire-engine']['spec']['ports'][0]['port']}"
    used = [p["targetPort"] for s in services.values() for p in s["spec"]["ports"]]
    used += [p["port"] for n in kind("NetworkPolicy").values() for way in n["spec"]["ingress"] for p in way["ports"]]
    used += [(p.get("httpGet") or p["tcpSocket"])["port"] for c in (engine, frontend) for n, p in c.items() if n.endswith("Probe")]
    assert set(used) == set(ports)
    annotations = kind("Deployment")["quire-frontend"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["http"]) and annotations["prometheus.io/path"] == "/metrics"
    assert kind("ServiceMonitor")["quire"]["spec"]["endpoints"][0]["port"] == services["quire"]["spec"]["ports"][0]["name"] == "http"
    address = flag(of_compose("engine"), "--listen")
    assert flag(of_compose("frontend"), "--engine") == address.replace("0.0.0.0", "engine")
    assert SERVICES["engine"]["healthcheck"]["test"][1:] == ["healthcheck", "tcp", address.rsplit(":", 1)[1]]
    for name in ("frontend", "serve"):
        [published] = SERVICES[name]["ports"]
        assert published.endswith(":" + flag(of_compose(name), "--port"))
    assert unit(UNITS[0])["Service"]["Environment"] and {v.split("=", 1)[1] for p in UNITS for v in unit(p)["Service"]["Environment"]
                                                         if v.startswith(("QUIRE_LISTEN=", "QUIRE_ENGINE="))} == {"ipc:///run/quire/engine"}


def test_selectors_find_pods():
    labels = [d["spec"]["template"]["metadata"]["labels"] for d in kind("Deployment").values()]
    assert all(d["spec"]["selector"]["matchLabels"] == d["spec"]["template"]["metadata"]["labels"] for d in kind("Deployment").values())
    selectors = [s["spec"]["selector"] for s in kind("Service").values()]
    selectors += [p["spec"]["selector"]["matchLabels"] for p in kind("PodDisruptionBudget").values()]
    selectors += [p["spec"]["podSelector"]["matchLabels"] for p in kind("NetworkPolicy").values()]
    assert len(selectors) == 5 and all(s in labels for s in selectors)
    listed = next(o for o in OBJECTS if o["kind"] == "Kustomization")["resources"]
    assert sorted(listed) == sorted(p.name for p in (DEPLOY / "kubernetes").glob("*.yaml") if p.name not in ("kustomization.yaml", "servicemonitor.yaml"))


def test_time_to_drain():
    """What ends a process by force waits longer than the process itself, which kills its children 5 s after its timeout."""
    for name in ("engine", "frontend", "serve"):
        assert seconds(SERVICES[name]["stop_grace_period"]) > seconds(flag(of_compose(name), "--shutdown-timeout")) + 5
    for name in kind("Deployment"):
        [c] = pod(name)["containers"]
        before = int(c.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0, 0])[1])
        assert pod(name)["terminationGracePeriodSeconds"] > before + seconds(flag(of_pod(c), "--shutdown-timeout")) + 5
    for path in UNITS:
        assert seconds(unit(path)["Service"]["TimeoutStopSec"][0]) > seconds(flag(of_unit(path), "--shutdown-timeout")) + 5
    default = re.search(r'"--shutdown-timeout", INT, "(\d+)"', (ROOT / "common/options.def").read_text())[1]
    page = (DEPLOY / "container/README.md").read_text()
    assert all(int(s) > int(default) + 5 for s in re.findall(r"--stop-timeout (\d+)", page)) and "--stop-timeout" in page


def test_pods_are_locked():
    for name in kind("Deployment"):
        spec = pod(name)
        assert spec["enableServiceLinks"] is False and spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for c in spec["initContainers"] + spec["containers"]:
            assert c["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert "/tmp" in [m["mountPath"] for m in c["volumeMounts"]] and c["resources"]["limits"]["memory"]
    engine = kind("Deployment")["quire-engine"]["spec"]
    assert engine["strategy"] == {"type": "Recreate"} and engine["replicas"] == 1 and kind("Deployment")["quire-frontend"]["spec"]["replicas"] > 1
    assert all(c["resources"]["requests"] == c["resources"]["limits"] for c in pod("quire-engine")["initContainers"] + pod("quire-engine")["containers"])
    for s in SERVICES.values():
        assert s["read_only"] and s["cap_drop"] == ["ALL"] and s["tmpfs"] == ["/tmp"]


def test_each_side_has_the_keys_it_needs(place):
    """Of the secrets' files alone the programs start."""
    place.keygen()
    secrets = {s["name"]: s["files"] for s in next(o for o in OBJECTS if o["kind"] == "Kustomization")["secretGenerator"]}
    mode = {v["secret"]["defaultMode"] for n in kind("Deployment") for v in pod(n)["volumes"] if "secret" in v}
    assert mode == {0o440} and {v["secret"]["secretName"] for n in kind("Deployment") for v in pod(n)["volumes"] if "secret" in v} == set(secrets)
    for name in ("engine", "frontend"):
        folder = place.folder / name
        folder.mkdir()
        for file in secrets[f"quire-{name}-keys"]:
            shown = folder / pathlib.Path(file).name
            shown.write_bytes((place.folder / "keys" / shown.name).read_bytes())
            shown.chmod(0o440)
    address = f"tcp://127.0.0.1:{place.engine}"
    engine = Process(BIN / "quire", "engine", BUNDLED, "--listen", address, "--keys", place.folder / "engine", "--num-gpu-blocks-override", "256")
    frontend = Process(BIN / "quire", "frontend", BUNDLED, "--engine", address, "--keys", place.folder / "frontend", "--port", "0")
    try:
        engine.wait_line("listening on tcp://")
        frontend.wait_line("frontend: ready")
    finally:
        frontend.stop()
        engine.stop()
    assert "/deploy/kubernetes/keys/" in (ROOT / ".gitignore").read_text().splitlines()


# ---- the topology of compose.yaml, as processes ----

def healthy(test, port):
    """The exit status of a service's check (its own script) is 0."""
    assert test[:2] == ["CMD", "healthcheck"]
    words = [str(port) if w == "5555" else w for w in test[2:]]
    return subprocess.run([HEALTHCHECK, *words], env=environment(QUIRE_PORT=str(port)), capture_output=True, timeout=HANG_S).returncode == 0


def wait_healthy(service, port, want=True):
    deadline = time.monotonic() + HANG_S
    while healthy(SERVICES[service]["healthcheck"]["test"], port) != want:
        assert time.monotonic() < deadline, f"{service} did not become {'healthy' if want else 'unhealthy'}"
        time.sleep(0.05)


def make_keys(place):
    """The service `keys`, whose shell finds `quire` in the PATH as in the image."""
    [script] = SERVICES["keys"]["command"]
    (place.folder / "bin").mkdir(exist_ok=True)
    if not (place.folder / "bin/quire").exists():
        (place.folder / "bin/quire").write_text(f'#!/bin/sh\nexec {shlex.quote(str(BIN / "quire"))} "$@"\n')
        (place.folder / "bin/quire").chmod(0o755)
    return subprocess.run([*SERVICES["keys"]["entrypoint"], script], cwd=place.folder, check=True, capture_output=True, text=True,
                          env=environment(PATH=f"{place.folder}/bin:{os.environ['PATH']}")).stdout


BODY = {"prompt": [4, 5, 6], "max_tokens": 300, "ignore_eos": True, "seed": 1, "temperature": 1, "return_token_ids": True}
SLOW = {"QUIRE_LOAD_FORMAT": "dummy", "QUIRE_SKIP_TOKENIZER_INIT": "1"}


def ids_of(event):
    return event["choices"][0].get("token_ids") or [] if isinstance(event, dict) and event["choices"] else []


def test_compose_services(place, begin, large):
    """Keys once; the engine is healthy, then two frontends; the engine is killed under a stream and started again; a frontend drains."""
    assert SERVICES["frontend"]["deploy"]["replicas"] == 2
    place.model = large
    assert "keys created" in make_keys(place)
    before = (place.folder / "keys/engine.key").read_text()
    assert make_keys(place) == "" and (place.folder / "keys/engine.key").read_text() == before

    assert SERVICES["engine"]["depends_on"]["keys"]["condition"] == "service_completed_successfully"
    assert not healthy(SERVICES["engine"]["healthcheck"]["test"], place.engine)
    engine = begin(of_compose("engine"), **SLOW)
    wait_healthy("engine", place.engine)
    assert SERVICES["frontend"]["depends_on"]["engine"]["condition"] == "service_healthy"
    ports = [free_port(), free_port()]
    frontends = [begin(of_compose("frontend"), port=p, **SLOW) for p in ports]
    servers = [Http(f"http://127.0.0.1:{p}") for p in ports]
    for port in ports:
        wait_healthy("frontend", port)
    for _ in range(20):
        assert healthy(SERVICES["engine"]["healthcheck"]["test"], place.engine)
    assert "WARN" not in engine.log(), engine.log()  # checks are no failed handshakes

    want = servers[1].post("/v1/completions", BODY)[1]["choices"][0]["token_ids"]
    stream = servers[0].events("/v1/completions", BODY)
    got = [i for event in itertools.islice(stream, 3) for i in ids_of(event)]
    engine.process.send_signal(signal.SIGKILL)
    engine.exit_code()
    for port in ports:
        wait_healthy("frontend", port, want=False)
        assert subprocess.run([HEALTHCHECK, "/health"], env=environment(QUIRE_PORT=str(port)), timeout=HANG_S).returncode == 0
    assert not healthy(SERVICES["engine"]["healthcheck"]["test"], place.engine)
    begin(of_compose("engine"), **SLOW)  # `restart: unless-stopped`
    assert SERVICES["engine"]["restart"] == "unless-stopped"
    got += [i for event in stream for i in ids_of(event)]
    assert got == want and len(got) == BODY["max_tokens"] and servers[0].metric("quire:requests_resubmitted_total") > 0
    for port in ports:
        wait_healthy("frontend", port)

    stream = servers[0].events("/v1/completions", BODY)
    got = [i for event in itertools.islice(stream, 1) for i in ids_of(event)]
    frontends[0].process.send_signal(getattr(signal, words_after("STOPSIGNAL")[0]))
    frontends[0].wait_line("terminated: accepting no new requests")
    got += [i for event in stream for i in ids_of(event)]
    assert got == want and frontends[0].exit_code() == 0
    assert not healthy(SERVICES["frontend"]["healthcheck"]["test"], ports[0])
    assert servers[1].post("/v1/completions", BODY)[1]["choices"][0]["token_ids"] == want


def test_compose_serve(place, begin):
    server = begin(of_compose("serve"))
    wait_healthy("serve", place.http)
    answer = Http(f"http://127.0.0.1:{place.http}").complete("Hello", max_tokens=2, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 2
    assert server.stop() == 0


def test_health_check_of_what_is_no_server(place):
    with socket.socket() as s:  # accepts, and says nothing
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        script = HEALTHCHECK.read_text().replace("wait_s=5", "wait_s=1")
        for words in (["tcp", str(port)], ["/ready"]):
            done = subprocess.run(["bash", "-c", script, "healthcheck", *words], env=environment(QUIRE_PORT=str(port)), capture_output=True, timeout=HANG_S)
            assert done.returncode != 0, words
    assert os.access(HEALTHCHECK, os.X_OK)


# ---- the pods, as processes ----

def test_pods_download_and_serve(place, begin):
    """Init containers fill each pod's cache from a hub; then engine and frontend need none, the frontend without weights."""
    hub = Hub()
    hub.repos[CONFIG["QUIRE_MODEL"]] = Repo({p.name: p.read_bytes() for p in BUNDLED.iterdir() if p.name != "README.md"})
    place.model = CONFIG["QUIRE_MODEL"]
    place.keygen()
    try:
        for name in ("engine", "frontend"):
            [c] = pod(f"quire-{name}")["initContainers"]
            assert c["envFrom"] == [{"configMapRef": {"name": "quire"}}]
            loaded = begin(of_pod(c), HF_HOME=place.folder / name, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="", **CONFIG)
            assert loaded.exit_code() == 0, loaded.log()
    finally:
        hub.close()
    assert not list((place.folder / "frontend").rglob("*.safetensors")) and list((place.folder / "engine").rglob("*.safetensors"))
    for name in ("engine", "frontend"):
        [c] = pod(f"quire-{name}")["containers"]
        variables = {v["name"]: v["value"] for v in c["env"]}
        assert variables == {"HF_HUB_OFFLINE": "1"} and c["envFrom"] == [{"configMapRef": {"name": "quire"}}]
        process = begin(of_pod(c), HF_HOME=place.folder / name, **CONFIG, **variables)
    process.wait_line('"message":"ready"')
    server = Http(f"http://127.0.0.1:{place.http}")
    assert server.get("/health")[0] == server.get("/ready")[0] == server.get("/metrics")[0] == 200 and server.get("/v1/models")[0] == 401
    alice = Http(server.url, key="sk-alice")
    assert json.loads(alice.get("/v1/models")[1])["data"][0]["id"] == CONFIG["QUIRE_MODEL"]
    assert alice.complete("Hello", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


# ---- the units, as processes ----

def unit_variables(place, path):
    """Environment= and then EnvironmentFile=, as systemd has them."""
    service = unit(path)["Service"]
    out = dict(w.split("=", 1) for line in service["Environment"] for w in shlex.split(line) if not w.startswith(("HOME=", "XDG_", "HF_")))
    out.update(env_file()[0])
    out = {k: place.word(v) for k, v in out.items()}
    return {**out, "QUIRE_PORT": str(place.http)}


def test_units_as_services(place, begin):
    """An engine and two instances of the frontend on one port, of which one is stopped."""
    engine_unit, frontend_unit = DEPLOY / "systemd/quire-engine.service", DEPLOY / "systemd/quire-frontend@.service"
    engine = begin(of_unit(engine_unit), **unit_variables(place, engine_unit))
    frontends = [begin(of_unit(frontend_unit), **unit_variables(place, frontend_unit)) for _ in range(2)]
    for f in frontends:
        f.wait_line("frontend: ready")
    server = Http(f"http://127.0.0.1:{place.http}")
    for f in frontends:
        assert server.complete("Hello", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2
        assert f.stop() == 0
    assert engine.stop() == 0


def test_exit_codes_of_the_units(place, begin):
    """What a unit does not restart after is what the programs end with where a restart changes nothing."""
    for path in UNITS:
        service = unit(path)["Service"]
        assert service["Restart"] == ["on-failure"] and service["RestartPreventExitStatus"] == ["2 3 5 127"] and service["KillMode"] == ["mixed"]
    codes = dict(re.findall(r"SERVER_EXIT_(\w+) = (\d+)", (ROOT / "engine/server/server.h").read_text()))
    assert {codes[n] for n in ("USAGE", "LOAD", "ADDRESS")} == {"2", "3", "5"} and {codes[n] for n in ("WORKER", "INTERNAL", "HANGS")} == {"4", "6", "7"}
    engine_unit = DEPLOY / "systemd/quire-engine.service"
    variables = unit_variables(place, engine_unit)
    for changed, code in (({"QUIRE_MODEL": str(place.folder / "nothing")}, 3), ({"QUIRE_LISTEN": "ipc:///proc/none/engine"}, 5),
                          ({"QUIRE_MAX_NUM_SEQS": "many"}, 2)):
        assert begin(of_unit(engine_unit), **{**variables, **changed}).exit_code() == code, changed


@pytest.mark.parametrize("path", UNITS, ids=[p.name for p in UNITS])
def test_systemd_finds_no_fault(path, tmp_path):
    """systemd-analyze comes with the Debian package systemd (deploy/deps.sh test), and needs no running systemd."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/usr/local/bin/quire", str(BIN / "quire")))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0 and done.stdout + done.stderr == "", done
    assert re.search(r"^u quire - ", (DEPLOY / "systemd/quire.conf").read_text(), re.M) and unit(path)["Service"]["User"] == ["quire"]
