"""Problems that violate an assumption, and how `minimize(problem, x0, y0)`, with nothing set, ends on each of them.

Each row is a problem as someone may well write it: what is wrong with it, f, g and the start as source, and the status
or the error that is right, with words of its sentence that help. `test_improper.py` runs them all, and
`docs/improper.md` is made of them:

    python tests/improper.py > docs/improper.md
    python tests/improper.py "a hinge loss"          # runs one, and prints what comes back
"""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import proxbi
from proxbi import Problem, Result, Status, minimize

# --- What rows are made of --------------------------------------------------------------------------------------------

_DRAW = np.random.default_rng(0)
Z = _DRAW.normal(size=(12, 2))
T = np.sign(Z @ np.array([1.0, -1.0]))  # labels that a plane separates
P = np.abs(Z)  # a design without negative entries
ONE_HOT = np.eye(3)[np.argmax(Z @ _DRAW.normal(size=(2, 3)), axis=1)]


def loss(score: Any) -> Any:
    """The mean of log(1 + e^-s)."""
    return jnp.mean(jnp.logaddexp(0.0, -score))


def branches(x: Any, y: Any) -> Any:
    """Python's `if` on a value that is traced."""
    return jnp.sum((y - x) ** 2) if jnp.sum(y) > 0 else jnp.sum((y + x) ** 2)


def halving(x: Any, y: Any) -> Any:
    """A loop whose length is not known, which JAX cannot differentiate backwards."""
    far = jnp.sum((y - x) ** 2)
    return jax.lax.while_loop(lambda s: s > 1, lambda s: s / 2, far)


def through_numpy(x: Any, y: Any) -> Any:
    """A function of NumPy's, called from the compiled program: JAX does not know its derivative."""
    like = jax.ShapeDtypeStruct((), y.dtype)
    return jax.pure_callback(lambda a, b: np.sum((a - b) ** 2), like, x, y)


def in_place(x: Any, y: Any) -> Any:
    y[0] = 0.0
    return jnp.sum((y - x) ** 2)


SEEN: list[Any] = []


def remembers(x: Any, y: Any) -> Any:
    """A side effect: while it is traced, and then never again."""
    SEEN.append(x)
    return jnp.sum((y - x) ** 2)


def lower(x: Any, y: Any) -> Any:
    return jnp.sum((y - x) ** 2)


def upper(x: Any, y: Any) -> Any:
    return jnp.sum((y - 2) ** 2)


NEAR, FOLLOW = "jnp.sum((y - 2) ** 2)", "jnp.sum((y - x) ** 2)"
X0, Y0 = "jnp.array([0.5, 1.0])", "jnp.zeros(2)"


@dataclass(frozen=True)
class Row:
    """One improper problem. Functions are given as expressions in x and y, or as whole lambdas."""

    kind: str
    name: str
    ends: Status | type[Exception]
    says: str
    """Words of the sentence."""
    upper: str = NEAR
    lower: str = FOLLOW
    x0: str = X0
    y0: str = Y0
    more: str = ""
    """Further arguments of Problem."""
    call: str = ""
    """Used in the place of minimize(problem, x0, y0)."""
    answer: tuple[float, ...] | None = None
    """x, where it is known."""

    @property
    def raises(self) -> bool:
        """Whether it is refused before anything is compiled."""
        return not isinstance(self.ends, Status)

    @property
    def shared(self) -> bool:
        """Whether one program serves it and others: x and y are two numbers each, and nothing else is given."""
        plain = not (self.raises or self.more or self.call)
        return plain and all(np.shape(start) == (2,) for start in self.starts())

    def function(self, name: str) -> Any:
        """`upper` or `lower`."""
        text = getattr(self, name)
        whole = text.startswith("lambda") or text.isidentifier()
        return _evaluated(text if whole else f"lambda x, y: {text}")

    def problem(self) -> Problem:
        more = _evaluated(f"dict({self.more})") if self.more else {}
        return Problem(self.function("upper"), self.function("lower"), **more)

    def starts(self) -> tuple[Any, Any]:
        return _evaluated(self.x0), _evaluated(self.y0)

    def run(self, throw: bool = True) -> Result:
        """What `minimize` returns; the error, where it raises one, is its own."""
        if self.call:
            return eval(self.call, _names() | {"problem": self.problem})
        return minimize(self.problem(), *self.starts(), throw=throw)

    def code(self) -> str:
        """The problem, as the page shows it."""
        if self.call:
            return f"`{self.call}`"
        parts = {"upper": (self.upper, NEAR), "lower": (self.lower, FOLLOW), "x0": (self.x0, X0), "y0": (self.y0, Y0)}
        shown = [f"`{name}`: `{text}`" for name, (text, usual) in parts.items() if text != usual]
        return ", ".join(shown + ([f"`{self.more}`"] if self.more else []))


@cache
def _names() -> dict[str, Any]:
    return {**vars(proxbi), **{name: getattr(proxbi, name) for name in dir(proxbi)}, **globals()}


def _evaluated(text: str) -> Any:
    return eval(text, _names())


S = Status
_nonsmooth = partial(Row, "nonsmooth lower levels", ends=S.LOWER_NONSMOOTH, says="lower_regularizer=")
_unbounded = partial(Row, "without a lower bound")
_minimiser = partial(Row, "lower levels without a minimiser", ends=S.NOT_STRONGLY_CONVEX, says="ridge term")
_flat = partial(Row, "lower levels with flat directions", ends=S.NOT_STRONGLY_CONVEX, says="damping=")
_swapped = partial(Row, "swapped arguments")
_integers = partial(Row, "integers, lists and other starts", ends=TypeError)
_dtypes = partial(Row, "mixed dtypes", ends=TypeError)
_walls = partial(Row, "walls: logs, roots and domains")
_separable = partial(Row, "separable data", ends=S.NOT_STRONGLY_CONVEX, says="ridge term")
_saturated = partial(Row, "saturated starts")
_ties = partial(Row, "ties and kinks")
_code = partial(Row, "functions that JAX cannot use", ends=ValueError)
_shapes = partial(Row, "shapes, structures and data", ends=ValueError)
_local = partial(Row, "lower levels with several minimisers", ends=S.CONVERGED, says="local minimiser")

ROWS = [
    _nonsmooth("a hinge loss", lower="jnp.mean(jax.nn.relu(1 - T * (Z @ y))) + jnp.sum(jnp.exp(x) * y**2) / 2"),
    _nonsmooth(
        "an elastic net in lower",
        lower="jnp.mean((Z @ y - T) ** 2) + jnp.sum(jnp.exp(x) * (jnp.abs(y) + y**2))",
    ),
    _nonsmooth("absolute deviations", lower="jnp.mean(jnp.abs(Z @ y - T)) + 0.01 * jnp.sum(jnp.exp(x) * y**2)"),
    _nonsmooth("a maximum", lower="jnp.max(y) + jnp.sum((y - x) ** 2) / 2", x0="jnp.array([1.0, 1.2])"),
    _nonsmooth("total variation", lower="jnp.sum((y - x) ** 2) / 2 + 3 * jnp.abs(y[0] - y[1])"),
    _nonsmooth(
        "a norm that is not squared",
        lower="jnp.sum((y - x) ** 2) / 2 + 3 * jnp.sqrt(jnp.sum((y - 0.1) ** 2) + 1e-300)",
    ),
    _nonsmooth(
        "a kink of lower at y0, which hides there",
        lower="jnp.sum((y - x) ** 2) / 2 + 2 * jnp.sum(jnp.abs(y))",
        x0="jnp.zeros(2)",
    ),
    _unbounded("upper is linear", ends=S.UNBOUNDED, says="Box", upper="jnp.sum(y)"),
    _unbounded("upper has the wrong sign", ends=S.UNBOUNDED, says="sign of upper", upper="-jnp.sum((y - 2) ** 2)"),
    _unbounded("upper falls exponentially", ends=S.UNBOUNDED, says="Box", upper="-jnp.sum(jnp.exp(y))"),
    _unbounded("a reward beats a penalty", ends=S.UNBOUNDED, says="Box", upper="jnp.sum(x**2) - 2 * jnp.sum(x * y)"),
    _unbounded("lower is linear", ends=S.NOT_STRONGLY_CONVEX, says="ridge term", lower="jnp.sum(x * y)"),
    _unbounded(
        "lower has the wrong sign", ends=S.NEGATIVE_CURVATURE, says="sign of lower", lower="-jnp.sum((y - x) ** 2)"
    ),
    _unbounded(
        "lower is a saddle", ends=S.NEGATIVE_CURVATURE, says="ridge term", lower="y[0] ** 2 - y[1] ** 2 + y @ x"
    ),
    _unbounded(
        "lower is a cubic, y0 on its wrong side",
        ends=S.NEGATIVE_CURVATURE,
        says="y0",
        lower="jnp.sum(y**3 - x * y)",
        y0="-jnp.ones(2)",
    ),
    _minimiser("a weighted logistic loss of separable rows", lower="loss(jnp.repeat(jnp.exp(x), 6) * T * (Z @ y))"),
    _minimiser("an exponential", lower="jnp.sum(jnp.exp(x - y))"),
    _minimiser("a hyperbola", lower="jnp.sum(jnp.sqrt(1 + (y - x) ** 2) - y)"),
    _minimiser("counts of zero", lower="jnp.mean(jnp.exp(P @ y + jnp.sum(x)))"),
    _minimiser("a reciprocal", lower="jnp.sum(jnp.exp(x) / y)", y0="jnp.ones(2)"),
    _minimiser("an arctangent", lower="-jnp.sum(jnp.arctan(y - x))", y0="jnp.array([2.0, 2.0])"),
    _flat("more coefficients than rows", lower="(Z[0] @ y - jnp.sum(x)) ** 2"),
    _flat("only a sum is seen", lower="(jnp.sum(y) - jnp.sum(x)) ** 2", upper="jnp.sum((y - jnp.arange(2.0)) ** 2)"),
    _flat(
        "a quartic, flat at its minimiser, which is unique",
        ends=S.CONVERGED,
        says="Converged",
        lower="jnp.sum((y - x) ** 4)",
        answer=(2.0, 2.0),
    ),
    _flat("a squared hinge", lower="jnp.sum(jax.nn.relu(x - y) ** 2)"),
    _flat("scores without a reference class", lower="jax.nn.logsumexp(y) - jax.nn.softmax(x) @ y"),
    _flat("lower without derivatives", lower="jnp.sum((jax.lax.stop_gradient(y) - x) ** 2)"),
    _flat(
        "a flat direction that upper does not see either",
        ends=S.CONVERGED,
        says="Converged",
        lower="(jnp.sum(y) - jnp.sum(x)) ** 2",
        upper="(jnp.sum(y) - 2) ** 2",
    ),
    _local(
        "a network of one unit with weight decay",
        lower="jnp.mean((y[0] * jnp.tanh(Z[:, 0] * y[1]) - Z[:, 0]) ** 2) + 0.01 * jnp.sum(jnp.exp(x) * y**2)",
        upper="jnp.mean((y[0] * jnp.tanh(Z[:, 1] * y[1]) - 0.9 * Z[:, 1]) ** 2) + 0.01 * jnp.sum(x**2)",
        y0="jnp.array([0.1, 0.1])",
    ),
    _local(
        "a double well, y0 between the wells",
        lower="jnp.sum((y**2 - 1) ** 2 / 4 - 0.1 * x * y)",
        upper="jnp.sum((y - 1.1) ** 2)",
        y0="jnp.full(2, 0.3)",
    ),
    _local(
        "a cosine",
        upper="jnp.sum((y - 2) ** 2) + jnp.sum((x - 2) ** 2) / 10",
        lower="-jnp.sum(jnp.cos(y - x))",
        y0="jnp.full(2, 3.0)",
        answer=(2.0, 2.0),
    ),
    _local(
        "a double well, y0 in one of them",
        says="Converged",
        lower="jnp.sum((y**2 - 1) ** 2 / 4 - 0.1 * x * y)",
        upper="jnp.sum((y - 1.1) ** 2)",
        y0="jnp.ones(2)",
    ),
    _local(
        "a minimiser that forks as x grows",
        upper="jnp.sum((y - 1) ** 2) + jnp.sum((x - 1) ** 2) / 10",
        lower="jnp.sum(y**4) / 4 - jnp.sum(x * y**2) / 2",
        x0="-jnp.ones(2)",
        y0="jnp.full(2, 0.1)",
        answer=(1.0, 1.0),
    ),
    _local(
        "a minimiser that ends as x grows",
        upper="jnp.sum((y + 1) ** 2) + jnp.sum(x**2) / 100",
        lower="jnp.sum(y**4 / 4 - y**2 / 2 + x * y)",
        x0="jnp.array([0.0, 0.1])",
        y0="jnp.ones(2)",
        answer=(0.0, 0.0),
    ),
    _local(
        "the same, with nothing better beyond",
        ends=S.NEGATIVE_CURVATURE,
        says="what lies beyond is not better",
        upper="jnp.sum((y - 0.2) ** 2) + jnp.sum(x**2) / 100",
        lower="jnp.sum(y**4 / 4 - y**2 / 2 + x * y)",
        y0="jnp.ones(2)",
    ),
    _local(
        "a double well, y0 on the hill between",
        lower="jnp.sum((y**2 - 1) ** 2 - x * y**2)",
    ),
    _swapped("upper(y, x)", ends=TypeError, says="upper(x, y)", upper="lambda y, x: jnp.sum((y - 2) ** 2)"),
    _swapped("lower(y, x)", ends=TypeError, says="lower(x, y)", lower="lambda y, x: jnp.sum((y - x**2) ** 2)"),
    _swapped("data first", ends=TypeError, says="upper(x, y, data)", upper="lambda data, x, y: jnp.sum((y - 2) ** 2)"),
    _swapped(
        "upper(y, x), by other names", ends=ValueError, says="swapped", upper="lambda a, b: jnp.sum((a - 2) ** 2)"
    ),
    _swapped(
        "lower(y, x), by other names", ends=ValueError, says="swapped", lower="lambda a, b: jnp.sum((a - 2) ** 2)"
    ),
    _swapped("upper and lower", ends=TypeError, says="Problem(upper, lower", upper="lower", lower="upper"),
    _swapped(
        "x0 and y0",
        ends=ValueError,
        says="x0 and y0 swapped",
        upper="jnp.sum((y[:3] - 2) ** 2)",
        lower="jnp.sum((y - x @ jnp.ones((2, 3))) ** 2)",
        x0="jnp.zeros(3)",
        y0="jnp.zeros(2)",
    ),
    _swapped(
        "data in the place of the regularizer", ends=TypeError, says="data=", call="Problem(upper, lower, {'Z': Z})"
    ),
    _swapped("problem and x0", ends=TypeError, says="problem must be", call="minimize(jnp.ones(2), problem())"),
    _integers("an array of integers", says="x0 must be floating point", x0="jnp.array([1, 2])"),
    _integers("a Python integer", says="float(", x0="3"),
    _integers("a list of integers", says="y0[0] must be floating point", y0="[0, 0]"),
    _integers("a list in the place of an array", ends=ValueError, says="jnp.asarray(x0)", x0="[0.5, 1.0]"),
    _integers("a list of lists", ends=ValueError, says="jnp.asarray(y0)", y0="[[0.0, 0.0], [0.0, 0.0]]"),
    _integers("a tuple in the place of an array", ends=ValueError, says="jnp.asarray(y0)", y0="(0.0, 0.0)"),
    _integers("text", says="x0 must be", x0="'0.5'"),
    _integers("truth values", says="x0 must be floating point", x0="np.array([True, False])"),
    _integers("a set", says="got set", x0="{0.5, 1.0}"),
    _integers("objects", says="x0 must be", x0="np.array([0.5, None])"),
    _integers("no y0", says="y0 is required", y0="None"),
    _integers("an empty list", ends=ValueError, says="x0 is an empty pytree", x0="[]"),
    _dtypes("float32 and float64", says="one dtype", x0="jnp.ones(2, jnp.float32)", y0="jnp.zeros(2, jnp.float64)"),
    _dtypes("half precision", says="float32 or float64", x0="jnp.ones(2, jnp.float16)", y0="jnp.zeros(2, jnp.float16)"),
    _dtypes("complex numbers", says="x0 must be floating point", x0="jnp.ones(2, complex)"),
    _dtypes(
        "leaves of two dtypes",
        says="x0['b'] is float32",
        upper="jnp.sum((y - x['a']) ** 2) + jnp.sum(x['b'] ** 2)",
        lower="jnp.sum((y - x['a']) ** 2)",
        x0="{'a': jnp.ones(2, jnp.float64), 'b': jnp.ones(2, jnp.float32)}",
        y0="jnp.zeros(2, jnp.float64)",
    ),
    _dtypes(
        "lower throws digits away",
        says="lower returns float16",
        lower="jnp.sum((y - x) ** 2).astype(jnp.float16)",
    ),
    _dtypes(
        "upper is complex", says="upper must return a floating point", upper="jax.lax.complex(jnp.sum(y), jnp.sum(x))"
    ),
    _dtypes("upper counts", says="upper must return a floating point", upper="jnp.sum(y > 0)"),
    _walls(
        "y0 on the wall of lower", ends=S.NONFINITE_START, says="lower(x0, y0)", lower=f"{FOLLOW} - jnp.sum(jnp.log(y))"
    ),
    _walls(
        "y0 behind the wall of lower",
        ends=S.NONFINITE_START,
        says="lower(x0, y0)",
        lower=f"{FOLLOW} - jnp.sum(jnp.log(y))",
        y0="-jnp.ones(2)",
    ),
    _walls(
        "x0 behind the wall of lower",
        ends=S.NONFINITE_START,
        says="lower(x0, y0)",
        lower="jnp.sum((y - jnp.log(x)) ** 2)",
        x0="-jnp.ones(2)",
    ),
    _walls(
        "y* behind the wall of upper",
        ends=S.NONFINITE_START,
        says="upper",
        upper="jnp.sum(y - jnp.log(y))",
        x0="-jnp.ones(2)",
        y0="jnp.ones(2)",
    ),
    _walls("a root at 0", ends=S.NONFINITE_START, says="grad_lower", lower=f"{FOLLOW} + jnp.sum(jnp.sqrt(y))"),
    _walls("0 log 0", ends=S.NONFINITE_START, says="lower(x0, y0)", lower=f"{FOLLOW} + jnp.sum(y * jnp.log(y))"),
    _walls(
        "division by 0",
        ends=S.NONFINITE_START,
        says="lower(x0, y0)",
        lower="jnp.sum((y - 1 / x) ** 2)",
        x0="jnp.zeros(2)",
    ),
    _walls(
        "a wall between x0 and the answer's far side",
        ends=S.CONVERGED,
        says="Converged",
        upper="jnp.sum((y - 3) ** 2 - 0.1 * jnp.log(4 - y))",
    ),
    _walls(
        "logs of x that steps could leave",
        ends=S.CONVERGED,
        says="Converged",
        upper="jnp.sum((y + 1) ** 2)",
        lower="jnp.sum((y - jnp.log(x)) ** 2)",
        answer=(np.exp(-1.0), np.exp(-1.0)),
    ),
    _walls("x0 outside of a box", ends=S.INFEASIBLE_START, says="prox(x0", more="regularizer=Box(2.0, 3.0)"),
    _walls("x0 off the simplex", ends=S.INFEASIBLE_START, says="prox(x0", more="regularizer=Simplex()"),
    _separable("two classes", lower="jnp.exp(jnp.sum(x)) * loss(T * (Z @ y))"),
    _separable("one class only", lower="jnp.exp(jnp.sum(x)) * loss(y[0] + P @ y)"),
    _separable(
        "a row on the plane",
        lower="jnp.exp(jnp.sum(x)) * loss(T * (Z @ y)) + jnp.sum(jnp.exp(x)) * loss((y[0] + y[1]) * jnp.ones(2))",
    ),
    _separable("probit", lower="-jnp.exp(jnp.sum(x)) * jnp.mean(jax.scipy.stats.norm.logcdf(T * (Z @ y)))"),
    _separable(
        "an intercept without a penalty, and one class",
        lower="loss(y[0] + Z[:, 0] * y[1]) + jnp.exp(x[0]) * y[1] ** 2 + 0 * x[1]",
    ),
    _separable(
        "a ridge term, however small",
        ends=S.CONVERGED,
        says="Converged",
        upper="loss(T * (Z @ y)) + jnp.sum((x + 6) ** 2)",
        lower="loss(T * (Z @ y)) + jnp.sum(jnp.exp(x) * y**2)",
    ),
    _saturated(
        "a dead relu",
        ends=S.FLAT_START,
        says="dead relu",
        lower="jnp.sum((y - jax.nn.relu(x)) ** 2)",
        x0="-jnp.ones(2)",
    ),
    _saturated(
        "a square at 0", ends=S.FLAT_START, says="square of 0", lower="jnp.sum((y - x**2) ** 2)", x0="jnp.zeros(2)"
    ),
    _saturated(
        "a tangent of 40",
        ends=S.FLAT_START,
        says="saturated",
        upper="jnp.sum((jnp.tanh(y) - 0.5) ** 2)",
        x0="jnp.full(2, 40.0)",
    ),
    _saturated(
        "on top of a hill",
        ends=S.FLAT_START,
        says="Start elsewhere",
        upper="jnp.sum((y**2 - 1) ** 2)",
        x0="jnp.zeros(2)",
    ),
    _saturated(
        "a sigmoid of -30",
        ends=S.FLAT_START,
        says="jumped to another flat region",
        upper="jnp.sum((jax.nn.sigmoid(y) - 0.7) ** 2)",
        x0="jnp.full(2, -30.0)",
    ),
    _saturated(
        "an exponential of 30",
        ends=S.CONVERGED,
        says="Converged",
        upper="jnp.sum(jnp.exp(y) - 2 * y)",
        x0="jnp.full(2, 30.0)",
        answer=(np.log(2.0),) * 2,
    ),
    _saturated(
        "an exponential of 800",
        ends=S.NONFINITE_START,
        says="upper",
        upper="jnp.sum(jnp.exp(y) - 2 * y)",
        x0="jnp.full(2, 800.0)",
    ),
    _saturated("a start at 1e12: rtol refers to the way", ends=S.CONVERGED, says="Converged", x0="jnp.full(2, 1e12)"),
    _saturated("a start at 1e-12", ends=S.CONVERGED, says="Converged", x0="jnp.full(2, 1e-12)", answer=(2.0, 2.0)),
    _ties(
        "the absolute value of x, in upper",
        ends=S.NONSMOOTH,
        says="regularizer",
        upper="jnp.sum((y - 0.1) ** 2 + jnp.abs(x))",
    ),
    _ties("an absolute error", ends=S.NONSMOOTH, says="smooth it", upper="jnp.sum(jnp.abs(y - 0.3))"),
    _ties("the larger of two", ends=S.NONSMOOTH, says="smooth it", upper="jnp.max(y) + jnp.sum(y**2)"),
    _ties(
        "a median",
        ends=S.NONSMOOTH,
        says="smooth it",
        upper="jnp.sort(jnp.append(y, 0.3))[1] + jnp.sum((y - 0.3) ** 2)",
    ),
    _ties("started at the kink", ends=S.NONSMOOTH, says="smooth it", upper="jnp.sum(jnp.abs(y))", x0="jnp.zeros(2)"),
    _ties(
        "a change of the active set",
        ends=S.ACTIVE_SET,
        says="active set",
        upper="jnp.sum(2 * y + jnp.exp(x) / 2)",
        lower="jnp.sum((y - 2) ** 2) / 2",
        x0="jnp.array([0.3, 0.3])",
        more="lower_regularizer=lambda x: L1(jnp.exp(x))",
        answer=(np.log(2.0),) * 2,
    ),
    _ties(
        "a gradient as large as the strength of h",
        ends=S.CONVERGED,
        says="Converged",
        upper="jnp.sum((y - 1) ** 2) / 2",
        x0="jnp.zeros(2)",
        more="regularizer=L1(1.0)",
        answer=(0.0, 0.0),
    ),
    _code("NumPy's functions", says="jax.numpy", upper="np.sum(np.asarray(y) ** 2)"),
    _code("Python's if", says="jnp.where", lower="branches"),
    _code("Python's float", says="float()", upper="float(jnp.sum(y)) ** 2"),
    _code("a loop of unknown length", says="lower cannot be differentiated", lower="halving"),
    _code("a call back to NumPy", says="lower cannot be differentiated", lower="through_numpy"),
    _code("assignment in place", says="immutable", lower="in_place"),
    _code("side effects", ends=S.CONVERGED, says="Converged", lower="remembers", answer=(2.0, 2.0)),
    _code("too few arguments", ends=TypeError, says="takes 1 argument", call="Problem(lambda x: jnp.sum(x), lower)"),
    _code("no function", ends=TypeError, says="upper must be a function", call="Problem(3.0, lower)"),
    _shapes("upper is a vector", says="jnp.sum or jnp.mean", upper="(y - 2) ** 2"),
    _shapes("lower is a pair", says="got tuple", lower="(jnp.sum((y - x) ** 2), y)"),
    _shapes("lower returns nothing", says="lower must return a scalar", lower="lambda x, y: None"),
    _shapes("lower ignores y", says="lower ignores y", lower="jnp.sum(x**2)"),
    _shapes("lower ignores x", says="lower ignores x", upper="jnp.sum((y - x) ** 2)", lower="jnp.sum(y**2)"),
    _shapes("upper ignores y", says="upper ignores y", upper="jnp.sum(x**2)"),
    _shapes(
        "a part of x is not used",
        says="x['b']",
        lower="jnp.sum((y - x['a']) ** 2)",
        x0="{'a': jnp.ones(2), 'b': jnp.ones(3)}",
    ),
    _shapes("an empty array", says="y0 is empty", y0="jnp.zeros((2, 0))"),
    _shapes("an infinite start", says="x0 has 1 NaN or infinite", x0="jnp.array([1.0, jnp.inf])"),
    _shapes(
        "NaN in the data",
        says="data['t'] has 1 NaN",
        lower="lambda x, y, data: jnp.sum((y - x - data['t']) ** 2)",
        more="data={'t': np.array([0.0, np.nan])}",
    ),
    _shapes(
        "None in the data",
        says="data['t'] is None",
        lower="lambda x, y, data: jnp.sum((y - x - data['t']) ** 2)",
        more="data={'t': None}",
    ),
    _shapes("text in the data", ends=TypeError, says="data['t'] must be a numeric", more="data={'t': 'train.csv'}"),
    _shapes("shapes that do not fit", says="y0 has shape (3,)", y0="jnp.zeros(3)"),
    _shapes("y0 of another structure", says="y0 is a dict", y0="{'w': jnp.zeros(2)}"),
    _shapes("one strength too many", says="regularizer", more="regularizer=L1(np.ones(3))"),
    _shapes("groups of another length", says="regularizer", more="regularizer=GroupL2(1.0, [0, 0, 1])"),
    _shapes("a lower regularizer for more entries", says="lower_regularizer", more="lower_regularizer=L1(np.ones(3))"),
    _shapes(
        "a lower regularizer that is not convex",
        ends=TypeError,
        says="must be convex",
        call="Problem(upper, lower, lower_regularizer=MCP(1.0, 3.0))",
    ),
]


# --- One program for several ------------------------------------------------------------------------------------------

TOGETHER = 12
"""Rows in one program: it takes about as long to compile as that of one row."""


@cache
def shared() -> list[Row]:
    """The rows that share programs: first one of each kind, then a second one, and so on."""
    kinds = dict.fromkeys(row.kind for row in ROWS)
    columns = [[row for row in ROWS if row.shared and row.kind == kind] for kind in kinds]
    return [row for rank in zip_longest(*columns) for row in rank if row is not None]


@cache
def _switched(group: int) -> tuple[Any, Any]:
    """Two functions of (x, y, data) that are those of row data["row"] of a group."""
    rows = shared()[group * TOGETHER : (group + 1) * TOGETHER]
    uppers, lowers = ([row.function(name) for row in rows] for name in ("upper", "lower"))
    return (
        lambda x, y, data: jax.lax.switch(data["row"], uppers, x, y),
        lambda x, y, data: jax.lax.switch(data["row"], lowers, x, y),
    )


def run_shared(row: Row, solver: Any = None) -> Result:
    """As `row.run(throw=False)`: the same numbers up to rounding, without a program of its own."""
    group, place = divmod(shared().index(row), TOGETHER)
    problem = Problem(*_switched(group), data={"row": jnp.int32(place)})
    return minimize(problem, *row.starts(), solver, throw=False)


# --- The page ---------------------------------------------------------------------------------------------------------

_HEAD = """# Improper problems

How `minimize(problem, x0, y0)`, with nothing set, ends on problems that violate an assumption or contain a mistake.
Errors are raised before anything is compiled. A run that breaks down raises a `SolveError` with the sentence of its
status if no point better than x0 was found; otherwise it warns and returns the best point. With `throw=False` it does
neither:

```python
import jax.numpy as jnp
from proxbi import Problem, minimize

problem = Problem(lambda x, y: jnp.sum(y), lambda x, y: jnp.sum((y - x) ** 2))  # upper is linear
print(minimize(problem, jnp.array([0.5, 1.0]), jnp.zeros(2), throw=False).status.name)
```

```output
UNBOUNDED
```

Each row below changes one part of the problem with `upper`: `{near}`, `lower`:
`{follow}`, `x0`: `{x0}` and `y0`: `{y0}`. `Z` is a design of 12 rows, `T` are
labels that a plane separates, `P` is the design without signs, and `loss(s)` the mean of log(1 + e^-s). The page is
written by `python tests/improper.py > docs/improper.md`, and `tests/test_improper.py` runs every row.
"""
_SAYS = "\n## What the statuses say\n"


def page() -> str:
    """The table, by kinds, and what the statuses in it say."""
    lines = [_HEAD.format(near=NEAR, follow=FOLLOW, x0=X0, y0=Y0)]
    for kind in dict.fromkeys(row.kind for row in ROWS):
        lines += [f"\n## {kind[0].upper()}{kind[1:]}\n", "| what is wrong | the problem | ends as |", "|---|---|---|"]
        lines += [f"| {row.name} | {row.code()} | {_end(row)} |" for row in ROWS if row.kind == kind]
    lines.append(_SAYS)
    used = [status for status in Status if status in [row.ends for row in ROWS]]
    lines += [f"- **{status.name}**: {status.value}" for status in used]
    return "\n".join(lines) + "\n"


def _end(row: Row) -> str:
    if isinstance(row.ends, Status):
        return row.ends.name
    try:
        row.run()
    except row.ends as error:
        return f"{type(error).__name__}: {str(error).replace('|', chr(92) + '|')}"
    raise AssertionError(f"{row.name} raised nothing")


def _shown(name: str) -> Iterator[str]:
    for row in ROWS:
        if name in row.name:
            yield f"{row.kind}: {row.name}; expected {row.ends}"
            try:
                result = row.run(throw=False)
                yield f"{result}\nx {result.x} y {result.y}"
            except Exception as error:  # what a bad row raises is what is to be shown
                yield f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    print("\n".join(_shown(sys.argv[1])) if len(sys.argv) > 1 else page(), end="")
