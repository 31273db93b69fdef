r"""Proximal BiO: the paper's Algorithm 1, with any hypergradient.

    y_{k+1} = T lower steps on g(x_k, .) from y_k                        (lines 3-8)
    d_k     = an estimate of grad Phi(x_k) at y_{k+1}                    (line 9)
    x_{k+1} in prox_{beta h}(x_k - beta d_k)                             (line 10)

Stationarity. The optimality condition of line 10 says that

    s_{k+1} := (x_k - x_{k+1}) / beta - d_k   is in   dh(x_{k+1}),

so |s_{k+1} + d_{k+1}| estimates dist(0, d(Phi + h)(x_{k+1})), for convex and for nonconvex h alike (the prox-gradient
mapping that the paper uses needs h convex). It costs nothing: d_{k+1} is computed in the next step anyway, and s is
carried over.
"""

import re
from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi.hypergradient import AID, ITD, Hypergradient
from proxbi.linear import CG
from proxbi.lower import GradientDescent, Nesterov
from proxbi.problem import Counts, Problem
from proxbi.regularizers import Zero
from proxbi.solvers._base import Info, Solver, fault_of


class ProxBiOState(NamedTuple):
    """The iterates, the adjoint, and the subgradient of h that the last prox step found at x."""

    x: PyTree
    y: PyTree
    aux: PyTree
    subgradient: PyTree
    x0: PyTree
    started: Bool[Array, ""]


class ProxBiO(Solver):
    r"""$x_{k+1} \in \mathrm{prox}_{\beta h}\big(x_k - \beta\,\widehat\nabla\Phi(x_k)\big)$ with warm
    starts: y and v continue from the last step.

    **Arguments:**

    - `hypergradient`: `AID(...)` or `ITD(...)`.
    - `step_size`: beta.
    - `proximal`: False leaves the prox out (the paper's plain "BiO") and refuses a problem that has a regularizer.

    Reference: Chen, Kailkhura, Zhou, "An accelerated proximal algorithm for regularized nonconvex and nonsmooth
    bi-level optimization", Machine Learning 112 (2023), Algorithm 1.

    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> solver = ProxBiO(AID(GradientDescent(0.25, steps=5), CG(steps=1)), step_size=0.5)
    >>> x0 = y0 = jnp.array(0.0)
    >>> print(minimize(scalar_problem(), x0, y0, solver, steps=50).x.round(4))  # the minimiser is 2
    2.0
    """

    hypergradient: Hypergradient
    step_size: _check.Number = eqx.field(converter=_check.as_float)
    proximal: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        if not isinstance(self.hypergradient, Hypergradient):
            given = type(self.hypergradient).__name__
            raise TypeError(f"hypergradient must be a Hypergradient such as AID(...) or ITD(...), got {given}.")
        _check.positive("step_size", self.step_size)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> ProxBiOState:
        if not self.proximal and not isinstance(problem.regularizer, Zero):
            name = type(problem.regularizer).__name__
            raise ValueError(
                f"regularizer is {name}, but this solver has proximal=False and would ignore it; "
                "use the proximal variant, or a Problem without regularizer."
            )
        aux = self.hypergradient.init(problem, x, y)
        return ProxBiOState(x, y, aux, _tree.zeros_like(x), x, jnp.asarray(False))

    def step(self, problem: Problem, state: ProxBiOState, key: PRNGKeyArray) -> tuple[ProxBiOState, Info]:
        beta = self.step_size
        estimate = self.hypergradient(problem, state.x, state.y, state.aux)
        forward = _tree.axpy(-beta, estimate.grad, state.x)
        x = problem.regularizer.prox(forward, beta) if self.proximal else forward
        subgradient = _tree.scale(1 / beta, _tree.subtract(forward, x))

        mapping = _tree.norm(_tree.axpy(1, subgradient, estimate.grad))  # |x_k - x_{k+1}| / beta, for the first step
        gap = _tree.norm(_tree.axpy(1, state.subgradient, estimate.grad))
        counts = estimate.counts + Counts(prox=int(self.proximal))
        stationarity = jnp.where(state.started, gap, mapping)
        # The curvature that a step of beta suits is 1 / beta: over the way from x0 it builds up this gradient.
        built = _tree.norm(_tree.subtract(state.x, state.x0)) / beta.astype(stationarity.dtype)
        info = Info(
            stationarity,
            estimate.lower_residual,
            estimate.linear,
            counts,
            fault_of(estimate.linear, estimate.lower_residual),
            jnp.where(built > 0, stationarity / jnp.where(built > 0, built, 1), jnp.inf),
        )
        return ProxBiOState(x, estimate.y, estimate.aux, subgradient, state.x0, jnp.asarray(True)), info


PAPER_SOLVERS = tuple(
    f"{prox}BiO-{kind}{m}" for prox in ("", "proximal ") for kind in ("AID", "ITD") for m in ("", "m")
)
"""The eight methods the paper compares: {BiO, proximal BiO} x {AID, ITD} x {plain, m for momentum}."""


def paper_solver(
    name: str,
    *,
    alpha: float,
    beta: float,
    T: int,
    eta: float | None = None,
    form: Literal["algorithm", "appendix"] = "algorithm",
    cg_steps: int = 50,
    cg_tol: float = 1e-6,
    warm: bool = True,
    truncate: int | None = None,
) -> ProxBiO:
    """One of the paper's eight methods by its name, in the paper's letters.

    **Arguments:**

    - `name`: `"proximal BiO-AIDm"`, `"BiO-ITD"`, ...; see `PAPER_SOLVERS`.
    - `alpha`, `eta`, `T`: step size, momentum and number of the lower steps. The names that end in "m" need `eta`, the
        others have no momentum and leave it unused, so that one set of letters serves all eight.
    - `beta`: the outer step size.
    - `form`: the first momentum step as in Algorithm 1 or as in the appendix; see `Nesterov`.
    - `cg_steps`, `cg_tol`, `warm`: the adjoint solve of the AID methods; the paper assumes it exact.
    - `truncate`: how many steps the ITD methods differentiate; None is all.

    **Returns:** a `ProxBiO`.

    Reference: Chen, Kailkhura, Zhou, "An accelerated proximal algorithm for regularized nonconvex and nonsmooth
    bi-level optimization", Machine Learning 112 (2023).

    >>> paper_solver("proximal BiO-AIDm", alpha=0.1, beta=0.5, eta=0.9, T=5).hypergradient.lower.steps
    5
    """
    match = re.fullmatch(r"(proximal )?BiO-(AID|ITD)(m?)", name)
    if match is None:
        raise ValueError(f"name must be one of {', '.join(map(repr, PAPER_SOLVERS))}, got {name!r}.")
    proximal, kind, momentum = match.groups()
    if momentum and eta is None:
        raise ValueError(f"eta must be given for {name!r}: it is the momentum.")
    if kind == "AID" and truncate is not None:
        raise ValueError(f"truncate must not be given for {name!r}: only the ITD methods unroll.")
    lower = Nesterov(alpha, eta, T, form) if momentum else GradientDescent(alpha, T)
    hypergradient: Hypergradient = AID(lower, CG(cg_steps, cg_tol), warm) if kind == "AID" else ITD(lower, truncate)
    return ProxBiO(hypergradient, beta, proximal=proximal is not None)
