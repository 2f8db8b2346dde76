"""Genes of an atlas among those of a new plate."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

logger = logging.getLogger("scatlas")
_ENSEMBL = re.compile(r"^ENS[A-Z]*G\d{6,}")
# Genes that the log names.
_MAX_NAMED = 20


class FoundGenes(NamedTuple):
    """Genes of the atlas that a plate has: gene ``positions[i]`` of the plate is gene
    ``columns[i]`` (ascending) of the atlas. ``missing`` names the others.
    """

    positions: NDArray[np.int64]
    columns: NDArray[np.int32]
    missing: list[str]


def find_genes(var: pd.DataFrame, genes: pd.Index, *, max_missing: float) -> FoundGenes:
    """Find the genes of an atlas by their names on a plate, which may lack a share ``max_missing``.
    The error says whether the plate has ids in place of symbols.
    """
    positions = var.index.get_indexer(genes)
    found = positions >= 0
    missing = genes[~found].astype(str).tolist()
    n_missing = len(missing)
    if n_missing > max_missing * len(genes) or n_missing == len(genes):
        msg = (
            f"it lacks {n_missing:,} of the atlas's {len(genes):,} genes, and "
            f"new_plates.max_missing_genes is {max_missing:g}: {_mend(var, missing)}"
        )
        raise InputError(msg)
    if missing:
        more = f" and {n_missing - _MAX_NAMED:,} more" if n_missing > _MAX_NAMED else ""
        logger.warning(
            "%d of the atlas's %d genes are missing and count as zero: %s%s",
            *(n_missing, len(genes), ", ".join(missing[:_MAX_NAMED]), more),
        )
    return FoundGenes(positions[found], np.flatnonzero(found).astype(np.int32), missing)


def _mend(var: pd.DataFrame, missing: list[str]) -> str:
    theirs, own = repr(missing[0]), repr(str(var.index[0])) if len(var) else "none"
    has_id, lacks_id = bool(_ENSEMBL.match(str(var.index[0]))), bool(_ENSEMBL.match(missing[0]))
    if has_id == lacks_id:
        return f"the atlas has {theirs}, the plate begins with {own}: give a plate of these genes"
    kinds = ("ids", "symbols") if has_id else ("symbols", "ids")
    named = next((name for name in var if var[name].astype(str).isin(missing).mean() > 0.01), None)
    where = f"its var column {named!r} has them" if named else "convert them"
    return (
        f"its genes have {kinds[0]} such as {own}, but those of the atlas have {kinds[1]} such as "
        f"{theirs}: {where}; make {kinds[1]} the index of var"
    )
