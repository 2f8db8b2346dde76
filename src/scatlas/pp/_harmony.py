"""Components in which cells of different plates lie together: Harmony."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas import blocks, columns, elements
from scatlas.errors import InputError
from scatlas.matrix.harmony import harmonize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData


@blocks.passes(1, "the components are computed when they are a Dask array")
def harmony_integrate(
    adata: AnnData,
    key: str | Sequence[str],
    *,
    basis: str = "X_pca",
    adjusted_basis: str = "X_pca_harmony",
    theta: float = 2.0,
    max_iter_harmony: int = 10,
    random_state: int = 0,
    copy: bool = False,
) -> AnnData | None:
    """Move cells of different plates (donors, protocols) together in the space of the components.

    Harmony (Korsunsky et al., Nature Methods 2019; version 2: Patikas et al., bioRxiv 2026)
    clusters the cells softly so that each cluster holds all batches, and takes off what tells the
    batches of a cluster apart, in turn until nothing changes. It is computed by harmonypy, in the
    main memory and on the CPU, with its defaults. As
    :func:`scanpy.external.pp.harmony_integrate`; of harmonypy's options those worth a choice.

    Parameters
    ----------
    adata
        Annotated data with components.
    key
        Column of ``obs`` whose values are to be mixed, or several.
    basis
        Key of ``obsm``: the components. They stay as they are.
    adjusted_basis
        Key of ``obsm`` for the result.
    theta
        How much clusters are to hold all batches; 0 leaves that to chance. 2 is usual.
    max_iter_harmony
        Rounds at most, from 1 on.
    random_state
        Seed of the first clusters.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written: ``obsm[adjusted_basis]``, float32 [cells x components].

    Raises
    ------
    InputError
        No such components or column, a column with missing values or a single value, fewer than
        60 cells, an option that is not possible, or values that are not finite.
    TooLargeError
        What Harmony holds is more than the memory left.

    Notes
    -----
    The same cells and seed give the same bits, whatever the number of threads.
    """
    x, obs = elements.get_obsm(adata, basis, "basis"), elements.get_table(adata, "obs")
    names = columns.as_names(key, "key")
    labels = {name: columns.get_labels(obs, name, "key") for name in names}
    if not isinstance(adjusted_basis, str) or not adjusted_basis:
        raise InputError(f"adjusted_basis={adjusted_basis!r} is no key of obsm: give a text")
    options = {"max_iter_harmony": max_iter_harmony, "random_state": random_state}
    moved = harmonize(x, labels, theta=theta, **options)
    adata = adata.copy() if copy else adata
    adata.obsm[adjusted_basis] = moved
    return adata if copy else None
