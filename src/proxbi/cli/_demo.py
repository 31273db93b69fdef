"""`proxbi demo`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._clean import show
from proxbi.cli._output import print_table, progress_bar
from proxbi.cli._programs import keep_programs

COMMAND = "proxbi clean digits.npz --out cleaned.csv --report report.html --json summary.json --seed {seed}"


@app.command()
def demo(
    noise: Annotated[float, typer.Option(min=0, max=0.8, help="Share of labels to spoil.")] = 0.4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the results.", file_okay=False)] = Path("proxbi-demo"),
) -> None:
    """Spoil labels of scikit-learn's digits and run `proxbi clean` on them. Nothing is downloaded.

    Example: proxbi demo --noise 0.4 --out results
    """
    from proxbi import plot
    from proxbi.checkpoint import require_writable
    from proxbi.cleaning.files.formats import write_arrays
    from proxbi.cleaning.files.job import Outputs, clean_file
    from proxbi.cleaning.files.tables import Roles
    from proxbi.experiments import demo as experiment

    keep_programs()
    require_writable(out)
    console = Console()
    spoiled = experiment.spoiled_digits(noise, seed)
    write_arrays(out / "digits.npz", spoiled.arrays)
    command = COMMAND.format(seed=seed)
    console.print(f"{noise:.0%} of 1,000 labels are spoiled, 200 more rows are trusted. In {out}:", highlight=False)
    console.print(f"  {command}\n", highlight=False, soft_wrap=True)
    outputs = Outputs(out / "cleaned.csv", out / "report.html", out / "summary.json")
    with progress_bar("cleaning") as tick:
        job = clean_file(
            out / "digits.npz",
            Roles(),
            outputs,
            seed=seed,
            command=command,
            progress=lambda stage, share: tick(share, 1, stage),
        )
    show(console, "digits.npz", job, outputs)

    train = slice(job.inputs.rows)
    wrong = spoiled.arrays["y"] != spoiled.truth
    detection = experiment.detection(job.cleaned.issue[train], wrong)
    accuracies = experiment.accuracies(spoiled, job.inputs, job.cleaned, seed)
    print_table(console, "Against the truth: spoiled labels found", [detection])
    print_table(console, "Against the truth: rows kept back for a test", accuracies)
    (out / "truth.json").write_text(json.dumps({"detection": detection, "accuracies": accuracies}, indent=2) + "\n")
    for kind in ("png", "svg"):
        figure = plot.cleaning(job.cleaned.history, job.cleaned.weight[train], wrong)
        figure.savefig(out / f"demo.{kind}", dpi=150)
    console.print(f"Written to {out}: digits.npz, truth.json, demo.png, demo.svg", highlight=False)
