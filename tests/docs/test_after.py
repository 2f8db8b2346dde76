"""The pages "After the atlas": their code runs, page after page, on a small atlas."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import anndata as ad
import pandas as pd
import pytest
import yaml

from scatlas.datasets import simulate_plate
from scatlas.workflow.command_line.main import main
from scatlas.workflow.command_line.run import snakemake_command
from tests.helpers.plates import write
from tests.workflow import warm
from tests.workflow.runs import run_python

pytestmark = pytest.mark.workflow

DOCS = Path(__file__).resolve().parents[2] / "docs/after"
PAGES = re.findall(r"\]\((\w+)\.md\)", (DOCS / "index.md").read_text())
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Genes of the pages; the simulator numbers its own.
GENES = ("CD3D", "MS4A1", "ISG15", "NKG7", "LYZ", "GNLY", "CD8A", "CD14", "GAPDH", "PPBP")
CONDITIONS = ("control", "treated")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the atlas of four small plates, as `scatlas init` and `run` make it."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("after")
        prepare(patch, path)
        rows = []
        for number in range(1, 5):
            plate = simulate_plate(number, n_cells=250, n_genes=600)
            names = plate.var_names.to_numpy(dtype=object, copy=True)
            names[1 : 1 + len(GENES)] = GENES
            plate.var_names = names
            plate.write_h5ad(path / f"s{number}.h5ad")
            rows.append(CONDITIONS[number % 2])
        assert main(["init", "s*.h5ad"]) == 0
        labelled = [simulate_plate(number, n_cells=250, n_genes=600) for number in (5, 6)]
        cells = ad.concat(labelled, keys=["d5", "d6"], label="donor", index_unique="-")
        cells.obs["cell_type"] = cells.obs.pop("cell_line")
        write(cells, path / "labelled.h5ad")
        sheet = path / "plates.tsv"
        header, *lines = sheet.read_text().splitlines()
        lines = [f"{line}\t{label}" for line, label in zip(lines, rows, strict=True)]
        sheet.write_text("\n".join([f"{header}\tcondition", *lines, ""]))
        change(path, "hvg: {n_top_genes: 150}\npca: {n_comps: 10}\n")
        # No page uses these, which take half of the time.
        change(path, "report: {colors: [leiden]}\nexplore: {page: false}\n")
        run("scatlas run")
        return path


def prepare(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Work in the folder, with a warm Python for Snakemake."""
    patch.chdir(folder)
    patch.setattr("sys.executable", warm.python())
    patch.setenv("PATH", warm.environment()["PATH"])


def change(folder: Path, text: str) -> None:
    """Write keys of a page into the config, as its reader does."""
    config = yaml.safe_load((folder / "atlas.yaml").read_text())
    for key, value in yaml.safe_load(text).items():
        config[key] = (config.get(key) or {}) | value if isinstance(value, dict) else value
    (folder / "atlas.yaml").write_text(yaml.safe_dump(config))


def run(line: str) -> None:
    """Run a command of a page; of `scatlas run` the command that it prints and calls."""
    words = shlex.split(line, comments=True)
    assert words[0] == "scatlas", line
    if words[1] == "run":
        command = snakemake_command(Path("atlas.yaml"), "--cores", "2", *words[2:])
        done = run_python(*command[1:], cwd=Path.cwd())
        assert done.returncode == 0, done.stdout[-6000:]
    else:
        assert main(words[1:]) == 0, line
    if words[1] == "label":
        fill_in(Path("labels.tsv"))


def fill_in(table: Path) -> None:
    """Name the clusters, as a reader does."""
    rows = pd.read_csv(table, sep="\t", dtype=str)
    rows["cell_type"] = ["T cells", *["B cells"] * (len(rows) - 1)]
    rows.to_csv(table, sep="\t", index=False)


def simulates(text: str) -> bool:
    """Whether test_compare.py runs this code, because it needs no atlas."""
    return "simulate_" in text or "by_dose" in text


@pytest.mark.filterwarnings("default")  # of other packages: an error would stop them half-way
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(folder: Path, page: str, monkeypatch: pytest.MonkeyPatch):
    prepare(monkeypatch, folder)
    names: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text())
    assert any(language in {"bash", "python"} for language, _ in blocks)
    for language, text in blocks:
        if language == "yaml":
            change(folder, text)
        elif language == "bash":
            for line in text.splitlines():
                run(line)
        elif language == "python" and not simulates(text):
            if page == "names":  # which edits the atlas
                shutil.copytree("results/atlas.zarr", "as-made.zarr")
            exec(compile(text, f"{page}.md", "exec"), names)
    if page == "batches":  # whose clusters get names again
        run("scatlas label")
        change(folder, "labels: labels.tsv")
    if page == "names":
        change(folder, "labels: labels.tsv")
        shutil.rmtree("results/atlas.zarr")
        shutil.move("as-made.zarr", "results/atlas.zarr")
