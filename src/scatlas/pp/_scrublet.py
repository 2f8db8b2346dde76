"""Cells that are two: Scrublet, out of core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas import blocks, columns, elements
from scatlas._util.numbers import seed_number
from scatlas.matrix.scrublet import scrublet_of_counts

if TYPE_CHECKING:
    from anndata import AnnData


@blocks.passes(4, "totals; moments of the genes; their Gram matrix; the cells on its components")
def scrublet(
    adata: AnnData,
    *,
    batch_key: str | None = None,
    sim_doublet_ratio: float = 2.0,
    expected_doublet_rate: float = 0.05,
    n_prin_comps: int = 30,
    n_neighbors: int | None = None,
    threshold: float | None = None,
    n_top_genes: int | None = None,
    random_state: int | None = 0,
    copy: bool = False,
) -> AnnData | None:
    """Find cells that are two read as one (doublets) by Scrublet.

    Wolock, Lopez, Klein (Cell Systems 2019): doublets are simulated by adding the counts of random
    cells; a cell among whose neighbours are many of them is likely one itself. As
    :func:`scanpy.pp.scrublet` with exact neighbours and otherwise its defaults: the highly
    variable genes, brought to 10^6 counts per cell and to unit variance, in 30 components. The
    simulated doublets are those that scanpy draws with the same seed.

    No matrix of simulated counts is made, and X is read in blocks: memory is 0.4 kB per cell and
    the neighbours of 60,000 at a time. More than 20,000 cells (of a batch) are dealt at random into
    equal parts that are scored one after another.

    Parameters
    ----------
    adata
        Annotated raw counts [cells x genes], in memory or Dask.
    batch_key
        Column of ``obs`` that tells the captures apart (lanes, sublibraries): doublets are made
        of cells of one capture, and each capture has its own threshold. Genes and components are
        those of all cells (scanpy: of the capture).
    sim_doublet_ratio
        Doublets simulated for each cell.
    expected_doublet_rate
        Share of doublets to be expected. It scales the scores and changes no order.
    n_prin_comps
        Components.
    n_neighbors
        Neighbours of a cell among cells; half the square root of their number when left out.
    threshold
        Score above which a cell is a predicted doublet; between the two modes of the simulated
        doublets' scores when left out. Where there are no two modes no cell is, and a warning
        is logged.
    n_top_genes
        Highly variable genes, of flavor seurat; by scanpy's cutoffs when left out.
    random_state
        Seed of the doublets. None draws one.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written:

    ``obs['doublet_score']`` : float64
        NaN for cells with fewer than three genes, and in captures of fewer than 50 cells.
    ``obs['predicted_doublet']`` : bool
    ``uns['scrublet']`` : dict
        ``doublet_scores_sim``, ``doublet_parents`` (positions of cells), ``parameters`` and, if
        there is one, ``threshold``; with `batch_key` for each batch in ``batches``, and
        ``batched_by``.

    Raises
    ------
    InputError
        No such column, too few cells or variable genes for the components, or a parameter out
        of bounds.
    """
    labels = None
    if batch_key is not None:
        labels = columns.get_labels(elements.get_table(adata, "obs"), batch_key, "batch_key")
    random_state = seed_number(random_state)
    found = scrublet_of_counts(
        elements.get_array(adata, None),
        adata.var_names,
        batch=labels,
        sim_doublet_ratio=sim_doublet_ratio,
        expected_doublet_rate=expected_doublet_rate,
        n_prin_comps=n_prin_comps,
        n_neighbors=n_neighbors,
        threshold=threshold,
        n_top_genes=n_top_genes,
        random_state=random_state,
    )
    adata = adata.copy() if copy else adata
    adata.obs["doublet_score"] = found.score
    adata.obs["predicted_doublet"] = found.predicted
    parameters = {
        "expected_doublet_rate": expected_doublet_rate,
        "sim_doublet_ratio": sim_doublet_ratio,
        "random_state": random_state,
    }
    facts = {
        str(name): {
            "doublet_scores_sim": capture.scores_sim,
            "doublet_parents": capture.parents,
            "parameters": {**parameters, "n_neighbors": capture.n_neighbors},
            **({} if capture.threshold is None else {"threshold": capture.threshold}),
        }
        for name, capture in found.captures.items()
    }
    if batch_key is None:
        (adata.uns["scrublet"],) = facts.values()
    else:
        adata.uns["scrublet"] = {"batches": facts, "batched_by": batch_key}
    return adata if copy else None
