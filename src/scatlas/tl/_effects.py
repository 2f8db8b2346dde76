"""Effects of drugs, guides or diseases on genes: ``sa.tl.effects``."""

from __future__ import annotations

import logging
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import blocks, columns, elements
from scatlas._util.numbers import check_positive, whole_number
from scatlas.errors import InputError
from scatlas.get import aggregate_cells
from scatlas.matrix.effects import METHODS, N_CELLS, fit_effects
from scatlas.matrix.effects_scaling import SCALINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

    from scatlas.matrix.effects import Effects, Method
    from scatlas.matrix.effects_scaling import Scaling

logger = logging.getLogger(__name__)
_LAYER = "sum"  # as sa.get.aggregate names it
_VARM = ("mean_expression", "df")
_COLUMNS = (
    *("n_replicates", "n_controls", "n_cells", "df_residual", "df_prior", "n_genes"),
    *("n_significant", "model"),
)
# Texts that readers of tables take for a gap.
_NO_NAMES = ("", "NA", "NaN", "nan", "None", "<NA>")


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
        blocks), ``n_cells``, ``df_residual``, ``df_prior``, ``n_genes`` that were tested and
        ``n_significant``, at a false discovery rate of 0.05, and ``model``, the column of varm.
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
    Law et al. 2014 (voom), Smyth 2004 (moderated t), Robinson and Oshlack 2010 (TMM). Contrasts are
    fitted exactly, where limma's ``contrasts.fit`` is not with weights.
    """
    _check_options(adata.var_names, method, scaling, min_count, min_total_count)
    within = [] if within is None else list(dict.fromkeys(columns.as_names(within, "within")))
    names = {f"within {i}": name for i, name in enumerate(within)}
    groups = [*names]
    given = {"condition": condition}
    given |= {"block": block} if block is not None else {}
    given |= {"replicate": replicate} if replicate is not None else {}
    if taken := {condition, *within}.intersection(_COLUMNS):
        raise InputError(f"the result has a column {min(taken)!r}, too: rename that of obs")
    table = _labels(adata, names | given)
    control = _known(str(control), table["condition"], condition)
    if layer is None and adata.X is None:
        layer = _LAYER
    counts, samples = _pseudobulks(adata, table, replicate is not None, layer)
    samples, few = _drop_small(samples, whole_number(min_cells, "min_cells"))
    options: dict[str, Any] = {"method": method, "scaling": scaling, "control": control}
    options |= {"min_count": float(min_count), "min_total_count": float(min_total_count)}
    parts, used = [], []
    for key, own in samples.groupby(groups, observed=True) if groups else [((), samples)]:
        rows, own = own["row"].to_numpy(), own.drop(columns=["row", *groups])
        labels = dict(zip(within, key, strict=True))
        try:
            found = fit_effects(counts[rows], own, adata.var_names, **options)
        except InputError as error:
            if not within:
                raise
            few.append((*key, "", "", str(error)))
            logger.warning("no effects within %s: %s", ", ".join(key), error)
            continue
        parts.append(_as_anndata(found, adata.var_names, labels, condition))
        used.append(found.samples.assign(**labels))
        few += [(*key, *row) for row in found.left_out.itertuples(index=False)]
    if not parts:
        raise InputError(
            f"no value of {', '.join(within)} has effects of {condition}; the last: {few[-1][-1]}"
        )
    left_out = pd.DataFrame(few, columns=[*within, "condition", "sample", "reason"], dtype=object)
    tables = {"samples": pd.concat(used), "left_out": left_out}
    return _join(parts, [*within, condition], {**options, **given, **tables})


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


def _labels(adata: AnnData, names: dict[str, str]) -> pd.DataFrame:
    """Labels as texts, by option; those of ``within`` may have gaps."""
    obs = elements.get_table(adata, "obs")
    table = pd.DataFrame(index=obs.index)
    for key, name in names.items():
        option = key.split()[0]
        columns.check_groups(columns.get_column(obs, name, option), option)
        labels = columns.get_labels(obs, name, option).remove_unused_categories()
        texts = Counter(str(label) for label in labels.categories)
        if bad := [text for text in texts if text in _NO_NAMES or texts[text] > 1]:
            raise InputError(
                f"obs[{name!r}] ({option}) has the label {bad[0]!r}, which tables read as a gap or "
                "as another label: rename it"
            )
        labels = labels.rename_categories([*texts])
        gaps = int((labels.codes < 0).sum())
        if gaps and option != "within":
            raise InputError(
                f"obs[{name!r}] ({option}) has no value in {gaps:,} of {len(obs):,} rows: "
                "leave them out, or give them one"
            )
        if gaps:
            logger.warning("%d rows have no value of %s and are left out", gaps, name)
        table[key] = pd.Categorical(labels)
    return table


def _known(control: str, labels: pd.Series, name: str) -> str:
    """The control, if it is a label."""
    there = list(labels.cat.categories)
    if control not in there:
        near = get_close_matches(control, there, 1, 0) or ["a column with values"]
        raise InputError(f"obs[{name!r}] has no control {control!r}: try {near[0]!r}")
    return control


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


def _drop_small(
    samples: pd.DataFrame, min_cells: int
) -> tuple[pd.DataFrame, list[tuple[str, ...]]]:
    if N_CELLS not in samples:
        return samples, []
    small = samples[N_CELLS] < min_cells
    within = [name for name in samples if name.startswith("within")]
    rows = [
        (*map(str, own[within]), str(own["condition"]), str(name), f"{own[N_CELLS]:,} cells")
        for name, own in samples[small].iterrows()
    ]
    return samples[~small], rows


def _as_anndata(found: Effects, genes: pd.Index, labels: dict[str, str], name: str) -> AnnData:
    """Effects of one model, among all genes."""
    from anndata import AnnData

    change, t = found.to_memory(genes)
    varm = found.genes[[*_VARM]].reindex(genes).to_numpy()
    table = found.summary(t, varm[:, 1])
    table.insert(0, name, table.index.astype(str))
    for column, label in reversed(labels.items()):
        table.insert(0, column, label)
    table.index = ["_".join(row) for row in table[[*labels, name]].to_numpy()]
    var = pd.DataFrame(index=genes)
    by_model = dict(zip(_VARM, varm.T[:, :, None], strict=True))
    return AnnData(change, obs=table, var=var, layers={"t": t}, varm=by_model)


def _join(parts: Sequence[AnnData], names: Sequence[str], uns: dict[str, Any]) -> AnnData:
    """All models, below each other."""
    import anndata as ad

    joined = ad.concat(parts) if len(parts) > 1 else parts[0]
    joined.obs_names_make_unique()
    joined.obs["model"] = np.repeat(np.arange(len(parts)), [part.n_obs for part in parts])
    for name in names:
        joined.obs[name] = pd.Categorical(joined.obs[name], joined.obs[name].unique())
    for name in _VARM:
        joined.varm[name] = np.concatenate([part.varm[name] for part in parts], axis=1)
    joined.uns["effects"] = uns
    return joined
