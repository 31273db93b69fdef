r"""Estimates of the gradient of Phi(x) = f(x, y*(x)).

By the implicit function theorem, with everything at (x, y*(x)),

    grad Phi = f_x - g_xy v,     g_yy v = f_y.                                                (the paper's (AID))

`AID` and `ITD` do a fixed amount of work; `Implicit` and `Penalty` work until their error is small beside their size.
"""

from proxbi.hypergradient._controlled import ControlledHypergradient as ControlledHypergradient
from proxbi.hypergradient._controlled import Evaluation as Evaluation
from proxbi.hypergradient._controlled import Outcome as Outcome
from proxbi.hypergradient._fixed import AID as AID
from proxbi.hypergradient._fixed import ITD as ITD
from proxbi.hypergradient._fixed import Hypergradient as Hypergradient
from proxbi.hypergradient._fixed import HypergradientEstimate as HypergradientEstimate
from proxbi.hypergradient._fixed import one_step as one_step
from proxbi.hypergradient.implicit import Implicit as Implicit
from proxbi.hypergradient.penalty import Penalty as Penalty
