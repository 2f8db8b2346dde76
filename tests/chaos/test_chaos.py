"""After any fault the same command ends with the right bytes or with a sentence.

``bench/chaos.py`` runs thousands. To repeat one with its output:
``python bench/chaos.py --quick --seed 17 --only NUMBER``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.atlas import Atlas
from tests.chaos.faults import kind_of
from tests.chaos.machine import attempt

pytestmark = pytest.mark.workflow

SEED = 17
# Each of the 22 kinds once; `bench/chaos.py` runs as many as you like.
FAULTS = range(22)


@pytest.fixture(scope="module")
def atlas(shared: Path) -> Atlas:
    new = Atlas(shared / "chaos")
    new.folder.mkdir(exist_ok=True)
    new.make()
    return new


@pytest.mark.parametrize("number", FAULTS, ids=lambda n: f"{n}-{kind_of(n).replace(' ', '-')}")
def test_the_right_bytes_or_a_sentence(atlas: Atlas, number: int):
    outcome = attempt(atlas, SEED, number, quick=True)
    if outcome.end == "skipped":
        pytest.skip(outcome.why)
    assert outcome.end in ("right", "sentence"), f"{outcome.log}\n{outcome.why}"
