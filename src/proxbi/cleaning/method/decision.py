r"""From the scores of learners to the quality of every label, with its uncertainty.

**Is there noise at all?** Belief calibrated on the given labels as if none were wrong explains them without noise. This
is the simplest explanation, and is kept unless there is a sign against it:

- a row that a person decided against its label;
- one more parameter: the same belief, with labels wrong at one rate in no particular way, is likelier by more than
  `LIKELIER`. The priors count, including that of how blurred a belief usually is: belief that is blurred enough
  explains any labels, such as those of two classes of which two in five are exchanged;
- the control group: under belief without noise, trusted labels are likelier than the others by more than `CLEARLY`
  standard errors, though both were judged alike, each by fits without it. The comparison is with what is expected of
  rows as hard as these: trusted rows may have been picked because they are hard. The standard error is that without
  noise, where both are of one kind: a few trusted rows that happen to miss the rare surprise would give far too small a
  standard error of their own. Some groups differ by chance: `SURELY` is needed if the noise that is then found makes
  all labels less likely by more units than it has parameters;
- all labels together: trusted ones without noise and the others with it, by a belief fitted to the trusted ones, are
  likelier than all without noise by one belief. The priors of all parameters count. The loss of the one more parameter
  is subtracted.

The two explanations by noise need no margin together: it is enough if one is likelier by more units than the other is
less likely. Many parameters alone are never enough: where classes overlap they gain units on clean labels as well,
since an overlap and labels exchanged there look alike. Noise also affects rows where belief is confident, an overlap
does not. With noise, one parameter gains, or loses little; on clean tables it is clearly against noise, and outweighs a
gain by chance.

**Without a control group** the explanation with one parameter needs no margin either: its priors count already, and
small tables have no further evidence. The two together need `LIKELIER`. If noise with many parameters does not raise
the log-likelihood by as many units as it has parameters (Akaike), or is less likely than noise with one, the latter
judges: where classes overlap, the former may find most labels wrong, and explain them worse.

**Which noise?** The plain one, with one rate for each group, unless many parameters explain the labels better by as
many units as there are parameters. If the plain one is an explanation by itself, likelier than none by more than
`LIKELIER`, the gain must be clear (Bayes): many parameters always fit some error of the belief.

**Decided rows** were picked, mostly where label and belief are about equally likely. Beliefs that are overconfident
there need not be so elsewhere, and a calibration based on these rows alone may be vague enough to explain all wrong
labels away. So it is replaced by the one from labels alone if that explains all data, the labels of all rows and the
classes decided on, better by half the number of noise parameters times the logarithm of the number of rows.

**Twice.** Quality is computed, the kernel regression is fitted again with it as weights, and everything is repeated
with its new scores. Without trusted rows the noise of the first time is kept: labels that influenced the weights of
their neighbours are too easily explained.

**Intervals.** The rate is a function of the calibration, which is known as accurately as the trusted rows determine it:
draws from its distribution (Laplace) give rates, whose variance is that of the estimate. But no model of noise is
exact, and no learner: the rate is computed again by each learner alone, and by noise that does not depend on the row,
and the spread of these counts as well.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.method import calibration, noise_model
from proxbi.cleaning.method.calibration import TINY, Calibration, Labels, Scores, calibrate
from proxbi.cleaning.method.noise_model import Noise

CLEARLY, SURELY = 2.0, 3.0
"""Standard errors: one control group in forty, and one in seven hundred, is so much likelier by chance."""
LIKELIER = 2.0
"""Units of the log-posterior: odds of seven."""
ENOUGH = 5000
"""The number of untrusted rows for the alternation that finds the calibration."""
DRAWS, DRAWN = 16, 1000
"""The number of calibrations drawn, and of the rows on which their rates are computed."""
ROUNDS = 3
"""Of calibration with the noise fixed."""


class Evidence(NamedTuple):
    """Labels, which of them are trusted, and the scores of their rows by every learner."""

    labels: Labels
    trusted: Bool[np.ndarray, " rows"]
    groups: int
    classes: int
    usual: Calibration
    """The calibration that such scores usually need."""

    def targets(self, rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some classes"]:
        """The labels of some rows, one-hot, times how often each counts."""
        return np.eye(self.classes)[self.labels.truth[rows]] * self.labels.repeats[rows, None]

    @property
    def doubtful(self) -> Int[np.ndarray, " doubtful"]:
        """The rows that are not trusted."""
        return np.flatnonzero(~self.trusted)

    @property
    def decided(self) -> Bool[np.ndarray, " rows"]:
        """The trusted rows whose label before they were decided is known."""
        decided = self.labels.decided
        return np.zeros(len(self.trusted), bool) if decided is None else decided >= 0

    @property
    def labelled(self) -> Int[np.ndarray, " labelled"]:
        """The rows that inform the noise: all whose original label is known."""
        return np.flatnonzero(~self.trusted | self.decided)

    @property
    def sure(self) -> Int[np.ndarray, " sure"]:
        """The trusted rows."""
        return np.flatnonzero(self.trusted)


class Signs(NamedTuple):
    """How much better noise explains labels than belief without noise."""

    plainly: float
    """In units of the log-posterior, for plain noise: `Explained.plainly_likelier`."""
    likelier: float
    """The same for noise with many parameters."""
    pays: bool
    """Whether these raise the log-likelihood by as many units as there are parameters."""

    @property
    def together(self) -> float:
        """The gain of both. Where classes overlap, many parameters gain; one does not, since easy rows are right."""
        return self.plainly + self.likelier


class Decision(NamedTuple):
    """How labels are judged."""

    calibration: Calibration
    noise: Noise
    noisy: bool
    """Whether the signs show any noise."""
    covariance: Float[np.ndarray, "numbers numbers"]
    """Of the calibration."""
    sharp: Calibration
    """The calibration if there is noise, whatever the signs say."""

    def verdict(self, scores: Scores, labels: Labels) -> noise_model.Verdict:
        """The verdict on these rows."""
        return noise_model.judge(self.noise, self.calibration.belief(scores), labels)


def decide(scores: Scores, evidence: Evidence, draw: np.random.Generator) -> Decision:
    """The decision from scores of learners that weigh all rows equally."""
    doubtful, sure, labels = evidence.doubtful, evidence.sure, evidence.labels
    some = np.sort(draw.permutation(doubtful)[:ENOUGH])
    few, few_labels = _take(scores, some), labels.take(some)
    blurred = calibrate(few, evidence.targets(some), evidence.usual, calibration.VAGUE_SD, calibration.CLASS_SD)
    explained = noise_model.explain(few, few_labels, evidence.groups, evidence.usual, blurred)
    if not len(sure):
        explained = noise_model.explain_longer(explained, few, few_labels, evidence.usual)
    sharp, noise = _by_trusted(explained, scores, evidence)
    if evidence.decided.any():
        by_labels = explained.sharp, _noise(explained.sharp, explained.noise, scores, evidence)
        lost = _log_likelihood(*by_labels, scores, evidence) - _log_likelihood(sharp, noise, scores, evidence)
        sharp, noise = by_labels if lost > _clear_gain(evidence) else (sharp, noise)
    labelled = evidence.labelled
    belief = sharp.belief(_take(scores, labelled))
    offset = _offset(noise, sharp, scores, evidence)
    covariance = calibration.uncertainty(sharp, _take(scores, sure), labels.repeats[sure], offset)
    found = Decision(sharp, noise, True, covariance, sharp)
    likelier = _likelier(found, scores, evidence, np.sort(np.concatenate([some, sure])))
    signs = Signs(explained.plainly_likelier, likelier, _pays(found, blurred, scores, evidence))
    if not len(sure) and signs.plainly > (signs.likelier if signs.pays else 0):
        return _plain(found, explained, scores, labels)
    if _is_noisy(signs, blurred, scores, evidence):
        likely = signs.plainly > LIKELIER
        noise = noise_model.simplest(noise, belief, labels.take(labelled), plain_is_likely=likely)
        return found._replace(noise=noise)
    little = noise_model.no_noise(evidence.groups, evidence.classes)
    little = noise_model.fit_near(little, blurred.belief(scores)[doubtful], labels.take(doubtful))
    return found._replace(calibration=blurred, noise=little, noisy=False)


def _by_trusted(explained: noise_model.Explained, scores: Scores, evidence: Evidence) -> tuple[Calibration, Noise]:
    """The calibration by trusted rows, if there are any, and the noise with it. For decided rows the calibration
    depends on the noise, and the noise on the calibration: the two fits alternate.
    """
    sharp, noise, sure = explained.sharp, explained.noise, evidence.sure
    for _ in range(ROUNDS if evidence.decided.any() else 1):
        if len(sure):
            offset = _offset(noise, sharp, scores, evidence)
            sharp = calibrate(_take(scores, sure), evidence.targets(sure), explained.halfway, offset=offset)
        noise = _noise(sharp, noise, scores, evidence)
    return sharp, noise


def _noise(sharp: Calibration, start: Noise, scores: Scores, evidence: Evidence) -> Noise:
    """The noise with this calibration."""
    labelled = evidence.labelled
    belief = sharp.belief(_take(scores, labelled))
    return noise_model.fit_noise(belief, evidence.labels.take(labelled), evidence.groups, start)


def _log_likelihood(sharp: Calibration, noise: Noise, scores: Scores, evidence: Evidence) -> float:
    """Of all data: labels, and the classes of decided and other trusted rows."""
    labels, control = evidence.labels, evidence.trusted & ~evidence.decided
    belief = sharp.belief(scores)
    seen = labels.repeats * np.log(noise_model.judge(noise, belief, labels).likelihood)
    return float(np.sum(np.where(control, calibration.without_noise(belief, labels), seen)))


def _clear_gain(evidence: Evidence) -> float:
    """Units of log-likelihood that are clearly more than the noise parameters gain by chance (Bayes)."""
    return noise_model.numbers(evidence.groups, evidence.classes) * float(np.log(len(evidence.doubtful))) / 2


def decide_again(before: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator) -> Decision:
    """The decision from scores of learners that weigh the rows by their quality."""
    doubtful, labelled, sure, labels = evidence.doubtful, evidence.labelled, evidence.sure, evidence.labels
    some = np.sort(draw.permutation(doubtful)[:ENOUGH])
    few, few_labels = _take(scores, some), labels.take(some)
    now = before.calibration
    for _ in range(ROUNDS):
        verdict = noise_model.judge(before.noise, now.belief(few), few_labels)
        targets = noise_model.true_classes(verdict, few_labels)
        now = calibrate(few, targets, before.calibration, calibration.VAGUE_SD, start=now)
    if not before.noisy:
        return before._replace(calibration=now)
    if not len(sure):
        return before._replace(calibration=now, sharp=now)
    offset = _offset(before.noise, now, scores, evidence)
    now = calibrate(_take(scores, sure), evidence.targets(sure), now, offset=offset)
    covariance = calibration.uncertainty(now, _take(scores, sure), labels.repeats[sure], offset)
    belief = now.belief(_take(scores, labelled))
    noise = noise_model.fit_near(before.noise, belief, labels.take(labelled))
    return Decision(now, noise, True, covariance, now)


def drawn_qualities(
    decision: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator
) -> tuple[Int[np.ndarray, " some"], Float[np.ndarray, "draws some"]]:
    """Some untrusted rows, and their quality under plausible calibrations."""
    some = np.sort(draw.permutation(evidence.doubtful)[:DRAWN])
    few, labels = _take(scores, some), evidence.labels.take(some)
    root = np.linalg.cholesky(decision.covariance)
    qualities = []
    for _ in range(DRAWS):
        belief = calibration.moved(decision.sharp, root @ draw.standard_normal(len(root))).belief(few)
        noise = noise_model.fit_near(decision.noise, belief, labels)
        qualities.append(noise_model.judge(noise, belief, labels).quality)
    return some, np.stack(qualities)


def other_qualities(
    decision: Decision, scores: Scores, evidence: Evidence, some: Int[np.ndarray, " some"]
) -> Float[np.ndarray, "ways some"]:
    """The quality of some rows by each learner alone, if there are several, and by noise that does not depend on the
    row.
    """
    sure, labels = evidence.sure, evidence.labels.take(some)
    belief = decision.sharp.belief(_take(scores, some))
    plain = noise_model.fit_near(noise_model.plainly(decision.noise), belief, labels)
    qualities = [noise_model.judge(plain, belief, labels).quality]
    for index in range(len(scores)) if len(scores) > 1 else ():
        one = [scores[index]]
        # Alone, a learner must be sharper to replace the others.
        centre = decision.sharp._replace(sharpness=decision.sharp.sharpness[[index]] + np.log(len(scores)))
        offset = _offset(decision.noise, centre, one, evidence)
        alone = calibrate(_take(one, sure), evidence.targets(sure), centre, offset=offset)
        belief = alone.belief(_take(one, some))
        noise = noise_model.fit_near(decision.noise, belief, labels)
        qualities.append(noise_model.judge(noise, belief, labels).quality)
    return np.stack(qualities)


def _plain(found: Decision, explained: noise_model.Explained, scores: Scores, labels: Labels) -> Decision:
    """The decision by plain noise."""
    sharp = explained.plain_calibration
    noise = noise_model.fit_near(explained.plain, sharp.belief(scores), labels)
    return found._replace(calibration=sharp, noise=noise, sharp=sharp)


def _is_noisy(signs: Signs, blurred: Calibration, scores: Scores, evidence: Evidence) -> bool:
    """Whether a sign speaks against the simplest explanation."""
    labels, control = evidence.labels, evidence.trusted & ~evidence.decided
    if np.any(labels.truth != labels.given):
        return True
    if not control.any():
        return signs.plainly > 0 or signs.together > LIKELIER
    if signs.plainly > LIKELIER or signs.together > 0:
        return True
    possible = signs.likelier > -noise_model.numbers(evidence.groups, evidence.classes)
    return _apart_by(blurred, scores, evidence) > (CLEARLY if possible else SURELY)


def _pays(found: Decision, blurred: Calibration, scores: Scores, evidence: Evidence) -> bool:
    """Whether the noise raises the log-likelihood by as many units as it has parameters (Akaike)."""
    gain = _with_noise(found, scores, evidence) - calibration.without_noise(blurred.belief(scores), evidence.labels)
    return float(np.sum(gain)) > noise_model.numbers(evidence.groups, evidence.classes)


def _likelier(found: Decision, scores: Scores, evidence: Evidence, judges: Int[np.ndarray, " judges"]) -> float:
    """By how many units the log-posterior of `found` exceeds that of one belief, without noise, for all rows, trusted
    or not.
    """
    few, labels = _take(scores, judges), evidence.labels.take(judges)
    usual = evidence.usual
    one = calibrate(few, evidence.targets(judges), usual, calibration.VAGUE_SD, calibration.CLASS_SD)
    gain = np.sum(_with_noise(found, scores, evidence)[judges] - calibration.without_noise(one.belief(few), labels))
    unusual = calibration.log_prior(found.calibration, usual) - calibration.log_prior(one, usual)
    return float(gain) + unusual - noise_model.price(found.noise)


def _with_noise(found: Decision, scores: Scores, evidence: Evidence) -> Float[np.ndarray, " rows"]:
    """The log-likelihood of each label; trusted ones have no noise."""
    labels, belief = evidence.labels, found.calibration.belief(scores)
    likely = labels.repeats * np.log(noise_model.judge(found.noise, belief, labels).likelihood)
    return np.where(evidence.trusted, calibration.without_noise(belief, labels), likely)


def _apart_by(blurred: Calibration, scores: Scores, evidence: Evidence) -> float:
    """By how many standard errors the control group is likelier than the other rows, beyond what is expected of it."""
    belief, labels = blurred.belief(scores), evidence.labels
    surprise = calibration.without_noise(belief, labels) - labels.repeats * _expected(belief)
    return _apart(surprise[evidence.trusted & ~evidence.decided], surprise[~evidence.trusted])


def _apart(few: Float[np.ndarray, " few"], many: Float[np.ndarray, " many"]) -> float:
    """By how many standard errors the mean of the few exceeds that of the many, if both are of one kind."""
    error = np.concatenate([few, many]).std() * np.sqrt(1 / len(few) + 1 / len(many))
    return float((few.mean() - many.mean()) / max(error, TINY))


def _expected(belief: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, " rows"]:
    """The log-likelihood that the belief expects of a label drawn from it: lower for hard rows."""
    return np.sum(belief * np.log(belief), axis=1)


def _offset(noise: Noise, calibration: Calibration, scores: Scores, evidence: Evidence) -> calibration.Offset:
    """For the trusted rows: the evidence of the labels of decided rows for their classes."""
    sure = evidence.sure
    return noise_model.offset_of(noise, calibration.belief(_take(scores, sure)), evidence.labels.take(sure))


def _take(scores: Scores, rows: Int[np.ndarray, " some"]) -> Scores:
    return [each[rows] for each in scores]
