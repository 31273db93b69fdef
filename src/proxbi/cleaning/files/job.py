"""A file of rows -> cleaned rows, a report and a summary: the work of `proxbi clean`."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from proxbi.cleaning.files.decisions import Decided, file_digest, read_decisions, write_suspects
from proxbi.cleaning.files.formats import Source, kind_of, require_room
from proxbi.cleaning.files.places import STANDARD, Writer, is_stream, require_readable, require_writable, write_all
from proxbi.cleaning.files.probabilities import ARRAYS, read_probabilities
from proxbi.cleaning.files.tables import OF_VOTES, Roles, Rows, load, save
from proxbi.cleaning.inputs.ballots import has_votes
from proxbi.cleaning.inputs.features import Use
from proxbi.cleaning.inputs.prepare import Inputs, prepare
from proxbi.cleaning.method.clean import check_fit_all
from proxbi.cleaning.method.drawing import FIT, checked_number
from proxbi.cleaning.report.page import Run, Step
from proxbi.cleaning.result import Cleaned, NoiseShare, Overview
from proxbi.cleaning.run import clean_inputs

NEEDED = ("pandas", "pyarrow", "sklearn", "jinja2")


class Outputs(NamedTuple):
    """Where things go, and what becomes of the flagged rows."""

    rows: Path | None = None
    report: Path | None = None
    summary: Path | None = None
    suspects: Path | None = None
    mode: Literal["weight", "drop", "relabel"] = "weight"
    show_rows: bool = True
    """Whether the report shows single rows."""

    def paths(self) -> list[Path]:
        return [path for path in (self.rows, self.report, self.summary, self.suspects) if path is not None]


class Job(NamedTuple):
    """What was found."""

    inputs: Inputs
    cleaned: Cleaned
    summary: dict[str, Any]
    decided: Decided | None = None


def clean_file(
    path: Path,
    roles: Roles,
    outputs: Outputs,
    *,
    pred_probs: Path | None = None,
    decisions: Path | None = None,
    weights: Literal["auto", "free"] = "auto",
    learn_from: int = FIT,
    fit_all: bool = False,
    seed: int = 0,
    command: str | None = None,
    steps: Sequence[Step] = (),
    progress: Callable[[str, float], None] | None = None,
) -> Job:
    """Clean the labels of the file. The paths are checked first, then the rows, and
    only then does the work start; the outputs are written at the end, all of them or none.

    **Arguments:**

    - `path`: a CSV, Parquet or NumPy file; `Path("-")` is standard input, with rows as CSV.
    - `roles`: which columns are the label, the trusted rows, groups and names of rows (`proxbi.cleaning.files.Roles`).
    - `outputs`: where the cleaned rows, the report, the summary and the suspects are written, and what becomes of
      flagged rows (`proxbi.cleaning.files.Outputs`); `Path("-")` is standard output.
    - `pred_probs`: a file with the probabilities of a model of yours, out of fold: a row for each row of `path`, a
      column for each class.
    - `decisions`: a CSV file of decisions about rows of `path`, saved from the report of an earlier run: these rows are
      trusted now.
    - `weights`: "free" learns one weight for each row by the bilevel problem; "auto" chooses.
    - `learn_from`: the most rows that are fitted.
    - `fit_all`: whether the regression that judges is fitted to all rows then.
    - `seed`: of all random choices.
    - `command`: the command line, for the report.
    - `steps`: what the report says should be done next.
    - `progress`: called with the name of a part of the work and the share that is done.

    **Returns:** a `Job`: the inputs, what was found (`Cleaned`), and the summary.

    Example: `proxbi.cleaning.clean`, for arrays.
    """
    say = progress or (lambda stage, share: None)
    require_packages()
    checked_number(learn_from)
    check_fit_all(fit_all, weights, False)
    check_paths(path, roles, outputs, pred_probs, decisions)
    say("reading", 0.0)
    rows = load(path, roles)
    if outputs.rows is not None:
        require_room(rows.source, outputs.rows)
    if outputs.mode == "relabel" and has_votes(rows.y):
        raise ValueError(
            f"{rows.words.labels} has several labels per row, and mode relabel replaces one: the consensus is written "
            f"to a column of its own, {OF_VOTES[0]!r}."
        )
    chances = None if pred_probs is None else read_probabilities(pred_probs, len(rows.y), rows.classes)
    digest = file_digest(rows.source.path)
    decided = None if decisions is None else read_decisions(decisions, rows.subject(digest))
    inputs = prepare(**rows.arguments(decided), pred_probs=chances, learn_from=learn_from, seed=seed)
    cleaned = clean_inputs(inputs, weights=weights, seed=seed, fit_all=fit_all, progress=progress)
    inputs = inputs if cleaned.consensus is None else inputs.with_consensus(cleaned.consensus.label)
    job = Job(inputs, cleaned, summary(inputs, cleaned, seed, command) | {"digest": digest}, decided)
    say("writing", 1.0)
    _write(rows, job, outputs, Run(command or "", seed, {}, _described(rows.source), digest, now()), steps)
    return job


def check_paths(
    path: Path, roles: Roles, outputs: Outputs, pred_probs: Path | None = None, decisions: Path | None = None
) -> None:
    """Refuse inputs that cannot be read and outputs that cannot be written."""
    inputs = [given for given in (path, roles.trusted_file, pred_probs, decisions) if given is not None]
    for given in inputs:
        if given is not decisions and (given is not pred_probs or given.suffix.lower() not in ARRAYS):
            kind_of(given)
        require_readable(given)
    if roles.trusted_file is not None and roles.trusted_file.resolve() == path.resolve():
        raise ValueError(
            f"{path} cannot be its own file of trusted rows, which would judge themselves: mark those that are trusted "
            "in a column."
        )
    if outputs.rows is not None:
        kind_of(outputs.rows)
    for output in outputs.paths():
        require_writable(output)
    _require_places_of_their_own(inputs, outputs.paths())


def _require_places_of_their_own(inputs: list[Path], outputs: list[Path]) -> None:
    for used in (inputs, outputs):
        if used.count(STANDARD) > 1:
            raise ValueError(f"{STANDARD} is named twice: it can be one input and one output.")
    taken = {given.resolve() for given in inputs if given != STANDARD}
    for output in outputs:
        if output.resolve() in taken:
            raise ValueError(f"{output} is named twice: each output needs a file of its own, and none is the input.")
        if not is_stream(output):  # several may go to /dev/null
            taken.add(output.resolve())


def summary(inputs: Inputs, cleaned: Cleaned | Overview, seed: int, command: str | None) -> dict[str, Any]:
    """What `--json` writes: only numbers, text, lists and dictionaries; what is not known is null."""
    from proxbi.cleaning.report import findings
    from proxbi.cleaning.report.publish import versions

    classes = [str(label) for label in inputs.classes.tolist()]
    by_class = [_share("class", classes, each) for each in cleaned.noise_by_class]
    by_group = [_share("group", inputs.group_names, each) for each in findings.groups_judged(cleaned)]
    found = {
        "headline": findings.headline(cleaned),
        "for_a_model": findings.for_a_model(cleaned),
        "rows": cleaned.counts.judged,
        "trusted": cleaned.counts.trusted,
        "decided": cleaned.counts.decided,
        "flagged": cleaned.counts.flagged,
        "noise_rate": cleaned.noise_rate._asdict(),
        "noise_by_class": by_class,
        "noise_by_group": by_group,
        "annotators": _annotators(inputs, cleaned),
        "scores": [score._asdict() for score in cleaned.scores],
        "chosen": cleaned.chosen,
        "helped": cleaned.helped,
        "settings": cleaned.settings,
        "warnings": cleaned.warnings,
        "seed": seed,
        "command": command,
        "versions": versions(),
    }
    return {name: _plain(value) for name, value in found.items()}


def _share(kind: str, names: Sequence[Any], found: NoiseShare) -> dict[str, Any]:
    """Of the labels of one class or group how many are wrong."""
    return {kind: names[found.which], "rows": found.rows, **found.share._asdict()}


def _annotators(inputs: Inputs, cleaned: Cleaned | Overview) -> list[dict[str, Any]]:
    """How each annotator votes; none where each row has one label."""
    found = [] if cleaned.consensus is None else cleaned.consensus.annotators
    return [
        {"annotator": str(name), "votes": each.votes, **each.rate._asdict(), "confusion": each.confusion.tolist()}
        for name, each in zip(inputs.annotators, found, strict=True)
    ]


def _described(source: Source) -> str:
    return f"{Path(source.name).name} ({source.path.stat().st_size:,} bytes)"


def now() -> str:
    """For the foot of a page."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _write(rows: Rows, job: Job, outputs: Outputs, run: Run, steps: Sequence[Step]) -> None:
    writers: list[tuple[Path, Writer]] = []
    if outputs.rows is not None:
        writers.append((outputs.rows, lambda to: save(rows, job.cleaned, job.inputs.classes, outputs.mode, to)))
    if outputs.report is not None:
        writers.append((outputs.report, lambda to: _report(to, rows, job, outputs.show_rows, run, steps)))
    if outputs.summary is not None:
        writers.append((outputs.summary, lambda to: write_summary(job.summary, to)))
    if outputs.suspects is not None:
        writers.append((outputs.suspects, lambda to: _suspects(to, rows, job, run.digest)))
    write_all(writers)


def _suspects(path: Path, rows: Rows, job: Job, digest: str) -> None:
    """All of them, the worst first, as the report has the first ones."""
    from proxbi.cleaning.report.review import suspects

    found = suspects(job.cleaned, len(job.cleaned.issue))
    suggested = Decided(found, job.inputs.classes[job.cleaned.suggested[found]])
    write_suspects(path, rows.subject(digest), suggested, job.cleaned.quality)


def write_summary(found: dict[str, Any], path: Path) -> None:
    """As JSON."""
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _report(path: Path, rows: Rows, job: Job, show_rows: bool, run: Run, steps: Sequence[Step]) -> None:
    from proxbi.cleaning.report.publish import publish

    kind, ids = rows.called()
    publish(
        path,
        job.inputs,
        job.cleaned,
        X=rows.X,
        ids=ids,
        id_name=kind,
        title=f"Labels of {Path(rows.source.name).name}",
        run=run,
        steps=steps,
        unused=[Use(name, "", why) for name, why in rows.unused.items()],
        show_rows=show_rows,
    )


def _plain(value: Any) -> Any:
    """For JSON, which knows no NaN and no NumPy."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def require_packages() -> None:
    """Say what is to be installed."""
    lacking = [name for name in NEEDED if find_spec(name) is None]
    if lacking:
        raise ImportError(f"cleaning files needs {', '.join(lacking)}: pip install 'proxbi[clean]'.")
