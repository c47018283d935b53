"""The model card of a run, README.md on the Hugging Face Hub, and pushing both there."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import domainwise
from domainwise.data.catalog import DESCRIPTIONS
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.reports.cells import build_grids
from domainwise.reports.formats import escape_markdown, format_markdown_table
from domainwise.reports.html.caveats import find_caveats
from domainwise.reports.html.page_data import read_page_data
from domainwise.reports.methods import flatten_settings
from domainwise.selection import SELECTIONS
from domainwise.selection.score import selection_score
from domainwise.selection.statistics import pluralize
from domainwise.storage.hub import find_run, parse_name, push_run
from domainwise.storage.run_folder import Record, RunFolder, Which
from domainwise.training.command import stored_command
from domainwise.training.config import RunConfig

WhichModels = Literal["best", "last", "all"]
_WEIGHTS: Mapping[str, tuple[Which, ...]] = {"best": ("best",), "last": ("last",), "all": ("best", "last")}
_PARTS = {"holdout": "holdout", "main": "main part", "attacked": "holdout under attack"}
_ROLES = {"train": "training", "validation": "validation (not trained on)", "test": "test (never seen)"}
# Facts about the data or the model's origin, which the text states; the others are settings of training.
_STATED = ("dataset", "algorithm", "network", "train_domains", "test_domains", "soup", "refit")
# Until there is a release. The extras are filled in.
_INSTALL = """# domainwise is not on PyPI yet. In a checkout of its source; with its wheel, pip install 'FILE.whl[{0}]':
pip install '.[{0}]'"""
_CITATION = """@inproceedings{wang2022improving,
  title     = {Improving Out-of-Distribution Generalization by Adversarial Training with Structured Priors},
  author    = {Wang, Qixun and Wang, Yifei and Zhu, Hong and Wang, Yisen},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2022}
}"""


def push_model(
    run: str | Path,
    name: str,
    *,
    which: WhichModels = "best",
    license: str | None = None,
    card: str | None = None,
    private: bool = False,
    hub: str | Path | None = None,
) -> str:
    """Push the model of a finished run to the Hugging Face Hub with a model card, for `load_model("hf:owner/name")`.

    A model that is there already is replaced, in one commit. Needs the extra `hub` and a token, or a folder as `hub`.

    Args:
        run: run folder, or `hf:owner/name`.
        name: owner/name.
        which: models of the run: `best`, `last` or `all` (both).
        license: license of the model, as the Hub abbreviates it: mit, apache-2.0, cc-by-4.0, ...
        card: text of README.md (default: `build_model_card`).
        private: create a private repository.
        hub: folder that stands in for the Hub (default: $DOMAINWISE_HUB, or the Hub itself).

    Returns:
        The address of the model, or its folder.
    """
    weights = _choose_weights(which)
    folder = find_run(run, weights[0], hub)
    text = build_model_card(folder, name, which=which, license=license) if card is None else card
    return push_run(folder, name, text, weights=weights, hub=hub, private=private)


def build_model_card(run: str | Path, name: str, *, which: WhichModels = "best", license: str | None = None) -> str:
    """Return the model card of a run, Markdown with the metadata that the Hub reads; arguments as for `push_model`."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise DomainwiseError(
            f"license must be one of the Hub's abbreviations, such as mit or apache-2.0, got {license!r}"
        )
    weights = _choose_weights(which)[0]
    facts = _Facts(RunFolder(find_run(run, weights)), parse_name(name).name, weights)
    sections = (
        ("", _describe_model(facts)),
        ("Use it", _describe_use(facts)),
        ("Accuracy", _describe_accuracy(facts)),
        ("Caveats", _format_list(_collect_caveats(facts))),
        ("Training", _describe_training(facts)),
        ("Citation", f"The methods of domainwise build on this paper:\n\n{_fence(_CITATION, 'bibtex')}"),
    )
    title = f"# {escape_markdown(facts.name.partition('/')[2])}"
    body = "\n\n".join(f"## {heading}\n\n{text}" if heading else f"{title}\n\n{text}" for heading, text in sections)
    return f"---\n{_format_yaml(_build_metadata(facts, license))}\n---\n\n{body}\n"


def _choose_weights(which: str) -> tuple[Which, ...]:
    """Return the weights to push; the card describes the first."""
    if which not in _WEIGHTS:
        raise unknown_choice("model of a run", which, _WEIGHTS)
    return _WEIGHTS[which]


@dataclass(frozen=True)
class _Facts:
    """What a card says about a run."""

    folder: RunFolder
    name: str
    which: Which

    @cached_property
    def stored(self) -> dict[str, dict[str, Any]]:
        return self.folder.read_config()

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self.stored["config"]

    @cached_property
    def data(self) -> dict[str, Any]:
        return self.stored["data"]

    @cached_property
    def record(self) -> Record:
        """The record that describes the weights."""
        records = self.folder.read_records()
        if not records:
            raise DomainwiseError(f"the run in {self.folder.path} has no records")
        # Without holdouts there is nothing to select by, and `best` is the last model. `max` returns the first of
        # equals, as training does.
        is_last = self.which == "last" or self.is_refit
        return records[-1] if is_last else max(records, key=selection_score)

    @property
    def is_refit(self) -> bool:
        return self.settings.get("refit") is not None

    @property
    def method(self) -> str:
        return str(self.record["algorithm"])

    @property
    def dataset(self) -> str:
        return str(self.record["dataset"])

    def domains(self, role: str) -> list[str]:
        return list(self.record[f"{role}_domains"])

    @property
    def custom_code(self) -> list[str]:
        """Which of `algorithm` and `network` are not part of domainwise and have to be passed to load the model."""
        names = {name: str(self.settings.get(name)) for name in ("algorithm", "network")}
        return [name for name, value in names.items() if ":" in value and not value.startswith("timm:")]


def _build_metadata(facts: _Facts, license: str | None) -> dict[str, Any]:
    """Return the front matter. https://huggingface.co/docs/hub/model-cards describes its fields."""
    accuracies = {domain: facts.record["accuracy"].get(domain, {}).get("main") for domain in facts.domains("test")}
    results = [
        {
            "task": {"type": "image-classification", "name": "Image classification"},
            "dataset": {"type": facts.dataset, "name": f"{facts.dataset}, unseen domain {domain}", "config": domain},
            "metrics": [{"type": "accuracy", "name": "Accuracy", "value": round(accuracy, 4)}],
        }
        for domain, accuracy in accuracies.items()
        if accuracy is not None
    ]
    return {
        **({} if license is None else {"license": license}),
        "library_name": "domainwise",
        "pipeline_tag": "image-classification",
        "tags": ["domain-generalization", "out-of-distribution", facts.method],
        **({"model-index": [{"name": facts.name.partition("/")[2], "results": results}]} if results else {}),
    }


def _describe_model(facts: _Facts) -> str:
    classes = [str(name) for name in facts.data.get("classes", [])]
    channels, *sides = facts.data.get("input_shape") or ["?"]
    color = "gray" if channels == 1 else "RGB" if channels == 3 else f"{channels}-channel"
    network = str(facts.settings.get("network"))
    # A file is stored with its hash, which says more than a card needs.
    weights = str(facts.settings.get("weights") or "none").partition(" sha256:")[0]
    items = {
        "Method": _describe_method(facts),
        "Network": escape_markdown(network if weights == "none" else f"{network}, initial weights {weights}"),
        "Classes": escape_markdown(", ".join(classes)),
        "Input": f"{color} images of {' x '.join(map(str, sides))} pixels in [0, 1], not normalized",
        "Data": _describe_domains(facts),
    }
    domains, unseen = (pluralize(len(facts.domains(role)), "domain") for role in ("train", "test"))
    tested = f" and tested on {unseen} that it never saw" if facts.domains("test") else ""
    summary = f"A classifier of images into {len(classes)} classes, trained with domainwise on {domains}{tested}."
    return f"{summary}\n\n{_format_list([f'**{name}**: {text}' for name, text in items.items()])}"


def _describe_method(facts: _Facts) -> str:
    # Imports torch, which building a card does not need otherwise.
    from domainwise.algorithms import ALGORITHMS

    name = str(facts.settings.get("algorithm"))
    method = ALGORITHMS.get(name)
    if method is None:
        return escape_markdown(f"{facts.method}, which is not part of domainwise")
    summary = (method.__doc__ or "").strip().splitlines()[0].rstrip(".")
    source = f"; {method.source}" if method.source else ""
    return f"{escape_markdown(summary)} (`{name}`{source})"


def _describe_domains(facts: _Facts) -> str:
    names = ", ".join(facts.domains("train"))
    description = DESCRIPTIONS.get(facts.dataset, "")
    return escape_markdown(f"{facts.dataset}, domains {names}" + (f". {description}" if description else ""))


def _describe_use(facts: _Facts) -> str:
    passed = "".join(f", {name}=YOUR_{name.upper()}" for name in facts.custom_code)
    which = "" if facts.which == "best" else f', "{facts.which}"'
    option = "" if facts.which == "best" else f" --which {facts.which}"
    shape = ", ".join(map(str, facts.data.get("input_shape", [])))
    code = (
        "from domainwise import load_model\n\n"
        f"# Maps images in [0, 1], (batch, {shape}), to logits.\n"
        f'model = load_model("hf:{facts.name}"{which}{passed})'
    )
    extras = ["hub", "onnx"]
    if str(facts.settings.get("network")).startswith("timm:"):
        extras.append("timm")
    if facts.settings.get("lora") is not None:
        extras.append("lora")
    shell = (
        f"{_INSTALL.format(','.join(extras))}\n"
        f"domainwise predict hf:{facts.name} photo.jpg{option}\n"
        f"domainwise export hf:{facts.name} --onnx model.onnx{option}"
    )
    parts = [_fence(code, "python")]
    if facts.custom_code:
        parts.append(
            f"The {' and the '.join(facts.custom_code)} of this model must be passed, and so the commands do not apply."
        )
    else:
        parts += [
            _fence(shell, "sh"),
            "The exported file takes uint8 RGB images of any size; resizing and normalization are inside.",
        ]
    return "\n\n".join(parts)


def _describe_accuracy(facts: _Facts) -> str:
    accuracy: Mapping[str, Mapping[str, float]] = facts.record["accuracy"]
    domains = [(name, role) for role in _ROLES for name in facts.domains(role)]
    parts = [part for part in _PARTS if any(part in accuracy.get(name, {}) for name, _ in domains)]
    rows = [
        (
            escape_markdown(name),
            _ROLES[role],
            *(_format_percent(accuracy.get(name, {}).get(part)) for part in parts),
        )
        for name, role in domains
    ]
    table = format_markdown_table(("domain", "role", *(_PARTS[part] for part in parts)), rows, numeric=len(parts))
    train = (
        "All images of the training domains were trained on."
        if facts.is_refit
        else "A random fifth of each domain is its holdout, the rest its main part. Training used the main part of the "
        "training domains, so their holdouts are new images of known domains."
    )
    test = "Test domains were not trained on; the accuracy to quote for them is that of the main part."
    return "\n\n".join((f"In percent:\n\n{table}", f"{train} {test}", _describe_selection(facts)))


def _describe_selection(facts: _Facts) -> str:
    if facts.settings.get("soup") is not None:
        return "The weights are an average of several runs, and the accuracies those of the average."
    step, steps = facts.record["step"] + 1, facts.settings.get("steps")
    if facts.is_refit or facts.which == "last":
        return f"The weights are those after the last of {step} updates; nothing was selected by accuracy."
    score = (
        f"on the validation domains ({escape_markdown(', '.join(facts.domains('validation')))})"
        if facts.domains("validation")
        else "on the holdouts of the training domains"
    )
    return (
        f"The weights are those after {step} of {steps} updates: of all that were evaluated, they had the highest mean "
        f"accuracy {score}. The test domains were not used to select them."
    )


def _collect_caveats(facts: _Facts) -> list[str]:
    page = read_page_data([facts.folder.path])
    selection = "ood_validation" if facts.domains("validation") else "training_domain"
    selected = {selection: SELECTIONS[selection](page.runs.frame)}
    found = find_caveats(page, build_grids(page.runs, page.variants), selected, ())
    caveats = [
        "The accuracies are those of a single run and have no standard error. Training again with another seed gives "
        "others; in an unseen domain they can differ by several points.",
        "If this run was picked from several because of its accuracy on the test domains, that accuracy is too high.",
        "Accuracy in yet another domain can be lower than in the test domains above.",
        # That there is a single trial is said above.
        *(escape_markdown(each.text) for each in found if each.kind != "trials"),
    ]
    if not facts.domains("test"):
        caveats.insert(0, "There was no test domain, so accuracy in an unseen domain was not measured.")
    return caveats


def _describe_training(facts: _Facts) -> str:
    settings = facts.settings
    command = stored_command(settings)
    if settings.get("soup") is not None:
        repeat = "The weights were averaged with `domainwise average`; the settings are those of the runs."
    elif facts.is_refit:
        repeat = "The weights were trained with `domainwise refit` on a run with these settings."
    elif facts.custom_code or not command:
        repeat = ""
    else:
        # Only the names of folders and files are known.
        repeat = f"To repeat it (paths of data and weights may have to be filled in):\n\n{_fence(command, 'sh')}"
    defaults = {field.name: field.default for field in dataclasses.fields(RunConfig)}
    changed = {name: each for name, each in settings.items() if name not in _STATED and each != defaults.get(name)}
    values = {name: each for name, each in flatten_settings(changed).items() if each not in (None, {}, [])}
    # In a code span a backslash is no escape, so a name that could leave it is no code.
    rows = [
        (f"`{name}`" if re.fullmatch(r"[\w. ]+", name) else escape_markdown(name), _format_value(value))
        for name, value in values.items()
    ]
    parts = (
        repeat,
        format_markdown_table(("setting", "value"), rows),
        f"Card written by domainwise {domainwise.__version__}.",
    )
    return "\n\n".join(part for part in parts if part)


def _format_value(value: Any) -> str:
    return escape_markdown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _format_percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{100 * accuracy:.1f}"


def _format_list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _fence(code: str, language: str) -> str:
    """Return a code block that nothing in the code can end."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    return f"{ticks}{language}\n{code}\n{ticks}"


def _format_yaml(value: Any, indent: str = "") -> str:
    """Format mappings, lists, strings and numbers. A string in quotes is the same in YAML and in JSON."""
    if isinstance(value, Mapping):
        lines = []
        for key, each in value.items():
            is_nested = isinstance(each, Mapping | list)
            nested = f"\n{_format_yaml(each, indent + ('' if isinstance(each, list) else '  '))}" if is_nested else ""
            lines.append(f"{indent}{key}:{nested or ' ' + _format_yaml(each)}")
        return "\n".join(lines)
    if isinstance(value, list):
        return "\n".join(f"{indent}- {_format_yaml(each, indent + '  ').lstrip()}" for each in value)
    if isinstance(value, str):
        # Line breaks that only YAML knows, and control characters, which it does not allow.
        value = "".join(character if character.isprintable() else " " for character in value)
    return json.dumps(value, ensure_ascii=False)
