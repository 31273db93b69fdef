"""`proxbi reproduce`."""

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._output import given_command, print_table, progress_bar, write_csv
from proxbi.cli._programs import keep_programs


class _Protocol(StrEnum):
    published = "published"
    paper = "paper"
    tuned = "tuned"


class _Engine(StrEnum):
    vmap = "vmap"
    joblib = "joblib"
    dask = "dask"


class _Dataset(StrEnum):
    mnist = "mnist"
    digits = "digits"


_PAPER = ("paper's accuracy", "paper's loss")

reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiment again.")
app.add_typer(reproduce, name="reproduce")

_ProtocolOption = Annotated[
    _Protocol,
    typer.Option(
        help="published: the authors' actual procedure. paper: the equations as printed. tuned: step sizes for which "
        "cleaning works."
    ),
]
_DatasetOption = Annotated[_Dataset, typer.Option(help="mnist needs its files (or a download); digits needs nothing.")]
_RowsOption = Annotated[str, typer.Option(help="Rows of Table 1, comma-separated: 'BiO-AID,proximal BiO-ITDm:5'.")]
_RatesOption = Annotated[str, typer.Option("--p", help="Shares of wrong labels, comma-separated.")]
_CellsOption = Annotated[str, typer.Option(help="Single cells instead of --rows and --p: 'BiO-AID@0.1,BiO-ITDm@0.4'.")]
_SeedsOption = Annotated[int, typer.Option(min=0, help="Starts and noises per cell; by default 3, or 1 for published.")]
_QuickOption = Annotated[bool, typer.Option("--quick", help="The ITD rows and one AID row, at p = 0.1.")]
_DataOption = Annotated[
    Path | None, typer.Option(help="Directory with MNIST's files; default PROXBI_DATA or the cache.")
]
_EngineOption = Annotated[
    _Engine,
    typer.Option(help="vmap: all cells in one program. joblib, dask: one at a time, in local processes or a cluster."),
]
_SchedulerOption = Annotated[
    str | None, typer.Option(help="For --engine dask: tcp://host:8786; by default workers start here.")
]
_WorkersOption = Annotated[int | None, typer.Option(min=1, help="Number of processes for --engine joblib and dask.")]
_OutOption = Annotated[Path, typer.Option(help="Directory for the results.", file_okay=False)]


@reproduce.command()
def table1(
    protocol: _ProtocolOption = _Protocol.published,
    dataset: _DatasetOption = _Dataset.mnist,
    rows: _RowsOption = "",
    p: _RatesOption = "",
    cells: _CellsOption = "",
    seeds: _SeedsOption = 0,
    quick: _QuickOption = False,
    data: _DataOption = None,
    out: _OutOption = Path("proxbi-table1"),
    engine: _EngineOption = _Engine.vmap,
    scheduler: _SchedulerOption = None,
    workers: _WorkersOption = None,
) -> None:
    """Table 1: test accuracy and loss of twelve methods at three shares of wrong labels, next to the paper's numbers.

    If a run is interrupted, the same command continues it.

    Example: proxbi reproduce table1 --protocol published --quick --out results
    """
    where = {"engine": engine.value, "scheduler": scheduler, "workers": workers}
    _reproduce("table1", protocol, dataset, (rows, p, cells, quick), seeds, data, out, where)


@reproduce.command("figure1")
def figure1_command(
    protocol: _ProtocolOption = _Protocol.published,
    dataset: _DatasetOption = _Dataset.mnist,
    rows: _RowsOption = "",
    p: _RatesOption = "",
    cells: _CellsOption = "",
    seeds: _SeedsOption = 0,
    quick: _QuickOption = False,
    data: _DataOption = None,
    out: _OutOption = Path("proxbi-figure1"),
    engine: _EngineOption = _Engine.vmap,
    scheduler: _SchedulerOption = None,
    workers: _WorkersOption = None,
) -> None:
    """Figure 1: the upper objective against work, measured as in the paper and in oracle calls of all kinds.

    Example: proxbi reproduce figure1 --dataset digits --protocol paper --seeds 5
    """
    where = {"engine": engine.value, "scheduler": scheduler, "workers": workers}
    _reproduce("figure1", protocol, dataset, (rows, p, cells, quick), seeds, data, out, where)


def _reproduce(
    what: str,
    protocol: _Protocol,
    dataset: _Dataset,
    wanted: tuple[str, str, str, bool],
    seeds: int,
    data: Path | None,
    out: Path,
    where: dict[str, Any],
) -> None:
    from proxbi.checkpoint import require_writable
    from proxbi.experiments import paper, paper_report, protocols
    from proxbi.plot import figure1
    from proxbi.report import write_page

    keep_programs()
    try:
        chosen = protocols.choose(*wanted)
    except ValueError as error:  # it names the argument as Python calls it
        raise ValueError(f"--{error}") from error
    if protocol is _Protocol.published and seeds > 1:
        raise ValueError("--seeds must be left out for the published protocol: it has one start and one noise.")
    numbers = [None] if protocol is _Protocol.published else range(seeds or 3)
    splits = paper.digits_splits() if dataset is _Dataset.digits else paper.mnist_splits(data)
    require_writable(out)
    runs = [paper.Run(cell, seed) for cell in chosen for seed in numbers]
    unfinished = out / ".unfinished"
    with progress_bar(f"{what}, {len(runs)} runs") as tick:
        curves = paper.run(runs, protocols.PROTOCOLS[protocol], splits, folder=unfinished, tick=tick, **where)
    table = paper_report.table_rows(paper.table(curves), short=protocol is _Protocol.published)

    write_csv(out / "table1.csv", [_as_printed(row) for row in table])
    write_csv(out / "details.csv", table)
    write_csv(out / "curves.csv", curves)
    (out / "table1.json").write_text(json.dumps(table, indent=2))
    for currency in ("inner_steps", "calls"):
        for kind in ("png", "svg"):
            figure1(curves, currency).savefig(out / f"figure1-{currency}.{kind}", dpi=150)
    title = f"The paper's experiment, {protocol} protocol, {dataset}"
    write_page(out / "report.html", title, given_command(), paper_report.blocks(protocol, dataset, table, curves))
    shutil.rmtree(unfinished, ignore_errors=True)

    console = Console()
    is_published = protocol is _Protocol.published and dataset is _Dataset.mnist
    print_table(console, title, _beside(paper_report.compared(table)) if is_published else _narrow(table))
    console.print(f"Written to {out}: report.html, table1.csv, details.csv, curves.csv, figure1-*", highlight=False)


def _narrow(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Table 1 for a terminal of 80 columns."""
    return [{name: str(value) for name, value in _as_printed(row).items()} for row in table]


def _beside(compared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours with the paper's in brackets, for a terminal of 80 columns."""
    return [
        {
            "method": row["method"] if row["gamma"] is None else f"{row['method']}, gamma {row['gamma']:g}",
            "p": f"{row['p']:g}",
            "accuracy (paper)": f"{row['accuracy']} ({row[_PAPER[0]]})",
            "loss (paper)": f"{row['loss']} ({row[_PAPER[1]]})",
            "agrees": "yes" if row["agrees"] else "no",
        }
        for row in compared
    ]


def _as_printed(row: dict[str, Any]) -> dict[str, Any]:
    gamma = "" if row["gamma"] is None else f"{row['gamma']:.1f}"
    numbers = {"accuracy_percent": f"{row['accuracy_percent']:.2f}", "loss": f"{row['loss']:.6f}"}
    return {"method": row["method"], "gamma": gamma, "p": row["p"], **numbers}
