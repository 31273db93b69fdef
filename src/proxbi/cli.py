"""The command line: argument parsing; each command is one call."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError:
    sys.exit("proxbi: the command line needs typer and rich: pip install 'proxbi[cli]'.")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bilevel optimization with an upper-level prox: min_x f(x, y*(x)) + h(x).",
)


def main() -> None:
    """Run the command line; bad arguments and files end in one sentence and exit code 2, a failed run in exit code
    1.
    """
    from proxbi.result import SolveError

    try:
        app()
    except SolveError as error:
        _fail(str(error), 1)
    except (ValueError, OSError, ImportError) as error:
        _fail(str(error), 2)


def _fail(message: str, code: int) -> None:
    print(f"proxbi: {message}", file=sys.stderr)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        from proxbi import __version__

        typer.echo(f"proxbi {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def demo(
    noise: Annotated[float, typer.Option(min=0, max=0.8, help="Share of training labels to spoil.")] = 0.4,
    steps: Annotated[int, typer.Option(min=1, help="Outer steps.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the results.", file_okay=False)] = Path("proxbi-demo"),
) -> None:
    """Clean spoiled labels of scikit-learn's digits by proximal BiO-AIDm. Nothing is downloaded.

    Example: proxbi demo --noise 0.4 --out results
    """
    from proxbi import plot
    from proxbi.callbacks import Progress
    from proxbi.checkpoint import require_writable
    from proxbi.experiments import demo as experiment

    require_writable(out)
    found = experiment.run(noise, steps, seed, [Progress("cleaning")])
    detection = experiment.detection(found.weights, found.wrong)
    console = Console()
    _print_table(console, f"{noise:.0%} of 1,000 labels spoiled, 200 rows trusted", found.table)
    _print_table(console, "spoiled labels found (weight below 1/2)", [detection])
    console.print(str(found.result), highlight=False)

    found.result.to_frame().to_csv(out / "history.csv", index=False)
    _write_weights(out / "weights.csv", found)
    (out / "summary.json").write_text(json.dumps({"table": found.table, "detection": detection}, indent=2))
    for kind in ("png", "svg"):
        plot.cleaning(found.result.history, found.weights, found.wrong).savefig(out / f"demo.{kind}", dpi=150)
    console.print(f"Written to {out}: demo.png, demo.svg, history.csv, weights.csv, summary.json", highlight=False)


def _write_weights(path: Path, found: Any) -> None:
    lines = [
        f"{row},{weight:.6g},{int(wrong)}"
        for row, (weight, wrong) in enumerate(zip(found.weights, found.wrong, strict=True))
    ]
    path.write_text("\n".join(["row,weight,wrong", *lines, ""]))


def _print_table(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
