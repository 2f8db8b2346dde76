"""Compiled kernels stay on disk, and many processes may compile them at once."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import scatlas
from scatlas.kernels.build import numba_cache

pytestmark = pytest.mark.slow

PACKAGE = Path(scatlas.__file__).parent
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"]
KERNEL = """
import numpy as np
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.other import offset

@njit(nogil=True, cache=True)
def total(x):
    s = 0.0
    for v in x:
        s += v
    return s + offset()
"""
OTHER = """
from scatlas.kernels.build.numba_cache import njit

@njit(cache=True)
def offset():
    return 0.0
"""
# Prints, for each dtype named, the sum of 1 .. 4 and whether the code came from the cache.
USE = """
import json, sys
import numpy as np
from scatlas.kernels.sums import total

found = {}
for name in sys.argv[1:]:
    before = sum(total.stats.cache_hits.values())
    value = total(np.arange(1, 5).astype(name))
    found[name] = [value, sum(total.stats.cache_hits.values()) > before]
print(json.dumps(found))
"""
# Forks a process for each dtype; all compile at the same moment.
AT_ONCE = """
import os, sys, time
import numpy as np
from scatlas.kernels.sums import total

start = time.time() + 0.5
children = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        x = np.arange(1, 5).astype(name)
        while time.time() < start:
            pass
        os._exit(total(x) != 10)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of our cache and one kernel that calls another file's."""
    kernels = tmp_path / "package" / "scatlas" / "kernels"
    (kernels / "build").mkdir(parents=True)
    (kernels / "counts").mkdir()
    for folder in (kernels.parent, kernels, kernels / "build", kernels / "counts"):
        (folder / "__init__.py").write_text("")
    shutil.copy(numba_cache.__file__, kernels / "build")
    (kernels / "sums.py").write_text(KERNEL)
    (kernels / "counts" / "other.py").write_text(OTHER)
    return kernels


@pytest.fixture
def run(package: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run a program with that package; the user's cache folder is an empty one."""

    def run(program: str, *args: str, **env: str) -> subprocess.CompletedProcess:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "COV"))}
        clean |= {
            "PYTHONPATH": str(package.parents[1]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(tmp_path / "user"),
        }
        command = [sys.executable, "-c", program, *args]
        return subprocess.run(command, env=clean | env, capture_output=True, text=True, check=False)

    return run


def used(done: subprocess.CompletedProcess) -> dict[str, list]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compiled(*dtypes: str, value: float = 10.0) -> dict[str, list]:
    return {name: [value, False] for name in dtypes}


def loaded(*dtypes: str, value: float = 10.0) -> dict[str, list]:
    return {name: [value, True] for name in dtypes}


def test_processes_that_compile_at_once_leave_one_whole_cache(run, package, tmp_path):
    folder = tmp_path / "cache"
    done = run(AT_ONCE, *DTYPES, NUMBA_CACHE_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    # Another process, later: nothing is compiled, and each type has its own code.
    assert used(run(USE, *DTYPES, NUMBA_CACHE_DIR=str(folder))) == loaded(*DTYPES)
    # One file for each signature, none half written, and no index that two could write.
    files = [path.name for path in folder.rglob("*") if path.is_file()]
    assert sum(name.startswith("sums.total") for name in files) == len(DTYPES)
    assert all(name.endswith(".nbc") for name in files)
    assert not (package / "__pycache__").exists()


@pytest.mark.weekly
def test_damaged_files_are_compiled_anew_and_replaced(run, package):
    names = ["int32", "float32", "float64", "int8"]
    assert used(run(USE, *names)) == compiled(*names)
    files = sorted((package / "__pycache__").glob("sums.total*.nbc"))
    assert len(files) == 4
    whole = [path.read_bytes() for path in files]
    files[0].write_bytes(whole[0][:1000])
    files[1].write_bytes(b"")
    files[2].write_bytes(whole[2][:500] + bytes([whole[2][500] ^ 1]) + whole[2][501:])
    # As Numba's own numbered files may end up: another signature's code.
    files[3].write_bytes(whole[0])
    assert used(run(USE, *names)) == compiled(*names)
    assert used(run(USE, *names)) == loaded(*names)


def test_a_change_in_a_file_that_the_kernel_calls_is_seen(run, package):
    assert used(run(USE, "int32")) == compiled("int32")
    (package / "counts" / "other.py").write_text(OTHER.replace("0.0", "100.0"))
    assert used(run(USE, "int32")) == compiled("int32", value=110.0)
    assert used(run(USE, "int32")) == loaded("int32", value=110.0)


# Numba's compiler needs half a second to load, and all its functions of arrays.
COMPILER = "\nprint('numba.np.linalg' in sys.modules, file=sys.stderr)"


def test_code_is_loaded_without_the_compiler_unless_an_address_is_missing(run):
    assert used(done := run(USE + COMPILER, "int32")) == compiled("int32")
    assert done.stderr == "True\n"
    assert used(done := run(USE + COMPILER, "int32")) == loaded("int32")
    assert done.stderr == "False\n"
    # As if a name that the code takes from outside were one that Numba has not told LLVM yet.
    unknown = """
import scatlas.kernels.build.numba_cache
scatlas.kernels.build.numba_cache._has_address = lambda name: False
"""
    assert used(done := run(unknown + USE + COMPILER, "int32")) == loaded("int32")
    assert done.stderr == "True\n"
    # And it compiles what is not there yet, for the same function.
    assert used(done := run(USE + COMPILER, "int32", "int8")) == loaded("int32") | compiled("int8")
    assert done.stderr == "True\n"


@pytest.mark.weekly
def test_other_processors_share_the_folder(run):
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert used(run(USE, "int32")) == compiled("int32")
    assert used(run(USE, "int32", **other)) == compiled("int32")
    assert used(run(USE, "int32")) == loaded("int32")
    assert used(run(USE, "int32", **other)) == loaded("int32")


@pytest.mark.weekly
def test_where_the_package_cannot_be_written_the_users_folder_serves(run, package, tmp_path):
    # A file where the folder would be: root, whom the tests may run as, writes anywhere else.
    (package / "__pycache__").write_text("")
    assert used(run(USE, "int32")) == compiled("int32")
    assert used(run(USE, "int32")) == loaded("int32")
    assert list((tmp_path / "user" / "numba").rglob("sums.total*.nbc"))
    # And where nothing can be written, each process compiles and says so.
    shutil.rmtree(tmp_path / "user")
    (tmp_path / "user").write_text("")
    for _ in range(2):
        done = run(USE, "int32")
        assert used(done) == compiled("int32")
        assert done.stderr.count("every process compiles its own (set NUMBA_CACHE_DIR") == 1


def test_a_full_disk_does_not_end_the_job(tmp_path, monkeypatch, caplog):
    numba_cache._warn_once.cache_clear()
    files = numba_cache._Files(str(tmp_path), "f", "stamp")
    files.save("key", 3)
    assert files.load("key") == 3

    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_open_for_write", full)
    files.save("other", 4)
    files.save("more", 4)
    assert files.load("other") is None
    assert caplog.text.count("No space left on device") == 1


def test_without_the_compiler_kernels_are_plain_python(run):
    program = "from scatlas.kernels.sums import total\nprint(total([1, 2, 3, 4]))"
    assert run(program, NUMBA_DISABLE_JIT="1").stdout == "10.0\n"


def test_kernels_are_cached_here_and_let_other_threads_run():
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
                wrong = {alias.name for alias in node.names} & {"jit", "njit", "vectorize"}
                faults += [f"{path.name}: {name} of Numba's own" for name in sorted(wrong)]
            if isinstance(node, ast.FunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                faults += [
                    f"{path.name}: {node.name} is {text}"
                    for text in decorators
                    if "njit" in text and "nogil=True, cache=True" not in text
                ]
    assert faults == []


def test_a_cached_kernel_gives_the_same_numbers(run, tmp_path):
    """Two of the package's own."""
    program = """
import sys
import numpy as np
from scatlas.kernels.graphs import umap_cpu

d = np.sort(np.random.default_rng(0).random((50, 9)), axis=1)
weights = umap_cpu.memberships(d)
counts = [f.stats for f in (umap_cpu._memberships, umap_cpu._sigma)]
print(weights.tobytes().hex())
print(sum(sum(s.cache_misses.values()) for s in counts), file=sys.stderr)
"""
    here = {"PYTHONPATH": str(PACKAGE.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first, second = run(program, **here), run(program, **here)
    assert (first.stderr, second.stderr) == ("2\n", "0\n")
    assert np.frombuffer(bytes.fromhex(first.stdout), np.float32).size == 450
    assert first.stdout == second.stdout
