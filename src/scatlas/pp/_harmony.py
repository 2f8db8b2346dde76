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
    random_state: int = 0,
    copy: bool = False,
) -> AnnData | None:
    """Move cells of different plates (donors, protocols) together in the space of the components.

    Harmony clusters the cells softly so that each cluster holds all batches, and takes off what
    tells the batches of a cluster apart, in turn until nothing changes. Version 2 (Patikas et al.,
    bioRxiv 2026, doi:10.64898/2026.03.16.711825; version 1: Korsunsky et al., Nature Methods 2019),
    with the defaults of R harmony 2 and harmonypy 2, on all cores of the CPU, or on a GPU that has
    the components. As
    :func:`scanpy.pp.harmony_integrate` of scanpy 1.13.

    Parameters
    ----------
    adata
        Annotated data with components.
    key
        Column of ``obs`` whose values are to be mixed, or several, of at most 1,000 values each.
    basis
        Key of ``obsm``: the components. They stay as they are.
    adjusted_basis
        Key of ``obsm`` for the result.
    n_clusters
        Number of clusters; None: one for 30 cells, at most 100.
    max_iter_harmony
        Rounds at most, from 1 on.
    max_iter_clustering
        Passes over the cells at most in each round.
    tol_harmony
        The rounds end when the objective falls by a smaller share than this.
    tol_clustering
        The passes of a round end, from the fifth on, when the mean of three changes by a smaller
        share than this.
    sigma
        Width of the clusters: in wider ones a cell belongs to more of them.
    theta
        How much clusters are to hold all batches, for all columns or for each; 0 leaves that to
        chance. 2 is usual.
    tau
        Weakens theta for batches with few cells: a cluster is expected to hold this many of a
        batch. 0: theta is the same for all.
    ridge_lambda
        Penalty of the correction, the same for all batches and clusters. None: ``alpha`` times the
        cells of the batch that the cluster would hold by chance.
    alpha
        See ``ridge_lambda``.
    batch_prune_threshold
        A batch is not corrected in clusters that hold a smaller share of its cells than this.
    block_proportion
        Share of the cells whose clusters are found at a time.
    random_state
        Seed of the first clusters and of the blocks.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written: ``obsm[adjusted_basis]``, float32 [cells x components], where the
    components are.

    Raises
    ------
    InputError
        No such components or column, a column with missing values, a single value or more than
        1,000, two columns with the same batches, fewer than 60 cells, an option that is not
        possible, or values that are not finite.
    TooLargeError
        Components and result take more than the memory left.

    Notes
    -----
    The same cells and seed give the same bits, whatever the number of threads; a GPU's differ by
    rounding. Memory beyond the components and the result does not grow with the cells.
    """
    x, obs = elements.get_obsm(adata, basis, "basis"), elements.get_table(adata, "obs")
    names = columns.as_names(key, "key")
    labels = {name: columns.get_labels(obs, name, "key") for name in names}
    if not isinstance(adjusted_basis, str) or not adjusted_basis:
        raise InputError(f"adjusted_basis={adjusted_basis!r} is no key of obsm: give a text")
    moved = harmonize(
        x,
        labels,
        n_clusters=n_clusters,
        max_iter_harmony=max_iter_harmony,
        max_iter_clustering=max_iter_clustering,
        tol_harmony=tol_harmony,
        tol_clustering=tol_clustering,
        sigma=sigma,
        theta=theta,
        tau=tau,
        ridge_lambda=ridge_lambda,
        alpha=alpha,
        batch_prune_threshold=batch_prune_threshold,
        block_proportion=block_proportion,
        random_state=random_state,
    )
    adata = adata.copy() if copy else adata
    adata.obsm[adjusted_basis] = moved
    return adata if copy else None
