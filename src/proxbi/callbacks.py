"""Callbacks, called between the chunks of a run: progress, records, checkpoints, stopping rules."""

import csv
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import jax

from proxbi import _check, checkpoint
from proxbi._lock import Lock, Locked
from proxbi.checkpoint import CheckpointError
from proxbi.problem import Problem
from proxbi.result import HistoryRow, Snapshot, Status
from proxbi.solvers import Solver


class Run(NamedTuple):
    """What a callback gets when a run starts.

    Example: `Callback`, which gets it.
    """

    problem: Problem
    """The problem."""
    solver: Solver
    """The solver."""
    steps: int
    """The largest number of steps."""
    first: int
    """The step the run starts from; 0 unless it was resumed."""


class Callback:
    """Called after each chunk as `callback(row, snapshot)`. To stop the run return True or a `Status`. A plain function
    works as well.

    How a run is stopped: `StopBelow`. What is called when: docs/extending.md. Example: `StopBelow`.
    """

    most_calls: int | None = None
    """The number of oracle calls after which no further step is started."""

    def open(self, run: Run) -> None:
        """Before the first chunk, before compilation."""

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> bool | Status | None:
        """After each chunk."""

    def poll(self, seconds: float) -> Status | None:
        """Called about every second, between steps, with the run time so far in seconds; a status ends the run."""
        return None

    def close(self, snapshot: Snapshot) -> None:
        """At the end, however the run ended."""


AnyCallback = Callback | Callable[[HistoryRow, Snapshot], bool | Status | None]


class Progress(Callback):
    """A progress bar on the terminal (rich); silent when the output is not a terminal.

    `minimize(..., progress=True)` adds one. Example: `minimize`.

    `label` is the text beside the bar.
    """

    def __init__(self, label: str = "minimize", metric: str = "objective"):
        """`metric` is the entry of the row that is shown beside the bar."""
        self.label, self.metric = label, metric
        self._bar: Any = None

    def open(self, run: Run) -> None:
        if not sys.stderr.isatty() or not run.problem.place.first:
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
        except ImportError as error:
            raise ImportError("Progress needs rich: pip install 'proxbi[cli]'.") from error
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metric]}"),
        ]
        self._bar = Bar(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(self.label, total=run.steps, completed=run.first, metric="compiling")
        self._bar.start()

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> None:
        if self._bar is not None:
            value = _column(row, self.metric)
            shown = f"{self.metric} {value:.6g}" if value is not None else ""
            self._bar.update(self._task, completed=row["step"], metric=shown)

    def close(self, snapshot: Snapshot) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _column(row: Mapping[str, Any], name: str) -> Any:
    """A column whose name is not known before the program runs; other callbacks may have added it."""
    return row[name]


class Record(Callback):
    """Append every row to a CSV file at once, so that nothing is lost if the process dies.

    A resumed run continues the same file: rows after its first step are dropped, since they will be computed again.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> file = Path(tempfile.mkdtemp()) / "run.csv"
    >>> result = minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0), callbacks=[Record(file)])
    >>> len(file.read_text().splitlines()) == 1 + len(result.history)
    True
    """

    def __init__(self, path: str | PathLike[str]):
        """`path` is the CSV file."""
        self.path = Path(path)

    def open(self, run: Run) -> None:
        self._writes = run.problem.place.first
        if not self._writes:
            return
        kept = []
        if run.first and self.path.exists():
            with self.path.open(newline="") as file:
                whole = [row for row in csv.DictReader(file) if None not in row.values()]  # the last may be cut short
                kept = [row for row in whole if int(row["step"]) <= run.first]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            if kept:
                writer = csv.DictWriter(file, kept[0])
                writer.writeheader()
                writer.writerows(kept)

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> None:
        if not self._writes:
            return
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)


class Checkpoint(Callback):
    """Save the run into the directory `folder` after every chunk (or every `every` chunks); keep the last `keep` files.

    Pass the same directory as `resume=` to continue after any kind of stop, including `kill -9` and power cuts. A new
    run refuses a directory that already contains checkpoints; any run refuses one that another run is writing to.
    SIGTERM ends the run with a checkpoint and `Status.PREEMPTED`; `sys.exit(result.status.exit_code)` then exits with
    75. If there are several processes, the first one writes.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> folder, zero = tempfile.mkdtemp(), jnp.array(0.0)
    >>> for steps in (1, 100):  # the second run continues the first
    ...     result = minimize(
    ...         scalar_problem(), zero, zero, steps=steps, callbacks=[Checkpoint(folder)], resume=folder
    ...     )
    >>> result.status.name
    'CONVERGED'
    """

    def __init__(self, folder: str | PathLike[str], *, every: int = 1, keep: int = 3):
        """`every` counts chunks, not steps."""
        _check.positive_int("every", every)
        _check.positive_int("keep", keep)
        self.folder, self.every, self.keep = Path(folder), every, keep
        self._chunks = 0
        self._saved: int | None = None
        self._lock: Lock | None = None

    def open(self, run: Run) -> None:
        self._place = run.problem.place
        self._place.by_first(lambda: self._prepare(run.first))
        self._fingerprint = checkpoint.fingerprint(run.problem, run.solver)
        self._saved = run.first
        self._chunks = 0

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> None:
        self._chunks += 1
        if self._chunks % self.every == 0:
            self._save(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        try:
            if snapshot.step != self._saved:
                self._save(snapshot)
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _prepare(self, first: int) -> None:
        checkpoint.require_writable(self.folder)
        try:
            self._lock = Lock(self.folder)
        except Locked as error:
            raise CheckpointError(str(error)) from None
        try:
            checkpoint.prepare(self.folder, first)
        except BaseException:
            self._lock.release()
            raise

    def _save(self, snapshot: Snapshot) -> None:
        whole = snapshot._replace(state=self._place.fetched(snapshot.state))
        try:
            self._place.by_first(lambda: self._write(whole))
        except OSError as error:  # a full disk must not cost the run; the checkpoints before are intact
            message = f"No checkpoint was saved at step {snapshot.step}: {error}. The run continues."
            warnings.warn(message, checkpoint.CheckpointWarning, stacklevel=2)
        else:
            self._saved = snapshot.step

    def _write(self, snapshot: Snapshot) -> None:
        checkpoint.save(self.folder, snapshot, self._fingerprint, self.keep)


class Watchdog(Callback):
    """Report where a run is stuck if no step ends for `seconds`: the rank, the last step, and the stack of each thread.
    Each such period is reported once, and the run is not stopped. The usual cause is a process that waits for another
    that has died.

    `seconds` should be longer than the longest step.

    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0), callbacks=[Watchdog(600)]).status.name
    'CONVERGED'
    """

    def __init__(self, seconds: float = 600.0, file: TextIO | None = None):
        """`file` is where the report goes; by default standard error."""
        _check.positive("seconds", _check.as_float(seconds))
        self.seconds, self.file = float(seconds), file
        self._beats, self._step = 0, 0

    def open(self, run: Run) -> None:
        self._step, self._rank = run.first, jax.process_index()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, args=(self._ended,), daemon=True, name="proxbi-watchdog").start()

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> None:
        self._beats, self._step = self._beats + 1, snapshot.step

    def poll(self, seconds: float) -> Status | None:
        self._beats += 1
        return None

    def close(self, snapshot: Snapshot) -> None:
        self._ended.set()

    def _watch(self, ended: threading.Event) -> None:
        seen, told = self._beats, False
        while not ended.wait(self.seconds):
            if self._beats != seen:
                seen, told = self._beats, False
            elif not told:
                told = True
                self._tell()

    def _tell(self) -> None:
        begun = f"after step {self._step}" if self._beats else "compiling, or in the first step"
        lines = [f"proxbi: no step has ended for {self.seconds:g} s. Rank {self._rank}, {begun}. Where each thread is:"]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for number, frame in sys._current_frames().items():
            if number != threading.get_ident():
                lines += [f"  {names.get(number, number)}:", *(line.rstrip() for line in traceback.format_stack(frame))]
        print("\n".join(lines), file=self.file or sys.stderr, flush=True)


class StopBelow(Callback):
    """Stop once an entry of the row is at most `value`: `StopBelow("lower_residual", 1e-6)`.

    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> result = minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0), callbacks=[StopBelow("objective", 2.0)])
    >>> result.status.name
    'STOPPED'
    """

    def __init__(self, metric: str, value: float):
        """`metric` is a key of the rows of `Result.history`."""
        self.metric, self.value = metric, value

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> bool:
        if self.metric not in row:
            raise KeyError(f"StopBelow: no metric {self.metric!r} in the row; it has {', '.join(row)}.")
        found = _column(row, self.metric)
        return found is not None and found <= self.value


class TimeLimit(Callback):
    """Stop after `seconds` of run time (compilation, metrics and callbacks not counted), within about a second or at
    the end of the current step.

    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> result = minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0), callbacks=[TimeLimit(60.0)])
    >>> result.status.name
    'CONVERGED'
    """

    def __init__(self, seconds: float):
        """`seconds` of running."""
        _check.positive("seconds", _check.as_float(seconds))
        self.seconds = seconds

    def poll(self, seconds: float) -> Status | None:
        return Status.TIME if seconds >= self.seconds else None


class OracleBudget(Callback):
    """Stop after the first step that ends with at least `total` oracle calls, all kinds counted equally. The
    certificate at the end comes on top.

    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> result = minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0), callbacks=[OracleBudget(3)])
    >>> result.status.name
    'BUDGET'
    """

    def __init__(self, total: int):
        """`total` calls, including those before a resume."""
        _check.positive_int("total", total)
        self.total = self.most_calls = total

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> Status | None:
        return Status.BUDGET if snapshot.counts.total >= self.total else None
