"""Values that reach scripts through the environment."""

from __future__ import annotations

import json

import pytest

from scatlas.workflow.cell_filter import BOUNDS
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.job_environment import columns_to_mix, job_environment, kept_cells

PLATES = [
    Plate(plate="a", path="a.h5ad", labels={"donor": "x", "day": ""}),
    Plate(plate="b", path="b.h5ad", labels={"donor": "y", "day": "3"}),
]


@pytest.mark.parametrize(
    ("config", "columns"),
    [
        ({}, {}),
        ({"integrate": {}}, {}),
        ({"integrate": {"key": ["plate", "leiden", "donor"]}}, {}),
        ({"integrate": {"key": ["batch", "day", "donor"]}}, {"batch": None, "day": ["a"]}),
        ({"integrate": {"key": ["batch"]}, "doublets": {}}, {"batch": None}),
        ({"integrate": {"key": ["batch"]}, "doublets": {"filter": True}}, {}),
    ],
)
def test_columns_that_plates_need_to_be_mixed(config, columns):
    assert columns_to_mix(load(config), PLATES) == columns


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hvg": {"flavor": "cell_ranger"}}, "hvg.flavor cell_ranger needs"),
        ({"hvg": {"flavor": "seurat_v3"}}, "hvg.flavor seurat_v3"),
        ({"doublets": {"filter": True}}, "doublets.filter"),
        ({"qc": {"drop_rare_genes": 3}}, "qc.drop_rare_genes"),
        ({"doublets": {}, "qc": {"min_cells": 3}, "normalize": {"target_sum": 5}}, None),
    ],
)
def test_when_load_knows_the_cells_to_take_moments_of(config, reason):
    found = kept_cells(load(config))
    assert found.keys() == {"unknown" if reason else "bounds"}
    assert found.get("unknown", "").startswith(reason or "")


def test_the_environment_holds_checks_and_the_cluster():
    empty = job_environment(load({}), PLATES, reference="")
    assert empty == {
        "SCATLAS_CLUSTER": "",
        "SCATLAS_QC_FILTER": "",
        "SCATLAS_MAX_PCT_MT": "",
        "SCATLAS_KEPT_CELLS": json.dumps({"bounds": load({}).qc.model_dump()}),
        "SCATLAS_REFERENCE_PLATE": "",
        "SCATLAS_REFERENCE_COUNTS": "X",
        "SCATLAS_MIXED_BY": "{}",
        "SCATLAS_N_COMPS": "300",
        "SCATLAS_ON_ERROR": "stop",
    }
    config = {
        "qc": {"filter": "ok", "max_pct_mt": 0},
        "compute": {"cluster": {"kind": "local-cpu", "n_workers": 2}},
        "pca": {"n_comps": 5},
        "integrate": {"key": ["batch"]},
        "plates": {"on_error": "skip"},
    }
    found = job_environment(load(config), PLATES, reference="a.h5ad", reference_counts="raw")
    assert json.loads(found.pop("SCATLAS_CLUSTER")) == {"kind": "local-cpu", "n_workers": 2}
    bounds = json.loads(found.pop("SCATLAS_KEPT_CELLS"))["bounds"]
    assert bounds["filter"] == "ok"
    assert bounds["max_pct_mt"] == 0
    assert {"filter", *BOUNDS} < set(bounds)
    assert found == {
        "SCATLAS_QC_FILTER": "ok",
        "SCATLAS_MAX_PCT_MT": "0.0",
        "SCATLAS_REFERENCE_PLATE": "a.h5ad",
        "SCATLAS_REFERENCE_COUNTS": "raw",
        "SCATLAS_MIXED_BY": '{"batch": null}',
        "SCATLAS_N_COMPS": "5",
        "SCATLAS_ON_ERROR": "skip",
    }
