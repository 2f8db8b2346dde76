"""Values of genes for all cells: ``sa.get.gene``, ``sa.get.genes``."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from scatlas import blocks, elements
from scatlas.columns import as_names, close_names, gene_positions
from scatlas.compute.progress import progress, progress_meter
from scatlas.errors import InputError
from scatlas.io.files.anndata_file import Store
from scatlas.io.matrices.lazy import read_lazy, read_matrix, stored_x
from scatlas.io.products.gene_copy import NAME, GeneCopy, find_gene_copy
from scatlas.kernels.counts.normalize_cpu import log1p_into, scale_values_into
from scatlas.matrix.measured_genes import MeasuredGenes
from scatlas.matrix.size_factors import reciprocal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)
_COUNTS = "counts"
_MAX_NAMED_PLATES = 5


def gene(source: AnnData | Path | str, name: str, *, layer: str | None = None) -> NDArray[Any]:
    """Values of one gene for all cells.

    Of an atlas of the workflow this may be any gene that its plates measure: the counts of all, or
    of the chosen genes (``by_gene.genes``), lie gene after gene beside the atlas, in
    ``by_gene.zarr``, from which a gene of a million cells takes some milliseconds. Other genes take
    one pass over ``plates/*/counts.zarr`` beside the atlas, with a bar and the time left. For this
    `source` is the path or address of the atlas, or an AnnData that :func:`scatlas.read_lazy` has
    opened from there and whose X has not been changed. Genes of any other AnnData are those of its
    ``var_names``.

    Parameters
    ----------
    source
        Path or address of an AnnData file; or an AnnData, in memory, on a GPU or with a Dask X.
    name
        Name of the gene in ``var_names``, or else in another column of ``var`` with names.
    layer
        ``"counts"`` for the counts of an atlas; or a key of ``layers`` to read in place of X.

    Returns
    -------
    NumPy array ``[n_cells]`` in the order of ``obs_names`` and in the type of X: of an atlas
    float32, log(1 + x) of the counts divided by the size factor of the cell, with the bits of an X
    from a CPU; counts are unsigned whole numbers. Cells of plates that do not measure the gene have
    0, and a line in the log names these plates.

    Raises
    ------
    InputError
        There is no such gene, layer or file, several genes have the name, or a file is damaged.

    Examples
    --------
    >>> cd3d = sa.get.gene("results/atlas.zarr", "CD3D")
    >>> adata.obs["CD3D"] = sa.get.gene(adata, "CD3D")
    >>> counts = sa.get.gene("results/atlas.zarr", "CD3D", layer="counts")
    """
    return genes(source, [name], layer=layer)[:, 0]


def genes(
    source: AnnData | Path | str, names: Sequence[str], *, layer: str | None = None
) -> NDArray[Any]:
    """Values of several genes for all cells; those that need a pass over all cells share it.

    Parameters
    ----------
    source, layer
        As for :func:`gene`.
    names
        Names of the genes.

    Returns
    -------
    NumPy array ``[n_cells, n_genes]``, one gene after the other in memory (Fortran's order).

    Raises
    ------
    InputError
        As for :func:`gene`.
    """
    genes_of = _Genes.open(source, layer)
    columns: dict[int, NDArray[Any]] = {}
    in_x: dict[int, int] = {}
    in_plates: dict[int, int] = {}
    names = as_names(names, "names")
    for i, name in enumerate(names):
        match genes_of.find(str(name)):
            case GeneCopy() as copy, position:
                columns[i] = _from_copy(copy, position, as_counts=layer == _COUNTS)
            case MeasuredGenes(), position:
                in_plates[i] = position
            case _, position:
                in_x[i] = position
    for numbers, read in ((in_x, genes_of.read_x), (in_plates, genes_of.read_plates)):
        if numbers:
            wanted = sorted({*numbers.values()})
            values = read(wanted)
            for i, position in numbers.items():
                columns[i] = values[:, wanted.index(position)]
    if not columns:
        return np.zeros((genes_of.n_cells, 0), np.float32, order="F")
    return np.stack([columns[i] for i in range(len(names))]).T


@dataclass
class _Genes:
    """Where the genes of a source are: in its own matrix, the copy by gene, the plates' counts."""

    source: str  # in messages
    layer: str | None
    n_cells: int
    var: pd.DataFrame
    store: Store | None  # the atlas that has all cells of the source, in order
    open_x: Callable[[], Any] | None  # the own matrix; None: only counts beside it are wanted

    @classmethod
    def open(cls, source: AnnData | Path | str, layer: str | None) -> _Genes:
        if isinstance(source, str | Path):
            return cls._open_file(source, layer)
        elements.check_not_backed(source)
        store = stored_x(source.X)
        is_own = layer != _COUNTS or layer in source.layers or store is None
        x = elements.get_matrix(source, layer=layer, all_floats=True) if is_own else None
        store = None if is_own and layer is not None else store
        open_x = (lambda: x) if is_own else None
        return cls("adata", layer, source.n_obs, source.var, store, open_x)

    @classmethod
    def _open_file(cls, path: Path | str, layer: str | None) -> _Genes:
        store = Store.find(path)
        n_cells, var, layers = _tables(store)
        if layer in layers or layer not in (None, _COUNTS):
            return cls.open(read_lazy(path), layer)
        open_x = (lambda: read_matrix(path)[0]) if layer is None else None
        return cls(str(path), layer, n_cells, var, store, open_x)

    @cached_property
    def _copy(self) -> GeneCopy | str:
        return find_gene_copy(self.store) if self.store else "there is none"

    @cached_property
    def _plates(self) -> MeasuredGenes | None:
        if self.store is None or self.store.kind != "zarr":
            return None
        try:
            return MeasuredGenes.beside(self.store.path)
        except InputError as error:
            logger.info("%s", error)
            return None

    def find(self, name: str) -> tuple[GeneCopy | MeasuredGenes | None, int]:
        """What has a gene, None for the own matrix, and its number there."""
        (own,) = gene_positions(self.var, [name], self.source)
        name = name if own is None else str(self.var.index[own])
        copy = self._copy
        if isinstance(copy, GeneCopy) and (own is None or self.open_x is None or copy.is_of_x):
            (position,) = gene_positions(copy.var, [name], copy.path)
            if position is not None:
                return copy, position
        if own is not None and self.open_x is not None:
            return None, own
        if self._plates is not None:
            (gene_name,) = self._plates.find([name], self.source)
            return self._plates, int(self._plates.genes.get_loc(gene_name))
        raise self._unknown(name)

    def _unknown(self, name: str) -> InputError:
        copy = self._copy
        if self.open_x is None and not isinstance(copy, GeneCopy):
            return InputError(
                f"{self.source}: the counts of {name!r} are neither in {NAME} ({copy}) nor with "
                "the plates beside the atlas: give the atlas in the folder of its results"
            )
        var = copy.var if isinstance(copy, GeneCopy) else self.var
        beside = self.store is not None and self.store.kind == "zarr"
        why = ", and the counts of its plates are not beside it" if beside else ""
        hint = close_names(var, name)
        return InputError(
            f"{self.source}: there is no gene {name!r} among its {len(var):,} genes{why}: {hint}"
        )

    def read_x(self, positions: Sequence[int]) -> NDArray[Any]:
        """Columns of the own matrix."""
        assert self.open_x is not None
        if self.store is None:
            return _columns(self.open_x(), positions)
        reason = f"{self._copy.path} is of another X" if isinstance(self._copy, GeneCopy) else ""
        logger.warning(
            "%s: all of X is read for one gene, because %s", self.source, reason or self._copy
        )
        with progress(f"genes of {self.source}"):
            return _columns(self.open_x(), positions)

    def read_plates(self, positions: Sequence[int]) -> NDArray[Any]:
        """Columns of the plates' counts, one pass over them."""
        assert self._plates is not None
        logger.info("%s: the plates' counts are read once for genes that no copy has", self.source)
        with progress(f"genes of {self.source}"):
            meter = progress_meter(self.n_cells)
        with closing(meter) as passed:
            genes, parts = self._plates.genes[[*positions]], []
            for block in self._plates.blocks(genes, counts=self.layer == _COUNTS):
                parts.append(block.toarray())
                passed.update(len(parts[-1]))
        return np.concatenate(parts)


@lru_cache(maxsize=16)
def _tables(store: Store) -> tuple[int, pd.DataFrame, tuple[str, ...]]:
    """Number of cells, genes and layers of a file, whose stamp changes with it."""
    from scatlas.io.tables.table import open_tables

    with open_tables(store.path) as (obs, var), store.open() as root:
        return obs.n_rows, var.read(), tuple(root.get("layers", {}))


def _from_copy(copy: GeneCopy, position: int, *, as_counts: bool) -> NDArray[Any]:
    lacking = copy.lacking(position)
    if lacking:
        named = ", ".join(lacking[:_MAX_NAMED_PLATES])
        logger.warning(
            "%s is not measured on %d of %d plates, whose cells have 0: %s",
            copy.var.index[position],
            len(lacking),
            len(copy.plates),
            named + (", ..." if len(lacking) > _MAX_NAMED_PLATES else ""),
        )
    out = np.zeros(copy.n_cells, np.uint32 if as_counts else np.float32)
    parts = copy.read(position)
    scales = None if as_counts else reciprocal(copy.size_factors)

    def fill(part: Any) -> None:
        if scales is None:
            out[part.cells] = part.counts
            return
        values = np.empty(part.counts.size, np.float32)
        scale_values_into(part.counts, part.cells, scales, values)
        log1p_into(values, values)
        out[part.cells] = values

    blocks.for_each(fill, parts)
    return out


def _columns(x: Any, positions: Sequence[int]) -> NDArray[Any]:
    """Columns of a matrix in memory, on a GPU or in Dask blocks."""
    at = [*positions]
    if sp.issparse(x):
        return x[:, at].toarray()

    def columns(block: Any) -> NDArray[Any]:
        block = blocks.on_host(block)
        if sp.issparse(block):
            return block[:, at].toarray()
        return np.array(block[:, at])

    parts = list(blocks.stream(x, columns, combine=np.concatenate))
    return np.concatenate(parts) if parts else np.zeros((0, len(at)), x.dtype)
