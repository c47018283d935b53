"""The paper's section 4.3 and appendix A as working mathematics: the problem, its exact dynamics, the bounds."""

from domainwise.theory.bounds import Shift
from domainwise.theory.claims import Finding, findings
from domainwise.theory.dynamics import descend, flow, reliance
from domainwise.theory.problem import Points, Task, easy_to_learn

__all__ = ["Finding", "Points", "Shift", "Task", "descend", "easy_to_learn", "findings", "flow", "reliance"]
