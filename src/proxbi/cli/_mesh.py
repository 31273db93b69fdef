"""`proxbi mesh`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._output import print_table


@app.command()
def mesh(
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Join the other processes that the launcher started (srun, mpirun).")
    ] = False,
    coordinator: Annotated[str, typer.Option(help="host:port of rank 0, if no launcher sets it.")] = "",
    processes: Annotated[int | None, typer.Option(min=1, help="Number of processes, if no launcher sets it.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Rank of this process, if no launcher sets it.")] = None,
    rows: Annotated[int, typer.Option(min=384, help="Rows to clean.")] = 100_000,
    features: Annotated[int, typer.Option(min=1, help="Number of features.")] = 64,
    classes: Annotated[int, typer.Option(min=2, help="Number of classes.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Number of outer steps.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the numbers.", dir_okay=False)] = None,
) -> None:
    """Test the devices of all processes: clean random rows that are spread over them, and report the times.

    Example: srun proxbi mesh --distributed --rows 1000000
    """
    from proxbi import distributed as processes_of_jax

    if distributed:
        processes_of_jax.initialize(coordinator or None, processes, rank)
    elif coordinator or processes is not None or rank is not None:
        raise ValueError("--coordinator, --processes and --rank are for --distributed.")
    import jax

    from proxbi.experiments import mesh as experiment

    found = experiment.run(processes_of_jax.row_mesh(), rows, features, classes, steps, seed)
    if jax.process_index():
        return
    shown = [
        {"": name, "measured": f"{value:.4g}" if isinstance(value, float) else value} for name, value in found.items()
    ]
    print_table(Console(), "Rows on a mesh", shown)
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n")
