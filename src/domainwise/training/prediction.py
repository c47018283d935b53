"""Class probabilities of image files by the model of a run."""

import csv
import io
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from domainwise.data.decoding import UnreadableFile, decode_image, read_image_file
from domainwise.data.listing import find_images
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.escaping import escape_spreadsheet, escape_unprintable
from domainwise.storage.discovery import check_output
from domainwise.storage.hub import find_run
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.device import pick_device
from domainwise.training.loading import check_which, load_model
from domainwise.training.registry import AnyAlgorithm, AnyNetwork

FORMATS = ("csv", "json")
_BATCH_SIZE = 64


@dataclass(frozen=True)
class Prediction:
    """Probability of every class by name, or the error with which the file could not be read."""

    file: Path
    probabilities: dict[str, float]
    error: str = ""

    @property
    def label(self) -> str:
        """The most probable class, "" if the file could not be read."""
        return max(self.probabilities, key=lambda name: self.probabilities[name]) if self.probabilities else ""


def predict_images(
    run: str | Path,
    paths: Sequence[Path],
    *,
    which: Which = "best",
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> list[Prediction]:
    """Predict the classes of image files with the model of a run.

    Images are resized to the square that the model was trained on.

    Args:
        run: run folder, or `hf:owner/name`.
        paths: image files, or folders with images below them.
        which: model of the run, `best` or `last`.
        algorithm, network: the run's own class or builder, as for `load_model`.
        device: auto, cpu, cuda or mps.

    Returns:
        One prediction per file, in order.
    """
    check_which(which)
    folder = find_run(run, which)
    data = RunFolder(folder).read_config(to_open=True)["data"]
    channels, size = check_input_shape(data["input_shape"])
    torch_device = pick_device(device)
    model = load_model(folder, which, algorithm=algorithm, network=network).to(torch_device).eval()
    files = _list_files(paths)
    predictions: list[Prediction] = []
    for batch in _split(files, _BATCH_SIZE):
        images = {file: _read_image(file, channels, size) for file in batch}
        tensors = [image for image in images.values() if isinstance(image, Tensor)]
        with torch.no_grad():
            rows = iter(model(torch.stack(tensors).to(torch_device)).softmax(1).tolist() if tensors else [])
        for file, image in images.items():
            if isinstance(image, str):
                predictions.append(Prediction(file, {}, image))
            else:
                predictions.append(Prediction(file, dict(zip(data["classes"], next(rows), strict=True))))
        on_progress("predicting", len(predictions), len(files))
    return predictions


def check_input_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return channels and side length of a model's inputs; raise an error unless images can be converted to them."""
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise DomainwiseError(
            f"the model takes inputs of shape {tuple(shape)}; expected square images of 1 or 3 channels"
        )
    return shape[0], shape[1]


def _list_files(paths: Sequence[Path]) -> list[Path]:
    """List the files, and every image below the folders, each once."""
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise DomainwiseError(f"file or folder {path} not found")
        images = find_images(path) if path.is_dir() else [path]
        if not images:
            raise DomainwiseError(f"no images found in folder {path}")
        files.update(dict.fromkeys(images))
    return list(files)


def _split(files: Sequence[Path], size: int) -> Iterator[Sequence[Path]]:
    for start in range(0, len(files), size):
        yield files[start : start + size]


def _read_image(file: Path, channels: int, size: int) -> Tensor | str:
    try:
        content = read_image_file(file)
    except UnreadableFile as error:
        return str(error)
    with warnings.catch_warnings():
        # Pillow warns about odd headers; what matters here is whether the image can be decoded.
        warnings.simplefilter("ignore")
        return prepare_image(content, channels, size)


def prepare_image(content: bytes, channels: int, size: int) -> Tensor | str:
    """Return the image in a file's content as the model's input, (channels, size, size) in [0, 1], or the error."""
    image = decode_image(content, size)
    if image.pixels is None:
        return image.error
    pixels = torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).reshape(size, size, 3)
    rgb = pixels.permute(2, 0, 1).float() / 255
    return rgb if channels == 3 else rgb.mean(0, keepdim=True)


def check_prediction_format(path: Path) -> str:
    """Return the format that the suffix of `path` names: csv or json. A file of a run is an error."""
    check_output(path)
    name = path.suffix.lower().removeprefix(".")
    if name not in FORMATS:
        raise unknown_choice("prediction format", name or str(path), FORMATS)
    return name


def format_predictions(predictions: Sequence[Prediction], name: str) -> str:
    """Return predictions with the probabilities of all classes as the text of a csv or json file.

    File names that are not UTF-8 are escaped.
    """
    if name == "json":
        rows = [
            {
                "image": escape_unprintable(str(each.file)),
                "class": each.label or None,
                "probability": each.probabilities.get(each.label),
                "probabilities": each.probabilities,
                "error": each.error or None,
            }
            for each in predictions
        ]
        return json.dumps(rows, indent=1) + "\n"
    classes = list(dict.fromkeys(name for each in predictions for name in each.probabilities))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "class", "probability", *map(escape_spreadsheet, classes), "error"))
    for each in predictions:
        values = [each.probabilities.get(name) for name in classes]
        file, label, error = map(escape_spreadsheet, (str(each.file), each.label, each.error))
        writer.writerow((file, label, each.probabilities.get(each.label), *values, error))
    return text.getvalue()
