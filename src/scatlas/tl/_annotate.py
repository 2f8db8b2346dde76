"""Types of cells by a linear classifier: one trained on labelled cells, or CellTypist's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scatlas import blocks, columns, elements
from scatlas._util.numbers import whole_number
from scatlas.io.products.annotators import Annotator
from scatlas.io.products.celltypist_models import read_model
from scatlas.matrix.annotate import annotate_values, categorical, columns_of_answers, vote
from scatlas.matrix.train_annotator import train

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData


@blocks.passes(2, "moments of the genes by type, then the cells to learn from")
def train_annotator(
    adata: AnnData,
    label: str | Sequence[str],
    *,
    groups: str | None = None,
    ontology_ids: str | None = None,
    layer: str | None = None,
    n_genes: int = 3000,
    max_cells: int = 1000,
    random_state: int = 0,
) -> Annotator:
    """Learn the types of labelled cells, for :func:`annotate`.

    A multinomial logistic model, all types counting alike, of log-normalised values scaled to mean
    0 and standard deviation 1 and bounded at 10. Held-out cells choose its penalty, the one of
    least loss, and its three bounds, below which :func:`annotate` calls a cell unknown:

    - fit: ``(s - mean) / sd`` of the best score s, with mean and sd of the scores of held-out cells
      for their own type. 3% of the held-out cells are below the bound; so are most cells of a type
      that the reference lacks, which a probability, that of the best of the known types, misses;
    - probability and its margin: 0.5 of the cells above in 100, but at most 0.5 and 0.1.

    Parameters
    ----------
    adata
        Labelled cells. X in memory or Dask, on the CPU or a GPU: counts, or ``log1p`` of counts
        normalised to 10,000 per cell, of all measured genes. A Dask X is read twice, and memory
        holds the chosen cells and genes.
    label
        Column of ``obs`` with the types; or several, from the coarsest, where each type belongs to
        one coarser type. Cells with a missing value are left out.
    groups
        Column of donors or plates. Whole ones are held out, in up to five folds. Without it, or for
        a type of one group, random cells are, which are more like the others than a new donor's:
        fewer cells of it will be sure.
    ontology_ids
        Column with an id (Cell Ontology) of each type.
    layer
        Learn from ``adata.layers[layer]``.
    n_genes
        Genes whose means differ most between types, relative to the variance within them.
    max_cells
        Cells of each type to learn from, drawn from all groups alike.
    random_state
        Seed of the draw.

    Returns
    -------
    Annotator
        Its ``record`` says how well held-out cells were named. Save it with
        :func:`scatlas.io.write_annotator`.

    Raises
    ------
    InputError
        Types called unknown, unassigned, heterogeneous, NA or nothing, or with ``|``; a type of
        fewer than 10 cells; one type; types in two coarser types, or with two ids; values that are
        neither counts nor log-normalised.
    """
    table = elements.get_table(adata, "obs")
    *coarser, finest = columns.as_names(label, "label")
    return train(
        elements.get_array(adata, layer),
        elements.get_table(adata, "var").index,
        columns.get_labels(table, finest, "label"),
        groups=None if groups is None else columns.get_labels(table, groups, "groups"),
        coarser={name: columns.get_labels(table, name, "label") for name in coarser},
        ontology_ids=(
            None
            if ontology_ids is None
            else columns.get_labels(table, ontology_ids, "ontology_ids")
        ),
        n_genes=whole_number(n_genes, "n_genes", least=2),
        max_cells=whole_number(max_cells, "max_cells", least=10),
        random_state=whole_number(random_state, "random_state", least=0),
        source="adata" if layer is None else f"layers[{layer!r}]",
    )


@blocks.passes(1, "the scores")
def annotate(
    adata: AnnData,
    model: Annotator | str | Path,
    *,
    clusters: str | None = None,
    key_added: str = "cell_type",
    layer: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Name the type of each cell, or none where the model is not sure.

    Scores are those of CellTypist 1.7, ``intercept + coef @ min((x - mean) / scale, 10)`` over the
    genes that the cells and the model share, from the stored values alone. A cell is unknown if its
    fit, probability or margin (:func:`train_annotator`) is below the model's bound; models of
    CellTypist have one alone, a probability of 0.5.

    Parameters
    ----------
    adata
        X in memory or Dask, on the CPU or a GPU: counts, or ``log1p`` of counts normalised to
        10,000 per cell, of all measured genes.
    model
        What :func:`train_annotator` returned, the file that it was saved in, or a CellTypist model
        (``.pkl``), which is read in another process and runs nothing.
    clusters
        Column of ``obs``: the most frequent type of each cluster is its vote.
    key_added
        First part of the columns' names.
    layer
        Name the cells by ``adata.layers[layer]``.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written to ``obs``, for the key ``cell_type``:

    ``cell_type`` : categorical
        Missing for unknown cells.
    ``cell_type_<column>`` : categorical
        Of each coarser column of labels: known more often, as its types sum their probabilities.
    ``cell_type_probability`` : float32
        Of the best type, also of unknown cells.
    ``cell_type_runner_up`` : categorical
        The second best type.
    ``cell_type_ontology_term_id`` : categorical
        If the model has ids.
    ``cell_type_vote`` : categorical
        With ``clusters``: the most frequent type of the cell's cluster; missing if more of the
        cluster's cells are unknown.

    Raises
    ------
    InputError
        Fewer than 20 or 10% of the model's genes are there; values that are neither counts nor
        log-normalised; a file that is no model.

    References
    ----------
    C. Domínguez Conde et al., Science 376 (2022). Reference implementation: celltypist 1.7.1,
    ``classifier.py``.
    """
    annotator = model if isinstance(model, Annotator) else read_model(Path(model))
    table = elements.get_table(adata, "obs")
    known = None if clusters is None else columns.get_labels(table, clusters, "clusters")
    answers = annotate_values(
        elements.get_array(adata, layer),
        elements.get_table(adata, "var").index,
        annotator,
        source="adata" if layer is None else f"layers[{layer!r}]",
    )
    adata = adata.copy() if copy else adata
    for name, column in columns_of_answers(answers, annotator, key_added).items():
        adata.obs[name] = column
    if known is not None:
        sizes = annotator.labels.size, len(known.categories)
        winners = vote(answers.codes, known.codes, *sizes)["vote"].to_numpy()
        codes = np.append(winners, -1)[known.codes]
        adata.obs[f"{key_added}_vote"] = categorical(codes, annotator.labels)
    return adata if copy else None
