"""The door: plates in, canonical stores out, both by row blocks in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._lazy import exports

if TYPE_CHECKING:
    from scatlas.io.atlas import assemble
    from scatlas.io.atomic import atomic_path
    from scatlas.io.cells import read_cells, write_cells
    from scatlas.io.concat import concat_on_disk
    from scatlas.io.counts import CountsSource, open_counts
    from scatlas.io.lazy import read_lazy, read_matrix
    from scatlas.io.load import load_plate
    from scatlas.io.manifest import checksum, write_json
    from scatlas.io.obs import METRICS, open_tables
    from scatlas.io.pca import read_components, write_embedding, write_pca
    from scatlas.io.pseudobulk import merge_sums
    from scatlas.io.size import parse_bytes
    from scatlas.io.subset import read_subset
    from scatlas.io.writer import CsrWriter, in_place

# Loaded on first use: importing scatlas stays quick.
_HOMES = {
    "METRICS": "obs",
    "CountsSource": "counts",
    "CsrWriter": "writer",
    "assemble": "atlas",
    "atomic_path": "atomic",
    "checksum": "manifest",
    "concat_on_disk": "concat",
    "in_place": "writer",
    "load_plate": "load",
    "merge_sums": "pseudobulk",
    "open_counts": "counts",
    "open_tables": "obs",
    "parse_bytes": "size",
    "read_cells": "cells",
    "read_components": "pca",
    "read_lazy": "lazy",
    "read_matrix": "lazy",
    "read_subset": "subset",
    "write_cells": "cells",
    "write_embedding": "pca",
    "write_json": "manifest",
    "write_pca": "pca",
}
__all__ = [
    "METRICS",
    "CountsSource",
    "CsrWriter",
    "assemble",
    "atomic_path",
    "checksum",
    "concat_on_disk",
    "in_place",
    "load_plate",
    "merge_sums",
    "open_counts",
    "open_tables",
    "parse_bytes",
    "read_cells",
    "read_components",
    "read_lazy",
    "read_matrix",
    "read_subset",
    "write_cells",
    "write_embedding",
    "write_json",
    "write_pca",
]


__getattr__, __dir__ = exports(__name__, _HOMES)
