"""The outcome of a recipe as tables of words, for the terminal, Markdown and a page alike."""

from collections.abc import Callable, Sequence

from domainwise.recipes.beside import Compared, ordered
from domainwise.recipes.verdict import Judged
from domainwise.reports.page.extra import WordTable
from domainwise.theory.finding import Finding


def accuracies(compared: Sequence[Compared], title: str) -> WordTable:
    """Ours, the paper's, and the difference in standard errors, for every dataset; where the test domain chose, also
    what the chosen models reach in training."""
    groups = {name: [each for each in compared if each.dataset == name] for name in ordered(compared)}
    head, rows = [""], {row: [row] for row in dict.fromkeys(each.row for each in compared)}
    for name, group in groups.items():
        columns: dict[str, Callable[[Compared], str]] = {name: lambda here: _accuracy(here.ours, here.error)}
        if any(each.training is not None for each in group):
            columns["in training"] = lambda here: "" if here.training is None else f"{here.training:.1f}"
        if any(each.paper is not None for each in group):
            columns |= {"paper": _paper, "difference": _difference}
        here = {each.row: each for each in group}
        head += columns
        for row, cells in rows.items():
            cells += [cell(here[row]) if row in here else "" for cell in columns.values()]
    return WordTable(title, tuple(head), tuple(tuple(cells) for cells in rows.values()), len(head) - 1)


def verdicts(judged: Sequence[Judged]) -> WordTable:
    rows = [(each.claim.says, each.verdict, each.why) for each in judged]
    return WordTable("What the paper says", ("claim", "verdict", "because"), tuple(rows))


def findings_in_words(found: Sequence[Finding]) -> WordTable:
    rows = [(each.claim, each.verdict, each.evidence) for each in found]
    return WordTable("What the paper says", ("claim", "verdict", "because"), tuple(rows))


def _paper(here: Compared) -> str:
    return "" if here.paper is None else _accuracy(here.paper, here.paper_error)


def _difference(here: Compared) -> str:
    if here.difference is None:
        return ""
    if here.in_errors is None:
        return f"{here.difference:+.1f}"
    # One trial has no error of its own: what is counted then is less than the whole doubt.
    whose = "errors" if here.error is not None else "of the paper's errors"
    return f"{here.difference:+.1f} ({here.in_errors:+.1f} {whose})"


def _accuracy(mean: float, error: float | None) -> str:
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"
