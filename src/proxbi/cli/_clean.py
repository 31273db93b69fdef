"""`proxbi clean`."""

import math
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from proxbi.cli._app import app
from proxbi.cli._output import given_command, print_table, progress_bar
from proxbi.cli._programs import keep_programs

if TYPE_CHECKING:
    from proxbi.cleaning.files.job import Job, Outputs
    from proxbi.cleaning.large.job import TableJob
    from proxbi.cleaning.report.page import Step

TOO_MANY, NOT_KNOWN = 1, 3
"""Exit codes of --fail-if-noise-above."""
MOST_ANNOTATORS = 20
"""In the table that is printed: all are in the summary."""
STANDARD_OUTPUT = (Path("-"), Path("/dev/stdout"))
"""Where no sentences go when rows do."""


class _Weights(StrEnum):
    auto = "auto"
    free = "free"


class _Mode(StrEnum):
    weight = "weight"
    drop = "drop"
    relabel = "relabel"


class _Engine(StrEnum):
    auto = "auto"
    memory = "memory"
    blocks = "blocks"
    dask = "dask"


_Data = Annotated[
    Path,
    typer.Argument(
        help="A .csv, .tsv (also .gz), .parquet or .npz file (npz: X, y and, if there, X_val, y_val, trusted, groups); "
        "- for standard input; or a directory of Parquet files, or a pattern such as 'data/*.parquet', for a table "
        "that need not fit into memory."
    ),
]
_Label = Annotated[
    str | None,
    typer.Option(
        help="Column with the labels (npz: y); or several, comma-separated, one for the votes of each annotator."
    ),
]
_TrustedColumn = Annotated[str | None, typer.Option(help="Column that marks the trusted labels: yes or no, 1 or 0.")]
_Trusted = Annotated[Path | None, typer.Option(help="A second file with trusted rows, in the same columns.")]
_Group = Annotated[str | None, typer.Option(help="Column with the annotator or source of each label.")]
_Id = Annotated[str | None, typer.Option("--id", help="Column with row ids (not used as a feature).")]
_Drop = Annotated[str, typer.Option(help="Comma-separated columns to exclude from the features.")]
_PredProbs = Annotated[
    Path | None,
    typer.Option(
        help="Out-of-fold probabilities of your own model: .npy, .npz, .csv or .parquet, one row for each row of data, "
        "one column for each class (named by class, or in the order of the sorted classes)."
    ),
]
_Decisions = Annotated[
    Path | None,
    typer.Option(help="Decisions saved from the report of an earlier run (CSV); these rows become trusted."),
]
_WeightsOption = Annotated[_Weights, typer.Option(help="auto: few parameters for all rows. free: one for each row.")]
_ModeOption = Annotated[
    _Mode,
    typer.Option(help="weight: keep all rows. drop: leave out flagged rows. relabel: use the suggested labels."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="Output file for the rows: .csv, .tsv (also .gz), .parquet or .npz; - for standard output; for several "
        "input files a directory."
    ),
]
_Report = Annotated[Path | None, typer.Option(help="Output file for the report, an HTML page.")]
_NoRows = Annotated[
    bool, typer.Option("--no-rows", help="Leave single rows out of the report, so that it can be shared outside.")
]
_Suspects = Annotated[
    Path | None,
    typer.Option(help="Output file for all suspects (CSV): fill in its column decision, and pass it to --decisions."),
]
_Json = Annotated[Path | None, typer.Option("--json", help="Output file for the summary, as JSON.")]
_FailAbove = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Exit with code 1 if the share of wrong labels is higher, 3 if it is unknown."),
]
_EngineOption = Annotated[
    _Engine,
    typer.Option(
        help="memory: one file, all rows at once. blocks: Parquet files, a block of rows at a time. dask: the same on "
        "a cluster. auto: blocks for a directory or a pattern, otherwise memory."
    ),
]
_Scheduler = Annotated[
    str | None,
    typer.Option(help="The address of a Dask scheduler, tcp://host:8786; without it, workers are started here."),
]
_Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of worker processes --engine dask starts here; by default one for each core."),
]
_LearnFrom = Annotated[
    int | None,
    typer.Option(
        help="The maximal number of rows to learn from, 30,000 by default; all rows are judged. More rows find more "
        "wrong labels, and take time and memory in proportion.",
    ),
]
_FitAll = Annotated[
    bool,
    typer.Option(
        "--fit-all",
        help="Fit all rows of a table that is larger than that, block by block: finds more wrong labels, and takes "
        "longer, but no more memory.",
    ),
]
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
    pred_probs: _PredProbs = None,
    decisions: _Decisions = None,
    weights: _WeightsOption = _Weights.auto,
    mode: _ModeOption = _Mode.weight,
    out: _Out = None,
    report: _Report = None,
    no_rows: _NoRows = False,
    suspects: _Suspects = None,
    json_: _Json = None,
    fail_if_noise_above: _FailAbove = None,
    learn_from: _LearnFrom = None,
    fit_all: _FitAll = False,
    seed: _Seed = 0,
    engine: _EngineOption = _Engine.auto,
    scheduler: _Scheduler = None,
    workers: _Workers = None,
) -> None:
    """Find the wrong labels of a table, with the help of rows whose labels are trusted.

    The output has all columns and rows of the input, in their order, and proxbi_weight, proxbi_issue, proxbi_quality,
    proxbi_suggested_label and proxbi_trusted. With several votes (--label a1,a2,a3) also proxbi_consensus_label,
    proxbi_consensus_quality, proxbi_next_vote and the quality of each vote.

    Example: proxbi clean data.csv --label y --trusted-col gold --out cleaned.parquet --report report.html
    """
    from proxbi.cleaning.files.job import Outputs, clean_file
    from proxbi.cleaning.files.tables import Roles
    from proxbi.cleaning.large.job import clean_files
    from proxbi.cleaning.large.parquet import is_many

    keep_programs()
    if trusted_col is not None and trusted is not None:
        raise ValueError("--trusted-col and --trusted cannot both be given.")
    dropped = [name.strip() for name in drop.split(",") if name.strip()]
    outputs = Outputs(out, report, json_, suspects, mode.value, not no_rows)
    roles = Roles(label, trusted_col, trusted, group, id_, dropped)
    common: dict[str, Any] = {"weights": weights.value, "fit_all": fit_all, "seed": seed}
    common["command"] = given_command()
    common |= {} if learn_from is None else {"learn_from": learn_from}
    chosen = engine if engine is not _Engine.auto else _Engine.blocks if is_many(data) else _Engine.memory
    if (scheduler is not None or workers is not None) and chosen is not _Engine.dask:
        raise ValueError("--scheduler and --workers are for --engine dask.")
    job: "Job | TableJob"
    in_memory = chosen is _Engine.memory
    common |= {"decisions": decisions, "steps": next_steps(given_command(), in_memory=in_memory)}
    with progress_bar("cleaning") as tick:
        common["progress"] = lambda stage, share: tick(share, 1, stage)
        if in_memory:
            job = clean_file(data, roles, outputs, pred_probs=pred_probs, **common)
        else:
            refused = {"--suspects": suspects, "--pred-probs": pred_probs}
            job = clean_files(
                data,
                roles,
                _folder(out, [name for name, given in refused.items() if given is not None]),
                to_summary=json_,
                to_report=report,
                show_rows=not no_rows,
                mode=mode.value,
                engine="dask" if chosen is _Engine.dask else "blocks",
                scheduler=scheduler,
                workers=workers,
                **common,
            )
    taken = any(path in STANDARD_OUTPUT for path in outputs.paths())
    show(Console(stderr=taken), str(data), job, outputs)
    if fail_if_noise_above is not None:
        _gate(job.cleaned.noise_rate.estimate, fail_if_noise_above)


def _folder(out: Path | None, needing_all_rows: list[str]) -> Path:
    """Where the files of a table in blocks go; options that need all rows in memory raise an error."""
    if needing_all_rows:
        raise ValueError(f"{needing_all_rows[0]} needs all rows in memory: give one file, and --engine memory.")
    if out is None:
        raise ValueError("--out is required: the directory for the output files, one for each input file.")
    return out


def next_steps(command: str, *, in_memory: bool = True) -> "list[Step]":
    """What to do after this command, for a table in memory or one in blocks, which has no file of suspects."""
    from proxbi.cleaning.report.page import Step

    words = _without(shlex.split(command), ("--decisions", "--suspects", "--mode", "--out"))
    again = shlex.join(words)
    if not in_memory:
        return [
            Step(
                "Run again with your decisions: decided rows are trusted then.",
                f"{again} --out cleaned --decisions decisions.csv",
            ),
            Step("Or, without looking, write the rows without the suspects,", f"{again} --mode drop --out kept"),
            Step("or with the suggested labels.", f"{again} --mode relabel --out relabelled"),
        ]
    return [
        Step("Run again with your decisions: decided rows are trusted then.", f"{again} --decisions decisions.csv"),
        Step("Or decide in a spreadsheet: all suspects as a file.", f"{again} --suspects suspects.csv"),
        Step("Or, without looking, write the rows without the suspects.", f"{again} --mode drop --out cleaned.csv"),
        Step("Or write them with the suggested labels.", f"{again} --mode relabel --out cleaned.csv", one_label=True),
    ]


def _without(words: list[str], options: tuple[str, ...]) -> list[str]:
    """A command without these options and their values."""
    kept: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if word not in options and before not in options and not word.startswith(tuple(f"{o}=" for o in options)):
            kept.append(word)
    return kept


def _gate(rate: float, most: float) -> None:
    """Exit with a code of its own if too many labels are wrong, or if that is not known."""
    from proxbi.report.markup import percent

    if math.isnan(rate):
        typer.echo(f"proxbi: it is not known whether more than {percent(most)} of the labels are wrong.", err=True)
        raise typer.Exit(NOT_KNOWN)
    if rate > most:
        typer.echo(f"proxbi: {percent(rate)} of the labels are wrong, more than {percent(most)}.", err=True)
        raise typer.Exit(TOO_MANY)


def _annotator(found: dict[str, Any]) -> dict[str, Any]:
    from proxbi.cleaning.report import findings
    from proxbi.cleaning.result import Interval

    rate = [math.nan if found[name] is None else found[name] for name in Interval._fields]
    return {
        "annotator": found["annotator"],
        "votes": f"{found['votes']:,}",
        "wrong votes, estimated": findings.share_wrong(Interval(*rate)),
    }


def show(console: Console, title: str, job: "Job | TableJob", outputs: "Outputs") -> None:
    """What was found, first in a sentence, the warnings, and where the files are."""
    from proxbi.cleaning.method.weightings import PLAIN
    from proxbi.cleaning.report import findings
    from proxbi.report.markup import percent

    cleaned, flagged, rows = job.cleaned, job.summary["flagged"], job.summary["rows"]
    console.print(job.summary["headline"], highlight=False, style="bold")
    console.print(job.summary["for_a_model"], highlight=False)
    table = {
        "rows": f"{rows:,} and {job.summary['trusted']:,} trusted",
        "flagged": f"{flagged:,} ({percent(flagged / rows)})",
        "wrong labels, estimated": findings.share_wrong(cleaned.noise_rate),
    }
    if (measured := findings.accuracies(cleaned)) is not None:
        table["trained on"] = PLAIN.get(cleaned.chosen, cleaned.chosen)
        table |= dict(zip(("held-out accuracy before", "held-out accuracy after"), measured, strict=True))
    print_table(console, title, [{"": name, "found": value} for name, value in table.items()])
    if annotators := job.summary["annotators"]:
        print_table(console, "annotators", [_annotator(each) for each in annotators[:MOST_ANNOTATORS]])
    for sentence in cleaned.warnings:
        typer.echo(f"Warning: {sentence}", err=True)
    written = ", ".join(map(str, outputs.paths()))
    console.print(
        f"Written: {written}" if written else "Nothing was written: give --out, --report or --json.", highlight=False
    )
