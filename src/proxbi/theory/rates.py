r"""Theorem 2: the rate of decrease of H(x_k, y_k), measured on a run and predicted from the KL exponent theta.

    theta < 1/2:   H_k - H* = O(k^{-1/(1 - 2 theta)})                      a line in log-log axes
    theta = 1/2:   H_k - H* = O((1 + C)^-k)                                a line in semilog axes
    theta > 1/2:   H_k - H* = O(exp(-(1/(2(1 - theta)))^{k - k_0}))        the number of digits multiplies in each step

(In (eq: superlinear_converge) of the paper the exp is missing; its proof has it.) H is quadratic in the lower error, so
its KL exponent is at most 1/2, and the last line does not apply, unless the lower solve is exact.
"""

import math

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, " steps"]


def predicted_slope(theta: float) -> float:
    """-1 / (1 - 2 theta), the slope in log-log axes, for 0 < theta < 1/2.

    >>> predicted_slope(1 / 4)
    -2.0
    """
    if not 0 < theta < 0.5:
        raise ValueError(f"theta must be in (0, 1/2) for a sublinear rate, got {theta}.")
    return -1 / (1 - 2 * theta)


def predicted_order(theta: float) -> float:
    """1 / (2 (1 - theta)), the order of superlinear convergence that is guaranteed, for 1/2 < theta < 1.

    >>> round(predicted_order(2 / 3), 6)
    1.5
    """
    if not 0.5 < theta < 1:
        raise ValueError(f"theta must be in (1/2, 1) for a superlinear rate, got {theta}.")
    return 0.5 / (1 - theta)


def power_slope(gap: Series) -> float:
    """The slope of log gap against log k, by least squares over the last decade of k.

    >>> round(power_slope(3.0 * np.arange(1, 1001) ** -2.0), 6)
    -2.0
    """
    last = len(gap)
    at = np.unique(np.geomspace(max(1, last // 10), last, 60).astype(int))
    return float(np.polyfit(np.log(at), np.log(gap[at - 1]), 1)[0])


def geometric_slope(gap: Series, floor: float = 1e-24) -> tuple[float, float]:
    """The slope of log gap against k by least squares over the later half of the values above `floor` times the first
    one, and the largest deviation from that line: the log of the linear rate, and how linear it is.

    >>> slope, deviation = geometric_slope(5.0 * 0.5 ** np.arange(40))
    >>> round(math.exp(slope), 6), deviation < 1e-9
    (0.5, True)
    """
    usable = int(np.argmin(np.append(gap, 0) > floor * gap[0]))
    at = np.arange(usable // 2, usable)
    if len(at) < 3:
        return math.nan, math.inf
    line = np.polyfit(at, np.log(gap[at]), 1)
    return float(line[0]), float(np.max(np.abs(np.polyval(line, at) - np.log(gap[at]))))


def orders(gap: Series, floor: float = 1e-300) -> Series:
    """log(d_{k+1} / d_k) / log(d_k / d_{k-1}): tends to the order of convergence; 1 is linear.

    >>> print(orders(np.array([1e-1, 1e-2, 1e-4, 1e-8])))
    [2. 2.]
    """
    usable = int(np.argmin(np.append(gap, 0) > floor))
    digits = np.diff(np.log(gap[:usable]))
    return digits[1:] / digits[:-1]


def exponent(kappas: Series, calls: Series) -> float:
    """p in calls ~ kappa^p, by least squares in log-log axes.

    >>> round(exponent(np.array([1.0, 10.0, 100.0]), np.array([2.0, 20.0, 200.0])), 6)
    1.0
    """
    return float(np.polyfit(np.log(kappas), np.log(calls), 1)[0])
