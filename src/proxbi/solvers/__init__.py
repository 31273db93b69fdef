"""Outer solvers, one file for each published algorithm."""

from proxbi.solvers._base import Fault as Fault
from proxbi.solvers._base import Info as Info
from proxbi.solvers._base import Solver as Solver
from proxbi.solvers._base import traced_step as traced_step
from proxbi.solvers.adaptive import AdaptiveProxBiO as AdaptiveProxBiO
from proxbi.solvers.adaptive import PenaltyProxBiO as PenaltyProxBiO
from proxbi.solvers.prox_bio import PAPER_SOLVERS as PAPER_SOLVERS
from proxbi.solvers.prox_bio import ProxBiO as ProxBiO
from proxbi.solvers.prox_bio import paper_solver as paper_solver
from proxbi.solvers.stochastic import BLOCK as BLOCK
from proxbi.solvers.stochastic import Minibatch as Minibatch
from proxbi.solvers.stochastic import OnBatches as OnBatches
from proxbi.solvers.stochastic import ProxF2SA as ProxF2SA
from proxbi.solvers.stochastic import ProxSABA as ProxSABA
from proxbi.solvers.stochastic import ProxSOBA as ProxSOBA
from proxbi.solvers.stochastic import ProxSRBA as ProxSRBA
