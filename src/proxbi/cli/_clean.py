"""`proxbi clean`."""

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._output import print_table, progress_bar
from proxbi.cli._programs import keep_programs

if TYPE_CHECKING:
    from proxbi.cleaning.files.job import Job, Outputs
    from proxbi.cleaning.result import Cleaned


class _Weights(StrEnum):
    auto = "auto"
    free = "free"


class _Mode(StrEnum):
    weight = "weight"
    drop = "drop"
    relabel = "relabel"


_Data = Annotated[
    Path,
    typer.Argument(
        help="A .csv, .tsv, .parquet or .npz file (npz: X, y and, if there, X_val, y_val, trusted, groups)."
    ),
]
_Label = Annotated[str | None, typer.Option(help="The column that has the labels (npz: y).")]
_TrustedColumn = Annotated[
    str | None, typer.Option(help="The column that says which labels are trusted: yes or no, 1 or 0.")
]
_Trusted = Annotated[Path | None, typer.Option(help="A second file, of trusted rows with the same columns.")]
_Group = Annotated[str | None, typer.Option(help="The column of the annotator or source of a label.")]
_Id = Annotated[str | None, typer.Option("--id", help="The column that names the rows; it is no feature.")]
_Drop = Annotated[str, typer.Option(help="Columns that are no features, with commas.")]
_WeightsOption = Annotated[_Weights, typer.Option(help="auto: few parameters for all rows. free: one for each row.")]
_ModeOption = Annotated[
    _Mode,
    typer.Option(help="weight: keep all rows. drop: without the flagged ones. relabel: with the suggested labels."),
]
_Out = Annotated[Path | None, typer.Option(help="Where the rows go: .csv, .tsv, .parquet or .npz.")]
_Report = Annotated[Path | None, typer.Option(help="Where the report goes, an HTML page.")]
_Json = Annotated[Path | None, typer.Option("--json", help="Where the summary goes.")]
_FailAbove = Annotated[float | None, typer.Option(min=0, max=1, help="Exit with code 1 if more labels are wrong.")]
_Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]


@app.command()
def clean(
    data: _Data,
    label: _Label = None,
    trusted_col: _TrustedColumn = None,
    trusted: _Trusted = None,
    group: _Group = None,
    id_: _Id = None,
    drop: _Drop = "",
    weights: _WeightsOption = _Weights.auto,
    mode: _ModeOption = _Mode.weight,
    out: _Out = None,
    report: _Report = None,
    json_: _Json = None,
    fail_if_noise_above: _FailAbove = None,
    seed: _Seed = 0,
) -> None:
    """Find the wrong labels of a table, with the help of rows whose labels are trusted.

    The output has all columns and rows of the input, in their order, and proxbi_weight, proxbi_issue, proxbi_quality,
    proxbi_suggested_label and proxbi_trusted.

    Example: proxbi clean data.csv --label y --trusted-col gold --out cleaned.parquet --report report.html
    """
    from proxbi.cleaning.files.job import Outputs, clean_file
    from proxbi.cleaning.files.tables import Roles

    keep_programs()
    if trusted_col is not None and trusted is not None:
        raise ValueError("--trusted-col and --trusted cannot both be given.")
    dropped = [name.strip() for name in drop.split(",") if name.strip()]
    outputs = Outputs(out, report, json_, mode.value)
    with progress_bar("cleaning") as tick:
        job = clean_file(
            data,
            Roles(label, trusted_col, trusted, group, id_, dropped),
            outputs,
            weights=weights.value,
            seed=seed,
            command=shlex.join(["proxbi", *sys.argv[1:]]),
            progress=lambda stage, share: tick(share, 1, stage),
        )
    show(Console(), str(data), job, outputs)
    rate = job.cleaned.noise_rate.estimate
    if fail_if_noise_above is not None and rate > fail_if_noise_above:
        typer.echo(f"proxbi: {rate:.1%} of the labels are wrong, more than {fail_if_noise_above:.1%}.", err=True)
        raise typer.Exit(1)


def show(console: Console, title: str, job: "Job", outputs: "Outputs") -> None:
    """A short table of what was found, the warnings, and where the files are."""
    cleaned = job.cleaned
    low, high = cleaned.noise_rate.low, cleaned.noise_rate.high
    flagged, rows = job.summary["flagged"], job.summary["rows"]
    table = {
        "rows": f"{rows:,} and {job.summary['trusted']:,} trusted",
        "flagged": f"{flagged:,} ({flagged / rows:.1%})",
        "wrong labels, estimated": f"{cleaned.noise_rate.estimate:.1%} (95 % interval {low:.1%} to {high:.1%})",
        "picked": cleaned.chosen if cleaned.helped else f"{cleaned.chosen}; cleaning did not help",
        **_accuracies(cleaned),
    }
    print_table(console, title, [{"": name, "found": value} for name, value in table.items()])
    for sentence in cleaned.warnings:
        typer.echo(f"Warning: {sentence}", err=True)
    written = ", ".join(map(str, outputs.paths()))
    console.print(
        f"Written: {written}" if written else "Nothing was written: give --out, --report or --json.", highlight=False
    )


def _accuracies(cleaned: "Cleaned") -> dict[str, str]:
    """Held-out accuracy with the labels as they came, and as cleaned."""
    by_name = {row["name"]: f"{row['accuracy']:.1%} ± {row['accuracy_se']:.1%}" for row in cleaned.scores}
    pairs = {"held-out accuracy before": by_name.get("noisy"), "held-out accuracy after": by_name.get(cleaned.chosen)}
    return {name: value for name, value in pairs.items() if value is not None}
