"""Sums of cells and of products of genes, from which principal components follow."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.compute.threads import blas_on_one_thread, n_threads
from scatlas.errors import InputError
from scatlas.kernels import homes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

# A Gram matrix of this many genes takes 7.2 GB, and two are needed.
MAX_GENES = 30_000
# Blocks summed into one matrix before it is added to that of the blocks before them.
_GROUP = 16


@dataclass(frozen=True, eq=False)
class GramStats:
    """Sums from which components follow, and which add up over blocks and plates.

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

    @classmethod
    def from_block(cls, x: Any) -> GramStats:
        """Sums over the cells of a block ``[n, n_genes]``, dense or CSR.

        Raises
        ------
        InputError
            With more than ``MAX_GENES`` genes.
        """
        with GramAccumulator(x.shape[1]) as total:
            total.add(x)
        return total.result()

    @staticmethod
    def merge(parts: Sequence[GramStats]) -> GramStats:
        """Sums over the cells of all parts, added in the order given. The parts stay as they are.

        Raises
        ------
        InputError
            Without parts, or for parts of other numbers of genes.
        """
        if not parts:
            raise InputError("there are no Gram statistics to merge")
        sizes = {part.sums.size for part in parts}
        if len(sizes) > 1:
            msg = f"Gram statistics of {sorted(sizes)} genes do not add up: select the same genes"
            raise InputError(msg)
        total = GramStats(parts[0].n_cells, parts[0].sums.copy(), parts[0].gram.copy())
        for part in parts[1:]:
            total = GramStats.fold([total, part])
        return total

    @staticmethod
    def fold(parts: Sequence[GramStats]) -> GramStats:
        """As :meth:`merge`, but adds into the first part's arrays, which are given up."""
        first, *others = parts
        n_cells, sums, gram = first.n_cells, first.sums, first.gram
        for part in others:
            n_cells += part.n_cells
            sums += part.sums
            gram += part.gram
        return GramStats(n_cells, sums, gram)

    def save(self, path: str | Path) -> None:
        """Write an ``.npz`` file; the same content gives the same bytes."""
        with open(path, "wb") as file:  # noqa: PTH123 - np.savez would add a suffix to a path
            np.savez(file, n_cells=np.int64(self.n_cells), sums=self.sums, gram=self.gram)

    @classmethod
    def load(cls, path: str | Path) -> GramStats:
        """Read what :meth:`save` wrote.

        Raises
        ------
        InputError
            For a file that is damaged or holds something else.
        """
        try:
            # Opened here, as np.load leaves a damaged file open.
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:  # noqa: PTH123
                n_cells, sums, gram = (file[key] for key in ("n_cells", "sums", "gram"))
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            msg = f"{path} is not a complete file of Gram statistics ({error}): make it again"
            raise InputError(msg) from error
        genes = sums.shape
        if (
            n_cells.shape != ()
            or n_cells.dtype.kind != "i"
            or n_cells < 0
            or sums.dtype != np.float64
            or gram.dtype != np.float64
            or len(genes) != 1
            or gram.shape != genes * 2
        ):
            msg = (
                f"{path} does not hold Gram statistics: sums {sums.dtype}{sums.shape}, gram "
                f"{gram.dtype}{gram.shape}, n_cells {n_cells.dtype}{n_cells.shape}"
            )
            raise InputError(msg)
        if not (np.isfinite(sums).all() and np.isfinite(gram).all()):
            msg = f"{path} holds NaN or infinite values: make it again"
            raise InputError(msg)
        return cls(int(n_cells), sums, gram)


class GramAccumulator:
    """Sum of :class:`GramStats` over blocks that come one after another, in row order.

    ::

        with GramAccumulator(x.shape[1]) as total:
            for block in blocks.stream(x):
                total.add(block)
        stats = total.result()

    There is one matrix, or two beyond 16 blocks, where the first block lies: in memory, and several
    threads work on it, or on its GPU. Each entry is summed over the rows of 16 blocks, and these
    sums are added in order: the result depends on the blocks alone. :meth:`GramStats.fold` over the
    statistics of groups of 16 blocks, each made elsewhere, gives the same bits.

    Parameters
    ----------
    n_genes
        Genes of each block.

    Raises
    ------
    InputError
        With more than ``MAX_GENES`` genes.
    """

    def __init__(self, n_genes: int) -> None:
        check_size(n_genes)
        self._n_genes = n_genes
        self._n_blocks = 0
        self._group: GramStats | None = None
        self._total: GramStats | None = None
        self._open = ExitStack()

    def __enter__(self) -> GramAccumulator:
        self._threads = n_threads()
        self._open.enter_context(blas_on_one_thread())
        self._run: Callable[..., Iterable] = map
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, x: blocks.Block) -> None:
        """Add the cells of a block ``[n, n_genes]``, dense or CSR, of any real dtype.

        On the GPU the current stream still reads the block at the return.
        """
        if self._group is None:
            self._begin(x)
        elif homes.is_gpu(x) != self._on_gpu:
            raise InputError("blocks in memory and on the GPU do not add up: copy them to one side")
        elif self._n_blocks % _GROUP == 0:
            self._fold()
        self._n_blocks += 1
        n_cells, sums, upper = self._group.n_cells, self._group.sums, self._group.gram
        with self._device:
            self._kernels.add_block(x, sums, upper, threads=self._threads, run=self._run)
        self._group = GramStats(n_cells + x.shape[0], sums, upper)

    def result(self) -> GramStats:
        """Sums over all blocks, in memory. The accumulator is used up."""
        if self._group is None:
            return GramStats(0, *self._zeros(np))
        parts = [self._group] if self._total is None else [self._total, self._group]
        with self._device:
            total = GramStats.fold(parts)
            self._kernels.mirror(total.gram)
            if not self._on_gpu:
                return total
            return GramStats(total.n_cells, total.sums.get(), total.gram.get())

    def _begin(self, x: blocks.Block) -> None:
        """Take the arrays and the kernels where the first block lies."""
        self._on_gpu = homes.is_gpu(x)
        self._kernels = homes.home("gram", x)
        self._device: AbstractContextManager = nullcontext()
        self._arrays: Any = np
        if self._on_gpu:
            import cupy

            self._arrays = cupy
            self._device = x.data.device  # of a dense block too, as `data` is its memory
        elif self._threads > 1:
            pool = ThreadPoolExecutor(self._threads, "scatlas-gram")
            self._run = self._open.enter_context(pool).map
        with self._device:
            self._group = GramStats(0, *self._zeros(self._arrays))

    def _fold(self) -> None:
        with self._device:
            if self._total is None:
                self._total = self._group
                self._group = GramStats(0, *self._zeros(self._arrays))
                return
            self._total = GramStats.fold([self._total, self._group])
            self._group.sums[:] = 0.0
            self._group.gram[:] = 0.0
        self._group = GramStats(0, self._group.sums, self._group.gram)

    def _zeros(self, arrays: Any) -> tuple[Any, Any]:
        """Sums and products of no cells, of NumPy or CuPy."""
        return arrays.zeros(self._n_genes), arrays.zeros((self._n_genes, self._n_genes))


def gram_stats(x: Any) -> GramStats:
    """Gram statistics of an array ``[n_cells, n_genes]``, in memory or Dask, in one pass.

    On a Dask cluster the workers sum them, a group of blocks each: the same bits, and no block
    comes here.
    """
    check_size(x.shape[1])
    of_blocks = partial(_summed, x.shape[1])
    if blocks.cluster_of(x) is None:
        return of_blocks(blocks.stream(x))
    groups = blocks.stream_groups(x, of_blocks, _GROUP)
    return reduce(lambda total, group: GramStats.fold([total, group]), groups)


def _summed(n_genes: int, parts: Iterable[blocks.Block]) -> GramStats:
    with GramAccumulator(n_genes) as total:
        for block in parts:
            total.add(block)
    return total.result()


def check_size(n_genes: int) -> None:
    """Refuse more genes than a Gram matrix is made of."""
    if n_genes > MAX_GENES:
        msg = (
            f"PCA of {n_genes} genes needs two Gram matrices of {8e-9 * n_genes**2:.1f} GB, and at "
            f"most {MAX_GENES} genes are allowed: select genes first (highly_variable_genes, or "
            "mask_var)"
        )
        raise InputError(msg)
