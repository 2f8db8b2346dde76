"""How many cells of an atlas are sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.byte_sizes import parse_bytes
from scatlas.compute.memory import map_bytes
from scatlas.errors import InputError

if TYPE_CHECKING:
    from scatlas.workflow.config.sections import Map, Subset

# Cells of a sample whose size is not given, if it cannot have all cells.
SAMPLE_CELLS = 1_000_000
# Cells up to which igraph finds the clusters, on one core. Its memory and time grow by copies of
# the graph; beyond, the rounds use all threads, or a GPU.
IGRAPH_CELLS = 1_000_000


def sample_size(n_cells: int, n_comps: int, subset: Subset, of_map: Map) -> int:
    """Number of cells to sample: all, if the map is computed with all of them. It is an error if
    ``map.method`` is full and that takes more memory than ``map.memory``.
    """
    if subset.n_cells is not None:
        return min(subset.n_cells, n_cells)
    needed, memory = map_bytes(n_cells, n_comps), parse_bytes(of_map.memory)
    if of_map.method == "full" and needed > memory:
        msg = (
            f"a map computed with all {n_cells:,} cells takes about {needed / 1e9:,.1f} GB, but "
            f"map.memory is {of_map.memory}: raise it, or set map.method to project"
        )
        raise InputError(msg)
    if of_map.method != "project" and needed <= memory:
        return n_cells
    return min(SAMPLE_CELLS, n_cells)
