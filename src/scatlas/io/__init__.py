"""Reads plates and writes canonical stores, both by row blocks in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.io.files.atomic import atomic_path as atomic_path
    from scatlas.io.files.checksums import checksum as checksum
    from scatlas.io.files.checksums import write_json as write_json
    from scatlas.io.matrices.counts_source import open_counts as open_counts
    from scatlas.io.matrices.csr_writer import CsrWriter as CsrWriter
    from scatlas.io.matrices.csr_writer import in_place as in_place
    from scatlas.io.matrices.lazy import read_lazy as read_lazy
    from scatlas.io.matrices.lazy import read_matrix as read_matrix
    from scatlas.io.matrices.source import CountsSource as CountsSource
    from scatlas.io.matrices.subset import read_subset as read_subset
    from scatlas.io.products.annotators import read_annotator as read_annotator
    from scatlas.io.products.annotators import write_annotator as write_annotator
    from scatlas.io.products.assemble_atlas import assemble as assemble
    from scatlas.io.products.concat_plates import concat_on_disk as concat_on_disk
    from scatlas.io.products.embeddings import write_embedding as write_embedding
    from scatlas.io.products.embeddings import write_pca as write_pca
    from scatlas.io.products.gene_copy import join_pieces as join_pieces
    from scatlas.io.products.gene_copy import write_piece as write_piece
    from scatlas.io.products.gram_store import StoredGram as StoredGram
    from scatlas.io.products.gram_store import write_gram as write_gram
    from scatlas.io.products.group_sums import merge_sums as merge_sums
    from scatlas.io.products.load_plate import load_plate as load_plate
    from scatlas.io.products.publish import publish as publish
    from scatlas.io.products.split_samples import list_samples as list_samples
    from scatlas.io.products.split_samples import split_samples as split_samples
    from scatlas.io.tables.cell_parquet import read_cells as read_cells
    from scatlas.io.tables.cell_parquet import write_cells as write_cells
    from scatlas.io.tables.table import METRICS as METRICS
    from scatlas.io.tables.table import open_tables as open_tables

__getattr__, __dir__, __all__ = exports(__name__)
