"""Sorts Terra Incognita's images, which come in one folder, by location and animal, as their annotations say."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError

LOCATIONS = ("38", "43", "46", "100")
CATEGORIES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
_IMAGES = "eccv_18_all_images_sm"


def split_by_location(unpacked: Path) -> Path:
    """Folders `location_<number>/<category>` with copies of the images of the four locations and ten categories.

    An image that shows two of the categories is in both of their folders, as in DomainBed.
    """
    images = next((path for path in sorted(unpacked.rglob(_IMAGES)) if path.is_dir()), None)
    annotations = sorted(unpacked.rglob("*.json"))
    if images is None or not annotations:
        raise DomainwiseError(f"what was downloaded has no folder {_IMAGES} or no .json file of annotations")
    arranged = unpacked / "arranged"
    for file_name, location, category in sorted(set(_sightings(annotations))):
        image = images / file_name
        if Path(file_name).name != file_name or not image.is_file():
            raise DomainwiseError(f"the annotations name the image {file_name!r}, which is not in {_IMAGES}")
        folder = arranged / f"location_{location}" / category
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / file_name)
    if not arranged.is_dir():
        raise DomainwiseError(f"the annotations have no image of the locations {', '.join(LOCATIONS)}")
    return arranged


def _sightings(annotations: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """File name, location and category of every annotation that is of use."""
    for path in annotations:
        try:
            yield from _sightings_in(json.loads(path.read_bytes()))
        except (KeyError, TypeError, ValueError) as error:
            raise DomainwiseError(f"{path.name} is not a file of annotations as expected: {error!r}") from error


def _sightings_in(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    categories = {each["id"]: each["name"] for each in content["categories"]}
    # A number in some editions of the annotations, and text in others.
    images = {each["id"]: (each["file_name"], str(each["location"])) for each in content["images"]}
    for each in content["annotations"]:
        file_name, location = images[each["image_id"]]
        category = categories[each["category_id"]]
        if location in LOCATIONS and category in CATEGORIES:
            yield file_name, location, category
