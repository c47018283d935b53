"""What MkDocs cannot do from the pages alone: pages made from the package and from files outside docs/.

- the landing page starts with the beginning of README.md, and CONTRIBUTING.md and CHANGELOG.md are pages;
- links to files outside docs/ lead to pages that show them;
- the API reference lists what the packages export, and the command-line reference what the commands accept;
- the method cards are in the navigation by group.

`ReadDocstrings` is an extension of Griffe, which reads the docstrings.
"""

import ast
import importlib
import inspect
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import GROUPS
from domainwise.cli import COMMANDS, HELP, build_app
from domainwise.reports.formats import format_markdown_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages of the site that are files elsewhere in the repository.
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# The landing page has README.md up to this heading.
README_END = "\n## Results\n"
# The public packages, and what the docs use of them besides their `__all__`.
PACKAGES: dict[str, tuple[str, ...]] = {
    "domainwise": (),
    "domainwise.perturbations": (),
    "domainwise.integrations": (
        "domainwise.integrations.lightning.AdversarialTraining",
        "domainwise.integrations.transformers.AdversarialTrainingMixin",
        "domainwise.integrations.torchattacks.PerturbationAttack",
        "domainwise.integrations.foolbox.PerturbationAttack",
    ),
    "domainwise.averaging": (),
    "domainwise.algorithms": tuple(
        f"domainwise.algorithms.base.{name}"
        for name in ("LossAlgorithm", "Batches", "Objective", "concatenate_batches", "mean_per_domain")
    ),
    "domainwise.testing": (),
    "domainwise.hparams": (),
    "domainwise.data": (),
    "domainwise.networks": tuple(
        f"domainwise.networks.finetuning.{name}" for name in ("prepare_network_", "count_parameters")
    ),
    "domainwise.training": (
        "domainwise.training.loading.open_run",
        "domainwise.training.prediction.predict_images",
        "domainwise.training.prediction.Prediction",
        "domainwise.training.model_evaluation.Count",
    ),
    "domainwise.sweeps": (
        "domainwise.SweepSpec",
        "domainwise.run_sweep",
        "domainwise.sweeps.decision.run_sweep_until_decided",
        "domainwise.sweeps.decision.Decision",
        "domainwise.sweeps.plan.plan_sweep",
        "domainwise.sweeps.race.plan_races",
        "domainwise.sweeps.runner.SweepCallbacks",
        "domainwise.sweeps.runner.SweepOutcome",
        "domainwise.sweeps.runner.make_engine",
        "domainwise.sweeps.soups.average_sweep",
        "domainwise.sweeps.soups.interpolate_run",
    ),
    "domainwise.selection": (
        "domainwise.selection.verdicts.Judgement",
        "domainwise.selection.verdicts.judge_differences",
    ),
    "domainwise.reports": ("domainwise.figures.write_figure",),
    "domainwise.explain": (),
    "domainwise.theory": (),
    "domainwise.reproduction": (),
}
# Besides their base class, the methods have cards.
CARDS_INSTEAD = {method.__name__ for method in ALGORITHMS.values()}
LINK = re.compile(r"""(?P<start>\]\(|\b(?:src|href)=")(?P<target>[^)\s"]+)(?P<end>[)"])""")
FENCE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


class ReadDocstrings(griffe.Extension):
    """Reads descriptions as this package writes them, which Griffe does not know."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Read `low, high: bounds of the value` as a description of both arguments."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)",
                lambda match: "\n".join(f"{match[1]}{name}: {match[3]}" for name in match[2].split(", ")),
                obj.docstring.value,
                flags=re.MULTILINE,
            )

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Read a field that is defined by `setting(default, help)`."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "setting":
            default, text = call.arguments[:2]
            attr.value = "{}" if str(default) == "dict" else default
            attr.docstring = griffe.Docstring(ast.literal_eval(str(text)), parent=attr)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    sections = {next(iter(section)): next(iter(section.values())) for section in config.nav or ()}
    sections["Methods"] += [
        {group.capitalize(): [f"methods/{name}.md" for name, method in ALGORITHMS.items() if method.group == group]}
        for group in GROUPS
    ]
    sections["Reference"][:0] = [{"API": [_api_page(package) for package in PACKAGES]}, {"Command line": "cli.md"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        **{page: (ROOT / name).read_text() for name, page in ROOT_PAGES.items() if page != "index.md"},
        **{_api_page(package): format_api_page(package) for package in PACKAGES},
        "cli.md": format_cli_page(),
    }
    for file in list_linked_files():
        pages[_source_page(file)] = format_source_page(file)
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri == "index.md":
        title, rest = markdown.split("\n", 1)
        readme = (ROOT / "README.md").read_text()
        if not title.startswith("# ") or README_END not in readme:
            raise PluginError("the landing page needs a title in docs/index.md and '## Results' in README.md")
        return rewrite_links(readme.split(README_END)[0] + "\n", "README.md", uri) + rest
    origin = {page: name for name, page in ROOT_PAGES.items()}.get(uri, f"docs/{uri}")
    if uri == "contributing.md":
        # Python-Markdown nests lists by four spaces, GitHub by three.
        markdown = re.sub(r"^ {3}(?=\S)", "    ", markdown, flags=re.MULTILINE)
    return rewrite_links(markdown, origin, uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let the links of notebooks lead to pages, which MkDocs does for Markdown only."""
    if not page.file.src_uri.endswith(".ipynb"):
        return output

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if not (DOCS / name).exists():
            raise PluginError(f"{page.file.src_uri} links to {name}, which does not exist")
        return f'href="{name.removesuffix(".md")}.html'

    return re.sub(r'href="(?P<name>[\w/]+\.md)', replace, output)


def rewrite_links(markdown: str, origin: str, uri: str) -> str:
    """Return the page with links to files outside docs/, and all links of a page from there, as links within the site.

    Args:
        origin: where the Markdown comes from, relative to the root of the repository.
        uri: the page of the site that shows it.
    """

    def replace(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        target = resolve_link(origin, path)
        if target is None or (target.startswith("docs/") and origin.startswith("docs/")):
            return match[0]
        if target in ROOT_PAGES:
            page = ROOT_PAGES[target]
        else:
            page = target.removeprefix("docs/") if target.startswith("docs/") else _source_page(target)
        relative = posixpath.relpath(page, posixpath.dirname(uri) or ".")
        return f"{match['start']}{relative}{'#' + anchor if anchor else ''}{match['end']}"

    parts = FENCE.split(markdown)
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(replace, part) for part in parts)


def resolve_link(origin: str, path: str) -> str | None:
    """Return the file that a link leads to, relative to the root of the repository; None if it is not a file there."""
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    return target if not target.startswith("..") and (ROOT / target).exists() else None


def list_linked_files() -> list[str]:
    """Return the files and folders outside docs/ that pages link to and that are not pages themselves."""
    linked = set()
    for file in (*DOCS.rglob("*.md"), *(ROOT / name for name in ROOT_PAGES)):
        origin = file.relative_to(ROOT).as_posix()
        for match in LINK.finditer(FENCE.sub("", file.read_text())):
            linked.add(resolve_link(origin, match["target"].partition("#")[0]))
    return sorted(each for each in linked if each and not each.startswith("docs/") and each not in ROOT_PAGES)


def format_source_page(path: str) -> str:
    """Return the page that shows a file of the repository, or all files of a folder."""
    target = ROOT / path
    files = sorted(each for each in target.iterdir() if each.is_file()) if target.is_dir() else [target]
    parts = [f"# {path}\n"]
    for file in files:
        if len(files) > 1:
            parts.append(f"## {file.name}\n")
        language = {".py": "python", ".toml": "toml", ".cff": "yaml"}.get(file.suffix, "text")
        parts.append(f"````{language}\n{file.read_text().rstrip()}\n````\n")
    return "\n".join(parts)


def format_api_page(package: str) -> str:
    """Return the page of a package. `domainwise` lists what it exports; the package that has it documents it."""
    module = importlib.import_module(package)
    parts = [f"# {package}\n", f"{(module.__doc__ or '').splitlines()[0]}\n"]
    if package == "domainwise":
        homes = {name: find_home(name) for name in module.__all__}
        rows = [
            (f"[`{name}`]({_api_page(home).removeprefix('api/')}#{path})", _summarize(getattr(module, name)))
            for name, (home, path) in homes.items()
        ]
        parts.append(format_markdown_table(("name", "what it is"), rows) + "\n")
        paths = [path for home, path in homes.values() if home == package]
    else:
        exported = getattr(module, "__all__", ())
        paths = [f"{package}.{name}" for name in exported if name not in CARDS_INSTEAD]
        paths += [path for path in PACKAGES[package] if path.rpartition(".")[2] not in exported]
    if package == "domainwise.algorithms":
        parts.append("The methods themselves: [overview and cards](../methods.md).\n")
    for path in paths:
        # A name that is imported from elsewhere is shown with its path.
        is_elsewhere = path.rpartition(".")[0] != package
        parts.append(f"::: {path}\n    options:\n      show_root_full_path: {str(is_elsewhere).lower()}\n")
    return "\n".join(parts)


def find_home(name: str) -> tuple[str, str]:
    """Return the package on whose page an export of `domainwise` is documented, and its path there."""
    for package, others in PACKAGES.items():
        if f"domainwise.{name}" in others:
            return package, f"domainwise.{name}"
        if package != "domainwise" and name in getattr(importlib.import_module(package), "__all__", ()):
            return package, f"{package}.{name}"
    return "domainwise", f"domainwise.{name}"


def _summarize(thing: object) -> str:
    return _escape((inspect.getdoc(thing) or "").split("\n\n")[0])


def format_cli_page() -> str:
    """Return the reference of all commands, as they are defined in `domainwise.cli`."""
    group: Any = typer.main.get_command(build_app([]))
    parts = [
        "# Command line\n",
        f"{HELP} `domainwise COMMAND --help` shows the same in a terminal.\n",
        "Invalid input gives one line on stderr and exit code 2. Rerun a command that was interrupted to resume it.\n",
    ]
    order = {name.replace("_", "-"): place for place, name in enumerate(COMMANDS)}
    for name in sorted(group.commands, key=lambda name: order.get(name, len(order))):
        for words, command in _walk_commands(name, group.commands[name]):
            parts.append(format_command(words, command))
    return "\n".join(parts)


def _walk_commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield f"{words} {name}", each


def format_command(words: str, command: Any) -> str:
    """Return usage, help, parameters and examples of one command."""
    parameters = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    usage = f"domainwise {words}" + "".join(_format_argument(each) for each in arguments)
    if hasattr(command, "commands") and not options:
        usage += " COMMAND"
    level = "##" if " " not in words else "###"
    parts = [f"{level} domainwise {words}\n", f"```text\n{usage}{' [OPTIONS]' if options else ''}\n```\n"]
    # Paragraphs, without the line breaks of the docstring.
    parts += [f"{_escape(paragraph)}\n" for paragraph in re.split(r"\n\s*\n", (command.help or "").strip())]
    if arguments:
        rows = [(f"`{each.name.upper()}`", _escape(each.help or "")) for each in arguments]
        parts.append(format_markdown_table(("argument", "meaning"), rows) + "\n")
    if options:
        rows = [(_format_names(each), _format_default(each), _escape(each.help or "")) for each in options]
        parts.append(format_markdown_table(("option", "default", "meaning"), rows) + "\n")
    examples = [line for line in (command.epilog or "").replace("Example:", "").splitlines() if line.strip()]
    if examples := [line.strip() for line in examples if line.strip() != "Examples:"]:
        parts.append("```sh\n" + "\n".join(examples) + "\n```\n")
    return "\n".join(parts)


def _format_argument(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return f" {name}" if argument.required else f" [{name}]"


def _format_names(option: Any) -> str:
    names = sorted((*option.opts, *option.secondary_opts), key=lambda name: (not name.startswith("--"), name))
    return ", ".join(f"`{name}`" for name in names)


def _format_default(option: Any) -> str:
    is_empty = option.default is None or option.default is False or isinstance(option.default, Callable)
    return "" if is_empty or option.default in ((), []) else f"`{option.default}`"


def _escape(text: str) -> str:
    """Return help as Markdown in one line: brackets and asterisks stand for themselves."""
    return re.sub(r"([\[\]*_<])(?=(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", " ".join(text.split()))


def _api_page(package: str) -> str:
    return f"api/{package.removeprefix('domainwise.')}.md"


def _source_page(path: str) -> str:
    return f"source/{path.rstrip('/')}.md"
