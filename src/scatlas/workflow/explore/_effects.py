"""Effects of conditions on the page (config: effects): a number of genes for each condition and
group, and the genes of the strongest ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem
from natsort import natsorted

from scatlas._util.names import short_names, split_dose
from scatlas.matrix.effects_moderation import t_pvalues
from scatlas.workflow.explore._pack import deflate, pack_json, pack_names, page_bytes, varints

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Volcanoes at most, and genes of each: of the significant ones those of lowest p, of the others
# every which one.
_MAX_VOLCANOES, _MAX_SIGNIFICANT, _MAX_OTHERS = 400, 1000, 400
_MAX_LETTERS = 24  # of a name beside the heat map
# Steps of a log2 fold change, and of -log10 p.
FOLD_STEPS, P_STEPS = 200, 100


def effect_blocks(path: Path, max_bytes: int) -> dict[str, bytes]:
    """Blocks of ``effects.h5ad``, which is read row by row: all numbers of genes, and as many
    volcanoes as fit, the strongest effects first.
    """
    with h5py.File(path) as file:
        obs, genes = read_elem(file["obs"]), read_elem(file["var"]).index
        options, df = read_elem(file["uns/effects"]), read_elem(file["varm/df"])
        condition = str(options["condition"])
        within = list(obs.columns[: obs.columns.get_loc(condition)])
        names = obs[condition].astype(str).to_numpy(object)
        groups = np.full(len(obs), "all cells", object)
        if within:
            groups = obs[within].astype(str).agg(", ".join, axis=1).to_numpy(object)
        n = obs["n_significant"].to_numpy(np.int64)
        strength = pd.Series(n).groupby(names, sort=False).sum()
        rows = list(strength.sort_values(ascending=False, kind="stable").index)
        columns = natsorted(set(groups))
        at = pd.Index(rows).get_indexer(names) * len(columns)
        at += pd.Index(columns).get_indexer(groups)
        numbers = np.zeros(len(rows) * len(columns), np.int64)
        numbers[at] = n + 1  # 0: no comparison
        strongest = np.argsort(-n, kind="stable")[:_MAX_VOLCANOES]
        rank = pd.Index(sorted(map(str, genes))).get_indexer(genes.astype(str))
        volcanoes = {}
        for row in np.sort(strongest):
            t = file["layers/t"][row].astype(np.float64)
            p = t_pvalues(t, df[:, obs["model"].iloc[row]])
            volcanoes[int(row)] = _packed(file["X"][row], p, int(n[row]), rank)
    blocks = {
        "effects": b"",
        "effects-numbers": deflate(varints(numbers)),
        "effects-genes": pack_names(map(str, genes)),
    }
    left = max_bytes - page_bytes(blocks) - 200 * len(rows)
    shown: list[int] = []
    for row in strongest:
        left -= page_bytes({f"effect-{len(shown)}": volcanoes[int(row)]})
        if left < 0:
            break
        blocks[f"effect-{len(shown)}"] = volcanoes[int(row)]
        shown.append(int(at[row]))
    doses = [split_dose(name) for name in rows]
    meta = {
        "condition": condition,
        "control": str(options["control"]),
        "within": within,
        "rows": rows,
        "short": short_names(rows, _MAX_LETTERS),
        "groups": columns,
        "doses": doses if any(doses) else [],
        "shown": shown,
        "steps": [FOLD_STEPS, P_STEPS],
    }
    blocks["effects"] = pack_json(meta)
    return blocks


def _packed(change: NDArray[Any], p: NDArray[Any], n: int, rank: NDArray[Any]) -> bytes:
    """Genes of a volcano by ascending p: how many of them are significant, how many each other one
    stands for, their numbers, fold changes (the sign in the lowest bit) and -log10 p.
    """
    known = np.flatnonzero(np.isfinite(p) & np.isfinite(change))
    order = known[np.argsort(p[known], kind="stable")]
    others = order[n:]
    step = max(1, -(-others.size // _MAX_OTHERS))
    first = order[: min(n, _MAX_SIGNIFICANT)]
    kept = np.concatenate([first, others[::step]])
    fold = np.rint(change[kept].astype(np.float64) * FOLD_STEPS).astype(np.int64)
    height = -np.log10(np.maximum(p[kept], np.finfo(np.float64).tiny))
    height = np.rint(height * P_STEPS).astype(np.int64)
    head = [first.size, step]
    return deflate(varints(np.concatenate([head, rank[kept], 2 * abs(fold) + (fold < 0), height])))
