"""What `proxbi.cleaning.clean` returns."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float


class AnnotatorNoise(NamedTuple):
    """How one annotator votes."""

    votes: int
    """How many."""
    rate: Interval
    """The share of wrong votes, of all that this annotator might give; NaN where there are no votes."""
    confusion: Float[np.ndarray, "classes classes"]
    """The probability of each vote (columns) for rows of each class."""


@dataclass(frozen=True)
class Consensus:
    """What several votes a row, and the features, say: arrays over the n rows given, trusted rows included."""

    label: Int[np.ndarray, " n"]
    """The most likely class."""
    quality: Float[np.ndarray, " n"]
    """Its probability."""
    vote_quality: Float[np.ndarray, "n annotators"]
    """The probability that each vote is right; NaN where there is none."""
    annotators: list[AnnotatorNoise]
    gain: Float[np.ndarray, " n"]
    """By how much another vote would raise the probability that the consensus is right."""

    @property
    def next_votes(self) -> Int[np.ndarray, " n"]:
        """The rows, first those that another vote would help most; of those that it cannot help the least sure."""
        return np.lexsort((self.quality, -self.gain))

    def of_first(self, rows: int) -> "Consensus":
        """Of the first rows only."""
        some = slice(rows)
        return Consensus(
            self.label[some], self.quality[some], self.vote_quality[some], self.annotators, self.gain[some]
        )


class NoiseShare(NamedTuple):
    """How many labels of one kind are wrong."""

    which: int
    """The index of the given class, or of the group."""
    rows: int
    """Those that are not trusted."""
    share: Interval


class Score(NamedTuple):
    """How good a model is that was trained with one weighting, on held-out rows; each mean has its standard error."""

    name: str
    accuracy: float
    accuracy_se: float
    loss: float
    loss_se: float


class OuterStep(NamedTuple):
    """A step of the outer solver."""

    step: int
    objective: float
    stationarity: float
    upper: float
    """The loss on the rows that the solver sees."""
    held_out: float
    """The same on rows that it does not see."""
    calls: int
    """Of oracles, so far."""


class Removal(NamedTuple):
    """A model trained without the `dropped` worst labels, on held-out rows."""

    dropped: int
    loss: float
    accuracy: float


class RowCounts(NamedTuple):
    """How many rows there are of each kind."""

    judged: int
    """Those that are not trusted."""
    trusted: int
    decided: int
    flagged: int

    @property
    def judges(self) -> bool:
        """Whether there are trusted rows that stand for the others: decided ones were picked, and do not."""
        return self.trusted > self.decided


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is known about the labels of a table as a whole."""

    noise_rate: Interval
    """The share of wrong labels among the rows that are not trusted; NaN where it is not known."""
    noise_by_class: list[NoiseShare]
    """The share of wrong labels among those given as each class."""
    noise_by_group: list[NoiseShare]
    """The same for each group; empty without groups."""
    scores: list[Score]
    """Of each weighting, on trusted rows held out."""
    chosen: str
    """The name in `scores` that was picked: the simplest, unless another has a clearly lower held-out loss."""
    helped: bool
    """False: training on all rows alike is as good as what was chosen."""
    history: list[OuterStep]
    """Of the outer solver."""
    removal: list[Removal]
    """On trusted rows held out, with more and more of the worst labels left out."""
    warnings: list[str]
    """Sentences."""
    settings: dict[str, float | str]
    """What the solver set: noise rate, bandwidth, ridge, temperature, ..., and the seed."""
    consensus: Consensus | None = None
    """Where rows have several votes. The label that `quality`, `issue` and the rates are about is then the one that the
    votes alone make most likely."""

    def of_the_whole(self) -> dict[str, Any]:
        """All of this, by name: for findings of another kind about the same table."""
        return {each.name: getattr(self, each.name) for each in fields(Findings)}


@dataclass(frozen=True, kw_only=True)
class Overview(Findings):
    """What is known about the labels of a table whose rows are not in memory."""

    counts: RowCounts
    """How many rows there are."""


@dataclass(frozen=True, kw_only=True)
class Cleaned(Findings):
    """The same, and what is known about each of the n rows: arrays over the rows given, in their order, trusted rows
    included.

    Examples: `clean`, `LabelCleaner`.
    """

    weight: Float[np.ndarray, " n"]
    """The weight in [0, 1] to train with: the quality; 1 for trusted rows."""
    quality: Float[np.ndarray, " n"]
    """The probability that the given label is right, from a model that was not shown it."""
    issue: Bool[np.ndarray, " n"]
    """Which labels are more likely wrong than right; never a trusted one."""
    suggested: Int[np.ndarray, " n"]
    """The given label where there is no issue, the most likely class where there is."""
    trusted: Bool[np.ndarray, " n"]
    review: Int[np.ndarray, " untrusted"] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The rows that are not trusted, those first whose labels would teach most if a person decided them."""
    decided: Bool[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, bool))
    """The trusted rows that a person decided, having seen their labels; empty where there are none."""
    whole: RowCounts | None = None
    """Of the table that these rows were drawn from, which the rates are about too; None where these are all."""

    @property
    def counts(self) -> RowCounts:
        """How many rows there are."""
        if self.whole is not None:
            return self.whole
        found = (~self.trusted, self.trusted, self.decided, self.issue)
        return RowCounts(*(int(np.sum(each)) for each in found))

    @classmethod
    def unknown(cls, labels: Int[np.ndarray, " n"], warning: str, **settings: float | str) -> "Cleaned":
        """Every label is kept, and nothing is known."""
        n = len(labels)
        return cls(
            weight=np.ones(n),
            quality=np.ones(n),
            issue=np.zeros(n, bool),
            suggested=labels,
            trusted=np.zeros(n, bool),
            noise_rate=Interval(math.nan, math.nan, math.nan),
            noise_by_class=[],
            noise_by_group=[],
            scores=[],
            chosen="noisy",
            helped=False,
            history=[],
            removal=[],
            warnings=[warning],
            settings=dict(settings),
            review=np.arange(n),
        )
