"""The benchmark's rules once more, in plain Python and word by word, and random sweeps to try them on."""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

Record = dict[str, Any]
Cell = tuple[str, str, str, int]


class Choice(NamedTuple):
    draw: int
    step: int
    accuracy: float


def choose(records: Sequence[Record], selection: str) -> dict[Cell, Choice]:
    """What is chosen for each (dataset, algorithm, test domain, trial) that anything can be chosen for."""
    if selection == "one_standard_error":
        return choose_largest_radius(records)
    chosen = {}
    for cell in sorted({cell for record in records for cell in cells_of(record)}):
        best = None
        for draw in sorted({record["hparams_seed"] for record in records}):
            scored = {
                "training_domain": by_training_domains,
                "attacked_holdout": by_attacked_training_domains,
                "leave_one_out": by_domains_left_out,
                "test_domain": by_last_step,
                "ood_validation": by_validation_domains,
            }[selection](records, cell, draw)
            of_draw = None
            for step in sorted(scored):
                if of_draw is None or scored[step][0] > of_draw[0]:
                    of_draw = (scored[step][0], Choice(draw, step, scored[step][1]))
            # Draws come in order, so that of equal ones the largest stays.
            if of_draw is not None and (best is None or of_draw[0] >= best[0]):
                best = of_draw
        if best is not None:
            chosen[cell] = best[1]
    return chosen


def choose_largest_radius(records: Sequence[Record]) -> dict[Cell, Choice]:
    """The largest radius within one standard error of the best draw, each draw at its best step.

    The sizes of the holdouts are unknown here, so the error is that of a mean over the training domains.
    """
    chosen = {}
    for cell in sorted({cell for record in records for cell in cells_of(record)}):
        draws = []
        for draw in sorted({record["hparams_seed"] for record in records}):
            own = {record["step"]: record for record in records if is_of(record, cell, draw)}
            scored = by_training_domains(records, cell, draw)
            if scored:
                step = min(scored, key=lambda step: (-scored[step][0], step))
                draws.append((scored[step][0], draw, step, own[step]))
        if not draws:
            continue
        highest, _, _, best = max(draws, key=lambda each: each[:2])
        holdouts = [best["accuracy"][name]["holdout"] for name in best["train_domains"]]
        error = 0.0
        if len(holdouts) > 1:
            squares = [(value - mean(holdouts)) ** 2 for value in holdouts]
            error = (sum(squares) / (len(squares) - 1)) ** 0.5 / len(squares) ** 0.5
        close = [each for each in draws if each[0] >= highest - error - 1e-9]
        _, draw, step, record = max(close, key=lambda each: (each[3]["hparams"].get("epsilon", 0.0), *each[:2]))
        chosen[cell] = Choice(draw, step, record["accuracy"][cell[2]]["main"])
    return chosen


def cells_of(record: Record) -> list[Cell]:
    if record["roles"] == "left_out" and len(record["test_domains"]) != 1:
        return []
    return [(record["dataset"], record["algorithm"], domain, record["trial_seed"]) for domain in record["test_domains"]]


def is_of(record: Record, cell: Cell, draw: int) -> bool:
    return cell in cells_of(record) and record["hparams_seed"] == draw


def by_training_domains(
    records: Sequence[Record], cell: Cell, draw: int, part: str = "holdout"
) -> dict[int, tuple[float, float]]:
    scored = {}
    for record in records:
        if is_of(record, cell, draw):
            holdouts = [record["accuracy"][name].get(part) for name in record["train_domains"]]
            if None not in holdouts:
                scored[record["step"]] = (mean(holdouts), record["accuracy"][cell[2]]["main"])
    return scored


def by_attacked_training_domains(records: Sequence[Record], cell: Cell, draw: int) -> dict[int, tuple[float, float]]:
    return by_training_domains(records, cell, draw, "attacked")


def by_domains_left_out(records: Sequence[Record], cell: Cell, draw: int) -> dict[int, tuple[float, float]]:
    dataset, algorithm, domain, trial = cell
    scored = {}
    for single in records:
        if not is_of(single, cell, draw):
            continue
        left_out = []
        for other in single["accuracy"]:
            for pair in records:
                of = (pair["dataset"], pair["algorithm"], pair["trial_seed"], pair["hparams_seed"], pair["step"])
                if (
                    of == (dataset, algorithm, trial, draw, single["step"])
                    and len(pair["test_domains"]) == 2
                    and set(pair["test_domains"]) == {domain, other}
                ):
                    left_out.append(pair["accuracy"][other]["main"])
        if len(left_out) == len(single["accuracy"]) - 1:
            scored[single["step"]] = (mean(left_out), single["accuracy"][domain]["main"])
    return scored


def by_last_step(records: Sequence[Record], cell: Cell, draw: int) -> dict[int, tuple[float, float]]:
    own = [record for record in records if is_of(record, cell, draw)]
    if not own:
        return {}
    last = max(own, key=lambda record: record["step"])
    accuracy = last["accuracy"][cell[2]]
    return {last["step"]: (accuracy["holdout"], accuracy["main"])} if "holdout" in accuracy else {}


def by_validation_domains(records: Sequence[Record], cell: Cell, draw: int) -> dict[int, tuple[float, float]]:
    return {
        record["step"]: (
            mean([record["accuracy"][name]["main"] for name in record["validation_domains"]]),
            record["accuracy"][cell[2]]["main"],
        )
        for record in records
        if is_of(record, cell, draw) and record["validation_domains"]
    }


def mean(values: Iterable[float]) -> float:
    # No `sum`: newer Pythons round its result in a better way than numpy does, and DomainBed uses numpy.
    total, count = 0.0, 0
    for value in values:
        total, count = total + value, count + 1
    return total / count


def percent(accuracies: Sequence[float]) -> tuple[float, float]:
    """Mean and error in points: the standard deviation with ddof 0, over the root of the number of trials."""
    middle = mean(accuracies)
    variance = mean([(accuracy - middle) ** 2 for accuracy in accuracies])
    return 100 * middle, 100 * variance**0.5 / len(accuracies) ** 0.5


def domain_cells(chosen: dict[Cell, Choice]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """By (dataset, algorithm, test domain): mean and error over trials."""
    places = {cell[:3] for cell in chosen}
    return {place: percent([chosen[cell].accuracy for cell in chosen if cell[:3] == place]) for place in places}


def averages(chosen: dict[Cell, Choice]) -> dict[tuple[str, str], tuple[float, float]]:
    """By (dataset, algorithm): a trial's mean over its test domains, then mean and error over trials."""
    found = {}
    for place in {cell[:2] for cell in chosen}:
        trials = sorted({cell[3] for cell in chosen if cell[:2] == place})
        by_trial = [
            mean([chosen[cell].accuracy for cell in sorted(chosen) if cell[:2] == place and cell[3] == trial])
            for trial in trials
        ]
        found[place] = percent(by_trial)
    return found


def record(
    step: int,
    accuracy: dict[str, tuple[float | None, float | None]],
    tested: Sequence[str],
    *,
    algorithm: str = "erm",
    draw: int = 0,
    trial: int = 0,
    dataset: str = "pacs",
    roles: str = "left_out",
    validation: Sequence[str] = (),
) -> Record:
    """A record as a run writes it; `accuracy` is (main, holdout) by domain, and domains without another role train."""
    parts = {
        name: {part: value for part, value in zip(("main", "holdout"), pair, strict=True) if value is not None}
        for name, pair in accuracy.items()
    }
    return {
        "schema": 1,
        "step": step,
        "dataset": dataset,
        "algorithm": algorithm,
        "trial_seed": trial,
        "hparams_seed": draw,
        "train_domains": [name for name in accuracy if name not in (*tested, *validation)],
        "validation_domains": list(validation),
        "test_domains": list(tested),
        "roles": roles,
        "hparams": {"lr": 0.001},
        "accuracy": parts,
        "loss": 0.5,
        "seconds_per_step": 0.1,
    }


def random_sweep(seed: int, domains: int, draws: int, trials: int) -> list[Record]:
    """Runs that leave out one and two of the domains, some of them and some of their records missing.

    Accuracies are tenths, so that ties happen, in exact numbers and in rounded ones. One of the methods has a
    radius, and most training domains an accuracy under attack.
    """
    dice, attack_dice = random.Random(seed), random.Random(seed + 1)
    radii = [attack_dice.choice((0.1, 0.5, 2.0)) for _ in range(draws)]
    names = [f"env{index}" for index in range(domains)]
    whole = dice.random()
    records = []
    for algorithm in ("erm", "mat")[: dice.randint(1, 2)]:
        for trial in range(trials):
            for draw in range(draws):
                for tested in (*((name,) for name in names), *combinations(names, 2)):
                    if dice.random() < 0.15 * whole:
                        continue
                    for step in (0, 100, 200):
                        if dice.random() < 0.3 * whole:
                            continue
                        accuracy = {name: (tenth(dice), tenth(dice)) for name in names}
                        records.append(
                            record(
                                step,
                                accuracy,
                                dice.sample(tested, len(tested)),
                                algorithm=algorithm,
                                draw=draw,
                                trial=trial,
                                dataset="Unknown",
                            )
                        )
                        if algorithm == "mat":
                            records[-1]["hparams"]["epsilon"] = radii[draw]
                        for name in records[-1]["train_domains"]:
                            if attack_dice.random() < 0.9:
                                records[-1]["accuracy"][name]["attacked"] = tenth(attack_dice)
    dice.shuffle(records)
    return records


def tenth(dice: random.Random) -> float:
    return dice.randint(3, 6) / 10


def run_name(record: Record) -> str:
    """Of the run that a record belongs to."""
    of = (record["dataset"], record["algorithm"], *sorted(record["test_domains"]))
    return "-".join((*of, str(record["trial_seed"]), str(record["hparams_seed"])))
