"""Nonconvex regularizers. Every prox here is a global minimiser for every step: where the shape of the objective
changes with the step, the closed form changes with it. In the derivations t is the step, s = t * strength, and x >= 0
(all these functions are even, so the general prox is sign(x) prox(|x|)).
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from proxbi._check import Number, as_float, positive, require
from proxbi.regularizers._base import Penalty, clamp, like, root, sign, soft


class NegativeCappedL1(Penalty):
    r"""$h(x) = -\lambda \sum_i \min(|x_i|, c)$: pushes every entry away from 0, until it reaches the cap.

    Tie: only at $x_i = 0$, where $\pm\min(t\lambda, c)$ are both minimisers (and 0 is not); the prox goes to the
    positive one.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `cap`: $c > 0$, the magnitude beyond which nothing is gained.

    Reference: Chen, Kailkhura and Zhou, *An accelerated proximal algorithm for regularized nonconvex and nonsmooth
    bi-level optimization*, 2023.

    >>> import jax.numpy as jnp
    >>> print(NegativeCappedL1(0.5, 2.0).prox(jnp.array([0.0, -1.0, 1.75, 3.0]), 1.0))
    [ 0.5 -1.5  2.   3. ]
    """

    cap: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("cap", self.cap)

    def _value(self, x: Array) -> Array:
        return -like(self.strength, x) * jnp.minimum(jnp.abs(x), like(self.cap, x))

    # For x >= 0 moving down gains nothing. On [0, c] the objective -su + (u - x)^2 / 2 is least at x + s, beyond c it
    # grows away from x; so u = x + s, stopped at c, and u = x if x is beyond c already. The magnitude is taken as
    # sign(x) x, whose derivative at 0 is that of the side which the tie chose.
    def _prox(self, x: Array, step: Array) -> Array:
        side = sign(x)
        magnitude = side * x
        pushed = magnitude + step * like(self.strength, x)
        return side * jnp.maximum(magnitude, jnp.minimum(pushed, like(self.cap, x)))


class CappedL1(Penalty):
    r"""$h(x) = \lambda \sum_i \min(|x_i|, c)$: the l1 norm that stops charging at the cap.

    Tie: at $|x_i| = c + s/2$ ($s = t\lambda < 2c$) or $\sqrt{2sc}$ ($s \ge 2c$) two points are minimisers; the prox
    takes the one of smaller magnitude.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `cap`: $c > 0$.

    Reference: T. Zhang, *Analysis of multi-stage convex relaxation for sparse regularization*, 2010.

    >>> import jax.numpy as jnp
    >>> print(CappedL1(1.0, 2.0).prox(jnp.array([0.5, -2.0, 3.0]), 1.0))
    [ 0. -1.  3.]
    """

    cap: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("cap", self.cap)

    def _value(self, x: Array) -> Array:
        return like(self.strength, x) * jnp.minimum(jnp.abs(x), like(self.cap, x))

    # The candidates are soft(x, s), for the slope below the cap, and x itself, at the price sc. With x >= s they cost
    # s(x - s) + s^2/2 and sc, equal at x = c + s/2; this needs c + s/2 >= s, i.e. s <= 2c. With x < s the first is
    # 0 and costs x^2/2: equal at x = sqrt(2sc), which is < s exactly when s > 2c.
    def _prox(self, x: Array, step: Array) -> Array:
        moved, cap = step * like(self.strength, x), like(self.cap, x)
        threshold = jnp.where(moved < 2 * cap, cap + moved / 2, jnp.sqrt(2 * moved * cap))
        return jnp.where(jnp.abs(x) <= threshold, soft(x, moved), x)


class L0(Penalty):
    r"""$h(x) = \lambda\, \#\{i : x_i \ne 0\}$; its prox is hard thresholding at $\sqrt{2 t\lambda}$.

    Tie: at $|x_i| = \sqrt{2t\lambda}$, between 0 and $x_i$, the prox takes 0.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.

    Reference: Blumensath and Davies, *Iterative thresholding for sparse approximations*, 2008.

    >>> import jax.numpy as jnp
    >>> print(L0(2.0).prox(jnp.array([1.9, -2.1, 2.0]), 1.0))
    [ 0.  -2.1  0. ]
    """

    convex: ClassVar[bool] = False

    def _value(self, x: Array) -> Array:
        return jnp.where(x != 0, like(self.strength, x), 0)

    # Either u = 0, at x^2/2, or u = x, at s.
    def _prox(self, x: Array, step: Array) -> Array:
        return jnp.where(jnp.abs(x) > jnp.sqrt(2 * step * like(self.strength, x)), x, 0)


class MCP(Penalty):
    r"""The minimax concave penalty, $h(x) = \sum_i \int_0^{|x_i|} \max(\lambda - u/\theta, 0)\, du$; weakly convex
    with constant $1/\theta$.

    Tie: for $t \ge \theta$ at $|x_i| = \lambda\sqrt{\theta t}$, between 0 and $x_i$ (at $t = \theta$, with all the
    points between), the prox takes 0.

    **Arguments:**

    - `strength`: $\lambda \ge 0$, the slope at 0.
    - `theta`: $\theta > 0$; the slope reaches 0 at $\theta\lambda$.

    Reference: C.-H. Zhang, *Nearly unbiased variable selection under minimax concave penalty*, 2010.

    >>> import jax.numpy as jnp
    >>> print(MCP(1.0, 2.0).prox(jnp.array([0.5, -1.5, 3.0]), 1.0))
    [ 0. -1.  3.]
    """

    theta: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("theta", self.theta)

    def _value(self, x: Array) -> Array:
        strength, theta = like(self.strength, x), like(self.theta, x)
        sloped = jnp.minimum(jnp.abs(x), theta * strength)
        return sloped * (strength - sloped / (2 * theta))

    # On [0, theta lambda] the curvature of the objective is 1/t - 1/theta. If positive (t < theta), the objective is
    # convex and its minimiser solves u - x + s - tu/theta = 0, kept in [0, x]. Otherwise the objective is concave
    # there, so that an end wins: 0, at x^2/2, or x in the flat part, at t theta lambda^2 / 2.
    def _prox(self, x: Array, step: Array) -> Array:
        strength, theta, magnitude = like(self.strength, x), like(self.theta, x), jnp.abs(x)
        convex = step < theta
        firm = clamp((magnitude - step * strength) / jnp.where(convex, 1 - step / theta, 1), 0, magnitude)
        hard = jnp.where(magnitude <= strength * jnp.sqrt(theta * step), 0, magnitude)
        return sign(x) * jnp.where(convex, firm, hard)


class SCAD(Penalty):
    r"""Smoothly clipped absolute deviation: slope $\lambda$ up to $\lambda$, then falling linearly to 0 at
    $a\lambda$; weakly convex with constant $1/(a-1)$.

    $$h(x) = \sum_i \lambda m_i - \frac{\max(m_i - \lambda, 0)^2}{2(a-1)}, \qquad m_i = \min(|x_i|, a\lambda).$$

    Tie: for $t \ge a - 1$ at $|x_i| = \lambda(a+1+t)/2$ ($t \le a+1$) or $\lambda\sqrt{t(a+1)}$, the prox takes the
    smallest minimiser.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `a`: $a > 2$.

    Reference: Fan and Li, *Variable selection via nonconcave penalized likelihood and its oracle properties*, 2001.

    >>> import jax.numpy as jnp
    >>> print(SCAD(1.0, 3.0).prox(jnp.array([1.5, -2.5, 4.0]), 1.0))
    [ 0.5 -2.   4. ]
    """

    a: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        require(jnp.isfinite(self.a) & (self.a > 2), f"a must be finite and > 2, got {self.a}.")

    def _value(self, x: Array) -> Array:
        strength, a = like(self.strength, x), like(self.a, x)
        sloped = jnp.minimum(jnp.abs(x), a * strength)
        return strength * sloped - jnp.maximum(sloped - strength, 0) ** 2 / (2 * (a - 1))

    # t < a - 1: the objective is convex. The stationary points of the three pieces are soft(x, s), the line
    # ((a-1)x - as) / (a-1-t), steeper than 1, and x; the line meets the first at x = lambda(1+t) and the last at
    # a lambda, so the middle one of the three is the minimiser.
    # t >= a - 1: concave on the middle piece, so soft(x, s) or x wins. Against x, which costs s lambda (a+1)/2, the
    # first costs s x - s^2/2 where x >= s, equal at lambda(a+1+t)/2 (which is >= s as long as t <= a+1), and x^2/2
    # where x < s, equal at lambda sqrt(t(a+1)).
    def _prox(self, x: Array, step: Array) -> Array:
        strength, a, magnitude = like(self.strength, x), like(self.a, x), jnp.abs(x)
        moved, convex = step * strength, step < a - 1
        soft_ = jnp.maximum(magnitude - moved, 0)
        line = ((a - 1) * magnitude - a * moved) / jnp.where(convex, a - 1 - step, 1)
        threshold = strength * jnp.where(step <= a + 1, (a + 1 + step) / 2, jnp.sqrt(step * (a + 1)))
        hard = jnp.where(magnitude <= threshold, soft_, magnitude)
        return sign(x) * jnp.where(convex, clamp(line, soft_, magnitude), hard)


class LogSum(Penalty):
    r"""$h(x) = \lambda \sum_i \log(1 + |x_i|/\varepsilon)$; weakly convex with constant $\lambda/\varepsilon^2$.

    Tie: for $t\lambda > \varepsilon^2$ there is one magnitude (without closed form) at which 0 and a positive point
    are both minimisers; the prox takes 0.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `epsilon`: $\varepsilon > 0$; the smaller, the closer to l0.

    Reference: Candes, Wakin and Boyd, *Enhancing sparsity by reweighted l1 minimization*, 2008.

    >>> import jax.numpy as jnp
    >>> print(LogSum(1.0, 2.0).prox(jnp.array([1.0, -3.0]), 4.0))
    [ 0. -2.]
    """

    epsilon: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("epsilon", self.epsilon)

    def _value(self, x: Array) -> Array:
        return like(self.strength, x) * jnp.log1p(jnp.abs(x) / like(self.epsilon, x))

    # Stationary points u > 0 solve (u - x)(u + e) + s = 0: the larger root r, where real, is the local minimiser.
    # If s <= e^2 the objective is convex on u >= 0, so 0 wins exactly if its slope there, s/e - x, is >= 0. If
    # s > e^2, 0 and r may both be local minimisers, and the objective decides: r must cost less than x^2/2, as 0 does.
    def _prox(self, x: Array, step: Array) -> Array:
        moved, epsilon, magnitude = step * like(self.strength, x), like(self.epsilon, x), jnp.abs(x)
        discriminant = (magnitude + epsilon) ** 2 - 4 * moved
        larger = jnp.maximum((magnitude - epsilon + root(discriminant)) / 2, 0)
        gain = larger * (magnitude - larger / 2) - moved * jnp.log1p(larger / epsilon)
        leaves = jnp.where(moved <= epsilon**2, magnitude > moved / epsilon, (discriminant >= 0) & (gain > 0))
        return sign(x) * jnp.where(leaves, larger, 0)


class Lp(Penalty):
    r"""$h(x) = \lambda \sum_i |x_i|^p$ with $0 < p < 1$.

    Tie: at one magnitude ($1.5\, (t\lambda)^{2/3}$ for $p = 1/2$) 0 and a positive point are both minimisers; the
    prox takes 0.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `p`: the exponent, in (0, 1).

    Reference: Marjanovic and Solo, *On l_q optimization and matrix completion*, 2012.

    >>> import jax.numpy as jnp
    >>> print(Lp(1.0, 0.5).prox(jnp.array([1.5, 1.75]), 1.0).round(3))
    [0.    1.314]
    """

    p: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        require((self.p > 0) & (self.p < 1), f"p must be in (0, 1), got {self.p}.")

    def _value(self, x: Array) -> Array:
        magnitude = jnp.abs(x)
        powers = jnp.where(magnitude > 0, magnitude, 1) ** like(self.p, x)  # the slope at 0 is infinite: reported as 0
        return like(self.strength, x) * jnp.where(magnitude > 0, powers, 0)

    # 0 and u > 0 cost the same, x^2/2, when x = u/2 + s u^(p-1), whose least value over u is attained at
    # z = (2s(1-p))^(1/(2-p)) and is z(2-p) / (2(1-p)): below it 0 wins. Above it, the minimiser is the root
    # in [z, x] of
    #     F(u) = u - x + s p u^(p-1),      with F' = 1 - s p (1-p) u^(p-2) in [1 - p/2, 1] there, and F'' > 0.
    # Newton from the right end, where F > 0, decreases to the root without passing it (F convex). Convexity also gives
    # F(u) >= F'(root)(u - root), so each step leaves at most 1 - F'(root)/F'(u) <= p/2 < 1/2 of the error: it
    # cannot stall. And the error e after a step is at most (p/2z) e^2, from e = s p root^(p-1) <= zp / (2(1-p)) at
    # the start: once halved below z/p, which takes log2(1/(1-p)) steps, it falls quadratically, to 2^-64 in 6 more.
    # The iteration is not differentiated; one more step, which is, gives the derivative of the implicit function.
    def _prox(self, x: Array, step: Array) -> Array:
        moved, p, magnitude = step * like(self.strength, x), like(self.p, x), jnp.abs(x)
        smallest = (2 * moved * (1 - p)) ** (1 / (2 - p))
        leaves = magnitude > smallest * (2 - p) / (2 * (1 - p))
        equation = jnp.where(leaves, magnitude, 1), jnp.where(leaves, moved, 0), p
        fixed = jax.lax.stop_gradient(equation)
        start = jax.lax.fori_loop(0, 16, lambda _, u: _newton(u, *fixed), fixed[0])
        return sign(x) * jnp.where(leaves, _newton(start, *equation), 0)


def _newton(u: Array, x: Array, moved: Array, p: Array) -> Array:
    """One Newton step for u - x + moved p u^(p-1) = 0."""
    slope = moved * p * u ** (p - 1)
    return u - (u - x + slope) / (1 - (1 - p) * slope / u)
