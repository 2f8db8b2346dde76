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
from scatlas.kernels import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

# A Gram matrix of this many genes takes 7.2 GB, and two are needed.
MAX_GENES = 30_000
# Values of a panel of rows, and panels summed into one matrix before it is added to that of the
# panels before them.
_PANEL_VALUES, _GPU_PANEL_VALUES = 2**22, 2**26
_GROUP = 128


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

    There is one matrix, or two beyond 128 panels, where the first block lies: in memory, and
    several threads work on it, or on its GPU. Rows are summed in panels (:func:`panel_rows`) that
    are counted from the first row, however the blocks cut them, each entry over the rows of 128
    panels, and these sums are added in order: no bit of the result depends on where blocks begin.
    :meth:`GramStats.fold` over the statistics of groups of 128 panels, each made elsewhere, gives
    the same bits. (On a GPU whose memory is too small for a panel, halves of it are added.)

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
        self._n_cells = 0
        self._n_panels = 0
        self._waiting: list[blocks.Block] = []  # rows of a panel that is not full
        self._sums: tuple[Any, Any] | None = None
        self._total: tuple[Any, Any] | None = None
        self._open = ExitStack()

    def __enter__(self) -> GramAccumulator:
        self._threads = n_threads()
        self._open.enter_context(blas_on_one_thread())
        self._run: Callable[..., Iterable] = map
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._open:
            if kind is None:
                self._add_waiting()

    def add(self, x: blocks.Block) -> None:
        """Add the cells of a block ``[n, n_genes]``, dense or CSR, of any real dtype.

        On the GPU the current stream still reads the block at the return.
        """
        if self._sums is None:
            self._begin(x)
        elif dispatch.is_gpu(x) != self._on_gpu:
            raise InputError("blocks in memory and on the GPU do not add up: copy them to one side")
        n_rows = x.shape[0]
        self._n_cells += n_rows
        with self._device:
            start = 0
            if self._waiting:
                due = self._panel - sum(part.shape[0] for part in self._waiting)
                start = min(due, n_rows)
                self._waiting.append(_copied(blocks.view(x, slice(0, start))))
                if start == due:
                    self._add_waiting()
            stop = n_rows - (n_rows - start) % self._panel
            self._add_panels(blocks.view(x, slice(start, stop)))
            if stop < n_rows:
                self._waiting.append(_copied(blocks.view(x, slice(stop, n_rows))))

    def result(self) -> GramStats:
        """Sums over all blocks, in memory. The accumulator is used up."""
        if self._sums is None:
            return GramStats(0, *self._zeros(np))
        self._add_waiting()
        with self._device:
            sums, gram = self._folded()
            self._kernels.mirror(gram)
            if self._on_gpu:
                sums, gram = sums.get(), gram.get()
            return GramStats(self._n_cells, sums, gram)

    def _begin(self, x: blocks.Block) -> None:
        """Take the arrays and the kernels where the first block lies."""
        self._on_gpu = dispatch.is_gpu(x)
        self._kernels = dispatch.kernels_for("linalg.gram", x)
        self._panel = panel_rows(self._n_genes, gpu=self._on_gpu)
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
            self._sums = self._zeros(self._arrays)

    def _add_waiting(self) -> None:
        """Add the rows that wait for a panel, which they fill unless they are the last."""
        if not self._waiting:
            return
        kinds = {blocks.is_sparse(part) for part in self._waiting}
        with self._device:
            # Of blocks of both kinds each is summed as it is.
            for part in [blocks.join(self._waiting)] if len(kinds) == 1 else self._waiting:
                self._add_to_sums(part)
        self._n_panels += 1
        self._waiting = []

    def _add_panels(self, x: blocks.Block) -> None:
        """Add rows that fill panels."""
        n_panels = x.shape[0] // self._panel
        done = 0
        while done < n_panels:
            # The GPU takes a call for each, threads as many as there are at once.
            left = _GROUP - self._n_panels % _GROUP
            n = 1 if self._on_gpu else min(n_panels - done, left)
            rows = slice(done * self._panel, (done + n) * self._panel)
            self._add_to_sums(blocks.view(x, rows))
            done += n
            self._n_panels += n

    def _add_to_sums(self, x: blocks.Block) -> None:
        if self._n_panels and self._n_panels % _GROUP == 0:
            self._total = self._folded()
            self._sums = self._zeros(self._arrays)
        options = {"panel": self._panel, "threads": self._threads, "run": self._run}
        self._kernels.add_block(x, *self._sums, **options)

    def _folded(self) -> tuple[Any, Any]:
        if self._total is None:
            return self._sums
        for total, part in zip(self._total, self._sums, strict=True):
            total += part
        return self._total

    def _zeros(self, arrays: Any) -> tuple[Any, Any]:
        """Sums and products of no cells, of NumPy or CuPy."""
        return arrays.zeros(self._n_genes), arrays.zeros((self._n_genes, self._n_genes))


def _copied(x: blocks.Block) -> blocks.Block:
    """The block in memory of its own; CuPyX would not copy one of integers."""
    if not blocks.is_sparse(x):
        return x.copy()
    return blocks.csr(x.data.copy(), x.indices.copy(), x.indptr.copy(), x.shape[1])


def panel_rows(n_genes: int, *, gpu: bool = False) -> int:
    """Rows of a panel: as many as give 32 MB of float64, a power of two; 16 times that on a GPU."""
    values = _GPU_PANEL_VALUES if gpu else _PANEL_VALUES
    return max(64, 2 ** (values // max(1, n_genes)).bit_length() // 2)


def gram_stats(x: Any) -> GramStats:
    """Gram statistics of an array ``[n_cells, n_genes]``, in memory or Dask, in one pass.

    On a Dask cluster the workers sum them, a group of panels each: the same bits, and no block
    comes here.
    """
    n_genes = x.shape[1]
    check_size(n_genes)
    of_blocks = partial(_summed, n_genes)
    if blocks.cluster_of(x) is None:
        return of_blocks(blocks.stream(x))
    # Each worker's rows begin where panels do.
    rows = panel_rows(n_genes, gpu=dispatch.is_gpu(x._meta))
    n_panels = min(_GROUP, 2 ** (max(x.chunks[0]) // rows).bit_length() // 2 or 1)
    x = x.rechunk({0: n_panels * rows})
    groups = blocks.stream_groups(x, of_blocks, _GROUP // n_panels)
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
