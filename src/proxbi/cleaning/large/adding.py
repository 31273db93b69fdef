"""Sums over all rows, piece by piece, for the regression that is fitted to all of them (`method.all_rows`).

The sums of a piece are a few megabytes. They are kept in a hidden directory among the outputs until these are finished:
after a run that was killed, the next run does not add up these rows again.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from proxbi._engine import Engine
from proxbi.cleaning.files.places import write_all
from proxbi.cleaning.inputs.checks import by_index
from proxbi.cleaning.large.block import Judging, add_block, block_apart
from proxbi.cleaning.large.parquet import Part, digest_of
from proxbi.cleaning.large.reading import Reading, blocks
from proxbi.cleaning.large.sample import LEARNED, TAKEN, Apart, Progress
from proxbi.cleaning.method.all_rows import Sums

FOLDER = ".sums"
ADDING = "fitting all rows"
"""The stage, by name."""


class Kept(NamedTuple):
    """The files for the sums of pieces."""

    out: Path
    digest: str
    """The digest of the input and the arguments."""
    run: str
    """A unique name of this run."""

    def path(self, part: Part) -> Path:
        """The file of a piece."""
        return self.out / FOLDER / f"{digest_of([self.digest, part.name, part.number])}.npz"


class Work(NamedTuple):
    """The arguments of `_add`."""

    kept: Kept
    judging: Judging
    reading: Reading


def add_parts(
    parts: Sequence[Part], kept: Kept, run: Engine, judging: Judging, reading: Reading, apart: Apart, say: Progress
) -> Sums:
    """The sums over all rows, in the order of the pieces; those kept by an earlier run are read."""

    def each() -> Iterator[Sums]:
        for done, sums in enumerate(run(_add, Work(kept, judging, reading), parts)):
            say(ADDING, TAKEN + (LEARNED - TAKEN) * (done + 1) / len(parts))
            yield sums
        X, labels, before = apart
        if X is not None:
            yield add_block(judging, block_apart(judging, X, labels, before), by_index)

    return Sums.total(each())


def remove_sums(out: Path) -> None:
    """Remove the sums, which are no longer needed."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def _add(work: Work, part: Part) -> Sums:
    path = work.kept.path(part)
    before = _read(path)
    if before is not None:
        return before
    read = blocks(work.reading, work.judging.names, part)
    found = Sums.total(add_block(work.judging, each.block, each.where) for each in read)
    write_all([(path, lambda to: np.savez(to, **found._asdict()))], work.kept.run)
    return found


def _read(path: Path) -> Sums | None:
    """The sums; None if there are none, or if they are damaged: archives have checksums."""
    with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(path, allow_pickle=False) as file:
        return Sums(file["gram"], file["targets"], int(file["rows"]))
    return None
