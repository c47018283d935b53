"""Defaults of a dataset stand above those of the fields, and below what a variant or the user says."""

from domainwise.algorithms import AT, LDAT

DATASET = {"epsilon": 0.5, "step_size": 0.5, "rank": 5}


def test_a_dataset_replaces_defaults_but_not_what_the_variant_implies() -> None:
    standard = LDAT.Hparams.build(DATASET).as_dict()
    assert (standard["epsilon"], standard["step_size"], standard["rank"]) == (0.5, None, 10)
    paper = LDAT.Hparams.build(DATASET, variant="paper").as_dict()
    assert (paper["epsilon"], paper["step_size"], paper["rank"]) == (0.5, 0.5, 5)


def test_explicit_values_take_precedence() -> None:
    explicit = LDAT.Hparams.build(DATASET, step_size=0.2, rank=3).as_dict()
    assert (explicit["step_size"], explicit["rank"]) == (0.2, 3)


def test_the_rank_of_a_dataset_is_not_meant_for_at() -> None:
    for variant in ("standard", "paper", "released"):
        assert AT.Hparams.build(DATASET, variant=variant).as_dict()["rank"] is None
