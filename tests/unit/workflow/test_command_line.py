"""The Snakemake that the command starts: options, profile, caches, and bars from its lines."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from snakemake.cli import parse_args

from scatlas.errors import InputError
from scatlas.workflow.command_line import run as command_run
from scatlas.workflow.command_line.main import main
from scatlas.workflow.command_line.run import ProgressBars, snakemake_command, use_writable_caches


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A new working folder, and no folder of caches in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR", "CUPY_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that it is as before in the end
        del os.environ[name]
    return monkeypatch


@pytest.mark.parametrize(
    "words, passed",
    [
        (["--unlock"], ["--unlock"]),
        (["-n", "--cores", "4", "atlas"], ["-n", "--cores", "4", "atlas"]),
        (["--keep-going", "--config", "b.yaml", "--", "-c1"], ["--keep-going", "-c1"]),
    ],
)
def test_options_of_snakemake_are_taken_as_they_are(caches, words, passed):
    seen = []
    caches.setattr(command_run, "run", lambda config, words, *, slurm: seen.append(words) or 0)
    assert main(["run", *words]) == 0
    assert seen == [passed]


def test_other_commands_take_none(caches, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["check", "--cores", "4"])
    assert "only scatlas run takes further options: leave out --cores 4" in capsys.readouterr().err


def test_the_profile_is_not_that_of_another_workflow_in_the_folder(caches, tmp_path: Path):
    for name in ("default", "mine"):
        (tmp_path / "profiles" / name).mkdir(parents=True)
        text = f"jobname: {name}-{{name}}\nscheduler: ilp\n"
        (tmp_path / "profiles" / name / "config.yaml").write_text(text)
    words = snakemake_command(Path("atlas.yaml"))[3:]
    assert parse_args(words)[1].scheduler == "greedy"
    assert parse_args([*words, "--workflow-profile", "profiles/mine"])[1].scheduler == "ilp"


@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
def test_caches_are_in_the_working_folder_without_a_home(caches, tmp_path: Path, capsys, name: str):
    caches.setenv(name, "/dev/null/home")
    use_writable_caches()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / ".snakemake/cache")
    assert os.environ["MPLCONFIGDIR"].startswith(str(tmp_path))
    assert "cannot be written" in capsys.readouterr().err
    use_writable_caches()
    assert capsys.readouterr().err == "", "the caches that it has set are good"


def test_without_any_folder_of_caches_a_sentence_names_the_variable(caches, tmp_path: Path):
    (tmp_path / ".snakemake").touch()
    caches.setenv("HOME", "/dev/null")
    with pytest.raises(InputError, match=r"can be written: set XDG_CACHE_HOME to another folder"):
        use_writable_caches()


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
