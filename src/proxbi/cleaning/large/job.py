"""Many Parquet files -> as many with columns added, and a summary: `proxbi clean 'data/*.parquet' --out cleaned/`.

1. `look` at labels, groups and trust, file by file: which classes and groups there are, and which rows to learn from.
2. Take these rows, and learn from them in this process, as `clean` does; with `fit_all` also from sums over all rows,
   piece by piece (`adding.py`).
3. `_judge` and write piece by piece: a file, or some row groups of a large one, whose pieces `_join` puts together.
   Pieces finished by an earlier run on the same files with the same arguments are recognised by their footer and not
   done again.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from proxbi import __version__
from proxbi._engine import started
from proxbi._lock import Lock
from proxbi.cleaning.files.decisions import Decided, file_digest
from proxbi.cleaning.files.formats import Parquet, changed
from proxbi.cleaning.files.job import now, require_packages, summary, write_summary
from proxbi.cleaning.files.places import Writer, remove_drafts, require_readable, require_writable, write_all
from proxbi.cleaning.files.tables import (
    ADDED,
    Roles,
    about_given,
    changes_of,
    check_columns,
)
from proxbi.cleaning.inputs.features import Use
from proxbi.cleaning.inputs.prepare import Inputs
from proxbi.cleaning.large.adding import Kept, add_parts, remove_sums
from proxbi.cleaning.large.block import Judging, judge_block
from proxbi.cleaning.large.learn import Taught, of_sample, overview
from proxbi.cleaning.large.look import TableOf, digest_of_files
from proxbi.cleaning.large.parquet import (
    Part,
    beside,
    digest_of,
    find_parts,
    finished,
    join,
    write_blocks,
)
from proxbi.cleaning.large.reading import Reading, blocks
from proxbi.cleaning.large.sample import LEARNED, Progress, Shown, learned
from proxbi.cleaning.method.clean import check_fit_all
from proxbi.cleaning.method.drawing import FIT, checked_number
from proxbi.cleaning.method.summary import Figures
from proxbi.cleaning.report.page import Run, Step
from proxbi.cleaning.result import Overview

JUDGING = "judging piece by piece"
"""The last stage, by name."""

NOT_OURS = (
    "{} has {} more Parquet file(s), such as {}, that this run did not write: whoever reads all files there reads them "
    "too."
)

Mode = Literal["weight", "drop", "relabel"]


class TableJob(NamedTuple):
    """The result."""

    inputs: Inputs
    """The inputs of the rows that were learned from."""
    cleaned: Overview
    summary: dict[str, Any]
    decided: Decided | None = None


def clean_files(
    given: Path,
    roles: Roles,
    out: Path,
    *,
    to_summary: Path | None = None,
    to_report: Path | None = None,
    show_rows: bool = True,
    decisions: Path | None = None,
    mode: Mode = "weight",
    weights: Literal["auto", "free"] = "auto",
    learn_from: int = FIT,
    fit_all: bool = False,
    seed: int = 0,
    engine: Literal["blocks", "dask"] = "blocks",
    scheduler: str | None = None,
    workers: int | None = None,
    command: str | None = None,
    steps: Sequence[Step] = (),
    progress: Progress | None = None,
) -> TableJob:
    """Clean the labels of a table of many Parquet files, with one block of rows in memory at a time.

    **Arguments:**

    - `given`: a directory, a pattern such as `data/*.parquet`, or a file.
    - `roles`: the role of each column; one label per row.
    - `out`: the directory for the files, each with the name and the rows of an input file.
    - `to_summary`, `decisions`, `mode`, `weights`, `learn_from`, `fit_all`, `seed`, `command`, `steps`, `progress`: as
      in `clean_file`.
    - `to_report`: a page with the figures of all rows, and suspects and charts of the rows that were learned from;
      `show_rows`: whether it shows single rows.
    - `engine`: "blocks", one after another in this process; or "dask", on the cluster of `scheduler`, or on `workers`
      processes of this machine.
    """
    require_packages()
    checked_number(learn_from)
    check_fit_all(fit_all, weights, False)
    parts = find_parts(given)
    check(parts, given, roles, out, [to for to in (to_summary, to_report) if to is not None], decisions)
    say = progress or (lambda stage, share: None)
    with _alone(out), started("dask" if engine == "dask" else "here", scheduler, workers) as run:
        table = TableOf(parts, given, roles, decisions, digest_of_files(parts))
        apart = None if roles.trusted_file is None else roles.trusted_file.stat()
        asked = [
            __version__,
            seed,
            weights,
            learn_from,
            fit_all,
            mode,
            str(roles),
            table.digest,
            decisions and file_digest(decisions),
        ]
        digest = digest_of([*asked, None if apart is None else (apart.st_size, apart.st_mtime_ns)])
        name, place = uuid4().hex, out.absolute()
        figures = []
        try:
            adding = partial(add_parts, table.parts, Kept(place, digest, name)) if fit_all else None
            taught, shown, decided = learned(run, table, weights, learn_from, seed, say, adding)
            reading = Reading(roles, list(shown.X.columns), decided)
            work = Writing(taught.judging, reading, mode, place, digest, name)
            for done, one in enumerate(run(_judge, work, parts)):
                figures.extend([] if one is None else [one])
                say(JUDGING, LEARNED + (1 - LEARNED) * (done + 1) / len(parts))
            for _ in run(_join, work, [part for part in parts if part.of > 1 and part.number == 0]):
                say("putting pieces together", 1.0)
            remove_sums(place)
        finally:
            remove_drafts(place, name)
    if digest_of_files(parts) != table.digest:
        raise OSError(f"{given} changed while it was read: give the same command again, which begins anew.")
    found = overview(taught, Figures.sum([*figures, taught.apart]))
    if others := beside(place, parts):
        found = replace(found, warnings=[*found.warnings, NOT_OURS.format(out, len(others), others[0])])
    told = summary(taught.inputs, found, seed, command) | {"digest": table.digest}
    writers: list[tuple[Path, Writer]] = []
    if to_summary is not None:
        writers.append((to_summary, lambda to: write_summary(told, to)))
    if to_report is not None:
        made = Run(command or "", seed, {}, f"{len(parts)} piece(s) of {given}", table.digest, now())
        page = {"title": f"Labels of {given}", "run": made, "steps": steps, "show_rows": show_rows}
        writers.append((to_report, lambda to: _report(to, taught, found, shown, page)))
    write_all(writers)
    return TableJob(taught.inputs, found, told, decided)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other runs out of the directory, and remove the leftovers of killed runs; the directory is removed again if
    nothing was written.
    """
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    lock = Lock(out)
    try:
        remove_drafts(out)
        yield
    finally:
        lock.release()
        if made:
            with suppress(OSError):  # it is not empty
                out.rmdir()


def _report(path: Path, taught: Taught, found: Overview, shown: Shown, page: dict[str, Any]) -> None:
    from proxbi.cleaning.report.publish import publish

    publish(
        path,
        taught.inputs,
        of_sample(taught, found),
        X=shown.X,
        ids=shown.places.tolist() if shown.ids is None else shown.ids,
        id_name="row" if shown.ids is None else "id",
        places=shown.places,
        earlier=shown.earlier,
        unused=[Use(name, "", why) for name, why in shown.unused.items()],
        **page,
    )


def check(
    parts: list[Part], given: Path, roles: Roles, out: Path, others: list[Path], decisions: Path | None = None
) -> None:
    """Raise an error for anything that cannot be read or written, before any work is done."""
    import pyarrow.parquet as pq

    if roles.label is None:
        raise ValueError(f"label must name the column of {given} that has the labels.")
    empty = pq.ParquetFile(parts[0].path).schema_arrow.empty_table()
    source = Parquet(parts[0].path, table=empty)
    if roles.label not in source.names and "," in roles.label:
        raise ValueError("label names several columns: votes are read together, and so only in a table in memory.")
    named = (roles.label, roles.trusted_column, roles.group, roles.id, *roles.drop)
    check_columns(source, [name for name in named if name is not None])
    for apart in (roles.trusted_file, decisions):
        if apart is not None:
            require_readable(apart)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; of several files the output is a folder.")
    for part in parts:
        if (out / part.name).resolve() == part.path.resolve():
            raise ValueError(f"{out} is the folder of the input: give another one, so that nothing is overwritten.")
    folder = given if given.is_dir() else None
    if folder is not None and folder.resolve() in out.resolve().parents:
        raise ValueError(
            f"{out} is inside of {given}, where the next run would take its files for input: give another folder."
        )
    require_writable(out / parts[0].name)
    for other in others:
        require_writable(other)


class Writing(NamedTuple):
    """The arguments of `_judge`."""

    judging: Judging
    reading: Reading
    mode: Mode
    out: Path
    digest: str
    """The digest of the input and the arguments."""
    run: str
    """A unique name of this run."""


def _judge(work: Writing, part: Part) -> Figures | None:
    """Judge the rows of a piece and write it, unless that is done. A finished file has the figures of all its pieces:
    they are returned for its first piece.
    """
    whole = finished(part.whole(work.out), work.digest)
    if whole is not None:
        return None if part.number else whole
    path = part.pieces(work.out)[part.number]
    before = finished(path, work.digest)
    if before is not None:
        return before
    found: list[Figures] = []
    blocks = _judged(work, part)
    write_all([(path, lambda to: found.append(write_blocks(to, blocks, work.digest)))], work.run)
    return found[0]


def _join(work: Writing, part: Part) -> None:
    """Join the pieces of a file and remove them, unless that is done."""
    path, pieces = part.whole(work.out), part.pieces(work.out)
    if finished(path, work.digest) is None:
        write_all([(path, lambda to: join(to, pieces, work.digest))], work.run)
    shutil.rmtree(pieces[0].parent, ignore_errors=True)


def _judged(work: Writing, part: Part) -> Iterator[tuple[Any, Figures]]:
    """The blocks of a file with columns added, and the figures of each."""
    names, label = work.judging.names, str(work.reading.roles.label)
    for read in blocks(work.reading, names, part):
        done = judge_block(work.judging, read.block, read.where)
        suggested = names.classes[done.suggested]
        values = (done.found.weight, done.issue, done.found.quality, suggested, done.trusted)
        added = about_given(dict(zip(ADDED, values, strict=True)), read.labels)
        changes = changes_of(added, label, read.labels, work.mode)
        yield changed(read.table, changes), done.figures
