"""Certificates with a lower regularizer against the truth: cases drawn from a seed, as in `truth.py`.

    min_x  unit (|Cy - d|^2 / 2 + a'x) + h(x),     y*(x) = argmin_y  y'Ay / 2 - y'(Bx + b) + r_x(y)

with x in a box, and y in six blocks of three entries that A couples: r is an L1, an ElasticNet, a Box, NonNegative, a
Simplex and a GroupL2, one for each block, all in one compiled program. Where `moves` is 1, strengths, bounds and the
scale of the simplex depend on x as e^x; where it is 0, r is fixed, and constants that hold are given as `Bounds`.

**The truth.** The active set is read off a y: the support, the bounds that bind, the groups that are not zero. On it
y = p(x) + V w with V a basis of the face, r is smooth, and y* solves V'(Ay - Bx - b + r_y) = 0: by Newton's method in
extended precision. The face is the right one if y stays inside of it and the rest of the gradient is in dr (`holds`);
where it is not, proximal gradient steps look for a better one. With K = A + r_yy,

    (V'KV) w_x = -V'(K p_x - B + r_yx),     grad Phi = unit a + (p_x + V w_x)'f_y.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import truth
from proxbi import L1, Bounds, Box, ElasticNet, GroupL2, NonNegative, Problem, Separable, Simplex
from truth import Case, Claim, Floats, Outcome, Program

N, BLOCK, OUTPUTS = 4, 3, 8
KINDS = ("l1", "elastic", "box", "nonneg", "simplex", "group")
M = BLOCK * len(KINDS)
RATIO = 0.6  # of the elastic net
GROUPS = np.array([0, 0, 1])
PROGRAM = Program("default", "Box", "float64")
_INSIDE = 1e-12  # relative: entries of y closer to a bound than this are on it

# --- The problem ------------------------------------------------------------------------------------------------------


def _flat(y: Any) -> Any:
    return jnp.concatenate([y[kind] for kind in KINDS])


def lower(x: Any, y: Any, data: Any) -> Any:
    flat = _flat(y)
    return flat @ (data["A"] @ flat) / 2 - flat @ (data["B"] @ x + data["b"])


def upper(x: Any, y: Any, data: Any) -> Any:
    rest = data["C"] @ _flat(y) - data["d"]
    return data["unit"] * (rest @ rest / 2 + data["a"] @ x)


def regularizer(x: Any, data: Any) -> Separable:
    scale = data["size"] * jnp.exp(data["moves"] * x)
    return Separable(
        {
            "l1": L1(data["strengths"] * scale[0]),
            "elastic": ElasticNet(scale[1], RATIO),
            "box": Box(-scale[2], scale[2]),
            "nonneg": NonNegative(),
            "simplex": Simplex(scale[3]),
            "group": GroupL2(scale[1], GROUPS),
        }
    )


# --- Faces, block by block --------------------------------------------------------------------------------------------


class Face(NamedTuple):
    """One block on its face, as functions of its y: y = p + V w, and r there."""

    basis: np.ndarray
    """V."""
    fixed: np.ndarray
    """p."""
    fixed_x: np.ndarray
    slope: Callable[[np.ndarray], np.ndarray]
    """r_y."""
    bend: Callable[[np.ndarray], np.ndarray]
    """r_yy."""
    moves: Callable[[np.ndarray], np.ndarray]
    """r_yx."""
    holds: Callable[[np.ndarray, np.ndarray], bool]
    """Whether y is inside of the face and -g_y, given second, in dr(y)."""


def _columns(chosen: np.ndarray) -> np.ndarray:
    return np.eye(BLOCK)[:, chosen]


def _by(x_index: int, values: np.ndarray) -> np.ndarray:
    """A derivative along one entry of x."""
    return np.outer(values, np.eye(N)[x_index])


_NOTHING = np.zeros(BLOCK)


def _no_slope(y: np.ndarray) -> np.ndarray:
    return _NOTHING


def _no_bend(y: np.ndarray) -> np.ndarray:
    return np.zeros((BLOCK, BLOCK))


def _no_moves(y: np.ndarray) -> np.ndarray:
    return np.zeros((BLOCK, N))


def _shrunk(y: np.ndarray, linear: Any, quadratic: Any, x_index: int, rate: Any) -> Face:
    """linear |y| + quadratic y^2 / 2."""
    on, sign = y != 0, np.sign(y)

    def slope(y: np.ndarray) -> np.ndarray:
        return linear * sign + quadratic * y

    def holds(y: np.ndarray, dual: np.ndarray) -> bool:
        within = np.abs(dual) <= np.where(on, np.inf, linear)
        return bool(np.all(np.sign(y[on]) == sign[on]) and np.all(within))

    return Face(
        _columns(on),
        _NOTHING,
        np.zeros((BLOCK, N)),
        slope,
        lambda y: quadratic * np.eye(BLOCK),
        lambda y: _by(x_index, rate * slope(y)),
        lambda y, dual: bool(
            np.all(np.sign(y[on]) == sign[on]) and np.all(np.abs(dual) <= np.where(on, np.inf, linear))
        ),
    )


def _boxed(y: np.ndarray, bound: Any, x_index: int, rate: Any) -> Face:
    side = np.where(np.abs(y) >= bound * (1 - _INSIDE), np.sign(y), 0)
    fixed = side * bound

    def holds(y: np.ndarray, dual: np.ndarray) -> bool:
        return bool(np.all(np.abs(y[side == 0]) < bound) and np.all((side * dual)[side != 0] >= 0))

    return Face(_columns(side == 0), fixed, _by(x_index, rate * fixed), _no_slope, _no_bend, _no_moves, holds)


def _positive(y: np.ndarray) -> Face:
    on = y > 0

    def holds(y: np.ndarray, dual: np.ndarray) -> bool:
        return bool(np.all(y[on] > 0) and np.all(dual[~on] <= 0))

    return Face(_columns(on), _NOTHING, np.zeros((BLOCK, N)), _no_slope, _no_bend, _no_moves, holds)


def _on_simplex(y: np.ndarray, scale: Any, x_index: int, rate: Any) -> Face:
    on = y > 0
    first = int(np.argmax(on))
    fixed = scale * np.eye(BLOCK)[first]
    others = [k for k in np.flatnonzero(on) if k != first]
    basis = np.eye(BLOCK)[:, others] - np.eye(BLOCK)[:, [first]]

    def holds(y: np.ndarray, dual: np.ndarray) -> bool:
        return bool(np.all(y[on] > 0) and np.all(dual[~on] <= dual[first]))

    return Face(basis, fixed, _by(x_index, rate * fixed), _no_slope, _no_bend, _no_moves, holds)


def _grouped(y: np.ndarray, strength: Any, x_index: int, rate: Any) -> Face:
    groups = [label == GROUPS for label in np.unique(GROUPS)]
    live = [of for of in groups if np.any(y[of] != 0)]
    on = np.any(live, axis=0) if live else np.zeros(BLOCK, bool)

    def slope(y: np.ndarray) -> np.ndarray:
        return sum((strength * np.where(of, y, 0) / _norm(y[of]) for of in live), np.zeros(BLOCK, y.dtype))

    def bend(y: np.ndarray) -> np.ndarray:
        whole = np.zeros((BLOCK, BLOCK), y.dtype)
        for of in live:
            unit = np.where(of, y, 0) / _norm(y[of])
            whole = whole + strength / _norm(y[of]) * (np.diag(of.astype(y.dtype)) - np.outer(unit, unit))
        return whole

    def holds(y: np.ndarray, dual: np.ndarray) -> bool:
        return all(_norm(dual[of]) <= strength for of in groups if not np.any(of & on))

    return Face(
        _columns(on), _NOTHING, np.zeros((BLOCK, N)), slope, bend, lambda y: _by(x_index, rate * slope(y)), holds
    )


def _norm(values: np.ndarray) -> Any:
    return np.sqrt(np.sum(values**2))


def _blocks(y: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(KINDS, np.split(y, len(KINDS)), strict=True))


def _faces(data: Floats, x: np.ndarray, y: np.ndarray) -> list[Face]:
    scale, rate = data["size"] * np.exp(data["moves"] * x), data["moves"]
    of = _blocks(y)
    return [
        _shrunk(of["l1"], data["strengths"] * scale[0], 0 * scale[0], 0, rate),
        _shrunk(of["elastic"], RATIO * scale[1], (1 - RATIO) * scale[1], 1, rate),
        _boxed(of["box"], scale[2], 2, rate),
        _positive(of["nonneg"]),
        _on_simplex(of["simplex"], scale[3], 3, rate),
        _grouped(of["group"], scale[1], 1, rate),
    ]


# --- The truth --------------------------------------------------------------------------------------------------------


class Solved(NamedTuple):
    """y*(x) and grad Phi(x), with the sizes of its terms."""

    y: np.ndarray
    gradient: np.ndarray
    sizes: np.ndarray


def _diagonal(parts: list[np.ndarray]) -> np.ndarray:
    whole = np.zeros((M, sum(part.shape[1] for part in parts)), np.longdouble)
    column = 0
    for k, part in enumerate(parts):
        whole[k * BLOCK : (k + 1) * BLOCK, column : column + part.shape[1]] = part
        column += part.shape[1]
    return whole


def _solve(matrix: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return truth._solve(matrix, rhs) if rhs.ndim == 1 else np.stack([truth._solve(matrix, c) for c in rhs.T], axis=1)


def on_face(data: Floats, x: np.ndarray, guess: np.ndarray) -> Solved | None:
    """The truth if the face of `guess` is that of y*(x), else None."""
    faces = _faces(data, x, guess)
    basis = _diagonal([face.basis for face in faces])
    fixed, fixed_x = (np.concatenate([getattr(face, name) for face in faces]) for name in ("fixed", "fixed_x"))

    def of(name: str, y: np.ndarray) -> list[np.ndarray]:
        return [getattr(face, name)(block) for face, block in zip(faces, _blocks(y).values(), strict=True)]

    def parts(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data["A"] @ y - data["B"] @ x - data["b"], data["A"] + _diagonal(of("bend", y))

    w = np.linalg.lstsq(basis.astype(float), (guess - fixed).astype(float), rcond=None)[0]
    y = fixed + basis @ w
    for _ in range(50):
        slope, k = parts(y)
        residual = basis.T @ (slope + np.concatenate(of("slope", y)))
        step = basis @ _solve(basis.T @ k @ basis, -residual) if basis.shape[1] else 0 * y
        y = y + step
        if not np.all(np.isfinite(y)) or _norm(step) <= 1e-18 * _norm(y):
            break
    slope, k = parts(y)
    duals = _blocks(-slope).values()
    if not np.all(np.isfinite(y)):
        return None
    if not all(
        face.holds(*pair) for face, pair in zip(faces, zip(_blocks(y).values(), duals, strict=True), strict=True)
    ):
        return None
    rest = basis.T @ (k @ fixed_x - data["B"] + np.concatenate(of("moves", y)))
    along = fixed_x - basis @ _solve(basis.T @ k @ basis, rest) if basis.shape[1] else fixed_x
    f_x, f_y = data["unit"] * data["a"], data["unit"] * (data["C"].T @ (data["C"] @ y - data["d"]))
    return Solved(y, f_x + along.T @ f_y, np.abs(f_x) + np.abs(along).T @ np.abs(f_y))


def solved(data: Floats, x: np.ndarray, guess: np.ndarray) -> Solved | None:
    """The truth at x, from a y whose face may be right; None where none is found, as on the edge between two faces."""
    for _ in range(6):
        found = on_face(data, x, guess)
        if found is not None:
            return found
        guess = _proximal_steps(data, x, guess, 2000)
    return None


def _proximal_steps(data: Floats, x: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
    """FISTA with restarts, in float64."""
    plain = {name: np.asarray(entry, float) for name, entry in data.items()}
    x, y = np.asarray(x, float), np.asarray(y, float)
    s, linear = 1 / np.linalg.norm(plain["A"], 2), plain["B"] @ x + plain["b"]
    scale = plain["size"] * np.exp(plain["moves"] * x)
    ahead, age = y, 0
    for _ in range(steps):
        new = _prox(plain, scale, ahead - s * (plain["A"] @ ahead - linear), s)
        change = new - y
        age = 0 if (ahead - new) @ change > 0 else age + 1
        ahead, y = new + age / (age + 3) * change, new
    return y


def _soft(z: np.ndarray, threshold: Any) -> np.ndarray:
    return np.sign(z) * np.maximum(np.abs(z) - threshold, 0)


def _prox(data: Floats, scale: np.ndarray, z: np.ndarray, s: float) -> np.ndarray:
    of = _blocks(z)
    ordered = np.sort(of["simplex"])[::-1]
    shifts = (np.cumsum(ordered) - scale[3]) / np.arange(1, BLOCK + 1)
    shift = shifts[np.flatnonzero(ordered > shifts)[-1]]
    norms = np.sqrt(np.bincount(GROUPS, of["group"] ** 2))[GROUPS]
    return np.concatenate(
        [
            _soft(of["l1"], s * data["strengths"] * scale[0]),
            _soft(of["elastic"], s * RATIO * scale[1]) / (1 + s * (1 - RATIO) * scale[1]),
            np.clip(of["box"], -scale[2], scale[2]),
            np.maximum(of["nonneg"], 0),
            np.maximum(of["simplex"] - shift, 0),
            of["group"] * np.maximum(1 - s * scale[1] / np.maximum(norms, 1e-300), 0),
        ]
    )


# --- Cases ------------------------------------------------------------------------------------------------------------


def case(seed: int) -> Case:
    """The case of a seed."""
    draw = np.random.default_rng([seed, 14])
    kappa, unit = 10 ** draw.uniform(0, 3), 10 ** draw.uniform(-2, 2)
    moves = float(draw.choice([0.0, 1.0], p=[0.3, 0.7]))
    rotation = np.linalg.qr(draw.normal(size=(M, M)))[0]
    a = rotation @ np.diag(np.geomspace(1 / kappa, 1, M)) @ rotation.T
    data = {
        "A": (a + a.T) / 2,
        "B": draw.normal(size=(M, N)) / 2,
        "b": draw.normal(size=M),
        "C": draw.normal(size=(OUTPUTS, M)) / 2,
        "d": draw.normal(size=OUTPUTS),
        "a": 0.3 * draw.normal(size=N),
        "unit": np.asarray(unit),
        "moves": np.asarray(moves),
        "size": np.asarray(10 ** draw.uniform(-1, 0)),
        "strengths": draw.uniform(0.3, 3.0, size=BLOCK),
    }
    parameters = {"lower": np.full(N, -1.5), "upper": np.full(N, 1.0)}
    x0 = draw.uniform(-1.4, 0.9, size=N)
    guess = str(draw.choice(["zero", "random"]))
    y0 = np.zeros(M) if guess == "zero" else draw.normal(size=M)
    stop = truth._stop(draw, float(unit))
    words = {"kappa": f"{kappa:.2g}", "unit": f"{unit:.2g}", "moves": moves, "y0": guess}
    bounds = None
    if moves == 0:
        sure = 1 + 1e-9
        mu, cross = float(np.linalg.eigvalsh(data["A"])[0]) / sure, float(np.linalg.norm(data["B"], 2)) * sure
        bounds = Bounds(mu=mu, cross=cross, f_yy=unit * float(np.linalg.norm(data["C"], 2)) ** 2 * sure)
    return Case(seed, PROGRAM, "F", words, data, parameters, x0, y0, stop, bounds)


def cases() -> Iterator[Case]:
    """The cases of the seeds 0, 1, ..."""
    return map(case, count())


def problem_of(made: Case) -> Problem:
    data = {name: jnp.asarray(entry) for name, entry in made.data.items()}
    return Problem(upper, lower, Box(**made.parameters), data, lower_regularizer=regularizer)


def outcome(made: Case) -> Outcome:
    """What `minimize` says about a case, and what is so."""
    y0 = {kind: jnp.asarray(block) for kind, block in _blocks(made.y0).items()}
    result = truth.solved_by_minimize(made, problem_of(made), y0)
    error = result.hypergradient_error
    claim = Claim(
        float(result.stationarity), None if error is None else float(error), result.guaranteed, result.status.name
    )
    x, y = np.asarray(result.x), np.concatenate([np.asarray(result.y[kind]) for kind in KINDS])
    at = solved(made.exact, x.astype(np.longdouble), y.astype(np.longdouble))
    if at is None:
        return Outcome(made, x, claim, np.nan, np.nan)
    true, s = made.distance(x, at.gradient)
    return Outcome(made, x, claim, true, float(np.linalg.norm(at.sizes + np.abs(s))))
