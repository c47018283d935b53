"""Listings of folders, CSV files, JSON files and NICO's split."""

import json
import os
from pathlib import Path

import pytest
from image_kinds import write_photos, write_tree
from torchvision.datasets import ImageFolder

from domainwise.data.listing import IMAGE_SUFFIXES, Listing, list_csv, list_folder, list_images, list_json
from domainwise.data.published_listings import list_nico
from domainwise.errors import DomainwiseError

REAL_DATA = Path(os.environ.get("DOMAINWISE_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def error_message(call: object, *words: object) -> str:
    with pytest.raises(DomainwiseError) as error:
        call(*words)  # type: ignore[operator]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_are_in_the_order_of_image_folder(tmp_path: Path) -> None:
    names = ["b.jpg", "a.JPG", "10.png", "9.png", "ä b.jpeg", "Z.bmp", "x.y.webp", "[1].tif", "_.ppm"]
    places = ["dog", "dog/sub", "dog/sub/deeper", "dog/sub-2", "dog/sub 1", "Cat", "cat", "giraffe & co"]
    for domain in ("photo", "Art"):
        for place in places:
            touch(*(tmp_path / domain / place / name for name in names))
            touch(tmp_path / domain / place / "notes.txt")
    listing = list_folder(tmp_path)
    assert [domain.name for domain in listing.domains] == ["Art", "photo"]
    for domain in listing.domains:
        theirs = ImageFolder(str(tmp_path / domain.name))
        assert list(listing.classes) == theirs.classes
        assert [(str(file), label) for file, label in zip(domain.files, domain.labels, strict=True)] == theirs.samples
        assert len(domain.files) == len(names) * len(places)


def test_missing_class_does_not_shift_other_labels(tmp_path: Path) -> None:
    write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 1}, "night": {"ant": 1, "dog": 3}})
    listing = list_folder(tmp_path / "pets")
    assert listing.name == "pets"
    assert listing.classes == ("ant", "cat", "dog")
    assert [domain.labels for domain in listing.domains] == [(1, 1, 2), (0, 2, 2, 2)]
    assert listing.count_images() == [[0, 2, 1], [1, 0, 3]]
    assert listing.describe_missing_classes() == [
        "domain 'day' of pets has no image of class 'ant'",
        "domain 'night' of pets has no image of class 'cat'",
    ]
    assert [domain.role for domain in listing.domains] == [None, None]


def test_complete_dataset_has_no_missing_classes(tmp_path: Path) -> None:
    assert (
        list_folder(write_tree(tmp_path, {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 1}})).describe_missing_classes()
        == []
    )


def test_listing_has_the_name_of_its_folder_or_the_given_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_tree(tmp_path / "my images", {"a": {"x": 1, "y": 1}}))
    assert list_folder(Path(".")).name == "my images"
    assert list_folder(Path("."), "pacs").name == "pacs"
    (tmp_path / "link").symlink_to("my images")
    assert list_folder(tmp_path / "link").name == "link"
    assert list_folder(tmp_path / "link" / ".." / "link/").name == "link"


def test_hidden_folders_and_other_files_are_ignored(tmp_path: Path) -> None:
    wanted, other = tmp_path / "day" / "cat" / "1.jpg", tmp_path / "day" / "dog" / "1.jpg"
    touch(wanted, other)
    touch(
        *(tmp_path / ".git" / "objects" / "1.jpg", tmp_path / "__MACOSX" / "day" / "1.jpg", tmp_path / "read me.jpg"),
        *(tmp_path / "day" / ".thumbnails" / "1.jpg", tmp_path / "day" / "__pycache__" / "1.jpg"),
        *(wanted.parent / ".ipynb_checkpoints" / "1-checkpoint.jpg", wanted.parent / "__MACOSX" / "2.jpg"),
        *(wanted.with_name("._1.jpg"), wanted.with_name("1.json"), wanted.with_name("1.jpg.txt")),
        *(wanted.with_name("Thumbs.db"), wanted.with_name("jpg")),
    )
    listing = list_folder(tmp_path)
    assert listing.classes == ("cat", "dog")
    assert [(domain.name, domain.files) for domain in listing.domains] == [("day", (wanted, other))]


def test_suffixes_are_case_insensitive(tmp_path: Path) -> None:
    touch(*(tmp_path / "a" / "x" / f"1{suffix}" for suffix in IMAGE_SUFFIXES))
    touch(*(tmp_path / "a" / "y" / f"2{suffix.upper()}" for suffix in IMAGE_SUFFIXES))
    assert len(list_folder(tmp_path).domains[0].files) == 2 * len(IMAGE_SUFFIXES)


@pytest.mark.parametrize("link", ["root/a", "root/a/x", "root/a/x/below"])
def test_symlinked_folders_are_followed(tmp_path: Path, link: str) -> None:
    write_photos(tmp_path / "elsewhere" / "x" / "below", 2)
    write_photos(tmp_path / "elsewhere" / "y", 1)
    write_photos(tmp_path / "root" / "b" / "y", 1)
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "elsewhere" / Path(link).relative_to("root/a"))
    domain, _ = list_folder(tmp_path / "root").domains
    below = tmp_path / "root" / "a" / "x" / "below"
    assert domain.files[:2] == (below / "000.png", below / "001.png")


def test_empty_domain_raises(tmp_path: Path) -> None:
    write_tree(tmp_path, {"day": {"cat": 1}})
    (tmp_path / "night" / "cat").mkdir(parents=True)
    message = error_message(list_folder, tmp_path)
    assert message == f"domain 'night' has no images in {tmp_path / 'night'}: remove the folder or fill it"


def test_images_without_class_folder_raise(tmp_path: Path) -> None:
    write_tree(tmp_path, {"day": {"cat": 1}})
    touch(tmp_path / "night" / "1.JPG")
    message = error_message(list_folder, tmp_path)
    assert "domain 'night'" in message
    assert "its images are not in class folders; images are expected at root/domain/class/image" in message


def test_class_folders_without_domain_raise(tmp_path: Path) -> None:
    touch(tmp_path / "cat" / "1.jpg", tmp_path / "dog" / "1.jpg")
    message = error_message(list_folder, tmp_path)
    assert message == (
        f"no images found in {tmp_path}: images are expected at root/domain/class/image; if its folders are classes, "
        f"{tmp_path} is one domain, and the dataset is the folder above it"
    )


def test_empty_folder_raises(tmp_path: Path) -> None:
    assert error_message(list_folder, tmp_path).startswith(f"no images found in {tmp_path}: ")


def test_missing_folder_raises(tmp_path: Path) -> None:
    missing = tmp_path / "no such"
    assert error_message(list_folder, missing) == f"folder {missing} could not be read: No such file or directory"
    assert (
        error_message(list_images, missing)
        == f"{missing} not found; expected a folder of images, a CSV file or a JSON file"
    )


def test_unreadable_folder_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, {"a": {"x": 1}})
    scan = os.scandir

    def refuse(folder: str) -> object:
        if str(folder).endswith("x"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert error_message(list_folder, tmp_path) == f"folder {tmp_path / 'a' / 'x'} could not be read: Permission denied"


PETS = {"day": {"cat": 2, "dog": 2}, "night": {"cat": 2, "dog": 2}}


def list_names(listing: Listing, root: Path) -> list[str]:
    return [str(file.relative_to(root)) for domain in listing.domains for file in domain.files]


@pytest.mark.parametrize("target", [".", "../cat", "../cat/below", "below"])
def test_folder_that_a_link_repeats_is_listed_once(tmp_path: Path, target: str) -> None:
    root = write_tree(tmp_path / "pets", PETS)
    write_photos(root / "day" / "cat" / "below", 2)
    intact = list_folder(root)
    (root / "day" / "cat" / "repeated").symlink_to(target)
    with pytest.warns(UserWarning, match="repeated is left out: it leads to a folder that is already listed"):
        assert list_folder(root) == intact


def test_two_links_to_each_other_end(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", PETS)
    for one, other in (("a", "b"), ("b", "a")):
        write_photos(tmp_path / one, 1)
        (tmp_path / one / "next").symlink_to(tmp_path / other)
    (root / "day" / "cat" / "a").symlink_to(tmp_path / "a")
    with pytest.warns(UserWarning, match="a/next/next is left out"):
        files = list_names(list_folder(root), root)
    assert [file for file in files if "cat/a" in file] == ["day/cat/a/000.png", "day/cat/a/next/000.png"]


@pytest.mark.parametrize(
    ("link", "target", "more"),
    [
        ("day/cat/loop", "../..", 5),  # the other class and the other domain
        ("day/cow", "cat", 1),
        ("dusk", "day", 3),
        ("day/cat/again.png", "000.png", 0),
        ("night/dog/again.png", "../../day/cat/001.png", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is left out")
def test_file_that_is_listed_twice_raises(tmp_path: Path, link: str, target: str, more: int) -> None:
    root = write_tree(tmp_path / "pets", PETS)
    (root / link).symlink_to(target)
    message = error_message(list_folder, root)
    assert (
        f" are the same file{f' (+{more} more)' if more else ''}; an image may occur in a dataset only once" in message
    )


def test_links_to_distinct_files_are_a_dataset(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", PETS)
    store = tmp_path / "store"
    store.mkdir()
    intact = list_folder(root)
    for number, file in enumerate(sorted(root.rglob("*.png"), reverse=True)):
        file.rename(store / str(number))
        file.symlink_to(store / str(number))
    assert list_folder(root) == intact


def test_hard_links_are_files_of_their_own(tmp_path: Path) -> None:
    """Tools that save space make hard links of equal files, and a copy of the folder has none."""
    root = write_tree(tmp_path / "pets", PETS)
    os.link(root / "day" / "cat" / "000.png", root / "day" / "cat" / "again.png")
    assert list_folder(root).count_images() == [[3, 2], [2, 2]]


def test_office_31_as_published_is_a_dataset(tmp_path: Path) -> None:
    root = tmp_path / "office31"
    for domain in ("amazon", "dslr", "webcam"):
        touch(*(root / domain / "images" / kind / "frame_0001.jpg" for kind in ("bike", "mug")))
    listing = list_folder(root)
    assert listing.classes == ("bike", "mug")
    assert [(domain.name, domain.labels) for domain in listing.domains] == [
        (name, (0, 1)) for name in ("amazon", "dslr", "webcam")
    ]
    assert listing.domains[0].files[1] == root / "amazon" / "images" / "mug" / "frame_0001.jpg"


@pytest.mark.parametrize("inner", ["", "images/"])
@pytest.mark.parametrize("outer", ["office31", "sets/office31", "a/b/c/office31"])
def test_folder_above_the_domains_raises_with_the_right_root(tmp_path: Path, outer: str, inner: str) -> None:
    root = tmp_path / outer
    for domain in ("amazon", "dslr", "webcam"):
        touch(*(root / f"{domain}/{inner}{kind}/frame_0001.jpg" for kind in ("bike", "mug")))
    assert error_message(list_folder, tmp_path) == (
        f"{tmp_path} has one folder with domains in it: images are expected at root/domain/class/image; "
        f"did you mean {root}?"
    )


def test_folder_of_several_datasets_raises(tmp_path: Path) -> None:
    for name, domains in (("office31", ("amazon", "webcam")), ("sets/pacs", ("photo", "sketch"))):
        touch(*(tmp_path / name / domain / kind / "1.jpg" for domain in domains for kind in ("bike", "dog")))
    assert error_message(list_folder, tmp_path) == (
        f"{tmp_path} has folders with domains in them: images are expected at root/domain/class/image; "
        f"did you mean {tmp_path / 'office31'}?"
    )


def test_skipped_files_are_counted_by_suffix(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", PETS)
    assert list_folder(root).count_skipped_files() == {}
    write_photos(tmp_path / "elsewhere", 1)
    touch(tmp_path / "elsewhere" / "1.HEIC")
    (root / "day" / "cat" / "link").symlink_to(tmp_path / "elsewhere")
    (root / "day" / "cat" / "loop").symlink_to("link")
    touch(
        *(root / "day" / "dog" / "2.heic", root / "day" / "3.jpg", root / "labels.txt", root / "night" / "README"),
        *(root / ".git" / "4.heic", root / "day" / "dog" / "._5.heic", root / "__MACOSX" / "6.heic"),
    )
    with pytest.warns(UserWarning, match="loop is left out") as warned:
        skipped = list_folder(root).count_skipped_files()
    assert skipped == {".heic": 2, ".jpg": 1, ".txt": 1, "without suffix": 1}
    assert len(warned) == 1


def test_lists_skip_no_files(tmp_path: Path) -> None:
    write_tree(tmp_path / "pets", PETS)
    touch(tmp_path / "1.heic")
    file = write_csv(tmp_path, "path,label,domain\npets/day/cat/000.png,cat,day\npets/day/dog/000.png,dog,day\n")
    assert list_images(file).count_skipped_files() == {}


def test_domain_in_another_format_raises(tmp_path: Path) -> None:
    write_tree(tmp_path, {"day": {"cat": 1}})
    touch(tmp_path / "night" / "cat" / "1.HEIC", tmp_path / "night" / "cat" / "2.heic")
    assert error_message(list_folder, tmp_path) == (
        f"domain 'night' has no images in {tmp_path / 'night'}: it has only other files (2 .heic); "
        f"expected {', '.join(IMAGE_SUFFIXES)}"
    )


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (("day/cat/1.jpg", "night/cat/1.jpg"), "has images of one class only, 'cat'; at least two are needed"),
        (("day/images/1.jpg", "night/images/1.jpg"), "has images of one class only, 'images'"),
        (("day/images/cat/1.jpg", "night/images/cat/1.jpg"), "has images of one class only, 'cat'"),
        (("day/cat/1.jpg", "day/dog/1.txt"), "has images of one class only, 'cat'"),
        (("day/train/cat/1.jpg", "day/Test/cat/1.jpg"), "are named Test, train: images are expected at"),
        (("day/train/1.jpg", "day/val/1.jpg"), "are named train, val: images are expected at"),
    ],
)
def test_level_too_few_or_too_many_raises(tmp_path: Path, files: tuple[str, ...], reason: str) -> None:
    touch(*(tmp_path / file for file in files))
    assert reason in error_message(list_folder, tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        ("day/cat/a/1.jpg", "day/dog/b/1.jpg"),
        ("day/cat/images/1.jpg", "day/dog/images/1.jpg"),
        ("day/cat/images/1.jpg", "day/dog/images/1.jpg", "night/cat/images/1.jpg", "night/dog/images/1.jpg"),
        ("day/cat/a/1.jpg", "day/cat/b/1.jpg", "day/dog/a/1.jpg", "day/dog/b/1.jpg", "night/cat/a/1.jpg"),
        (
            "day/cat/a/left/1.jpg",
            "day/cat/a/right/1.jpg",
            "day/cat/b/left/1.jpg",
            "day/cat/b/right/1.jpg",
            "day/dog/1.jpg",
        ),
        ("day/train/1.jpg", "day/bus/1.jpg"),
        ("train/cat/1.jpg", "train/dog/1.jpg", "test/cat/1.jpg", "test/dog/1.jpg"),
    ],
)
def test_folders_in_class_folders_are_allowed(tmp_path: Path, files: tuple[str, ...]) -> None:
    touch(*(tmp_path / file for file in files))
    assert len(list_folder(tmp_path).classes) == 2


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    for domain in (b"caf\xe9", b"\x1b[31mred"):
        for kind in (b"\xff", b"dog\n"):
            touch(tmp_path / os.fsdecode(domain) / os.fsdecode(kind) / os.fsdecode(b"\xfe\n.png"))
    listing = list_folder(tmp_path)
    assert listing.classes == ("dog\\n", "\\xff")
    assert [domain.name for domain in listing.domains] == ["\\x1b[31mred", "caf\\xe9"]
    assert all(file.exists() for domain in listing.domains for file in domain.files)
    touch(tmp_path / "caf\\xe9" / "dog" / "1.png")
    assert "two domains" in error_message(list_folder, tmp_path)


def write_csv(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    file = folder / "table.csv"
    file.write_bytes(text.encode(encoding))
    return file


def test_csv_classes_and_domains_are_sorted_by_name(tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where" / "4.png"
    file = write_csv(
        tmp_path,
        f"path,label,domain\nb/2.png,dog,night\nb\\sub\\1.png,cat,night\n{elsewhere},dog,day\n3.png,ant,night\n",
    )
    listing = list_csv(file)
    assert listing.name == "table"
    assert listing.classes == ("ant", "cat", "dog")
    day, night = listing.domains
    assert (day.name, day.files, day.labels) == ("day", (elsewhere,), (2,))
    assert night.files == (tmp_path / "b" / "2.png", tmp_path / "b" / "sub" / "1.png", tmp_path / "3.png")
    assert (night.name, night.labels) == ("night", (2, 1, 0))
    assert list_images(str(file)) == listing


def test_csv_ignores_bom_spaces_other_columns_and_blank_lines(tmp_path: Path) -> None:
    plain = list_csv(write_csv(tmp_path, 'path,label,domain\n"a, b.png",cat,day\nc.png,dog,day\n'))
    text = 'domain , note, path,label\r\n day, x, "a, b.png" ,cat \r\n\r\nday,, c.png, dog\r\n'
    assert list_csv(write_csv(tmp_path, text, "utf-8-sig")) == plain
    assert plain.domains[0].files == (tmp_path / "a, b.png", tmp_path / "c.png")


@pytest.mark.parametrize("column", ["path", "label", "domain"])
def test_missing_csv_column_raises(tmp_path: Path, column: str) -> None:
    head = ",".join(name for name in ("path", "label", "domain") if name != column)
    file = write_csv(tmp_path, f"{head}\na,b\n")
    assert (
        error_message(list_csv, file) == f"{file} has no column '{column}'; the first line must name path,label,domain"
    )


@pytest.mark.parametrize(
    ("row", "column"),
    [("1.png,,day", "label"), ("1.png,cat", "domain"), (",cat,day", "path"), ("1.png,  ,day", "label")],
)
def test_empty_csv_cell_raises_with_its_line(tmp_path: Path, row: str, column: str) -> None:
    file = write_csv(tmp_path, f"path,label,domain\n0.png,cat,day\n\n{row}\n2.png,cat,day\n")
    assert error_message(list_csv, file) == f"{file} has no {column} in line 4"


def test_csv_without_rows_raises(tmp_path: Path) -> None:
    assert "has no column 'path'" in error_message(list_csv, write_csv(tmp_path, ""))
    assert error_message(list_csv, write_csv(tmp_path, "path,label,domain\n")).endswith("table.csv lists no images")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_csv_that_is_not_utf8_raises(tmp_path: Path, encoding: str) -> None:
    file = write_csv(tmp_path, "path,label,domain\nhäuser.png,Haus,Tag\n", encoding)
    assert error_message(list_csv, file).startswith(f"{file} could not be read: 'utf-8' codec can't decode")


def test_csv_may_have_non_ascii_names(tmp_path: Path) -> None:
    listing = list_csv(write_csv(tmp_path, "path,label,domain\nhäuser.png,Häuser,東京\nb.png,Bäume,東京\n"))
    assert (listing.classes, listing.domains[0].name) == (("Bäume", "Häuser"), "東京")


def test_missing_csv_raises(tmp_path: Path) -> None:
    missing = tmp_path / "no.csv"
    assert error_message(list_csv, missing) == f"{missing} not found"
    assert error_message(list_images, missing) == (
        f"{missing} not found; expected a folder of images, a CSV file or a JSON file"
    )


def test_other_file_types_raise(tmp_path: Path) -> None:
    touch(tmp_path / "images.zip")
    assert "is not a folder of images, a CSV file or a JSON file" in error_message(list_images, tmp_path / "images.zip")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1.png,cat\0,day", "has a NUL byte in line 2; save it as UTF-8 text"),
        ("1\0.png,cat,day", "has a NUL byte in line 2; save it as UTF-8 text"),
        (f"1.png,{'x' * 200_000},day", "field larger than field limit"),
        ("1.png,cat,day\n2.png,cat,night", "has images of one class only, 'cat'"),
        ("1.png,cat,day\n./2/../1.png,dog,day", "are the same file"),
        ("".join(f"{n}.png,{n},{n}\n" for n in range(1001)), "has 1,001 classes in 1,001 domains"),
    ],
)
def test_unusable_csv_raises(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in error_message(list_csv, write_csv(tmp_path, f"path,label,domain\n{text}"))


def test_csv_of_many_columns_is_read(tmp_path: Path) -> None:
    extra = ",".join(f"c{n}" for n in range(10_000))
    file = write_csv(
        tmp_path, f"{extra},path,label,domain\n" + f"{',' * 10_000}1.png,cat,day\n{',' * 10_000}2.png,dog,day\n"
    )
    assert list_csv(file).classes == ("cat", "dog")


def test_repeated_csv_column_raises(tmp_path: Path) -> None:
    file = write_csv(tmp_path, "path,label,domain,label\n1.png,cat,day,dog\n")
    assert error_message(list_csv, file) == f"{file} has 2 columns named 'label'; rename or remove one"


def test_large_csv_raises_before_it_is_read(tmp_path: Path) -> None:
    file = write_csv(tmp_path, "")
    with open(file, "wb") as sparse:
        sparse.truncate(10**10)
    assert error_message(list_csv, file) == (
        f"{file} could not be read: 10,000,000,000 bytes, the limit is 256,000,000"
    )


@pytest.mark.parametrize("name", ["pipe", "pipe.csv"])
def test_fifo_is_no_dataset(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "is not a folder of images, a CSV file or a JSON file" in error_message(list_images, tmp_path / name)
    assert error_message(list_csv, tmp_path / name).endswith("could not be read: not a regular file")


def test_home_of_an_unknown_user_raises() -> None:
    assert error_message(list_images, "~nobody-here/pets") == (
        "~nobody-here/pets starts with ~nobody-here, but there is no such user; give the full path"
    )


SPLIT = {
    "train1": "bear\\on_snow\\1.jpg,bear,on_snow,animal\ncar\\on_road\\2.jpg,car,on_road,vehicle\n",
    "train2": "bear\\in_water\\3.jpg,bear,in_water,animal\n",
    "val": "car\\on_snow\\4.jpg,car,on_snow,vehicle\n",
    "test": "car\\at_sea\\5.jpg,car,at_sea,vehicle\nbear\\at_sea\\6.jpg,bear,at_sea,animal\n",
}


def write_split(root: Path, **changed: str) -> Path:
    folder = root / "mixed_split_corrected"
    folder.mkdir(parents=True)
    for name, rows in {**SPLIT, **changed}.items():
        (folder / f"env_{name}.csv").write_text(rows)
    return root


@pytest.mark.parametrize("places", [("", ""), ("animal", "vehicle"), ("animal/images", "vehicle/images")])
def test_nico_domains_and_roles_follow_the_split(tmp_path: Path, places: tuple[str, str]) -> None:
    root = write_split(tmp_path)
    animals, vehicles = (root / place for place in places)
    (animals / "bear").mkdir(parents=True)
    (vehicles / "car").mkdir(parents=True)
    listing = list_nico(root)
    assert listing.name == "nico"
    assert listing.classes == ("animal", "vehicle")
    assert [(domain.name, domain.role, domain.labels) for domain in listing.domains] == [
        ("train1", "train", (0, 1)),
        ("train2", "train", (0,)),
        ("val", "validation", (1,)),
        ("test", "test", (1, 0)),
    ]
    assert listing.domains[0].files == (animals / "bear" / "on_snow" / "1.jpg", vehicles / "car" / "on_road" / "2.jpg")


@pytest.mark.parametrize(
    "row",
    [
        *("bear\\on_snow\\9.jpg,bear,on_snow", "bear\\on_snow\\9.jpg,bear,on_snow,mineral", "", "garbage"),
        *(",bear,on_snow,animal", "/etc/9.jpg,bear,on_snow,animal", "\\9.jpg,bear,on_snow,animal"),
    ],
)
def test_damaged_nico_row_raises_with_its_line(tmp_path: Path, row: str) -> None:
    root = write_split(tmp_path, val=f"{SPLIT['val']}{row}\n")
    (root / "bear").mkdir()
    file = root / "mixed_split_corrected" / "env_val.csv"
    assert error_message(list_nico, root) == f"{file} is damaged at line 2: expected path,class,context,superclass"


def test_empty_nico_list_raises(tmp_path: Path) -> None:
    root = write_split(tmp_path, train1="", train2="", val="", test="")
    assert error_message(list_nico, root).endswith("env_train1.csv lists no images")


def test_missing_or_unreadable_nico_list_raises(tmp_path: Path) -> None:
    root = write_split(tmp_path)
    file = root / "mixed_split_corrected" / "env_test.csv"
    file.write_bytes("ä".encode("latin-1"))
    assert error_message(list_nico, root).startswith(f"{file} could not be read: ")
    file.unlink()
    assert error_message(list_nico, root) == f"{file} not found"


def test_nico_without_images_raises(tmp_path: Path) -> None:
    (tmp_path / "bear").mkdir()
    message = error_message(list_nico, write_split(tmp_path))
    assert f"{tmp_path} has the split of nico but no images" in message
    assert "folders car, ..." in message
    assert "`domainwise data prepare nico`" in message


@pytest.mark.skipif(
    not (REAL_DATA / "NICO" / "mixed_split_corrected").is_dir(),
    reason=f"NICO's split not found at {REAL_DATA}; set DOMAINWISE_DATA",
)
def test_real_nico_split_has_the_published_counts(tmp_path: Path) -> None:
    (tmp_path / "mixed_split_corrected").symlink_to(REAL_DATA / "NICO" / "mixed_split_corrected")
    (tmp_path / "bear").mkdir()
    (tmp_path / "bicycle").mkdir()
    listing = list_nico(tmp_path)
    assert [len(domain.files) for domain in listing.domains] == [1640, 1640, 400, 400]
    assert [domain.role for domain in listing.domains] == ["train", "train", "validation", "test"]
    assert listing.describe_missing_classes() == []
    files = [file for domain in listing.domains for file in domain.files]
    assert len(set(files)) == len(files)
    assert {len(file.relative_to(tmp_path).parts) for file in files} == {3}


def write_json(folder: Path, content: object) -> Path:
    file = folder / "files.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_json_lists_the_same_files_as_the_folder(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"night": {"dog": 2, "cat": 1}, "day": {"cat": 2}})
    content: dict[str, dict[str, list[str]]] = {}
    for file in sorted(root.rglob("*.*"), reverse=True):
        domain, kind, _ = file.relative_to(root).parts
        content.setdefault(domain, {}).setdefault(kind, []).insert(0, str(file.relative_to(tmp_path)))
    content["day"]["cat"][0] = str(root / "day" / "cat" / Path(content["day"]["cat"][0]).name)
    listing, folder = list_images(write_json(tmp_path, content)), list_folder(root)
    assert (listing.name, listing.classes) == ("files", ("cat", "dog"))
    assert listing.domains == folder.domains


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "lists no images"),
        ("[" * 100_000, "must be {domain: {class: [path, ...]}}"),
        ("9" * 5000, "must be {domain: {class: [path, ...]}}, not a number"),
        (["day"], "must be {domain: {class: [path, ...]}}, not a list"),
        ({"day": ["1.png"]}, "must be {domain: {class: [path, ...]}}; domain 'day' has a list"),
        ({"day": {"cat": "1.png"}}, "; class 'cat' of 'day' has a string"),
        ({"day": {"cat": [None]}}, "; the list of class 'cat' of 'day' has null"),
        ({"day": {"cat": [""]}}, "; the list of class 'cat' of 'day' has an empty path"),
        ({"day": {"cat": ["a\0.png"]}}, "has a path that no file can have: 'a\\x00.png' of class 'cat'"),
        ('{"day": {"cat": ["\\ud800.png"]}}', "has a path that no file can have: '\\ud800.png' of class 'cat'"),
        ('{"day": {"cat": ["1.png"], "cat": ["2.png"]}}', "has the key 'cat' twice; merge its two entries"),
        ({" ": {"cat": ["1.png"]}}, "has an empty name; every domain and class needs one"),
        ({"day": {"cat": []}, "x": {"cat": ["1.png"], "dog": ["2.png"]}}, "lists no images of domain 'day'"),
        ({"day": {"cat": ["1.png"]}}, "has images of one class only, 'cat'"),
        (
            {"day": {"cat": ["1.png"], "dog": ["2.png"], "cow": []}, "x": {"cat": ["3.png"], "cow": []}},
            "lists no images of class 'cow' in any domain",
        ),
        ({"day": {"cat": ["1.png"], "dog": ["./1.png"]}}, "are the same file"),
    ],
)
def test_unusable_json_raises(tmp_path: Path, content: object, reason: str) -> None:
    assert reason in error_message(list_json, write_json(tmp_path, content))


def test_missing_json_raises(tmp_path: Path) -> None:
    missing = tmp_path / "no.json"
    assert error_message(list_json, missing) == f"{missing} not found"
    assert error_message(list_images, missing).startswith(f"{missing} not found; expected ")


def test_large_json_raises_before_it_is_read(tmp_path: Path) -> None:
    file = write_json(tmp_path, "")
    with open(file, "wb") as sparse:
        sparse.truncate(10**10)
    assert "10,000,000,000 bytes, the limit is 256,000,000" in error_message(list_json, file)
