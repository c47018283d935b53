"""`domainwise push`: the model of a run to the Hugging Face Hub, or to a folder that stands in for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import print_line, print_text
from domainwise.cli.options import Quiet
from domainwise.storage.files import read_regular

if TYPE_CHECKING:
    from domainwise.reports.model_card import WhichModels

_MAX_CARD = 2**20

EXAMPLES = """
Examples:

domainwise push runs/pacs-mat owner/pacs-mat --dry-run

domainwise push runs/pacs-mat owner/pacs-mat --license mit --private

domainwise push runs/pacs-mat owner/pacs-mat --card README.md

domainwise push runs/pacs-mat team/pacs-mat --hub /shared/models
"""


def push(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.")],
    name: Annotated[str, typer.Argument(help="owner/name of the model.")],
    which: Annotated[str, typer.Option(help="Models of the run: best (as selected), last or all.")] = "best",
    license: Annotated[str | None, typer.Option(help="License of the model: mit, apache-2.0, ...")] = None,
    card: Annotated[Path | None, typer.Option(help="Your own model card (default: written from the run).")] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    hub: Annotated[
        Path | None, typer.Option(help="Folder to use instead of the Hub (default: $DOMAINWISE_HUB, or the Hub).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the model card, and push nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Push a model and its card to the Hugging Face Hub. A model of the same name is replaced, in one commit."""
    from domainwise.reports.model_card import build_model_card, push_model

    models = cast("WhichModels", which)
    text = None if card is None else read_regular(card, _MAX_CARD).decode(errors="replace")
    if dry_run:
        print_text(build_model_card(run, name, which=models, license=license) if text is None else text, end="")
        return
    if not quiet:
        print_line(f"pushing {name}", stderr=True)
    address = push_model(run, name, which=models, license=license, card=text, private=private, hub=hub)
    if not quiet:
        where = "" if hub is None else f", hub={str(hub)!r}"
        print_line(f"pushed to {address}; load it with load_model({f'hf:{name}'!r}{where})", stderr=True)
