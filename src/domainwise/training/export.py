"""Exports the model of a run to ONNX or PT2, with resizing and normalization inside the graph."""

import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import domainwise
from domainwise.errors import DomainwiseError, suggest_install
from domainwise.storage.discovery import check_output
from domainwise.storage.files import write_atomic
from domainwise.storage.hub import PREFIX, find_run
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.loading import check_which, load_model
from domainwise.training.prediction import check_input_shape, prepare_image
from domainwise.training.registry import AnyAlgorithm, AnyNetwork

# Pillow stores the weights of its resampling filters as integers: a weight of 1 is this one.
_UNIT = float(1 << 22)
_MAX_DIFFERENCE = 1e-4
_INPUT = "uint8 images (batch, height, width, 3), RGB, of any size"
# Batch, height and width of the images that an exported file is checked with: smaller and larger than the model's own,
# wide and tall, odd, a single row and a single column.
_CHECKED_SHAPES = ((1, 24, 31), (2, 240, 173), (1, 97, 301), (2, 1, 19), (1, 53, 1))

Predict = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class ExportedModel:
    """A file that `export_model` wrote.

    Args:
        size: bytes.
        classes: in the order of the probabilities.
        difference: largest absolute difference of a probability from `predict_images`, over a few random images.
    """

    path: Path
    size: int
    classes: tuple[str, ...]
    difference: float


class PillowResize(nn.Module):
    """Resizes images to a square exactly as `decode_image` does: Pillow's bilinear filter, to the bit.

    Pillow rounds the weights to integers and the pixels to bytes after each pass. Sums of such integers are exact in
    double precision in any order, so two matrix products give its very bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 images, (b, height, width, c), to whole numbers from 0 to 255, (b, c, size, size), in float64."""
        height, width = images.shape[1], images.shape[2]
        pixels = images.permute(0, 3, 1, 2).double()
        columns = _round_to_bytes(pixels @ _filter_weights(width, self.size, dim=0))
        # Not the transpose of such weights: some versions of onnxruntime fuse both, and cannot run that in float64.
        return _round_to_bytes(_filter_weights(height, self.size, dim=1) @ columns)


def _filter_weights(length: int, size: int, dim: int) -> Tensor:
    """Return the weight of each of `length` pixels in each of `size` pixels: a triangle, wider if the image shrinks.

    Args:
        dim: dimension of the `length` pixels, 0 or 1; the other one is that of the `size` pixels.
    """
    scale = torch.scalar_tensor(length, dtype=torch.float64) / size
    support = scale.clamp(min=1.0)
    centers = ((torch.arange(size, dtype=torch.float64) + 0.5) * scale).unsqueeze(dim)
    positions = (torch.arange(length, dtype=torch.float64) + 0.5).unsqueeze(1 - dim)
    triangles = (1 - (positions - centers).abs() / support).clamp(min=0.0)
    return torch.floor(triangles / triangles.sum(dim, keepdim=True) * _UNIT + 0.5)


def _round_to_bytes(sums: Tensor) -> Tensor:
    return torch.floor(sums / _UNIT + 0.5).clamp(0.0, 255.0)


class _Classifier(nn.Module):
    """Maps uint8 images, (b, height, width, 3), to probabilities, (b, num_classes), as `predict_images` does."""

    def __init__(self, model: nn.Module, channels: int, size: int) -> None:
        super().__init__()
        self.resize = PillowResize(size)
        self.model = model
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        rgb = self.resize(images).float() / 255
        probabilities: Tensor = self.model(rgb if self.channels == 3 else rgb.mean(1, keepdim=True)).softmax(1)
        return probabilities


def export_model(
    run: str | Path,
    *,
    onnx: str | Path | None = None,
    pt2: str | Path | None = None,
    which: Which = "best",
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> list[ExportedModel]:
    """Export the model of a run to files that need nothing of domainwise.

    The exported graph takes `images`, uint8, (batch, height, width, 3), RGB, of any size, and returns `probabilities`,
    (batch, num_classes), those of `predict_images`. Before a file is written, its content is run on a few random images
    and compared with `predict_images`.

    Args:
        run: run folder, or `hf:owner/name`.
        onnx: file for ONNX; needs the extra `onnx`.
        pt2: file for `torch.export.load`.
        which: model of the run, `best` or `last`.
        algorithm, network: as for `load_model`.
        on_stage: called with a description of what is about to be done.

    Returns:
        One entry per file.
    """
    if onnx is None and pt2 is None:
        raise DomainwiseError("nothing to export to; give --onnx FILE, --pt2 FILE or both")
    targets = {"ONNX": onnx, "PT2": pt2}
    paths = {kind: Path(path) for kind, path in targets.items() if path is not None}
    for path in paths.values():
        if not path.parent.is_dir():
            raise DomainwiseError(f"could not write {path}: there is no folder {path.parent}")
        check_output(path)
    if len(set(paths.values())) < len(paths):
        raise DomainwiseError(f"--onnx and --pt2 are the same file, {onnx}")
    if onnx is not None:
        _require_onnx()
    check_which(which)
    folder = RunFolder(find_run(run, which))
    data = folder.read_config(to_open=True)["data"]
    channels, size = check_input_shape(data["input_shape"])
    model = load_model(folder.path, which, algorithm=algorithm, network=network).requires_grad_(False)
    classes = tuple(data["classes"])
    facts = {
        "classes": json.dumps(classes, ensure_ascii=False),
        "run": str(run) if str(run).startswith(PREFIX) else folder.path.resolve().name,
        "model": which,
        "input": f"{_INPUT}; they are resized to {size} x {size} pixels",
        "domainwise": domainwise.__version__,
    }
    on_stage("tracing the network")
    program = _trace(_Classifier(model, channels, size))
    on_stage("predicting")
    cases = [(images, _predict(model, images, channels, size)) for images in _draw_images()]
    exported = []
    for kind, path in paths.items():
        on_stage(f"converting to {kind}")
        content = (_make_onnx if kind == "ONNX" else _make_pt2)(program, facts)
        on_stage(f"checking {path}")
        predict = (_open_onnx if kind == "ONNX" else _open_pt2)(content)
        difference = float(np.max([np.abs(predict(images) - expected).max() for images, expected in cases]))
        # NaN must not pass: np.max keeps it, and it is not below anything.
        if not difference <= _MAX_DIFFERENCE:
            raise DomainwiseError(
                f"{path} was not written: its probabilities differ from those of predict by up to {difference:.1g}"
            )
        write_atomic(path, content)
        exported.append(ExportedModel(path, len(content), classes, difference))
    return exported


def _require_onnx() -> None:
    try:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            importlib.import_module(name)
    except ImportError as error:
        raise DomainwiseError(f"export to ONNX needs {error.name}; {suggest_install('onnx')}") from error


def _trace(classifier: nn.Module) -> torch.export.ExportedProgram:
    batch, height, width = (torch.export.Dim(name, min=1) for name in ("batch", "height", "width"))
    # Sizes that occur nowhere else, so that none of them can become a constant of the graph by coincidence.
    example = torch.zeros(3, 37, 53, 3, dtype=torch.uint8)
    with _quiet("torch.export could not trace the network"):
        program = torch.export.export(
            classifier.eval(), (example,), dynamic_shapes={"images": {0: batch, 1: height, 2: width}}
        )
    # Where each node came from: the paths of this machine are nobody else's business.
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def _make_onnx(program: torch.export.ExportedProgram, facts: Mapping[str, str]) -> bytes:
    with _quiet("torch could not convert the network to ONNX"):
        converted = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: "batch", 1: "height", 2: "width"}},
        )
        assert converted is not None
        proto: Any = converted.model_proto
        # The exporter's notes about each node are a quarter of a small file.
        for node in proto.graph.node:
            del node.metadata_props[:]
        for name, value in facts.items():
            proto.metadata_props.add(key=name, value=value)
        content: bytes = proto.SerializeToString()
        return content


def _make_pt2(program: torch.export.ExportedProgram, facts: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with _quiet("torch could not save the network"):
        torch.export.save(program, content, extra_files={f"{name}.txt": value for name, value in facts.items()})
    return content.getvalue()


def _open_onnx(content: bytes) -> Predict:
    import onnxruntime  # type: ignore[import-untyped]

    with _quiet("onnxruntime could not load the network"):
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(["probabilities"], {"images": images})[0])


def _open_pt2(content: bytes) -> Predict:
    with _quiet("torch could not load the network"):
        module = torch.export.load(io.BytesIO(content)).module()

    def predict(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            probabilities: np.ndarray[Any, Any] = module(torch.from_numpy(images)).numpy()
        return probabilities

    return predict


@contextmanager
def _quiet(problem: str) -> Iterator[None]:
    """Silence what the exporters say about their own internals, and turn an error of any type into one line."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    # Some versions of onnxscript print the number of rules that they applied.
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        except Exception as error:  # torch, onnxscript and onnxruntime raise many types of errors
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise DomainwiseError(f"{problem}: {lines[0]}") from error
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _draw_images() -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in _CHECKED_SHAPES]


def _predict(model: nn.Module, images: np.ndarray[Any, Any], channels: int, size: int) -> np.ndarray[Any, Any]:
    """Return the probabilities of images by the path of `predict_images`: encoded to files, decoded and resized."""
    inputs = []
    for image in images:
        content = io.BytesIO()
        Image.fromarray(image).save(content, "PNG")
        prepared = prepare_image(content.getvalue(), channels, size)
        assert isinstance(prepared, Tensor), prepared
        inputs.append(prepared)
    with torch.no_grad():
        probabilities: np.ndarray[Any, Any] = model(torch.stack(inputs)).softmax(1).numpy()
    return probabilities
