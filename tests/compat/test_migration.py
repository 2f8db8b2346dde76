"""docs/migration.md agrees with the signatures of scatlas and scanpy."""

from __future__ import annotations

import re

import pytest

from tests.compat import migration

PRESENT = {entry.name: entry for entry in migration.present()}
WITH_SCANPY = [name for name, entry in PRESENT.items() if entry.scanpys is not None]


def test_each_function_that_scanpy_has_too_is_in_the_table() -> None:
    assert migration.shared_functions() - set(PRESENT) == set(), (
        f"say in {migration.FACTS.name} what differs"
    )
    assert len(WITH_SCANPY) >= 13


@pytest.mark.parametrize("name", WITH_SCANPY)
def test_each_parameter_that_differs_has_its_reason(name: str) -> None:
    entry = PRESENT[name]
    ours, theirs = set(entry.parameters), set(entry.scanpys_parameters)
    assert set(entry.adds) & ours == ours - theirs
    assert set(entry.lacks) == theirs - ours
    assert set(entry.defaults) == set(entry.other_defaults())


def test_no_entry_is_of_a_function_that_nobody_has() -> None:
    entries = migration.entries()
    assert [e.name for e in entries if e.ours is e.scanpys is None and not e.theirs] == []


def test_the_page_is_up_to_date_and_without_an_empty_cell() -> None:
    text = migration.PAGE.read_text()
    assert text == migration.render(), "run python -m tests.compat.migration --write"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 40
    assert [row for row in rows if re.search(r"\|\s*\|", row)] == []


@pytest.mark.parametrize("name", PRESENT)
def test_what_is_said_of_closeness_has_its_test(name: str) -> None:
    text = (migration.HERE.parent / PRESENT[name].test).read_text()
    assert re.search(rf"\b{name.split('.')[1]}\b", text)


def test_a_parameter_that_nothing_is_said_of_is_seen() -> None:
    entry = PRESENT["pp.normalize_total"]
    silent = migration.Entry(**{**_said(entry), "adds": {}})
    assert set(silent.parameters) - set(silent.scanpys_parameters) != set(silent.adds)


def _said(entry: migration.Entry) -> dict:
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__}
