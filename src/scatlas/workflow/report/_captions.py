"""Captions in reStructuredText: one source for Snakemake's report and for this page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from scatlas.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = {
    "file_insertion_enabled": False,
    "halt_level": 2,  # a warning is a mistake in a caption
    "initial_header_level": 3,
    "raw_enabled": False,
    "report_level": 5,
}


def caption(folder: Path, name: str, **wildcards: str) -> Markup:
    """HTML of ``{folder}/{name}.rst``, with ``{{ snakemake.wildcards.x }}`` from ``wildcards``."""
    from docutils.core import publish_parts
    from docutils.utils import SystemMessage
    from docutils.writers.html5_polyglot import Writer

    path = folder / f"{name}.rst"
    if not path.is_file():
        msg = f"no caption {path}: write what the {name} shows there"
        raise InputError(msg)
    template = Environment(autoescape=False, undefined=StrictUndefined).from_string(  # noqa: S701
        path.read_text("utf-8")
    )
    text = template.render(snakemake=SimpleNamespace(wildcards=SimpleNamespace(**wildcards)))
    try:
        parts = publish_parts(text, writer=Writer(), settings_overrides=_SETTINGS)
    except SystemMessage as error:
        msg = f"{path} is not reStructuredText: {error}"
        raise InputError(msg) from error
    return Markup(parts["body"])  # noqa: S704 - made by docutils, with raw HTML switched off
