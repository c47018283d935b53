"""All that is found, in the order of the paper's argument."""

from domainwise.theory import claims_on_bounds, claims_on_dynamics
from domainwise.theory.finding import Finding


def findings(radius: float = 0.3, beta: float = 1.0) -> list[Finding]:
    """Every claim that was tried, for an adversary of this radius where there is one."""
    return [
        claims_on_dynamics.invariant_weight_is_logarithmic(beta),
        claims_on_dynamics.band_holds_under_the_adversary(radius, beta),
        claims_on_dynamics.reliance_is_within_theorem_2(beta),
        claims_on_bounds.printed_condition(),
        claims_on_bounds.condition_is_near_zero(),
        claims_on_bounds.falling_bound_is_a_bound(),
        claims_on_bounds.averaged_bound_is_not_monotone(),
        *claims_on_dynamics.definition_of_easy_tasks(beta),
        claims_on_dynamics.fixed_shift_slows_growth(radius, beta),
        *claims_on_dynamics.exact_adversary(radius, beta),
    ]
