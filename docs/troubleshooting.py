"""Write the tables of docs/troubleshooting.md: every message with its mend, from the code.

    python docs/troubleshooting.py --write     writes the page
    python docs/troubleshooting.py --check     fails if the page differs, and says how

Most messages end with their mend. For the others it is in docs/mends.tsv.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))

from messages import ROOT, Message, messages

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = ROOT / "docs/troubleshooting.md"
MENDS = ROOT / "docs/mends.tsv"
COMMAND = "python docs/troubleshooting.py --write"
BEGIN, END = f"<!-- messages: written by `{COMMAND}` -->", "<!-- end of messages -->"
# First words of a mend.
VERBS = (
    "add|ask|build|call|change|check|choose|compare|compute|convert|copy|"
    "correct|delete|download|drop|edit|free|give|indent|install|keep|label|"
    "leave|load|look|loosen|lower|make|move|name|open|pass|put|raise|read|"
    "rechunk|reinstall|remove|rename|request|reproduce|run|save|select|separate|"
    "set|sort|start|store|take|try|update|use|wait|wrap|write"
)
_MEND = re.compile(rf"(?:[:;]|, so) (?=(?:or )?(?:{VERBS}|pip install)\b)")
# Sections by the beginning of the path of the file, the first that fits.
AREAS = {
    "The config and the plate sheet": (
        *("workflow/config/", "workflow/cell_filter", "workflow/strata", "workflow/sizes"),
    ),
    "The command scatlas": ("workflow/command_line/", "workflow/code_hash"),
    "Files of plates": ("io/files/", "io/matrices/", "io/tables/"),
    "Plates that do not fit together, and other steps of the workflow": (
        *("io/products/", "workflow/consensus", "workflow/integrity", "workflow/labelled_cells"),
        *("workflow/report/", "workflow/rules/", "scripts/", "matrix/markers"),
    ),
    "New plates on an atlas": ("workflow/new_plates", "workflow/reference"),
    "Exports of an atlas, and the page explore.html": ("export/", "workflow/explore/"),
    "Reproducing an atlas": ("workflow/reproduce", "workflow/provenance"),
    "GPUs and clusters of workers": ("compute/", "arrays/", "errors"),
    "Functions: any": (
        *("_util/", "blocks/", "columns", "elements", "datasets", "kernels/", "workflow/"),
    ),
    "Functions: get and pl": ("get/", "pl/"),
    "Functions: pp": ("pp/", "matrix/"),
    "Functions: tl": ("tl/",),
}
# Messages for those who change scatlas itself.
DEVELOPERS = ("workflow/config/generate", "workflow/report/_page")


def split_mend(text: str) -> tuple[str, str]:
    """A message and the mend that it names; '' if it names none."""
    found = _MEND.search(text)
    return (text[: found.start()], text[found.end() :]) if found else (text, "")


@cache
def mends() -> dict[str, str]:
    """Mends of messages that name none, by a pattern of the message."""
    lines = MENDS.read_text("utf-8").splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


def mend_of(text: str) -> tuple[str, str]:
    """A message without its mend, and the mend.

    Raises
    ------
    LookupError
        The message names no mend, and no pattern of mends.tsv fits it.
    """
    problem, mend = split_mend(text)
    if not mend:
        fitting = (mend for pattern, mend in mends().items() if re.search(pattern, text))
        mend = next(fitting, "")
    if not mend:
        msg = f"no mend for {text!r}: end the message with it, or add it to {MENDS.name}"
        raise LookupError(msg)
    return problem, mend


def listed() -> list[Message]:
    """The messages for users, each text once."""
    found = {m.text: m for m in reversed(messages()) if not _inside(m.file).startswith(DEVELOPERS)}
    return list(reversed(found.values()))


def tables() -> str:
    """The tables of the page, one for each area."""
    rows: dict[str, list[str]] = {area: [] for area in AREAS}
    for message in listed():
        area = next(a for a, paths in AREAS.items() if _inside(message.file).startswith(paths))
        problem, mend = mend_of(message.text)
        rows[area].append(f"| `{problem.replace('|', chr(92) + '|')}` | {_sentence(mend)} |")
    head = "| message | what to do |\n|---|---|\n"
    parts = [f"## {area}\n\n{head}" + "\n".join(lines) for area, lines in rows.items()]
    return "\n\n".join(parts)


def page() -> str:
    """The whole page: the text outside the marks stays as it is."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``python docs/troubleshooting.py``."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/troubleshooting.md.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--write", action="store_true", help="write the page")
    task.add_argument("--check", action="store_true", help="fail if it differs, and say how")
    args = parser.parse_args(arguments)
    text = page()
    if args.write:
        PAGE.write_text(text, "utf-8")
        return
    now = PAGE.read_text("utf-8")
    lines = (now.splitlines(keepends=True), text.splitlines(keepends=True))
    sys.stdout.writelines(difflib.unified_diff(*lines, "docs/troubleshooting.md", COMMAND))
    sys.exit(now != text)


def _inside(file: str) -> str:
    return file.removeprefix("src/scatlas/")


def _sentence(mend: str) -> str:
    """A mend as Markdown: a capital, a full stop, and nothing that Markdown would read as marks."""
    text = re.sub(r"([<>*|\\`])", r"\\\1", mend).rstrip(".")
    if text.startswith("pip "):  # code
        return f"{text}."
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    main()
