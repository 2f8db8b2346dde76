"""Figures of new plates on an atlas: which plates are drawn, and what is marked."""

from __future__ import annotations

import numpy as np
import pytest

from scatlas import pl
from scatlas.errors import InputError
from scatlas.pl._style import BLUE, ORANGE


def cells(n: int, n_unlike: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(n).normal(size=(n, 2)), np.arange(n) < n_unlike


def test_of_many_plates_those_with_the_most_unlike_cells_are_drawn() -> None:
    atlas = np.random.default_rng(0).normal(size=(100, 2))
    plates = {f"p{i}": cells(50, i) for i in range(15)}
    made = pl.new_cells(atlas, plates)
    titles = [ax.get_title(loc="left") for ax in made.axes if ax.axison]
    assert [title.partition(":")[0] for title in titles] == [f"p{i}" for i in range(3, 15)]
    assert "50 cells" in titles[-1]
    assert "28.0% unlike" in titles[-1]
    with pytest.raises(InputError, match="no plate to draw"):
        pl.new_cells(atlas, {})


@pytest.mark.parametrize("smallest", [0.3, float("nan")])
def test_plates_below_the_line_are_marked(smallest: float) -> None:
    known = {"a": 0.4, "b": 0.45, "without variance": float("nan")}
    made = pl.held_variance(known, {"like": 0.42, "unlike": 0.1}, smallest)
    drawn = {line.get_color(): list(line.get_ydata()) for line in made.axes[0].lines}
    if np.isfinite(smallest):
        assert (drawn[BLUE], drawn[ORANGE]) == ([42.0], [10.0])
    else:
        assert drawn[BLUE] == [42.0, 10.0]
        assert ORANGE not in drawn
    with pytest.raises(InputError, match="no plate to draw"):
        pl.held_variance(known, {}, smallest)
