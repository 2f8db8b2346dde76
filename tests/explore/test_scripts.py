"""The scripts of the pages by themselves, run by Node's test runner; without Node tests are
skipped, and with SCATLAS_REQUIRE_BROWSER they fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scatlas.pl._style import colours
from scatlas.workflow.explore import _build as explore
from scatlas.workflow.inline_page import joined_scripts
from scatlas.workflow.report._page import SCRIPTS

ROOT = Path(__file__).parents[2]
PAGES = {
    ROOT / "src/scatlas/workflow/explore/page": explore.SCRIPTS + explore.OF_EFFECTS,
    ROOT / "src/scatlas/workflow/report/page": SCRIPTS,
}


@pytest.fixture(scope="session")
def node() -> str:
    """Path of Node."""
    found = shutil.which("node")
    if not found:
        missing = pytest.fail if os.environ.get("SCATLAS_REQUIRE_BROWSER") else pytest.skip
        missing("needs node on PATH")
    return found


@pytest.mark.parametrize("folder", ["explore/page", "report"])
def test_units_of_a_page(node: str, folder: str):
    files = sorted((ROOT / "tests" / folder).glob("*.test.mjs"))
    command = [node, "--test", "--test-reporter=tap", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "# fail 0" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_modules_are_readable_and_become_one_script(page: Path):
    """They are not minified; in the script names are defined once, and after what they import."""
    names = PAGES[page]
    assert {path.stem for path in page.glob("*.js")} == set(names)
    for i, name in enumerate(names):
        text = (page / f"{name}.js").read_text()
        assert text.startswith("// "), "says what it is for"
        assert max(map(len, text.splitlines())) <= 110
        needed = re.findall(r'from "\./(\w+)\.js"', text)
        assert set(needed) <= set(names[:i]), f"{name}.js comes after what it imports"
    script = joined_scripts(page, names)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "innerHTML" not in script
    defined = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(defined) == len(set(defined))


def test_colours_are_those_of_the_figures(node: str):
    page = ROOT / "src/scatlas/workflow/explore/page"
    source = (
        f"import('{page.as_uri()}/colours.js').then(({{ categoryColours, hexOfRgb }}) =>"
        "console.log(JSON.stringify([3, 7, 40].map((n) => categoryColours(n).map(hexOfRgb)))))"
    )
    done = subprocess.run([node, "--eval", source], capture_output=True, text=True, check=True)
    for n, found in zip((3, 7, 40), json.loads(done.stdout), strict=True):
        for ours, theirs in zip(colours(n), found, strict=True):
            parts = [[int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in (ours, theirs)]
            assert max(abs(a - b) for a, b in zip(*parts, strict=True)) <= 1  # rounding of halves
