"""`domainwise algorithms`: list the methods, or the hyperparameters of one method."""

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli.console import print_json, print_table, print_text
from domainwise.cli.options import AsJson
from domainwise.errors import DomainwiseError, format_error
from domainwise.plugins import find_plugins
from domainwise.training.config import lower_method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from domainwise.algorithms import Algorithm

EXAMPLES = """
Examples:

domainwise algorithms

domainwise algorithms mat

domainwise algorithms irm --markdown

domainwise algorithms mat --json

domainwise algorithms my_module:MyMethod --markdown
"""

_COMBINATIONS = "Combine them with --average, and with --sam or --sagm if an update is one step on one loss."


def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="Show the hyperparameters of this method: its name, or package.module:Class.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the Markdown table used in the docs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the hyperparameters of one method with defaults and search ranges."""
    from domainwise.algorithms import ALGORITHMS

    if name is not None:
        name = str(lower_method(name))
        if as_json:
            print_json(describe_method(name))
        elif markdown:
            print_text(format_hparams(name))
        else:
            _print_method(name)
    elif markdown:
        print_text(format_overview("methods/"))
    else:
        plugins = _load_plugins()
        if as_json:
            print_json([describe_method(each) for each in (*ALGORITHMS, *plugins)])
        else:
            print_text(_format_list(plugins))


def describe_method(name: str) -> dict[str, Any]:
    """Return what is known about a method and its hyperparameters, ready for JSON.

    Args:
        name: as for `--algorithm`.
    """
    from domainwise.algorithms import ALGORITHMS
    from domainwise.training.registry import find_algorithm

    method = find_algorithm(name)
    defaults = method.Hparams.build().as_dict()
    hparams = [
        {
            "name": field.name,
            "default": defaults[field.name],
            # One's own method may have plain dataclass fields, without metadata.
            "search": None if field.metadata.get("search") is None else str(field.metadata["search"]),
            "help": field.metadata.get("help", ""),
        }
        for field in method.Hparams.fields().values()
    ]
    is_plugin = name not in ALGORITHMS and ":" not in name
    return {
        "name": name,
        "summary": _summarize(method),
        "package": find_plugins("algorithm")[name].package if is_plugin else None,
        "group": getattr(method, "group", None),
        "min_domains": method.min_domains,
        "source": method.source,
        "hparams": hparams,
        "by_dataset": [
            {
                "name": setting.name,
                "default": setting.default,
                "search": str(setting.search),
                "datasets": list(setting.datasets),
            }
            for setting in method.Hparams.BY_DATASET
        ],
        "variants": {
            variant: {
                key: value
                for key, value in method.Hparams.build(variant=variant).as_dict().items()
                if value != defaults[key] and key != "variant"
            }
            for variant in method.Hparams.VARIANTS
            if variant != defaults["variant"]
        },
    }


def _load_plugins() -> "dict[str, type[Algorithm]]":
    """Return the methods of installed packages; a warning says which cannot be used."""
    from domainwise.algorithms import ALGORITHMS
    from domainwise.training.registry import find_algorithm

    loaded = {}
    for name, plugin in find_plugins("algorithm").items():
        if name in ALGORITHMS:
            warnings.warn(f"{name} of {plugin.package} is not used: a built-in method has this name", stacklevel=2)
            continue
        try:
            loaded[name] = find_algorithm(name)
        except (DomainwiseError, OSError) as error:
            warnings.warn(format_error(error), stacklevel=2)
    return loaded


def format_overview(cards: str) -> str:
    """Return one Markdown table of methods per group, with links to their cards in the folder `cards`."""
    from domainwise.algorithms.base import GROUPS
    from domainwise.reports.formats import format_markdown_table

    parts = []
    for group, description in GROUPS.items():
        rows = [
            (
                f"[`{name}`]({cards}{name}.md)",
                _summarize(method),
                _format_domains(method.min_domains),
                method.source,
            )
            for name, method in _list_group(group).items()
        ]
        table = format_markdown_table(("name", "method", "needs", "source"), rows)
        parts.append(f"**{group.capitalize()}**: {description}.\n\n{table}")
    return "\n\n".join(parts)


def format_hparams(name: str) -> str:
    """Return the hyperparameters of a method as a Markdown table, and those for some datasets as another."""
    from domainwise.reports.formats import format_markdown_table

    method = describe_method(name)
    rows = [(f"`{hparam}`", *rest) for hparam, *rest in _hparam_rows(method)]
    table = format_markdown_table(("hyperparameter", "default", "search", "meaning"), rows)
    if not method["by_dataset"]:
        return table
    rows = [
        (f"`{each['name']}`", _format_value(each["default"]), each["search"], ", ".join(each["datasets"]))
        for each in method["by_dataset"]
    ]
    return f"{table}\n\n{format_markdown_table(('hyperparameter', 'default', 'search', 'datasets'), rows)}"


def _print_method(name: str) -> None:
    method = describe_method(name)
    facts = method["group"], method["source"], _format_domains(method["min_domains"]), method["package"]
    print_text(f"{name}: {method['summary']} ({'; '.join(filter(None, facts))})\n")
    print_table(("hyperparameter", "default", "search", "meaning"), _hparam_rows(method))
    if method["by_dataset"]:
        print_text()
    for each in method["by_dataset"]:
        default = _format_value(each["default"])
        print_text(f"on {', '.join(each['datasets'])}: {each['name']} {default}, search {each['search']}")
    for variant, settings in method["variants"].items():
        print_text(f"\nvariant={variant} sets " + ", ".join(f"{key}={value}" for key, value in settings.items()))


def _format_list(plugins: "Mapping[str, type[Algorithm]]") -> str:
    from domainwise.algorithms import ALGORITHMS
    from domainwise.algorithms.base import GROUPS

    # Plain lines, because a table would be wrapped to the width of the terminal.
    width = max(map(len, (*ALGORITHMS, *plugins))) + 2
    lines = []
    for group, description in GROUPS.items():
        lines.append(f"{group}: {description}")
        lines += [f"  {name:<{width}}{_summarize(method)}" for name, method in _list_group(group).items()]
        lines.append("")
    if plugins:
        packages = find_plugins("algorithm")
        lines.append("from other packages")
        lines += [
            f"  {name:<{width}}{_summarize(method)} ({packages[name].package})" for name, method in plugins.items()
        ]
        lines.append("")
    return "\n".join((*lines, f"{len(ALGORITHMS) + len(plugins)} methods. {_COMBINATIONS}"))


def _list_group(group: str) -> dict[str, "type[Algorithm]"]:
    from domainwise.algorithms import ALGORITHMS

    return {name: method for name, method in ALGORITHMS.items() if method.group == group}


def _hparam_rows(method: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [
        (each["name"], _format_value(each["default"]), each["search"] or "", each["help"]) for each in method["hparams"]
    ]


def _summarize(thing: object) -> str:
    """Return the first line of the docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _format_domains(count: int) -> str:
    return "1 domain" if count == 1 else f"{count} domains"


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
