"""After any fault the same command ends with the right bytes or with a sentence.

``bench/chaos.py`` runs thousands. To repeat one with its output:
``python bench/chaos.py --quick --seed 17 --only NUMBER``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.atlas import Atlas
from tests.chaos.faults import KINDS, kind_of
from tests.chaos.machine import attempt
from tests.conftest import WEEK

pytestmark = pytest.mark.workflow

SEED = 17
# Kinds that tests/workflow does not test. Each week four of every kind.
ALONE_HERE = ("byte flipped", "plates mixed up", "two runs at once", "inputs change in a run")
FAULTS = [list(KINDS).index(kind) for kind in ALONE_HERE]
FAULTS_OF_A_WEEK = range(4 * len(KINDS))


@pytest.fixture(scope="module")
def atlas(shared: Path) -> Atlas:
    new = Atlas(shared / "chaos")
    new.folder.mkdir(exist_ok=True)
    new.make()
    return new


def label(number: int) -> str:
    return f"{number}-{kind_of(number).replace(' ', '-')}"


@pytest.mark.parametrize("number", FAULTS, ids=label)
def test_the_right_bytes_or_a_sentence(atlas: Atlas, number: int):
    check(atlas, SEED, number)


@pytest.mark.weekly
@pytest.mark.parametrize("number", FAULTS_OF_A_WEEK, ids=label)
def test_faults_of_the_week(atlas: Atlas, number: int):
    check(atlas, WEEK, number)


def check(atlas: Atlas, seed: int, number: int) -> None:
    outcome = attempt(atlas, seed, number, quick=True)
    if outcome.end == "skipped":
        pytest.skip(outcome.why)
    assert outcome.end in ("right", "sentence"), f"seed {seed}: {outcome.log}\n{outcome.why}"
