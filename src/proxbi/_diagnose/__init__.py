r"""`check`: what can be seen of a problem before it is solved, on one page.

Everything is checked near the start: at (x0, y0), at (x0, y*(x0)), and at a point a hundredth away from there, as a
start of zeros hides what is multiplied by it. What is found is evidence: a fault that is reported was seen, a problem
without faults was only not refuted.
"""

from collections.abc import Callable, Iterable

import jax
from jaxtyping import PyTree

from proxbi import _check
from proxbi._diagnose._arguments import arguments, callable_at, domain, ignored, values
from proxbi._diagnose._derivatives import derivatives
from proxbi._diagnose._levels import active_set, curvatures, hypergradient, kinks, solution
from proxbi._diagnose._page import Diagnosis as Diagnosis
from proxbi._diagnose._page import Level, Look, first_line
from proxbi._diagnose._start import Start
from proxbi._own_loop import value_and_hypergradient
from proxbi.problem import Problem

_LOOKS: dict[str, Callable[[Start], Iterable[Look]]] = {
    "ignored arguments": ignored,
    "values": values,
    "domain": domain,
    "lower solution": solution,
    "active set": active_set,
    "curvature": curvatures,
    "derivatives": derivatives,
    "kinks": kinks,
    "hypergradient": hypergradient,
}


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

    >>> import jax.numpy as jnp
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
    unsolved = Start(problem, x, y, key, None, None)
    looks = _guarded("arguments", arguments, unsolved)
    if not callable_at(problem, x, y):
        return Diagnosis(looks)
    try:
        _, grad, found = value_and_hypergradient(problem, x, y)
        start = Start(problem, x, y, key, found, grad)
    except Exception as error:  # whatever a function of the user raises
        start = unsolved
        looks.append(Look("lower solution", "", f"cannot be computed: {first_line(error)}", Level.FAULT))
    for name, function in _LOOKS.items():
        looks += _guarded(name, function, start)
    return Diagnosis(looks)


def _guarded(name: str, function: Callable[[Start], Iterable[Look]], start: Start) -> list[Look]:
    """The looks of one function; an error in it is a finding."""
    try:
        return list(function(start))
    except Exception as error:  # whatever a function of the user raises
        return [Look(name, "", f"could not be checked: {first_line(error)}", Level.FAULT)]
