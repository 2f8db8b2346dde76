"""Captures whose doublets are noise: a sentence instead of predictions."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from scatlas.matrix.scrublet import Capture
from scatlas.matrix.scrublet import Doublets as Scores
from scatlas.workflow.config.sections import Doublets

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "scripts/doublets.py"))


def scores(n_cells: int, n_doublets: int, *, detectable: float = 1.0) -> Scores:
    """Two captures, the second of which has the doublets."""
    score = np.full(2 * n_cells, 0.1)
    score[n_cells : n_cells + n_doublets] = 0.5
    sim = np.where(np.arange(1000) < 1000 * detectable, 0.6, 0.1)
    parents = np.zeros((1000, 2), np.int64)
    captures = {
        name: Capture(first + np.arange(n_cells), sim, parents, 0.3, 10)
        for name, first in (("lane0", 0), ("lane1", n_cells))
    }
    return Scores(score, score > 0.3, captures)


@pytest.mark.parametrize(
    ("found", "options", "n_predicted", "said"),
    [
        (scores(600, 30), {}, 30, None),
        (scores(600, 88), {}, 88, None),
        (
            scores(600, 95),
            {},
            0,
            "by their scores 15.8% of the cells are doublets, 5.0% are expected: none",
        ),
        # A tenth of the simulated doublets are above the threshold, so there are ten times as many.
        (scores(600, 12, detectable=0.1), {}, 0, "by their scores 20.0% of the cells"),
        (scores(600, 6), {}, 6, "by their scores 1.0% of the cells are doublets, 5.0% are"),
        (scores(499, 25), {}, 0, "499 cells are too few to tell doublets (doublets.min_cells)"),
        (scores(499, 25), {"min_cells": 100}, 25, None),
        (scores(60, 40), {"threshold": 0.3}, 40, None),
    ],
)
def test_doubtful_predictions_are_sentences(caplog, found, options, n_predicted, said):
    wanted = Doublets(**options)
    kept, doubts = SCRIPT["without_doubtful_calls"](found, wanted, "p1")
    assert kept.predicted.sum() == n_predicted
    np.testing.assert_array_equal(kept.score, found.score)
    assert doubts.get("lane1", "").startswith(said or "")
    assert ("lane1" in doubts) == (said is not None)
    if said:
        assert f"plate p1, lane1: {said}" in caplog.text
        assert (kept.captures["lane1"].threshold is None) == (n_predicted == 0)
