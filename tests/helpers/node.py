"""Node, which runs the scripts of the pages by themselves.

    from tests.helpers import node as node_tools
    node = node_tools.node  # the fixture

Without Node tests are skipped; with SCATLAS_REQUIRE_BROWSER they fail.
"""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def node() -> str:
    """Path of Node."""
    found = shutil.which("node")
    if not found and os.environ.get("SCATLAS_REQUIRE_BROWSER"):
        pytest.fail("needs node on PATH")
    if not found:
        pytest.skip("needs node on PATH")
    return found
