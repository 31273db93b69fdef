r"""Which labels are wrong, given the beliefs of models that have not seen them.

**Belief** b(t | u) of the classes t of row u comes from `calibration.py`.

**Noise.** A label of a row of class t from group a is wrong with probability

    r(u, t, a) = sigmoid( rate + hard d(u) + by_class_t + by_group_a ),   d(u) = log(1e-3 + 1 - max b(u)) - log(1/2),

d the difficulty of the row; and a wrong one is g with probability

    S(t, g | u) = (1 - w) C(t, g) + w b(g | u) / (1 - b(t | u)),     w = sigmoid(plausible),

that is, as usual for this pair of classes, or as plausible for this row. Hence, for the label g that was given,

    P(g, right | u) = b(g | u) (1 - r(u, g)),    P(g, wrong | u) = sum_{t != g} b(t | u) r(u, t) S(t, g | u),

and the *quality* of the label is the first over the sum of both, which is its likelihood.

**Decided rows.** A person who saw row u and its label g decided that its class is t. Rows to review may be picked by u
and g, which are known for all rows, so the selection is ignorable: the likelihood of the data is the product of P(g |
u) over the rows and of P(t | g, u) over the decided ones. So a decided row has P(g, t | u) in the fit of the noise,
which excludes all other classes; and in the calibration, which is fitted to some rows only, its class counts given its
label: softmax of the logits plus log P(g | t, u), the *offset*.

**Separating calibration from noise.** Blurred belief without noise explains labels nearly as well as sharp belief with
noise: labels alone cannot decide. Trusted rows can, since their labels have no noise: the calibration is fitted to them
alone, under a normal prior; then the noise is fitted to the other labels (C by expectation maximisation, the rest by
Newton-like steps). The centre of the prior comes from the other labels, by alternating the two: noise given the
calibration, then the calibration given the class that each row probably has. This starts with sharp belief and stops
early, which is the assumption of confident learning: most rows of a class look like it. Without trusted rows there is
nothing else, and the alternation continues for longer if that makes the labels likelier.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeResult, minimize
from scipy.special import expit

from proxbi.cleaning.method.calibration import (
    DOUBT,
    NEWTON_STEPS,
    TINY,
    VAGUE_SD,
    Calibration,
    Labels,
    Offset,
    Scores,
    calibrate,
    log_prior,
    without_noise,
)
from proxbi.cleaning.method.label_noise import estimate_confusion

NEVER = -30.0
"""Log-odds of an impossible event: `plausible` of plain noise."""
LITTLE = -4.0
"""Log-odds of a wrong label if there are hardly any."""
RATES = (-3.0, -1.0)
"""Log-odds of a wrong label to start from."""
SHARPER, ROUNDS, MOST_ROUNDS = 4.0, 4, 8
"""How much sharper than blurred belief the alternation starts; after how many rounds it stops if labels are then
likelier than without noise; and after how many in any case."""
RATE, HARD, PLAUSIBLE, BY_GROUP, BY_CLASS = (-2.0, 1.5), (0.0, 0.5), (-1.0, 1.5), (0.0, 1.5), (0.0, 1.0)
"""Mean and standard deviation of the priors of the noise: one label in eight is wrong, within a factor of four."""
STARTS = ((-3.0, -1.0), (-1.0, -1.0), (-1.5, 1.0))
"""Of `rate` and `plausible`: the likelihood has several maxima."""


class Noise(NamedTuple):
    """How labels go wrong."""

    rate: float
    hard: float
    plausible: float
    by_group: Float[np.ndarray, " groups"]
    by_class: Float[np.ndarray, " classes"]
    confusion: Float[np.ndarray, "classes classes"]
    """C(t, g)."""


class Explained(NamedTuple):
    """Calibration and noise from noisy labels alone."""

    sharp: Calibration
    """As sharp as possible."""
    halfway: Calibration
    """Between this and the one with plain noise: the centre of the prior for trusted rows."""
    noise: Noise
    plain: Noise
    """Plain noise by itself: labels are wrong at one rate, in no particular way."""
    plain_calibration: Calibration
    """The calibration with it."""
    plainly_likelier: float
    """By how many units it raises the log-posterior of the same belief without noise."""


class Verdict(NamedTuple):
    """The probabilities of each row, given belief and noise."""

    right: Float[np.ndarray, " rows"]
    """P(given, right | u)."""
    wrong: Float[np.ndarray, "rows classes"]
    """P(given, true class t | u), 0 at the given class."""

    @property
    def likelihood(self) -> Float[np.ndarray, " rows"]:
        """P(given | u)."""
        return self.right + self.wrong.sum(axis=1) + TINY

    @property
    def quality(self) -> Float[np.ndarray, " rows"]:
        """P(right | given, u)."""
        return self.right / self.likelihood


def judge(noise: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels) -> Verdict:
    """The probabilities of each row.

    >>> noise = Noise(0.0, 0.0, -30.0, np.zeros(1), np.zeros(2), 1 - np.eye(2))
    >>> labels = Labels(np.array([0, 1]), np.zeros(2, int), np.ones(2))
    >>> judge(noise, np.array([[0.9, 0.1], [0.9, 0.1]]), labels).quality.round(2)
    array([0.9, 0.1])
    """
    return _parts(noise, belief, labels)[0]


def fit_noise(
    belief: Float[np.ndarray, "rows classes"], labels: Labels, groups: int, start: Noise | None = None
) -> Noise:
    """The noise under which these labels are most likely: the best from several starts, `start` among them."""
    nothing = no_noise(groups, belief.shape[1])
    starts = [nothing._replace(rate=rate, plausible=how) for rate, how in STARTS]
    tried = [_fit_from(one, belief, labels, 3) for one in starts]
    if start is not None:
        tried.append(_fit_from(start, belief, labels, 2))
    return min(tried, key=lambda one: one[0])[1]


def fit_near(start: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels) -> Noise:
    """The same from one start; plain noise stays plain."""
    return _fit_from(start, belief, labels, 2)[1]


def simplest(
    noise: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels, *, plain_is_likely: bool = False
) -> Noise:
    """Plain noise, which is the same for all rows of a group, unless this one explains the labels better by as many
    units as it has more parameters (Akaike); if plain noise is an explanation by itself, times half the logarithm of
    the number of rows (Bayes).
    """
    classes = belief.shape[1]
    more = 2 + classes + (classes if classes > 2 else 0)  # hard, plausible, by class; and at least C
    margin = more * float(np.log(labels.repeats.sum())) / 2 if plain_is_likely else float(more)
    plain = fit_near(plainly(noise), belief, labels)
    gain = log_likelihood(judge(noise, belief, labels), labels) - log_likelihood(judge(plain, belief, labels), labels)
    return noise if gain > margin else plain


def plainly(noise: Noise) -> Noise:
    """The noise without any dependence on the row or the class."""
    nothing = no_noise(len(noise.by_group), len(noise.by_class))
    return nothing._replace(rate=noise.rate, by_group=noise.by_group, plausible=NEVER)


def no_noise(groups: int, classes: int) -> Noise:
    """Hardly any, and in no particular way."""
    uniform = (1 - np.eye(classes)) / (classes - 1)
    return Noise(LITTLE, 0.0, PLAUSIBLE[0], np.zeros(groups), np.zeros(classes), uniform)


def explain(scores: Scores, labels: Labels, groups: int, usual: Calibration, blurred: Calibration) -> Explained:
    """Calibration and noise from noisy labels alone; `usual` is the calibration expected for such scores, and `blurred`
    the one of these labels if none is wrong.
    """
    centre, rate, plainly_likelier = _explain_simply(scores, labels, usual)
    plain = plainly(no_noise(groups, len(usual.bias))._replace(rate=rate))
    now, noise = centre._replace(sharpness=centre.sharpness + np.log(SHARPER)), None
    least = without_noise(blurred.belief(scores), labels).sum() + numbers(groups, len(usual.bias))
    for done in range(MOST_ROUNDS):
        belief = now.belief(scores)
        noise = fit_noise(belief, labels, groups) if noise is None else fit_near(noise, belief, labels)
        verdict = judge(noise, belief, labels)
        if done >= ROUNDS and log_likelihood(verdict, labels) > least:
            break
        now = calibrate(scores, true_classes(verdict, labels), centre, VAGUE_SD, start=now)
    assert noise is not None
    halfway = now._replace(sharpness=(now.sharpness + centre.sharpness) / 2)
    return Explained(now, halfway, noise, plain, centre, plainly_likelier)


def explain_longer(explained: Explained, scores: Scores, labels: Labels, usual: Calibration) -> Explained:
    """The same after more rounds of the alternation, if these labels are then likelier, priors included.

    Stopping early keeps belief sharp, which is an assumption. Trusted rows correct it; without any, only the labels
    can.
    """
    now, noise = explained.sharp, explained.noise
    for _ in range(MOST_ROUNDS):
        targets = true_classes(judge(noise, now.belief(scores), labels), labels)
        now = calibrate(scores, targets, usual, VAGUE_SD, start=now)
        noise = fit_near(noise, now.belief(scores), labels)

    def likely(calibration: Calibration, noise: Noise) -> float:
        found = log_likelihood(judge(noise, calibration.belief(scores), labels), labels)
        return found + log_prior(calibration, usual) - price(noise)

    longer = likely(now, noise) > likely(explained.sharp, explained.noise)
    return explained._replace(sharp=now, noise=noise) if longer else explained


def offset_of(noise: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels) -> Offset:
    """log P(g | t, u) for rows that were decided, 0 for all others."""
    if labels.decided is None:
        return 0.0
    known = labels.decided >= 0
    verdict, rows = judge(noise, belief, labels._replace(decided=None)), np.arange(len(belief))
    verdict.wrong[rows, labels.given] = verdict.right
    return np.where(known[:, None], np.log(verdict.wrong / belief + TINY), 0)


def numbers(groups: int, classes: int) -> int:
    """The number of noise parameters: by how much the noise must raise the log-likelihood to be believed (Akaike)."""
    return 3 + classes + (groups if groups > 1 else 0)


def price(noise: Noise) -> float:
    """The price of its parameters, in units of the log-posterior: how far each is from the centre of its prior, but at
    most one unit (Akaike). A class without any wrong label is far from all others, but no less believable.
    """
    parts = [(noise.rate, RATE)]
    if len(noise.by_group) > 1:
        parts += [(each, BY_GROUP) for each in noise.by_group]
    if noise.plausible > NEVER:
        parts += [(noise.hard, HARD), (noise.plausible, PLAUSIBLE), *((each, BY_CLASS) for each in noise.by_class)]
    return sum(min(1.0, float((value - mean) / spread) ** 2 / 2) for value, (mean, spread) in parts)


def _explain_simply(scores: Scores, labels: Labels, usual: Calibration) -> tuple[Calibration, float, float]:
    """The calibration, without biases, by noisy labels that are wrong at one rate r, uniformly over the other classes;
    and the log-odds of r.

    And by how many units its log-posterior exceeds that of the best one with r = 0.
    """
    rows, classes, learners = np.arange(len(labels.given)), len(usual.bias), len(scores)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        p, r = usual._replace(sharpness=x[:learners]).softmax(scores), expit(x[-1])
        own = (1 - DOUBT) * p[rows, labels.given] + DOUBT / classes
        likelihood = own * (1 - r) + (1 - own) * r / (classes - 1)
        per = labels.repeats / likelihood
        pull = per * (1 - r - r / (classes - 1)) * (1 - DOUBT) * p[rows, labels.given]
        slope = -pull[:, None] * p
        slope[rows, labels.given] += pull
        by_log = [np.exp(log) * np.sum(slope * each) for log, each in zip(x, scores, strict=False)]
        by_rate = r * (1 - r) * np.sum(per * ((1 - own) / (classes - 1) - own))
        far = (x - centre) / spread
        value = float(np.sum(far**2) / 2 - np.sum(labels.repeats * np.log(likelihood)))
        return value, far / spread - np.array([*by_log, by_rate])

    centre, spread = np.append(usual.sharpness, RATE[0]), np.append(np.full(learners, VAGUE_SD), RATE[1])

    def best_from(rate: float, least: float, most: float) -> OptimizeResult:
        x0, bounds = np.append(usual.sharpness, rate), [(-np.inf, np.inf)] * learners + [(least, most)]
        return minimize(loss, x0, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": NEWTON_STEPS})

    noisy = min((best_from(rate, -np.inf, np.inf) for rate in RATES), key=lambda one: one.fun)
    never = best_from(NEVER, NEVER, NEVER).fun - ((NEVER - RATE[0]) / RATE[1]) ** 2 / 2  # no rate has no prior
    return usual._replace(sharpness=noisy.x[:learners]), float(noisy.x[-1]), float(never - noisy.fun)


def true_classes(verdict: Verdict, labels: Labels) -> Float[np.ndarray, "rows classes"]:
    """The probabilities of each row's classes, given its label, times how often it counts."""
    shares = verdict.wrong / verdict.likelihood[:, None]
    shares[np.arange(len(shares)), labels.given] = verdict.quality
    return shares * labels.repeats[:, None]


def log_likelihood(verdict: Verdict, labels: Labels) -> float:
    """The log-likelihood of the labels."""
    return float(np.sum(labels.repeats * np.log(verdict.likelihood)))


def _fit_from(
    start: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels, rounds: int
) -> tuple[float, Noise]:
    """The loss and the noise after some rounds of fitting all parameters and then C."""
    noise, loss = start, np.inf
    for left in reversed(range(rounds)):
        loss, noise = _fit_numbers(noise, belief, labels)
        if left and noise.plausible > NEVER:
            noise = noise._replace(confusion=estimate_confusion(_pairs(noise, belief, labels)))
    return loss, noise


def _fit_numbers(start: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels) -> tuple[float, Noise]:
    """All but C."""
    groups, classes = len(start.by_group), len(start.by_class)
    priors = np.array([RATE, HARD, PLAUSIBLE] + [BY_GROUP] * groups + [BY_CLASS] * classes)
    x0 = np.concatenate([[start.rate, start.hard, start.plausible], start.by_group, start.by_class])
    free = np.ones(len(x0), bool)
    free[3 : 3 + groups] = groups > 1
    free[[1, 2, *range(3 + groups, len(x0))]] = start.plausible > NEVER

    possible = labels.possible(classes)

    def noise_of(x: np.ndarray) -> Noise:
        return Noise(x[0], x[1], x[2], x[3 : 3 + groups], x[3 + groups :], start.confusion)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        noise = noise_of(x)
        verdict, rates, hardness, plausible, usual = _parts(noise, belief, labels)
        rows, weight = np.arange(len(belief)), labels.repeats / verdict.likelihood
        by_logit = verdict.wrong * (1 - rates)  # the derivative of the likelihood in the log-odds of each r
        by_logit[rows, labels.given] = -verdict.right * rates[rows, labels.given]
        by_logit *= weight[:, None]
        by_row = by_logit.sum(axis=1)
        mixed = belief * rates * (plausible - usual) * possible
        mixed[rows, labels.given] = 0
        share = expit(noise.plausible)
        slopes = [by_row.sum(), by_row @ hardness, share * (1 - share) * (mixed.sum(axis=1) @ weight)]
        gradient = np.concatenate([slopes, np.bincount(labels.groups, by_row, groups), by_logit.sum(axis=0)])
        far = (x - priors[:, 0]) / priors[:, 1]
        value = float(np.sum(far[free] ** 2) / 2 - log_likelihood(verdict, labels))
        return value, np.where(free, far / priors[:, 1] - gradient, 0)

    reach = np.where(free, 6 * priors[:, 1], np.inf)
    bounds = list(zip(priors[:, 0] - reach, priors[:, 0] + reach, strict=True))
    found = minimize(loss, x0, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": NEWTON_STEPS})
    return float(found.fun), noise_of(found.x)


def _pairs(noise: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels) -> Float[np.ndarray, "true given"]:
    """The expected number of rows of each class that were labelled as each other one through C."""
    verdict, _, _, plausible, usual = _parts(noise, belief, labels)
    share = expit(noise.plausible)
    by_pair = (1 - share) * usual / np.maximum((1 - share) * usual + share * plausible, TINY)
    expected = verdict.wrong * by_pair * (labels.repeats / verdict.likelihood)[:, None]
    counts = np.zeros((belief.shape[1], belief.shape[1]))
    np.add.at(counts, labels.given, expected)
    return counts.T


def _parts(
    noise: Noise, belief: Float[np.ndarray, "rows classes"], labels: Labels
) -> tuple[Verdict, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The verdict and its parts: r, d, and the two terms of S(., g)."""
    rows = np.arange(len(belief))
    own = belief[rows, labels.given]
    hardness = np.log(1e-3 + 1 - belief.max(axis=1)) - np.log(0.5)
    logits = noise.rate + noise.hard * hardness + noise.by_group[labels.groups]
    rates = expit(logits[:, None] + noise.by_class)
    plausible = own[:, None] / (1 - np.minimum(belief, 1 - 1e-9))
    usual = noise.confusion.T[labels.given]
    share = expit(noise.plausible)
    wrong = belief * rates * ((1 - share) * usual + share * plausible)
    wrong[rows, labels.given] = 0
    right = own * (1 - rates[rows, labels.given])
    if labels.decided is not None:
        possible = labels.possible(belief.shape[1])
        wrong, right = wrong * possible, right * possible[rows, labels.given]
    return Verdict(right, wrong), rates, hardness, plausible, usual
