"""Planned jobs of the presets, and the resources that every rule requests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from scatlas.datasets import simulate_plates, write_release
from scatlas.workflow.costs import COSTS, RuleCost
from tests.unit.io.test_text_matrices import split_pipe, write
from tests.workflow.conftest import SAMPLE_STEPS
from tests.workflow.runs import ROOT, run_python

pytestmark = pytest.mark.workflow

PLATE_RULES = ("load", "qc_filter", "normalize", "hvg", "select_genes")
PLATE_RULES += ("by_gene", "group_sums")
ATLAS_RULES = ("consensus", "concat_on_disk", "pca", "subset", *SAMPLE_STEPS, "map")
ATLAS_RULES += ("atlas", "merge_by_gene", "cell_groups", "markers", "report")
ATLAS_RULES += ("explore",)
GPU_RULES = ("hvg", "select_genes", "pca", "harmony", "neighbors", "umap", "leiden", "map")
GPU_RULES += ("integrate",)


def snakemake(*options: str, folder: Path, snakefile: Path = ROOT / "Snakefile", **env: str) -> str:
    words = ("--snakefile", snakefile, "--directory", folder, "--nocolor", *options)
    done = run_python("-m", "snakemake", *words, **env)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def planned(preset: str, folder: Path) -> dict[str, int]:
    """Number of jobs per rule in a dry run of a preset."""
    config = folder / "config" / f"{preset}.yaml"
    if not config.exists():
        shutil.copytree(ROOT / "config", folder / "config", dirs_exist_ok=True)
    said = snakemake("--dry-run", "--configfile", str(config), folder=folder)
    table = said.partition("Job stats:")[2].partition("total")[0]
    return {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", table, flags=re.MULTILINE)}


def jobs(n_plates: int) -> dict[str, int]:
    return dict.fromkeys(PLATE_RULES, n_plates) | dict.fromkeys((*ATLAS_RULES, "all"), 1)


# The demo names the types of its cells by those of two further donors.
TYPES = {"annotate": 4, "annotator": 1, "labels": 1}
EFFECTS = {"effect_sums": 4, "effects": 1, "edistance": 1, "composition": 1}


def test_the_demo_simulates_four_plates_and_makes_their_atlas(tmp_path: Path):
    assert planned("demo", tmp_path) == jobs(4) | TYPES | EFFECTS | {"simulate": 5}


def test_the_demo_takes_plates_that_are_there(tmp_path: Path):
    for number in (1, 2, 3, 4):
        path = tmp_path / f"resources/demo/plate{number}.h5ad"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (path.parent / "labelled.h5ad").touch()
    assert planned("demo", tmp_path) == jobs(4) | TYPES | EFFECTS


def test_tahoe_100m_is_fourteen_plates_and_one_atlas(tmp_path: Path):
    sheet = pd.read_csv(ROOT / "config/tahoe-100m.tsv", sep="\t")
    assert len(sheet) == 14
    assert sheet["n_cells"].sum() == 100_648_790
    for path in sheet["path"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert planned("tahoe-100m", tmp_path) == jobs(14)


@pytest.mark.parametrize("form", ["tahoe", "plates/*/all-sample/DGE_filtered"])
def test_tahoe_100m_takes_other_forms_by_one_line(tmp_path: Path, form: str):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    preset = tmp_path / "config/tahoe-100m.yaml"
    text = preset.read_text()
    (line,) = re.findall(rf"^# (plates: .*{re.escape(form)}.*)$", text, re.MULTILINE)
    preset.write_text(text.replace("plates: config/tahoe-100m.tsv", line))
    if form == "tahoe":
        plates = [*simulate_plates(n_plates=3, n_cells=40, n_genes=200).values()]
        write_release(tmp_path / "tahoe", plates, rows_per_group=20)
    else:
        for number in (1, 2, 3):
            write(tmp_path / form.replace("*", f"plate{number}"), split_pipe())
    assert planned("tahoe-100m", tmp_path) == jobs(3)


@pytest.mark.parametrize("preset", ["brain-1.3m", "cell-atlas-11m"])
def test_the_presets_of_one_plate_are_one_atlas(tmp_path: Path, preset: str):
    (path,) = pd.read_csv(ROOT / f"config/{preset}.tsv", sep="\t")["path"]
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    assert planned(preset, tmp_path) == jobs(1)


def test_steps_on_demand_run_where_they_are_asked_for(tmp_path: Path):
    """An empty section has its defaults; without a section the rule does not run."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    demo = tmp_path / "config/demo.yaml"
    asked = {"doublets": {}, "pseudobulk": {}, "integrate": {"key": ["plate"]}}
    demo.write_text(yaml.safe_dump(yaml.safe_load(demo.read_text()) | asked))
    per_plate = dict.fromkeys(("doublets", "pseudobulk"), 4) | TYPES | {"simulate": 5}
    per_plate |= EFFECTS
    once = dict.fromkeys(("merge_pseudobulk", "harmony", "integrate"), 1)
    assert planned("demo", tmp_path) == jobs(4) | per_plate | once


def test_no_group_of_small_steps_waits_for_itself(tmp_path: Path):
    """Steps share jobs of a cluster; a group before and after a checkpoint would be a circle."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    options = ("--profile", str(ROOT / "profiles/slurm"), "--nocolor")
    said = snakemake("--dry-run", *options, *("--configfile", "config/demo.yaml"), folder=tmp_path)
    plates = ("small_plates", "small_plates_selected", "small_plates_markers")
    plates += ("small_plates_by_gene", "small_plates_annotate", "small_plates_pseudobulk")
    found = re.findall(r"Group job (\w+) ", said)
    assert sorted(found) == sorted([*plates, "small_atlas", "small_report"])


def directives() -> dict[str, dict[str, str]]:
    """Text of each directive of each rule."""
    found = {}
    for file in sorted((ROOT / "workflow/rules").glob("*.smk")):
        rules = re.findall(
            r"^(?:rule|checkpoint) (\w+):\n((?:(?: {4}.*)?\n)+)", file.read_text(), re.MULTILINE
        )
        for name, body in rules:
            parts = re.findall(r"^ {4}(\w+):((?:.*\n)(?:(?: {8}.*)?\n)*)", body, re.MULTILINE)
            found[name] = {directive: text.strip() for directive, text in parts}
    return found


DIRECTIVES = directives()


def test_every_rule_is_seen():
    assert set(DIRECTIVES) > {*PLATE_RULES, *ATLAS_RULES}
    texts = [path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk")]
    assert len(DIRECTIVES) == sum(
        len(re.findall(r"^(?:rule|checkpoint) ", text, re.MULTILINE)) for text in texts
    )


@pytest.mark.parametrize("rule", DIRECTIVES)
def test_every_rule_says_what_it_needs_and_where_it_reports(rule: str):
    parts = DIRECTIVES[rule]
    assert {
        *("input", "output", "log", "benchmark", "retries", "conda", "threads", "resources"),
        *("params", "message", "shell"),
    } == set(parts) - {"group", "priority"}
    # Steps that read a plate's counts again go on with it before the next plate is loaded.
    again = ("qc_filter", "doublets", "normalize", "hvg", "pseudobulk")
    expected = dict.fromkeys(again, "1") | {"by_gene": "-1", "group_sums": "-2"}
    if "{plate}" not in parts["log"] or rule in (*expected, "load", "select_genes"):
        assert parts.get("priority") == expected.get(rule)
    alone = ("simulate", "split", "annotator", "consensus", "cell_groups", "explore", "publish")
    assert ("group" in parts) == (rule not in alone)
    assert parts["conda"] == '"../../envs/cpu.yaml"'
    assert (ROOT / "workflow/rules" / parts["conda"].strip('"')).resolve().is_file()
    assert int(parts["retries"]) == 2
    assert parts["threads"] == f'threads_for("{rule}")'
    counter = "small_plates" if "{plate}" in parts["log"] else "small_atlas"
    counters = {"", f', "{counter}"'} if parts.get("group", '"')[0] == '"' else {f', "{counter}"'}
    assert parts["resources"] in {f'**requests("{rule}"{counter}),' for counter in counters}
    assert ("{DEVICE_OPTIONS}" in parts["shell"]) == (rule in GPU_RULES)
    if rule != "simulate":
        assert parts["log"].startswith('f"{OUT}/logs/')
        assert parts["benchmark"].startswith('f"{OUT}/benchmarks/')
    assert parts["shell"].endswith('{log:q}"' if rule == "simulate" else '{STEP_TAIL}"')


def test_the_end_of_all_commands_has_manifest_threads_attempt_and_log():
    text = (ROOT / "workflow/rules/options.smk").read_text()
    tail = re.search(r"^STEP_TAIL = \((.*?)^\)", text, re.MULTILINE | re.DOTALL)[1]
    for part in ("{output.manifest:q}", "{threads}", "{resources.attempt}", "tee {log:q}"):
        assert part in tail


def test_rules_with_blocks_ask_for_their_budget():
    """The numbers are in tests/unit/workflow/test_resources.py."""
    holding = {rule for rule in DIRECTIVES if "{BLOCK_OPTIONS}" in DIRECTIVES[rule]["shell"]}
    asking = {rule for rule in DIRECTIVES if COSTS.get(rule, RuleCost()).blocks}
    assert holding <= asking
    assert holding >= {"load", "hvg", "select_genes", "pca", "embedding", "group_sums", "doublets"}


# At the end of the Snakefile, with the variables of the rules.
ASK = """
import json


def tell(name, resource, plate):
    request = requests(name)[resource]
    wildcards = {"plate": plate} if plate else {}
    return [request(wildcards, attempt, threads=4) for attempt in (1, 2, 3)]


of_plates = {rule.name: "plate" in rule.wildcard_names for rule in workflow.rules}
with open("answers.json", "w") as file:
    json.dump(
        {
            f"{name} {resource} {plate}": tell(name, resource, plate)
            for name in os.environ["TEST_RULES"].split()
            for resource in ("mem_mb", "runtime")
            for plate in (PLATES if of_plates.get(name) else [None])
        },
        file,
    )
"""


def test_requests_follow_from_the_plate_and_the_attempt(tmp_path: Path):
    for name in ("workflow", "scripts", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "Snakefile").write_text((ROOT / "Snakefile").read_text() + ASK)
    for name, n_bytes in {"small": 1, "large": 1, "unsaid": 30_000_000_000}.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(n_bytes)
    rows = ("small\tsmall\t1000", "large\tlarge\t10000000", "unsaid\tunsaid\t")
    (tmp_path / "plates.tsv").write_text("\n".join(["plate\tpath\tn_cells", *rows, ""]))
    (tmp_path / "my.yaml").write_text("plates: plates.tsv")
    options = ("--list-rules", "--configfile", str(tmp_path / "my.yaml"))
    snakefile = tmp_path / "Snakefile"
    snakemake(*options, folder=tmp_path, snakefile=snakefile, TEST_RULES=" ".join(DIRECTIVES))
    asked = json.loads((tmp_path / "answers.json").read_text())
    for what, (first, second, third) in asked.items():
        if " mem_mb " in what:
            assert isinstance(first, int)
            assert 500 < first < second < third, what
        else:
            assert 3 <= first <= second <= third < 7 * 24 * 60, f"{what}: minutes"
    for rule in PLATE_RULES:
        for resource, factor in {"mem_mb": 2, "runtime": 1.1}.items():
            small, large, unsaid = (
                asked[f"{rule} {resource} {plate}"][0] for plate in ("small", "large", "unsaid")
            )
            # A table takes seconds per million cells, far less than the start.
            assert large > factor * small
            assert unsaid == large, "without n_cells the size of the file tells"


def test_a_dry_run_prints_the_plan(tmp_path: Path):
    for name in ("p.h5ad", "q.h5ad"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(300_000_000)
    (tmp_path / "plates.tsv").write_text("plate\tpath\np\tp.h5ad\nq\tq.h5ad\n")
    config = {"plates": "plates.tsv", "consensus": {"min_plates": 2}, "backend": "gpu"}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    options = ("-n", "--cores", "16", "--configfile", str(tmp_path / "my.yaml"))
    printed = snakemake(*options, folder=tmp_path)
    rows = {line.split()[0]: line.split()[1:] for line in printed.partition("Plan")[2].splitlines()}
    assert rows["load"][:3] == ["2", "6", "0"], "jobs, threads, GPUs"
    assert rows["hvg"][:3] == ["2", "4", "0.25"]
    n_jobs, *_, gpu_hours, disk = rows["all"]
    assert int(n_jobs) == 2 * len(PLATE_RULES) + len(ATLAS_RULES)
    # hvg and select_genes take ten minutes and more each, with a quarter of a GPU, pca with half;
    # the sample by its cells.
    of_sample = sum(float(rows[rule][5]) for rule in ("neighbors", "umap", "leiden"))
    assert 0.2 <= float(gpu_hours) - of_sample < 0.5
    assert float(disk) > 2 * 100_000 * 1451 * 1.9 / 1e9
    expected = r"^Expected run time: about (\d+) seconds on 16 cores and 1 GPU,"
    assert 40 <= int(re.search(expected, printed, re.MULTILINE)[1]) <= 90
    # A cluster gives a job a whole GPU, and its queue decides the time.
    profile = ("--profile", str(ROOT / "profiles/slurm"))
    slurm = snakemake("-n", *options[3:], *profile, folder=tmp_path)
    rows = {line.split()[0]: line.split()[1:] for line in slurm.partition("Plan")[2].splitlines()}
    assert rows["hvg"][:3] == ["2", "8", "1"]
    assert "Expected run time" not in slurm
