"""A file of rows -> cleaned rows, a report and a summary: the work of `proxbi clean`."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from proxbi.checkpoint import require_writable
from proxbi.cleaning.files.formats import kind_of, require_readable, written_whole
from proxbi.cleaning.files.tables import Roles, Rows, load, save
from proxbi.cleaning.inputs.prepare import Inputs, prepare
from proxbi.cleaning.result import Cleaned
from proxbi.cleaning.run import clean_inputs

NEEDED = ("pandas", "pyarrow", "sklearn", "jinja2")


class Outputs(NamedTuple):
    """Where things go, and what becomes of the flagged rows."""

    rows: Path | None = None
    report: Path | None = None
    summary: Path | None = None
    mode: Literal["weight", "drop", "relabel"] = "weight"

    def paths(self) -> list[Path]:
        return [path for path in (self.rows, self.report, self.summary) if path is not None]


class Job(NamedTuple):
    """What was found."""

    inputs: Inputs
    cleaned: Cleaned
    summary: dict[str, Any]


def clean_file(
    path: Path,
    roles: Roles,
    outputs: Outputs,
    *,
    weights: Literal["auto", "free"] = "auto",
    seed: int = 0,
    command: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Job:
    """Clean the labels of the file. Everything that can be wrong with the paths is looked at first, then the rows, and
    only then does the work start; the outputs are written at the end, all of them or none.
    """
    say = progress or (lambda stage, share: None)
    _require_packages()
    check_paths(path, roles, outputs)
    say("reading", 0.0)
    rows = load(path, roles)
    inputs = prepare(**rows.arguments())
    cleaned = clean_inputs(inputs, weights=weights, seed=seed, progress=progress)
    job = Job(inputs, cleaned, summary(inputs, cleaned, seed, command))
    say("writing", 1.0)
    _write(rows, job, outputs, seed, command)
    return job


def check_paths(path: Path, roles: Roles, outputs: Outputs) -> None:
    """Refuse inputs that cannot be read and outputs that cannot be written."""
    inputs = [path] if roles.trusted_file is None else [path, roles.trusted_file]
    for given in inputs:
        require_readable(given)
    if outputs.rows is not None:
        kind_of(outputs.rows)
    taken = {given.resolve() for given in inputs}
    for output in outputs.paths():
        if output.resolve() in taken:
            raise ValueError(f"{output} is named twice: each output needs a file of its own, and none is the input.")
        if output.is_dir():
            raise ValueError(f"{output} is a folder, and a file is to be written there.")
        taken.add(output.resolve())
    for output in outputs.paths():
        require_writable(output.parent)


def summary(inputs: Inputs, cleaned: Cleaned, seed: int, command: str | None) -> dict[str, Any]:
    """What `--json` writes: only numbers, text, lists and dictionaries."""
    from proxbi.cleaning.report.publish import versions

    classes = [str(label) for label in inputs.classes.tolist()]
    found = {
        "rows": int(np.sum(~cleaned.trusted)),
        "trusted": int(np.sum(cleaned.trusted)),
        "flagged": int(np.sum(cleaned.issue)),
        "noise_rate": cleaned.noise_rate._asdict(),
        "noise_by_class": [{**row, "class": classes[row["class"]]} for row in cleaned.noise_by_class],
        "noise_by_group": [{**row, "group": inputs.group_names[row["group"]]} for row in cleaned.noise_by_group],
        "scores": cleaned.scores,
        "chosen": cleaned.chosen,
        "helped": cleaned.helped,
        "settings": cleaned.settings,
        "warnings": cleaned.warnings,
        "seed": seed,
        "command": command,
        "versions": versions(),
    }
    return {name: _plain(value) for name, value in found.items()}


def _write(rows: Rows, job: Job, outputs: Outputs, seed: int, command: str | None) -> None:
    from proxbi.cleaning.report.publish import publish

    with written_whole(outputs.paths()) as drafts:
        draft = dict(zip(outputs.paths(), drafts, strict=True))
        if outputs.rows is not None:
            save(rows, job.cleaned, job.inputs.classes, outputs.mode, draft[outputs.rows])
        if outputs.report is not None:
            publish(
                draft[outputs.report],
                job.inputs,
                job.cleaned,
                X=rows.X,
                ids=rows.ids,
                title=f"The labels of {rows.source.path.name}",
                command=command,
                seed=seed,
            )
        if outputs.summary is not None:
            draft[outputs.summary].write_text(json.dumps(job.summary, indent=2) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """For JSON, which knows no NaN and no NumPy."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _require_packages() -> None:
    lacking = [name for name in NEEDED if find_spec(name) is None]
    if lacking:
        raise ImportError(f"cleaning files needs {', '.join(lacking)}: pip install 'proxbi[clean]'.")
