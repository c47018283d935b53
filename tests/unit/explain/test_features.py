"""Features of runs: their map, what can be predicted from them, and the picture, on data with a known answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from domainwise.errors import DomainwiseError
from domainwise.explain import embed_features, explain_features, map_features, plot_features, probe_features
from domainwise.explain.features import FeatureMaps, Probe, compute_features, sample_feature_images
from domainwise.figures import render_figure
from domainwise.networks import small_cnn
from domainwise.selection.statistics import Estimate
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run

SMALL = {"train_count": 60, "test_count": 60, "shifts": [0, 8]}
CPU = torch.device("cpu")


class NoFeaturizer(nn.Module):
    """A network of one layer."""

    def __init__(self, input_shape: Sequence[int], num_classes: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * input_shape[1] * input_shape[2], num_classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def train_small(output: Path, algorithm: str = "erm", **settings: Any) -> Path:
    config = RunConfig(
        algorithm=algorithm, steps=2, batch_size=8, dataset_options=SMALL, output=output, device="cpu", **settings
    )
    return train(config).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train_small(folder / "erm")
    train_small(folder / "uat", "uat")
    return folder


def test_the_probe_knows_what_the_features_contain() -> None:
    generator = torch.Generator().manual_seed(0)
    domain, noise = torch.arange(4).repeat(50), torch.randn(200, 10, generator=generator)
    told = noise + 10 * torch.eye(4, 10)[domain]
    known, unknown = probe_features(told, domain), probe_features(noise, domain)
    assert known is not None
    assert unknown is not None
    assert (known.chance, known.accuracy.count, known.left_out) == (0.25, 200, 0)
    assert known.accuracy.mean == 1
    # Noise has no information: four standard errors around chance.
    assert abs(unknown.accuracy.mean - 0.25) < 4 * (0.25 * 0.75 / 200) ** 0.5
    assert unknown.accuracy.error == pytest.approx((0.25 * 0.75 / 200) ** 0.5, rel=0.05)
    # An accuracy of 1 has an error too, as everywhere else.
    assert known.accuracy.error == pytest.approx((201 / 202 * 1 / 202 / 200) ** 0.5)
    assert probe_features(told, domain) == known


def test_the_probe_leaves_out_rare_values_and_needs_two() -> None:
    targets = torch.tensor([0] * 10 + [1] * 6 + [2] * 4)
    features = targets[:, None].float() * torch.tensor([1.0, -1.0])
    probe = probe_features(features, targets)
    assert probe is not None
    assert (probe.accuracy.mean, probe.accuracy.count, probe.chance, probe.left_out) == (1, 16, 10 / 16, 4)
    assert probe_features(features, torch.tensor([0] * 16 + [1] * 4)) is None


def test_the_map_keeps_groups_together_and_depends_on_the_seed_only() -> None:
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(3).repeat_interleave(20)
    features = 20 * torch.eye(3, 8)[group] + torch.randn(60, 8, generator=generator)
    places = torch.from_numpy(embed_features(features, perplexity=10, seed=1))
    assert places.shape == (60, 2)
    distances = torch.cdist(places, places).fill_diagonal_(float("inf"))
    assert torch.equal(group[distances.argmin(1)], group)
    torch.manual_seed(5)
    assert torch.equal(torch.from_numpy(embed_features(features, perplexity=10, seed=1)), places)


def test_the_probe_does_not_know_the_objects_that_it_is_tested_on() -> None:
    """Fifty objects with random labels, four images each: the label follows from the object and from nothing else."""
    generator = torch.Generator().manual_seed(0)
    objects = torch.arange(50).repeat(4)
    features = torch.randn(50, 100, generator=generator)[objects]
    labels = torch.randint(2, (50,), generator=generator)[objects]
    known, unknown = probe_features(features, labels), probe_features(features, labels, groups=objects)
    assert known is not None
    assert unknown is not None
    assert known.accuracy.mean == 1
    assert unknown.accuracy.mean < 0.7


def test_images_of_one_object_are_a_group(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test domains of silhouettes have the same animals."""
    run = open_run(runs / "erm")
    given: list[Tensor] = []
    monkeypatch.setattr(
        "domainwise.explain.features.probe_features", lambda *_, groups, seed: given.append(groups.clone())
    )
    points = map_features({"erm": run}, images=1000).points.with_columns(group=pl.Series(given[0].tolist()))
    tested = points.filter(role="test")
    assert tested["group"].n_unique() == tested["image"].n_unique() < len(tested)
    assert points.filter(role="train")["group"].n_unique() == len(points) - len(tested)
    assert points["group"].n_unique() == tested["image"].n_unique() + len(points) - len(tested)


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**80])
def test_the_map_does_not_depend_on_the_scale_of_the_features(scale: float) -> None:
    features = torch.randn(60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, places = (embed_features(each, perplexity=10) for each in (features, scale * features))
    assert torch.from_numpy(places).allclose(torch.from_numpy(expected), atol=0.1)


def test_features_that_are_all_the_same_raise_an_error_and_one_feature_is_enough() -> None:
    with pytest.raises(DomainwiseError, match="the features are the same for all images"):
        embed_features(torch.ones(20, 4), perplexity=5)
    assert embed_features(torch.arange(20.0)[:, None], perplexity=5).shape == (20, 2)


def test_features_are_what_the_featurizer_returns(runs: Path) -> None:
    run = open_run(runs / "erm")
    domain, indices = run.dataset.domains[0], torch.tensor([5, 3])
    network = run.model()
    features, predicted = compute_features(network, domain, indices, CPU)
    images = domain.images[indices].float() / 255
    assert torch.allclose(features, network.featurizer(images).detach(), atol=1e-6)  # type: ignore[operator]
    assert torch.equal(predicted, network(images).argmax(1))
    assert not network.featurizer._forward_hooks


def test_images_are_of_the_holdout_and_sampled_by_the_seed(runs: Path) -> None:
    run = open_run(runs / "erm")
    chosen = sample_feature_images(run, 7, seed=3)
    assert list(chosen) == list(run.dataset.domain_names)
    for name, indices in chosen.items():
        assert len(indices) == len(set(indices.tolist())) == 7
        assert set(indices.tolist()) <= set(run.splits[name].holdout.tolist())
    again, other = (sample_feature_images(run, 7, seed=seed) for seed in (3, 4))
    assert all(torch.equal(again[name], chosen[name]) for name in chosen)
    assert any(not torch.equal(other[name], chosen[name]) for name in chosen)
    # A domain with fewer images gives all of them.
    assert {len(each) for each in sample_feature_images(run, 1000).values()} == {12}


def test_all_runs_are_mapped_on_the_same_images(runs: Path) -> None:
    reported = []
    maps = explain_features([runs], device="cpu", on_progress=lambda *task: reported.append(task))
    assert isinstance(maps, FeatureMaps)
    erm, uat = (maps.points.filter(run=name) for name in ("erm", "uat"))
    same = ["domain", "role", "image", "class"]
    assert erm.select(same).equals(uat.select(same))
    assert not erm.select("x", "y").equals(uat.select("x", "y"))
    run = open_run(runs / "erm")
    assert len(erm) == 12 * len(run.dataset.domains)
    for domain, role, image, label in erm.select(same).iter_rows():
        labels = run.dataset.domains[run.dataset.index(domain)].labels
        assert label == run.dataset.classes[labels[image]]
        assert role == ("train" if domain in run.roles.train else "test")
    assert ("features of uat, run 2 of 2", len(uat), len(uat)) in reported
    assert reported[-1] == ("t-SNE and probes", 2, 2)
    assert maps.perplexity == (len(erm) - 1) / 3 if len(erm) < 91 else 30
    again = explain_features([runs], device="cpu")
    assert again.points.equals(maps.points)
    assert (again.domain_probes, again.class_probes) == (maps.domain_probes, maps.class_probes)
    assert isinstance(plot_features(maps), Figure)


def test_runs_of_another_seed_or_other_training_domains_are_left_out(runs: Path, tmp_path: Path) -> None:
    later = train_small(tmp_path / "later", trial_seed=1)
    fewer = train_small(tmp_path / "fewer", train_domains=open_run(runs / "erm").roles.train[:1])
    with pytest.warns(UserWarning, match="2 runs left out for other training domains or trial seeds"):
        maps = explain_features([runs / "erm", later, fewer], images=5, device="cpu")
    assert list(maps.domain_probes) == ["erm"]
    same = train_small(tmp_path / "same")
    assert list(explain_features([runs / "erm", same], images=5, device="cpu").domain_probes) == ["erm", "same"]


def test_a_refit_is_mapped_on_the_holdout_of_the_others_with_a_warning(runs: Path, tmp_path: Path) -> None:
    refit = train_small(tmp_path / "refit", refit=runs / "erm")
    opened = {"refit": open_run(refit), "erm": open_run(runs / "erm")}
    with pytest.warns(UserWarning, match="^refit trained on all images of the training domains"):
        maps = map_features(opened, images=5)
    splits = opened["erm"].splits
    assert all(image in splits[domain].holdout for domain, image in maps.points.select("domain", "image").iter_rows())


def test_a_network_without_featurizer_raises_an_error(tmp_path: Path) -> None:
    run = train_small(tmp_path / "own", network=NoFeaturizer)
    with pytest.raises(DomainwiseError, match=r"^the network of the run in .*own has no featurizer"):
        explain_features([run], network=NoFeaturizer, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": 0}, "number of images must be at least 1, got 0"),
        ({"images": 2, "perplexity": 100}, r"perplexity must be at least 1 and less than the number of images \("),
        ({"perplexity": 0.5}, r"perplexity must be at least 1 .* got 0\.5"),
        ({"which": "newest"}, "unknown which 'newest'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
)
def test_errors(options: dict[str, Any], message: str, runs: Path) -> None:
    with pytest.raises(DomainwiseError, match=message):
        explain_features([runs / "erm"], **options)


def test_what_is_not_finite_raises_an_error(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_cnn((3, 32, 32), 2)
    nn.init.constant_(network.featurizer[0].bias, float("nan"))  # type: ignore[index,arg-type]
    run = open_run(runs / "erm")
    object.__setattr__(run, "model", lambda which: network)
    with pytest.raises(DomainwiseError, match="has features that are not finite"):
        map_features({"erm": run}, images=5)


def build_maps(classes: Sequence[str], runs: Sequence[str] = ("erm",)) -> FeatureMaps:
    """Return maps of 200 points in two domains, whose first classes are the most frequent."""
    labels = [classes[min(int(len(classes) * (index / 200) ** 2), len(classes) - 1)] for index in range(200)]
    points = pl.concat(
        pl.DataFrame(
            {
                "run": run,
                "domain": ["photo", "_sketch$^$"] * 100,
                "role": ["train", "test"] * 100,
                "image": range(200),
                "class": labels,
                "predicted": labels,
                "x": [float(index % 20) for index in range(200)],
                "y": [float(index // 20) for index in range(200)],
            }
        )
        for run in runs
    )
    probe = Probe(Estimate(0.875, 0.012, 200), 0.5)
    return FeatureMaps("toy$^$", tuple(classes), points, dict.fromkeys(runs, probe), dict.fromkeys(runs), None, 30.0)


def test_the_legends_stay_readable_with_many_classes() -> None:
    drawn = render_figure(plot_features(build_maps([f"class {index}" for index in range(65)])), "svg").decode()
    assert "55 other classes" in drawn
    assert drawn.count(">class ") == 10
    assert ">class 0<" in drawn
    assert "domain predictable: 87.5 ± 1.2 %" in drawn
    assert "class predictable" not in drawn
    # A name is shown as it is, though matplotlib would hide it or read it as mathematics.
    assert ">_sketch$^$ (unseen)<" in drawn
    assert ">toy$^$: t-SNE" in drawn
    assert "mean little" in drawn
    assert "other" not in render_figure(plot_features(build_maps(["cat", "dog"])), "svg").decode()


def test_unseen_domains_have_their_own_marker_and_runs_wrap() -> None:
    figure = plot_features(build_maps(["cat", "dog"], [f"run {index}" for index in range(6)]))
    assert len(figure.axes) == 12
    for panel in figure.axes:
        seen, unseen = panel.collections
        assert len(seen.get_offsets()) == len(unseen.get_offsets()) == 100  # type: ignore[arg-type]
        assert len(seen.get_paths()[0].vertices) != len(unseen.get_paths()[0].vertices)  # type: ignore[arg-type]


def test_the_table_ends_with_what_to_compare_with() -> None:
    assert build_maps(["cat", "dog"]).format_rows() == [
        ["erm", "87.5 ± 1.2", ""],
        ["the class alone", "", ""],
        ["chance", "50.0", ""],
    ]
