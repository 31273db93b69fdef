"""What the commands print and write."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import Progress
from rich.table import Table


class Tick(Protocol):
    """Moves a progress bar; `stage` is written beside it."""

    def __call__(self, done: float, total: float, stage: str = ...) -> None: ...


@contextmanager
def progress_bar(label: str) -> Iterator[Tick]:
    """A progress bar on a terminal, nothing elsewhere."""
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total, stage=label: bar.update(task, completed=done, total=total, description=stage)


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
