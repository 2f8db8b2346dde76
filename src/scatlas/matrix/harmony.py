"""Harmony: components of cells, corrected so that batches mix."""

from __future__ import annotations

import logging
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import check_positive, seed_number, whole_number
from scatlas.arrays.kinds import kind_of
from scatlas.compute.memory import (
    CELLS_PER_CLUSTER,
    GPU_HARMONY_BYTES,
    MAX_CLUSTERS,
    available_memory,
    harmony_bytes,
)
from scatlas.errors import InputError, TooLargeError
from scatlas.matrix.harmony_rounds import Rounds
from scatlas.matrix.harmony_tables import Batches, Mixed, Options, first_centroids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from scatlas.matrix.harmony_rows import Rows

logger = logging.getLogger(__name__)
# Harmony cannot cluster fewer cells.
_MIN_CELLS = 2 * CELLS_PER_CLUSTER
# Sums of a batch and cluster take memory in each thread.
_MAX_BATCHES, _MAX_COMBINATIONS = 1000, 10_000
# Penalties of more are beyond single precision.
_MAX_THETA = 1e6
# Of the GPU's memory, as much as a pool takes.
_GPU_SHARE = 0.9


def harmonize(x: Any, labels: Mapping[str, pd.Series | pd.Categorical], **options: Any) -> Any:
    """:func:`harmony_integrate` of an array, without an AnnData.

    Parameters
    ----------
    x
        Components [cells x components], on the host, a GPU or in Dask; the result is beside them.
    labels
        Values of the columns to mix, by name [cells].
    options
        As in :func:`harmony_integrate`, from ``n_clusters`` to ``random_state``.

    Returns
    -------
    float32 [cells x components].

    Raises
    ------
    InputError, TooLargeError
        As :func:`harmony_integrate`.
    """
    if blocks.is_sparse(x):
        raise InputError("Harmony needs dense components: pass x.toarray() if these are components")
    _check_size(*x.shape)
    kind, needed = kind_of(x), harmony_bytes(*x.shape)
    what = (
        f"Harmony of {x.shape[0]:,} cells in {x.shape[1]} components takes {needed / 1e9:,.1f} GB"
    )
    available = None if kind.gpu else available_memory()
    if available is not None and needed > available:
        raise TooLargeError(
            f"{what}, but {available / 1e9:,.1f} GB of memory are left: use fewer components or "
            "fewer cells"
        )
    prepared = _prepare(labels, **options)
    try:
        moved = kind.arrays.empty(x.shape, np.float32)
        _mix(blocks.to_memory(x), moved, *prepared)
    except MemoryError as error:
        if not kind.gpu:
            raise
        raise TooLargeError(
            f"{what}, more than the GPU's memory has left ({error}): move the components to the CPU"
        ) from error
    return moved


def fits_gpu(n_cells: int, n_comps: int) -> bool:
    """Whether the GPU has memory for the components, the result and what it works with."""
    from scatlas.arrays.cupy_arrays import total_memory

    needed, total = harmony_bytes(n_cells, n_comps) + GPU_HARMONY_BYTES, total_memory()
    if needed > _GPU_SHARE * total:
        logger.info(
            "Harmony takes %.1f GB, and the GPU has %.1f: it works on the CPU, from a file",
            *(needed / 1e9, total / 1e9),
        )
    return needed <= _GPU_SHARE * total


def mix_rows(
    original: Rows, moved: Rows, labels: Mapping[str, pd.Series | pd.Categorical], **options: Any
) -> Mixed:
    """:func:`harmonize` into ``moved``, of rows that may be in a file; what the rounds left."""
    _check_size(*original.shape)
    return _mix(original, moved, *_prepare(labels, **options))


def _prepare(
    labels: Mapping[str, pd.Series | pd.Categorical], *, random_state: int = 0, **options: Any
) -> tuple[Batches, Options, int]:
    seed = seed_number(random_state)
    batches = parse_batches(labels)
    return batches, parse_options(batches, **options), seed


def _check_size(n_cells: int, n_comps: int) -> None:
    if n_cells < _MIN_CELLS or not n_comps:
        raise InputError(
            f"Harmony needs at least {_MIN_CELLS} cells and one component, but there are "
            f"{n_cells} and {n_comps}: give more cells"
        )


def _mix(original: Rows, moved: Rows, batches: Batches, options: Options, seed: int) -> Mixed:
    n_cells, n_comps = original.shape
    k = options.n_clusters
    logger.info("Harmony of %s cells in %d components, %d clusters", f"{n_cells:,}", n_comps, k)
    return Rounds(original, moved, batches, options, None, seed).mix(
        lambda unit: first_centroids(unit, k, np.random.default_rng([seed]))
    )


def parse_options(
    batches: Batches,
    *,
    n_clusters: int | None = None,
    max_iter_harmony: int = 10,
    max_iter_clustering: int = 4,
    tol_harmony: float = 1e-2,
    tol_clustering: float = 1e-3,
    sigma: float = 0.1,
    theta: float | Sequence[float] = 2.0,
    tau: float = 0.0,
    ridge_lambda: float | None = None,
    alpha: float = 0.2,
    batch_prune_threshold: float = 1e-5,
    block_proportion: float = 0.05,
) -> Options:
    """Options of :func:`harmony_integrate`, or an error that names one."""
    n_cells, n_columns = batches.codes.size, batches.levels.shape[1]
    if n_clusters is None:
        n_clusters = min(round(n_cells / CELLS_PER_CLUSTER), MAX_CLUSTERS)
    k = whole_number(n_clusters, "n_clusters", least=1, most=min(n_cells, 1000))
    each = [theta] * n_columns if np.ndim(theta) == 0 else list(np.ravel(theta))
    if len(each) != n_columns:
        raise InputError(
            f"theta has {len(each)} numbers for {n_columns} columns of key: give one number, or "
            "one for each column"
        )
    of_column = [_number(value, "theta", most=_MAX_THETA) for value in each]
    of_batch = np.array(of_column)[batches.column]
    if _number(tau, "tau"):
        of_batch *= -np.expm1(-((batches.sizes / (k * tau)) ** 2))
    share = "batch_prune_threshold"
    return Options(
        n_clusters=k,
        theta=of_batch,
        sigma=_number(sigma, "sigma", above=0),
        ridge_lambda=None
        if ridge_lambda is None
        else _number(ridge_lambda, "ridge_lambda", above=0),
        alpha=_number(alpha, "alpha", above=0),
        batch_prune_threshold=_number(batch_prune_threshold, share, most=1),
        block_proportion=_number(block_proportion, "block_proportion", above=0.01, most=1),
        max_iter_harmony=whole_number(max_iter_harmony, "max_iter_harmony", least=1),
        max_iter_clustering=whole_number(max_iter_clustering, "max_iter_clustering", least=1),
        tol_harmony=_number(tol_harmony, "tol_harmony"),
        tol_clustering=_number(tol_clustering, "tol_clustering"),
    )


def _number(value: Any, name: str, *, above: float | None = None, most: float = np.inf) -> float:
    """A number from 0 on, or above another."""
    check_positive(value, name)
    if value > most or (above is not None and value <= above):
        bounds = "from 0 on" if above is None else f"above {above:g}"
        upper = f" and of at most {most:,g}" if most < np.inf else ""
        raise InputError(f"{name}={value!r} is not possible: give a number {bounds}{upper}")
    return float(value)


def parse_batches(labels: Mapping[str, pd.Series | pd.Categorical]) -> Batches:
    """Batches of columns of obs; refuse columns that Harmony cannot mix."""
    if not labels:
        raise InputError("key=[] names no column of obs: name one whose values are to be mixed")
    parsed = {name: _parse_batch(name, column) for name, column in labels.items()}
    codes, levels = np.zeros(1, np.int32), np.zeros((1, 0), np.int64)
    for name, values in parsed.items():
        own, n = values.codes.astype(np.int32), len(values.categories)
        # Number the combinations that there are, in the order of all that could be.
        joint = codes * n + own
        there = np.flatnonzero(np.bincount(joint, minlength=len(levels) * n))
        if there.size > _MAX_COMBINATIONS:
            raise InputError(
                f"the columns up to obs[{name!r}] have {there.size:,} combinations of values, but "
                f"Harmony mixes at most {_MAX_COMBINATIONS:,}: name fewer columns"
            )
        number = np.zeros(len(levels) * n, np.int32)
        number[there] = np.arange(there.size, dtype=np.int32)
        codes = number[joint]
        offset = levels.max(initial=-1) + 1
        levels = np.column_stack([levels[there // n], offset + there % n])
    for (a, one), (b, other) in combinations(zip(parsed, levels.T, strict=True), 2):
        pairs = len(np.unique(np.column_stack([one, other]), axis=0))
        if pairs == len(np.unique(one)) == len(np.unique(other)):
            raise InputError(
                f"obs[{a!r}] and obs[{b!r}] divide the cells alike: name one of them in key"
            )
    sizes = np.concatenate([np.bincount(values.codes) for values in parsed.values()])
    counts = [len(values.categories) for values in parsed.values()]
    column = np.repeat(np.arange(len(counts)), counts)
    return Batches(codes.astype(np.uint16), levels, column, sizes)


def _parse_batch(name: str, column: pd.Series | pd.Categorical) -> pd.Categorical:
    """Batch of each cell; refuse missing values, columns of a single value and of too many."""
    import pandas as pd

    values = pd.Categorical(column)
    sizes = np.bincount(values.codes.astype(np.int32) + 1, minlength=len(values.categories) + 1)
    if not sizes[1:].all():  # it sorts the cells
        values = values.remove_unused_categories()
    n = len(values.categories)
    if sizes[0]:
        msg = f"obs[{name!r}] has no value for {sizes[0]:,} cells: label or remove them"
        raise InputError(msg)
    if n < 2:
        raise InputError(
            f"obs[{name!r}] has the same value, {values.categories[0]!r}, for all cells, so "
            "there is nothing to mix: name another column, or do not integrate"
        )
    if n > _MAX_BATCHES:
        raise InputError(
            f"obs[{name!r}] has {n:,} values, but Harmony mixes at most {_MAX_BATCHES:,} batches: "
            "name a column with fewer, such as the plate"
        )
    if lone := int((sizes[1:] == 1).sum()):
        logger.warning("obs[%r]: %d batches have a single cell, which moves little", name, lone)
    return values
