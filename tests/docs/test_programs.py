"""Pages made from the code: docs/programs.md, llms.txt, and the picture of CONTRIBUTING.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.workflow import warm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import data_way  # noqa: E402
import programs  # noqa: E402

pytestmark = pytest.mark.workflow


def test_the_page_is_what_the_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", warm.python())
    monkeypatch.setenv("PATH", warm.environment()["PATH"])
    assert programs.page() == programs.PAGE.read_text(), programs.BEGIN


def test_llms_txt_links_to_pages_that_exist() -> None:
    text = (ROOT / "llms.txt").read_text()
    assert re.match(r"# scatlas\n\n> ", text)
    links = re.findall(r"\]\((.+?)\)", text)
    assert "docs/programs.md" in links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_way_of_the_data_is_that_of_the_rules_and_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", warm.python())
    monkeypatch.setenv("PATH", warm.environment()["PATH"])
    assert data_way.page() == data_way.PAGE.read_text(), data_way.BEGIN
