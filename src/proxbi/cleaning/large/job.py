"""Many Parquet files -> as many with columns added, and a summary: `proxbi clean 'data/*.parquet' --out cleaned/`.

1. `_look` at labels, groups and trust, file by file: which classes and groups there are, and which rows to learn from.
2. Take these rows, and learn from them in this process, as `clean` does.
3. `_judge` piece by piece, and write it: a file, or some row groups of a large one, whose pieces `_join` puts together.
   What was finished by an earlier run on the same files with the same arguments is not done again: it says so in its
   footer.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import numpy as np

from proxbi import __version__
from proxbi._engine import Engine, started
from proxbi.cleaning.files.formats import Parquet, changed
from proxbi.cleaning.files.job import now, require_packages, summary, write_summary
from proxbi.cleaning.files.places import Writer, remove_drafts, require_readable, require_writable, write_all
from proxbi.cleaning.files.tables import ADDED, Roles, Rows, changes_of, check_columns, from_table, truth_values
from proxbi.cleaning.inputs.checks import Words, class_indices, group_indices, require_labels
from proxbi.cleaning.inputs.features import Use
from proxbi.cleaning.inputs.prepare import Inputs, Names, prepare
from proxbi.cleaning.large.block import Block, Judging, judge_block
from proxbi.cleaning.large.learn import Taught, of_sample, overview, teach
from proxbi.cleaning.large.parquet import Part, batches, digest_of, find_parts, finished, join, take, write_blocks
from proxbi.cleaning.method.drawing import Drawn, drawn, merged, with_apart
from proxbi.cleaning.method.summary import Figures
from proxbi.cleaning.report.page import Run, Step
from proxbi.cleaning.result import Overview

LOOKED, TAKEN, LEARNED = 0.05, 0.15, 0.3
"""The share of the work that is done after each stage, roughly: all else is judging."""

JUDGING = "judging piece by piece"
"""The last stage, by name."""

Progress = Callable[[str, float], None]
Mode = Literal["weight", "drop", "relabel"]


class TableJob(NamedTuple):
    """What was found."""

    inputs: Inputs
    """Of the rows that were learned from."""
    cleaned: Overview
    summary: dict[str, Any]


def clean_files(
    given: Path,
    roles: Roles,
    out: Path,
    *,
    to_summary: Path | None = None,
    to_report: Path | None = None,
    show_rows: bool = True,
    mode: Mode = "weight",
    weights: Literal["auto", "free"] = "auto",
    seed: int = 0,
    engine: Literal["blocks", "dask"] = "blocks",
    scheduler: str | None = None,
    workers: int | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> TableJob:
    """Clean the labels of a table of many Parquet files, of which a block of rows at a time is in memory.

    **Arguments:**

    - `given`: a folder, a pattern such as `data/*.parquet`, or a file.
    - `roles`: which column is what; one label a row.
    - `out`: the folder for the files, each with the name and the rows of one that was read.
    - `to_summary`, `mode`, `weights`, `seed`, `command`, `progress`: as in `clean_file`.
    - `to_report`: a page with the figures of all rows, and with suspects and charts of the rows that were learned from;
      `show_rows`: whether it shows single rows.
    - `engine`: "blocks", one after another in this process; or "dask", on the cluster of `scheduler`, or on `workers`
      processes of this machine.
    """
    require_packages()
    parts = find_parts(given)
    check(parts, given, roles, out, [to for to in (to_summary, to_report) if to is not None])
    say = progress or (lambda stage, share: None)
    with started("dask" if engine == "dask" else "here", scheduler, workers) as run:
        taught, shown = _taught(run, parts, given, roles, weights, seed, say)
        asked = [__version__, seed, weights, mode, str(roles), [part.mark() for part in parts]]
        apart = None if roles.trusted_file is None else roles.trusted_file.stat()
        digest = digest_of([*asked, None if apart is None else (apart.st_size, apart.st_mtime_ns)])
        work = Writing(taught.judging, list(shown.X.columns), roles, mode, out.absolute(), digest, run=uuid4().hex)
        figures = []
        try:
            for done, one in enumerate(run(_judge, work, parts)):
                figures.extend([] if one is None else [one])
                say(JUDGING, LEARNED + (1 - LEARNED) * (done + 1) / len(parts))
            for _ in run(_join, work, [part for part in parts if part.of > 1 and part.number == 0]):
                say("putting pieces together", 1.0)
        finally:
            remove_drafts(work.out, work.run)
    found = overview(taught, Figures.sum([*figures, taught.apart]))
    told = summary(taught.inputs, found, seed, command) | {"digest": digest}
    writers: list[tuple[Path, Writer]] = []
    if to_summary is not None:
        writers.append((to_summary, lambda to: write_summary(told, to)))
    if to_report is not None:
        made = Run(command or "", seed, {}, f"{len(parts)} piece(s) of {given}", digest, now())
        writers.append((to_report, lambda to: _report(to, taught, found, shown, f"Labels of {given}", made, show_rows)))
    write_all(writers)
    return TableJob(taught.inputs, found, told)


AGAIN = Step(
    "Put the rows that you decided, with their right labels, into a file of trusted rows, and run again with --trusted."
)
"""What to do with the page: decisions by row number are for tables in memory."""


def _report(path: Path, taught: Taught, found: Overview, shown: "Shown", title: str, run: Run, rows: bool) -> None:
    from proxbi.cleaning.report.publish import publish

    publish(
        path,
        taught.inputs,
        of_sample(taught, found),
        X=shown.X,
        ids=shown.ids,
        id_name=shown.id_name,
        title=title,
        run=run,
        steps=[AGAIN],
        unused=[Use(name, "", why) for name, why in shown.unused.items()],
        show_rows=rows,
    )


def check(parts: list[Part], given: Path, roles: Roles, out: Path, others: list[Path]) -> None:
    """Refuse what cannot be read or written, before any work is done."""
    import pyarrow.parquet as pq

    if roles.label is None:
        raise ValueError(f"label must name the column of {given} that has the labels.")
    empty = pq.ParquetFile(parts[0].path).schema_arrow.empty_table()
    source = Parquet(parts[0].path, table=empty)
    if roles.label not in source.names and "," in roles.label:
        raise ValueError("label names several columns: votes are read together, and so only in a table in memory.")
    named = (roles.label, roles.trusted_column, roles.group, roles.id, *roles.drop)
    check_columns(source, [name for name in named if name is not None])
    if roles.trusted_file is not None:
        require_readable(roles.trusted_file)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; of several files the output is a folder.")
    for part in parts:
        if (out / part.name).resolve() == part.path.resolve():
            raise ValueError(f"{out} is the folder of the input: give another one, so that nothing is overwritten.")
    require_writable(out / parts[0].name)
    for other in others:
        require_writable(other)


class Looking(NamedTuple):
    """What `_look` needs."""

    roles: Roles
    seed: int


class Looked(NamedTuple):
    """The labels and groups of a file, each once, and the rows that may be learned from."""

    labels: np.ndarray
    groups: list[str]
    drawn: Drawn


def _look(looking: Looking, part: Part) -> Looked:
    roles, label = looking.roles, str(looking.roles.label)
    wanted = [name for name in (label, roles.trusted_column, roles.group) if name is not None]
    labels, groups, places = [], [], []
    for first, table in batches(part, list(dict.fromkeys(wanted))):
        block = _block(roles, part, first, table)
        labels.append(np.unique(block.labels))
        if block.groups is not None:
            groups.append(np.unique(group_indices(block.groups, len(block.groups), Words())[0]))
        trusted = np.zeros(len(block.labels), bool) if block.trusted is None else block.trusted
        places.append(drawn(looking.seed, trusted, first=part.first + first))
    kinds = [] if not groups else [str(name) for name in np.unique(np.concatenate(groups))]
    return Looked(np.unique(np.concatenate(labels)), kinds, merged(looking.seed, places))


class _Columns(NamedTuple):
    """The columns of a batch that are no features."""

    labels: np.ndarray
    trusted: Any
    groups: np.ndarray | None


def _block(roles: Roles, part: Part, first: int, table: Any) -> _Columns:
    """Checked; the messages name the file and the row."""
    label = str(roles.label)

    def where(row: int) -> str:
        return part.where(first + row)

    def column(name: str) -> Any:
        return table.column(name).to_pandas()

    mark = roles.trusted_column
    return _Columns(
        require_labels(column(label).to_numpy(), f"Column {label!r}", where),
        None if mark is None else truth_values(repr(mark), column(mark), where),
        None if roles.group is None else column(roles.group).to_numpy(dtype=object),
    )


def _taught(
    run: Engine,
    parts: list[Part],
    given: Path,
    roles: Roles,
    weights: Literal["auto", "free"],
    seed: int,
    say: Progress,
) -> tuple[Taught, "Shown"]:
    """Draw a sample of the rows, take them, and learn from them; and what these rows are."""
    say("looking at the labels", 0.0)
    looked = list(run(_look, Looking(roles, seed), parts))
    total = parts[-1].first + parts[-1].rows
    names = Names(
        np.unique(np.concatenate([one.labels for one in looked])),
        [str(name) for name in np.unique([name for one in looked for name in one.groups])],
    )
    say("taking rows to learn from", LOOKED)
    of_files = merged(seed, [one.drawn for one in looked])
    places = with_apart(seed, of_files, total, 0)
    rows = _sample(run, parts, given, roles, places)
    # Trusted rows given apart come after all others.
    apart = 0 if rows.y_val is None else len(rows.y_val)
    final = with_apart(seed, of_files, total, apart)
    kept, kept_apart = np.flatnonzero(np.isin(places, final)), final[final >= total] - total
    say("learning", TAKEN)
    inputs = prepare(**_arguments(rows, kept, kept_apart), seed=seed, names=names)
    gold = np.zeros(0, np.int64) if rows.y_val is None else class_indices(rows.y_val, rows.words, names.classes)[1]
    taught = teach(
        inputs,
        final,
        total + apart,
        gold,
        names,
        weights=weights,
        seed=seed,
        progress=lambda stage, share: say(stage, TAKEN + (LEARNED - TAKEN) * share),
    )
    ids = None if rows.ids is None else [rows.ids[row] for row in kept]
    name = "row" if ids is None else "id"
    return taught, Shown(_taken(rows.X, kept), final[final < total].tolist() if ids is None else ids, name, rows.unused)


class Shown(NamedTuple):
    """The rows that were learned from, as they came."""

    X: Any
    """Their features, a data frame."""
    ids: list[Any]
    """Or their places in the table."""
    id_name: str
    unused: dict[str, str]
    """Columns that are no features, and why."""


def _sample(run: Engine, parts: list[Part], given: Path, roles: Roles, places: np.ndarray) -> Rows:
    """The rows with these places, as those of one file."""
    import pyarrow as pa

    table = pa.concat_tables(list(run(take, places, parts)))
    firsts = np.array([part.first for part in parts])

    def where(row: int) -> str:
        place = int(places[row])
        part = parts[int(np.searchsorted(firsts, place, side="right")) - 1]
        return part.where(place - part.first)

    return from_table(Parquet(given, table=table, where=where), roles)


def _arguments(rows: Rows, kept: np.ndarray, kept_apart: np.ndarray) -> dict[str, Any]:
    """For `prepare`, of some of the rows and some of those apart."""
    found = rows.arguments()
    for name, some in (("X", kept), ("y", kept), ("trusted", kept), ("groups", kept)):
        found[name] = _taken(found[name], some)
    for name in ("X_val", "y_val"):
        found[name] = _taken(found[name], kept_apart)
    return found


def _taken(values: Any, rows: np.ndarray) -> Any:
    if values is None:
        return None
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


class Writing(NamedTuple):
    """What `_judge` needs."""

    judging: Judging
    features: list[str]
    """The columns that are."""
    roles: Roles
    mode: Mode
    out: Path
    digest: str
    """Of the input and the arguments."""
    run: str
    """A name that no other run has."""


def _judge(work: Writing, part: Part) -> Figures | None:
    """Judge the rows of a piece, and write it; unless that is done. A file that is finished has the figures of all of
    its pieces: the first one stands for them.
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
    """Put the pieces of a file together, and remove them; unless that is done."""
    path, pieces = part.whole(work.out), part.pieces(work.out)
    if finished(path, work.digest) is None:
        write_all([(path, lambda to: join(to, pieces, work.digest))], work.run)
    shutil.rmtree(pieces[0].parent, ignore_errors=True)


def _where(part: Part, first: int, row: int) -> str:
    """How a row of a block is called, by its number there."""
    return part.where(first + row)


def _judged(work: Writing, part: Part) -> Iterator[tuple[Any, Figures]]:
    """The blocks of a file with columns added, and the figures of each."""
    names, label = work.judging.names, str(work.roles.label)
    for first, table in batches(part):
        columns = _block(work.roles, part, first, table)
        count = len(columns.labels)
        known = class_indices(columns.labels, Words(), names.classes)[1]
        groups = columns.groups
        group_of = None if groups is None else group_indices(groups, count, Words(), names.groups)[1]
        X = table.select(work.features).to_pandas(ignore_metadata=True)
        block = Block(X, known, columns.trusted, group_of, part.first + first)
        done = judge_block(work.judging, block, partial(_where, part, first))
        suggested = names.classes[done.suggested]
        values = (done.found.weight, done.issue, done.found.quality, suggested, done.trusted)
        changes = changes_of(dict(zip(ADDED, values, strict=True)), label, columns.labels, work.mode)
        yield changed(table, changes), done.figures
