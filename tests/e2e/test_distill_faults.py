# SPDX-License-Identifier: Apache-2.0
"""quire distill while processes of it die: ranks at random moments and more than once, the launcher, ranks of mpirun. The final
weights are always those of an undisturbed run, bit for bit."""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest

from distill_runs import Run

STEPS = 60
# a state after each step: much of the time is spent in writing one, and deaths come then as well
OPTIONS = {"steps": STEPS, "warmup_steps": 10, "save_steps": None, "save_gradients": None, "state_every": 1, "no_shuffle": None,
           "micro_batch_size": 1}
CASE = "tied_fkl_T2_ce05_ragged"
SIZES = {
    "2 stages": {"pipeline_parallel_size": 2},
    "3 stages, teacher on 2": {"pipeline_parallel_size": 3, "teacher_pipeline_parallel_size": 2},
    "2 replicas": {"data_parallel_size": 2},
    "2 virtual stages a rank": {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2},
    "2 tensor ranks": {"tensor_parallel_size": 2},
    "hidden states, teacher on 2 tensor ranks": {"teacher_tensor_parallel_size": 2, "hidden_loss": "cosine"},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Final weights for some sizes, computed once."""
    folder, known = tmp_path_factory.mktemp("undisturbed"), {}

    def weights(sizes):
        if sizes not in known:
            run = Run(folder, CASE, sizes.replace(" ", "-"))
            run.go(**OPTIONS, **SIZES[sizes])
            known[sizes] = run.weight_bytes(STEPS)
        return known[sizes]
    return weights


def children(pid):
    try:
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def gone(pid):
    """The process has ended; it may wait to be reaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{seconds} s without: {what}"
        time.sleep(0.002)


def n_line(run):
    return run.metrics.read_text().count("\n") if run.metrics.exists() else 0


@pytest.mark.parametrize(("sizes", "seed"), [(sizes, seed) for seed, sizes in enumerate(SIZES)])
def test_ranks_that_die_at_random_moments(tmp_path, undisturbed, sizes, seed):
    chance, run, n_killed = random.Random(seed), Run(tmp_path, CASE), 0
    process = run.start(**OPTIONS, **SIZES[sizes], max_restarts=9)
    for _ in range(4):
        ranks = children(process.pid)
        wanted = n_line(run) + chance.randint(1, STEPS // 6)
        wait_until(lambda wanted=wanted: process.poll() is not None or n_line(run) >= wanted, f"step {wanted}")
        time.sleep(chance.random() * 0.05)
        if process.poll() is not None:
            break
        victim = chance.choice(children(process.pid) or ranks)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            n_killed += 1
        wait_until(lambda victim=victim: victim not in children(process.pid), "the dead rank is noticed")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert n_killed > 0 and err.count("was ended by signal 9") in (n_killed, n_killed - 1), err  # the last one may have been done
    assert run.weight_bytes(STEPS) == undisturbed(sizes)
    assert [line["step"] for line in run.lines()] == list(range(1, STEPS + 1))


def test_a_dead_launcher_leaves_no_rank(tmp_path, undisturbed):
    run = Run(tmp_path, CASE)
    process = run.start(**OPTIONS, **SIZES["2 stages"])
    wait_until(lambda: n_line(run) >= 20, "20 steps")
    ranks = children(process.pid)
    process.kill()
    process.communicate(timeout=30)
    assert len(ranks) == 2
    wait_until(lambda: all(gone(pid) for pid in ranks), "the ranks end with their launcher")
    run.go(**OPTIONS, **SIZES["2 stages"])
    assert run.weight_bytes(STEPS) == undisturbed("2 stages")


def test_more_deaths_than_restarts_end_the_run_with_their_cause(tmp_path, undisturbed):
    run = Run(tmp_path, CASE)
    process = run.start(**OPTIONS, **SIZES["2 stages"], max_restarts=1)
    for _ in range(2):
        wanted = n_line(run) + 5
        wait_until(lambda wanted=wanted: n_line(run) >= wanted, f"step {wanted}")
        victim = children(process.pid)[1]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda victim=victim: victim not in children(process.pid), "the dead rank is noticed")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL, err
    assert err.count("rank 1 was ended by signal 9 (Killed)") == 2 and "1 restarts have not helped" in err
    run.go(**OPTIONS, **SIZES["2 stages"])
    assert run.weight_bytes(STEPS) == undisturbed("2 stages")


# ---- mpirun ----

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
NEEDS_MPIRUN = pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun (Debian: openmpi-bin)")


def start_mpirun(run, n, **changes):
    environment = os.environ | {"OMPI_MCA_plm_rsh_agent": "/bin/false"}
    return subprocess.Popen([*MPIRUN, "-np", str(n), *run.command(**changes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


@NEEDS_MPIRUN
@pytest.mark.parametrize("sizes", ["3 stages, teacher on 2", "2 replicas"])
def test_mpirun_gives_the_same_bits(tmp_path, undisturbed, sizes):
    run = Run(tmp_path, CASE)
    process = start_mpirun(run, 2 if sizes == "2 replicas" else 3, **OPTIONS, **SIZES[sizes])
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert run.weight_bytes(STEPS) == undisturbed(sizes)


@NEEDS_MPIRUN
def test_a_dead_rank_of_mpirun_ends_the_run_and_it_resumes(tmp_path, undisturbed):
    run = Run(tmp_path, CASE)
    process = start_mpirun(run, 2, **OPTIONS, **SIZES["2 stages"])
    wait_until(lambda: n_line(run) >= 10, "10 steps")
    os.kill(children(process.pid)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0, err
    process = start_mpirun(run, 2, **OPTIONS, **SIZES["2 stages"])
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert run.weight_bytes(STEPS) == undisturbed("2 stages")


# ---- two machines: network namespaces with a cable between them, each with a host name of its own ----

ADDRESSES = ["10.77.18.1", "10.77.18.2"]


def enter(pid, *command):
    return ["nsenter", "-t", str(pid), "-n", "-u", *map(str, command)]


@pytest.fixture
def machines():
    """Processes in whose namespaces the programs of a machine run."""
    holders = []
    try:
        for i in range(2):
            holders.append(subprocess.Popen(["unshare", "-n", "-u", "sh", "-c", f"hostname quire{i} && echo up && exec sleep 600"],
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            if holders[i].stdout.readline() != "up\n":
                pytest.skip(f"no namespaces here: {holders[i].communicate()[1].strip()}")
        pids = [holder.pid for holder in holders]
        cable = ["ip", "link", "add", "cable", "netns", str(pids[0]), "type", "veth", "peer", "name", "cable", "netns", str(pids[1])]
        made = subprocess.run(cable, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no cable between namespaces here: {made.stderr.strip()}")
        for pid, address in zip(pids, ADDRESSES, strict=True):
            for words in (("addr", "add", f"{address}/24", "dev", "cable"), ("link", "set", "cable", "up"), ("link", "set", "lo", "up")):
                subprocess.run(enter(pid, "ip", *words), check=True)
        yield pids
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


NEEDS_NAMESPACES = pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))),
                                      reason="needs root, ip, unshare and nsenter")


def start_on(machines, folder, run, **changes):
    """mpirun on the first machine; a shell on the second is nsenter in place of ssh."""
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nshift\nexec {" ".join(enter(machines[1]))} sh -c "$*"\n')
    agent.chmod(0o755)
    command = ["mpirun", "--allow-run-as-root", "--host", ",".join(ADDRESSES), "-np", 2, "--map-by", "node", "--bind-to", "none", "--mca",
               "plm_rsh_agent", agent, "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "cable", *run.command(**changes)]
    return subprocess.Popen(enter(machines[0], *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks_in(pid):
    """Processes of quire-distill in the network namespace of a process."""
    found, wanted = [], os.readlink(f"/proc/{pid}/ns/net")
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "ns/net") == wanted and os.readlink(path / "exe").endswith("quire-distill"):
                found.append(int(path.name))
    return found


@NEEDS_MPIRUN
@NEEDS_NAMESPACES
def test_two_machines(tmp_path, undisturbed, machines):
    """A rank on each; the second one's dies, and the run goes on to the bits of one machine."""
    run = Run(tmp_path, CASE)
    process = start_on(machines, tmp_path, run, **OPTIONS, **SIZES["2 stages"])
    wait_until(lambda: n_line(run) >= 10 or process.poll() is not None, "10 steps")
    assert process.poll() is None, process.communicate()[1]
    ranks = [ranks_in(pid) for pid in machines]
    assert [len(pids) for pids in ranks] == [1, 1]
    os.kill(ranks[1][0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0, err
    process = start_on(machines, tmp_path, run, **OPTIONS, **SIZES["2 stages"])
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert run.weight_bytes(STEPS) == undisturbed("2 stages")


@NEEDS_MPIRUN
def test_mpirun_with_another_number_of_ranks_is_refused(tmp_path):
    run = Run(tmp_path, CASE)
    _, err = start_mpirun(run, 3, **OPTIONS, **SIZES["2 stages"]).communicate(timeout=120)
    assert "the run has 3 ranks, but its sizes need 2" in err
