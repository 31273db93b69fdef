r"""The constants of the theory, and the step sizes that follow from them.

There are two forms of the same proof. `Constants` is that of the paper, formula by formula. `SharpConstants` keeps the
blocks of f and g apart and weights the potential, so that all units agree. Notation, as in the paper:

    e_k = |y_{k+1} - y*(x_k)|,   dx_k = |x_{k+1} - x_k|,   d_k the hypergradient estimate at x_k,   F = Phi + h.

**The lower loop** (first line of equation (eq: 3)). Algorithm 1 returns the extrapolated point y^T, Nesterov's bound is
usually stated for u_T; it holds for y^T as well. With q = 1/kappa and v_t = y^t + (y^t - u_t) / sqrt(q), Nesterov's
proof bounds g(u_t) - g* + mu/2 |v_t - y*|^2 by (1 - sqrt(q))^t (L + mu)/2 |y^0 - y*|^2, and y^t = (u_t + sqrt(q) v_t)
/ (1 + sqrt(q)) is a mean of two points whose squared distances to y* are at most 2/mu times that. Hence

    |y^T - y*|^2 <= (1 + kappa) (1 - kappa^-1/2)^T |y^0 - y*|^2,

for the form of Algorithm 1 (u_0 = y^0); the appendix' first step y^1 = u_1 is not covered by this argument. T is the
smallest integer for which the factor is at most 1/8, so that, with y* ell-Lipschitz (ell <= kappa),

    e_{k+1}^2 <= e_k^2 / 4 + ell^2 / 4 dx_k^2.                                                            (eq: 3)

**Descent.** The smoothness of Phi (eq: 2) and the prox inequality (eq: 1) add up to F(x_{k+1}) <= F(x_k) -
(1/(2 beta) - L_Phi/2) dx_k^2 + dx_k |d_k - grad Phi(x_k)|. Lemma 1 bounds the last factor by c e_k, and Young's
inequality c e dx <= (c^2/w) dx^2 / 2 + w e^2 / 2 with a weight w > 0 gives

    F(x_{k+1}) <= F(x_k) - (1/(2 beta) - L_Phi/2 - c^2/(2w)) dx_k^2 + w/2 e_k^2.                          (eq: 4)

**Proposition 1.** Adding w times (eq: 3) to (eq: 4): if 1/(4 beta) >= L_Phi/2 + c^2/(2w) + w ell^2/4, then

    H_{k+1} <= H_k - dx_k^2 / (4 beta) - w/8 (e_k^2 + e_{k+1}^2),    H_k = F(x_k) + 7/8 w e_k^2.

- The paper takes w = 1, c^2 = Gamma, ell = kappa: beta = 1 / (2 (L_Phi + Gamma + kappa^2)) satisfies it. L_Phi +
  Gamma + kappa^2 adds quantities of different units: rescaling f or x changes the allowed beta.
- The sharper form takes c = C, the Lipschitz constant in y of the map (x, y) -> f_x - g_xy g_yy^-1 f_y, and w = s =
  C/ell, which makes the two last terms C ell / 2 and C ell / 4: beta = 1 / (2 (L_Phi + 2 C ell)) satisfies it, in the
  units of 1/L_Phi.

**Corollary 1.** Both |G(x_{k+1})| for convex h and dist(0, dF(x_{k+1})) for any h are at most (1/beta + L_Phi) dx_k +
c e_k (equation (eq: dPhih)). By the Cauchy-Schwarz inequality its square is at most the decrease of Proposition 1
times 4 beta (1/beta + L_Phi)^2 + 8 c^2 / w. Here L_Phi <= 1/(2 beta), so the first term is at most 9/beta; the second
is at most 4/beta (paper, Gamma <= 1/(2 beta)) or 2/beta (sharper, C ell <= 1/(4 beta)). The sum over k telescopes:

    min_{1 <= k <= K} |G(x_k)|^2 <= c_1 / (beta K) (H_0 - inf F)      with c_1 = 32 as printed (13 would do), or 11.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from proxbi import _check


@dataclass(frozen=True)
class Schedule(ABC):
    """mu and L of g in y, and the other constants of Proposition 1.

    Examples: `Constants`, `SharpConstants`.
    """

    mu: float
    """g(x, .) is mu-strongly convex."""
    L: float
    """grad f and grad g are L-Lipschitz."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check = _check.positive if name in ("mu", "L") else _check.non_negative
            check(name, value)
        _check.require(self.mu <= self.L, f"mu must be at most L, got mu={self.mu} and L={self.L}.")

    @property
    def kappa(self) -> float:
        """The condition number L / mu."""
        return self.L / self.mu

    @property
    def alpha(self) -> float:
        """The lower step size 1 / L."""
        return 1 / self.L

    @property
    def eta(self) -> float:
        """The lower momentum (sqrt(kappa) - 1) / (sqrt(kappa) + 1)."""
        root = math.sqrt(self.kappa)
        return (root - 1) / (root + 1)

    @property
    def T(self) -> int:
        """The least T with (1 + kappa) (1 - kappa^-1/2)^T <= 1/8; 1 for kappa = 1, where one step is exact."""
        return _least_power(1 - self.kappa**-0.5, 8 * (1 + self.kappa))

    @property
    def T_plain(self) -> int:
        """The same without momentum: the least T with (1 - 1/kappa)^(2T) <= 1/8."""
        return _least_power((1 - 1 / self.kappa) ** 2, 8)

    @property
    def contraction(self) -> float:
        """(1 + kappa) (1 - kappa^-1/2)^T, at most 1/8: the factor by which T lower steps reduce the squared distance
        to y*."""
        return (1 + self.kappa) * (1 - self.kappa**-0.5) ** self.T

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """L_Phi, the Lipschitz constant of grad Phi."""

    @property
    @abstractmethod
    def error_factor(self) -> float:
        """c in |d_k - grad Phi(x_k)| <= c e_k: sqrt(Gamma), or C."""

    @property
    @abstractmethod
    def solution_factor(self) -> float:
        """The Lipschitz constant of y*: kappa, or ell."""

    @property
    @abstractmethod
    def weight(self) -> float:
        """w in the potential F + 7/8 w e^2: 1, or s."""

    @property
    @abstractmethod
    def beta(self) -> float:
        """The largest outer step size that this form of the proof allows."""

    @property
    @abstractmethod
    def rate_factor(self) -> float:
        """c_1 in Corollary 1."""

    @property
    def young(self) -> float:
        """c^2 / w, the term due to the error of the hypergradient in (eq: 4): Gamma, or C ell."""
        return self.error_factor**2 / self.weight


@dataclass(frozen=True)
class Constants(Schedule):
    r"""The constants of the paper and, from them, alpha, eta, T and beta of Proposition 1.

    **Arguments:**

    - `mu`: g(x, .) is mu-strongly convex.
    - `L`: grad f and grad g are L-Lipschitz, jointly in (x, y).
    - `M`: f is M-Lipschitz. It only occurs multiplied by tau or rho: any number will do for a quadratic g.
    - `tau`, `rho`: g_xy is tau-Lipschitz and g_yy is rho-Lipschitz.

    >>> c = Constants(mu=0.1, L=1.0, M=1.0, tau=0.0, rho=0.0)
    >>> c.T, round(c.L_Phi, 6), round(c.Gamma), round(1 / c.beta)
    (12, 121.0, 10398, 21237)
    """

    M: float
    tau: float
    rho: float

    @property
    def L_Phi(self) -> float:
        """Lemma 1 as printed. Its term tau M^2 / mu should be tau M / mu (see `L_Phi_corrected`), and is too small for
        M < 1.
        """
        return self.L_Phi_corrected + self.tau * (self.M**2 - self.M) / self.mu

    @property
    def L_Phi_corrected(self) -> float:
        """(1 + kappa) C with C = L + L^2/mu + tau M/mu + rho L M/mu^2: L_Phi of Lemma 1 with consistent units."""
        mu, L, M, tau, rho = self.mu, self.L, self.M, self.tau, self.rho
        return L + (2 * L**2 + tau * M) / mu + (rho * L * M + L**3 + tau * M * L) / mu**2 + rho * L**2 * M / mu**3

    @property
    def Gamma(self) -> float:
        """Lemma 1: |d_k - grad Phi(x_k)|^2 <= Gamma e_k^2. "O(kappa^3)" for rho = 0; O(kappa^5) otherwise."""
        slope = self.kappa + self.rho * self.M / self.mu**2
        jacobian = 3 * self.tau**2 * self.M**2 / self.mu**2
        return 3 * self.L**2 + jacobian + 6 * self.L**2 * (1 + math.sqrt(self.kappa)) ** 2 * slope**2

    @property
    def smoothness(self) -> float:
        return self.L_Phi

    @property
    def error_factor(self) -> float:
        return math.sqrt(self.Gamma)

    @property
    def solution_factor(self) -> float:
        return self.kappa

    @property
    def weight(self) -> float:
        return 1.0

    @property
    def beta(self) -> float:
        return 0.5 / (self.L_Phi + self.Gamma + self.kappa**2)

    @property
    def rate_factor(self) -> float:
        return 32.0


@dataclass(frozen=True)
class SharpConstants(Schedule):
    r"""The sharper form, from the three constants in its proof, and mu and L of g(x, .) alone.

    **Arguments:**

    - `mu`, `L`: bounds on the spectrum of g_yy.
    - `C`: the Lipschitz constant in y of (x, y) -> f_x - g_xy g_yy^-1 f_y.
    - `ell`: the Lipschitz constant of y*.
    - `L_Phi`: the Lipschitz constant of grad Phi.

    >>> c = SharpConstants(mu=0.1, L=1.0, C=1.0, ell=1.0, L_Phi=1.0)
    >>> c.T, round(1 / c.beta, 6), c.weight
    (12, 6.0, 1.0)
    """

    C: float
    ell: float
    L_Phi: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("C", "ell", "L_Phi"):
            _check.positive(name, getattr(self, name))

    # D = f_x - g_xy v with g_yy v = f_y. Between two points z, z', with v and v' there,
    # D - D' = (f_x - f_x') - (g_xy - g_xy') v - g_xy' (v - v'),   v - v' = g_yy'^-1 (f_y - f_y' - (g_yy - g_yy') v),
    # so a change of y alone costs C, a change of x alone C_x, and y* adds ell = |g_xy| / mu times C to the latter.
    @classmethod
    def from_blocks(
        cls,
        *,
        mu: float,
        L: float,
        cross: float,
        adjoint: float,
        f_xx: float = 0.0,
        f_xy: float = 0.0,
        f_yy: float = 0.0,
        tau_x: float = 0.0,
        tau_y: float = 0.0,
        rho_x: float = 0.0,
        rho_y: float = 0.0,
    ) -> "SharpConstants":
        """From bounds on the blocks: `cross` on g_xy, `adjoint` on v (M / mu always is one), `f_xx`, ... on the second
        derivatives of f, `tau_x`, ... on the Lipschitz constants of g_xy and g_yy in x and in y.

        C = f_xy + tau_y |v| + |g_xy|/mu (f_yy + rho_y |v|), C_x the same with x for y, ell = |g_xy|/mu, L_Phi = C_x +
        C ell.
        """
        ell = cross / mu
        in_y = f_xy + tau_y * adjoint + ell * (f_yy + rho_y * adjoint)
        in_x = f_xx + tau_x * adjoint + ell * (f_xy + rho_x * adjoint)
        return cls(mu, L, in_y, ell, in_x + in_y * ell)

    @property
    def smoothness(self) -> float:
        return self.L_Phi

    @property
    def error_factor(self) -> float:
        return self.C

    @property
    def solution_factor(self) -> float:
        return self.ell

    @property
    def weight(self) -> float:
        return self.C / self.ell

    @property
    def beta(self) -> float:
        return 0.5 / (self.L_Phi + 2 * self.C * self.ell)

    @property
    def rate_factor(self) -> float:
        return 11.0


def _least_power(base: float, factor: float) -> int:
    """The least T >= 1 with factor * base^T <= 1."""
    return 1 if base <= 0 else max(1, math.ceil(math.log(factor) / -math.log(base)))
