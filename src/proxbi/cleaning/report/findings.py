"""The findings in sentences: the same on the terminal, in the JSON summary and on the page."""

from math import isfinite

from proxbi.cleaning.method.weightings import NOISY, PLAIN
from proxbi.cleaning.result import Cleaned, Interval, NoiseShare, Overview, Score
from proxbi.report.markup import percent

NOT_KNOWN = "not known"
NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""


def is_known(rate: Interval) -> bool:
    """Whether this share was estimated."""
    return isfinite(rate.estimate)


def headline(cleaned: Cleaned | Overview) -> str:
    """The number of labels that are probably wrong, and the estimated share with its 95 % interval."""
    judged, flagged = cleaned.counts.judged, cleaned.counts.flagged
    rate = cleaned.noise_rate
    share = f"{whole(rate.estimate)} %, {whole(rate.low)}-{whole(rate.high)} %"
    share = share if is_known(rate) else f"share of wrong labels {NOT_KNOWN}"
    if not flagged and not is_known(rate):
        return f"It is {NOT_KNOWN} whether any of {judged:,} labels is wrong."
    if not flagged:
        return f"None of {judged:,} labels looks wrong ({share})."
    return f"{flagged:,} of {judged:,} labels {'is' if flagged == 1 else 'are'} probably wrong ({share})."


def share_wrong(rate: Interval) -> str:
    """The estimated share and its interval."""
    if not is_known(rate):
        return NOT_KNOWN
    return f"{percent(rate.estimate)} (95 % interval {percent(rate.low)} to {percent(rate.high)})"


def for_a_model(cleaned: Cleaned | Overview) -> str:
    """Whether the wrong labels matter for a model that is trained on them."""
    by_name = {score.name: score for score in cleaned.scores}
    given, chosen = by_name.get(NOISY.name), by_name.get(cleaned.chosen)
    if given is None or chosen is None:
        return "Whether this matters for a model was not measured."
    as_given = f"trained on all labels as given it is right in {_accuracy(given)} of {judge(cleaned)}"
    if chosen is given:
        return f"For a model it makes no measurable difference: {as_given}, and no other weighting does better."
    opening = "It matters for a model" if cleaned.helped else "For a model the difference is within the errors"
    return f"{opening}: {as_given}, with “{PLAIN.get(cleaned.chosen, cleaned.chosen)}” in {_accuracy(chosen)}."


def judge(cleaned: Cleaned | Overview) -> str:
    """The rows on which the scores were measured."""
    if cleaned.counts.judges:
        return "held-out trusted rows"
    why = "decided rows were picked" if cleaned.counts.decided else "no row is trusted"
    return f"held-out rows (by the labels given: {why})"


def scored(score: Score) -> Interval:
    """The accuracy and its 95 % interval."""
    reach = NORMAL * score.accuracy_se
    return Interval(score.accuracy, max(0.0, score.accuracy - reach), min(1.0, score.accuracy + reach))


def before_and_after(cleaned: Cleaned | Overview) -> tuple[Interval, Interval] | None:
    """Held-out accuracy with all labels as given and as cleaned, if it was measured."""
    by_name = {score.name: scored(score) for score in cleaned.scores}
    return (by_name[NOISY.name], by_name[cleaned.chosen]) if {NOISY.name, cleaned.chosen} <= set(by_name) else None


def accuracies(cleaned: Cleaned | Overview) -> tuple[str, str] | None:
    """The same, in words."""
    measured = before_and_after(cleaned)
    return None if measured is None else (with_interval(measured[0]), with_interval(measured[1]))


def with_interval(share: Interval) -> str:
    """A share and its 95 % interval.

    >>> with_interval(Interval(0.905, 0.88, 0.93))
    '90.5 % (88.0-93.0 %)'
    """
    return f"{percent(share.estimate)} ({100 * share.low:.1f}-{100 * share.high:.1f} %)"


def groups_judged(cleaned: Cleaned | Overview) -> list[NoiseShare]:
    """The rates of the groups that have rows to judge: trusted rows given apart are a group without any."""
    return [each for each in cleaned.noise_by_group if each.rows]


def whole(share: float) -> str:
    """In per cent, with two digits.

    >>> whole(0.174), whole(0.0421), whole(0.0), whole(float("nan"))
    ('17', '4.2', '0', '?')
    """
    if not isfinite(share):
        return "?"
    return f"{100 * share:.0f}" if share >= 0.0995 or share == 0 else f"{100 * share:.1f}"


def _accuracy(score: Score) -> str:
    return with_interval(scored(score))
