"""Round points of very many cells, as pixels: Agg draws one in 2.5 microseconds, this in 0.05."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import allow_rasterization
from matplotlib.collections import PathCollection
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from numpy.typing import NDArray

_PHASES = 8  # positions within a pixel along each axis
_FINE = 8  # parts of a pixel's side by which a disc covers it


def draw_points(ax: Axes, xy: NDArray[np.floating], area: float, **colour: Any) -> None:
    """Draw points of an area in square points, each over those before, with ``facecolors``, or
    ``array``, ``cmap`` and ``norm``.
    """
    points = _Points(
        [Path.unit_circle()], [area / 4], offsets=xy, offset_transform=ax.transData, linewidths=0,
        rasterized=True, **colour,
    )  # fmt: skip
    points.set_transform(IdentityTransform())
    ax.add_collection(points)


class _Points(PathCollection):
    """Points that are drawn as one image at the resolution of the file."""

    @allow_rasterization
    def draw(self, renderer: RendererBase) -> None:
        self.update_scalarmappable()
        colours = np.broadcast_to(self.get_facecolor(), (len(self.get_offsets()), 4))
        box, radius = self.axes.bbox, np.sqrt(self.get_sizes()[0]) * self.figure.dpi / 72
        left, bottom = int(box.x0), int(box.y0)
        image = np.zeros((int(box.y1) + 1 - bottom, int(box.x1) + 1 - left, 4))
        pixels = self.get_offset_transform().transform(self.get_offsets()) - (left, bottom)
        _stamp(np.asarray(pixels), colours, _discs(radius), image)
        image[..., :3] /= np.where(image[..., 3:] > 0, image[..., 3:], 1)
        gc = renderer.new_gc()
        self._set_gc_clip(gc)
        renderer.draw_image(gc, left, bottom, np.rint(255 * image).astype(np.uint8))
        gc.restore()


def _discs(radius: float) -> NDArray[np.float64]:
    """Shares of pixels that a disc covers, ``[phases, phases, n, n]``, by the place of its centre
    in the middle one.
    """
    reach = int(radius) + 1
    fine = (np.arange(-reach * _FINE, (reach + 1) * _FINE) + 0.5) / _FINE
    square = (fine - (np.arange(_PHASES)[:, None] + 0.5) / _PHASES) ** 2
    inside = square[:, None, :, None] + square[None, :, None, :] <= radius**2
    n = 2 * reach + 1
    return inside.reshape(_PHASES, _PHASES, n, _FINE, n, _FINE).mean(axis=(3, 5))


@njit(nogil=True, cache=True)
def _stamp(
    xy: NDArray[np.float64],
    colours: NDArray[np.float64],
    discs: NDArray[np.float64],
    image: NDArray[np.float64],
) -> None:
    """Lay discs over an image of premultiplied colours, the first row at the bottom."""
    n = discs.shape[-1]
    for k in range(len(xy)):
        if not (abs(xy[k, 0]) < 1e6 and abs(xy[k, 1]) < 1e6):
            continue
        x, y = int(np.floor(xy[k, 0])), int(np.floor(xy[k, 1]))
        disc = discs[int((xy[k, 1] - y) * _PHASES), int((xy[k, 0] - x) * _PHASES)]
        for i in range(max(0, n // 2 - y), min(n, len(image) + n // 2 - y)):
            for j in range(max(0, n // 2 - x), min(n, image.shape[1] + n // 2 - x)):
                pixel = image[y + i - n // 2, x + j - n // 2]
                for c in range(4):
                    pixel[c] += disc[i, j] * (colours[k, c] - pixel[c])
