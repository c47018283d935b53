"""The outcome of a recipe as tables of words, for the terminal, Markdown and a page alike."""

from collections.abc import Sequence

from domainwise.recipes.outcome import Compared, Judged, ordered
from domainwise.reports.page.extra import WordTable
from domainwise.theory.finding import Finding


def accuracies(compared: Sequence[Compared], title: str) -> WordTable:
    """Ours, the paper's, and the difference in standard errors, for every dataset."""
    datasets = ordered(compared)
    has_paper = {name: any(each.paper is not None for each in compared if each.dataset == name) for name in datasets}
    head = ["", *(word for name in datasets for word in (name, *(("paper", "difference") if has_paper[name] else ())))]
    rows = []
    for row in dict.fromkeys(each.row for each in compared):
        cells = [row]
        for name in datasets:
            here = next((each for each in compared if (each.row, each.dataset) == (row, name)), None)
            cells += [_accuracy(here.ours, here.error) if here else ""]
            if has_paper[name]:
                cells += _beside(here)
        rows.append(tuple(cells))
    return WordTable(title, tuple(head), tuple(rows), len(head) - 1)


def verdicts(judged: Sequence[Judged]) -> WordTable:
    rows = [(each.claim.says, each.verdict, each.why) for each in judged]
    return WordTable("What the paper says", ("claim", "verdict", "because"), tuple(rows))


def findings_in_words(found: Sequence[Finding]) -> WordTable:
    rows = [(each.claim, each.verdict, each.evidence) for each in found]
    return WordTable("What the paper says", ("claim", "verdict", "because"), tuple(rows))


def _beside(here: Compared | None) -> list[str]:
    if here is None or here.paper is None or here.difference is None:
        return ["", ""]
    errors = "" if here.in_errors is None else f" ({here.in_errors:+.1f} errors)"
    return [_accuracy(here.paper, here.paper_error), f"{here.difference:+.1f}{errors}"]


def _accuracy(mean: float, error: float | None) -> str:
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"
