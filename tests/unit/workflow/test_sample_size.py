"""How many cells are sampled: the config and the data decide, not the machine."""

from __future__ import annotations

import pytest

from scatlas.compute.memory import map_bytes
from scatlas.errors import InputError
from scatlas.workflow.config.loading import load
from scatlas.workflow.sizes import SAMPLE_CELLS, sample_size


@pytest.mark.parametrize(
    ("n_cells", "subset", "method", "memory", "expected"),
    [
        (500_000, None, "auto", "16GB", 500_000),
        (3_000_000, None, "auto", "16GB", 3_000_000),
        (95_600_000, None, "auto", "16GB", SAMPLE_CELLS),
        (3_000_000, None, "auto", "1GB", SAMPLE_CELLS),
        (3_000_000, None, "project", "1000GB", SAMPLE_CELLS),
        (500_000, None, "project", "1000GB", 500_000),
        (11_400_000, None, "full", "60GB", 11_400_000),
        (500_000, 20_000, "auto", "16GB", 20_000),
        (500_000, 20_000, "project", "16GB", 20_000),
        (500, 20_000, "auto", "16GB", 500),
    ],
)
def test_the_number_of_sampled_cells(n_cells, subset, method, memory, expected):
    config = load({"subset": {"n_cells": subset}, "map": {"method": method, "memory": memory}})
    assert sample_size(n_cells, 50, config.subset, config.map) == expected


def test_a_map_that_does_not_fit_is_refused():
    config = load({"map": {"method": "full"}})
    refused = (
        r"a map computed with all 95,600,000 cells takes about 411.1 GB, but map.memory is 16GB: "
        "raise it, or set map.method to project"
    )
    with pytest.raises(InputError, match=refused):
        sample_size(95_600_000, 50, config.subset, config.map)
    assert map_bytes(95_600_000, 50) == pytest.approx(411.08e9)
