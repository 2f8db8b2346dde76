"""Harmony: components of cells, corrected so that batches mix."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.imports import from_extra
from scatlas._util.numbers import check_positive, seed_number, whole_number
from scatlas.compute.memory import CELLS_PER_CLUSTER, available_memory, harmony_bytes
from scatlas.compute.threads import n_cores
from scatlas.errors import InputError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)
# Harmony cannot cluster fewer cells.
_MIN_CELLS = 2 * CELLS_PER_CLUSTER
# It computes in single precision; of components beyond it never returns, or returns zeros.
_LARGEST, _SMALLEST = 1e30, 1e-30


def harmonize(
    x: Any,
    labels: Mapping[str, pd.Series | pd.Categorical],
    *,
    theta: float = 2.0,
    max_iter_harmony: int = 10,
    random_state: int = 0,
) -> NDArray[np.float32]:
    """:func:`harmony_integrate` of an array, without an AnnData.

    Parameters
    ----------
    x
        Components [cells x components], on the host, a GPU or in Dask.
    labels
        Values of the columns to mix, by name [cells].
    theta, max_iter_harmony, random_state
        As in :func:`harmony_integrate`.

    Returns
    -------
    float32 [cells x components].

    Raises
    ------
    InputError, TooLargeError
        As :func:`harmony_integrate`.
    """
    with from_extra():
        from harmonypy import run_harmony

    check_positive(theta, "theta")
    rounds = whole_number(max_iter_harmony, "max_iter_harmony", least=1, most=2**31 - 1)
    seed = seed_number(random_state)
    if not labels:
        raise InputError("key=[] names no column of obs: name one whose values are to be mixed")
    x = _parse_components(x)
    n_cells, n_comps = x.shape
    batches = {name: _parse_batch(name, column) for name, column in labels.items()}
    needed, available = harmony_bytes(n_cells, n_comps), available_memory()
    if available is not None and needed > available:
        raise TooLargeError(
            f"Harmony of {n_cells:,} cells in {n_comps} components takes {needed / 1e9:,.1f} GB, "
            f"but {available / 1e9:,.1f} GB of memory are left: use fewer components or fewer cells"
        )
    logger.info("Harmony of %s cells in %d components", f"{n_cells:,}", n_comps)
    try:
        with np.errstate(over="ignore"):  # theta in single precision
            result = run_harmony(
                # Components x cells: harmonypy recognises the axes by the number of cells, and does
                # not copy this order in memory.
                np.ascontiguousarray(x).T,
                batches,
                list(batches),
                theta=float(theta),
                max_iter_harmony=rounds,
                random_state=seed - 2**32 if seed >= 2**31 else seed,  # of C++'s int
                ncores=n_cores(),
                verbose=False,
            )
    except RuntimeError as error:  # "objectives must be finite"
        msg = f"Harmony cannot mix these components with theta={theta:g}: choose another theta"
        raise InputError(msg) from error
    logger.info("Harmony: %d rounds, %d clusters", len(result.objective_harmony) - 1, result.K)
    if not np.isfinite(result.Z_corr).all():
        raise InputError("Harmony gives values that are not finite: choose another theta")
    return np.ascontiguousarray(result.Z_corr, dtype=np.float32)


def _parse_components(x: Any) -> NDArray[np.float64]:
    """Dense components in the main memory, of values that Harmony can compute with."""
    if blocks.is_sparse(x):
        raise InputError("Harmony needs dense components: pass x.toarray() if these are components")
    if x.shape[0] < _MIN_CELLS or not x.shape[1]:
        raise InputError(
            f"Harmony needs at least {_MIN_CELLS} cells and one component, but there are "
            f"{x.shape[0]} and {x.shape[1]}: give more cells"
        )
    x = np.asarray(blocks.on_host(blocks.to_memory(x)), dtype=np.float64)
    largest = max(-x.min(), x.max())
    if not (largest == 0 or _SMALLEST <= largest <= _LARGEST):
        raise InputError(
            f"the components hold values that are not finite, or beyond {_SMALLEST} to {_LARGEST}: "
            "remove those cells, or scale the components"
        )
    return x


def _parse_batch(name: str, column: pd.Series | pd.Categorical) -> pd.Categorical:
    """Batch of each cell; refuse missing values and columns of a single value."""
    import pandas as pd

    values = pd.Categorical(column).remove_unused_categories()
    if (values.codes < 0).any():
        n_missing = int((values.codes < 0).sum())
        msg = f"obs[{name!r}] has no value for {n_missing:,} cells: label or remove them"
        raise InputError(msg)
    if values.categories.inferred_type.startswith("mixed"):  # harmonypy sorts them
        raise InputError(f"obs[{name!r}] mixes texts and numbers: convert it with .astype(str)")
    if len(values.categories) < 2:
        raise InputError(
            f"obs[{name!r}] has the same value, {values.categories[0]!r}, for all cells, so "
            "there is nothing to mix: name another column, or do not integrate"
        )
    return values
