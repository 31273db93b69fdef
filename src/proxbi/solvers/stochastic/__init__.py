"""Solvers that use a batch of rows in each step, one file for each published method."""

from proxbi.solvers.stochastic._base import BLOCK as BLOCK
from proxbi.solvers.stochastic._base import Draws as Draws
from proxbi.solvers.stochastic._base import Linear as Linear
from proxbi.solvers.stochastic._base import OnBatches as OnBatches
from proxbi.solvers.stochastic.f2sa import ProxF2SA as ProxF2SA
from proxbi.solvers.stochastic.minibatch import Minibatch as Minibatch
from proxbi.solvers.stochastic.saba import ProxSABA as ProxSABA
from proxbi.solvers.stochastic.soba import ProxSOBA as ProxSOBA
from proxbi.solvers.stochastic.srba import ProxSRBA as ProxSRBA
