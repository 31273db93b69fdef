"""Label noise of three kinds: labels in, spoiled labels out, the same for the same seed.

The share of wrong labels is met as exactly as whole rows allow, so that a rate is a fact about the data and not only
an expectation.
"""

from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from proxbi import _check

NoiseKind: TypeAlias = Literal["symmetric", "pairwise", "class-dependent"]
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
"""What `add_noise` knows."""


def add_noise(
    labels: Int[np.ndarray, " rows"], kind: NoiseKind, rate: ArrayLike, seed: int, classes: int | None = None
) -> Int[np.ndarray, " rows"]:
    """`labels` with noise of this kind, one of `NOISE_KINDS`.

    **Arguments:**

    - `labels`: classes 0, 1, ...
    - `kind`: one of `NOISE_KINDS`.
    - `rate`: one number for `symmetric_noise` and `pairwise_noise`; for `class_dependent_noise` one number for each
      class, or a transition matrix.
    - `seed`: of the random choices.
    - `classes`: how many classes there are; by default 1 + the largest label.

    >>> add_noise(np.array([0, 1, 2, 0, 1, 2]), "pairwise", 0.5, seed=0)
    array([0, 1, 2, 1, 2, 0])
    """
    if kind == "class-dependent":
        _agree(len(_transition(rate)), classes)
        return class_dependent_noise(labels, rate, seed)
    if kind not in NOISE_KINDS:
        raise ValueError(f"kind must be one of {', '.join(NOISE_KINDS)}, got {kind!r}.")
    if np.ndim(rate) != 0:
        raise ValueError(f"rate must be one number for {kind} noise, got an array of shape {np.shape(rate)}.")
    spoil = symmetric_noise if kind == "symmetric" else pairwise_noise
    return spoil(labels, float(np.asarray(rate)), seed, classes)


def symmetric_noise(
    labels: Int[np.ndarray, " rows"], rate: float, seed: int, classes: int | None = None
) -> Int[np.ndarray, " rows"]:
    """`labels` with int(rate * rows) of them, chosen at random, replaced by another class, also at random.

    A spoiled label c becomes (c + r) mod classes with r uniform in 1..classes-1, so that it is always wrong.

    **Arguments:**

    - `labels`: classes 0, 1, ...
    - `rate`: the share of wrong labels, in [0, 1).
    - `seed`: of the random choices.
    - `classes`: how many classes there are; by default 1 + the largest label.

    >>> int(np.sum(symmetric_noise(np.arange(10) % 5, 0.3, seed=0) != np.arange(10) % 5))
    3
    """
    labels, classes = _checked(labels, classes)
    spoiled, draw = _choose(len(labels), rate, seed)
    return _shifted(labels, spoiled, draw.integers(1, classes, len(spoiled)), classes)


def pairwise_noise(
    labels: Int[np.ndarray, " rows"], rate: float, seed: int, classes: int | None = None
) -> Int[np.ndarray, " rows"]:
    """`labels` with int(rate * rows) of them, chosen at random, replaced by the next class: c -> (c + 1) mod classes.

    **Arguments:**

    - `labels`: classes 0, 1, ...
    - `rate`: the share of wrong labels, in [0, 1).
    - `seed`: of the random choices.
    - `classes`: how many classes there are; by default 1 + the largest label.

    >>> pairwise_noise(np.array([0, 1, 2, 0, 1, 2]), 0.5, seed=0)
    array([0, 1, 2, 1, 2, 0])
    """
    labels, classes = _checked(labels, classes)
    spoiled, _ = _choose(len(labels), rate, seed)
    return _shifted(labels, spoiled, np.ones(len(spoiled), np.int64), classes)


def class_dependent_noise(
    labels: Int[np.ndarray, " rows"], transition: ArrayLike, seed: int
) -> Int[np.ndarray, " rows"]:
    """`labels`, each redrawn from the row of `transition` of its class.

    `transition[c, d]` is the probability that a label c becomes d. One rate r_c for each class, instead of the matrix,
    means 1 - r_c on the diagonal and r_c / (classes - 1) elsewhere.

    Which rows of a class change is random; how many is not: of the n_c rows of class c, n_c * transition[c, d] become
    d, rounded down or up at random such that this is the mean.

    **Arguments:**

    - `labels`: classes 0, 1, ...
    - `transition`: a matrix whose rows sum to 1, or one rate for each class.
    - `seed`: of the random choices.

    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> noisy = class_dependent_noise(labels, [[0.5, 0.5], [0, 1]], seed=0)
    >>> np.sort(noisy[:4]), noisy[4:]
    (array([0, 0, 1, 1]), array([1, 1]))
    """
    matrix = _transition(transition)
    labels, _ = _checked(labels, len(matrix))
    draw = _generator(seed)
    noisy = labels.copy()
    for given, row in enumerate(matrix):
        members = draw.permutation(np.flatnonzero(labels == given))
        # Systematic sampling: points 1/n apart fall into an interval of length p either floor(n p) or ceil(n p) times.
        points = (np.arange(len(members)) + draw.random()) / max(1, len(members))
        noisy[members] = np.searchsorted(np.cumsum(row)[:-1], points, side="right")
    return noisy


def confused_digits(rate: float) -> Float[np.ndarray, "10 10"]:
    """The transition matrix that mistakes digits which look alike: 2 -> 7, 3 -> 8, 5 <-> 6 and 7 -> 1 at this rate.

    Patrini, Rozza, Menon, Nock and Qu, Making deep neural networks robust to label noise: a loss correction approach,
    CVPR 2017.

    `rate` is in [0, 1].

    >>> confused_digits(0.25)[7]
    array([0.  , 0.25, 0.  , 0.  , 0.  , 0.  , 0.  , 0.75, 0.  , 0.  ])
    """
    _check_rate(rate)
    matrix = np.eye(10)
    for given, mistaken in [(2, 7), (3, 8), (5, 6), (6, 5), (7, 1)]:
        matrix[given, given], matrix[given, mistaken] = 1 - rate, rate
    return matrix


def _checked(labels: Int[np.ndarray, " rows"], classes: int | None) -> tuple[Int[np.ndarray, " rows"], int]:
    """`labels` and the number of classes, or an error that says which label or argument is wrong."""
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise TypeError(f"labels must be integers in one dimension, got {labels.dtype} of shape {labels.shape}.")
    if labels.size == 0:
        raise ValueError("labels is empty.")
    largest = int(labels.max())
    classes = largest + 1 if classes is None else classes
    _check.positive_int("classes", classes)
    if classes < 2:
        raise ValueError(f"Noise needs at least 2 classes to confuse, got {classes}.")
    wrong = np.flatnonzero((labels < 0) | (labels > classes - 1))
    if wrong.size:
        raise ValueError(f"labels must be in 0..{classes - 1}, got {labels[wrong[0]]} at row {wrong[0]}.")
    if classes - 1 > np.iinfo(labels.dtype).max:
        raise ValueError(f"labels of dtype {labels.dtype} cannot hold {classes} classes.")
    return labels, int(classes)


def _check_rate(rate: float) -> None:
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in [0, 1), got {rate}.")


def _generator(seed: object) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:  # None would be another each time
        raise ValueError(f"seed must be an integer >= 0, got {seed!r}.")
    return np.random.default_rng(seed)


def _choose(rows: int, rate: float, seed: int) -> tuple[Int[np.ndarray, " spoiled"], np.random.Generator]:
    """The rows to spoil, and the generator to continue with."""
    _check_rate(rate)
    draw = _generator(seed)
    return draw.choice(rows, int(rate * rows), replace=False), draw


def _shifted(
    labels: Int[np.ndarray, " rows"],
    spoiled: Int[np.ndarray, " spoiled"],
    by: Int[np.ndarray, " spoiled"],
    classes: int,
) -> Int[np.ndarray, " rows"]:
    noisy = labels.copy()
    noisy[spoiled] = (labels[spoiled].astype(np.int64) + by) % classes  # uint64 + int64 would be float64
    return noisy


def _transition(given: ArrayLike) -> Float[np.ndarray, "classes classes"]:
    """The transition matrix that `given`, a matrix or one rate for each class, stands for."""
    matrix = np.asarray(given, np.float64)
    if matrix.ndim == 0:
        raise ValueError(
            "Class-dependent noise needs a rate for each class or a transition matrix, got one number; "
            "for digits, confused_digits(rate) makes a matrix of it."
        )
    if matrix.ndim == 1:
        matrix = _from_rates(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"transition must be a square matrix or one rate for each class, got shape {np.shape(given)}.")
    if not np.all((matrix >= 0) & (matrix <= 1)):
        raise ValueError("transition must have probabilities in [0, 1] in it, and has others.")
    sums = matrix.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > 1e-6)
    if wrong.size:
        raise ValueError(f"Each row of transition must sum to 1, and row {wrong[0]} sums to {sums[wrong[0]]}.")
    return matrix / sums[:, None]


def _from_rates(rates: Float[np.ndarray, " classes"]) -> Float[np.ndarray, "classes classes"]:
    others = max(1, len(rates) - 1)
    return np.where(np.eye(len(rates), dtype=bool), 1 - rates[:, None], rates[:, None] / others)


def _agree(classes: int, given: int | None) -> None:
    if given is not None and given != classes:
        raise ValueError(f"classes is {given}, but rate is for {classes}.")
