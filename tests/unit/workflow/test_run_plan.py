"""Jobs of a cluster, which read their files hours later, work by the plan of their run."""

from __future__ import annotations

from datetime import date

import pytest

from scatlas.errors import InputError
from scatlas.workflow.job_environment import bind, of_run

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
