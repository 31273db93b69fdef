"""What happens to long runs: they are asked to end, get stuck, share a folder, or have too little memory."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import child
from proxbi import Checkpoint, Status, Watchdog, _memory, glm, minimize
from proxbi._lock import NAME, Lock, Locked
from proxbi.checkpoint import CheckpointError, checkpoints

PATIENCE = 120  # seconds to wait for what must come


# --- SIGTERM ----------------------------------------------------------------------------------------------------------


def terminate(row: dict[str, Any], snapshot: Any) -> None:
    if row["step"] == 10:
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_ends_a_run_with_a_checkpoint(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    result = child.solve(10**8, callbacks=[Checkpoint(tmp_path), terminate])
    assert result.status is Status.PREEMPTED
    assert result.status.exit_code == 75
    assert not result.status.failed
    assert checkpoints(tmp_path)[0].name == f"step-{result.steps:010d}.safetensors"
    assert signal.getsignal(signal.SIGTERM) is before
    resumed = child.solve(result.steps + 5, resume=tmp_path)
    np.testing.assert_array_equal(resumed.x, child.solve(result.steps + 5).x)


def test_sigterm_ends_a_process_that_saves_nothing() -> None:
    """There would be nothing to resume: the negative control."""
    code = (
        "import child, os, signal; child.solve(10**8, callbacks=[lambda row, s: os.kill(os.getpid(), signal.SIGTERM)])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("status", Status)
def test_every_status_has_an_exit_code(status: Status) -> None:
    assert status.exit_code == {Status.PREEMPTED: 75, Status.INTERRUPTED: 130}.get(status, int(status.failed))


# --- one run in a folder ----------------------------------------------------------------------------------------------


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    held = Lock(tmp_path)
    with pytest.raises(CheckpointError, match=rf"is in use by process {os.getpid()} on .*: choose another one"):
        child.solve(5, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(Locked):
        Lock(tmp_path)
    held.release()
    assert child.solve(5, callbacks=[Checkpoint(tmp_path)]).steps == 5
    assert not (tmp_path / NAME).exists()


def test_a_full_disk_does_not_break_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only does not say whose it is."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        held = Lock(tmp_path)
    with pytest.raises(Locked, match="in use by another run"):
        Lock(tmp_path)
    held.release()
    Lock(tmp_path).release()


def test_the_lock_of_a_process_that_was_killed_is_no_lock(tmp_path: Path) -> None:
    code = "import os, sys, pathlib, proxbi._lock as l; l.Lock(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / NAME).exists()
    Lock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_holds_no_lock(tmp_path: Path) -> None:
    child.solve(5, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(CheckpointError, match="holds the checkpoints of another run"):
        child.solve(5, callbacks=[Checkpoint(tmp_path)])
    Lock(tmp_path).release()


# --- stuck ------------------------------------------------------------------------------------------------------------


class Told(io.StringIO):
    """Text, and an event for when it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def flush(self) -> None:
        self.came.set()


def test_a_watchdog_says_where_a_run_is_stuck() -> None:
    told = Told()

    def stuck_here(row: dict[str, Any], snapshot: Any) -> bool:
        return row["step"] == 10 and told.came.wait(PATIENCE)

    result = child.solve(100, callbacks=[Watchdog(0.05, told), stuck_here])
    assert result.status is Status.STOPPED
    text = told.getvalue()
    assert "no step has ended for 0.05 s. Rank 0, " in text
    assert "stuck_here" in text
    assert "MainThread" in text


def test_a_watchdog_is_silent_where_steps_end() -> None:
    told = Told()
    child.solve(20, callbacks=[Watchdog(1000.0, told)])
    assert told.getvalue() == ""
    with pytest.raises(ValueError, match="seconds must be finite and > 0"):
        Watchdog(0.0)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_program_without_room_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "_WORTH_A_LOOK", 1000)
    monkeypatch.setattr(_memory, "free_memory", lambda device, sharing: 5000.0)
    draw = np.random.default_rng(0)
    Z, t = jnp.asarray(draw.normal(size=(800, 4))), jnp.asarray(draw.normal(size=800))
    problem = glm.linear_model((Z, t), (Z, t), "squared", weights=jnp.exp, ridge=0.1)
    with pytest.raises(MemoryError, match=r"one step needs .* of the 800 rows would fit.*proxbi.shard"):
        minimize(problem, jnp.zeros(800), jnp.zeros(4), child.SOLVER)
    monkeypatch.setattr(_memory, "free_memory", lambda device, sharing: 1e9)
    assert minimize(problem, jnp.zeros(800), jnp.zeros(4), child.SOLVER, steps=2).steps == 2


def test_what_would_fit_is_said() -> None:
    assert _memory.shortage(10, 10.0, 5, 100) == ""
    text = _memory.shortage(9 * 2**30, 2.0 * 2**30, 2**30, 1_000_000)
    assert "one step needs 9.0 GiB beside the 1.0 GiB" in text
    assert "about 300,000 of the 1,000,000 rows would fit" in text
    assert "over 4 times as many devices" in text
