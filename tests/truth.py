"""Certificates against the truth: cases drawn from a seed, what `minimize` claims about them, and what is so.

`case(seed)` draws a problem, a start and a way to stop; `outcome(case)` runs `minimize` and puts the true
dist(0, grad Phi(x) + dh(x)) at the x returned beside what was claimed; `faults(outcomes)` names the rules that are
broken. From a shell,

    python tests/truth.py 17              # case 17: its draw, the claim and the truth
    python tests/truth.py 0 300           # cases 0 to 299: how many break which rule, by kind

**The problems** are one pair of functions, so that one compiled program serves all families and only the solver, the
kind of h and the dtype need another:

    g = y'Ay/2 - y'(Bx + b) + ridge sum e^(Ex) y^2 / 2 + bend sum arc(y) + rows sum log(1 + e^(-Zy)),
    f = unit (squares |Cy - d|^2 / 2 + roots sum sqrt(1 + (Cy - d)^2) + logs sum log(1 + e^(-Cy)) + a'x) + shift

with arc' = sqrt(1 + y^2) - 1. Q: `squares`, the rest 0. R: also `ridge`. N: A = (1 + mu) / 2 I, `bend` = (1 - mu) / 2,
`roots`. L: `rows`, `ridge` and `logs`.

**The truth** is that of the numbers that the solver was given, rounded to its dtype and then taken as exact. y*, the
adjoint and grad Phi are computed by Newton's method with dense solves, corrected by residuals in extended precision
(64 bits where the platform has them; compared with 60 digits, grad Phi is then off by at most 2e-16 of the sizes of its
terms), and the element of dh(x) that is nearest to -grad Phi in closed form. For a
nonconvex h that is the limiting subdifferential: where two smooth pieces meet in a concave kink, the two slopes.
Whether an entry of x is at a kink or a bound is asked of the numbers returned, exactly.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import proxbi
from proxbi import Bounds, OracleBudget, Problem, minimize

N, M, ROWS, OUTPUTS = 4, 5, 12, 6
"""The sizes of x and y, and how many rows Z and C have."""

Floats = dict[str, np.ndarray]

# === The problem ======================================================================================================


def upper(x: Any, y: Any, data: Any) -> Any:
    fitted = data["C"] @ y
    rest = fitted - data["d"]
    squares = 0.5 * data["squares"] * jnp.sum(rest**2)
    roots = data["roots"] * jnp.sum(jnp.sqrt(1 + rest**2))
    logs = data["logs"] * jnp.sum(jax.nn.softplus(-fitted))
    return data["unit"] * (squares + roots + logs + data["a"] @ x) + data["shift"]


def lower(x: Any, y: Any, data: Any) -> Any:
    quadratic = 0.5 * y @ (data["A"] @ y) - y @ (data["B"] @ x + data["b"])
    ridge = 0.5 * data["ridge"] * jnp.sum(jnp.exp(data["E"] @ x) * y**2)
    arc = data["bend"] * jnp.sum((y * jnp.sqrt(1 + y**2) + jnp.arcsinh(y)) / 2 - y)
    return quadratic + ridge + arc + data["rows"] * jnp.sum(jax.nn.softplus(-(data["Z"] @ y)))


# === Its truth ========================================================================================================


class Lower(NamedTuple):
    """g and its derivatives at one (x, y), in NumPy."""

    value: Any
    gradient: np.ndarray
    hessian: np.ndarray
    cross: np.ndarray
    """The derivative of g_y along x, M by N."""


def _wrong(score: np.ndarray) -> np.ndarray:
    """1 / (1 + e^s): minus the derivative of log(1 + e^-s), whose second derivative is wrong (1 - wrong)."""
    return np.exp(-np.logaddexp(0, score))


def lower_at(data: Floats, x: np.ndarray, y: np.ndarray) -> Lower:
    penalties = data["ridge"] * np.exp(data["E"] @ x)
    linear, root = data["B"] @ x + data["b"], np.sqrt(1 + y**2)
    score = data["Z"] @ y
    wrong = _wrong(score)
    arc = (y * root + np.arcsinh(y)) / 2 - y
    value = y @ (data["A"] @ y) / 2 - y @ linear + np.sum(penalties * y**2) / 2 + data["bend"] * np.sum(arc)
    return Lower(
        value + data["rows"] * np.sum(np.logaddexp(0, -score)),
        data["A"] @ y - linear + penalties * y + data["bend"] * (root - 1) - data["rows"] * (data["Z"].T @ wrong),
        data["A"]
        + np.diag(penalties + data["bend"] * y / root)
        + data["rows"] * (data["Z"].T * (wrong * (1 - wrong))) @ data["Z"],
        (penalties * y)[:, None] * data["E"] - data["B"],
    )


def upper_at(data: Floats, x: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """f and f_y; f_x is unit a."""
    fitted = data["C"] @ y
    rest = fitted - data["d"]
    root, wrong = np.sqrt(1 + rest**2), _wrong(fitted)
    terms = data["squares"] * rest**2 / 2 + data["roots"] * root + data["logs"] * np.logaddexp(0, -fitted)
    slope = data["squares"] * rest + data["roots"] * rest / root - data["logs"] * wrong
    return data["unit"] * (np.sum(terms) + data["a"] @ x) + data["shift"], data["unit"] * (data["C"].T @ slope)


def _plain(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


def _solve(matrix: np.ndarray, rhs: np.ndarray, rounds: int = 4) -> np.ndarray:
    """matrix^-1 rhs in extended precision, for a positive definite matrix: solves in float64, scaled so that nothing
    overflows, and corrected by residuals.
    """
    scale, size = np.sqrt(np.diag(matrix)), np.max(np.abs(rhs))
    if size == 0:
        return np.zeros_like(rhs)
    matrix, rhs = matrix / np.outer(scale, scale), rhs / scale / size
    solution, plain = np.zeros_like(rhs), _plain(matrix)
    for _ in range(rounds):
        solution = solution + np.linalg.solve(plain, _plain(rhs - matrix @ solution))
    return solution / scale * size


def minimiser(data: Floats, x: np.ndarray) -> np.ndarray:
    """y*(x) in extended precision, by damped Newton steps."""
    y = np.zeros_like(data["b"])
    for _ in range(200):
        at = lower_at(data, x, y)
        step = _solve(at.hessian, at.gradient, rounds=1)
        length, near = 1.0, np.linalg.norm(step) <= 1e-6 * np.linalg.norm(y)
        while not near and length > 1e-6 and not lower_at(data, x, y - length * step).value <= at.value:
            length /= 2
        y = y - length * step
        if np.linalg.norm(step) <= 1e-17 * np.linalg.norm(y):
            break
    return y


class Gradient(NamedTuple):
    """grad Phi(x), the sizes of the terms it is a sum of, and y*(x)."""

    gradient: np.ndarray
    sizes: np.ndarray
    y: np.ndarray


def gradient(data: Floats, x: np.ndarray) -> Gradient:
    """grad Phi(x) = f_x - g_xy g_yy^-1 f_y at y*(x)."""
    y = minimiser(data, x)
    at, f_x = lower_at(data, x, y), data["unit"] * data["a"]
    v = _solve(at.hessian, upper_at(data, x, y)[1])
    return Gradient(f_x - at.cross.T @ v, np.abs(f_x) + np.abs(at.cross).T @ np.abs(v), y)


def value(data: Floats, x: np.ndarray) -> Any:
    """Phi(x)."""
    return upper_at(data, x, minimiser(data, x))[0]


# === Regularizers: the element of dh(x) nearest to -d =================================================================

GROUPS = np.array([0, 0, 1, 1])


def _zero(x: np.ndarray, d: np.ndarray) -> np.ndarray:
    return np.zeros_like(d)


def _l1(x: np.ndarray, d: np.ndarray, strength: Any) -> np.ndarray:
    return np.where(x == 0, np.clip(-d, -strength, strength), strength * np.sign(x))


def _box(x: np.ndarray, d: np.ndarray, lower: Any, upper: Any) -> np.ndarray:
    if np.any((x < lower) | (x > upper)):
        return np.full_like(d, np.inf)
    return np.clip(-d, np.where(x == lower, -np.inf, 0), np.where(x == upper, np.inf, 0))


def _simplex(x: np.ndarray, d: np.ndarray, scale: Any) -> np.ndarray:
    """Normals at x are c where x > 0 and at most c where x = 0. The best c is where the sum over the entries of d + c,
    or of its negative part where x = 0, vanishes: the entries of x = 0 that count are those with the smallest d.
    """
    slack = 1000 * np.finfo(np.float32 if scale.dtype == np.float32 else np.float64).eps  # as `Simplex.value` has it
    if np.any(x < -slack) or abs(np.sum(x) - scale) > slack:
        return np.full_like(d, np.inf)
    inside, rest = d[x > 0], np.sort(d[x <= 0])
    for number in range(len(rest) + 1):
        c = -np.mean(np.concatenate([inside, rest[:number]]))
        if np.all(rest[:number] + c <= 0) and np.all(rest[number:] + c >= 0):
            break
    return np.where(x > 0, c, np.minimum(-d, c))


def _group(x: np.ndarray, d: np.ndarray, strength: Any) -> np.ndarray:
    s = np.zeros_like(d)
    for label in np.unique(GROUPS):
        of = label == GROUPS
        size, pull = np.linalg.norm(x[of]), np.linalg.norm(d[of])
        s[of] = strength * x[of] / size if size > 0 else -d[of] * min(1, strength / pull if pull > 0 else 1)
    return s


def _mcp(x: np.ndarray, d: np.ndarray, strength: Any, theta: Any) -> np.ndarray:
    slope = np.maximum(strength - np.abs(x) / theta, 0) * np.sign(x)
    return np.where(x == 0, np.clip(-d, -strength, strength), slope)


def _capped(x: np.ndarray, d: np.ndarray, strength: Any, cap: Any) -> np.ndarray:
    """At the cap two slopes meet in a concave kink."""
    up = strength * np.sign(x)
    at_cap = np.where(np.abs(d + up) <= np.abs(d), up, 0)
    magnitude = np.abs(x)
    beyond = np.where(magnitude > cap, 0, np.where(magnitude == cap, at_cap, up))
    return np.where(x == 0, np.clip(-d, -strength, strength), beyond)


def _negative_capped(x: np.ndarray, d: np.ndarray, strength: Any, cap: Any) -> np.ndarray:
    """The kink at 0 is concave, that at the cap convex."""
    down, magnitude = -strength * np.sign(x), np.abs(x)
    at_cap = np.clip(-d, np.minimum(down, 0), np.maximum(down, 0))
    at_zero = np.where(d > 0, -strength, strength)
    beyond = np.where(magnitude > cap, 0, np.where(magnitude == cap, at_cap, down))
    return np.where(x == 0, at_zero, beyond)


class Kind(NamedTuple):
    """One kind of h: how it is made, and the element of dh(x) nearest to -d."""

    make: Callable[..., proxbi.Regularizer]
    nearest: Callable[..., np.ndarray]


KINDS = {
    "Zero": Kind(proxbi.Zero, _zero),
    "L1": Kind(proxbi.L1, _l1),
    "Box": Kind(proxbi.Box, _box),
    "Simplex": Kind(proxbi.Simplex, _simplex),
    "GroupL2": Kind(lambda strength: proxbi.GroupL2(strength, groups=GROUPS), _group),
    "MCP": Kind(proxbi.MCP, _mcp),
    "CappedL1": Kind(proxbi.CappedL1, _capped),
    "NegativeCappedL1": Kind(proxbi.NegativeCappedL1, _negative_capped),
}


# === Cases ============================================================================================================


class Program(NamedTuple):
    """What is compiled on its own."""

    solver: str
    h: str
    dtype: str


PROGRAMS = {
    **{Program("default", h, "float64"): 3 for h in KINDS},
    **{Program("default", h, "float32"): 3 for h in ("L1", "Box", "Simplex", "MCP", "NegativeCappedL1")},
    Program("penalty", "L1", "float64"): 3,
    Program("ProxBiO", "L1", "float64"): 1,
}
"""All programs, by how often they are drawn."""

QUICK = tuple(
    Program("default", *of) for of in (("Box", "float64"), ("NegativeCappedL1", "float64"), ("L1", "float32"))
)
"""Those of the quick tests."""


@dataclass(frozen=True)
class Case:
    """One draw. All numbers are of the case's dtype already."""

    seed: int
    program: Program
    family: str
    draw: dict[str, Any]
    """What else was drawn, in words, for the reader."""
    data: Floats
    parameters: Floats
    x0: np.ndarray
    y0: np.ndarray
    stop: dict[str, Any]
    """`steps`, `every`, and `tol`, `rtol` or `budget` if there is one."""
    bounds: Bounds | None
    largest: float = np.inf
    """The bounds hold as long as no entry of y is larger than this."""
    step_size: float = 1.0
    """Of ProxBiO."""

    def __str__(self) -> str:
        words = ", ".join(f"{name} {value}" for name, value in self.draw.items())
        stops = ", ".join(f"{name}={value:.3g}" for name, value in self.stop.items())
        bounds = "with bounds" if self.bounds else "no bounds"
        return f"seed {self.seed}: {self.family}, {', '.join(self.program)}, {bounds}; {words}; {stops}"

    @property
    def exact(self) -> Floats:
        """The data as the truth takes them."""
        return {name: entry.astype(np.longdouble) for name, entry in self.data.items()}

    def distance(self, x: np.ndarray, d: np.ndarray) -> tuple[float, np.ndarray]:
        """dist(0, d + dh(x)), infinite outside of the domain of h, and the element of dh(x) that attains it."""
        s = KINDS[self.program.h].nearest(x.astype(np.longdouble), d, **self.parameters)
        return float(np.linalg.norm(d + s)), s


def case(seed: int) -> Case:
    """The case of a seed."""
    draw = np.random.default_rng([seed, 10])
    programs = list(PROGRAMS)
    weights = np.array([PROGRAMS[program] for program in programs], float)
    program = programs[draw.choice(len(programs), p=weights / weights.sum())]
    dtype = np.dtype(program.dtype)
    family = "Q" if program.solver == "ProxBiO" else str(draw.choice(list("QRNL"), p=[0.45, 0.25, 0.15, 0.15]))
    kappa = 10 ** draw.uniform(0, 2 if program.solver == "ProxBiO" else 4)
    unit = 10 ** draw.uniform(-3, 3)
    shift = float(draw.choice([0.0, 1e3, -1e3, 1e6]))
    enclosed = program.h in ("Box", "Simplex")
    data = _data(draw, family, kappa, enclosed) | {"unit": np.asarray(unit), "shift": np.asarray(shift)}
    data = {name: np.asarray(entry, dtype) for name, entry in data.items()}
    exact = {name: entry.astype(np.longdouble) for name, entry in data.items()}
    size = float(np.linalg.norm(gradient(exact, draw.normal(size=N).astype(np.longdouble)).gradient))
    parameters = {name: np.asarray(entry, dtype) for name, entry in _parameters(draw, program.h, size).items()}
    start = str(draw.choice(["random", "zero", "kink"]))
    x0 = _start(draw, program.h, start, parameters).astype(dtype)
    first = gradient(exact, x0.astype(np.longdouble))
    guess = str(draw.choice(["zero", "random", "exact"]))
    y0 = {"zero": np.zeros(M), "random": draw.normal(size=M), "exact": _plain(first.y)}[guess].astype(dtype)
    stop = _stop(draw, float(np.linalg.norm(first.gradient)))
    words = {"kappa": f"{kappa:.2g}", "unit": f"{unit:.2g}", "shift": f"{shift:g}", "x0": start, "y0": guess}
    made = Case(seed, program, family, words, data, parameters, x0, y0, stop, None)
    if program.solver == "ProxBiO":
        inner = np.linalg.solve(_plain(exact["A"]), _plain(exact["B"]))
        made = replace(made, step_size=float(0.5 / (unit * _norm(_plain(exact["C"]) @ inner) ** 2)))
    return _with_bounds(made) if draw.uniform() < 0.8 else made


def cases(of: Callable[[Program], bool] = lambda program: True) -> Iterator[Case]:
    """The cases of the seeds 0, 1, ..., as far as their program is wanted."""
    return (made for made in map(case, count()) if of(made.program))


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(_plain(matrix), 2))


def _data(draw: np.random.Generator, family: str, kappa: float, enclosed: bool) -> dict[str, Any]:
    rotation = np.linalg.qr(draw.normal(size=(M, M)))[0]
    a = rotation @ np.diag(np.geomspace(1 / kappa, 1, M)) @ rotation.T
    sharing = np.eye(M, N)  # the last two entries of y share a penalty
    sharing[-1, -1] = 1
    none = np.zeros(())
    data: dict[str, Any] = {
        "A": (a + a.T) / 2,
        "B": draw.normal(size=(M, N)) / 2,
        "b": draw.normal(size=M),
        "E": np.zeros((M, N)),
        "Z": draw.normal(size=(ROWS, M)),
        "C": draw.normal(size=(OUTPUTS, M)) / 2,
        "d": draw.normal(size=OUTPUTS),
        "a": draw.normal(size=N),
        **dict.fromkeys(("ridge", "bend", "rows", "squares", "roots", "logs"), none),
    }
    mu = 1 / kappa
    if family == "Q":
        return data | {"squares": 1.0}
    if family == "R":
        linear = data["a"] if enclosed else np.zeros(N)  # else nothing keeps x from running away
        return data | {"B": np.zeros((M, N)), "E": sharing, "ridge": 1.0, "squares": 1.0, "a": linear}
    if family == "N":
        return data | {"A": (1 + mu) / 2 * np.eye(M), "bend": (1 - mu) / 2, "roots": 1.0, "a": np.zeros(N)}
    nothing = {"B": np.zeros((M, N)), "b": np.zeros(M), "a": np.zeros(N)}
    return data | nothing | {"A": 0.01 * np.eye(M), "E": sharing, "ridge": 1.0, "rows": 1 / ROWS, "logs": 1 / OUTPUTS}


def _parameters(draw: np.random.Generator, h: str, size: float) -> dict[str, Any]:
    """Of h, for gradients of the size given."""
    strength, cap = size * 10 ** draw.uniform(-2.5, -0.2), draw.uniform(0.3, 2.0)
    if h == "Box":
        middle = draw.uniform(-1, 1, size=N)
        return {"lower": middle - draw.uniform(0.1, 3, size=N), "upper": middle + draw.uniform(0.1, 2, size=N)}
    if h in ("CappedL1", "NegativeCappedL1"):
        return {"strength": strength, "cap": cap}
    return {
        "Zero": {},
        "Simplex": {"scale": 1.0},
        "MCP": {"strength": strength, "theta": cap / strength},
    }.get(h, {"strength": strength})


def _start(draw: np.random.Generator, h: str, start: str, parameters: Floats) -> np.ndarray:
    """x0: at random; at 0 (for the sets, as near as they allow); or with most of its entries on kinks or bounds."""
    x = draw.normal(size=N)
    special = draw.uniform(size=N) < 0.7
    side = draw.choice([-1.0, 1.0], size=N)
    if h == "Box":
        low, high = parameters["lower"], parameters["upper"]
        bound = np.where(side < 0, low, high)
        inside = low + (high - low) * draw.uniform(0.01, 0.99, size=N)
        x = {"random": inside, "zero": np.clip(0, low, high), "kink": np.where(special, bound, inside)}[start]
        return np.clip(x, low, high)
    if h == "Simplex":
        special[draw.integers(N)] = False
        share = draw.dirichlet(np.ones(N))
        kink = np.where(special, 0, share)
        return {"random": share, "zero": np.full(N, 1 / N), "kink": kink / kink.sum()}[start]
    if h == "GroupL2":
        special = np.repeat(special[:2] | (start == "zero"), 2)
    kinks = [0.0]
    if "cap" in parameters:
        kinks = [0.0, float(parameters["cap"])]
    kink = side * draw.choice(kinks, size=N)
    return {"random": x, "zero": np.zeros(N), "kink": np.where(special, kink, x)}[start]


def _stop(draw: np.random.Generator, size: float) -> dict[str, Any]:
    kind = draw.choice(["steps", "tol", "rtol", "budget", "end"], p=[0.35, 0.25, 0.1, 0.1, 0.2])
    every = int(draw.choice([1, 3, 10]))
    if kind == "steps":
        return {"steps": int(draw.choice([1, 2, 3, 5])), "every": every}
    extras: dict[str, dict[str, Any]] = {
        "tol": {"tol": size * float(draw.choice([1e-1, 1e-2]))},
        "rtol": {"rtol": float(draw.choice([1e-1, 1e-2, 1e-4]))},
        "budget": {"budget": int(draw.choice([5, 20, 60, 150]))},
        "end": {},
    }
    return {"steps": 100, "every": every, **extras[str(kind)]}


_SURE = 1 + 1e-9  # the constants themselves were rounded


def _with_bounds(made: Case) -> Case:
    """The case with constants that hold, if they are known: in Q everywhere, in R where h bounds x and y is not larger
    than `largest`. There |y*| <= |b| / mu, and g_xy = E' diag(e^(Ex) y), whose norm grows with each |y_i|.
    """
    data, h = {name: _plain(entry) for name, entry in made.data.items()}, made.program.h
    f_yy = float(data["unit"]) * _norm(data["C"]) ** 2 * _SURE
    if made.family == "Q":
        mu = float(np.linalg.eigvalsh(data["A"])[0]) / _SURE
        return replace(made, bounds=Bounds(mu=mu, cross=_norm(data["B"]) * _SURE, f_yy=f_yy))
    if made.family == "R" and h in ("Box", "Simplex"):
        zero = np.zeros(N)
        low = _plain(made.parameters["lower"]) if h == "Box" else zero
        high = _plain(made.parameters["upper"]) if h == "Box" else zero + 1.001  # up to the rounding of sum x = 1
        least, most = np.exp(data["E"] @ low), np.exp(data["E"] @ high)
        mu = float(np.linalg.eigvalsh(data["A"] + np.diag(least))[0]) / _SURE
        largest = max(1.5 * float(np.linalg.norm(data["b"])) / mu, float(np.max(np.abs(made.y0))))
        tau = _norm(data["E"]) * float(np.max(most)) * _SURE
        cross = _norm(data["E"].T * most) * largest * _SURE
        return replace(made, bounds=Bounds(mu=mu, cross=cross, f_yy=f_yy, tau=tau), largest=largest)
    return made


# === Outcomes and rules ===============================================================================================

ROUNDING = 1e-13
"""What the truth itself may be off by, relative to the sizes of the terms that cancel in it; far more than it is. The
rounding of the solver, float32's included, is the claim's to cover.
"""
MOST_UNDERSTATED = 0.005
"""The share of estimates that may be below the truth."""
FURTHEST = 3.0
"""How many times the estimate the truth may be."""
LARGEST_MEDIAN = 5.0
"""Of claimed / true, where the truth is more than rounding."""


MOST_VOID = 0.02
"""The share of cases that may tell nothing."""


class Claim(NamedTuple):
    """What `minimize` says of the x it returns."""

    stationarity: float
    hypergradient_error: float | None
    guaranteed: bool
    status: str


@dataclass(frozen=True)
class Outcome:
    """A claim beside the truth."""

    case: Case
    x: np.ndarray
    claim: Claim
    true: float
    sizes: float
    """Of the terms that cancel in `true`."""
    bounds_hold: bool = True

    def __str__(self) -> str:
        kind = "guaranteed" if self.claim.guaranteed else "estimated"
        return f"{self.case}: {self.claim.status}, {kind} {self.claim.stationarity:.4g}, true {self.true:.4g}"

    @property
    def claims(self) -> bool:
        """Whether an error of the hypergradient is part of the claim."""
        return self.claim.hypergradient_error is not None

    @property
    def slack(self) -> float:
        """The rounding of the truth; and no claim is to be finer than the numbers that it is made of."""
        return float(ROUNDING * self.sizes + np.finfo(self.case.program.dtype).tiny)

    @property
    def understated(self) -> bool:
        """Whether the claim is below the truth, by more than the rounding of the truth."""
        return not np.isnan(self.true) and not self.claim.stationarity >= self.true * (1 - 1e-9) - self.slack

    @property
    def ratio(self) -> float:
        """Claimed / true; NaN where the truth is rounding, in the precision of the case."""
        noise = 100 * np.finfo(self.case.program.dtype).eps * self.sizes
        return self.claim.stationarity / self.true if self.true > noise else np.nan

    @property
    def broken(self) -> list[str]:
        """The rules that this case breaks on its own."""
        claim, case = self.claim, self.case
        if np.isnan(self.true):
            return []
        automatic, tol = case.program.solver != "ProxBiO", case.stop.get("tol")
        far = self.understated and not FURTHEST * claim.stationarity >= self.true - self.slack
        error = claim.hypergradient_error
        rules = {
            "a guarantee is false": claim.guaranteed and self.bounds_hold and self.understated,
            "bounds, but no guarantee": case.bounds is not None and automatic and not claim.guaranteed,
            "a guarantee without bounds": case.bounds is None and claim.guaranteed,
            f"true > {FURTHEST:g} estimated": self.claims and not claim.guaranteed and far,
            "no error of the hypergradient": automatic and error is None,
            "an error outside of [0, claimed]": error is not None and not 0 <= error <= claim.stationarity * (1 + 1e-6),
            "claimed is not finite": not np.isfinite(claim.stationarity),
            "converged, and claimed > tol": tol is not None
            and claim.status == "CONVERGED"
            and not claim.stationarity <= tol * (1 + 1e-6),
        }
        return [rule for rule, holds in rules.items() if holds]


def _solver(made: Case) -> Any:
    if made.program.solver == "ProxBiO":
        hypergradient = proxbi.AID(proxbi.AcceleratedGradient(1e-11), proxbi.CG(50, 1e-12))
        return proxbi.ProxBiO(hypergradient, step_size=made.step_size)
    return proxbi.PenaltyProxBiO() if made.program.solver == "penalty" else None


def run(made: Case) -> proxbi.Result:
    """What `minimize` returns for a case."""
    h = KINDS[made.program.h].make(**made.parameters)
    problem = Problem(upper, lower, h, {name: jnp.asarray(entry) for name, entry in made.data.items()})
    return solved_by_minimize(made, problem, jnp.asarray(made.y0))


def solved_by_minimize(made: Case, problem: Problem, y0: Any) -> proxbi.Result:
    """What `minimize` returns for this problem, with the start and the way to stop of the case."""
    options = {name: entry for name, entry in made.stop.items() if name != "budget"}
    if "budget" in made.stop:
        options["callbacks"] = [OracleBudget(made.stop["budget"])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minimize(
            problem,
            x0=jnp.asarray(made.x0),
            y0=y0,
            solver=_solver(made),
            bounds=made.bounds,
            throw=False,
            **options,
        )


def judged(made: Case, x: np.ndarray, y: np.ndarray, claim: Claim) -> Outcome:
    """A claim about x, beside the truth; NaN where x is not finite, or e^(Ex) is out of range."""
    if not np.all(np.isfinite(x)) or np.max(np.abs(made.data["E"] @ x)) > 1e4:
        return Outcome(made, x, claim, np.nan, np.nan)
    at = gradient(made.exact, x.astype(np.longdouble))
    true, s = made.distance(x, at.gradient)
    largest = max(np.max(np.abs(y)), float(np.max(np.abs(at.y))))
    return Outcome(made, x, claim, true, float(np.linalg.norm(at.sizes + np.abs(s))), bool(largest <= made.largest))


def outcome(made: Case) -> Outcome:
    """What `minimize` says about a case, and what is so."""
    result = run(made)
    error = result.hypergradient_error
    claim = Claim(
        float(result.stationarity), None if error is None else float(error), result.guaranteed, result.status.name
    )
    return judged(made, np.asarray(result.x), np.asarray(result.y), claim)


def faults(outcomes: Iterable[Outcome]) -> list[str]:
    """The rules that are broken, each with its worst cases; nothing if all is well."""
    outcomes = list(outcomes)
    found: list[str] = []

    def worst(of: list[Outcome]) -> str:
        key = [(one.true / max(one.claim.stationarity, 1e-300), one) for one in of]
        lines = [str(one) for _, one in sorted(key, key=lambda pair: -pair[0])[:5]]
        return "\n".join("    " + line for line in lines)

    for rule in dict.fromkeys(rule for one in outcomes for rule in one.broken):
        breaking = [one for one in outcomes if rule in one.broken]
        found.append(f"{rule}: {len(breaking)} of {len(outcomes)} cases\n{worst(breaking)}")
    estimates = [one for one in outcomes if one.claims and not one.claim.guaranteed]
    under = [one for one in estimates if one.understated]
    if len(under) > MOST_UNDERSTATED * len(estimates):
        found.append(f"estimates below the truth: {len(under)} of {len(estimates)}\n{worst(under)}")
    for name, group in (("estimated", estimates), ("guaranteed", [one for one in outcomes if one.claim.guaranteed])):
        ratios = np.array([one.ratio for one in group if not np.isnan(one.ratio)])
        if len(ratios) and not np.median(ratios) <= LARGEST_MEDIAN:
            found.append(f"the median of {name} / true is {np.median(ratios):.3g}, of {len(ratios)}")
    void = [one for one in outcomes if not one.bounds_hold or np.isnan(one.true)]
    if len(void) > MOST_VOID * len(outcomes):
        found.append(f"y where the bounds do not hold, or no truth to compare with: {len(void)}\n{worst(void)}")
    return found


# === The command ======================================================================================================


def _show(seed: int) -> None:
    one = outcome(case(seed))
    print(one.case)
    print("bounds", one.case.bounds)
    for name, entry in {**one.case.parameters, "x0": one.case.x0, "y0": one.case.y0, "x": one.x}.items():
        print(f"{name:9}", np.array2string(np.asarray(entry), precision=17))
    at = gradient(one.case.exact, one.x.astype(np.longdouble))
    print("grad Phi ", _plain(at.gradient), "\ns nearest", _plain(one.case.distance(one.x, at.gradient)[1]))
    print(one.claim, f"\ntrue {one.true!r}, sizes {one.sizes:.3g}; broken: {', '.join(one.broken) or 'nothing'}")


def _summary(first: int, last: int) -> None:
    outcomes = [outcome(case(seed)) for seed in range(first, last)]
    print("\n".join(faults(outcomes)) or "all is well")
    under = [one for one in outcomes if one.understated and (one.claims or one.claim.guaranteed)]
    print(f"\nbelow the truth: {len(under)} of {sum(one.claims or one.claim.guaranteed for one in outcomes)}")

    def by(name: str, key: Callable[[Outcome], str]) -> None:
        total = Counter(map(key, outcomes))
        few = Counter(map(key, under))
        print(f"  by {name}: " + ", ".join(f"{of} {few[of]}/{total[of]}" for of in sorted(total)))

    by("h", lambda one: one.case.program.h)
    by("family", lambda one: one.case.family)
    by("dtype", lambda one: one.case.program.dtype)
    by("solver", lambda one: one.case.program.solver)
    by("bounds", lambda one: "given" if one.case.bounds else "none")
    by("stop", lambda one: next((k for k in ("tol", "rtol", "budget") if k in one.case.stop), _steps(one)))
    by("shift", lambda one: one.case.draw["shift"])
    by("status", lambda one: one.claim.status)
    for kind in ("guaranteed", "estimated"):
        ratios = np.array(
            [one.ratio for one in outcomes if one.claims and one.claim.guaranteed == (kind == "guaranteed")]
        )
        ratios = ratios[np.isfinite(ratios)]
        if len(ratios):
            print(f"{kind} / true, quantiles 0, .01, .5, .9, 1:", np.quantile(ratios, [0, 0.01, 0.5, 0.9, 1]).round(3))


def _steps(one: Outcome) -> str:
    return "end" if one.case.stop["steps"] == 100 else f"steps={one.case.stop['steps']}"


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    if len(sys.argv) == 2:
        _show(int(sys.argv[1]))
    else:
        _summary(int(sys.argv[1]), int(sys.argv[2]))
