"""Quality control metrics of cells and genes, all in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, columns, elements
from scatlas._util.numbers import whole_number
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd
    from anndata import AnnData

    from scatlas.kernels.counts.qc_cpu import QCSums


@blocks.passes(1)
def calculate_qc_metrics(
    adata: AnnData,
    *,
    expr_type: str = "counts",
    var_type: str = "genes",
    qc_vars: Collection[str] | str = (),
    percent_top: Collection[int] | None = (50, 100, 200, 500),
    layer: str | None = None,
    use_raw: bool = False,
    inplace: bool = False,
    log1p: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Quality control metrics of each cell and each gene.

    As :func:`scanpy.pp.calculate_qc_metrics` (after scater's `calculateQCMetrics`, McCarthy et
    al. 2017), with these differences: one pass over a Dask X gives everything, whatever the number
    of `qc_vars`; counts are summed exactly, and totals come as int64 for an integer X and as
    float64 for a floating-point one (scanpy sums float32 counts in float32, wrong above 2^24);
    X is left as it is (scanpy drops its explicit zeros; they do not count here either).

    Parameters
    ----------
    adata
        Annotated counts [cells x genes]; X in memory or Dask.
    expr_type, var_type
        What the values and the variables are; used in the names of the columns.
    qc_vars
        Boolean columns of ``adata.var``: totals and percentages are taken over the genes of each.
        With `use_raw` they are matched to the genes of ``adata.raw`` by name; if ``adata.var``
        lacks one of these genes, the columns are those of ``adata.raw.var``.
    percent_top
        Percentage of a cell's counts in its n most abundant genes, for each of these n. None or
        empty for none.
    layer
        Take ``adata.layers[layer]`` instead of X.
    use_raw
        Take ``adata.raw.X`` and its genes instead of X.
    inplace
        Write the metrics into ``adata.obs`` and, by the names of the genes, ``adata.var``.
    log1p
        Add columns of log(1 + metric).

    Returns
    -------
    None when `inplace`, else the two tables. With the default names, for the cells:

    `n_genes_by_counts` : int64
        Genes that are not zero.
    `total_counts` : int64 or float64
        Sum of the counts.
    `pct_counts_in_top_{n}_gene_table` : float64
        Per cent of the counts in the n most abundant genes; NaN for an empty cell.
    `total_counts_{qc_var}` : int64 or float64, `pct_counts_{qc_var}` : float64
        Sum over the genes of the set, and per cent of the cell's; NaN for an empty cell.

    and for the genes, of ``adata.raw`` with `use_raw`:

    `n_cells_by_counts` : int64
        Cells in which the gene is not zero.
    `mean_counts` : float64
        Mean over all cells.
    `pct_dropout_by_counts` : float64
        Per cent of the cells in which the gene is zero.
    `total_counts` : int64 or float64
        Sum of the counts.

    Raises
    ------
    InputError
        When a column of `qc_vars` is missing or not boolean, when `percent_top` holds a number
        below 1 or above the number of genes, when `adata.raw` lacks genes of `adata` whose metrics
        are to be written there, or when totals of integers may not fit 64 bits.
    """
    from scatlas.kernels.counts.qc_cpu import sum_dtype

    x = elements.get_matrix(adata, layer=layer, use_raw=use_raw)
    if inplace:
        elements.get_table(adata, "obs"), elements.get_table(adata, "var")
    names = columns.as_names(qc_vars, "qc_vars")
    genes = (adata.raw if use_raw else adata).var_names
    if inplace and not adata.var_names.isin(genes).all():
        raise InputError(
            "adata.raw lacks genes of adata, so adata.var cannot hold the metrics of its genes: "
            "take them with inplace=False, or those of adata.raw.to_adata()"
        )
    masks = _masks(adata, names, genes, use_raw=use_raw)
    ns = _ranks(percent_top, genes.size)
    sums = _qc_sums(x, masks, ns)
    kind, dtype = f"{var_type}_by_{expr_type}", sum_dtype(x.dtype)
    obs = _cell_table(adata, sums, expr_type, var_type, kind, names, ns, dtype, log1p=log1p)
    var = _gene_table(adata.n_obs, genes, sums, expr_type, dtype, log1p=log1p)
    if not inplace:
        return obs, var
    own_values = {name: columns.in_order(var[name], adata.var_names, "adata.raw") for name in var}
    elements.copy_if_view(adata)
    adata.obs[obs.columns] = obs
    for name, values in own_values.items():
        adata.var[name] = values
    return None


def _masks(adata: AnnData, names: list[str], genes: pd.Index, *, use_raw: bool) -> np.ndarray:
    """bool [qc_vars, genes]."""
    masks = np.zeros((len(names), genes.size), bool)
    if not names:
        return masks
    table, element = elements.genes_of(adata, use_raw=use_raw)
    for row, name in zip(masks, names, strict=True):
        row[:] = columns.get_mask(str(name), table, genes.size, "qc_vars", element)
    return masks


def _ranks(percent_top: Collection[int] | None, n_genes: int) -> list[int]:
    given = columns.as_names(() if percent_top is None else percent_top, "percent_top")
    ns = sorted({whole_number(n, "percent_top") for n in given})
    if ns and (ns[0] < 1 or ns[-1] > n_genes):
        raise InputError(
            f"percent_top={tuple(ns)} asks for the top {ns[-1] if ns[-1] > n_genes else ns[0]} "
            f"genes, but there are {n_genes}: give numbers within 1 and {n_genes}, or None"
        )
    return ns


def _qc_sums(x: Any, masks: np.ndarray, ns: list[int]) -> QCSums:
    from scatlas.kernels.counts.qc_cpu import QCSums
    from scatlas.kernels.moments.group_sums_cpu import check_range
    from scatlas.matrix.sums_by_gene import exact_qc

    if not ns and (sums := exact_qc(x, masks)) is not None:
        return sums
    qc_block, longest = kernels_for("counts.qc", x).qc_block, max(x.shape)

    def block_sums(block: blocks.Block) -> QCSums:
        check_range(block, longest)
        return qc_block(block, masks, ns)

    return blocks.reduce(block_sums, QCSums.merge, elements.as_rows(x))


def _cell_table(
    adata: AnnData,
    sums: QCSums,
    expr: str,
    var: str,
    kind: str,
    names: list[str],
    ns: list[int],
    dtype: type,
    *,
    log1p: bool,
) -> pd.DataFrame:
    """Table of the cells, columns in scanpy's order, totals of a type."""
    totals: np.ndarray = sums.totals.astype(dtype)
    masked: np.ndarray = sums.masked.astype(dtype)
    columns = {f"n_{kind}": sums.n_genes, f"total_{expr}": totals}
    logged = set(columns)
    with np.errstate(invalid="ignore", divide="ignore"):  # empty cells: 0/0 is NaN
        for k, n in enumerate(ns):
            columns[f"pct_{expr}_in_top_{n}_{var}"] = sums.top[:, k] / totals * 100
        for k, name in enumerate(names):
            columns[f"total_{expr}_{name}"] = masked[:, k]
            logged.add(f"total_{expr}_{name}")
            columns[f"pct_{expr}_{name}"] = masked[:, k] / totals * 100
    return _with_logarithms(columns, logged if log1p else set(), adata.obs_names)


def _gene_table(
    n_cells: int, genes: pd.Index, sums: QCSums, expr: str, dtype: type, *, log1p: bool
) -> pd.DataFrame:
    """Table of the genes, columns in scanpy's order."""
    with np.errstate(invalid="ignore"):  # no cells at all: 0/0 is NaN
        columns = {
            f"n_cells_by_{expr}": sums.n_cells,
            f"mean_{expr}": sums.gene_totals / np.int64(n_cells),
            f"pct_dropout_by_{expr}": (1 - sums.n_cells / np.int64(n_cells)) * 100,
            f"total_{expr}": sums.gene_totals.astype(dtype),
        }
    logged = {f"mean_{expr}", f"total_{expr}"} if log1p else set()
    return _with_logarithms(columns, logged, genes)


def _with_logarithms(
    columns: dict[str, np.ndarray], logged: set[str], index: pd.Index
) -> pd.DataFrame:
    import pandas as pd

    with_logs = {}
    for name, values in columns.items():
        with_logs[name] = values
        if name in logged:
            with_logs[f"log1p_{name}"] = np.log1p(values)
    return pd.DataFrame(with_logs, index=index)
