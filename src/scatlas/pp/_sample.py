"""A seeded sample of cells or genes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas import blocks, elements
from scatlas._util.numbers import as_numbers, whole_number
from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import ArrayLike


@blocks.passes(0)
def sample(
    data: AnnData | Any,
    fraction: float | None = None,
    *,
    n: int | None = None,
    rng: np.random.Generator | int | None = None,
    copy: bool = False,
    replace: bool = False,
    axis: Literal["obs", 0, "var", 1] = "obs",
    p: str | ArrayLike | None = None,
) -> AnnData | tuple[Any, np.ndarray] | None:
    """Draw cells or genes at random.

    As :func:`scanpy.pp.sample`, with these differences. The sample stays in storage order, so
    that reading it from disk is one sequential pass (scanpy: in the order drawn). ``rng=None``
    means seed 0, so that the same call draws the same every time (scanpy: a new seed). Names are
    made unique when drawing with replacement.

    Parameters
    ----------
    data
        AnnData, or a matrix [cells x genes] in memory or Dask.
    fraction
        Part of the cells or genes to draw; above 1 only with `replace`.
    n
        Number to draw; either this or `fraction`.
    rng
        NumPy's generator, or a seed for it.
    copy
        Leave the AnnData as it is and return the sample as a new one.
    replace
        Draw with replacement; in memory only.
    axis
        Draw cells (``"obs"``, 0) or genes (``"var"``, 1).
    p
        Probability of each (summing to 1), or a boolean mask of those to draw from; an array, or
        the name of a column of ``adata.obs`` or ``adata.var``.

    Returns
    -------
    None when in place, the new AnnData when `copy`. For a matrix, the sample and the int64
    positions drawn, ascending. A Dask X stays lazy and is cut block by block.

    Raises
    ------
    InputError
        When not exactly one of `fraction` and `n` is given, `n` exceeds the number of cells or
        genes, or `replace` meets a Dask array.
    """
    from anndata import AnnData

    if axis not in ("obs", "var", 0, 1):
        raise InputError(f"axis must be 'obs', 'var', 0 or 1, not {axis!r}")
    side: Literal["obs", "var"] = "obs" if axis in ("obs", 0) else "var"
    is_anndata = isinstance(data, AnnData)
    if not is_anndata:
        blocks.check(data)
    length = data.shape[0 if side == "obs" else 1]
    weights = _weights(data, p, side, length)
    n = _number(fraction, n, length, weights, replace=replace)
    if is_anndata:
        elements.check_not_backed(data)
    if replace and (elements.has_dask(data) if is_anndata else is_dask(data)):
        msg = "drawing with replacement needs the data in memory, not Dask: call to_memory() first"
        raise InputError(msg)
    if not isinstance(rng, np.random.Generator):
        rng = np.random.default_rng(0 if rng is None else whole_number(rng, "rng"))
    drawn = rng.choice(length, size=n, replace=replace, p=weights, shuffle=False)
    index = np.sort(drawn).astype(np.int64)
    if not is_anndata:
        cut = blocks.select_rows if side == "obs" else blocks.select_genes
        return cut(data, index), index
    with warnings.catch_warnings():
        if replace:  # the names are made unique below
            warnings.filterwarnings("ignore", ".* names are not unique", UserWarning)
        if copy:
            taken = elements.subset_copy(data, index, side)
        else:
            taken = data
            elements.subset(taken, index, side)
    if replace:
        getattr(taken, f"{side}_names_make_unique")()
    return taken if copy else None


def _weights(
    data: Any, p: str | ArrayLike | None, side: Literal["obs", "var"], length: int
) -> np.ndarray | None:
    """Probabilities that sum to 1, float64 [length]; None when all are the same."""
    if p is None:
        return None
    if hasattr(data, f"{side}_names"):  # an array has a method var
        weights = elements.get_values(data, p, "p", side)
    elif isinstance(p, str):
        raise InputError(f"p={p!r} names a column, which an array has not: pass an AnnData")
    else:
        weights = as_numbers(p, "p")
    if weights.shape != (length,):
        raise InputError(f"p has shape {weights.shape}, but there are {length} {side}")
    if weights.dtype == bool:
        if not weights.any():
            raise InputError("p is False everywhere: there is nothing to draw from")
        return weights / weights.sum()
    # As in NumPy: those in float32 sum to 1 as far as its digits go.
    tolerance = np.sqrt(np.finfo(weights.dtype if weights.dtype.kind == "f" else float).eps)
    wide = weights.astype(np.float64)
    if not ((wide >= 0).all() and abs(wide.sum() - 1) <= tolerance):
        msg = f"probabilities p must not be negative and must sum to 1, not {wide.sum()}"
        raise InputError(msg)
    return wide if weights.dtype == np.float64 else wide / wide.sum()


def _number(
    fraction: float | None, n: int | None, length: int, weights: np.ndarray | None, *, replace: bool
) -> int:
    if (fraction is None) == (n is None):
        raise InputError("give either fraction or n")
    if fraction is not None:
        if fraction < 0 or (fraction > 1 and not replace):
            msg = f"fraction={fraction} must lie within 0 and 1 (above 1 only with replace=True)"
            raise InputError(msg)
        n = int(fraction * length)
    n = whole_number(n, "n")
    available = length if weights is None else int(np.count_nonzero(weights))
    if n > available and not replace:
        raise InputError(f"cannot draw {n} of {available} without replacement")
    return n
