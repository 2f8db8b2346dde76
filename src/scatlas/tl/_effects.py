"""Effects of drugs, guides or diseases on genes: ``sa.tl.effects``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import blocks, columns, elements
from scatlas._util.numbers import check_positive, whole_number
from scatlas.errors import InputError
from scatlas.get import aggregate_cells
from scatlas.matrix.effects import METHODS
from scatlas.matrix.effects_groups import (
    COLUMNS,
    N_CELLS,
    as_obs,
    drop_small,
    fit_groups,
    label_samples,
    with_labels,
)
from scatlas.matrix.effects_scaling import SCALINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

    from scatlas.matrix.effects import Effects, Method
    from scatlas.matrix.effects_scaling import Scaling

_LAYER = "sum"  # as sa.get.aggregate names it


@blocks.passes(1, "the sums of replicates")
def effects(
    adata: AnnData,
    condition: str,
    control: str,
    *,
    within: str | Sequence[str] | None = None,
    replicate: str | None = None,
    block: str | None = None,
    method: Method = "voom",
    scaling: Scaling = "tmm",
    robust: bool = False,
    min_cells: int = 10,
    min_count: float = 10.0,
    min_total_count: float = 15.0,
    layer: str | None = None,
) -> AnnData:
    """Compare every condition with the control, gene by gene, on sums of cells.

    One linear model of all pseudobulks: logarithms of counts per million, an effect per condition
    and one per block, variances moderated over the genes (limma's voom or trend). With blocks, a
    condition is compared with the control in its blocks. A condition with one pseudobulk
    borrows its variance from those with several, often the control alone: ``df_residual`` says how
    many degrees of freedom there are.

    Parameters
    ----------
    adata
        Counts of cells, if `replicate` is given: on the CPU or a GPU, in memory or Dask. Otherwise
        each row is a pseudobulk; NaN for genes that it does not measure.
    condition
        Column of ``obs`` with drugs and doses, guides or diseases.
    control
        Its value that the others are compared with.
    within
        Column, or columns, such as cell lines or clusters: one model for each of their values. Rows
        without a value are left out.
    replicate
        Column with the wells, animals or donors whose cells are summed.
    block
        Column with plates or batches, whose effects are removed.
    method
        ``"voom"``: each value has a weight, by the count that is expected. ``"trend"``: all have
        the same, and the prior of the variances follows the mean: only for pseudobulks of similar
        size and many counts, as others give too small p-values.
    scaling
        Factors of the library sizes: ``"tmm"``, ``"upper_quartile"`` or ``"none"``.
    robust
        Genes that vary far more than others, as markers of sex or contamination do, borrow less
        from the others and do not change what these borrow.
    min_cells
        Pseudobulks of fewer cells are left out, if ``obs`` has ``n_obs_aggregated`` or cells are
        summed.
    min_count, min_total_count
        A gene is tested if as many pseudobulks as the smallest condition has have `min_count`
        counts of it, in a library of median size, and all together `min_total_count` (edgeR's
        ``filterByExpr``).
    layer
        Key of the layer with the counts; by default X, or ``"sum"`` where X is empty.

    Returns
    -------
    AnnData ``[n_conditions, n_genes]``, with NaN where there is no value:

    ``X``, float32
        log2 fold changes.
    ``layers['t']``, float32
        Moderated t; :func:`scatlas.get.effects` derives p-values and false discovery rates.
    ``obs``
        The columns of `within` and `condition`, ``n_replicates``, ``n_controls`` (those in its
        blocks), ``n_cells``, ``df_residual``, ``df_prior`` (with `robust`, that of most genes),
        ``n_genes`` that were tested and ``n_significant``, at a false discovery rate of 0.05, and
        ``model``, the column of varm.
    ``varm['mean_expression']``, ``varm['df']``, float64 ``[n_genes, n_models]``
        Mean log2 counts per million; degrees of freedom that p-values rest on.
    ``uns['effects']``
        The options; ``samples``, a table of the pseudobulks; ``left_out``, a table of conditions
        and pseudobulks with the reason why they were.

    Raises
    ------
    InputError
        A column is missing or has gaps, the control is unknown, values are no counts, or no
        group has replicates, genes and conditions that can be compared.

    References
    ----------
    Law et al. 2014 (voom), Smyth 2004 (moderated t), Phipson et al. 2016 (`robust`), Robinson and
    Oshlack 2010 (TMM). Contrasts are fitted exactly, where limma's ``contrasts.fit`` is not with
    weights; ``docs/differences.md``.
    """
    _check_options(adata.var_names, method, scaling, min_count, min_total_count)
    within = [] if within is None else list(dict.fromkeys(columns.as_names(within, "within")))
    obs = elements.get_table(adata, "obs")
    table = label_samples(obs, condition, control, within, replicate, block)
    if taken := {condition, *within}.intersection(COLUMNS):
        raise InputError(f"the result has a column {min(taken)!r}, too: rename that of obs")
    given = {"condition": condition}
    given |= {"block": block} if block is not None else {}
    given |= {"replicate": replicate} if replicate is not None else {}
    if layer is None and adata.X is None:
        layer = _LAYER
    counts, samples = _pseudobulks(adata, table, replicate is not None, layer)
    samples, few = drop_small(samples, whole_number(min_cells, "min_cells"))
    options: dict[str, Any] = {"method": method, "scaling": scaling, "control": str(control)}
    options["robust"] = bool(robust)
    options |= {"min_count": float(min_count), "min_total_count": float(min_total_count)}
    fits = fit_groups(samples, counts.__getitem__, adata.var_names, few, **options)
    found = _as_anndata(fits, adata.var_names, within, condition)
    left_out = pd.DataFrame(few, columns=[*within, "condition", "sample", "reason"], dtype=object)
    if found is None:
        raise InputError(
            f"no value of {', '.join(within)} has effects of {condition}; the last: {few[-1][-1]}"
        )
    found.uns["effects"] = {**options, **given, "left_out": left_out, **found.uns["effects"]}
    return found


def _check_options(
    genes: pd.Index, method: Any, scaling: Any, min_count: Any, min_total_count: Any
) -> None:
    for value, name, known in ((method, "method", METHODS), (scaling, "scaling", SCALINGS)):
        if value not in known:
            raise InputError(f"{name}={value!r} is unknown: use one of {', '.join(known)}")
    if not genes.is_unique:
        raise InputError("names of genes occur twice: call adata.var_names_make_unique() first")
    check_positive(min_count, "min_count")
    check_positive(min_total_count, "min_total_count")


def _pseudobulks(
    adata: AnnData, table: pd.DataFrame, sums: bool, layer: str | None
) -> tuple[NDArray[Any], pd.DataFrame]:
    """Counts ``[n_samples, n_genes]``, and the labels of the samples with their row."""
    x = elements.get_matrix(adata, layer=layer)
    if sums:
        table, layers = aggregate_cells(x, table, [*table], func="sum")
        x = layers["sum"]
    else:
        x = blocks.to_memory(x)
        if N_CELLS in adata.obs:
            table[N_CELLS] = columns.get_numbers(adata.obs, N_CELLS, "min_cells")
    x = blocks.on_host(x)
    counts = x.toarray() if blocks.is_sparse(x) else np.asarray(x)
    for name, row in zip(table.index, counts, strict=True):
        if not ((row >= 0) & (row == np.floor(row)) | np.isnan(row)).all():
            raise InputError(
                f"row {name!r} of {'X' if layer is None else f'layers[{layer!r}]'} has values that "
                "are no counts: name the layer with the counts"
            )
    return counts, table.assign(row=np.arange(len(table)))


def _as_anndata(
    fits: Iterator[tuple[tuple[str, ...], Effects]],
    genes: pd.Index,
    within: Sequence[str],
    condition: str,
) -> AnnData | None:
    """Effects of all groups, with a table of the samples; None if there are none."""
    from anndata import AnnData

    obs, samples, parts = [], [], []
    for i, (key, found) in enumerate(fits):
        change, t = found.to_memory()
        group = dict(zip(within, key, strict=True))
        table = found.summary(found.n_genes(t))
        obs.append(with_labels(table, group, condition).assign(model=i))
        samples.append(found.samples.assign(**group))
        parts.append((found.genes, change, t))
        del found  # and its counts
    if not parts:
        return None
    n_rows, first = sum(map(len, obs)), 0
    x, t = np.full((2, n_rows, genes.size), np.nan, np.float32)
    mean, df = np.full((2, genes.size, len(parts)), np.nan)
    for i, (table, own_change, own_t) in enumerate(parts):
        at = genes.get_indexer(table.index)
        rows = slice(first, first := first + len(own_t))
        x[rows, at], t[rows, at] = own_change, own_t
        mean[at, i], df[at, i] = table["mean_expression"], table["df"]
    return AnnData(
        x,
        obs=as_obs(pd.concat(obs), [*within, condition]),
        var=pd.DataFrame(index=genes),
        layers={"t": t},
        varm={"mean_expression": mean, "df": df},
        uns={"effects": {"samples": pd.concat(samples)}},
    )
