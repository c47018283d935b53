"""A run on one's own images, with a backbone: what suits it, what it is, and what it is not."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image

from domainwise.data import Dataset, Domain, image_files, silhouettes
from domainwise.errors import DomainwiseError
from domainwise.training.config import RunConfig
from domainwise.training.device import pick_device
from domainwise.training.loading import load_model
from domainwise.training.registry import DatasetCache, derive_seeds, resolve_config
from domainwise.training.trainer import RunResult, train

SHUFFLENET = "shufflenet_v2_x0_5"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))


def make_images(root: Path, count: int = 4, seed: int = 0) -> Path:
    """Three domains of two classes, `count` images each."""
    generator = torch.Generator().manual_seed(seed)
    for domain in ("art", "photo", "sketch"):
        for kind in ("cat", "dog"):
            folder = root / domain / kind
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(0, 256, (12, 10, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
    return root


def save_weights(file: Path, seed: int = 0, network: str = SHUFFLENET) -> Path:
    torch.manual_seed(seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torchvision.models.get_model(network).state_dict(), file)
    return file


def photos(tmp_path: Path) -> Dataset:
    return image_files(make_images(tmp_path / "zoo"), image_size=8)


def settled(dataset: Dataset, **values: Any) -> RunConfig:
    return resolve_config(RunConfig(test_domains=("sketch",), **values), dataset)[0]


def trained(dataset: str | Path, **values: Any) -> RunResult:
    few = {"steps": 2, "record_every": 1, "batch_size": 2, "threads": 1, "device": "cpu", "algorithm": "erm"}
    options = {"image_size": 32}
    given = {"network": SHUFFLENET, "dataset_options": options, "test_domains": ("sketch",), **few, **values}
    return train(RunConfig(dataset=str(dataset), **given))


def refusal(**values: Any) -> str:
    with pytest.raises(DomainwiseError) as refused:
        RunConfig(**values)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_photos_get_a_pretrained_resnet18_with_frozen_statistics_and_views(tmp_path: Path) -> None:
    full = settled(photos(tmp_path))
    assert (full.network, full.weights, full.batch_norm, full.augment) == ("resnet18", "IMAGENET1K_V1", "frozen", True)
    assert (full.batch_size, full.steps, full.record_every) == (32, 5001, 300)
    assert full.hparams["lr"] == 5e-5


@pytest.mark.parametrize(
    ("given", "weights", "batch_norm"),
    [
        ({"network": "mobilenet_v2"}, "IMAGENET1K_V1", "frozen"),
        ({"network": "resnet50", "weights": "IMAGENET1K_V2"}, "IMAGENET1K_V2", "frozen"),
        ({"weights": "none"}, "none", "live"),
        ({"weights": "none", "batch_norm": "frozen"}, "none", "frozen"),
        ({"batch_norm": "live"}, "IMAGENET1K_V1", "live"),
        ({"weights": "mine.pth"}, "mine.pth", "frozen"),
        ({"network": "timm:resnet10t"}, "pretrained", "frozen"),
        ({"network": "timm:resnet10t", "weights": "none"}, "none", "live"),
    ],
)
def test_what_a_backbone_starts_from(given: dict[str, Any], weights: str, batch_norm: str, tmp_path: Path) -> None:
    full = settled(photos(tmp_path), **given)
    assert (full.weights, full.batch_norm) == (weights, batch_norm)


def test_a_network_without_pretraining_is_asked_for_none(tmp_path: Path) -> None:
    full = settled(photos(tmp_path), network="small_cnn")
    assert (full.weights, full.batch_norm, full.augment) == (None, None, True)
    assert settled(photos(tmp_path / "again"), network="small_cnn", weights="none").network == "small_cnn"


def test_data_that_wants_no_pretraining_gets_none(tmp_path: Path) -> None:
    dataset = silhouettes(train_count=4, test_count=2)
    own = resolve_config(RunConfig(), dataset)[0]
    assert (own.network, own.weights, own.batch_norm, own.augment) == ("small_cnn", None, None, False)
    for name in ("resnet18", "timm:resnet10t"):
        full = resolve_config(RunConfig(network=name), dataset)[0]
        assert (full.weights, full.batch_norm) == ("none", "live")
    assert resolve_config(RunConfig(augment=True), dataset)[0].augment is True
    assert settled(photos(tmp_path), augment=False).augment is False
    assert settled(photos(tmp_path / "again"), augment="strong").augment == "strong"


@pytest.mark.parametrize("network", ["small_cnn", "mnist_cnn", "mlp"])
def test_weights_for_a_network_that_takes_none_are_refused(network: str, tmp_path: Path) -> None:
    line = f"network {network} does not support weights or batch_norm; backbones do"
    assert refusal(network=network, weights="IMAGENET1K_V1") == line
    assert refusal(network=network, weights=str(tmp_path / "a.pth")) == line
    assert refusal(network=network, batch_norm="live") == line
    with pytest.raises(DomainwiseError, match=r"^network small_cnn does not support weights"):
        resolve_config(RunConfig(weights="IMAGENET1K_V1"), silhouettes(train_count=4, test_count=2))


def test_misspelt_settings_are_one_line_with_the_nearest_right_one() -> None:
    assert refusal(network="resnet81").startswith("unknown network 'resnet81'; did you mean 'resnet18'? ")
    assert "timm:NAME" in refusal(network="resnet81")
    assert refusal(network="smal_cnn").startswith("unknown network 'smal_cnn'; did you mean 'small_cnn'? ")
    assert refusal(batch_norm="froze") == "unknown batch_norm 'froze'; did you mean 'frozen'? Choices: frozen, live"


def test_weights_and_batch_norm_reach_the_network(tmp_path: Path) -> None:
    file = save_weights(tmp_path / "weights.pth")
    given = torch.load(file, weights_only=True)
    build = RunConfig(network=SHUFFLENET, weights=str(file), batch_norm="frozen").network_builder()
    network = build((3, 32, 32), 2, 0.3)
    assert torch.equal(network.featurizer.get_parameter("model.conv1.0.weight"), given["conv1.0.weight"])
    assert not network.featurizer.get_submodule("model.conv1.1").training
    assert network.featurizer.get_submodule("dropout").p == 0.3
    plain = RunConfig(network=SHUFFLENET).network_builder()((3, 32, 32), 2, 0.0)
    assert plain.featurizer.get_submodule("model.conv1.1").training


def test_where_data_lies_is_not_what_a_run_is() -> None:
    here, there = (RunConfig(dataset="pacs", data_dir=place) for place in ("/here", Path("there")))
    assert here.identity() == there.identity()
    assert here.folder() == there.folder()
    assert "data_dir" not in here.identity()
    assert {"weights", "batch_norm", "augment"} <= here.identity().keys()


@pytest.mark.parametrize(
    "change", [{"weights": "DEFAULT"}, {"batch_norm": "live"}, {"augment": False}, {"augment": "strong"}]
)
def test_weights_batch_norm_and_views_are_what_a_run_is(change: dict[str, Any]) -> None:
    common: dict[str, Any] = {
        "network": "resnet18",
        "weights": "IMAGENET1K_V1",
        "batch_norm": "frozen",
        "augment": True,
    }
    one, other = RunConfig(**common), RunConfig(**{**common, **change})
    assert one.identity() != other.identity()
    assert one.folder() != other.folder()


def test_a_weights_file_is_its_content_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save_weights(tmp_path / "one" / "w.pth")
    (tmp_path / "two").mkdir()
    copied = Path(shutil.copy(first, tmp_path / "two" / "w.pth"))
    other = save_weights(tmp_path / "three" / "w.pth", seed=1)
    monkeypatch.chdir(tmp_path / "two")
    names = ["w.pth", "../one/w.pth", str(first), str(copied)]
    same = [RunConfig(network=SHUFFLENET, weights=name).identity() for name in names]
    assert all(identity == same[0] for identity in same)
    assert same[0]["weights"].startswith("w.pth sha256:")
    assert RunConfig(network=SHUFFLENET, weights=str(other)).identity() != same[0]


def test_a_run_goes_on_with_the_same_weights_from_elsewhere_and_not_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, output = make_images(tmp_path / "zoo"), tmp_path / "run"
    file = save_weights(tmp_path / "w.pth")
    first = trained(root, weights=str(file), output=output)
    written = (output / "last.safetensors").read_bytes()
    monkeypatch.chdir(tmp_path)
    again = trained("./zoo", weights="w.pth", output=output)
    assert again.records == first.records
    assert (output / "last.safetensors").read_bytes() == written
    save_weights(file, seed=1)
    with pytest.raises(DomainwiseError, match=r"contains a different run: weights is \"w\.pth sha256:[^\n]*$"):
        trained(root, weights=str(file), output=output)


def test_a_folder_of_images_is_the_same_run_however_it_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_images(tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    configs = [RunConfig(dataset=name, test_domains=("photo",)) for name in (str(root), "zoo", "./zoo", "zoo/art/..")]
    dataset = image_files(root, image_size=8)
    assert {config.dataset_name for config in configs} == {"zoo"} == {dataset.name}
    assert all(config.identity() == configs[0].identity() for config in configs)
    assert len({derive_seeds(config, dataset) for config in configs}) == 1
    assert len({config.folder() for config in configs}) == 1


def test_a_dot_in_the_name_of_a_folder_is_part_of_it(tmp_path: Path) -> None:
    names = []
    for name in ("zoo.v1", "zoo.v2"):
        root = make_images(tmp_path / name)
        config = RunConfig(dataset=str(root))
        assert config.dataset_name == image_files(root, image_size=8).name
        names.append(config.dataset_name)
    assert names[0] != names[1]


def test_a_csv_file_is_named_without_its_ending(tmp_path: Path) -> None:
    root = make_images(tmp_path / "zoo")
    lines = [f"{file},{file.parent.name},{file.parent.parent.name}" for file in sorted(root.glob("*/*/*.png"))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,label,domain", *lines]))
    assert RunConfig(dataset=str(table)).dataset_name == "table" == image_files(table, image_size=8).name


def test_the_same_words_from_another_folder_are_another_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, datasets = [], DatasetCache()
    for number, place in enumerate(("here", "there")):
        make_images(tmp_path / place / "zoo", count=number + 1)
        monkeypatch.chdir(tmp_path / place)
        dataset = datasets.build(RunConfig(dataset="./zoo", dataset_options={"image_size": 8}))
        found.append(len(dataset.domains[0]))
    assert found == [2, 4]


@pytest.mark.parametrize("network", [SHUFFLENET, "mnasnet0_5", "timm:test_resnet"])
def test_a_model_is_loaded_without_its_weights_file_and_its_data(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if network.startswith("timm:"):
        timm = pytest.importorskip("timm", reason="timm is an optional dependency")
        torch.manual_seed(0)
        torch.save(timm.create_model(network.removeprefix("timm:")).state_dict(), tmp_path / "w.pth")
    else:
        save_weights(tmp_path / "w.pth", network=network)
    root = make_images(tmp_path / "zoo")
    result = trained(root, network=network, weights=str(tmp_path / "w.pth"), output=tmp_path / "run")
    for place in (root, tmp_path / "cache"):
        shutil.rmtree(place)
    (tmp_path / "w.pth").unlink()
    model = load_model(result.folder, "last")
    assert not model.training
    assert not any(part.training for part in model.modules())
    logits = model(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (2, 2)
    assert logits.isfinite().all()
    model.train()
    # Frozen it was, and frozen it comes back.
    norms = [part for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert norms
    assert not any(part.training for part in norms)


def test_another_data_folder_is_another_dataset(tmp_path: Path) -> None:
    def of_folder(seed: int, data_dir: Path) -> Dataset:
        size = int(data_dir.name)
        images = torch.zeros(1, 3, size, size, dtype=torch.uint8)
        return Dataset("squares", ("all", "none"), (Domain("only", images, torch.zeros(1, dtype=torch.int64)),))

    datasets = DatasetCache()
    configs = [RunConfig(dataset=of_folder, data_dir=tmp_path / side) for side in ("4", "5")]
    shapes = [datasets.build(config).image_shape for config in configs]
    assert shapes == [(3, 4, 4), (3, 5, 5)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 10**20}, "threads must be at most 1024, got 1"),
        ({"steps": 10**20}, r"steps must be at most 2.14748e\+09, got 1"),
        ({"batch_size": 2**31}, "batch_size must be at most"),
        ({"sam_radius": 1e300}, r"sam_radius must be at most 1e\+30, got 1e\+300"),
        ({"attack_radius": 1e300}, r"attack_radius must be at most 1e\+30, got 1e\+300"),
        ({"attack_radius": "1e300 rms"}, "attack_radius must be at most"),
        ({"hparams": {"epsilon": 1e300}}, r"epsilon must be at most 1e\+30, got 1e\+300"),
        ({"hparams": {"epsilon": "1e300"}}, "epsilon must be at most"),
        ({"hparams": {"lr": float("inf")}}, "lr must be at most"),
    ],
    ids=str,
)
def test_numbers_that_torch_cannot_hold_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        RunConfig(**settings)


@pytest.mark.parametrize("name", ["gpu", "cuda:0", "CUDA", ""])
def test_an_unknown_device_is_one_line_with_the_choices(name: str) -> None:
    with pytest.raises(DomainwiseError, match=rf"unknown device '{name}'.* Choices: auto, cpu, cuda, mps"):
        pick_device(name)
    with pytest.raises(DomainwiseError, match=rf"unknown device '{name}'.* Choices: auto, cpu, cuda, mps"):
        RunConfig(device=name)  # type: ignore[arg-type]
