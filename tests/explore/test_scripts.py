"""The modules of explore.html by themselves, run by Node's test runner."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scatlas.pl._style import colours
from tests.helpers import node as node_tools

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src/scatlas/workflow/explore/page"
node = node_tools.node


def test_units_of_the_page(node: str):
    node_tools.assert_units_pass(node, ROOT / "tests/explore/page")


@pytest.mark.parametrize("path", sorted(PAGE.glob("*.js")), ids=lambda path: path.stem)
def test_a_module_is_readable(path: Path):
    node_tools.assert_readable(path)


def test_colours_are_those_of_the_figures(node: str):
    source = (
        f"import('{PAGE.as_uri()}/colours.js').then(({{ categoryColours, hexOfRgb }}) =>"
        "console.log(JSON.stringify([3, 7, 40].map((n) => categoryColours(n).map(hexOfRgb)))))"
    )
    done = subprocess.run([node, "--eval", source], capture_output=True, text=True, check=True)
    for n, found in zip((3, 7, 40), json.loads(done.stdout), strict=True):
        for ours, theirs in zip(colours(n), found, strict=True):
            parts = [[int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in (ours, theirs)]
            assert max(abs(a - b) for a, b in zip(*parts, strict=True)) <= 1  # rounding of halves
