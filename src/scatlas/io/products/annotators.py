"""Annotators, linear classifiers of cells as plain arrays, in h5ad files that anndata opens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import anndata as ad
import h5py
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.io.files.read_errors import reading

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Of the values of a cell: counts divided by their total, times this, and log(1 + x).
TARGET_SUM = 1e4
# Scaled values above this, after centring, count as this: CellTypist's.
CLIP = 10.0
# What celltypist and others write in place of a type.
NO_TYPES = ("unassigned", "heterogeneous", "unknown", "nan", "na", "none")
_FORM = "scatlas annotator 1"


@dataclass(frozen=True)
class Annotator:
    """A linear classifier of cells by log-normalised values (10,000 counts per cell).

    The score of a label is ``intercept + coef @ min((x - mean) / scale, 10)``. Of lists of marker
    genes the coefficients are 1 for genes up and -1 for genes down, of ranks in place of values.
    """

    labels: NDArray[Any]  # [n_labels], text: the finest names
    genes: NDArray[Any]  # [n_genes], text
    coef: NDArray[np.float64]  # [n_labels, n_genes]
    intercept: NDArray[np.float64]  # [n_labels]
    mean: NDArray[np.float64]  # [n_genes]
    scale: NDArray[np.float64]  # [n_genes], above 0
    # Probabilities of a cell: a softmax over labels, or a sigmoid of each label's score
    # (CellTypist), which do not sum to 1. Lists have scores of clusters alone.
    link: Literal["softmax", "sigmoid", "lists"] = "softmax"
    # A cell is unknown below one of them. Its fit is its best score as a number of standard
    # deviations from the mean of this label's cells.
    min_probability: float = 0.5
    min_margin: float = 0.0
    min_fit: float = -np.inf
    score_mean: NDArray[np.float64] | None = None  # [n_labels], of held-out cells
    score_sd: NDArray[np.float64] | None = None
    # Name of each label in coarser columns, from the coarsest.
    coarser: dict[str, list[str]] = field(default_factory=dict)
    ontology_ids: list[str] | None = None
    # How it was made: cells, groups, C, held-out F1, or the file of a CellTypist model.
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_labels(self.labels)


def check_labels(labels: Any, source: str = "labels") -> None:
    """Refuse names of types that could be taken for none, and ``|``, which joins names."""
    for name in map(str, labels):
        if not name.strip() or name.strip().lower() in NO_TYPES:
            raise InputError(
                f"{source}: {name!r} is no cell type: leave these cells without a label (a missing "
                "value)"
            )
        if "|" in name:
            raise InputError(f"{source}: type {name!r} has a '|', which joins types: rename it")


def write_annotator(path: Path, annotator: Annotator) -> None:
    """Write an h5ad: X the coefficients [labels x genes], obs by label, var by gene."""
    obs = pd.DataFrame({"intercept": annotator.intercept}, index=annotator.labels.astype(object))
    for name in ("score_mean", "score_sd"):
        if (values := getattr(annotator, name)) is not None:
            obs[name] = values
    for name, values in annotator.coarser.items():
        obs[f"level_{name}"] = pd.Categorical(values)
    if annotator.ontology_ids is not None:
        obs["ontology_id"] = pd.Categorical(annotator.ontology_ids)
    var = pd.DataFrame(
        {"mean": annotator.mean, "scale": annotator.scale}, index=annotator.genes.astype(object)
    )
    names = ("link", "min_probability", "min_margin", "min_fit", "record")
    facts = {name: getattr(annotator, name) for name in names}
    uns = {"form": _FORM, "annotator": json.dumps(facts, sort_keys=True)}
    with atomic_path(path) as partial:
        write_h5ad(partial, ad.AnnData(annotator.coef, obs=obs, var=var, uns=uns))


def read_annotator(path: Path) -> Annotator:
    """Read the file of :func:`write_annotator`; InputError for another one."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such model: name a file that is there")
    if not h5py.is_hdf5(path):
        raise InputError(
            f"{path} is no annotator: give the h5ad that train_annotator wrote, or a CellTypist "
            "model (.pkl)"
        )
    with reading(str(path), "X"):
        adata = ad.read_h5ad(path)
    if adata.uns.get("form") != _FORM:
        raise InputError(
            f"{path} is an h5ad of another kind, not an annotator: name it as reference to learn "
            "from its cells"
        )
    facts = json.loads(adata.uns["annotator"])
    obs, var = adata.obs, adata.var
    found = {name: obs[name].to_numpy() for name in ("score_mean", "score_sd") if name in obs}
    return Annotator(
        labels=obs.index.to_numpy(),
        genes=var.index.to_numpy(),
        coef=adata.X,
        intercept=obs["intercept"].to_numpy(),
        mean=var["mean"].to_numpy(),
        scale=var["scale"].to_numpy(),
        coarser={
            name.removeprefix("level_"): obs[name].astype(str).tolist()
            for name in obs
            if name.startswith("level_")
        },
        ontology_ids=obs["ontology_id"].astype(str).tolist() if "ontology_id" in obs else None,
        **found,
        **facts,
    )
