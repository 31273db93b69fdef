"""`proxbi verify`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._output import print_table, progress_bar, write_csv
from proxbi.cli._programs import keep_programs

verify = typer.Typer(no_args_is_help=True, help="Check the paper's theorems by running them.")
app.add_typer(verify, name="verify")


@verify.callback()
def _options() -> None:
    """Check the paper's theorems by running them."""


@verify.command()
def theory(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs, about half the time.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory for the results.", file_okay=False)] = Path("proxbi-theory"),
) -> None:
    """Every bound on problems with closed form, the rates, the complexity, and controls that must fail.

    Exit code 1 if a claim does not hold.

    Example: proxbi verify theory --quick --out results
    """
    from proxbi.checkpoint import require_writable
    from proxbi.experiments import theory as experiment
    from proxbi.experiments.theory.report import drawn
    from proxbi.report import svg, write_page

    keep_programs()
    require_writable(out)
    with progress_bar("theory") as tick:
        result = experiment.run(quick=quick, seed=seed, progress=tick)
    for name, rows in result.tables().items():
        write_csv(out / f"{name}.csv", rows)
    for name, charts in drawn(result).items():
        (out / f"{name}.svg").write_text(svg.file(charts), encoding="utf-8")
    command = f"proxbi verify theory{' --quick' if quick else ''} --seed {seed}"
    write_page(out / "report.html", "The paper's theorems, run", command, experiment.report_blocks(result))

    console = Console()
    print_table(console, "The paper's theorems, run", result.verdicts)
    console.print(f"Written to {out}: report.html, potential.svg, rates.svg, complexity.svg, CSV tables")
    if not result.holds:
        raise typer.Exit(1)
