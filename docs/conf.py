"""Sphinx configuration: the Markdown pages of the repository and the reference of the package.

The source folder is the root of the repository, so relative links between pages work in Sphinx and
on a forge: ``sphinx-build -W -c docs . build/docs``, or ``make docs``. Notebooks are text (MyST
Markdown) and run with each build, without the network.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.special import TextLexer
from sphinx import addnodes

from scatlas import __version__

sys.path.insert(0, str(Path(__file__).resolve().parent))

from config_keys import key_table, schema_files

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

project = "scatlas"
author = "The scatlas developers"
copyright = author  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "docs/index"
templates_path = [str(HERE / "_templates")]
# Folders with pages; Sphinx skips the others (environments, results).
_PAGES = {"config", "docs", "envs"}
include_patterns = ["docs/**", "config/README.md", "envs/README.md"]
include_patterns += ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md"]
include_patterns += ["ROADMAP.md", "SECURITY.md"]
exclude_patterns = ["docs/_templates"]
exclude_patterns += [p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in _PAGES]

html_theme = "furo"
html_title = f"scatlas {__version__}"
html_static_path = [str(HERE / "_static")]
html_css_files = ["tables.css"]
# Longer signatures have one parameter per line.
python_maximum_signature_line_length = 80
default_role = "code"  # `adata` in a docstring is a name

# Headings are link targets, as on a forge.
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120  # seconds per cell; a cell takes a few on an idle machine
nb_merge_streams = True

autosummary_generate = True
autodoc_preserve_defaults = True  # `np.inf` and `_UNSET` as in the source
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_rtype = False
# These sections contain prose and lists, not types alone.
napoleon_custom_sections = ["Returns", "Yields", "Warns"]

_UNDERLINE = re.compile(r"-{3,}$")
# ``obs["leiden"]`` : categorical
_NAMED = re.compile(r"`.*` : \S")


def _list_results(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Make lists of the names in `napoleon_custom_sections`, with or without a text below the name.

    In reStructuredText a name without a text would run into the next one.
    """
    made: list[str] = []
    section, in_item = "", False
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if _UNDERLINE.match(below):
            section, in_item = line, False
        listed = section in napoleon_custom_sections and not _UNDERLINE.match(line)
        if listed and line and line != section and not line.startswith(" "):
            was_item, in_item = in_item, below.startswith("    ") or bool(_NAMED.match(line))
            if in_item:
                made += [] if was_item else [""]
                dash = " –" if below.startswith("    ") else ""
                made.append(f"- {line}{dash}")
                continue
            made += [""] if was_item else []
        made.append(line.replace("    ", "  ", 1) if listed and in_item else line)
    lines[:] = made


def _add_passes(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Add the number of passes over a Dask X, which the tests count."""
    if not hasattr(obj, "passes"):
        return
    note = f" ({obj.passes_note})" if obj.passes_note else ""
    lines += ["", ".. rubric:: Passes over a Dask X", "", f"{obj.passes}{note}.", ""]


def _skip_fields(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Skip the fields of named tuples, which the section Attributes describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def _unlink_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to folders of the repository, which only a forge opens, by their text."""
    page = ROOT / f"{app.env.docname}.md"
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] == "myst" and (page.parent / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def _add_keys(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the table of all keys, which follows from the code, to the page of the config."""
    if docname == "config/README":
        source[0] += f"\n{key_table()}\n"


def _write_top_files(app: Sphinx, exception: Exception | None) -> None:
    """Write an index.html that redirects to the first page, llms.txt with links to pages, and the
    schemas of config and plate sheet for editors.
    """
    if exception is None and app.builder.format == "html":
        target = f"{root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
            f'<link rel="canonical" href="{target}"><title>scatlas</title>\n'
        )
        text = (ROOT / "llms.txt").read_text("utf-8")
        (Path(app.outdir) / "llms.txt").write_text(text.replace(".md)", ".html)"), "utf-8")
        for name, schema in schema_files().items():
            (Path(app.outdir) / name).write_text(schema, "utf-8")


def setup(app: Sphinx) -> None:
    """Connect the functions above, and remove the generated pages of earlier builds."""
    shutil.rmtree(HERE / "api" / "generated", ignore_errors=True)
    # Forges draw Mermaid; here it is the text of the picture.
    app.add_lexer("mermaid", TextLexer)
    app.connect("autodoc-process-docstring", _list_results, priority=400)  # napoleon: 500
    app.connect("autodoc-process-docstring", _add_passes)
    app.connect("autodoc-skip-member", _skip_fields)
    app.connect("doctree-read", _unlink_folders)
    app.connect("source-read", _add_keys)
    app.connect("build-finished", _write_top_files)
