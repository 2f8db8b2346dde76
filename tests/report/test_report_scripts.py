"""The scripts of report.html by themselves, run by Node's test runner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scatlas.workflow.inline_page import joined_scripts
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
    script = joined_scripts(PAGE, SCRIPTS)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "innerHTML" not in script
    # Of one scope, each name is defined once.
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names))
    for i, name in enumerate(SCRIPTS):
        needed = re.findall(r'from "\./(\w+)\.js"', (PAGE / f"{name}.js").read_text())
        assert set(needed) <= set(SCRIPTS[:i]), f"{name}.js comes after what it imports"
