"""What the commands print and write."""

import codecs
import csv
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from proxbi.cli._interrupt import watch


@runtime_checkable
class Tick(Protocol):
    """Moves a progress bar; `stage` is written beside it. Ctrl-C that was dropped elsewhere is raised here."""

    def __call__(self, done: float, total: float, stage: str = ...) -> None: ...


IN_ASCII = {"±": "+-", "–": "-", "…": "...", "“": '"', "”": '"'}
"""How our own signs are written where they are not known."""


def write_any_letter() -> None:
    """Let letters that the terminal does not know be replaced, in place of an error after all the work."""
    codecs.register_error("proxbi", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="proxbi")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    unknown = error.object[error.start : error.end]
    return "".join(IN_ASCII.get(letter, "?") for letter in unknown), error.end


def given_command() -> str:
    """The command line as it was given, for whoever wants the same again."""
    return shlex.join(["proxbi", *sys.argv[1:]])


@contextmanager
def progress_bar(label: str) -> Iterator[Tick]:
    """A progress bar on a terminal that can redraw it, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty() or console.is_dumb_terminal) as bar:
        task = bar.add_task(label, total=None)

        def tick(done: float, total: float, stage: str = label) -> None:
            watch.check()
            bar.update(task, completed=done, total=total, description=stage)

        yield tick


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def print_table(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
