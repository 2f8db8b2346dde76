"""Jobs of a cluster, which read their files hours later, work by the plan of their run."""

from __future__ import annotations

from datetime import date

import pytest

from scatlas.errors import InputError
from scatlas.workflow.run_plan import RunPlan


@pytest.fixture(autouse=True)
def _no_run(monkeypatch):
    monkeypatch.setenv("SCATLAS_RUN", "")


def test_a_job_takes_the_config_of_its_run_and_not_that_of_the_edited_file():
    first = ({"qc": {"min_genes": 5}}, {"qc": {"min_genes": 5}, "seed": 0})
    assert RunPlan("None", is_main=True).config(*first) == first
    edited = ({"qc": {"min_genes": 33}}, {"qc": {"min_genes": 33}, "seed": 1})
    assert RunPlan("None", is_main=False).config(*edited) == first
    assert RunPlan("None", is_main=True).config(*edited) == edited, "the next run"
    assert RunPlan("None", is_main=False).config(*first) == edited


def test_a_job_refuses_plates_or_code_that_differ_from_those_of_its_run():
    head = RunPlan("None", is_main=True)
    head.bind("plates.tsv", "p1")
    head.bind("plates.tsv", "p1")
    job = RunPlan("None", is_main=False)
    job.bind("plates.tsv", "p1")
    with pytest.raises(InputError) as caught:
        job.bind("plates.tsv", "p1 p2")
    assert str(caught.value) == (
        "plates.tsv has changed since this run began, whose jobs would differ: give the same "
        "command again when it has ended"
    )


def test_each_module_of_a_workflow_has_its_own_plan():
    for name in "ab":
        head = RunPlan(name, is_main=True)
        head.config({}, {"seed": name})
        head.bind("plates.tsv", name)
    for name in "ab":
        job = RunPlan(name, is_main=False)
        assert job.config({}, {"seed": "edited"}) == ({}, {"seed": name})
        job.bind("plates.tsv", name)


def test_without_the_environment_of_the_run_a_job_reads_its_files():
    assert RunPlan("None", is_main=False).config({}, {"seed": 1}) == ({}, {"seed": 1})


def test_values_that_no_config_has_are_left_to_its_check():
    found = RunPlan("None", is_main=True).config({}, {"seed": date(2026, 1, 1)})
    assert found == ({}, {"seed": date(2026, 1, 1)})
