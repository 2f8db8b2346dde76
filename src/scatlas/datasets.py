"""Simulated plates and tissues with known answers; plates with the obs columns of Tahoe-100M.

Counts are negative binomial (a Poisson with a gamma-distributed rate, Robinson & Smyth 2008,
https://doi.org/10.1093/biostatistics/kxm030). The expected counts of a cell are the product of its
depth and a profile of its cell line or type, drug or disease, cell-cycle phase, and sample: wells
of one plate differ little, plates and donors more.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, vstack

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

__all__ = [
    *("planted_effects", "simulate_plate", "simulate_plates", "simulate_tissue", "tahoe_obs"),
    *("write_plate", "write_release"),
]

CONTROL = "DMSO_TF"  # drug 0, the vehicle, by its name in Tahoe-100M
CONTROL_WELLS = 3  # the first of each plate; every other drug has one
DOSES = (0.05, 0.5, 5.0)  # uM, one per plate
MT_GENES = [
    *("MT-ND1", "MT-ND2", "MT-CO1", "MT-CO2", "MT-ATP8", "MT-ATP6", "MT-CO3"),
    *("MT-ND3", "MT-ND4L", "MT-ND4", "MT-ND5", "MT-ND6", "MT-CYB"),
]
PHASES = ["G1", "S", "G2M"]
_MIN_GENES = 200  # enough for markers of every cell line
_CELLS_PER_BLOCK = 256  # bounds memory; a change changes the random stream, so the counts
_BARCODES = 192  # barcodes of each of the last two rounds
_SUBLIBRARIES = 8  # sublibraries per plate


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
        Number of plates, named ``plate1``, ``plate2``, ...
    n_cells
        Cells per plate.
    n_genes, n_lines, n_drugs, seed
        As for `simulate_plate`.

    Returns
    -------
    Plates by name, each the same as from `simulate_plate`.
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
    """Simulate one plate, independently of the others of its set.

    About one cell in twelve is of low quality: few counts, many of them mitochondrial. Most of
    these have ``pass_filter == 'minimal'``; a few have ``'full'`` by mistake.

    Parameters
    ----------
    plate
        Number of the plate, from 1. Batch effect, doses and cells differ between plates.
    n_cells
        Number of cells.
    n_genes
        Number of genes, at least 200; 13 are mitochondrial (``MT-...``).
    n_lines
        Number of cell lines (``obs['cell_line']``), which differ strongly.
    n_drugs
        Number of drugs (``obs['drug']``), the first of which is the control ``DMSO_TF``, in three
        wells of each plate (``obs['sample']``); the others have one each, at the dose of the plate.
        :func:`planted_effects` lists what they do.
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
    _check_sizes(plate=plate, n_cells=n_cells, n_genes=n_genes, n_lines=n_lines, n_drugs=n_drugs)
    study = _simulate_study(np.random.default_rng([seed, 0]), n_genes, n_lines, n_drugs)
    # Each plate has its own stream, so that it does not depend on the others.
    rng = np.random.default_rng([seed, 1, plate])
    batch = np.where(rng.random(n_genes) < 0.5, rng.normal(0, 0.25, n_genes), 0.0)
    n_wells = n_drugs + CONTROL_WELLS - 1
    cells = _simulate_cells(rng, n_cells, n_lines, n_wells)
    wells = batch + rng.normal(0, 0.1, (n_wells, n_genes))
    drug = _drug_of(cells.sample)
    strength = _strengths(plate, n_lines, n_drugs)[drug, cells.line]
    x = _simulate_counts(rng, study, cells, wells, drug, strength)
    total = np.asarray(x.sum(axis=1, dtype=np.float64)).ravel().astype(np.int64)
    mt_total = np.asarray(x[:, study.is_mt].sum(axis=1, dtype=np.float64)).ravel()
    obs = tahoe_obs(
        rng,
        plate=plate,
        line=cells.line,
        well=cells.sample,
        phase=cells.phase,
        full=~cells.is_poor | (rng.random(n_cells) < 0.15),
        total=total,
        n_genes=np.diff(x.indptr),
        mt_total=mt_total.astype(np.int64),
        n_lines=n_lines,
        n_drugs=n_drugs,
    )
    return _as_anndata(x, obs, study.var)


def planted_effects(
    *,
    n_plates: int = 4,
    n_genes: int = 3000,
    n_lines: int = 6,
    n_drugs: int = 8,
    seed: int = 0,
) -> pd.DataFrame:
    """List what the drugs of simulated plates do: the truth behind an analysis of effects.

    Drugs 1, 5, 9, ... act on all lines, at any dose alike; drugs 2, 6, 10, ... on all lines, and
    three times as much (in logarithms) at 5 uM as at 0.05 uM; drugs 3, 7, 11, ... on one line
    alone, and drugs 4, 8, 12, ... on none.

    Parameters
    ----------
    n_plates, n_genes, n_lines, n_drugs, seed
        As for :func:`simulate_plates`.

    Returns
    -------
    A row for each plate, drug, line and gene with a change: ``plate``, ``drug``,
    ``drugname_drugconc``, ``cell_line``, ``gene`` and ``log2_fold_change`` (of the expected share
    of a cell's counts, but for what the other changed genes take).

    Raises
    ------
    InputError
        A number is too small.
    """
    _check_sizes(plate=n_plates, n_genes=n_genes, n_lines=n_lines, n_drugs=n_drugs)
    study = _simulate_study(np.random.default_rng([seed, 0]), n_genes, n_lines, n_drugs)
    lines, tables = np.array(_line_names(n_lines)), []
    for plate in range(1, n_plates + 1):
        strengths = _strengths(plate, n_lines, n_drugs)
        labels = zip(*_drug_names(plate, n_drugs), strict=True)
        for (drug, dose), row, change in zip(labels, strengths, study.programmes, strict=True):
            line, gene = np.nonzero(np.outer(row, change))
            columns = {"cell_line": lines[line], "gene": study.var.index[gene]}
            table = pd.DataFrame(
                columns | {"log2_fold_change": row[line] * change[gene] / np.log(2)}
            )
            table.insert(0, "plate", f"plate{plate}")
            table.insert(1, "drug", drug)
            table.insert(2, "drugname_drugconc", dose)
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def simulate_tissue(
    *,
    n_donors: int = 12,
    n_cells: int = 600,
    n_genes: int = 3000,
    n_types: int = 6,
    seed: int = 0,
) -> AnnData:
    """Simulate cells of healthy and diseased donors, with known effects of the disease.

    Donors differ in each gene, by a third as a rule, and in their shares of the types. The disease
    changes other genes in each type, and none in the last.

    Parameters
    ----------
    n_donors
        Number of donors, in turn healthy and diseased.
    n_cells
        Cells per donor.
    n_genes
        Number of genes, at least 200.
    n_types
        Number of cell types.
    seed
        The same seed gives the same cells.

    Returns
    -------
    AnnData with raw counts, ``X`` CSR, float32 integers; ``obs`` with ``donor``, ``disease``
    (``healthy``, ``diseased``) and ``cell_type``; ``varm['log2_fold_change']``, a table
    ``[n_genes, n_types]`` of what the disease does.

    Raises
    ------
    InputError
        A number is too small.
    """
    _check_sizes(n_donors=n_donors, n_cells=n_cells, n_genes=n_genes, n_types=n_types)
    rng = np.random.default_rng([seed, 2])
    study = _simulate_study(rng, n_genes, n_types, n_types + 1)
    donors = rng.normal(0, 0.3, (n_donors, n_genes))
    parts = [
        _simulate_cells(rng, n_cells, n_types, 1, poor=0)._replace(sample=np.full(n_cells, donor))
        for donor in range(n_donors)
    ]
    cells = _Cells(*map(np.concatenate, zip(*parts, strict=True)))
    types = [f"type {i}" for i in range(1, n_types + 1)]
    effects = study.programmes[1:].copy()
    effects[-1] = 0.0
    is_diseased = cells.sample % 2
    study = study._replace(programmes=effects)
    x = _simulate_counts(rng, study, cells, donors, cells.line, is_diseased.astype(np.float64))
    columns = {
        "donor": _categories(cells.sample, [f"donor{i}" for i in range(1, n_donors + 1)]),
        "disease": _categories(is_diseased, ["healthy", "diseased"]),
        "cell_type": _categories(cells.line, types),
    }
    names = [f"cell{i}" for i in range(x.shape[0])]
    adata = _as_anndata(x, pd.DataFrame(columns, names), study.var)
    truth = pd.DataFrame(effects.T / np.log(2), study.var.index, types)
    adata.varm["log2_fold_change"] = truth
    return adata


def _check_sizes(**sizes: int) -> None:
    minima = {"n_genes": _MIN_GENES, "n_donors": 2}
    for name, value in sizes.items():
        if value < (minimum := minima.get(name, 1)):
            raise InputError(f"{name} is {value}: simulated counts need at least {minimum}")


def _as_anndata(x: csr_matrix, obs: pd.DataFrame, var: pd.DataFrame) -> AnnData:
    from anndata import AnnData

    adata = AnnData(x, obs=obs, var=var)
    # As in Tahoe's files; SciPy itself would choose int32.
    adata.X.indices = adata.X.indices.astype(np.int64)
    adata.X.indptr = adata.X.indptr.astype(np.int64)
    return adata


def _drug_of(well: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(well - CONTROL_WELLS + 1, 0)


def _drug_names(plate: int, n_drugs: int) -> tuple[list[str], list[str]]:
    """Names of the drugs of a plate, without and with the dose."""
    drugs = [CONTROL, *(f"drug_{i}" for i in range(1, n_drugs))]
    dose = DOSES[(plate - 1) % len(DOSES)]
    return drugs, [f"[('{name}', {dose if i else 0.0}, 'uM')]" for i, name in enumerate(drugs)]


def _line_names(n_lines: int) -> list[str]:
    return [f"SIM_{i:04d}" for i in range(1, n_lines + 1)]


def _strengths(plate: int, n_lines: int, n_drugs: int) -> NDArray[np.float64]:
    """How much of its programme each drug has in each line of a plate ``[n_drugs, n_lines]``."""
    strengths = np.zeros((n_drugs, n_lines))
    strengths[1::4] = 1.0
    strengths[2::4] = ((plate - 1) % len(DOSES) + 1) / len(DOSES)
    one_line = np.arange(3, n_drugs, 4)
    strengths[one_line, one_line // 4 % n_lines] = 1.0
    return strengths


def tahoe_obs(
    rng: np.random.Generator,
    *,
    plate: int,
    line: NDArray[np.int64],
    well: NDArray[np.int64],
    phase: NDArray[np.int64],
    full: NDArray[np.bool_],
    total: NDArray[np.int64],
    n_genes: NDArray[np.int64],
    mt_total: NDArray[np.float64],
    n_lines: int,
    n_drugs: int,
) -> pd.DataFrame:
    """Table of simulated cells with the columns of Tahoe-100M.

    Parameters
    ----------
    rng
        Source of the read counts and cell-cycle scores.
    plate
        Number of the plate, from 1.
    line, well, phase
        Codes of each cell [n_cells]. The first three wells have the control, each other one drug.
    full
        Whether a cell has passed the stricter filter of the provider [n_cells].
    total, n_genes, mt_total
        Counts, expressed genes and mitochondrial counts of each cell, int64 [n_cells].
    n_lines, n_drugs
        Number of lines, and of drugs with the control.

    Returns
    -------
    16 columns, indexed by the unique ``BARCODE_SUB_LIB_ID``.
    """
    n_cells = line.size
    drug = _drug_of(well)
    drugs, doses = _drug_names(plate, n_drugs)
    wells = [f"smp_{1000 + 100 * plate + i}" for i in range(n_drugs + CONTROL_WELLS - 1)]
    sublibrary = np.arange(n_cells) % _SUBLIBRARIES
    sublibraries = [f"lib_{_SUBLIBRARIES * (plate - 1) + i + 1:03d}" for i in range(_SUBLIBRARIES)]
    third, second = divmod(np.arange(n_cells) // _SUBLIBRARIES, _BARCODES)
    barcode = [
        f"{a + 1:02d}_{b + 1:03d}_{c + 1:03d}"
        for a, b, c in zip(well.tolist(), second.tolist(), third.tolist(), strict=True)
    ]
    scores = np.full((n_cells, 2), -0.1)
    scores[phase == 1, 0] = scores[phase == 2, 1] = 0.3
    scores += rng.normal(0, 0.08, scores.shape)
    columns = {
        "sample": _categories(well, wells),
        "gene_count": n_genes.astype(np.int64),
        "tscp_count": total,
        "mread_count": total + rng.poisson(0.2 * total),
        "drugname_drugconc": _categories(drug, doses),
        "drug": _categories(drug, drugs),
        "cell_line": _categories(line, _line_names(n_lines)),
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
    """Write a plate as gzip-compressed h5ad, atomically.

    The same plate gives the same bytes (h5py writes no time stamps).

    Parameters
    ----------
    path
        File to write; its folder is created.
    adata
        Plate, which does not change.
    """
    from scatlas.io.files.atomic import atomic_path

    with atomic_path(Path(path)) as partial:
        adata.write_h5ad(partial, compression="gzip", convert_strings_to_categoricals=False)


def write_release(
    folder: Path | str,
    plates: Sequence[AnnData],
    *,
    n_files: int = 3,
    rows_per_group: int = 1000,
    seed: int = 0,
) -> None:
    """Write simulated plates as Tahoe-100M is released: Parquet files with lists of gene tokens.

    As there, only cells with ``pass_filter == 'full'`` are in ``data/``, plate after plate, so that
    a row group may hold two plates; each cell begins with the marker (token 1, value -2), and its
    other tokens, the gene's number plus 3, are in no order. ``metadata/`` has the genes, the wells
    (with the dose) and all cells. The layout is that of the data set's card.

    Parameters
    ----------
    folder
        Where ``data/`` and ``metadata/`` are made.
    plates
        Of :func:`simulate_plates`.
    n_files
        Number of files in ``data/``, of which each has as many cells.
    rows_per_group
        Cells per row group.
    seed
        Of the order of the tokens.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data, metadata = Path(folder) / "data", Path(folder) / "metadata"
    for made in (data, metadata):
        made.mkdir(parents=True)
    var = plates[0].var
    genes = {
        "gene_symbol": var.index,
        "ensembl_id": var["gene_id"],
        "token_id": np.arange(len(var)) + 3,
    }
    pd.DataFrame(genes).to_parquet(metadata / "gene_metadata.parquet", index=False)
    obs = pd.concat([plate.obs.astype({"plate": str}) for plate in plates])
    wells = obs[["sample", "plate", "drug", "drugname_drugconc"]].astype(str).drop_duplicates()
    wells.to_parquet(metadata / "sample_metadata.parquet", index=False)
    cells = obs.drop(columns="drugname_drugconc").reset_index()
    text = cells.select_dtypes("category").columns
    cells.astype(dict.fromkeys(text, str)).to_parquet(
        metadata / "obs_metadata.parquet", index=False, row_group_size=rows_per_group
    )
    rng = np.random.default_rng(seed)
    masks = [plate.obs["pass_filter"].to_numpy(object) == "full" for plate in plates]
    lists = [_token_lists(plate.X[mask], rng) for plate, mask in zip(plates, masks, strict=True)]
    kept = obs[np.concatenate(masks)]
    drugs = kept["drug"].astype(str).to_numpy(object)
    columns = {
        "genes": pa.chunked_array([tokens for tokens, _ in lists]),
        "expressions": pa.chunked_array([values for _, values in lists]),
        "drug": drugs,
        "sample": kept["sample"].astype(str).to_numpy(object),
        "BARCODE_SUB_LIB_ID": kept.index.to_numpy(object),
        "cell_line_id": kept["cell_line"].astype(str).to_numpy(object),
        "moa-fine": ["unclear" if drug == CONTROL else "inhibitor" for drug in drugs],
        "canonical_smiles": [f"C{len(drug)}" for drug in drugs],
        "pubchem_cid": [str(1000 + len(drug)) for drug in drugs],
        "plate": kept["plate"].to_numpy(object),
    }
    table = pa.table(columns)
    ends = np.linspace(0, len(kept), n_files + 1).astype(int)
    for i, (lo, hi) in enumerate(pairwise(ends.tolist())):
        file = data / f"train-{i:05d}-of-{n_files:05d}.parquet"
        pq.write_table(table.slice(lo, hi - lo), file, row_group_size=rows_per_group)


def _token_lists(x: csr_matrix, rng: np.random.Generator) -> tuple[Any, Any]:
    """Lists of tokens and of values of some cells, in random order behind the marker."""
    import pyarrow as pa

    ends = x.indptr.astype(np.int64) + np.arange(x.shape[0] + 1)
    tokens, values = np.ones(ends[-1], np.int64), np.full(ends[-1], -2, np.float32)
    for i in range(x.shape[0]):
        own = x.indptr[i] + rng.permutation(x.indptr[i + 1] - x.indptr[i])
        tokens[ends[i] + 1 : ends[i + 1]] = x.indices[own] + 3
        values[ends[i] + 1 : ends[i + 1]] = x.data[own]
    offsets = pa.array(ends.astype(np.int32))
    return tuple(pa.ListArray.from_arrays(offsets, pa.array(part)) for part in (tokens, values))


class _Study(NamedTuple):
    """Genes and effects that all samples of a study share."""

    var: pd.DataFrame
    is_mt: NDArray[np.bool_]  # [n_genes]
    lines: NDArray[np.float64]  # log expression [n_lines, n_genes]
    programmes: NDArray[np.float64]  # log fold change [n_programmes, n_genes], the first none
    phases: NDArray[np.float64]  # log fold change [3, n_genes]
    shape: NDArray[np.float64]  # of the gamma: 1 / overdispersion [n_genes]


class _Cells(NamedTuple):
    """Properties of cells, [n_cells] each."""

    line: NDArray[np.int64]
    sample: NDArray[np.int64]
    phase: NDArray[np.int64]
    is_poor: NDArray[np.bool_]
    depth: NDArray[np.float64]
    mt_share: NDArray[np.float64]


def _simulate_cells(
    rng: np.random.Generator, n: int, n_lines: int, n_samples: int, poor: float = 0.08
) -> _Cells:
    line = rng.choice(n_lines, n, p=rng.dirichlet(np.full(n_lines, 10.0)))
    sample = rng.integers(0, n_samples, n)
    phase = rng.choice(3, n, p=[0.55, 0.25, 0.2])
    is_poor = rng.random(n) < poor
    depth = rng.lognormal(np.log(2500), 0.35, n) * rng.lognormal(0, 0.1)
    depth *= np.where(is_poor, rng.uniform(0.05, 0.3, n), 1.0)
    mt_share = np.where(is_poor, rng.uniform(0.25, 0.6, n), rng.beta(4, 60, n))
    return _Cells(line, sample, phase, is_poor, depth, mt_share)


def _simulate_counts(
    rng: np.random.Generator,
    study: _Study,
    cells: _Cells,
    samples: NDArray[np.float64],
    programme: NDArray[np.int64],
    strength: NDArray[np.float64],
) -> csr_matrix:
    """Counts of cells; log fold changes are those of the sample, and a programme by strength."""
    blocks = []
    for start in range(0, cells.line.size, _CELLS_PER_BLOCK):
        rows = slice(start, start + _CELLS_PER_BLOCK)
        line, phase, sample = (codes[rows] for codes in (cells.line, cells.phase, cells.sample))
        profile = strength[rows, None] * study.programmes[programme[rows]]
        profile = np.exp(profile + study.lines[line] + study.phases[phase] + samples[sample])
        mt_share = cells.mt_share[rows]
        for genes, share in ((study.is_mt, mt_share), (~study.is_mt, 1 - mt_share)):
            profile[:, genes] *= (share / profile[:, genes].sum(axis=1))[:, None]
        rate = rng.gamma(study.shape, (cells.depth[rows, None] * profile) / study.shape)
        blocks.append(csr_matrix(rng.poisson(rate).astype(np.float32)))
    return vstack(blocks, format="csr")


def _simulate_study(
    rng: np.random.Generator, n_genes: int, n_lines: int, n_programmes: int
) -> _Study:
    base = rng.normal(0, 1.3, n_genes)
    lines = base + np.where(
        rng.random((n_lines, n_genes)) < 0.1, rng.normal(0, 0.8, (n_lines, n_genes)), 0.0
    )
    # Markers: high in one line and nearly zero in the others, as in real cell lines.
    n_markers = max(10, n_genes // (10 * n_lines))
    for row in range(n_lines):
        markers = rng.choice(n_genes, n_markers, replace=False)
        lines[:, markers] = -1.5
        lines[row, markers] = rng.normal(1.5, 0.5, n_markers)
    programmes = _simulate_programmes(rng, n_programmes, n_genes, max(10, n_genes // 75), 1.0)
    programmes[0] = 0.0
    phases = _simulate_programmes(rng, 3, n_genes, max(5, n_genes // 100), 0.5)
    phases[0] = 0.0

    # Mitochondrial genes are spread over the gene order, so that no step can rely on a block.
    is_mt = np.zeros(n_genes, bool)
    is_mt[np.linspace(0, n_genes - 1, len(MT_GENES)).astype(np.int64)] = True
    symbols = [f"GENE{i:05d}" for i in range(1, n_genes + 1)]
    for gene, symbol in zip(np.flatnonzero(is_mt), MT_GENES, strict=True):
        symbols[gene] = symbol
    lines[:, is_mt] = rng.normal(0, 0.4, len(MT_GENES))
    programmes[:, is_mt] = phases[:, is_mt] = 0.0
    var = pd.DataFrame(
        {"gene_id": [f"SIMG{i:011d}" for i in range(1, n_genes + 1)]},
        index=pd.Index(symbols, name="gene_name"),
    )
    return _Study(var, is_mt, lines, programmes, phases, rng.uniform(3, 20, n_genes))


def _simulate_programmes(
    rng: np.random.Generator, n: int, n_genes: int, size: int, effect: float
) -> NDArray[np.float64]:
    """Log fold changes [n, n_genes] of `n` random programmes of `size` genes each."""
    changes = np.zeros((n, n_genes))
    for row in changes:
        genes = rng.choice(n_genes, size, replace=False)
        row[genes] = rng.normal(effect, 0.2, size) * rng.choice([-1, 1], size, p=[0.3, 0.7])
    return changes


def _categories(codes: NDArray[np.int64], names: Sequence[str]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(names))
