"""The paper's section 4.3 and appendix A as exact mathematics: the problem, its dynamics, the bounds, the claims."""

from domainwise.theory.bounds import Shift
from domainwise.theory.claims import ClaimCheck, check_claims
from domainwise.theory.dynamics import compute_reliance, descend, solve_flow
from domainwise.theory.problem import Points, Task, check_easy_to_learn
from domainwise.theory.report import TheoryReport, check_theory, plot_theory

__all__ = [
    "ClaimCheck",
    "Points",
    "Shift",
    "Task",
    "TheoryReport",
    "check_claims",
    "check_easy_to_learn",
    "check_theory",
    "compute_reliance",
    "descend",
    "plot_theory",
    "solve_flow",
]
