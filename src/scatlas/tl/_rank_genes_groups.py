"""Genes ranked by how well they mark groups of cells: public functions and their documentation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from scatlas import blocks, columns, elements
from scatlas._util.numbers import whole_number
from scatlas.errors import InputError
from scatlas.kernels.moments.group_sums_cpu import SumKinds
from scatlas.matrix.rank_statistics import log_fold_changes, welch
from scatlas.tl import _rank_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray

    from scatlas.tl._rank_groups import GroupResult, Groups

Method = Literal["t-test", "t-test_overestim_var", "wilcoxon", "logreg"]
CorrMethod = Literal["benjamini-hochberg", "bonferroni"]

logger = logging.getLogger(__name__)


@blocks.passes(
    1,
    "wilcoxon: one more for each set of genes that fits the memory, one if all do; logreg: one "
    "more for each evaluation of the loss, or none more if X fits the memory",
)
def rank_genes_groups(
    adata: AnnData,
    groupby: str,
    *,
    mask_var: NDArray[np.bool_] | str | None = None,
    use_raw: bool | None = None,
    groups: Literal["all"] | Iterable[str] = "all",
    reference: str = "rest",
    n_genes: int | None = None,
    rankby_abs: bool = False,
    pts: bool = False,
    key_added: str | None = None,
    copy: bool = False,
    method: Method | None = None,
    corr_method: CorrMethod = "benjamini-hochberg",
    tie_correct: bool = False,
    layer: str | None = None,
    **kwds: Any,
) -> AnnData | None:
    """Rank genes by how they mark groups of cells, as :func:`scanpy.tl.rank_genes_groups`.

    Parameters
    ----------
    adata
        Annotated data, log-normalised; the matrix in memory or Dask, on the CPU or a GPU.
    groupby
        Column of obs whose values make the groups. Cells without a value belong to no group, but
        to the rest of each.
    mask_var
        Boolean, one per gene, or the name of a column of var of such: the genes that are results.
        A column or a Series is matched to the genes of ``adata.raw`` by name.
    use_raw
        Rank the genes of ``adata.raw``; if left out, where there is one.
    groups
        Groups to rank genes for, ``"all"`` or a list. All other cells still belong to the rest.
    reference
        ``"rest"``: compare each group with all other cells. Else the group to compare each with.
    n_genes
        Genes of the result, the first of each group; all when left out.
    rankby_abs
        Rank by the absolute value of the score. Scores keep their signs.
    pts
        Add the fractions of cells that express each gene; not with ``"logreg"``.
    key_added
        Key of ``uns``, in place of ``rank_genes_groups``.
    copy
        Return a changed copy and leave ``adata`` as it is.
    method
        ``"t-test"`` (Welch's, the default), ``"t-test_overestim_var"`` (the other side counts as no
        larger than the group), ``"wilcoxon"`` (rank sums) or ``"logreg"``
        (:func:`rank_genes_groups_logreg`).
    corr_method
        Correction of p-values for the number of genes, ``"benjamini-hochberg"`` or
        ``"bonferroni"``.
    tie_correct
        Correct the scores of ``"wilcoxon"`` for tied values.
    layer
        Rank by this layer in place of X.
    **kwds
        Options of ``"logreg"``, those of :func:`rank_genes_groups_logreg`.

    Returns
    -------
    None, or the copy. Written: ``uns['rank_genes_groups']`` with ``params``, and structured arrays
    with a field for each group, genes by falling score: ``names``, ``scores`` (float32) and, but
    for ``"logreg"``, ``pvals`` and ``pvals_adj`` (float64) and ``logfoldchanges`` (float32); with
    `pts` tables [genes x groups] of fractions, ``pts`` and (for the rest) ``pts_rest``.

    Raises
    ------
    InputError
        A column, group, layer or option is not there, a group has fewer than two cells, or values
        are not finite.
    TooLargeError
        The result, or one gene's values for ``"wilcoxon"``, do not fit the memory.

    Notes
    -----
    Genes of equal scores keep the order of ``var``. No result depends on the blocks of X, nor on
    how much memory there is.

    t-tests take one pass over X: sums and sums of squares of the groups are exact, and those of the
    rest follow from them. Means and variances are float64 for any type of X, variances
    divided by n - 1.

    ``"wilcoxon"`` takes one pass for means and zeros and then, for as many genes at a time as fit
    40% of the memory left, one pass that gathers their nonzero values and groups, 6 bytes each for
    float32 (on a GPU 40). The log says how many. Rank sums are exact integers; the only
    approximation is the normal distribution, as in scanpy.

    ``logfoldchanges`` come from the means of log(1 + x), as in scanpy:
    log2((expm1(mean) + 1e-9) / (expm1(mean of the others) + 1e-9)), with the base of
    ``uns['log1p']`` if there is one.

    References
    ----------
    B. L. Welch, Biometrika 34 (1947); F. Wilcoxon, Biometrics Bulletin 1 (1945); Y. Benjamini,
    Y. Hochberg, J. R. Stat. Soc. B 57 (1995); V. Ntranos et al., Nat. Methods 16 (2019), for
    logistic regression.
    """
    method = "t-test" if method is None else method
    for name, value, known in (
        ("method", method, get_args(Method)),
        ("corr_method", corr_method, get_args(CorrMethod)),
    ):
        if value not in known:
            msg = f"{name}={value!r} is unknown: use {', '.join(known[:-1])} or {known[-1]}"
            raise InputError(msg)
    if kwds and method != "logreg":
        raise InputError(f"{next(iter(kwds))!r} is no option of method={method!r}")
    if n_genes is not None:
        n_genes = whole_number(n_genes, "n_genes", least=1)
    elements.check_not_backed(adata)
    use_raw = adata.raw is not None if use_raw is None else use_raw
    x = elements.get_matrix(adata, layer=layer, use_raw=use_raw, all_floats=method != "logreg")
    x = elements.check_array(x, "the matrix to rank genes by", all_floats=True)
    names = adata.raw.var_names if use_raw else adata.var_names
    genes = _genes_of_mask(adata, mask_var, use_raw=use_raw)
    names = names if genes is None else names[genes]
    chosen = _rank_groups.parse_groups(elements.get_table(adata, "obs"), groupby, groups, reference)
    base = adata.uns.get("log1p", {}).get("base")

    fractions: dict[str, pd.DataFrame] = {}
    if method == "logreg":
        if pts:
            logger.warning("pts are not computed with method='logreg'")
        from scatlas.tl._rank_logreg import logreg

        ranked = logreg(x, chosen, names, genes, **_logreg_options(kwds))
    else:
        ranked, fractions = _run_test(
            x, chosen, names, genes, method, tie_correct=tie_correct, pts=pts, base=base
        )
    result: dict[str, Any] = {
        "params": {
            "groupby": groupby,
            "reference": reference,
            "method": method,
            "use_raw": use_raw,
            "layer": layer,
            "corr_method": corr_method,
        }
    }
    result |= fractions
    result |= _rank_groups.tables(
        ranked, names, n_genes=n_genes, rankby_abs=rankby_abs, corr_method=corr_method
    )
    adata = adata.copy() if copy else adata
    adata.uns["rank_genes_groups" if key_added is None else key_added] = result
    return adata if copy else None


@blocks.passes(
    1, "one more for each evaluation of the loss, or none more if X fits 40% of the memory left"
)
def rank_genes_groups_logreg(
    adata: AnnData,
    groupby: str,
    *,
    mask_var: NDArray[np.bool_] | str | None = None,
    use_raw: bool | None = None,
    groups: Literal["all"] | Iterable[str] = "all",
    reference: str = "rest",
    n_genes: int | None = None,
    rankby_abs: bool = False,
    key_added: str | None = None,
    copy: bool = False,
    layer: str | None = None,
    C: float = 1.0,
    tol: float = 1e-4,
    max_iter: int = 100,
    fit_intercept: bool = True,
    class_weight: Literal["balanced"] | None = None,
    penalty: Literal["l2"] | None = "l2",
) -> AnnData | None:
    """Rank genes by their coefficients in a logistic regression of the groups on all genes.

    The same as ``rank_genes_groups(..., method="logreg")``, under rapids-singlecell's name. Scores
    are the coefficients that :class:`sklearn.linear_model.LogisticRegression` has, with its
    defaults, as scanpy's are: multinomial, found by L-BFGS.

    Parameters
    ----------
    adata, groupby, mask_var, use_raw, n_genes, rankby_abs, key_added, copy, layer
        As for :func:`rank_genes_groups`.
    groups
        Groups to separate, ``"all"`` or a list; other cells are ignored.
    reference
        A group that is one of them, too, if it is not ``"rest"``.
    C
        Inverse strength of the penalty: less makes smaller coefficients.
    tol
        Largest part of the gradient of the mean loss at which to stop.
    max_iter
        Iterations after which to stop; then a warning is given.
    fit_intercept
        Fit a constant for each group, which is not penalised.
    class_weight
        ``"balanced"``: the cells of each group weigh as much as those of any other.
    penalty
        ``"l2"``, or None for none.

    Returns
    -------
    None, or the copy. Written: ``uns['rank_genes_groups']`` with ``params``, ``names`` and
    ``scores``, as :func:`rank_genes_groups` has them. Two groups have one set of
    coefficients. As in scanpy it has the name of the first group, and is positive for genes that
    mark the second of the two categories.

    Raises
    ------
    InputError
        As for :func:`rank_genes_groups`, or there is one group alone.

    Notes
    -----
    The loss is the mean of -log p over the cells (weighted by `class_weight`), plus the squared
    coefficients over 2 C n. Each evaluation of the loss and its gradient takes a pass over X,
    unless the cells and genes in use fit 40% of the memory left: then the first pass keeps them.
    Sums over cells use fixed point: the coefficients do not depend on the blocks of X, nor on the
    number of threads. The computation is in float64; scikit-learn's is in float32 for a float32 X.
    """
    return rank_genes_groups(
        adata,
        groupby,
        mask_var=mask_var,
        use_raw=use_raw,
        groups=groups,
        reference=reference,
        n_genes=n_genes,
        rankby_abs=rankby_abs,
        key_added=key_added,
        copy=copy,
        layer=layer,
        method="logreg",
        C=C,
        tol=tol,
        max_iter=max_iter,
        fit_intercept=fit_intercept,
        class_weight=class_weight,
        penalty=penalty,
    )


def _logreg_options(kwds: dict[str, Any]) -> dict[str, Any]:
    """Options of logistic regression, without scikit-learn's options that have no effect."""
    known = {"C", "tol", "max_iter", "fit_intercept", "class_weight", "penalty"}
    options = {name: value for name, value in kwds.items() if name in known}
    for name, value in kwds.items():
        # L-BFGS is the only solver, and draws no random numbers.
        if name in known or (name == "solver" and value == "lbfgs") or name == "random_state":
            continue
        msg = f"method='logreg' has no {name}={value!r}: it takes {', '.join(sorted(known))}"
        raise InputError(msg)
    return options


def _genes_of_mask(adata: AnnData, mask: Any, *, use_raw: bool) -> NDArray[np.int64] | None:
    """Positions of the genes that a mask keeps."""
    if mask is None:
        return None
    table, element = elements.genes_of(adata, use_raw=use_raw)
    nameless = not isinstance(mask, str) and not columns.has_names(mask)
    if nameless and len(table) == adata.n_vars and not adata.var_names.equals(table.index):
        raise InputError(
            "mask_var may be of adata or of adata.raw, whose genes have another order or other "
            "names: give it as a pandas Series with the names of the genes"
        )
    mask = columns.get_mask(mask, table, len(table), "mask_var", element)
    if not mask.any():
        raise InputError("mask_var leaves no gene to rank")
    return np.flatnonzero(mask)


def _run_test(
    x: Any,
    groups: Groups,
    names: pd.Index,
    genes: NDArray[np.int64] | None,
    method: str,
    *,
    tie_correct: bool,
    pts: bool,
    base: Any,
) -> tuple[Iterator[GroupResult], dict[str, pd.DataFrame]]:
    """Results of a test for each group, and fractions of cells if requested."""
    import pandas as pd

    by_ranks = method == "wilcoxon"
    wanted = SumKinds(sums=True, squares=not by_ranks, nonzero=by_ranks or pts)
    moments = _rank_groups.moments(x, groups, names, genes, wanted)
    if moments.like_counts:
        logger.warning(
            "rank_genes_groups expects logarithms, but X seems to hold counts: run "
            "sa.pp.normalize_total and sa.pp.log1p first"
        )
    fractions = {}
    if pts:
        assert moments.nonzero is not None
        nonzero = moments.nonzero[: len(groups.names)]
        fractions["pts"] = nonzero / moments.n[:, None]
        if groups.reference is None:
            others = moments.nonzero.sum(axis=0) - nonzero
            fractions["pts_rest"] = others / moments.n_other[:, None]
    tables = {
        key: pd.DataFrame(values.T, index=names, columns=groups.names)
        for key, values in fractions.items()
    }
    if by_ranks:
        from scatlas.tl._rank_sums import wilcoxon

        assert moments.nonzero is not None
        tests = wilcoxon(x, groups, genes, moments.nonzero, tie_correct=tie_correct)
    else:
        overestimate = method == "t-test_overestim_var"
        tests = welch(moments, groups.compared, overestimate=overestimate)

    def results() -> Iterator[GroupResult]:
        for group, scores, pvals in tests:
            changes = log_fold_changes(moments.mean[group], moments.mean_other[group], base)
            yield _rank_groups.GroupResult(groups.names[group], scores, pvals, changes)

    return results(), tables
