"""Which clusters the cells of each plate are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from natsort import natsorted
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import pdist

from scatlas.errors import InputError
from scatlas.pl._style import MAX_LETTERS, figure, short_names, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_NAMED_PLATES = 100


@styled
def cluster_shares(n_cells: pd.DataFrame) -> Figure:
    """Share of each plate's cells in each cluster, similar plates side by side.

    Up to 100 plates are named. The highest hundredth of the shares has one colour.

    Parameters
    ----------
    n_cells
        Table [clusters x plates] of numbers of cells.

    Raises
    ------
    InputError
        There is no plate or no cluster.
    """
    if not n_cells.size:
        raise InputError("there is no plate or no cluster to draw: give the cells of at least one")
    n_cells = n_cells.loc[natsorted(n_cells.index)]
    counts = n_cells.to_numpy(np.float64).T
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(shares) > 1:
        # Hellinger's distance, for which small shares count, too.
        distance = pdist(np.sqrt(shares))
        order = leaves_list(optimal_leaf_ordering(linkage(distance, "average"), distance))
        shares, n_cells = shares[order], n_cells.iloc[:, order]
    n_plates, n_clusters = shares.shape
    named = n_plates <= _NAMED_PLATES
    # Names have 0.11 inches at least, which a line of 7 points takes.
    width = max(2.4, min(9.0, 0.24 * n_clusters), 0.11 * n_clusters)
    clusters = short_names(map(str, n_cells.index), MAX_LETTERS)
    below = 1.2 + 0.06 * max(map(len, clusters))
    made = figure(3.2 + width, below + (0.14 * n_plates if named else 6.0))
    ax = made.subplots()
    top = max(1.0, float(np.percentile(shares, 99)))
    image = ax.imshow(
        shares, cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest"
    )
    names = short_names(map(str, n_cells.columns), MAX_LETTERS) if named else []
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_xticks(range(n_clusters), clusters, rotation=90, fontsize=7)
    ax.set(xlabel="cluster", ylabel="" if named else f"{n_plates} plates")
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set_title("share of each plate's cells in each cluster")
    made.colorbar(image, ax=ax, shrink=0.6, label="% of the plate's cells", extend="max")
    return made
