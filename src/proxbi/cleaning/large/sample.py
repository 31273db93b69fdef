"""The second stage of a table in blocks: a sample of its rows is drawn, taken and learned from."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from proxbi._engine import Engine
from proxbi.cleaning.files.decisions import Decided, earlier, read_decisions, rows_named
from proxbi.cleaning.files.formats import Parquet
from proxbi.cleaning.files.tables import Rows, from_table
from proxbi.cleaning.inputs.checks import class_indices
from proxbi.cleaning.inputs.prepare import Names, prepare
from proxbi.cleaning.large.block import Judging
from proxbi.cleaning.large.learn import Taught, teach
from proxbi.cleaning.large.look import Looking, TableOf, look, subject
from proxbi.cleaning.large.parquet import take
from proxbi.cleaning.large.reading import Reading
from proxbi.cleaning.method.all_rows import Sums
from proxbi.cleaning.method.drawing import merged, with_apart
from proxbi.cleaning.method.memory import require_memory

LOOKED, TAKEN, LEARNED = 0.05, 0.15, 0.3
"""Roughly the share of the work done after each stage: the rest is judging."""

Progress = Callable[[str, float], None]


Apart = tuple[Any, Int[np.ndarray, " apart"], int]
"""Trusted rows given separately: their features, or None, their classes, and the number of rows before them."""
Adding = Callable[[Engine, Judging, Reading, Apart, Progress], Sums]
"""Adds up all rows of the table."""


class Shown(NamedTuple):
    """The rows that were learned from, as given."""

    X: Any
    """Their features, a data frame."""
    places: Int[np.ndarray, " sample"]
    """Their indices in the table."""
    ids: list[Any] | None
    unused: dict[str, str]
    """Columns that are not features, and why."""
    earlier: list[dict[str, Any]]
    """Earlier decisions, including those on rows that were not learned from: the next decisions contain them."""


def learned(
    run: Engine,
    table: TableOf,
    weights: Literal["auto", "free"],
    learn_from: int,
    seed: int,
    say: Progress,
    adding: Adding | None = None,
) -> tuple[Taught, Shown, Decided | None]:
    """Draw a sample of the rows, read it, and learn from it, with `adding` also from sums over all rows; returns the
    result, these rows, and the decisions.
    """
    say("looking at the labels", 0.0)
    named, total = None if table.decisions is None else rows_named(table.decisions), table.rows
    looked = list(run(look, Looking(table.roles, seed, learn_from, named), table.parts))
    about = subject(table, looked)
    decided = None if about is None or table.decisions is None else read_decisions(table.decisions, about)
    classes = [one.undecided for one in looked] + ([] if decided is None else [decided.labels])
    names = Names(
        np.unique(np.concatenate(classes)),
        [str(name) for name in np.unique([name for one in looked for name in one.groups])],
    )
    require_memory(min(learn_from, total), len(names.classes), table.columns)
    say("taking rows to learn from", LOOKED)
    of_files = merged(seed, learn_from, [one.drawn for one in looked])
    places = with_apart(seed, learn_from, of_files, total, 0)
    rows = _sample(run, table, places)
    # Trusted rows given separately come after all others.
    apart = 0 if rows.y_val is None else len(rows.y_val)
    final = with_apart(seed, learn_from, of_files, total, apart)
    kept, kept_apart = np.flatnonzero(np.isin(places, final)), final[final >= total] - total
    say("learning", TAKEN)
    ours = None if decided is None else decided.among(places)
    inputs = prepare(**_arguments(rows, ours, kept, kept_apart), learn_from=learn_from, seed=seed, names=names)
    gold = np.zeros(0, np.int64) if rows.y_val is None else class_indices(rows.y_val, rows.words, names.classes)[1]
    reading = Reading(table.roles, _columns(rows), decided)
    taught = teach(
        inputs,
        final,
        total + apart,
        gold,
        names,
        weights=weights,
        seed=seed,
        progress=lambda stage, share: say(stage, TAKEN + (LEARNED - TAKEN) * share),
        add=None if adding is None else lambda judging: adding(run, judging, reading, (rows.X_val, gold, total), say),
    )
    ids = None if rows.ids is None else [rows.ids[row] for row in kept]
    before = [] if about is None or decided is None else earlier(about, decided)
    return taught, Shown(_taken(rows.X, kept), final[final < total], ids, rows.unused, before), decided


def _sample(run: Engine, table: TableOf, places: np.ndarray) -> Rows:
    """The rows with these indices, like those of one file."""
    import pyarrow as pa

    found = list(run(take, places, table.parts))
    taken = pa.concat_tables([each.select(found[0].column_names) for each in found])
    firsts = np.array([part.first for part in table.parts])

    def where(row: int) -> str:
        place = int(places[row])
        part = table.parts[int(np.searchsorted(firsts, place, side="right")) - 1]
        return part.where(place - part.first)

    return from_table(Parquet(table.given, table=taken, where=where), table.roles)


def _arguments(rows: Rows, decided: Decided | None, kept: np.ndarray, kept_apart: np.ndarray) -> dict[str, Any]:
    """The arguments of `prepare`, for some of the rows and some of those given separately."""
    found = rows.arguments(decided)
    for name in ("X", "y", "trusted", "groups", "given"):
        found[name] = _taken(found.get(name), kept)
    for name in ("X_val", "y_val"):
        found[name] = _taken(found[name], kept_apart)
    return found


def _columns(rows: Rows) -> list[str]:
    assert hasattr(rows.X, "columns"), "a Parquet file is read as a data frame"
    return list(rows.X.columns)


def _taken(values: Any, rows: np.ndarray) -> Any:
    if values is None:
        return None
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]
