"""What the scripts share, and the hash of the code behind them."""

from __future__ import annotations

import argparse
import ast
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import dask
import pytest

import scatlas
from scatlas.compute import backend, threads
from scatlas.errors import DiskError, InputError
from scatlas.io.files.read_errors import reading
from scatlas.workflow import code_hash as module
from scatlas.workflow import script
from scatlas.workflow.code_hash import code_hash
from scatlas.workflow.report._tables import versions
from scatlas.workflow.script import recorded_run

SCRIPTS = Path(__file__).parents[3] / "scripts"


def options(folder: Path, *words: object, gpu: bool = False) -> argparse.Namespace:
    """Options of a step whose manifest is ``m.json`` in a folder."""
    return script.parser("doc", gpu=gpu).parse_args(
        ["--manifest", str(folder / "m.json"), *map(str, words)]
    )


def test_a_step_leaves_a_manifest_without_times_and_a_record_with_them(tmp_path: Path):
    def run(folder: Path) -> bytes:
        folder.mkdir()
        with recorded_run(options(folder), outputs=[folder / "out.txt"]) as facts:
            (folder / "out.txt").write_text("same")
            facts["n_cells"] = 3
        return (folder / "m.json").read_bytes()

    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    assert first == second
    manifest = json.loads(first)
    assert manifest["n_cells"] == 3
    assert set(manifest["outputs"]) == {"out.txt"}
    record = json.loads(script.run_record(tmp_path / "a/m.json").read_text())
    assert record["peak_memory_bytes"] > 1e7
    assert "anndata" in record["versions"]


def test_steps_run_from_a_checkout_without_snakemake(tmp_path: Path, monkeypatch):
    """As in a conda environment of a rule: neither scatlas nor Snakemake is installed there."""
    found = Distribution.from_name

    def from_name(name: str) -> Distribution:
        if name in {"scatlas", "snakemake"}:
            raise PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(Distribution, "from_name", from_name)
    with recorded_run(options(tmp_path), outputs=[]):
        pass
    record = json.loads(script.run_record(tmp_path / "m.json").read_text())
    assert record["versions"]["scatlas"] == scatlas.__version__
    assert versions().loc["scatlas", "version"] == scatlas.__version__


def test_threads_are_those_of_the_step_then_dasks_then_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)))
    assert threads.n_threads() == 5
    with dask.config.set(num_workers=2):
        assert threads.n_threads() == 2
        with threads.use_threads(3):
            assert threads.n_threads() == 3
            with threads.use_threads(99):
                assert threads.n_threads() == threads.BLOCKS_PER_BUDGET - 1
                assert threads.n_cores() == 99
            with threads.use_threads(99, block_budget=20 * threads.BLOCK_BYTES):
                assert threads.n_threads() == 19
            with threads.use_threads(99, block_budget=2000, largest_block=100):
                assert threads.n_threads() == 19
            with threads.use_threads(99, block_budget=1):
                assert threads.n_threads() == threads.BLOCKS_PER_BUDGET - 1
            with pytest.raises(ZeroDivisionError), threads.use_threads(1):
                raise ZeroDivisionError
            assert threads.n_threads() == 3
        assert threads.n_threads() == 2


@pytest.mark.parametrize(
    ("given", "n_threads", "in_flight"),
    [("auto", 2, 2), ("auto", 16, 16), ("auto", 64, 64), ("256MB", 64, 7), ("16MB", 64, 7)],
)
def test_all_threads_work_unless_a_budget_bounds_them(tmp_path, given, n_threads, in_flight):
    args = options(tmp_path, "--threads", n_threads, "--block-budget", given)
    with recorded_run(args, outputs=[]):
        assert threads.n_threads() == in_flight
        # The threads do not decide how data is divided.
        assert script.block_sizes(args) == {
            "block_budget": 16_000_000 if given == "16MB" else 256_000_000,
            "largest_block": 32_000_000,
        }


@pytest.mark.parametrize("gpu", [False, True])
def test_a_step_with_a_gpu_has_larger_blocks(tmp_path, monkeypatch, gpu):
    @contextmanager
    def use(*args, **options):
        monkeypatch.setattr(backend, "_current", "gpu" if gpu else "cpu")
        yield "gpu" if gpu else "cpu"

    monkeypatch.setattr(backend, "use_backend", use)
    monkeypatch.setattr(backend, "gpu_record", dict)
    args = options(tmp_path, "--threads", "99", "--backend", "auto", gpu=True)
    with recorded_run(args, outputs=[]):
        sizes, n_threads = script.block_sizes(args), threads.n_threads()
    of_gpu = {"block_budget": 16 * 128_000_000, "largest_block": 128_000_000}
    of_cpu = {"block_budget": 256_000_000, "largest_block": 32_000_000}
    assert sizes == (of_gpu if gpu else of_cpu)
    assert n_threads == (15 if gpu else 99)


def test_a_failed_step_leaves_no_manifest(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), recorded_run(options(tmp_path), outputs=[]):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.rglob("*")] == ["runs", "m.lock"]


def test_a_step_waits_for_a_process_that_was_left_behind(tmp_path: Path):
    """Killed alone, Snakemake leaves its jobs running; both would write the same files."""
    code = (
        "import sys, time; from scatlas.workflow import script\n"
        "args = script.parser('doc').parse_args(['--manifest', sys.argv[1]])\n"
        "with script.recorded_run(args, outputs=[]) as facts:\n"
        "    print('begun', flush=True); sys.stdin.readline(); facts['from'] = 'the first'\n"
    )
    manifest = tmp_path / "m.json"
    command = [sys.executable, "-c", code, str(manifest)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"begun\n"
        args = options(tmp_path)
        go_on = threading.Timer(0.5, first.stdin.close)
        go_on.start()
        with recorded_run(args, outputs=[]) as facts:
            assert json.loads(manifest.read_text())["from"] == "the first"
            facts["from"] = "the second"
    assert json.loads(manifest.read_text())["from"] == "the second"


def test_a_disk_too_full_for_the_sentence_says_it_each_time(tmp_path: Path, monkeypatch):
    """Without room for the file that remembers it, the step is tried again."""
    monkeypatch.setattr("sys.argv", ["full.py"])
    write_text = Path.write_text

    def full(path: Path, text: str, **options) -> int:
        write_text(path, "", **options)  # the file is made, and no byte gets in
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", full)
    for attempt in (1, 2, 3):
        args = options(tmp_path, "--attempt", attempt)
        with pytest.raises(DiskError, match="make room there"), recorded_run(args, outputs=[]):
            (tmp_path / "output").write_text("values")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "runs"]


def test_refused_input_is_not_read_again_by_the_next_attempt(tmp_path: Path):
    def attempt(number: int, sentence: str | None) -> str | None:
        """What a step says whose input is bad in this way."""
        try:
            with recorded_run(options(tmp_path, "--attempt", number), outputs=[]):
                if sentence:
                    raise InputError(sentence)
        except InputError as error:
            return str(error)
        return None

    assert attempt(1, "first") == "first"
    assert attempt(2, "not read") == "first"
    assert attempt(1, None) is None
    assert attempt(2, "second") == "second"


def test_bad_input_ends_a_script_with_one_sentence():
    def main() -> None:
        raise InputError("p.h5ad: no cell is left")

    with pytest.raises(SystemExit) as exit_:
        script.run_main(main)
    assert exit_.value.code == "error: p.h5ad: no cell is left"
    logging.captureWarnings(capture=False)


def test_the_text_of_a_script_is_part_of_its_code(tmp_path: Path):
    (tmp_path / "a.py").write_text("print(1)\n")
    before = code_hash(tmp_path / "a.py")
    (tmp_path / "a.py").write_text("print(2)\n")
    assert code_hash(tmp_path / "a.py") != before


def test_code_hashes_follow_the_imports(tmp_path: Path):
    """A kernel belongs to the steps that reach it; a figure to the report alone."""

    # Nothing is written in the real tree: the package is copied, and hashed there.
    root = tmp_path / "scatlas"
    shutil.copytree(module._PACKAGE, root, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PACKAGE", root)
        for name in ("_files", "_digest", "_imports", "_module_files", "_origins"):
            # The caches hold the real tree.
            patch.setattr(module, name, cache(getattr(module, name).__wrapped__))

        def hashes() -> dict[str, str]:
            module._files.cache_clear()
            module._digest.cache_clear()
            return {s.stem: code_hash(s) for s in SCRIPTS.glob("*.py")}

        before = hashes()

        def differing(name: str) -> set[str]:
            file = root / name
            file.write_text(file.read_text() + "\n# changed\n")
            after = hashes()
            found = {step for step, value in after.items() if value != before[step]}
            before.update(after)
            return found

        assert differing("kernels/linalg/gram_cpu.py") >= {"select_genes", "pca"}
        on_moments = {"doublets", "hvg"}
        assert differing("kernels/moments/count_moments_gpu.py") == on_moments
        assert differing("kernels/moments/moments.cu") == on_moments
        assert "hvg" in differing("kernels/moments/clipped_moments.cu")
        assert "qc_filter" in differing("io/files/anndata_file.py")
        assert "load" in differing("kernels/counts/check_cpu.py")
        assert differing("pl/__init__.py") == {"report", "map_report"}
        assert differing("matrix/components.py") == {"doublets", "pca", "reference"}
        assert differing("matrix/gram.py") >= {"doublets", "select_genes", "pca"}
        assert differing("tl/_umap.py") == {"integrate", "umap"}
        assert differing("datasets.py") == {"simulate"}
        assert differing("workflow/config/generate.py") == set()
        assert differing("workflow/explore/page/explore.css") == {"explore"}
        assert differing("workflow/report/page/report.css") == {"report", "map_report"}


def _parsed_imports(text: str) -> set[tuple[str, str]]:
    """Imports of the package that run, as Python's own parser finds them."""
    found = set()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "__name__ == '__main__'",
        ):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not followed"
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            if called == "kernels_for":
                operation = node.args[0].value
                found |= {(kernels.format(operation), "") for kernels in module._KERNEL_MODULES}
            elif called == "kernel":
                found.add(("kernel", node.args[0].value))
    return {names for names in found if names[0].split(".")[0] in ("scatlas", "kernel")}


PACKAGE = sorted(module._PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", [*SCRIPTS.glob("*.py"), *PACKAGE], ids=lambda path: path.stem)
def test_imports_are_those_that_python_finds(path: Path):
    text = path.read_text()
    executed = module._NOT_EXECUTED.sub("", text)
    found = {*module._import_statements(executed), *module._kernels(executed)}
    assert found == _parsed_imports(text)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Can't write data (errno = 28, error message = 'No space left on device')"),
        RuntimeError("the codec failed"),
    ],
    ids=["system", "HDF5", "wrapped"],
)
def test_a_full_disk_is_named_and_not_filled_again(tmp_path: Path, error: Exception):
    if isinstance(error, RuntimeError):
        error.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded", str(tmp_path / "x"))

    def attempt(number: int) -> str:
        args = options(tmp_path, "--attempt", number)
        with pytest.raises((DiskError, InputError)) as raised, recorded_run(args, outputs=[]):
            raise error if number == 1 else AssertionError("the work is not done twice")
        return str(raised.value)

    mounted = next(p for p in (tmp_path, *tmp_path.parents) if p.is_mount())
    sentence = attempt(1)
    assert sentence.startswith(f"no space left on the disk mounted at {mounted} (")
    assert ("quota" in sentence) == isinstance(error, RuntimeError)
    assert attempt(2) == sentence


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, os.strerror(errno.EIO), "results/.merged.zarr.partial/X/c/0"),
        OSError("Unable to open file (file write failed: error message = 'Input/output error')"),
        FileNotFoundError(errno.ENOENT, "No such file", "results/.merged.zarr.partial/obs/c"),
    ],
)
def test_a_disk_that_fails_is_told_in_one_sentence_and_tried_again(tmp_path: Path, error: OSError):
    for attempt in ("1", "2"):
        args = options(tmp_path, "--attempt", attempt)
        with pytest.raises(DiskError) as raised, recorded_run(args, outputs=[]):
            raise RuntimeError("whatever") from error
        assert "\n" not in str(raised.value)
        assert "give the same command again" in str(raised.value)


def test_a_disk_that_fails_to_read_keeps_its_sentence(tmp_path: Path):
    told = pytest.raises(DiskError, match="X cannot be read")
    with told, recorded_run(options(tmp_path), outputs=[]), reading("plate.h5ad", "X"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_any_other_error_of_a_step_stays_as_it_is(tmp_path: Path):
    refused = pytest.raises(OSError, match="Permission denied")
    with refused as raised, recorded_run(options(tmp_path), outputs=[]):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert not isinstance(raised.value, DiskError)
    assert [path.name for path in tmp_path.rglob("*")] == ["runs", "m.lock"]
