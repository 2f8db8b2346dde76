"""Values that reach scripts through the environment, and the plan that jobs of a run work by."""

from __future__ import annotations

import json
from datetime import date

import pytest

from scatlas.errors import InputError
from scatlas.workflow.cell_filter import BOUNDS
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.job_environment import (
    bind,
    columns_to_mix,
    job_environment,
    kept_cells,
    of_run,
)

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
        ({"qc": {"mads": 5}}, "qc.mads compares"),
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


# Jobs of a cluster, which read their files hours later, work by the plan of their run ------------

HEAD, JOB = ({"module": "None", "is_main": is_main} for is_main in (True, False))


@pytest.fixture(autouse=True)
def _no_run(monkeypatch):
    monkeypatch.setenv("SCATLAS_RUN", "")


def test_a_job_takes_the_config_of_its_run_and_not_that_of_the_edited_file():
    first, edited = [{}, {"min_genes": 5}], [{"min_genes": 33}, {"min_genes": 33}]
    assert of_run("config", first, **HEAD) == first
    assert of_run("config", edited, **JOB) == first
    assert of_run("config", edited, **HEAD) == edited, "the next run"
    assert of_run("config", first, **JOB) == edited
    assert of_run("other", first, **JOB) == first, "without the environment"
    # Left to the check of the config.
    assert of_run("config", date(2026, 1, 1), **HEAD) == date(2026, 1, 1)


def test_a_job_refuses_plates_or_code_that_differ_from_those_of_its_run():
    bind("plates.tsv", "p1", **HEAD)
    bind("plates.tsv", "p1", **JOB)
    with pytest.raises(InputError) as caught:
        bind("plates.tsv", "p1 p2", **JOB)
    assert str(caught.value) == (
        "plates.tsv has changed since this run began: give the same command again when the run "
        "has ended"
    )


def test_each_module_of_a_workflow_has_its_own_plan():
    for is_main in (True, False):
        for name in "ab":
            bind("plates.tsv", name, module=name, is_main=is_main)
