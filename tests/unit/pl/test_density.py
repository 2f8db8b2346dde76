"""The map of very many cells as a density: what a pixel shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scatlas import pl
from scatlas.pl import _density

N = 5000


@pytest.fixture(scope="module")
def cells() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 9, N)
    return (rng.normal(size=(N, 2)) + 8 * codes[:, None]).astype(np.float32), codes


def reader(xy: np.ndarray, values: np.ndarray):
    return lambda lo, hi: (xy[lo:hi], values[lo:hi])


def test_each_cell_is_in_one_pixel_whatever_is_read_at_once(
    cells: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    xy, codes = cells

    def ones(codes: np.ndarray) -> np.ndarray:
        return np.stack([np.ones(codes.size), codes], axis=1)

    def count() -> tuple[_density.Survey, _density.Pixels]:
        read = reader(xy, codes)
        seen = _density.survey(read, N, 0)
        return seen, _density.count_pixels(read, N, seen, ones)

    seen, whole = count()
    monkeypatch.setattr(_density, "_CELLS_AT_ONCE", 77)
    seen_in_parts, parts = count()
    assert whole.counts.sum() == N
    np.testing.assert_array_equal(whole.sums[..., 0], whole.counts)
    assert whole.sums[..., 1].sum() == codes.sum()
    for one, other in zip([*seen, *whole], [*seen_in_parts, *parts], strict=True):
        np.testing.assert_array_equal(one, other)
    # The lowest and leftmost cell is in the picture, in the lower half.
    row, column = np.argwhere(whole.counts)[0]
    assert row < _density.PIXELS / 2
    assert column < _density.PIXELS / 2


@pytest.mark.parametrize("names", [[f"group {i}" for i in range(9)], None])
def test_pictures_do_not_depend_on_what_is_read_at_once(
    cells: tuple[np.ndarray, np.ndarray],
    names: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    xy, codes = cells
    values = codes if names else np.where(codes < 0, np.nan, codes / 3)
    for size in (2**18, 1000):
        monkeypatch.setattr(_density, "_CELLS_AT_ONCE", size)
        made = pl.umap_density(reader(xy, values), N, "group", names=names)
        pl.save(made, tmp_path / f"{size}.png")
        assert "5,000 cells" in made.axes[0].get_title(loc="left")
    assert (tmp_path / "1000.png").read_bytes() == (tmp_path / f"{2**18}.png").read_bytes()


def test_a_rare_group_is_seen_and_has_its_colour() -> None:
    """One cell alone, and a pixel of a thousand."""
    xy = np.zeros((1001, 2), np.float32)
    xy[-1] = 1
    codes = np.zeros(1001, np.int64)
    codes[-1] = 1
    made = pl.umap_density(reader(xy, codes), 1001, "group", names=["large", "rare"])
    (image,) = made.axes[0].images
    pixels = np.asarray(image.get_array())
    alone = pixels[np.argwhere(pixels[..., 3] > 0)[-1][0], np.argwhere(pixels[..., 3] > 0)[-1][1]]
    crowd = pixels[np.argwhere(pixels[..., 3] > 0)[0][0], np.argwhere(pixels[..., 3] > 0)[0][1]]
    np.testing.assert_allclose(255 * alone[:3], [0xE6, 0x9F, 0x00], atol=0.5)
    np.testing.assert_allclose(255 * crowd[:3], [0x00, 0x72, 0xB2], atol=0.5)
    assert 0.4 < alone[3] < crowd[3] <= 1


def test_every_so_many_cells_are_sampled(
    cells: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    xy, codes = cells
    monkeypatch.setattr(_density, "_SAMPLED", 700)
    monkeypatch.setattr(_density, "_CELLS_AT_ONCE", 333)
    read = reader(xy, codes)
    found = _density.count_pixels(
        read, N, _density.survey(read, N, 0), lambda codes: codes[:, None] * 1.0
    )
    np.testing.assert_array_equal(found.values, codes[::8])
    np.testing.assert_array_equal(found.xy, xy[::8])


def test_rare_categories_have_their_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_density, "_SAMPLED", 1000)
    rng = np.random.default_rng(0)
    codes = np.concatenate([rng.integers(0, 8, 20_000), np.full(30, 8)])
    xy = (rng.normal(size=(codes.size, 2)) + 20 * codes[:, None]).astype(np.float32)
    names = [f"group {i}" for i in range(9)]
    made = pl.umap_density(reader(xy, codes), codes.size, "group", names=names)
    assert {text.get_text() for text in made.axes[0].texts} == {str(i) for i in range(1, 10)}


def test_one_pixel_alone_is_drawn_with_its_neighbours() -> None:
    image = np.zeros((5, 5, 4))
    image[2, 2] = (1, 0.5, 0, 0.45)
    image[2, 4] = (0, 0.5, 1, 1)
    drawn = _density._spread(image)
    np.testing.assert_array_equal(drawn[2, 2], image[2, 2])
    np.testing.assert_array_equal(drawn[1, 1], image[2, 2])
    np.testing.assert_allclose(drawn[1, 3], (image[2, 2] + image[2, 4]) / 2)
    assert not drawn[0].any()
