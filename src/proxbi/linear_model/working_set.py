"""The lower level for penalties as users write them, at a cost that depends on the support, not on the width of X.

Columns whose coefficients are zero in all folds are left out. Zero is right as long as their gradients, which cost one
product with X, are no larger than their penalties; columns with larger gradients join the working set, and the problem
is solved again. Which ones may be needed next is guessed from the last gradients, which rarely change faster than the
penalty (the strong rule of Tibshirani et al., "Strong rules for discarding predictors in Lasso-type problems", 2012),
and a wrong guess only costs time.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proxbi.glm.losses import Loss, Squared
from proxbi.linear_model.bilevel import Data, Scheme
from proxbi.linear_model.design import SMALLEST, Columns, padded, roomy
from proxbi.linear_model.folds import Folds
from proxbi.linear_model.lower import Blocks, Fitted, Model, Penalties, Rows, fit_folds, squared_model

SLACK = 1e-7  # of the largest gradient: a gradient may exceed its penalty by so much
MOST_EXTENSIONS = 50  # of the working set, for one solve: a guard
FEW = 8 * SMALLEST  # columns: up to this many, all are in the set from the start
FEWEST_ROWS = 128  # that a program is compiled for
RAREST = 1e-6  # the smallest share of a class that an intercept starts from: a fold may have none of it


class Strengths(NamedTuple):
    """Penalties of the coefficients of X as given: norm[g] |w_g| of each unit, square[j] w_j^2 / 2 of each column."""

    norm: Float[np.ndarray, "*folds units"]
    """The same for all folds, or a row for each."""
    square: Float[np.ndarray, "*folds features"]


class Solution(NamedTuple):
    """For each fold, in the scaled columns."""

    u: Float[np.ndarray, "folds features outputs"]
    intercept: Float[np.ndarray, "folds outputs"]
    loss: Float[np.ndarray, " folds"]
    gradient: Float[np.ndarray, "folds features outputs"]
    """Of the loss; zeros if all columns are in the working set."""
    strengths: Strengths
    violation: float


class _Gathered(NamedTuple):
    """The working set: `which` has a row for each fold, or one for all, with -1 for free places."""

    which: Int[np.ndarray, "sets room"]
    rows: Rows
    model: Model | None
    blocks: Blocks


class AtWork(NamedTuple):
    """The data of the bilevel problem on the working set, and the coefficients to start from."""

    data: Data
    u: Float[Array, "folds entries"]


@dataclass
class LowerLevel:
    """A linear model, its rows and its folds. `units` gives the unit of each column; `grouped`, whether a unit is
    penalised by its norm (group Lasso) or each of its coefficients alone.
    """

    loss: Loss
    columns: Columns
    targets: np.ndarray
    folds: Folds
    outputs: int
    units: Int[np.ndarray, " features"]
    grouped: bool = False
    _gathered: _Gathered | None = field(default=None, repr=False)

    def solve(self, strengths: Strengths, start: Solution | None = None) -> Solution:
        """The coefficients of all folds, from those of another solution."""
        smooth = not np.any(strengths.norm)
        at = start or self.null()
        if smooth or self.columns.shape[1] <= FEW:
            return self._fit(np.full((1, self.columns.shape[1]), True), strengths, at, smooth)
        may_enter = 2 * strengths.norm - at.strengths.norm  # the strong rule
        for _ in range(MOST_EXTENSIONS):
            needed = self._needed(at, may_enter)
            at = self._fit(needed, strengths, at, smooth)
            sizes = self._sizes(at.gradient)
            may_enter = strengths.norm + SLACK * sizes.max(initial=0.0)
            if not np.any((sizes > may_enter)[:, self.units] & ~self._at_work()):
                break
        return at

    @property
    def rows(self) -> Rows | None:
        """The rows, with the columns of the working set."""
        return None if self._gathered is None else self._gathered.rows

    def at_work(
        self, solution: Solution, factors: Strengths, tie: np.ndarray, sizes: Float[np.ndarray, "folds ties"]
    ) -> "AtWork":
        """The working set, as data of the bilevel problem: penalty number tie[column] times the factors."""
        gathered = self._gathered
        assert gathered is not None
        folds = len(self.folds.fit)
        which = np.broadcast_to(gathered.which, (folds, gathered.which.shape[1]))
        real = which >= 0
        norm, square, entries = self._in_program(gathered, factors, solution)
        of_column = np.concatenate([np.where(real, tie[which], 0), np.zeros((folds, 1), int)], axis=1)
        of_block = self._of_block(gathered)
        padding = np.concatenate([~real, np.zeros((folds, 1), bool)], axis=1)
        fixed = np.where(np.take_along_axis(padding, of_block, axis=1), norm, 0.0)
        scheme = Scheme(
            jnp.asarray(norm - fixed),
            jnp.asarray(fixed),
            jnp.asarray(np.take_along_axis(of_column, of_block, axis=1)),
            jnp.asarray(square),
            jnp.asarray(np.repeat(of_column, self.outputs, axis=1)),
            jnp.asarray(sizes),
        )
        importance = jnp.asarray(self.folds.importance)
        data = Data(self.loss, gathered.rows, gathered.model, gathered.blocks, scheme, importance)
        return AtWork(data, jnp.asarray(entries))

    def null(self) -> Solution:
        """All coefficients are zero, and the intercepts alone are fitted: the mean prediction is the mean target."""
        folds, features = len(self.folds.fit), self.columns.shape[1]
        targets = self.targets if self.targets.ndim == 2 else np.eye(self.outputs)[self.targets]
        means = self.folds.fit @ targets
        slopes = self.folds.fit[:, :, None] * (means[:, None] - targets)
        zeros = np.zeros((folds, features, self.outputs))
        gradient = self.columns.correlate(slopes)
        largest = self._sizes(gradient).max(axis=0)
        return Solution(
            zeros, _link(self.loss, means), np.zeros(folds), gradient, Strengths(largest, zeros[0, :, 0]), 0.0
        )

    def coefficients(self, solution: Solution) -> tuple[np.ndarray, np.ndarray]:
        """w, folds by outputs by features, and b, of X as given."""
        w = np.moveaxis(solution.u / self.columns.scale[:, None], 1, 2)
        return w, solution.intercept - w @ self.columns.mean

    def _needed(self, at: Solution, may_enter: Float[np.ndarray, " units"]) -> np.ndarray:
        """Of each fold, the columns of the support, and those whose gradients most exceed their bounds; half as many of
        these as of the others, as most would stay zero.
        """
        needed = np.any(at.u != 0, axis=2)
        excess = (self._sizes(at.gradient) - may_enter)[:, self.units]
        for fold, support in enumerate(needed):
            candidates = np.flatnonzero((excess[fold] > 0) & ~support)
            most = max(SMALLEST, int(support.sum()) // 2)
            support[candidates[np.argsort(-excess[fold, candidates], kind="stable")[:most]]] = True
            if self.grouped:
                support[:] = np.isin(self.units, self.units[support])
        return needed

    def _at_work(self) -> np.ndarray:
        assert self._gathered is not None
        found = np.zeros((len(self._gathered.which), self.columns.shape[1] + 1), bool)
        np.put_along_axis(found, self._gathered.which, True, axis=1)  # -1 marks the last entry, which is not a column
        return found[:, :-1]

    def _sizes(self, gradient: Float[np.ndarray, "folds features outputs"]) -> Float[np.ndarray, "folds units"]:
        """The gradient sizes that must stay below the penalty of each unit, in w of X as given."""
        gradient, count = gradient * self.columns.scale[:, None], int(self.units.max()) + 1
        if not self.grouped:  # then each column is a unit
            return np.abs(gradient).max(axis=2)
        return np.sqrt([np.bincount(self.units, square, count) for square in np.sum(gradient**2, axis=2)])

    def _fit(self, needed: np.ndarray, strengths: Strengths, start: Solution, smooth: bool) -> Solution:
        """Solve on the needed columns, and compute the gradients of all."""
        gathered, folds = self._gather(needed), len(start.u)
        which = np.broadcast_to(gathered.which, (folds, gathered.which.shape[1]))
        norm, square, entries = self._in_program(gathered, strengths, start)
        penalties = Penalties(jnp.asarray(norm), jnp.asarray(square))
        found = fit_folds(
            self.loss, gathered.rows, gathered.model, gathered.blocks, penalties, jnp.asarray(entries), smooth=smooth
        )
        return self._solution(which, found, strengths)

    def _in_program(
        self, gathered: _Gathered, strengths: Strengths, start: Solution
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """a of the blocks, b and u of the entries, in scaled columns."""
        folds = len(start.u)
        which = np.broadcast_to(gathered.which, (folds, gathered.which.shape[1]))
        real = which >= 0
        scale = self.columns.scale[which]
        square = np.where(real, _of_each_fold(strengths.square, which) / scale**2, 0.0)
        norm = np.where(real, _of_each_fold(strengths.norm, self.units[which]) / scale, 1.0)  # padding stays at zero
        u = np.where(real[:, :, None], np.take_along_axis(start.u, which[:, :, None], axis=1), 0.0)
        of_column = np.concatenate([norm, np.zeros((folds, 1))], axis=1)
        return (
            np.take_along_axis(of_column, self._of_block(gathered), axis=1),
            np.repeat(np.pad(square, [(0, 0), (0, 1)]), self.outputs, axis=1),
            np.concatenate([u, start.intercept[:, None]], axis=1).reshape(folds, -1),
        )

    def _of_block(self, gathered: _Gathered) -> np.ndarray:
        """The first column of each block; for empty blocks, the intercept."""
        return np.minimum(np.asarray(gathered.blocks.members)[:, :, 0] // self.outputs, gathered.which.shape[1])

    def _solution(self, which: np.ndarray, found: Fitted, strengths: Strengths) -> Solution:
        u = np.asarray(found.u).reshape(len(which), -1, self.outputs)
        full = np.zeros((len(u), self.columns.shape[1] + 1, self.outputs))
        np.put_along_axis(full, which[:, :, None], u[:, :-1], axis=1)  # padding goes to the last, which is dropped
        full = full[:, :-1]
        gradient = np.zeros_like(full)
        if not self._at_work().all():
            gradient = self.columns.correlate(np.asarray(found.slopes))
        violation = float(np.max(found.violation))
        return Solution(full, u[:, -1], np.asarray(found.loss), gradient, strengths, violation)

    def _gather(self, needed: np.ndarray) -> _Gathered:
        """The needed columns, and earlier ones while there is room."""
        before, largest = self._gathered, int(needed.sum(axis=1).max(initial=0))
        whole = padded(self.columns.shape[1])
        room = whole if len(needed) == 1 else min(roomy(largest), whole)
        if before is not None and before.which.shape == (len(needed), room):
            if not np.any(needed & ~self._at_work()):
                return before
            both = needed | self._at_work()
            fits = both.sum(axis=1, keepdims=True) <= room
            needed = np.where(fits, both, needed)
        # Columns of a unit are adjacent, so that blocks are runs.
        order = np.argsort(self.units, kind="stable")
        which = np.full((len(needed), room), -1)
        for fold, wanted in enumerate(needed):
            which[fold, : wanted.sum()] = order[wanted[order]]
        height = padded(max(self.columns.shape[0], FEWEST_ROWS))
        design = np.stack([self.columns.gather(one[one >= 0], room, height) for one in which])
        rows = Rows(
            jnp.asarray(design if len(design) > 1 else design[0]),
            jnp.asarray(_tall(self.targets, height)),
            jnp.asarray(_wide(self.folds.fit, height)),
            jnp.asarray(_wide(self.folds.judge, height)),
        )
        model = squared_model(rows) if isinstance(self.loss, Squared) else None
        self._gathered = _Gathered(which, rows, model, self._blocks(which))
        return self._gathered

    def _blocks(self, which: np.ndarray) -> Blocks:
        folds, columns = len(self.folds.fit), which.shape[1] + 1
        made = [self._blocks_of(one) for one in which]
        members, of_entry = (np.stack(part) for part in zip(*made, strict=True))
        entries = columns * self.outputs
        return Blocks(
            jnp.asarray(np.broadcast_to(members, (folds, *members.shape[1:]))),
            jnp.asarray(np.broadcast_to(of_entry, (folds, entries))),
        )

    def _blocks_of(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Blocks of one set of columns: their members, and which one each entry is in."""
        entries = (len(which) + 1) * self.outputs
        if not self.grouped:
            return np.arange(entries)[:, None], np.arange(entries)
        unit = np.append(np.where(which >= 0, self.units[which], -1), -1)
        starts = (unit[1:] != unit[:-1]) | (unit[1:] < 0)  # each padding is a block of its own
        of_entry = np.repeat(np.cumsum(np.append(0, starts)), self.outputs)
        place = np.arange(entries) - np.searchsorted(of_entry, of_entry)
        largest = int(np.bincount(self.units).max()) * self.outputs
        members = np.full((len(which) + 1, largest), entries)
        members[of_entry, place] = np.arange(entries)
        return members, of_entry


def _of_each_fold(values: Float[np.ndarray, "*folds all"], which: Int[np.ndarray, "folds some"]) -> np.ndarray:
    """The values of some units or columns, different ones in each fold."""
    return np.take_along_axis(np.broadcast_to(values, (len(which), values.shape[-1])), which, axis=1)


def _link(loss: Loss, means: Float[np.ndarray, "folds outputs"]) -> Float[np.ndarray, "folds outputs"]:
    """The scores that predict these means."""
    if isinstance(loss, Squared):
        return means
    shares = np.clip(means, RAREST, 1 - RAREST)
    if means.shape[1] == 1:
        return np.log(shares / (1 - shares))
    logs = np.log(shares)
    return logs - logs.mean(axis=1, keepdims=True)  # adding one number to all changes nothing


def _tall(targets: np.ndarray, height: int) -> np.ndarray:
    return np.pad(targets, [(0, height - len(targets))] + [(0, 0)] * (targets.ndim - 1))


def _wide(weights: np.ndarray, height: int) -> np.ndarray:
    return np.pad(weights, [(0, 0), (0, height - weights.shape[1])])
