"""Sums of genes over cells and of their products, from which principal components follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from scatlas import blocks
from scatlas.arrays.kinds import kind_of
from scatlas.compute.threads import blas_on_one_thread, n_threads
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

# A Gram matrix of this many genes takes 7.2 GB, and two are needed.
MAX_GENES = 30_000
# Values per panel of rows.
_PANEL_VALUES, _GPU_PANEL_VALUES = 2**22, 2**26
# Panels summed into one matrix before it is added to the total.
_GROUP = 128
# Rounding errors of products, as a share of the variance, beyond which means come off first: those
# of genes whose mean is 200 times their standard deviation.
_ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class GramStats:
    """Sums from which components follow; those of blocks and plates can be added.

    Attributes
    ----------
    n_cells
        Number of cells.
    sums
        float64 ``[n_genes]``, sum per gene.
    gram
        float64 ``[n_genes, n_genes]``, ``X.T @ X``, both triangles.
    """

    n_cells: int
    sums: NDArray[np.float64]
    gram: NDArray[np.float64]

    @staticmethod
    def merge(parts: Sequence[GramStats]) -> GramStats:
        """Sums over the cells of all parts, added in their order. The parts do not change.

        Raises
        ------
        InputError
            There are no parts, or their numbers of genes differ.
        """
        if not parts:
            raise InputError("there are no Gram statistics to merge")
        sizes = {part.sums.size for part in parts}
        if len(sizes) > 1:
            msg = f"Gram statistics of {sorted(sizes)} genes cannot be added: select the same genes"
            raise InputError(msg)
        total = GramStats(parts[0].n_cells, parts[0].sums.copy(), parts[0].gram.copy())
        return GramStats.merge_in_place([total, *parts[1:]])

    @staticmethod
    def merge_in_place(parts: Sequence[GramStats]) -> GramStats:
        """As :meth:`merge`, but add into the arrays of the first part."""
        first, *others = parts
        n_cells, sums, gram = first.n_cells, first.sums, first.gram
        for part in others:
            n_cells += part.n_cells
            sums += part.sums
            gram += part.gram
        return GramStats(n_cells, sums, gram)


class StoredStats(Protocol):
    """Gram statistics of a plate, as :class:`scatlas.io.StoredGram` holds them."""

    n_cells: int
    n_genes: int
    has_matrix: bool

    def add_to(self, sums: NDArray[np.float64], upper: NDArray[np.float64]) -> None:
        """Add the sums, and the products to the upper triangle."""


class GramAccumulator:
    """Sum of :class:`GramStats` over blocks, added one by one in row order.

    ::

        with GramAccumulator(x.shape[1]) as total:
            for block in blocks.stream(x):
                total.add(block)
        stats = total.result()

    The matrix, or two of them beyond 128 panels, is in the memory of the first block: on the host,
    where several threads add to it, or on a GPU. Panels of :func:`panel_rows` rows are counted from
    the first row, whatever the blocks; each entry is summed over the rows of 128 panels, and these
    sums are added in order. No bit of the result depends on the bounds of blocks, and
    :meth:`GramStats.merge_in_place` of statistics of groups of 128 panels, computed elsewhere,
    gives the same bits.

    Parameters
    ----------
    n_genes
        Genes of each block.

    Raises
    ------
    InputError
        There are more than ``MAX_GENES`` genes.
    """

    def __init__(self, n_genes: int) -> None:
        check_size(n_genes)
        self._n_genes = n_genes
        self._n_cells = 0
        self._n_panels = 0
        self._open_panel: list[blocks.Block] = []  # rows of a panel that is not full
        # Sums and products of the current group of panels, and of all groups before it.
        self._group: tuple[Any, Any] | None = None
        self._total: tuple[Any, Any] | None = None
        self._exit_stack = ExitStack()

    def __enter__(self) -> GramAccumulator:
        self._threads = n_threads()
        self._exit_stack.enter_context(blas_on_one_thread())
        self._map: Callable[..., Iterable[Any]] = map
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._exit_stack:
            if kind is None:
                self._add_open_panel()

    def add(self, x: blocks.Block) -> None:
        """Add the cells of a block ``[n, n_genes]``, dense or CSR, of any real dtype.

        On the GPU the current stream may still read the block when this returns.
        """
        if self._group is None:
            self._begin(x)
        elif kind_of(x).gpu != self._on_gpu:
            raise InputError("blocks on the host and on a GPU cannot be added: move some of them")
        n_rows = x.shape[0]
        self._n_cells += n_rows
        with self._device:
            start = 0
            if self._open_panel:
                missing = self._panel - sum(part.shape[0] for part in self._open_panel)
                start = min(missing, n_rows)
                self._open_panel.append(_copy_block(blocks.view(x, slice(0, start))))
                if start == missing:
                    self._add_open_panel()
            stop = n_rows - (n_rows - start) % self._panel
            self._add_panels(blocks.view(x, slice(start, stop)))
            if stop < n_rows:
                self._open_panel.append(_copy_block(blocks.view(x, slice(stop, n_rows))))

    def result(self) -> GramStats:
        """Sums over all blocks, on the host. Nothing can be added afterwards."""
        if self._group is None:
            return GramStats(0, *self._zeros(np))
        self._add_open_panel()
        with self._device:
            sums, gram = self._total_with(self._group)
            self._kernels.mirror(gram)
            if self._on_gpu:
                sums, gram = sums.get(), gram.get()
            return GramStats(self._n_cells, sums, gram)

    def _begin(self, x: blocks.Block) -> None:
        """Allocate the sums in the memory of the first block, and choose its kernels."""
        self._on_gpu = kind_of(x).gpu
        self._kernels = kernels_for("linalg.gram", x)
        self._panel = panel_rows(self._n_genes, gpu=self._on_gpu)
        self._device: AbstractContextManager[Any] = nullcontext()
        self._arrays: Any = np
        if self._on_gpu:
            import cupy

            self._arrays = cupy
            self._device = x.data.device  # `data` of a dense block is its memory
        elif self._threads > 1:
            pool = ThreadPoolExecutor(self._threads, "scatlas-gram")
            self._map = self._exit_stack.enter_context(pool).map
        with self._device:
            self._group = self._zeros(self._arrays)

    def _add_open_panel(self) -> None:
        """Add the rows of the open panel: it is full, or the last."""
        if not self._open_panel:
            return
        kinds = {blocks.is_sparse(part) for part in self._open_panel}
        with self._device:
            # Dense and sparse parts cannot be joined.
            for part in [blocks.join(self._open_panel)] if len(kinds) == 1 else self._open_panel:
                self._add_to_group(part)
        self._n_panels += 1
        self._open_panel = []

    def _add_panels(self, x: blocks.Block) -> None:
        """Add rows that fill panels."""
        n_panels = x.shape[0] // self._panel
        done = 0
        while done < n_panels:
            # Threads share the panels of a call; a GPU adds one panel per call.
            left = _GROUP - self._n_panels % _GROUP
            n = 1 if self._on_gpu else min(n_panels - done, left)
            rows = slice(done * self._panel, (done + n) * self._panel)
            self._add_to_group(blocks.view(x, rows))
            done += n
            self._n_panels += n

    def _add_to_group(self, x: blocks.Block) -> None:
        assert self._group is not None, "_begin comes first"
        if self._n_panels and self._n_panels % _GROUP == 0:
            self._total = self._total_with(self._group)
            self._group = self._zeros(self._arrays)
        options = {"panel": self._panel, "threads": self._threads, "run": self._map}
        self._kernels.add_block(x, *self._group, **options)

    def _total_with(self, group: tuple[Any, Any]) -> tuple[Any, Any]:
        if self._total is None:
            return group
        for total, part in zip(self._total, group, strict=True):
            total += part
        return self._total

    def _zeros(self, arrays: Any) -> tuple[Any, Any]:
        """Sums and products of no cells, of NumPy or CuPy."""
        return arrays.zeros(self._n_genes), arrays.zeros((self._n_genes, self._n_genes))


def _copy_block(x: blocks.Block) -> blocks.Block:
    """Copy of a block (CuPyX cannot copy a matrix of integers)."""
    if not blocks.is_sparse(x):
        return x.copy()
    return blocks.csr(x.data.copy(), x.indices.copy(), x.indptr.copy(), x.shape[1])


def panel_rows(n_genes: int, *, gpu: bool = False) -> int:
    """Rows per panel: a power of two, at least 64, for 32 MB of float64 (512 MB on a GPU)."""
    values = _GPU_PANEL_VALUES if gpu else _PANEL_VALUES
    return max(64, 2 ** (values // max(1, n_genes)).bit_length() // 2)


def gram_stats(x: Any, *, shift: NDArray[np.float64] | None = None) -> GramStats:
    """Gram statistics of an array ``[n_cells, n_genes]``, in memory or Dask, in one pass; with
    `shift` those of :func:`subtract`.

    On a Dask cluster workers sum groups of panels: the same bits, and no block is sent here.
    """
    n_genes = x.shape[1]
    check_size(n_genes)
    sum_blocks = partial(_sum_blocks, n_genes)
    less = None if shift is None else partial(subtract, shift)
    if blocks.cluster_client(x) is None:
        return sum_blocks(blocks.stream(x, less))
    x = x if less is None else blocks.map_blocks(less, x, dtype=np.float64)
    # The rows of each worker begin at the start of a panel.
    rows = panel_rows(n_genes, gpu=kind_of(x).gpu)
    n_panels = min(_GROUP, 2 ** (max(x.chunks[0]) // rows).bit_length() // 2 or 1)
    x = x.rechunk({0: n_panels * rows})
    groups = blocks.stream_groups(x, sum_blocks, _GROUP // n_panels)
    return reduce(lambda total, group: GramStats.merge_in_place([total, group]), groups)


def means_to_subtract(
    mean: NDArray[np.float64], squares: NDArray[np.float64], n_cells: int, *, sparse: bool
) -> NDArray[np.float64] | None:
    """Means to take off the genes before their products are summed; None if float64 holds those.

    `mean` and `squares` are float64 ``[n_genes]``: means of the values and of their squares.
    """
    with np.errstate(all="ignore"):
        variance = np.maximum(squares - mean**2, 0.0)
        if not np.finfo(np.float64).eps * squares.sum() > _ROUNDING * variance.sum():
            return None
        # A zero makes the variance at least the mean square / n_cells (Cauchy-Schwarz), which
        # bounds the rounding: of sparse genes only those that are zero in no cell lose their mean.
        shift = np.where(variance * 2 * n_cells < squares, mean, 0.0) if sparse else mean
    return shift if shift.any() else None


def subtract(shift: NDArray[np.float64], block: blocks.Block) -> blocks.Block:
    """Block less a number per gene; a sparse one must store all values of genes with a number."""
    kind = kind_of(block)
    numbers: Any = kind.arrays.on_gpu(shift) if kind.gpu else shift
    if not kind.sparse:
        return block - numbers
    return blocks.csr(
        block.data - numbers[block.indices], block.indices, block.indptr, block.shape[1]
    )


def gram_stats_of_plates(x: Any, stored: Sequence[StoredStats]) -> GramStats:
    """Gram statistics of all plates, in the order of the cells of ``x``, of which those without
    ``stored`` ones are read.

    Panels of rows begin with each plate, so the last bits differ from a pass over all cells.
    """
    n_genes = x.shape[1]
    check_size(n_genes)
    shape = sum(plate.n_cells for plate in stored), *{plate.n_genes for plate in stored}
    if shape != x.shape:
        msg = f"{shape} cells and genes of all plates, but {x.shape} of the merged matrix"
        raise InputError(msg)
    total = GramStats(0, np.zeros(n_genes), np.zeros((n_genes, n_genes)))
    start = 0
    for has_matrix, run in groupby(stored, key=attrgetter("has_matrix")):
        plates = list(run)
        stop = start + sum(plate.n_cells for plate in plates)
        if has_matrix:
            for plate in plates:
                plate.add_to(total.sums, total.gram)
            total = replace(total, n_cells=total.n_cells + stop - start)
        elif start == 0 and stop == x.shape[0]:
            return gram_stats(x)
        else:
            total = GramStats.merge_in_place([total, gram_stats(x[start:stop])])
        start = stop
    kernels_for("linalg.gram", total.gram).mirror(total.gram)
    return total


def _sum_blocks(n_genes: int, parts: Iterable[blocks.Block]) -> GramStats:
    with GramAccumulator(n_genes) as total:
        for block in parts:
            total.add(block)
    return total.result()


def check_size(n_genes: int) -> None:
    """Refuse more genes than a Gram matrix may have."""
    if n_genes > MAX_GENES:
        raise InputError(
            f"PCA of {n_genes} genes needs two Gram matrices of {8e-9 * n_genes**2:.1f} GB, and at "
            f"most {MAX_GENES} genes are allowed: select genes first (highly_variable_genes, or "
            "mask_var)"
        )
