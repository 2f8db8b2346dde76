"""An unfiltered matrix of Cell Ranger: 6.8 million barcodes, most of them without a cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

# All barcodes of the chemistry "Single Cell 3' v3".
N_BARCODES, N_GENES, N_CELLS, GENES_PER_CELL = 6_794_880, 1_200, 500, 200
# Offsets, metrics and hashes of names take some 95 bytes per barcode; as Python strings the names
# alone would take 75 more, and as objects of pandas 150.
MAX_BYTES_PER_BARCODE = 130

STEP = """
import sys
from pathlib import Path
from scatlas._util.operating_system import peak_memory
from scatlas.io import load_plate
from scatlas.workflow.command_line.plate_facts import read_facts

path, small = Path(sys.argv[1]), Path(sys.argv[2])
load_plate(small, path.with_name("small.zarr"), plate="small")  # imports, kernels
read_facts("small", str(small))
before = peak_memory()
if sys.argv[3] == "load":
    notices = load_plate(path, path.with_name("raw.zarr"), plate="raw")["notices"]
else:
    notices = read_facts("raw", str(path))[0].notices
print(peak_memory() - before, *notices, sep="\\n")
"""


def write(path: Path, n_barcodes: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.zeros(n_barcodes, np.int64)
    ambient = rng.choice(n_barcodes, n_barcodes // 20, replace=False)
    lengths[ambient] = 1
    lengths[ambient[:N_CELLS]] = GENES_PER_CELL
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.zeros(indptr[-1], np.int64)
    for cell in np.flatnonzero(lengths > 1):
        genes = np.sort(rng.choice(N_GENES, GENES_PER_CELL, replace=False))
        indices[indptr[cell] : indptr[cell + 1]] = genes
    # The barcode of a number: its digits to the base 4.
    number, letters = np.arange(n_barcodes, dtype=np.uint32), np.frombuffer(b"ACGT", np.uint8)
    text = np.empty((n_barcodes, 18), np.uint8)
    for place in range(16):
        text[:, 15 - place] = letters[number >> np.uint32(2 * place) & np.uint32(3)]
    text[:, 16:] = np.frombuffer(b"-1", np.uint8)
    with h5py.File(path, "w") as file:
        matrix = file.create_group("matrix")
        arrays = {
            "barcodes": text.view("S18").ravel(),
            "data": np.ones(indices.size, np.int32),
            "indices": indices,
            "indptr": indptr,
        }
        for name, values in arrays.items():
            matrix.create_dataset(
                name, data=values, chunks=True, compression="gzip", compression_opts=1
            )
        matrix["shape"] = np.array([N_GENES, n_barcodes], np.int32)
        names = [f"MT-{i}" if i < 10 else f"G{i}" for i in range(N_GENES)]
        lists = {"id": names, "name": names, "feature_type": ["Gene Expression"] * N_GENES}
        for name, values in lists.items():
            matrix[f"features/{name}"] = np.array(values, "S")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("raw")
    for name, n_barcodes in (("raw_feature_bc_matrix.h5", N_BARCODES), ("small.h5", 20_000)):
        write(folder / name, n_barcodes)
    return folder / "raw_feature_bc_matrix.h5", folder / "small.h5"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("load", "barcodes have fewer than 10 genes, as in an unfiltered matrix: set qc.min_genes"),
        ("init", "of the barcodes have fewer than 10 genes: this matrix is not filtered"),
    ],
)
def test_it_is_read_in_bounded_memory(files: tuple[Path, Path], step: str, said: str):
    done = subprocess.run(
        [sys.executable, "-c", STEP, *files, step], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    peak, *notices = done.stdout.splitlines()
    assert any(said in notice for notice in notices), notices
    assert int(peak) < MAX_BYTES_PER_BARCODE * N_BARCODES, f"{int(peak) / N_BARCODES:.0f} per cell"
