"""The paper's section 4.3 and appendix A as working mathematics: the problem, its exact dynamics, the bounds."""

from domainwise.theory.bounds import Shift
from domainwise.theory.dynamics import descend, flow, reliance
from domainwise.theory.easy_tasks import easy_to_learn
from domainwise.theory.finding import Finding
from domainwise.theory.findings import findings
from domainwise.theory.problem import Points, Task

__all__ = ["Finding", "Points", "Shift", "Task", "descend", "easy_to_learn", "findings", "flow", "reliance"]
