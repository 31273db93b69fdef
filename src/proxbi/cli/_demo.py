"""`proxbi demo`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._clean import next_steps, show
from proxbi.cli._output import print_table, progress_bar
from proxbi.cli._programs import keep_programs

if TYPE_CHECKING:
    from proxbi.cleaning.files.job import Job
    from proxbi.experiments.demo import Spoiled

COMMAND = "proxbi clean digits.npz --out cleaned.csv --report report.html --json summary.json --seed {seed}"
DECISIONS = "decisions.csv"


@app.command()
def demo(
    noise: Annotated[float, typer.Option(min=0, max=0.8, help="Share of labels to spoil.")] = 0.4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory for the results.", file_okay=False)] = Path("proxbi-demo"),
    decisions: Annotated[
        bool,
        typer.Option(
            "--decisions",
            help="Also run the second round, with the decisions.csv that you saved into the directory or, if there is "
            "none, with 100 decisions made from the true labels.",
        ),
    ] = False,
) -> None:
    """Spoil labels of scikit-learn's digits and run `proxbi clean` on them. Nothing is downloaded.

    Example: proxbi demo --noise 0.4 --out results
    """
    from proxbi.checkpoint import require_writable
    from proxbi.cleaning.files.formats import write_arrays
    from proxbi.experiments import demo as experiment

    keep_programs()
    require_writable(out)
    console = Console()
    spoiled = experiment.spoiled_digits(noise, seed)
    write_arrays(out / "digits.npz", spoiled.arrays)
    console.print(f"{noise:.0%} of 1,000 labels are spoiled, 200 more rows are trusted. In {out}:", highlight=False)
    path = out / DECISIONS
    if not decisions or not path.exists():
        job = _round(console, out, seed, None)
        _compare(console, out, spoiled, job, seed)
    if decisions:
        if not path.exists():
            experiment.decide(path, spoiled, job)
            console.print(f"\nThe rows that teach most, decided from the true labels: {path}", highlight=False)
        console.print("\n[bold]The second round[/bold], with decided rows as trusted ones:")
        job = _round(console, out, seed, path)
        _compare(console, out, spoiled, job, seed)
    console.print(
        f"\nOpen {out / 'report.html'} in a browser, go through the suspects with the keyboard, and save your "
        f"decisions as {path}. Then continue from them: proxbi demo --decisions --out {out}",
        highlight=False,
        soft_wrap=True,
    )


def _round(console: Console, out: Path, seed: int, decisions: Path | None) -> "Job":
    """Run `proxbi clean`, and print the command."""
    from proxbi.cleaning.files.job import Outputs, clean_file
    from proxbi.cleaning.files.tables import Roles

    command = COMMAND.format(seed=seed) + ("" if decisions is None else f" --decisions {DECISIONS}")
    console.print(f"  {command}\n", highlight=False, soft_wrap=True)
    outputs = Outputs(out / "cleaned.csv", out / "report.html", out / "summary.json")
    with progress_bar("cleaning") as tick:
        job = clean_file(
            out / "digits.npz",
            Roles(),
            outputs,
            decisions=decisions,
            seed=seed,
            command=command,
            steps=next_steps(command),
            progress=lambda stage, share: tick(share, 1, stage),
        )
    show(console, "digits.npz", job, outputs)
    return job


def _compare(console: Console, out: Path, spoiled: "Spoiled", job: "Job", seed: int) -> None:
    """Compare with the truth, which is unknown in practice."""
    from proxbi.experiments import demo as experiment

    detection = experiment.detection_of(spoiled, job.cleaned)
    accuracies = experiment.accuracies(spoiled, job.inputs, job.cleaned, seed)
    print_table(console, "Against the truth: spoiled labels found among rows that nobody decided", [detection])
    print_table(console, "Against the truth: rows kept back for a test", accuracies)
    (out / "truth.json").write_text(json.dumps({"detection": detection, "accuracies": accuracies}, indent=2) + "\n")
    console.print(f"Written to {out}: digits.npz, truth.json", highlight=False)
