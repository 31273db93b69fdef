"""`proxbi demo`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._output import print_table


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
    print_table(console, f"{noise:.0%} of 1,000 labels spoiled, 200 rows trusted", found.table)
    print_table(console, "spoiled labels found (weight below 1/2)", [detection])
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
