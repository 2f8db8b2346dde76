"""Simulated plates with known answers, for the demo and the tests.

Counts are negative binomial (a Poisson whose rate varies as a gamma, Robinson & Smyth 2008,
https://doi.org/10.1093/biostatistics/kxm030). The expected counts of a cell are the product of
its depth and a profile made of its cell line, its drug, its cell-cycle phase and the batch effect
of its plate. The obs columns are those of Tahoe-100M as published.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, vstack

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

__all__ = ["simulate_plate", "simulate_plates", "tahoe_obs", "write_plate"]

CONTROL = "DMSO_TF"  # drug 0, the vehicle, as Tahoe-100M calls it
MT_GENES = [
    *("MT-ND1", "MT-ND2", "MT-CO1", "MT-CO2", "MT-ATP8", "MT-ATP6", "MT-CO3"),
    *("MT-ND3", "MT-ND4L", "MT-ND4", "MT-ND5", "MT-ND6", "MT-CYB"),
]
PHASES = ["G1", "S", "G2M"]
_MIN_GENES = 200  # enough for every cell line to have genes of its own
_CELLS_AT_ONCE = 256  # bounds memory; part of the random stream, so a change changes the counts


def simulate_plates(
    *,
    n_plates: int = 4,
    n_cells: int = 2000,
    n_genes: int = 3000,
    n_lines: int = 6,
    n_drugs: int = 8,
    seed: int = 0,
) -> dict[str, AnnData]:
    """Simulate a set of plates of the same cell lines, drugs and genes.

    Parameters
    ----------
    n_plates
        Number of plates; they are called ``plate1``, ``plate2``, ...
    n_cells
        Cells on each plate.
    n_genes, n_lines, n_drugs, seed
        As for `simulate_plate`.

    Returns
    -------
    The plates by name, each the same as `simulate_plate` makes alone.
    """
    return {
        f"plate{plate}": simulate_plate(
            plate, n_cells=n_cells, n_genes=n_genes, n_lines=n_lines, n_drugs=n_drugs, seed=seed
        )
        for plate in range(1, n_plates + 1)
    }


def simulate_plate(
    plate: int,
    *,
    n_cells: int = 2000,
    n_genes: int = 3000,
    n_lines: int = 6,
    n_drugs: int = 8,
    seed: int = 0,
) -> AnnData:
    """Simulate one plate, which does not depend on the others of its set.

    About one cell in twelve is of low quality: few counts, many of them mitochondrial. Most of
    these have ``pass_filter == 'minimal'``; a few have slipped through as ``'full'``.

    Parameters
    ----------
    plate
        Its number, from 1. Batch effect, doses and cells differ between plates.
    n_cells
        Number of cells.
    n_genes
        Number of genes, at least 200; 13 are mitochondrial (``MT-...``).
    n_lines
        Number of cell lines (``obs['cell_line']``), which are easy to tell apart.
    n_drugs
        Number of drugs (``obs['drug']``), the first of which is the control ``DMSO_TF``. Their
        effects are modest.
    seed
        The same seed gives the same lines, drugs and plates.

    Returns
    -------
    AnnData with raw counts: ``X`` CSR, float32 integers with int64 indices; ``obs`` with Tahoe's
    16 columns and unique names (``BARCODE_SUB_LIB_ID``); ``var`` by gene symbol.

    Raises
    ------
    InputError
        A number is too small.
    """
    from anndata import AnnData

    limits = {"plate": (plate, 1), "n_cells": (n_cells, 1), "n_genes": (n_genes, _MIN_GENES)}
    limits |= {"n_lines": (n_lines, 1), "n_drugs": (n_drugs, 1)}
    for name, (value, least) in limits.items():
        if value < least:
            msg = f"{name} is {value}: a simulated plate needs at least {least}"
            raise InputError(msg)

    study = _study(np.random.default_rng([seed, 0]), n_genes, n_lines, n_drugs)
    # A stream of its own for each plate, so that one can be made without the others.
    rng = np.random.default_rng([seed, 1, plate])
    batch = np.where(rng.random(n_genes) < 0.5, rng.normal(0, 0.25, n_genes), 0.0)
    line = rng.choice(n_lines, n_cells, p=rng.dirichlet(np.full(n_lines, 10.0)))
    drug = rng.integers(0, n_drugs, n_cells)
    phase = rng.choice(3, n_cells, p=[0.55, 0.25, 0.2])
    poor = rng.random(n_cells) < 0.08
    depth = rng.lognormal(np.log(2500), 0.35, n_cells) * rng.lognormal(0, 0.1)
    depth *= np.where(poor, rng.uniform(0.05, 0.3, n_cells), 1.0)
    mt_share = np.where(poor, rng.uniform(0.25, 0.6, n_cells), rng.beta(4, 60, n_cells))

    blocks = []
    for start in range(0, n_cells, _CELLS_AT_ONCE):
        rows = slice(start, start + _CELLS_AT_ONCE)
        log_profile = study.lines[line[rows]] + study.drugs[drug[rows]] + study.phases[phase[rows]]
        profile = np.exp(log_profile + batch)
        for genes, share in ((study.is_mt, mt_share[rows]), (~study.is_mt, 1 - mt_share[rows])):
            profile[:, genes] *= (share / profile[:, genes].sum(axis=1))[:, None]
        rate = rng.gamma(study.shape, (depth[rows, None] * profile) / study.shape)
        blocks.append(csr_matrix(rng.poisson(rate).astype(np.float32)))
    x = vstack(blocks, format="csr")

    total = np.asarray(x.sum(axis=1, dtype=np.float64)).ravel().astype(np.int64)
    mt_total = np.asarray(x[:, study.is_mt].sum(axis=1, dtype=np.float64)).ravel()
    obs = tahoe_obs(
        rng,
        plate=plate,
        line=line,
        drug=drug,
        phase=phase,
        full=~poor | (rng.random(n_cells) < 0.15),
        total=total,
        n_genes=np.diff(x.indptr),
        mt_total=mt_total.astype(np.int64),
        n_lines=n_lines,
        n_drugs=n_drugs,
    )
    adata = AnnData(x, obs=obs, var=study.var)
    # As in Tahoe's files; SciPy itself would choose int32.
    adata.X.indices = adata.X.indices.astype(np.int64)
    adata.X.indptr = adata.X.indptr.astype(np.int64)
    return adata


def tahoe_obs(
    rng: np.random.Generator,
    *,
    plate: int,
    line: np.ndarray,
    drug: np.ndarray,
    phase: np.ndarray,
    full: np.ndarray,
    total: np.ndarray,
    n_genes: np.ndarray,
    mt_total: np.ndarray,
    n_lines: int,
    n_drugs: int,
) -> pd.DataFrame:
    """Lay out what is known of simulated cells as Tahoe-100M does.

    Parameters
    ----------
    rng
        Draws what has no other source: read counts and cell-cycle scores.
    plate
        Number of the plate, from 1.
    line, drug, phase
        Codes of each cell [n_cells].
    full
        Whether a cell has passed the provider's stricter filter [n_cells].
    total, n_genes, mt_total
        Counts, expressed genes and mitochondrial counts of each cell, int64 [n_cells].
    n_lines, n_drugs
        Number of codes.

    Returns
    -------
    16 columns, indexed by the unique ``BARCODE_SUB_LIB_ID``.
    """
    n_cells = line.size
    dose = (0.05, 0.5, 5.0)[(plate - 1) % 3]
    drugs = [CONTROL, *(f"drug_{i}" for i in range(1, n_drugs))]
    doses = [f"[('{name}', {dose if i else 0.0}, 'uM')]" for i, name in enumerate(drugs)]
    per_plate = 8
    sublibrary = np.arange(n_cells) % per_plate
    sublibraries = [f"lib_{per_plate * (plate - 1) + i + 1:03d}" for i in range(per_plate)]
    first, second = divmod(np.arange(n_cells) // per_plate, 192)
    barcode = [
        f"{well + 1:02d}_{b + 1:03d}_{a + 1:03d}"
        for well, a, b in zip(drug.tolist(), first.tolist(), second.tolist(), strict=True)
    ]
    scores = np.full((n_cells, 2), -0.1)
    scores[phase == 1, 0] = scores[phase == 2, 1] = 0.3
    scores += rng.normal(0, 0.08, scores.shape)
    columns = {
        "sample": _categories(drug, [f"smp_{1000 + 100 * plate + i}" for i in range(n_drugs)]),
        "gene_count": n_genes.astype(np.int64),
        "tscp_count": total,
        "mread_count": total + rng.poisson(0.2 * total),
        "drugname_drugconc": _categories(drug, doses),
        "drug": _categories(drug, drugs),
        "cell_line": _categories(line, [f"SIM_{i:04d}" for i in range(1, n_lines + 1)]),
        "sublibrary": _categories(sublibrary, sublibraries),
        "BARCODE": barcode,
        "pcnt_mito": mt_total / np.maximum(total, 1),
        "S_score": scores[:, 0],
        "G2M_score": scores[:, 1],
        "phase": _categories(phase, PHASES),
        "pass_filter": _categories(np.where(full, 0, 1), ["full", "minimal"]),
        "cell_name": _categories(line, [f"Line {i}" for i in range(1, n_lines + 1)]),
        "plate": _categories(np.zeros(n_cells, np.int64), [f"plate{plate}"]),
    }
    names = [
        f"{code}-{sublibraries[i]}" for code, i in zip(barcode, sublibrary.tolist(), strict=True)
    ]
    return pd.DataFrame(columns, index=pd.Index(names, name="BARCODE_SUB_LIB_ID"))


def write_plate(path: Path | str, adata: AnnData) -> None:
    """Write a plate as gzip h5ad, whole or not at all.

    The same plate gives the same bytes (HDF5's time stamps are off in h5py).

    Parameters
    ----------
    path
        The file; its folder is made.
    adata
        The plate. It is left as it is.
    """
    from scatlas.io.files.atomic import atomic_path

    with atomic_path(Path(path)) as partial:
        adata.write_h5ad(partial, compression="gzip", convert_strings_to_categoricals=False)


class _Study(NamedTuple):
    """What all plates of a study share."""

    var: pd.DataFrame
    is_mt: np.ndarray  # bool [n_genes]
    lines: np.ndarray  # log expression [n_lines, n_genes]
    drugs: np.ndarray  # log fold change [n_drugs, n_genes]
    phases: np.ndarray  # log fold change [3, n_genes]
    shape: np.ndarray  # of the gamma: 1 / overdispersion [n_genes]


def _study(rng: np.random.Generator, n_genes: int, n_lines: int, n_drugs: int) -> _Study:
    base = rng.normal(0, 1.3, n_genes)
    lines = base + np.where(
        rng.random((n_lines, n_genes)) < 0.1, rng.normal(0, 0.8, (n_lines, n_genes)), 0.0
    )
    # Markers: on in one line and nearly off in the others, as those of real cell lines are.
    n_markers = max(10, n_genes // (10 * n_lines))
    for row in range(n_lines):
        markers = rng.choice(n_genes, n_markers, replace=False)
        lines[:, markers] = -1.5
        lines[row, markers] = rng.normal(1.5, 0.5, n_markers)
    drugs = _programmes(rng, n_drugs, n_genes, max(10, n_genes // 75), 0.7)
    drugs[0] = 0.0
    phases = _programmes(rng, 3, n_genes, max(5, n_genes // 100), 0.5)
    phases[0] = 0.0

    # Spread through the genome's order, so that no step may count on their being together.
    is_mt = np.zeros(n_genes, bool)
    is_mt[np.linspace(0, n_genes - 1, len(MT_GENES)).astype(np.int64)] = True
    symbols = [f"GENE{i:05d}" for i in range(1, n_genes + 1)]
    for gene, symbol in zip(np.flatnonzero(is_mt), MT_GENES, strict=True):
        symbols[gene] = symbol
    lines[:, is_mt] = rng.normal(0, 0.4, len(MT_GENES))
    drugs[:, is_mt] = phases[:, is_mt] = 0.0
    var = pd.DataFrame(
        {"gene_id": [f"SIMG{i:011d}" for i in range(1, n_genes + 1)]},
        index=pd.Index(symbols, name="gene_name"),
    )
    return _Study(var, is_mt, lines, drugs, phases, rng.uniform(3, 20, n_genes))


def _programmes(
    rng: np.random.Generator, n: int, n_genes: int, size: int, effect: float
) -> np.ndarray:
    """Log fold changes [n, n_genes] of `n` random programmes of `size` genes."""
    changes = np.zeros((n, n_genes))
    for row in changes:
        genes = rng.choice(n_genes, size, replace=False)
        row[genes] = rng.normal(effect, 0.2, size) * rng.choice([-1, 1], size, p=[0.3, 0.7])
    return changes


def _categories(codes: np.ndarray, names: Sequence[str]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(names))
