"""The steps on a system without what only Linux has, such as macOS."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scatlas._util import operating_system
from scatlas._util.operating_system import link_or_copy
from scatlas.io.files import hdf5_probe
from scatlas.workflow import fork_client

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/scatlas"
# The client of the fork server imports no package; it asks for SO_PEERCRED by itself.
ONLY_LINUX = re.compile(
    r"sched_getaffinity|/proc\b|os\.link\b|posix_fadvise|copy_file_range|os\.sendfile|memfd_create"
    r"|sync_file_range|pidfd_open|epoll|O_TMPFILE|O_DIRECT|VmHWM"
)

# Builds an atlas of one plate. The first argument says whether Linux's calls are taken away.
STEPS = """
import os, pathlib, runpy, socket, sys, types

without, root, folder = sys.argv[1] == "without", pathlib.Path(sys.argv[2]), sys.argv[3]
if without:
    for name in ("sched_getaffinity", "posix_fadvise", "copy_file_range", "memfd_create"):
        delattr(os, name)
    from scatlas._util import operating_system

    operating_system._sync_file_range = lambda: None

    # Zarr makes links, too, and needs them.
    calls = {name: call for name, call in vars(os).items() if name != "link"}
    operating_system.os = types.SimpleNamespace(**calls)
    del socket.SO_PEERCRED
    read_text = pathlib.Path.read_text

    def read_text_elsewhere(path, *args, **kwargs):
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return read_text(path, *args, **kwargs)

    pathlib.Path.read_text = read_text_elsewhere
from scatlas.datasets import simulate_plate

os.chdir(folder)


def run(name, *options):
    main = runpy.run_path(str(root / f"scripts/{name}.py"))["main"]
    main(["--manifest", f"manifests/{name}.json", *map(str, options)])


simulate_plate(1, n_cells=120, n_genes=300).write_h5ad("plate.h5ad", compression="gzip")
counts = ("--plate", "p", "--store", "counts.zarr", "--size-factors", "factors.parquet")
run("load", "--plate", "p", "--source", "plate.h5ad", "--store", "counts.zarr")
run("qc_filter", "--plate", "p", "--store", "counts.zarr", "--table", "qc.parquet",
    "--summary", "qc.json")
run("normalize", "--plate", "p", "--qc", "qc.parquet", "--table", "factors.parquet")
run("hvg", *counts, "--config", '{"hvg": {"n_top_genes": 40}}', "--table", "hvg.parquet")
run("consensus", "--hvg", "p=hvg.parquet", "--list", "genes.tsv", "--table", "genes.parquet")
run("select_genes", *counts, "--genes", "genes.tsv", "--selected", "selected.zarr",
    "--gram", "gram.zarr")
run("concat_on_disk", "--selected", "p=selected.zarr", "--merged", "merged.zarr")
run("pca", "--merged", "merged.zarr", "--gram", "gram.zarr",
    "--config", '{"pca": {"n_comps": 5}}', "--pca", "pca.zarr")
run("atlas", "--merged", "merged.zarr", "--pca", "pca.zarr", "--genes", "genes.parquet",
    "--atlas", "atlas.zarr")
links = os.stat(next(pathlib.Path("atlas.zarr/X/data/c").iterdir())).st_nlink
assert links == (1 if without else 2), links
"""


def test_other_modules_call_nothing_of_linux_alone():
    found = [
        f"{path.relative_to(PACKAGE)}: {match[0]}"
        for path in [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
        if path != Path(operating_system.__file__)
        for match in ONLY_LINUX.finditer(path.read_text())
    ]
    assert found == []


def test_an_atlas_has_the_same_bytes_without_them(tmp_path: Path):
    contents = []
    for name in ("with", "without"):
        folder = tmp_path / name
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", STEPS, name, ROOT, folder],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        contents.append(
            {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file() and "runs" not in path.parts
            }
        )
    assert len(contents[0]) > 50
    assert contents[0] == contents[1]


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", refuse)


def test_peak_memory_is_about_the_same_without_proc(monkeypatch: pytest.MonkeyPatch):
    known = operating_system.peak_memory()
    without_proc(monkeypatch)
    # getrusage may count the process that has started this one.
    assert 0.9 * known < operating_system.peak_memory() < 1e12


def test_a_damaged_file_is_found_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / "p.h5"
    file.write_bytes(b"1")
    without_proc(monkeypatch)
    monkeypatch.setattr(hdf5_probe, "_SECONDS", 0)
    monkeypatch.setattr(hdf5_probe, "_check", lambda _: endless())
    with pytest.raises(hdf5_probe.InputError, match="loops forever"):
        hdf5_probe.probe_structure(str(file))


def endless() -> None:
    while True:
        pass


def test_a_file_system_without_links_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    source = tmp_path / "a"
    source.write_text("a")
    assert link_or_copy(source, tmp_path / "linked") == ""
    monkeypatch.delattr(operating_system.os, "link")
    assert link_or_copy(source, tmp_path / "b") == "this system has no hard links"
    assert (tmp_path / "b").read_text() == "a"
    assert source.stat().st_nlink == 2


def test_jobs_run_in_new_processes_where_sockets_tell_no_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(fork_client.socket, "SO_PEERCRED")
    with pytest.raises(OSError, match="does not tell who"):
        fork_client.connect("1", str(ROOT / "scripts"))
