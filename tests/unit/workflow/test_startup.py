"""Scripts start quickly: they import what they need, and reading the Snakefile next to nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.io import load_plate, write_embedding
from scatlas.io.files.local_zarr import open_rows
from scatlas.io.products.embeddings import write_parts

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))

# The bar is 1.5 s on an idle machine. This is processor time, which other work on the machine
# stretches less than the clock, with room for slower machines.
SECONDS = 5.0

# No step needs these to start. The exact neighbours need scikit-learn, the report matplotlib, both
# when they come to it; umap-learn and pynndescent compile for seconds when they are imported.
NEVER = {"cupy", "distributed", "igraph", "leidenalg", "matplotlib", "pynndescent", "scanpy"}
NEVER |= {"sklearn", "snakemake", "umap"}
TABLES_ALONE = {"anndata", "dask", "numba", "zarr"}
NOT_NEEDED = {
    "consensus": TABLES_ALONE | {"h5py", "pydantic", "scipy"},
    "normalize": TABLES_ALONE,
    "qc_filter": {"anndata", "dask", "numba"},
    "report": TABLES_ALONE | {"h5py", "numpy", "pandas", "pydantic", "scipy"},
    "simulate": TABLES_ALONE | {"h5py", "pydantic"},
}

# Of scripts that NOT_NEEDED does not name: imported once, then each script is forked.
SHARED = ("anndata", "dask.array", "numba", "pyarrow", "scipy.sparse", "zarr")

HELP = """
import importlib, os, resource, runpy, sys

def seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

modules, *scripts = sys.argv[1:]
for name in modules.split(","):
    importlib.import_module(name)
shared = seconds()
for script in scripts:
    if os.fork():
        if os.wait()[1]:
            sys.exit(script + " failed")
        continue
    sys.argv[:] = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    names = {name.partition(".")[0] for name in sys.modules}
    print("\\nstarted", script, shared + seconds(), *sorted(names), flush=True)
    os._exit(0)
"""

RUN = """
import resource, runpy, sys

sys.argv[:] = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
used = resource.getrusage(resource.RUSAGE_SELF)
names = {name.partition(".")[0] for name in sys.modules}
print("\\nstarted", used.ru_utime + used.ru_stime, *sorted(names))
"""


def run(*command: str) -> tuple[float, set[str]]:
    """Processor seconds of a fresh process, and the packages that it imported."""
    seconds, *packages = python(RUN, *command)[-1].removeprefix("started ").split()
    return float(seconds), set(packages)


def python(*command: str) -> list[str]:
    """Lines that a fresh process printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("COV", "PYTHONPROFILE"))}
    done = subprocess.run(
        [sys.executable, "-c", *command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def helped() -> dict[str, tuple[float, set[str]]]:
    """Processor seconds, with those of SHARED, and packages of each script that may import it."""
    paths = [str(ROOT / "scripts" / f"{name}.py") for name in SCRIPTS if name not in NOT_NEEDED]
    found = {}
    for line in python(HELP, ",".join(SHARED), *paths):
        if line.startswith("started "):
            path, seconds, *packages = line.removeprefix("started ").split()
            found[Path(path).stem] = float(seconds), set(packages)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_quickly(script: str, helped: dict[str, tuple[float, set[str]]]) -> None:
    alone = script in NOT_NEEDED
    path = str(ROOT / "scripts" / f"{script}.py")
    seconds, packages = run(path, "--help") if alone else helped[script]
    assert packages & (NEVER | NOT_NEEDED.get(script, set())) == set()
    assert seconds < SECONDS


def test_every_script_that_is_named_exists() -> None:
    assert set(NOT_NEEDED) <= set(SCRIPTS)


def test_umap_runs_without_what_compiles_on_import(tmp_path: Path) -> None:
    """umap-learn and pynndescent take 7 s to import, and compile for as long again."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    write_embedding(tmp_path / "components.zarr", "X_pca", x)
    write_parts(tmp_path / "subset.zarr", obs={"atlas_row": np.arange(60)})
    packages = set()
    given = ("components", "subset", "neighbors")
    for names in (given, (*given, "umap")):
        options = [text for name in names for text in (f"--{name}", str(tmp_path / f"{name}.zarr"))]
        script = str(ROOT / "scripts" / f"{names[-1]}.py")
        packages |= run(script, *options, "--manifest", str(tmp_path / "m.json"))[1]
    assert {"sklearn", "numba"} <= packages  # they did run
    assert packages & {"cupy", "distributed", "leidenalg", "pynndescent", "scanpy", "umap"} == set()
    assert open_rows(tmp_path / "umap.zarr", "obsm/X_umap").shape == (60, 2)


def test_steps_on_tables_run_without_dask(tmp_path: Path) -> None:
    """Threads are set without it: Dask alone takes 0.1 s."""
    program = tmp_path / "table.py"
    program.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from scatlas.workflow import script\n"
        "from scatlas.compute.threads import n_threads\n"
        f"args = script.parser('').parse_args(['--manifest', {str(tmp_path / 'm.json')!r},"
        " '--threads', '3'])\n"
        "with script.recorded_run(args, outputs=[Path(__file__)]) as facts:\n"
        "    facts['threads'] = n_threads()\n"
        "assert facts['threads'] == 3\n"
    )
    _, packages = run(str(program))
    assert packages & {"anndata", "dask", "numba", "pandas", "scipy", "zarr"} == set()


def test_reading_the_snakefile_imports_no_science() -> None:
    """On a cluster every job reads it again; this is what it imports of ours."""
    rules = "\n".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    lines = re.findall(r"^from scatlas[^\n(]*(?:\([^)]*\))?", rules, re.MULTILINE)
    assert len(lines) >= 10
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, "import sys", "print(*sys.modules)"])],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages & {"anndata", "dask", "h5py", "numba", "pandas", "scipy", "zarr"} == set()


def test_tables_of_small_plates_are_read_without_numba(tmp_path: Path) -> None:
    """Half a second for a step that takes a tenth."""
    store = tmp_path / "counts.zarr"
    counts = sp.random(300, 40, 0.3, format="csr", random_state=0)
    counts.data = np.ones_like(counts.data)
    source = tmp_path / "plate.h5ad"
    adata = ad.AnnData(sp.csr_matrix(counts, dtype=np.float32))
    adata.obs["pass_filter"] = "full"
    adata.write_h5ad(source)
    load_plate(source, store, plate="p")
    files = {"--table": "qc.parquet", "--summary": "qc.json", "--manifest": "m.json"}
    options = [text for name, file in files.items() for text in (name, str(tmp_path / file))]
    script = str(ROOT / "scripts" / "qc_filter.py")
    _, packages = run(script, *options, "--store", str(store), "--plate", "p")
    assert (tmp_path / "qc.parquet").is_file()  # it did run
    assert packages & {"numba", "zarr", "anndata"} == set()
