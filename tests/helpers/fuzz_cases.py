"""Outcome of one damaged file: an error in one sentence, correct data, or a defect."""

from __future__ import annotations

import shutil
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np
import scipy.sparse as sp
import zarr
from anndata.io import read_elem

import scatlas as sa
from scatlas.errors import ScatlasError
from scatlas.io.products.load_plate import load_plate
from tests.helpers.fuzz import BASES, N_CELLS, N_GENES, Base, Damage, counts, damage
from tests.helpers.layouts import frames, read_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

# Five blocks of the plate, each with a few chunks.
BUDGET = 8 * 8 * 10_638 // 5

# Outcomes that are no defects: "wrong" values without a checksum over the damage, or values that
# differ from run to run (libraries leave memory uninitialised); "slow" exceeded the time limit
# once, but not in a second attempt.
FINE = ("error", "correct", "wrong", "slow")
# Outcomes that are defects. "silent": wrong values although a checksum covers all damage; "unlike":
# wrong values although the library refuses the file or reads the right values; "foreign": an
# exception of another package; "message": an error that is not one sentence with the path;
# "leftover": an error with remaining files; "memory": far more than needed; "crash", "hang".
DEFECTS = ("silent", "unlike", "foreign", "message", "leftover", "memory", "crash", "hang")
MOST_MEMORY = 300_000_000
# libhdf5's error for text with a wrong position. libhdf5 first allocates the declared size of the
# text, up to 4 GB; scatlas cannot prevent this for attributes.
_TEXT = "past end of allocation"


class Outcome(NamedTuple):
    """Outcome of one operation on one case, with a traceback or other details."""

    kind: str
    detail: str = ""


@dataclass
class Result:
    """One case: its damage, and the outcome of each operation."""

    seed: int
    base: str
    what: str
    outcomes: dict[str, Outcome]

    @property
    def defects(self) -> dict[str, Outcome]:
        return {op: out for op, out in self.outcomes.items() if out.kind in DEFECTS}


def base_of(seed: int) -> str:
    return list(BASES)[seed % len(BASES)]


class Cases:
    """Runs cases in a folder, one after another."""

    def __init__(self, folder: Path, bases: dict[str, Base]) -> None:
        self.folder = folder
        self.bases = bases
        self.stores: dict[str, Path] = {}
        self.x = counts()
        self.obs, self.var = frames(N_CELLS, N_GENES)

    def run(self, seed: int, tell: Callable[[str], None] = lambda _: None) -> Result:
        """Damage, read, judge. Calls ``tell`` with the name of each operation at its start."""
        name = base_of(seed)
        return self.judge(seed, name, damage(self.bases[name], seed), tell)

    def judge(
        self, seed: int, name: str, done: Damage, tell: Callable[[str], None] = lambda _: None
    ) -> Result:
        """Read a base with this damage in both ways and return the outcomes."""
        path = self._place(seed, name, done)
        result = Result(seed, name, done.what, {})
        for op in ("load", "lazy"):
            tell(op)
            before = _memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")
            outcome = self._attempt(op, path)
            tell(f"library after {op}")
            if outcome.kind == "unlike" and self._attempt(op, path) != outcome:
                outcome = Outcome("wrong", "and not the same twice")
            if outcome.kind == "wrong" and done.guarded:
                outcome = Outcome(
                    "silent", f"{outcome.detail}, though a checksum covers the damage"
                )
            used = _memory("VmHWM") - before
            if used > MOST_MEMORY and not (outcome.kind == "error" and _TEXT in outcome.detail):
                outcome = Outcome("memory", f"{used / 1e6:.0f} MB; then {outcome}")
            result.outcomes[op] = outcome
        self._restore(path, name, done)
        return result

    # A new name per case, so caches by path are not used.
    def _place(self, seed: int, name: str, done: Damage) -> Path:
        base = self.bases[name]
        path = self.folder / f"{name}-{seed}{base.path.suffix}"
        if not done.file and "" in base.files:
            path.write_bytes(done.content)
            return path
        if name not in self.stores:
            store = self.folder / name
            for file, content in base.files.items():
                (store / file).parent.mkdir(parents=True, exist_ok=True)
                (store / file).write_bytes(content)
            self.stores[name] = store
        self.stores.pop(name).rename(path)
        (path / done.file).write_bytes(done.content)
        return path

    def _restore(self, path: Path, name: str, done: Damage) -> None:
        if path.is_file():
            path.unlink()
            return
        (path / done.file).write_bytes(self.bases[name].files[done.file])
        self.stores[name] = path

    def _attempt(self, op: str, path: Path) -> Outcome:
        out = self.folder / "out" / "counts.zarr"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._load(path, out) if op == "load" else self._lazy(path)
        except ScatlasError as error:
            message = str(error)
            if str(path) not in message or not message.isprintable() or len(message) > 1000:
                return Outcome("message", repr(message))
            if out.parent.exists() and any(out.parent.iterdir()):
                return Outcome("leftover", f"{message}: {[*out.parent.iterdir()]}")
            return Outcome("error", message)
        except MemoryError:
            return Outcome("memory", traceback.format_exc())
        except Exception:  # noqa: BLE001  (this is what the fuzz looks for)
            return Outcome("foreign", traceback.format_exc())
        finally:
            shutil.rmtree(out.parent, ignore_errors=True)

    def _load(self, path: Path, out: Path) -> Outcome:
        facts = load_plate(path, out, plate="P1", block_budget=BUDGET)
        data, indices, indptr = read_reference(out)
        x = sp.csr_matrix((data, indices, indptr), (facts["n_cells"], facts["n_genes"]))
        if not _same(x, self.x):
            return self._compare(path, x)
        wanted = (self.x.nnz, int(self.x.data.sum()), int(self.x.data.max()))
        if (facts["n_values"], facts["total_counts"], facts["max_count"]) != wanted:
            return Outcome("unlike", f"the facts are wrong: {facts}")
        return self._compare_frames(path, *_tables(out))

    def _lazy(self, path: Path) -> Outcome:
        lazy = sa.read_lazy(path, block_budget=BUDGET)
        x = lazy.X.compute(scheduler="threads", num_workers=2)
        if not _same(x, self.x):
            return self._compare(path, x)
        return self._compare_frames(path, lazy.obs, lazy.var)

    def _compare(self, path: Path, x: sp.csr_matrix) -> Outcome:
        """X is wrong: does h5py or zarr read the same wrong values?"""
        try:
            data, indices, indptr = read_reference(path)
            stored = sp.csr_matrix((data, indices, indptr), x.shape)
            whole = stored.copy()
            whole.sort_indices()
            whole.eliminate_zeros()  # as load does
        except Exception:  # noqa: BLE001  (any refusal by the library)
            return Outcome("unlike", f"the library refuses the file: {traceback.format_exc()}")
        if _same(self.x, whole):
            return Outcome("unlike", "the library reads the right values")
        # Plugins of HDF5 leave memory uninitialised if a damaged chunk decodes to fewer bytes.
        same = _same(x, whole) or _same(x, stored)
        return Outcome("wrong", "X" if same else "X, and the library reads other wrong values")

    def _compare_frames(self, path: Path, obs: pd.DataFrame, var: pd.DataFrame) -> Outcome:
        """Like `_compare`, for cells and genes."""
        wanted = [_values(frame) for frame in (self.obs, self.var)]
        if [_values(obs, self.obs), _values(var, self.var)] == wanted:
            return Outcome("correct")
        try:
            stored = [_values(frame) for frame in _tables(path)]
        except Exception:  # noqa: BLE001  (any refusal by anndata)
            return Outcome("unlike", f"anndata refuses the tables: {traceback.format_exc()}")
        if stored == wanted:
            return Outcome("unlike", f"anndata reads the right tables, not {obs} {var}")
        return Outcome("wrong", "obs or var")


def _same(x: sp.csr_matrix, y: sp.csr_matrix) -> bool:
    # NaN equals NaN here; damage may give NaN.
    return x.shape == y.shape and all(
        np.array_equal(getattr(x, part), getattr(y, part), equal_nan=part == "data")
        for part in ("indptr", "indices", "data")
    )


def _tables(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``obs`` and ``var`` as anndata reads them."""
    if path.is_file():
        with h5py.File(path) as root:
            return read_elem(root["obs"]), read_elem(root["var"])
    root = zarr.open_group(path, mode="r")
    return read_elem(root["obs"]), read_elem(root["var"])


def _values(frame: pd.DataFrame, like: pd.DataFrame | None = None) -> dict[str, list[str]]:
    """Names and values as text, for the columns of ``like``, because dtypes may differ."""
    columns = frame.columns if like is None else [c for c in like.columns if c in frame.columns]
    return {
        "": [str(name) for name in frame.index],
        **{str(column): [str(value) for value in frame[column]] for column in columns},
    }


def _memory(field: str) -> int:
    """Resident bytes of the process: current (VmRSS) or peak (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024
