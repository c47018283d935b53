"""The published datasets: folders, content and default settings."""

import os
from pathlib import Path

import pytest
from PIL import Image

from domainwise.data import DATASETS
from domainwise.data.dataset import assign_roles
from domainwise.data.download.sources import SOURCES
from domainwise.data.image_datasets import PUBLISHED
from domainwise.data.listing import Listing
from domainwise.data.published_listings import SPAWRIOUS
from domainwise.errors import DomainwiseError

REAL_DATA = Path(os.environ.get("DOMAINWISE_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DOMAINWISE_DATA", raising=False)


def write_images(folder: Path, *paths: str) -> None:
    for index, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (index, 100, 200)).save(folder / path)


def write_nico(root: Path) -> Path:
    rows = {
        "train1": ("bear\\on_snow\\1.png,bear,on_snow,animal", "car\\on_road\\2.png,car,on_road,vehicle"),
        "train2": ("bear\\in_water\\3.png,bear,in_water,animal", "car\\at_sea\\4.png,car,at_sea,vehicle"),
        "val": ("car\\on_snow\\5.png,car,on_snow,vehicle", "bear\\on_road\\6.png,bear,on_road,animal"),
        "test": ("car\\in_sun\\7.png,car,in_sun,vehicle", "bear\\in_sun\\8.png,bear,in_sun,animal"),
    }
    split = root / "NICO" / "mixed_split_corrected"
    split.mkdir(parents=True)
    for name, lines in rows.items():
        (split / f"env_{name}.csv").write_text("".join(f"{line}\n" for line in lines))
        write_images(root / "NICO", *(line.split(",")[0].replace("\\", "/") for line in lines))
    return root


@pytest.mark.skipif(not (REAL_DATA / "PACS").is_dir(), reason=f"PACS not found at {REAL_DATA}; set DOMAINWISE_DATA")
def test_pacs_has_the_published_counts() -> None:
    listing = PUBLISHED["pacs"].load_listing(REAL_DATA)
    assert {domain.name: len(domain.files) for domain in listing.domains} == {
        "art_painting": 2048,
        "cartoon": 2344,
        "photo": 1670,
        "sketch": 3929,
    }
    assert listing.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert listing.name == "pacs"
    assert listing.describe_missing_classes() == []


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_missing_dataset_raises_with_instructions(name: str, tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError) as error:
        PUBLISHED[name](data_dir=tmp_path)
    folder = SOURCES[name].folder
    assert str(error.value) == (
        f"dataset {name} not found at {tmp_path / folder}: run `domainwise data prepare {name}`, or set --data-dir or "
        f"$DOMAINWISE_DATA to the folder that contains {folder}"
    )


def test_published_datasets_are_in_the_table() -> None:
    assert all(DATASETS[name] is dataset for name, dataset in PUBLISHED.items())


def test_dataset_has_the_name_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "VLCS", "SUN09/bird/1.png", "SUN09/car/2.png", "LabelMe/bird/3.png", "LabelMe/car/4.png")
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    dataset = PUBLISHED["vlcs"](image_size=6)
    assert (dataset.name, dataset.domain_names, dataset.classes) == ("vlcs", ("LabelMe", "SUN09"), ("bird", "car"))
    assert (dataset.network, dataset.weights, dataset.is_augmented) == ("resnet18", "IMAGENET1K_V1", True)
    assert (dataset.record_every, dataset.holdout_fraction) == (300, 0.2)
    assert dataset.image_shape == (3, 6, 6)


def test_data_dir_overrides_the_environment_variable_for_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "one" / "PACS", "photo/dog/1.png", "photo/cat/1.png")
    write_images(tmp_path / "two" / "PACS", "sketch/dog/1.png", "sketch/cat/1.png")
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "one"))
    assert PUBLISHED["pacs"].load_listing().domains[0].name == "photo"
    assert PUBLISHED["pacs"].load_listing(tmp_path / "two").domains[0].name == "sketch"


def test_nico_has_fixed_roles_and_no_pretrained_weights(tmp_path: Path) -> None:
    dataset = PUBLISHED["nico"](data_dir=write_nico(tmp_path), image_size=6)
    assert [(domain.name, domain.role) for domain in dataset.domains] == [
        *(("train1", "train"), ("train2", "train"), ("val", "validation"), ("test", "test"))
    ]
    assert [domain.labels.tolist() for domain in dataset.domains] == [[0, 1], [0, 1], [1, 0], [1, 0]]
    assert (dataset.weights, dataset.holdout_fraction, dataset.record_every) == ("none", 0.0, 100)
    assert (dataset.network, dataset.is_augmented) == ("resnet18", True)
    assert dataset.classes == ("animal", "vehicle")


def test_broken_images_of_a_published_dataset_can_be_skipped(tmp_path: Path) -> None:
    write_nico(tmp_path)
    broken = tmp_path / "NICO" / "bear" / "on_snow" / "1.png"
    broken.write_bytes(b"")
    with pytest.raises(DomainwiseError, match="is empty"):
        PUBLISHED["nico"](data_dir=tmp_path, image_size=6)
    with pytest.warns(UserWarning, match="1 of 2 images of domain 'train1' are left out"):
        dataset = PUBLISHED["nico"](data_dir=tmp_path, image_size=6, skip_broken=True)
    assert dataset.domains[0].labels.tolist() == [1]


def test_domainnet_is_recorded_less_often(tmp_path: Path) -> None:
    write_images(
        tmp_path / "domain_net", *(f"{kind}/1.png" for kind in ("clipart/dog", "clipart/cat", "real/dog", "real/cat"))
    )
    dataset = PUBLISHED["domainnet"](data_dir=tmp_path, image_size=6)
    assert dataset.record_every == 1000
    assert dataset.weights == "IMAGENET1K_V1"


LOCATIONS = ("beach", "desert", "dirt", "jungle", "mountain", "snow")
BREEDS = ("bulldog", "corgi", "dachshund", "labrador")


def write_spawrious(root: Path, counts: dict[str, int]) -> Path:
    """All folders of Spawrious with one empty file each, or as many as `counts` says."""
    for place in (f"{group}/{location}/{breed}" for group in "01" for location in LOCATIONS for breed in BREEDS):
        folder = root / "spawrious224" / place
        folder.mkdir(parents=True)
        for index in range(counts.get(place, 1)):
            (folder / f"{index:05}.png").touch()
    return root


def places(listing: Listing, domain: str) -> dict[str, set[str]]:
    """The folders of each class."""
    files = next(each for each in listing.domains if each.name == domain)
    found: dict[str, set[str]] = {}
    for file, label in zip(files.files, files.labels, strict=True):
        found.setdefault(listing.classes[label], set()).add("/".join(Path(str(file)).parts[-4:-2]))
    return found


def test_spawrious_one_to_one_has_the_published_proportions(tmp_path: Path) -> None:
    many = {"0/desert/bulldog": 3100, "1/desert/bulldog": 3100, "0/beach/corgi": 200, "1/beach/corgi": 500}
    listing = PUBLISHED["spawrious_o2o_easy"].load_listing(write_spawrious(tmp_path, many))
    assert [(each.name, each.role) for each in listing.domains] == [
        ("Test", "test"),
        ("SC_group_1", "train"),
        ("SC_group_2", "train"),
    ]
    assert places(listing, "SC_group_2") == {
        "bulldog": {"1/desert", "1/beach"},
        "dachshund": {"1/jungle", "1/beach"},
        "labrador": {"1/dirt", "1/beach"},
        "corgi": {"1/snow", "1/beach"},
    }
    assert places(listing, "Test")["corgi"] == {"0/jungle", "1/jungle"}
    counts = dict(zip((each.name for each in listing.domains), listing.count_images(), strict=True))
    # 97 % and 87 % of 3168 in the own location, the rest in the shared one; one image is in each of the others.
    assert [counts[name][0] for name in ("SC_group_1", "SC_group_2")] == [3072 + 1, 2756 + 1]
    assert [counts[name][1] for name in ("SC_group_1", "SC_group_2")] == [1 + 96, 1 + 412]


def test_spawrious_many_to_many_exchanges_locations(tmp_path: Path) -> None:
    listing = PUBLISHED["spawrious_m2m_hard"].load_listing(write_spawrious(tmp_path, {}))
    assert places(listing, "SC_group_1") == {
        "bulldog": {"0/dirt"},
        "dachshund": {"0/jungle"},
        "labrador": {"0/snow"},
        "corgi": {"0/beach"},
    }
    assert places(listing, "SC_group_2")["bulldog"] == {"0/jungle"}
    assert places(listing, "SC_group_2")["labrador"] == {"0/beach"}
    assert places(listing, "Test")["dachshund"] == {"0/snow", "0/beach"}
    assert places(listing, "Test")["corgi"] == {"0/dirt", "0/jungle"}


@pytest.mark.parametrize("name", SPAWRIOUS)
def test_no_image_of_spawrious_is_in_two_domains(name: str, tmp_path: Path) -> None:
    listing = PUBLISHED[name].load_listing(write_spawrious(tmp_path, {}))
    files = [file for domain in listing.domains for file in domain.files]
    assert len(set(files)) == len(files)
    (tmp_path / "spawrious224" / "0" / "snow" / "corgi" / "00000.png").unlink()
    if any("0/snow" in places(listing, each.name).get("corgi", ()) for each in listing.domains):
        with pytest.raises(DomainwiseError, match=f"{name} needs images in .*corgi, and there are none"):
            PUBLISHED[name].load_listing(tmp_path)


def test_camelyon17_has_hospitals_as_domains(tmp_path: Path) -> None:
    root = tmp_path / "camelyon17_v1.0"
    rows = [("004", 4, 3328, 21792, 1, 0), ("017", 1, 10, 20, 0, 1), ("004", 4, 1, 2, 0, 0), ("017", 1, 30, 40, 1, 1)]
    write_images(
        root, *(f"patches/patient_{p}_node_{n}/patch_patient_{p}_node_{n}_x_{x}_y_{y}.png" for p, n, x, y, _, _ in rows)
    )
    lines = [f"{index},{p},{n},{x},{y},{t},0,{c},0" for index, (p, n, x, y, t, c) in enumerate(rows)]
    header = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
    (root / "metadata.csv").write_text("\n".join([header, *lines]))
    dataset = DATASETS["camelyon17"](data_dir=tmp_path, image_size=4)
    assert (dataset.domain_names, dataset.classes) == (("hospital_0", "hospital_1"), ("normal", "tumor"))
    assert [domain.labels.tolist() for domain in dataset.domains] == [[1, 0], [0, 1]]
    assert dataset.domains[0].images[:, 0, 0, 0].tolist() == [0, 2]
    (root / "metadata.csv").write_text("\n".join([header, lines[0].replace("004", "../4")]))
    with pytest.raises(DomainwiseError, match=r"metadata\.csv is damaged: expected numbers for patient, node"):
        PUBLISHED["camelyon17"].load_listing(tmp_path)


def test_fmow_has_regions_as_domains_and_no_sequestered_images(tmp_path: Path) -> None:
    root = tmp_path / "fmow_v1.1"
    rows = ["train,zoo,JPN", "seq,airport,JPN", "val,airport,FRA", "test,zoo,XXX", "train,airport,JPN", "train,zoo,ATA"]
    write_images(root, *(f"images/rgb_img_{index}.png" for index in range(len(rows))))
    (root / "rgb_metadata.csv").write_text("\n".join(["split,category,country_code", *rows]))
    (root / "country_code_mapping.csv").write_text("name,alpha-3,region\nJapan,JPN,Asia\nFrance,FRA,Europe\nAA,ATA,\n")
    with pytest.warns(UserWarning, match="has no image of class"):
        dataset = DATASETS["fmow"](data_dir=tmp_path, image_size=4)
    assert (dataset.domain_names, dataset.classes) == (("Asia", "Europe", "Other"), ("airport", "zoo"))
    assert [domain.labels.tolist() for domain in dataset.domains] == [[1, 0], [0], [1, 1]]
    # Images are numbered by all rows.
    assert [domain.images[:, 0, 0, 0].tolist() for domain in dataset.domains] == [[0, 4], [2], [3, 5]]


def test_imagenet_variants_are_for_evaluation_only(tmp_path: Path) -> None:
    write_images(tmp_path / "imagenet-r", "n01443537/a.jpg", "n01440764/b.jpg", "n01440764/c.jpg")
    dataset = DATASETS["imagenet_r"](data_dir=tmp_path, image_size=4)
    assert (dataset.classes, dataset.domain_names) == (("n01440764", "n01443537"), ("imagenet_r",))
    assert dataset.domains[0].labels.tolist() == [0, 0, 1]
    with pytest.raises(DomainwiseError, match=r"^imagenet_r is for evaluation only: it has no training domain$"):
        assign_roles(dataset)


def test_folders_of_imagenet_v2_are_positions(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    root = tmp_path / SOURCES["imagenet_v2"].folder
    write_images(root, "0/a.jpeg", "10/b.jpeg", "9/c.jpeg", "999/d.jpeg")
    listing = PUBLISHED["imagenet_v2"].load_listing(tmp_path)
    assert listing.classes == ("n01440764", "n01518878", "n01530575", "n15075141")
    assert [Path(str(file)).name for file in listing.domains[0].files] == ["a.jpeg", "c.jpeg", "b.jpeg", "d.jpeg"]
    write_images(root, "1000/e.jpeg")
    with pytest.raises(DomainwiseError, match=r"folder 1000 in .* is not a class of ImageNet; expected 0 to 999"):
        PUBLISHED["imagenet_v2"].load_listing(tmp_path)
    write_images(root, "goldfish/f.jpeg")
    with pytest.raises(DomainwiseError, match="must have one folder per class, named by WordNet id"):
        PUBLISHED["imagenet_v2"].load_listing(tmp_path)
