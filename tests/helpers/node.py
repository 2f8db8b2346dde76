"""Node, which runs the scripts of the pages by themselves.

    from tests.helpers import node as node_tools
    node = node_tools.node  # the fixture

Without Node tests are skipped; with SCATLAS_REQUIRE_BROWSER they fail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from scatlas.workflow.inline_page import joined_scripts


@pytest.fixture(scope="session")
def node() -> str:
    """Path of Node."""
    found = shutil.which("node")
    if not found and os.environ.get("SCATLAS_REQUIRE_BROWSER"):
        pytest.fail("needs node on PATH")
    if not found:
        pytest.skip("needs node on PATH")
    return found


def assert_units_pass(node: str, folder: Path) -> None:
    """Run the tests of scripts in a folder by Node's own runner."""
    files = sorted(folder.glob("*.test.mjs"))
    done = subprocess.run(
        [node, "--test", "--test-reporter=tap", *files], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "# fail 0" in done.stdout


def assert_readable(path: Path) -> None:
    """A script says what it is for, in lines of usual length: it is not minified."""
    lines = path.read_text().splitlines()
    assert lines[0].startswith("// "), "says what it is for"
    assert max(map(len, lines)) <= 110


def assert_joined(folder: Path, names: Sequence[str]) -> None:
    """Scripts become one of one scope: names are defined once, and after what they import."""
    script = joined_scripts(folder, names)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "innerHTML" not in script
    defined = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(defined) == len(set(defined))
    for i, name in enumerate(names):
        needed = re.findall(r'from "\./(\w+)\.js"', (folder / f"{name}.js").read_text())
        assert set(needed) <= set(names[:i]), f"{name}.js comes after what it imports"
