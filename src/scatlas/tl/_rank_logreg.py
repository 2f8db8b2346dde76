"""Coefficients of a multinomial logistic regression as the scores of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas.errors import InputError
from scatlas.matrix.logistic import LogisticCells, fit
from scatlas.tl._rank_groups import GroupResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.tl._rank_groups import Groups


def logreg(
    x: Any,
    groups: Groups,
    names: pd.Index,
    genes: NDArray[np.int64] | None,
    *,
    C: float = 1.0,
    tol: float = 1e-4,
    max_iter: int = 100,
    fit_intercept: bool = True,
    class_weight: Literal["balanced"] | None = None,
    penalty: Literal["l2"] | None = "l2",
) -> Iterator[GroupResult]:
    """Coefficients of each group as scores, as scanpy has them: of two groups the first alone, with
    the coefficients of the second category.

    ``genes`` (None: all) are the positions of ``names``.
    """
    n_classes = len(groups.names)
    if n_classes < 2:
        msg = f"logistic regression needs two groups or more, not {groups.names[0]!r} alone"
        raise InputError(msg)
    for name, value in (("C", C), ("tol", tol), ("max_iter", max_iter)):
        if not value > 0:
            raise InputError(f"{name}={value!r} must be above 0")
    if class_weight not in (None, "balanced") or penalty not in (None, "l2"):
        raise InputError(
            f"class_weight={class_weight!r} and penalty={penalty!r}: use 'balanced' or None, and "
            "'l2' or None"
        )
    classes = np.append(np.argsort(groups.by_category), -1)  # the last for cells of no group
    codes, sizes = classes[groups.codes], groups.sizes[groups.by_category]
    cells = LogisticCells(x, codes, genes)
    bad = ~np.isfinite(cells.most)
    if bad.any():
        raise InputError(
            f"gene {names[int(np.argmax(bad))]!r} has NaN or infinite values: "
            "rank_genes_groups expects log-normalised values"
        )
    coef = fit(
        cells,
        sizes,
        C=C,
        balanced=class_weight == "balanced",
        penalty=penalty is not None,
        fit_intercept=fit_intercept,
        tol=tol,
        max_iter=max_iter,
    )[: names.size]
    if n_classes == 2:
        yield GroupResult(groups.names[0], coef[:, 0])
        return
    for group, name in enumerate(groups.names):
        yield GroupResult(name, coef[:, classes[group]])
