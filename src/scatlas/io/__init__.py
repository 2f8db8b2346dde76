"""Reads plates and writes canonical stores, both by row blocks in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.io.files.atomic import atomic_path
    from scatlas.io.files.checksums import checksum, write_json
    from scatlas.io.matrices.counts_source import open_counts
    from scatlas.io.matrices.csr_writer import CsrWriter, in_place
    from scatlas.io.matrices.lazy import read_lazy, read_matrix
    from scatlas.io.matrices.source import CountsSource
    from scatlas.io.matrices.subset import read_subset
    from scatlas.io.products.assemble_atlas import assemble
    from scatlas.io.products.concat_plates import concat_on_disk
    from scatlas.io.products.embeddings import read_components, write_embedding, write_pca
    from scatlas.io.products.gene_copy import write_gene_copy
    from scatlas.io.products.gram_store import StoredGram, write_gram
    from scatlas.io.products.group_sums import merge_sums
    from scatlas.io.products.load_plate import load_plate
    from scatlas.io.products.publish import publish
    from scatlas.io.products.split_samples import list_samples, split_samples
    from scatlas.io.tables.cell_parquet import read_cells, write_cells
    from scatlas.io.tables.table import METRICS, open_tables

# Module of each name, which loads on first use so that importing scatlas stays quick.
_EXPORTS = {
    "METRICS": "tables.table",
    "CountsSource": "matrices.source",
    "CsrWriter": "matrices.csr_writer",
    "StoredGram": "products.gram_store",
    "assemble": "products.assemble_atlas",
    "atomic_path": "files.atomic",
    "checksum": "files.checksums",
    "concat_on_disk": "products.concat_plates",
    "in_place": "matrices.csr_writer",
    "list_samples": "products.split_samples",
    "load_plate": "products.load_plate",
    "merge_sums": "products.group_sums",
    "publish": "products.publish",
    "open_counts": "matrices.counts_source",
    "open_tables": "tables.table",
    "read_cells": "tables.cell_parquet",
    "read_components": "products.embeddings",
    "read_lazy": "matrices.lazy",
    "read_matrix": "matrices.lazy",
    "read_subset": "matrices.subset",
    "split_samples": "products.split_samples",
    "write_cells": "tables.cell_parquet",
    "write_embedding": "products.embeddings",
    "write_gene_copy": "products.gene_copy",
    "write_gram": "products.gram_store",
    "write_json": "files.checksums",
    "write_pca": "products.embeddings",
}
__all__ = [
    "METRICS",
    "CountsSource",
    "CsrWriter",
    "StoredGram",
    "assemble",
    "atomic_path",
    "checksum",
    "concat_on_disk",
    "in_place",
    "list_samples",
    "load_plate",
    "merge_sums",
    "open_counts",
    "open_tables",
    "publish",
    "read_cells",
    "read_components",
    "read_lazy",
    "read_matrix",
    "read_subset",
    "split_samples",
    "write_cells",
    "write_embedding",
    "write_gene_copy",
    "write_gram",
    "write_json",
    "write_pca",
]

__getattr__, __dir__ = exports(__name__, _EXPORTS)
