"""What keeps the code small: the lines of each folder, and counts that must not rise.

Budgets are the figures of the day when they were written, and 3%.
``python -m tests.unit.test_size`` prints today's figures beside these. A change that needs more
says in its message what it removes elsewhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.unit.test_repository import ROOT, repository_files

# Lines of the files of a folder; a file counts for the innermost folder of this list.
LINES = {
    "src/scatlas": 3344,
    "src/scatlas/compute": 1664,
    "src/scatlas/export": 770,
    "src/scatlas/get": 886,
    "src/scatlas/io": 42,
    "src/scatlas/io/chunks": 1663,
    "src/scatlas/io/files": 2681,
    "src/scatlas/io/matrices": 2367,
    "src/scatlas/io/products": 3150,
    "src/scatlas/io/tables": 2854,
    "src/scatlas/io/zarr_writer": 857,
    "src/scatlas/kernels": 412,
    "src/scatlas/kernels/counts": 3205,
    "src/scatlas/kernels/graphs": 2551,
    "src/scatlas/kernels/linalg": 2260,
    "src/scatlas/kernels/moments": 2544,
    "src/scatlas/kernels/ranking": 1212,
    "src/scatlas/matrix": 9440,
    "src/scatlas/pl": 2682,
    "src/scatlas/pp": 2628,
    "src/scatlas/tl": 3075,
    "src/scatlas/workflow": 5527,
    "src/scatlas/workflow/command_line": 2325,
    "src/scatlas/workflow/config": 2397,
    "src/scatlas/workflow/explore": 4436,
    "src/scatlas/workflow/report": 2864,
    "scripts": 3175,
    "tests": 53930,
    "workflow": 3380,
}
COUNTS = {
    "lines of src/scatlas": 67833,
    "Python files of src/scatlas under 100 lines": 81,
    "lines of src with Any": 1265,
    "questions what an array is, in src and scripts": 125,
    "names _MOST or _LEAST, in src": 1,
    "lines of common.smk": 101,
    "words of README.md without code": 986,
}


def lines_by_folder() -> dict[str, int]:
    found = dict.fromkeys(LINES, 0)
    for name, text in _texts().items():
        folders = [str(folder) for folder in Path(name).parents]
        if folder := next((folder for folder in folders if folder in found), None):
            found[folder] += text.count("\n")
    return found


def counts() -> dict[str, int]:
    texts = _texts()
    src = {name: text for name, text in texts.items() if name.startswith("src/scatlas/")}
    python = {name: text for name, text in src.items() if name.endswith(".py")}
    scripts = [text for name, text in texts.items() if re.fullmatch(r"scripts/.*\.py", name)]
    joined = "\n".join(python.values())
    prose = re.sub(r"^```.*?^```.*?$", "", texts["README.md"], flags=re.MULTILINE | re.DOTALL)
    questions = r"\b(?:kind_of|is_sparse|is_dask|is_gpu)\("
    figures = (
        sum(text.count("\n") for text in src.values()),
        sum(text.count("\n") < 100 for text in python.values()),
        sum(re.search(r"\bAny\b", line) is not None for line in joined.splitlines()),
        len(re.findall(questions, "\n".join([joined, *scripts]))),
        len(set(re.findall(r"\b_(?:MOST|LEAST)_\w+", joined))),
        texts["workflow/rules/common.smk"].count("\n"),
        len(prose.split()),
    )
    return dict(zip(COUNTS, figures, strict=True))


def _texts() -> dict[str, str]:
    """Files of the repository by name, without pictures."""
    found = {}
    for path in repository_files():
        try:
            found[path.relative_to(ROOT).as_posix()] = path.read_text()
        except UnicodeDecodeError:
            continue
    return found


@pytest.mark.parametrize(
    ("figures", "budgets"), [(lines_by_folder, LINES), (counts, COUNTS)], ids=["lines", "counts"]
)
def test_no_figure_is_above_its_budget(figures, budgets):
    above = {
        name: f"{figure:,} of {budgets[name]:,}"
        for name, figure in figures().items()
        if figure > budgets[name]
    }
    assert above == {}, "remove as much elsewhere, or say why the budget has to grow"


if __name__ == "__main__":
    for found, budgets in ((lines_by_folder(), LINES), (counts(), COUNTS)):
        for name, figure in found.items():
            sys.stdout.write(f'    "{name}": {figure},{"  # above" * (figure > budgets[name])}\n')
