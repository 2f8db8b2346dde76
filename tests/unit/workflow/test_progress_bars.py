"""Bars of ``scatlas run``, from the lines of a Snakemake run."""

from __future__ import annotations

import io

from scatlas.workflow.command_line.run import ProgressBars

LINES = """\
Building DAG of jobs...
Job stats:
job         count
--------  -------
load            3
qc_filter       3
hvg             2
total           8

Select jobs to execute...
[Wed Nov 25 09:37:29 2026]
Finished jobid: 4 (Rule: load)
1 of 8 steps (12%) done
Finished jobid: 5 (Rule: qc_filter)
2 of 8 steps (25%) done
    Finished jobid: 6 (Rule: load)
3 of 9 steps (33%) done
error: p1.h5ad: X is missing
"""


def test_bars_count_steps_and_plates():
    screen = io.StringIO()
    with ProgressBars(screen) as bars:
        for line in LINES.splitlines(keepends=True):
            bars.read(line)
        counts = {bar.desc: (bar.n, bar.total) for bar in [bars._steps, *bars._plates.values()]}
    assert counts == {
        "all steps": (3, 9),  # a checkpoint has added one
        "plates read": (2, 3),
        "plates with variable genes": (0, 2),
    }
    text = screen.getvalue()
    # Each line of Snakemake is shown, too.
    assert all(line in text for line in LINES.splitlines())
    assert "| 3/9 [00:00<" in text  # the time left


def test_a_run_without_steps_has_no_bars():
    screen = io.StringIO()
    with ProgressBars(screen) as bars:
        bars.read("Nothing to be done (all requested files are present and up to date).\n")
    assert screen.getvalue().count("\n") == 1
