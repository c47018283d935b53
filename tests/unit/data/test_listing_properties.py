"""Any CSV file and any tree of files gives a listing or an error of one line, and nothing else."""

import json
import os
import tempfile
import warnings
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from domainwise.data.listing import Listing, list_csv, list_folder
from domainwise.errors import DomainwiseError, format_error
from domainwise.escaping import escape_unprintable

FEW = settings(max_examples=60, deadline=None)
# Rows with the right columns, so that not all files fail at their first line.
CELLS = st.text(st.characters(codec="utf-8"), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=6)
TABLES = ROWS.map(lambda rows: "\n".join(["path,label,domain", *map(",".join, rows)]).encode())
# Names that a file can have on Linux, many of them of the kinds that are treated differently.
NAMES = st.sampled_from([b"a", b"images", b"train", b"test", b".b", b"__c", b"\xff", b"d\n", b"1.png", b"2.PNG"]) | (
    st.binary(min_size=1, max_size=12).filter(lambda name: name not in (b".", b"..") and not set(name) & set(b"/\0"))
)
PATHS = st.lists(NAMES, min_size=1, max_size=5).map(b"/".join)


def assert_sound(listing: Listing) -> None:
    """What everything that uses a listing relies on."""
    names = [domain.name for domain in listing.domains]
    for each in (names, listing.classes):
        assert len(set(each)) == len(each)
        assert all(name == escape_unprintable(name) for name in each)
        json.dumps(each, ensure_ascii=False).encode()
    files = [file for domain in listing.domains for file in domain.files]
    assert len(set(files)) == len(files)
    assert all(domain.files for domain in listing.domains)
    assert len({label for domain in listing.domains for label in domain.labels}) > 1
    assert len(listing.describe_missing_classes()) == sum(row.count(0) for row in listing.count_images())


@FEW
@given(content=st.binary(max_size=200) | TABLES)
def test_any_csv_file_is_a_listing_or_one_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        file.write_bytes(content)
        try:
            assert_sound(list_csv(file))
        except DomainwiseError as error:
            line = format_error(error)
        else:
            return
        assert line == escape_unprintable(line)


@FEW
@given(
    paths=st.lists(PATHS, max_size=8),
    links=st.lists(st.tuples(PATHS, PATHS), max_size=3),
    has_classes=st.booleans(),
)
def test_any_tree_is_a_listing_or_one_error(
    paths: list[bytes], links: list[tuple[bytes, bytes]], has_classes: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = os.fsencode(folder)
        if has_classes:
            paths = [*paths, b"day/cat/1.png", b"day/dog/1.png"]
        for path in paths:
            _create(os.path.join(root, path), lambda file: open(file, "x").close())
        for path, target in links:
            _create(os.path.join(root, path), lambda file, target=target: os.symlink(os.path.join(root, target), file))
        try:
            listing = list_folder(Path(folder))
        except DomainwiseError:
            return
        assert_sound(listing)
        files = [file for domain in listing.domains for file in domain.files]
        assert len({os.path.realpath(file) for file in files}) == len(files)


def _create(path: bytes, create: object) -> None:
    """Create a file or link, unless another one is in its place."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        create(path)  # type: ignore[operator]
    except OSError:
        pass
