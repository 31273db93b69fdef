"""The convergence theory, executable: constants, potential, checks of every inequality, rates, `verify`."""

from proxbi.theory.checks import Check as Check
from proxbi.theory.checks import audit as audit
from proxbi.theory.checks import proposition_1 as proposition_1
from proxbi.theory.constants import Constants as Constants
from proxbi.theory.constants import Schedule as Schedule
from proxbi.theory.constants import SharpConstants as SharpConstants
from proxbi.theory.lanczos import Ritz as Ritz
from proxbi.theory.lanczos import lower_spectrum as lower_spectrum
from proxbi.theory.potential import Trace as Trace
from proxbi.theory.potential import algorithm_1 as algorithm_1
from proxbi.theory.potential import record as record
from proxbi.theory.reference import Plugged as Plugged
from proxbi.theory.reference import Reference as Reference
from proxbi.theory.reference import Repeated as Repeated
from proxbi.theory.reference import closed_forms as closed_forms
from proxbi.theory.reference import computed as computed
from proxbi.theory.report import Finding as Finding
from proxbi.theory.report import Report as Report
from proxbi.theory.verify import verify as verify
