r"""`check`: what can be seen of a problem before it is solved, on one page.

Everything is looked at near the start: at (x0, y0), at (x0, y*(x0)), and at a point a hundredth away from there, as a
start of zeros hides what is multiplied by it. What is found is evidence: a fault that is reported was seen, a problem
without faults was only not refuted.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial, keystr, tree_leaves_with_path
from jaxtyping import Array, PRNGKeyArray, PyTree

from proxbi import _check, _compile, _tree, _validate
from proxbi._own_loop import HypergradientInfo, value_and_hypergradient
from proxbi._tree import Scalar
from proxbi.hypergradient import AID, Outcome
from proxbi.lower import GradientDescent
from proxbi.problem import Problem
from proxbi.solvers import ProxBiO
from proxbi.theory.lanczos import Ritz, lower_spectrum
from proxbi.theory.probes import steepness

_AWAY = 0.01  # relative: far enough from a start of zeros to see all terms, near enough to stay in most domains
_MOVES = 8  # random moves by _AWAY around y0 and y*, to see how near the end of the domain is
_WRONG = 0.01  # relative: derivatives that differ by more are wrong; a missing factor or sign differs by far more
_DOUBT = 3.0  # times the change of a difference when its step is doubled, which is three times its error
_BLIND = 0.1  # relative: an error that rounding could make is too large to tell
_ROUNDING = 100.0  # units of rounding by which sums of many products may be off
_PRODUCTS = 30  # with g_yy, for the range of its curvatures
_KAPPA_SINGLE = 1e5  # above, float32 leaves less than two digits of a solution
_KAPPA_DOUBLE = 1e12  # above, float64 leaves less than four
_USEFUL = 0.1  # the error of a hypergradient, relative to it, with which it can be used
_REACH = 0.1  # relative: how far around y* kinks are looked for
_DIRECTIONS = 3  # that kinks are looked for along
_WIDTH = 120  # of the page

_RIDGE = "Add a ridge term in y to lower, such as 1e-3 * jnp.sum(y**2)."
_NEAR_THE_END = (
    "f or g is NaN or infinite so close by: the end of the domain. Start further inside, and write logs and roots so "
    "that they exist wherever the solver may step."
)
_OUTCOMES = {
    Outcome.UNSOLVED: "its gradient stays large. Lower is not smooth (smooth it), or has no minimiser in y (add a "
    "ridge term), or is not convex on the way there (start at a better y0).",
    Outcome.NEGATIVE_CURVATURE: f"lower is not strongly convex in y on the way there. {_RIDGE}",
    Outcome.NONFINITE: "f, g or a derivative became NaN or infinite on the way there. Start at a y0 inside of the "
    "domain, well away from its boundary.",
}


class Level(Enum):
    """What a look says."""

    OK = "ok"
    NOTE = "note"
    FAULT = "FAULT"


class Look(NamedTuple):
    """One line: what was looked at, the number, and the verdict with what to do."""

    subject: str
    number: str
    verdict: str
    level: Level = Level.OK


@dataclass(frozen=True)
class Diagnosis:
    """What `check` returns. `str(diagnosis)` is a page to print."""

    looks: list[Look]

    @property
    def faults(self) -> list[Look]:
        """What has to be changed."""
        return [look for look in self.looks if look.level is Level.FAULT]

    @property
    def ok(self) -> bool:
        """Whether no fault was seen."""
        return not self.faults

    def __str__(self) -> str:
        found = len(self.faults)
        head = "No fault was seen." if self.ok else f"{found} fault{'s' if found > 1 else ''}: see the lines below."
        return "\n".join([head, *(line for look in self.looks for line in _printed(look))])


def _printed(look: Look) -> list[str]:
    begin = f"{look.level.value:<6}{look.subject:<22}"
    text = f"{look.number}: {look.verdict}" if look.number else look.verdict
    return textwrap.wrap(begin + text, _WIDTH, subsequent_indent=" " * len(begin), break_long_words=False)


class _Start(NamedTuple):
    """What the looks look at."""

    problem: Problem
    x: PyTree
    y: PyTree
    key: PRNGKeyArray
    found: HypergradientInfo | None
    """At x; None where it could not be computed at all."""
    grad: PyTree

    @property
    def solved(self) -> bool:
        return self.found is not None and int(self.found.outcome) <= Outcome.ROUGH

    @property
    def solution(self) -> PyTree:
        """y*(x), or where the search for it ended."""
        found = self.y if self.found is None else self.found.y
        return found if bool(_tree.all_finite(found)) else self.y


def check(problem: Problem, x0: PyTree, y0: PyTree, *, seed: int = 0) -> Diagnosis:
    r"""Look at a problem from all sides before it is solved, or after it could not be.

    Derivatives (also those that a subclass of `Problem` brings) against central differences
    $(F(z + t u) - F(z - t u)) / 2t$; the range $[\mu, L]$ of curvatures of g in y; the sizes of x, y, f, g and of the
    two terms of $\nabla\Phi = f_x - g_{xy} v$; arguments that f and g ignore, or whose derivative vanishes at the
    start; the domain of f, g and h; kinks in g; and whether the precision will do.

    **Arguments:**

    - `problem`, `x0`, `y0`: as `minimize` takes them.
    - `seed`: of the random directions.

    **Returns:** a `Diagnosis`: `print` it for a page, one line for each look; `.ok`, `.faults`, `.looks`. A bad problem
    raises nothing.

    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2))
    >>> check(problem, jnp.ones(2), jnp.zeros(2)).ok
    True
    >>> flat = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x**2) ** 2))
    >>> for look in check(flat, jnp.zeros(2), jnp.zeros(2)).faults:
    ...     print(look.subject, "|", look.number)
    hypergradient | |f_x| = 0, |g_xy v| = 0, |grad Phi| = 0
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a proxbi Problem, got {type(problem).__name__}.")
    x, y = _check.float_tree("x0", x0), _check.float_tree("y0", y0)
    key = jax.random.key(seed)
    unsolved = _Start(problem, x, y, key, None, None)
    looks = _guarded("arguments", _arguments, unsolved)
    if not _callable(problem, x, y):
        return Diagnosis(looks)
    try:
        _, grad, found = value_and_hypergradient(problem, x, y)
        start = _Start(problem, x, y, key, found, grad)
    except Exception as error:  # whatever a function of the user raises
        start = unsolved
        looks.append(Look("lower solution", "", f"cannot be computed: {_first_line(error)}", Level.FAULT))
    for name, function in _LOOKS.items():
        looks += _guarded(name, function, start)
    return Diagnosis(looks)


def _guarded(name: str, function: Callable[[_Start], Iterable[Look]], start: _Start) -> list[Look]:
    """The looks of one function; an error in it is a finding."""
    try:
        return list(function(start))
    except Exception as error:  # whatever a function of the user raises
        return [Look(name, "", f"could not be looked at: {_first_line(error)}", Level.FAULT)]


# --- arguments --------------------------------------------------------------------------------------------------------


def _callable(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether f and g can be computed at all."""
    try:
        for name, objective in (("upper", problem.value_upper), ("lower", problem.value_lower)):
            _validate._require_scalar(name, objective, x, y)
    except (TypeError, ValueError):
        return False
    return True


def _arguments(start: _Start) -> Iterator[Look]:
    problem, x, y = start.problem, start.x, start.y
    try:
        _validate.checked(problem, ProxBiO(AID(GradientDescent(1.0, steps=1)), 1.0), x, y)
        yield Look("arguments", "", "minimize accepts them.")
    except (TypeError, ValueError) as error:
        yield Look("arguments", "", f"minimize refuses them: {error}", Level.FAULT)
    for name, function in (("upper", problem.upper), ("lower", problem.lower)):
        if _names(function) == ["y", "x"]:
            verdict = f"its arguments are swapped: it is called as {name}(x, y), and x and y are taken for each other."
            yield Look(name, f"{name}(y, x)", verdict, Level.FAULT)
    for name, tree in (("x0", x), ("y0", y)):
        sizes = [float(_tree.norm(leaf)) for leaf in jax.tree.leaves(tree)]
        entries = sum(leaf.size for leaf in jax.tree.leaves(tree))
        of = f"; leaves of norm {min(sizes):.3g} to {max(sizes):.3g}" if len(sizes) > 1 else f" of norm {sizes[0]:.3g}"
        yield Look(name, f"{entries} {jax.tree.leaves(tree)[0].dtype} entries{of}", "as given.")


def _names(objective: Any) -> list[str]:
    """The names of the first two arguments of what the user wrote."""
    while isinstance(objective, Partial):
        inside = objective.args and callable(objective.args[0])
        objective = objective.args[0] if inside else objective.func
    try:
        return list(inspect.signature(objective).parameters)[:2]
    except (TypeError, ValueError):  # a function that does not say
        return []


def _ignored(start: _Start) -> Iterator[Look]:
    """Arguments without which there is no bilevel problem."""
    problem, x, y = start.problem, start.x, start.y
    (upper_x, upper_y), (lower_x, lower_y) = (
        _validate._used(f, x, y) for f in (problem.value_upper, problem.value_lower)
    )
    swapped = "Are the arguments swapped? Both are called as (x, y)."
    if not any(upper_y):
        yield Look("upper", "", f"ignores y, so that nothing depends on the lower level. {swapped}", Level.FAULT)
    if not any(lower_x):
        yield Look("lower", "", f"ignores x, so that y* does not depend on it. {swapped}", Level.FAULT)
    idle = [keystr(path) for (path, _), used in zip(tree_leaves_with_path(y), lower_y, strict=True) if not used]
    if idle:
        verdict = f"ignores {_leaves('y', idle)}: it has no unique minimiser. Leave this out of y, or add a ridge term."
        yield Look("lower", "", verdict, Level.FAULT)
    both = zip(tree_leaves_with_path(x), upper_x, lower_x, strict=True)
    idle = [keystr(path) for (path, _), in_upper, in_lower in both if not (in_upper or in_lower)]
    if idle:
        yield Look("upper and lower", "", f"both ignore {_leaves('x', idle)}: leave this out of x.", Level.FAULT)


def _leaves(name: str, paths: list[str]) -> str:
    return ", ".join(name + path for path in paths)


# --- values and domain ------------------------------------------------------------------------------------------------


def _values(start: _Start) -> Iterator[Look]:
    problem, x, y = start.problem, start.x, start.y
    f, g = float(problem.value_upper(x, y)), float(problem.value_lower(x, y))
    outside = "Start at a y0 (or x0) inside of its domain."
    for name, value in (("f(x0, y0)", f), ("g(x0, y0)", g)):
        good = np.isfinite(value)
        yield Look(name, f"{value:.6g}", "finite." if good else f"not finite. {outside}", _level(good))
    h = float(problem.regularizer.value(x))
    infeasible = "x0 is outside of its domain. Start at problem.regularizer.prox(x0, 1.0)."
    yield Look("h(x0)", f"{h:.6g}", "finite." if np.isfinite(h) else infeasible, _level(bool(np.isfinite(h))))


def _level(good: Any) -> Level:
    return Level.OK if good else Level.FAULT


def _domain(start: _Start) -> Iterator[Look]:
    places = {"near y0": start.y} | ({"near y*": start.solution} if start.solved else {})
    for name, y in places.items():
        lost = int(_lost(start.problem, start.x, y, jax.random.split(start.key, _MOVES)))
        verdict = _NEAR_THE_END if lost else "f and g are finite there."
        yield Look(name, f"{lost} of {_MOVES} moves by {_AWAY:.0%} leave the domain", verdict, _level(not lost))


@_compile.jit
def _lost(problem: Problem, x: PyTree, y: PyTree, keys: PRNGKeyArray) -> Array:
    def outside(key: PRNGKeyArray) -> Array:
        one, two = jax.random.split(key)
        at = _moved(one, x), _moved(two, y)
        values = jnp.stack([problem.value_upper(*at), problem.value_lower(*at)])
        return ~jnp.all(jnp.isfinite(values))

    return jnp.sum(jax.lax.map(outside, keys))


@_compile.jit
def _direction(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """A random direction in which each entry moves by about its own size, or by 1 from 0."""
    leaves, structure = jax.tree.flatten(tree)
    moves = [
        jax.random.normal(k, leaf.shape, leaf.dtype) * jnp.where(leaf == 0, 1, jnp.abs(leaf))
        for k, leaf in zip(jax.random.split(key, len(leaves)), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, moves)


@_compile.jit
def _moved(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """A point nearby."""
    return _tree.axpy(_AWAY, _direction(key, tree), tree)


# --- derivatives ------------------------------------------------------------------------------------------------------


class _Comparison(NamedTuple):
    """A derivative beside a difference."""

    size: Scalar
    apart: Scalar
    doubt: Scalar
    """By how much the difference may be off."""


_ORACLES = {
    "f_x": "grad_upper",
    "f_y": "grad_upper",
    "g_y": "grad_lower",
    "g_x": "grad_lower_x",
    "g_yy v": "hvp",
    "g_xy v": "cross",
}


def _derivatives(start: _Start) -> Iterator[Look]:
    one, two, three, four = jax.random.split(start.key, 4)
    x, y = start.x, start.solution
    near = _moved(one, x), _moved(two, y)
    at = near if bool(jnp.isfinite(start.problem.value_lower(*near))) else (x, y)
    compared = _compared(start.problem, *at, _direction(three, at[0]), _direction(four, at[1]))
    for name, oracle in _ORACLES.items():
        own = getattr(type(start.problem), oracle) is not getattr(Problem, oracle)
        size, apart, doubt = map(float, compared[name])
        yield _compared_look(f"{name} ({oracle}, yours)" if own else name, oracle, size, apart, doubt)
    yield from _own(start, at)


def _compared_look(subject: str, oracle: str, size: float, apart: float, doubt: float) -> Look:
    if not np.isfinite([size, apart]).all():
        return Look(subject, "NaN or infinite", "no derivative here. Look at the domain.", Level.FAULT)
    relative = apart / size if size > 0 else 0.0
    number = f"{relative:.1e} off central differences"
    if apart > _WRONG * size + _DOUBT * doubt:
        verdict = f"wrong: correct {oracle}, or upper and lower if they have derivatives of their own (custom_vjp)."
        return Look(subject, number, f"{verdict} A kink at the start looks the same.", Level.FAULT)
    if _DOUBT * doubt > _BLIND * size > 0:
        return Look(subject, number, "rounding hides it: look again in float64, or without constants in f.", Level.NOTE)
    return Look(subject, number, "right.")


@_compile.jit
def _compared(problem: Problem, x: PyTree, y: PyTree, u: PyTree, w: PyTree) -> dict[str, _Comparison]:
    """Each oracle along the directions u of x and w of y."""
    upper_x, upper_y = problem.grad_upper(x, y)
    in_x: dict[str, tuple[PyTree, Callable[[PyTree], PyTree]]] = {
        "f_x": (_tree.dot(upper_x, u), lambda at: problem.value_upper(at, y)),
        "g_x": (_tree.dot(problem.grad_lower_x(x, y), u), lambda at: problem.value_lower(at, y)),
    }
    in_y: dict[str, tuple[PyTree, Callable[[PyTree], PyTree]]] = {
        "f_y": (_tree.dot(upper_y, w), lambda at: problem.value_upper(x, at)),
        "g_y": (_tree.dot(problem.grad_lower(x, y), w), lambda at: problem.value_lower(x, at)),
        "g_yy v": (problem.hvp(x, y)(w), lambda at: problem.grad_lower(x, at)),
        "g_xy v": (problem.cross(x, y)(w), lambda at: problem.grad_lower_x(x, at)),
    }
    found = {name: _comparison(claimed, function, x, u) for name, (claimed, function) in in_x.items()}
    return found | {name: _comparison(claimed, function, y, w) for name, (claimed, function) in in_y.items()}


def _comparison(claimed: PyTree, function: Callable[[PyTree], PyTree], at: PyTree, direction: PyTree) -> _Comparison:
    eps = float(jnp.finfo(jax.tree.leaves(at)[0].dtype).eps)
    step = eps ** (1 / 3)  # where the rounding of a central difference is as large as its own error

    def difference(t: float) -> PyTree:
        ends = (function(_tree.axpy(t * sign, direction, at)) for sign in (1, -1))
        return _tree.scale(0.5 / t, _tree.subtract(*ends))

    near, far = difference(step), difference(2 * step)
    rounding = eps / step * _tree.norm(function(at))
    return _Comparison(
        size=jnp.maximum(_tree.norm(claimed), _tree.norm(near)),
        apart=_tree.norm(_tree.subtract(claimed, near)),
        doubt=_tree.norm(_tree.subtract(near, far)) + rounding,
    )


def _own(start: _Start, at: tuple[PyTree, PyTree]) -> Iterator[Look]:
    """What differences do not see: symmetry, and the parts of a subclass that belong together."""
    problem, key = start.problem, start.key
    eps = float(jnp.finfo(jax.tree.leaves(at[0])[0].dtype).eps)
    ends = tuple(_direction(k, at[1]) for k in jax.random.split(key))
    skew = float(_hessian_skew(problem, *at, *ends))
    verdict = "symmetric." if skew <= _ROUNDING * eps else "not symmetric: it is no Hessian. Correct hvp."
    yield Look("g_yy", f"<u, g_yy w> and <w, g_yy u> differ by {skew:.1e}", verdict, _level(skew <= _ROUNDING * eps))
    precondition = problem.preconditioner(*at)
    if precondition is not None:
        good = float(_skew(precondition, *ends)) <= eps**0.5 and all(
            float(_tree.dot(r, precondition(r))) > 0 for r in ends
        )
        verdict = (
            "symmetric and positive." if good else "not symmetric and positive definite. Correct it, or leave it out."
        )
        yield Look("preconditioner, yours", "", verdict, _level(good))
    for name in ("upper", "lower"):
        both = f"value_and_grad_{name}"
        if getattr(type(problem), both) is not getattr(Problem, both):
            together = getattr(problem, both)(*at)
            alone = getattr(problem, f"value_{name}")(*at), getattr(problem, f"grad_{name}")(*at)
            off = float(_tree.norm(_tree.subtract(together, alone)) / (1 + _tree.norm(alone)))
            verdict = "agrees." if off <= _WRONG else f"not value_{name} and grad_{name}. Correct one of them."
            yield Look(f"{both}, yours", f"{off:.1e} off", verdict, _level(off <= _WRONG))


@_compile.jit
def _hessian_skew(problem: Problem, x: PyTree, y: PyTree, u: PyTree, w: PyTree) -> Scalar:
    return _skew(problem.hvp(x, y), u, w)


def _skew(matvec: Callable[[PyTree], PyTree], u: PyTree, w: PyTree) -> Scalar:
    one, two = matvec(w), matvec(u)
    size = _tree.norm(u) * _tree.norm(one) + _tree.norm(w) * _tree.norm(two)
    return jnp.abs(_tree.dot(u, one) - _tree.dot(w, two)) / jnp.where(size > 0, size, 1)


# --- the lower level --------------------------------------------------------------------------------------------------


def _solution(start: _Start) -> Iterator[Look]:
    if start.found is None:
        return
    outcome, left = Outcome(int(start.found.outcome)), float(start.found.lower_residual)
    number = f"|g_y| = {left:.1e} at |y| = {float(_tree.norm(start.solution)):.3g}"
    verdict = "solved." if start.solved else f"not solved: {_OUTCOMES[outcome]}"
    yield Look("lower solution", number, verdict, _level(start.solved))


def _curvatures(start: _Start) -> Iterator[Look]:
    """[mu, L] at y0 and y*; the smallest Ritz value is an upper bound of mu, so only one sign of it is proof."""
    places = {"y0": start.y} | ({} if start.found is None else {"y*" if start.solved else "last y": start.solution})
    kappas = []
    for name, y in places.items():
        ritz: Ritz = lower_spectrum(start.problem, start.x, y, _PRODUCTS)
        low, high, dtype = float(ritz.smallest), float(ritz.largest), ritz.smallest.dtype
        kappas += [high / low] if low > 0 else []
        yield Look(f"curvature at {name}", f"from {low:.3g} to {high:.3g}", *_convexity(low, high, dtype))
    if kappas:
        yield _conditioning(max(kappas), jax.tree.leaves(start.y)[0].dtype)


def _convexity(low: float, high: float, dtype: Any) -> tuple[str, Level]:
    hidden = abs(low) <= _ROUNDING * float(jnp.finfo(dtype).eps) * high
    if not np.isfinite([low, high]).all():
        return "g_yy is NaN or infinite. Look at the domain.", Level.FAULT
    if hidden and high > 0 and dtype == jnp.float32:
        return f"float32 cannot tell the smallest from 0. Look again in float64; or: {_RIDGE}", Level.NOTE
    if hidden or low <= 0:
        return f"lower is not strongly convex in y. {_RIDGE}", Level.FAULT
    return "strongly convex, as far as seen.", Level.OK


def _conditioning(kappa: float, dtype: Any) -> Look:
    single = dtype == jnp.float32
    number = f"kappa >= {kappa:.3g} in {dtype}"
    if kappa <= (_KAPPA_SINGLE if single else _KAPPA_DOUBLE):
        return Look("conditioning", number, "the precision will do.")
    advice = (
        'Use float64: jax.config.update("jax_enable_x64", True) before all else.'
        if single
        else "Scale the entries of y alike, or add a larger ridge term to lower."
    )
    return Look("conditioning", number, f"rounding will hide part of the solution. {advice}", Level.NOTE)


def _kinks(start: _Start) -> Iterator[Look]:
    """Whether slopes of f and g jump on the way through y*, in random directions."""
    problem, x, y = start.problem, start.x, start.solution
    slopes = {"lower": _lower_slope, "upper": _upper_slope}
    jumps = dict.fromkeys(slopes, 0)
    for key in jax.random.split(start.key, _DIRECTIONS):
        direction = _tree.scale(_REACH, _direction(key, y))
        functions = {name: Partial(slope, problem, x, direction) for name, slope in slopes.items()}
        for (name, _), seen in steepness(functions, y, {"y": direction}).items():
            jumps[name] += seen.finite and not seen.bounded
    for name, jumped in jumps.items():
        number = f"{jumped} of {_DIRECTIONS} lines through y* have a kink"
        if not jumped:
            yield Look(f"{name} in y", number, "it looks smooth.")
        elif name == "lower":
            smooth = "Smooth it: softplus for a hinge or relu, sqrt(y**2 + 1e-6) for |y|, logsumexp for a maximum."
            yield Look("lower in y", number, f"it is not smooth. {smooth}", Level.FAULT)
        else:
            yield Look(
                "upper in y", number, "it is not smooth; where the answer sits on a kink, steps fail.", Level.NOTE
            )


def _lower_slope(problem: Problem, x: PyTree, direction: PyTree, y: PyTree) -> Scalar:
    return _tree.dot(problem.grad_lower(x, y), direction)


def _upper_slope(problem: Problem, x: PyTree, direction: PyTree, y: PyTree) -> Scalar:
    return _tree.dot(problem.grad_upper(x, y)[1], direction)


# --- the hypergradient ------------------------------------------------------------------------------------------------


def _hypergradient(start: _Start) -> Iterator[Look]:
    if start.found is None or not start.solved:
        return
    upper_x, upper_y = start.problem.grad_upper(start.x, start.found.y)
    implicit = _tree.subtract(upper_x, start.grad)
    sizes = [float(_tree.norm(tree)) for tree in (upper_x, implicit, start.grad)]
    number = "|f_x| = {:.3g}, |g_xy v| = {:.3g}, |grad Phi| = {:.3g}".format(*sizes)
    flat = (
        "x0 is flat: a dead relu, a square or product at 0, a saturated sigmoid, swapped arguments, or a stationary "
        "point by chance. Start elsewhere."
    )
    if sizes[2] == 0:
        yield Look("hypergradient", number, flat, Level.FAULT)
        return
    error = float(start.found.error) / sizes[2]
    rough = f"too uncertain: lower has no minimiser in y, or hardly any curvature. {_RIDGE}"
    yield Look(
        "hypergradient",
        f"{number}, error {error:.0e} of it",
        "known." if error < _USEFUL else rough,
        _level(error < _USEFUL),
    )
    dead = [keystr(path) for path, leaf in tree_leaves_with_path(start.grad) if not bool(jnp.any(leaf != 0))]
    if dead:
        verdict = f"nothing changes with {_leaves('x', dead)} at x0. {flat.split(': ', 1)[1].capitalize()}"
        yield Look("hypergradient", "exactly 0 in part", verdict, Level.FAULT)
    if not float(_tree.norm(upper_y)):
        verdict = "upper does not see y at y*, so that the lower level plays no part there. A dead relu?"
        yield Look("f_y at y*", "exactly 0", verdict, Level.NOTE)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_LOOKS: dict[str, Callable[[_Start], Iterable[Look]]] = {
    "ignored arguments": _ignored,
    "values": _values,
    "domain": _domain,
    "lower solution": _solution,
    "curvature": _curvatures,
    "derivatives": _derivatives,
    "kinks": _kinks,
    "hypergradient": _hypergradient,
}
