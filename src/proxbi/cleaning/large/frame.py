"""Clean a Dask data frame: its features stay where they are; columns with one value per row are in memory."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.inputs.checks import Words, by_index, class_indices, group_indices, trusted_mask
from proxbi.cleaning.inputs.prepare import Inputs, Names, prepare
from proxbi.cleaning.large.block import Block, JudgedBlock, Judging, add_block, block_apart, judge_block
from proxbi.cleaning.large.learn import Taught, overview, teach
from proxbi.cleaning.method.all_rows import Sums
from proxbi.cleaning.method.drawing import FIT, drawn, with_apart
from proxbi.cleaning.method.memory import require_memory
from proxbi.cleaning.method.scoring import reviewed
from proxbi.cleaning.method.summary import Figures
from proxbi.cleaning.result import Cleaned

if TYPE_CHECKING:
    import pandas as pd


AT_ONCE = 8
"""The number of partial sums that one task adds up: a few megabytes each."""


def is_dask(X: Any) -> bool:
    """Whether this is a Dask data frame."""
    return type(X).__module__.split(".")[0].startswith("dask") and hasattr(X, "to_delayed") and hasattr(X, "columns")


def columns_alone(frame: Any) -> "pd.DataFrame":
    """A frame in memory with the same columns and no rows."""
    import pandas as pd

    return pd.DataFrame(columns=frame.columns)


class Labels(NamedTuple):
    """The columns in memory, one value for each row of the frame."""

    labels: Int[np.ndarray, " rows"]
    trusted: Bool[np.ndarray, " rows"] | None
    groups: Int[np.ndarray, " rows"] | None
    names: Names

    @classmethod
    def read(cls, y: Any, trusted: Any, groups: Any, rows: int) -> "Labels":
        """Read and check them; each may be a Dask series."""
        y, trusted, groups = (_in_memory(each) for each in (y, trusted, groups))
        if len(y) != rows:
            raise ValueError(f"X has {rows} rows and y has {len(y)}.")
        classes, labels = class_indices(y, Words())
        group_names, group_of = ([], None) if groups is None else group_indices(groups, rows, Words())
        mask = None if trusted is None else trusted_mask(trusted, rows, Words())
        return cls(labels, mask, group_of, Names(classes, group_names))

    def some(self, rows: Any) -> "Labels":
        """Those of these rows."""
        trusted, groups = (None if part is None else part[rows] for part in (self.trusted, self.groups))
        return Labels(self.labels[rows], trusted, groups, self.names)

    def block(self, X: "pd.DataFrame", first: int) -> Block:
        """A block of these with the features of its rows."""
        require_rows(X, first, len(self.labels))
        return Block(X, self.labels, self.trusted, self.groups, first)


def require_rows(X: "pd.DataFrame", first: int, rows: int) -> None:
    """Raise an error if a partition has changed its number of rows since it was first read."""
    if len(X) != rows:
        raise ValueError(
            f"the partition of X with row {first} had {rows} rows when fit began, and has {len(X)} now: write X to "
            "files first if it is not the same each time it is computed."
        )


class CleanedFrame(NamedTuple):
    """The result."""

    inputs: Inputs
    """The inputs of all rows, without their features."""
    cleaned: Cleaned
    sample: "pd.DataFrame"
    """The rows of the frame that were learned from."""
    sample_inputs: Inputs
    """The inputs of these, and of trusted rows given separately."""
    sample_cleaned: Cleaned
    sample_apart: "pd.DataFrame | None"
    """The trusted rows given separately."""
    index: Any
    """The index of the frame."""


def clean_frame(
    frame: Any,
    y: Any,
    *,
    X_val: "pd.DataFrame | None" = None,
    y_val: Any = None,
    trusted: Any = None,
    groups: Any = None,
    weights: Literal["auto", "free"] = "auto",
    learn_from: int = FIT,
    fit_all: bool = False,
    seed: int = 0,
) -> CleanedFrame:
    """Clean the labels `y` of a Dask data frame, on the cluster of the current client or else in threads. Labels, trust
    and groups are read into memory, and each worker reads one partition of the frame at a time.
    """
    import dask
    import pandas as pd

    indices = dask.compute(*(dask.delayed(_index)(part) for part in frame.to_delayed()))
    index, firsts = indices[0].append(list(indices[1:])), np.cumsum([0, *map(len, indices)])
    rows = len(index)
    if rows == 0:
        raise ValueError("X has no rows.")
    known = Labels.read(y, trusted, groups, rows)
    gold = np.zeros(0, np.int64) if y_val is None else class_indices(y_val, Words(), known.names.classes)[1]
    require_memory(min(learn_from, rows + len(gold)), len(known.names.classes), len(frame.columns))
    of_frame = drawn(seed, learn_from, np.zeros(rows, bool) if known.trusted is None else known.trusted)
    places = with_apart(seed, learn_from, of_frame, rows, len(gold))
    ours, beside = places[places < rows], places[places >= rows] - rows
    cuts = [(int(first), int(last)) for first, last in pairwise(firsts)]
    sample = pd.concat(_each(frame, _take, ours, cuts))
    sample_apart = None if X_val is None else X_val.iloc[beside]
    inputs = prepare(
        sample,
        known.names.classes[known.labels[ours]],
        X_val=sample_apart,
        y_val=None if y_val is None else np.asarray(y_val)[beside],
        trusted=None if known.trusted is None else known.trusted[ours],
        groups=None if known.groups is None else np.array(known.names.groups, object)[known.groups[ours]],
        words=Words(where=lambda row: by_index(int(ours[row]))),
        learn_from=learn_from,
        seed=seed,
        names=known.names,
    )
    inputs = replace(inputs, encoder=inputs.encoder.naming(by_index))
    blocks = [(known.some(slice(*cut)), cut[0]) for cut in cuts]

    def add(judging: Judging) -> Sums:
        beside = [] if X_val is None else [add_block(judging, block_apart(judging, X_val, gold, rows), by_index)]
        return Sums.total([_sum(_tasks(frame, _added, judging, blocks)), *beside])

    taught = teach(
        inputs,
        places,
        rows + len(gold),
        gold,
        known.names,
        weights=weights,
        seed=seed,
        add=add if fit_all else None,
    )
    judged: list[JudgedBlock] = _each(frame, _judged, taught.judging, blocks)
    cleaned = _joined(taught, judged, places, _apart(taught.judging, X_val, gold, rows))
    whole, taken = _of_all(inputs, known, cleaned, gold), _some(cleaned, places)
    return CleanedFrame(whole, cleaned, sample, inputs, taken, sample_apart, index)


def _each(frame: Any, work: Callable[[Any, "pd.DataFrame", Any], Any], held: Any, blocks: list[Any]) -> list[Any]:
    """The results of `work` on each partition, with the shared `held` and its own block."""
    import dask

    return list(dask.compute(*_tasks(frame, work, held, blocks)))


def _tasks(frame: Any, work: Callable[[Any, "pd.DataFrame", Any], Any], held: Any, blocks: list[Any]) -> list[Any]:
    import dask

    there = dask.delayed(held)
    return [dask.delayed(work)(there, part, block) for part, block in zip(frame.to_delayed(), blocks, strict=True)]


def _sum(tasks: list[Any]) -> Sums:
    """The sum of the results of tasks, a few at a time: no process holds them all."""
    import dask

    while len(tasks) > 1:
        tasks = [dask.delayed(Sums.total)(tasks[first : first + AT_ONCE]) for first in range(0, len(tasks), AT_ONCE)]
    return tasks[0].compute()


def _index(X: "pd.DataFrame") -> Any:
    return X.index


def _take(places: Int[np.ndarray, " sample"], X: "pd.DataFrame", cut: tuple[int, int]) -> "pd.DataFrame":
    first, last = cut
    require_rows(X, first, last - first)
    return X.iloc[places[slice(*np.searchsorted(places, [first, last]))] - first]


def _judged(judging: Judging, X: "pd.DataFrame", block: tuple[Labels, int]) -> JudgedBlock:
    known, first = block
    return judge_block(judging, known.block(X, first), lambda row: by_index(first + row))


def _added(judging: Judging, X: "pd.DataFrame", block: tuple[Labels, int]) -> Sums:
    known, first = block
    return add_block(judging, known.block(X, first), lambda row: by_index(first + row))


def _apart(
    judging: Judging, X_val: "pd.DataFrame | None", gold: Int[np.ndarray, " apart"], rows: int
) -> list[JudgedBlock]:
    """The trusted rows given separately, which come after all others."""
    if X_val is None:
        return []
    return [judge_block(judging, block_apart(judging, X_val, gold, rows), by_index)]


def _joined(
    taught: Taught, judged: list[JudgedBlock], places: Int[np.ndarray, " sample"], apart: list[JudgedBlock]
) -> Cleaned:
    """The results for all rows."""
    found = overview(taught, Figures.sum([*(one.figures for one in judged), taught.apart]))
    every = [*judged, *apart]
    trusted = np.concatenate([one.trusted for one in every])
    return Cleaned(
        weight=np.concatenate([one.found.weight for one in every]),
        quality=np.concatenate([one.found.quality for one in every]),
        issue=np.concatenate([one.issue for one in every]),
        suggested=np.concatenate([one.suggested for one in every]),
        trusted=trusted,
        review=reviewed(trusted, places[taught.learned.judged.review]),
        decided=np.zeros(len(trusted), bool),
        **found.of_the_whole(),
    )


def _of_all(inputs: Inputs, known: Labels, cleaned: Cleaned, gold: Int[np.ndarray, " apart"]) -> Inputs:
    """The inputs of the sample, with the columns in memory for all rows."""
    groups = None if known.groups is None else np.append(known.groups, np.full(len(gold), len(known.names.groups)))
    return replace(
        inputs,
        features=inputs.features[:0],
        labels=np.append(known.labels, gold),
        trusted=cleaned.trusted if cleaned.trusted.any() else None,
        groups=groups,
        rows=len(known.labels),
    )


def _some(cleaned: Cleaned, rows: Int[np.ndarray, " some"]) -> Cleaned:
    """The results for some rows."""
    names = ("weight", "quality", "issue", "suggested", "trusted", "decided")
    return replace(cleaned, **{name: getattr(cleaned, name)[rows] for name in names})


def _in_memory(values: Any) -> Any:
    """The values of a Dask series or array."""
    values = values.compute() if hasattr(values, "compute") else values
    return values if values is None else np.asarray(values)
