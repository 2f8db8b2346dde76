"""One pass over the row blocks of a matrix, in memory or on disk; knows kernels and compute."""

from scatlas.blocks.checks import check, check_type, passes, sum_repeats
from scatlas.blocks.compressed import select_sorted, to_csr
from scatlas.blocks.row_blocks import (
    Block,
    csr,
    is_sparse,
    join,
    join_lists,
    map_blocks,
    on_host,
    row_slices,
    select_genes,
    select_rows,
    spread_genes,
    view,
)
from scatlas.blocks.streaming import (
    apply,
    cluster_client,
    for_each,
    map_in_order,
    reduce,
    stream,
    stream_groups,
    to_memory,
    with_progress,
)

__all__ = [
    "Block",
    "apply",
    "check",
    "check_type",
    "cluster_client",
    "csr",
    "for_each",
    "is_sparse",
    "join",
    "join_lists",
    "map_blocks",
    "map_in_order",
    "on_host",
    "passes",
    "reduce",
    "row_slices",
    "select_genes",
    "select_rows",
    "select_sorted",
    "spread_genes",
    "stream",
    "stream_groups",
    "sum_repeats",
    "to_csr",
    "to_memory",
    "view",
    "with_progress",
]
