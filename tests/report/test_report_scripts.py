"""The scripts of report.html by themselves, run by Node's test runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from scatlas.workflow.report._page import SCRIPTS
from tests.helpers import node as node_tools

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src/scatlas/workflow/report/page"
node = node_tools.node


def test_sorting_and_search(node: str):
    node_tools.assert_units_pass(node, ROOT / "tests/report")


@pytest.mark.parametrize("path", sorted(PAGE.glob("*.js")), ids=lambda path: path.stem)
def test_a_module_is_readable(path: Path):
    node_tools.assert_readable(path)


def test_every_module_is_on_the_page():
    assert {path.stem for path in PAGE.glob("*.js")} == set(SCRIPTS)
    node_tools.assert_joined(PAGE, SCRIPTS)
