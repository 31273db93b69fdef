"""Several processes: the same run as in one, agreement before it, and one end for all of them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import child_mesh
from proxbi import minimize, shard
from proxbi.checkpoint import checkpoints

pytestmark = pytest.mark.slow
CHILD = Path(__file__).with_name("child_rank.py")
ENDED_BY_ITSELF = {75}  # "start me again"
PATIENCE = 300  # seconds for a process to end: one that hangs must not stop the tests


@contextmanager
def ranks(count: int, *arguments: str, variables: str = "jax") -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that find one another by what a launcher would leave in their environment; none is left behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = []
    for rank in range(count):
        names = {
            "jax": {"JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank)},
            "slurm": {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_NTASKS": str(count),
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
            },
            "mpirun": {"OMPI_COMM_WORLD_SIZE": str(count), "OMPI_COMM_WORLD_RANK": str(rank)},
        }[variables]
        plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # one device each
        environment = plain | {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_ADDRESS": address} | names
        command = [sys.executable, str(CHILD), *arguments]
        started.append(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, cwd=CHILD.parent))
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def await_step(process: subprocess.Popen[str], step: int) -> None:
    """Read what the process says until it has taken so many steps."""
    for line in process.stdout or ():
        if line.strip().isdigit() and int(line) >= step:
            return


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    with ranks(2, str(tmp_path)) as processes:
        await_step(processes[0], 30)
        processes[1].send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=PATIENCE)[0].splitlines()[-1] for process in processes]
        assert [process.returncode for process in processes] == [75, 75]
    step = int(ends[0].removeprefix("PREEMPTED "))
    assert ends == [f"PREEMPTED {step}"] * 2
    assert int(checkpoints(tmp_path / "checkpoints")[0].stem.removeprefix("step-")) == step

    x = [np.frombuffer((tmp_path / f"x-{rank}.bin").read_bytes()) for rank in (0, 1)]
    assert x[0].tobytes() == x[1].tobytes()
    plain = minimize(child_mesh.linear(), *child_mesh.starts(), child_mesh.FIXED, steps=50)
    np.testing.assert_allclose(x[0], plain.x, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(x[0] == 0, np.asarray(plain.x) == 0)
    assert [path.name for path in tmp_path.glob("record-*")] == ["record-0.csv"]

    said = [(tmp_path / f"said-{rank}.txt").read_text().splitlines() for rank in (0, 1)]
    for lines in said:
        assert lines[0].startswith("the processes of this run do not agree: x0 differs on rank 1 from that on rank 0")
        assert lines[1].startswith("the processes of this run do not agree: x0 differs on rank 1")
        assert lines[2].startswith("the processes of this run do not agree: steps differs on rank 1")
        assert lines[3].endswith("folder '/proc/nowhere' cannot be written: No such file or directory.")

    # The run goes on in one process, where the two left it.
    options = {"steps": step + 10, "every": 5}
    resumed = minimize(
        shard(child_mesh.linear()), *child_mesh.starts(), child_mesh.FIXED, **options, resume=tmp_path / "checkpoints"
    )
    straight = minimize(child_mesh.linear(), *child_mesh.starts(), child_mesh.FIXED, **options)
    np.testing.assert_allclose(resumed.x, straight.x, rtol=0, atol=1e-12)
    assert resumed.steps == step + 10


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    """The numbers of one process without a mesh."""
    return child_mesh.numbers()


@pytest.mark.hours
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_numbers_are_those_of_one_process(count: int, alone: dict[str, np.ndarray], tmp_path: Path) -> None:
    with ranks(count, str(tmp_path), "numbers") as processes:  # each compiles the default solver, on the same cores
        assert [process.wait(timeout=count * PATIENCE) for process in processes] == [0] * count
    for rank in range(count):
        with np.load(tmp_path / f"numbers-{rank}.npz") as found:
            assert found["again"].tobytes() == found["double"].tobytes()
            for name, error in (("double", 1e-12), ("single", 1e-6)):
                np.testing.assert_allclose(found[name], alone[name], rtol=0, atol=error * np.abs(alone[name]).max())
                np.testing.assert_array_equal(found[name] == 0, alone[name] == 0)
            assert found["status"] == "CONVERGED"
            assert found["objective"] == pytest.approx(float(alone["objective"]), rel=1e-8)
            np.testing.assert_allclose(found["default"], alone["default"], atol=1e-6)


@pytest.mark.hours
@pytest.mark.parametrize(("count", "variables"), [(4, "jax"), (2, "slurm"), (3, "mpirun")])
def test_launchers(count: int, variables: str, tmp_path: Path) -> None:
    with ranks(count, str(tmp_path), "once", variables=variables) as processes:
        assert [process.wait(timeout=PATIENCE) for process in processes] == [0] * count
    plain = minimize(child_mesh.linear(), *child_mesh.starts(), child_mesh.FIXED, steps=50)
    for rank in range(count):
        x = np.frombuffer((tmp_path / f"x-{rank}.bin").read_bytes())
        np.testing.assert_allclose(x, plain.x, rtol=0, atol=1e-12)


@pytest.mark.hours
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpirun(tmp_path: Path) -> None:
    """The launcher itself, which says nothing of where rank 0 is: all of them are on this machine."""
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = ["mpirun", "-n", "2", "--oversubscribe", sys.executable, str(CHILD), str(tmp_path), "once"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = plain | {"JAX_PLATFORMS": "cpu"} | root
    subprocess.run(command, check=True, timeout=PATIENCE, env=environment, cwd=CHILD.parent)
    assert (tmp_path / "x-0.bin").read_bytes() == (tmp_path / "x-1.bin").read_bytes()
    assert [path.name for path in tmp_path.glob("record-*")] == ["record-0.csv"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_in_vain_ends_with_a_sentence(rank: int) -> None:
    """Where JAX alone would abort, with a stack trace."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    done = joining(address, rank)
    assert done.returncode == 1
    assert done.stderr.startswith(f"rank {rank} of 2 could not join the others at {address} within 2 s: see that all")
    assert done.stderr.count("\n") == 1


@pytest.mark.hours
def test_two_processes_of_one_rank() -> None:
    """One of them is told so after the time-out; the run goes on with the other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    program = (
        "import sys; from proxbi.distributed import initialize; "
        "initialize(sys.argv[1], 2, int(sys.argv[2]), timeout=40); import jax; jax.process_count()"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", program, address]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    started = [subprocess.Popen([*command, rank], env=environment, **pipes) for rank in "011"]
    try:
        said = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    assert started[0].returncode == 0
    assert sorted(process.returncode for process in started[1:]) == [0, 1]
    assert sum("rank 1 of 2 could not join" in err and "each with a rank of its own" in err for _, err in said) == 1
    assert sum("Traceback" in err for _, err in said) == 0


def test_a_port_that_is_taken_is_refused() -> None:
    """Where JAX alone would crash."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = joining(f"127.0.0.1:{taken.getsockname()[1]}", 0)
    assert done.returncode == 1
    assert "OSError: rank 0 cannot listen at port" in done.stderr
    assert "Address already in use. Take another port" in done.stderr


def joining(address: str, rank: int) -> subprocess.CompletedProcess[str]:
    """A process that waits two seconds for another."""
    program = f"from proxbi.distributed import initialize; initialize({address!r}, 2, {rank}, timeout=2)"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.hours
def test_an_error_of_one_rank_ends_all(tmp_path: Path) -> None:
    """The one that fails does not wait for the others, and they do not wait for it."""
    with ranks(2, str(tmp_path), "fails") as processes:
        for process in processes:
            process.communicate(timeout=PATIENCE)
        assert processes[1].returncode == 1
        assert processes[0].returncode in ENDED_BY_ITSELF


KILLS = 20
WITHOUT_RANK_0 = {75, -signal.SIGABRT}  # JAX ends a process that cannot reach rank 0, if ours does not end it first


@pytest.mark.hours
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """kill -9 of rank 0, of another, and of rank 0 while it writes; the other one ends by itself. After a new start of
    all, in the end it is as if nothing had happened.
    """
    draw, folder, done = np.random.default_rng(0), tmp_path / "checkpoints", 0
    for attempt in range(KILLS):
        until, victim = done + int(draw.integers(5, 60)), attempt % 2
        with ranks(2, str(tmp_path), "resume", str(10**8)) as processes:
            await_step(processes[0], until)
            while attempt % 4 == 2 and not list(folder.glob(".step-*.tmp")):
                assert processes[0].poll() is None
            processes[victim].kill()
            other = processes[1 - victim]
            other.communicate(timeout=PATIENCE)
            assert other.returncode in (ENDED_BY_ITSELF if victim else WITHOUT_RANK_0), attempt
        done = int(checkpoints(folder)[0].stem.removeprefix("step-"))
        assert done >= until - 5
    last = done + 5
    with ranks(2, str(tmp_path), "resume", str(last)) as processes:
        assert [process.wait(timeout=PATIENCE) for process in processes] == [0, 0]
    straight = tmp_path / "straight"
    straight.mkdir()
    with ranks(2, str(straight), "resume", str(last)) as processes:
        assert [process.wait(timeout=PATIENCE) for process in processes] == [0, 0]
    assert (straight / "x-0.bin").read_bytes() == (tmp_path / "x-0.bin").read_bytes()
