r"""Bilevel problems with everything in closed form: y*(x), Phi(x), grad Phi(x), and the constants of the theory. For
checks, demonstrations and tests.

Each `Analytic` holds a `Problem`, the three closed forms and the constants. The lower problem's Hessian has its
spectrum in [mu, L] = [1/kappa, 1] (problem E: in [2/kappa, 1 + e^2]). What depends on kappa are arrays and never
closures, so that one compiled program serves a kind of problem at every kappa. Those of `nonsmooth` are `Faces`: their
lower level has a prox, and no constants.
"""

from proxbi.analytic._base import Analytic as Analytic
from proxbi.analytic.nonlinear import ridge_hyperparameters as ridge_hyperparameters
from proxbi.analytic.nonlinear import smooth_nonquadratic as smooth_nonquadratic
from proxbi.analytic.nonsmooth import Faces as Faces
from proxbi.analytic.nonsmooth import clipped as clipped
from proxbi.analytic.nonsmooth import on_simplex as on_simplex
from proxbi.analytic.nonsmooth import soft_threshold as soft_threshold
from proxbi.analytic.quadratic import ThreeHalves as ThreeHalves
from proxbi.analytic.quadratic import kl_dial as kl_dial
from proxbi.analytic.quadratic import scalar_problem as scalar_problem
from proxbi.analytic.quadratic import sharp_minimum as sharp_minimum
from proxbi.analytic.quadratic import spectral_quadratic as spectral_quadratic
from proxbi.analytic.quadratic import stiff_quadratic as stiff_quadratic
