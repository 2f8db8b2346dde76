"""What a step asks of a machine, from the sizes of the plates: memory, time, threads, disk.

Nothing here opens a plate: a file's size is asked for, or the few bytes of metadata in which a Zarr
store says its shape. Estimates err upwards, and a job that needs more all the same is tried again
with twice, then three times as much.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.compute.block_sizes import block_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scatlas.workflow.config.plate_sheet import Plate

# Tahoe-100M's plates, in gzip: denser files than most, so others are taken for larger than they
# are. An address, and a folder that is no Zarr store, say nothing of their size.
VALUES_PER_CELL = 1451
BYTES_PER_CELL = 3000
UNKNOWN_BYTES = 10e9

# Memory: Python with its libraries and compiled kernels, and the two Snakemakes that a job of a
# cluster has around it; four times the blocks in flight (raw, normalised, encoded, partial
# results); twice what was seen of the tables with a row a cell.
BASE_MB = 900
TABLE_MB_PER_CELL = 3e-4
# On a GPU: CUDA's libraries, its context, pinned memory, and larger blocks (docs/memory.md).
GPU_MB = 3000

# Time: seconds on one core as measured (docs/performance.md), of a stored value or of a cell, and
# how much slower a disk or a core may be before the limit ends a job.
SECONDS_PER_VALUE = {"load": 20e-9, "hvg": 4e-9, "select_genes": 14e-9}
SECONDS_PER_CELL = {"tables": 0.7e-6, "concat_on_disk": 2e-6, "atlas": 1e-6, "doublets": 0.5e-3}
SECONDS_PER_COMPONENT = 20e-9  # of a cell in the projection
SECONDS_PER_GENE_CUBED = 1e-9  # eigenvectors
SECONDS_PER_MIXED = 2e-6  # of a cell's component, for the few rounds that Harmony takes
SLACK = 20
START_MINUTES = 10

# Disk: bytes of a count in counts.zarr, of a value of the consensus genes (float32 and its index),
# and the share of a cell's values that those genes have.
COUNT_BYTES, SELECTED_BYTES, SELECTED_SHARE = 1.9, 5, 0.11


@dataclass(frozen=True)
class Size:
    """Cells and stored values of a plate, or of several."""

    cells: float
    values: float


@dataclass(frozen=True)
class JobRequest:
    """What one job asks for; memory and disk in MB, time in minutes."""

    rule: str
    threads: int
    mem_mb: int
    runtime: int
    gpu: int = 0
    disk_mb: int = 0


def plate_size(plate: Plate) -> Size:
    """Size of a plate: as the sheet says, else of a Zarr store its shape, else by its bytes.

    ``n_cells`` of the plate sheet is believed, and files are taken to hold cells like Tahoe's.
    """
    path = Path(plate.path)
    shape = None if plate.is_remote else _zarr_shape(path)
    if shape:
        return Size(plate.n_cells or shape.cells, shape.values)
    n_bytes = path.stat().st_size if not plate.is_remote and path.is_file() else UNKNOWN_BYTES
    cells = plate.n_cells or n_bytes / BYTES_PER_CELL
    return Size(cells, cells * VALUES_PER_CELL)


def _zarr_shape(store: Path) -> Size | None:
    """Shape of X as the store's metadata say it; None where they do not."""
    dense, values, offsets = (_shape(store / name) for name in ("X", "X/data", "X/indptr"))
    if values and offsets:
        return Size(offsets[0] - 1, values[0])
    return Size(dense[0], dense[0] * dense[1]) if dense and len(dense) == 2 else None


def _shape(array: Path) -> list[int] | None:
    for name in ("zarr.json", ".zarray"):
        try:
            return json.loads((array / name).read_text(encoding="utf-8")).get("shape")
        except (OSError, ValueError, AttributeError):
            continue  # not there or damaged: `load` refuses a damaged store with its own sentence
    return None


def total(sizes: Iterable[Size]) -> Size:
    """Size of several plates together."""
    sizes = list(sizes)
    return Size(sum(size.cells for size in sizes), sum(size.values for size in sizes))


def block_threads(budget: int, values: float | None = None, *, gpu: bool = False) -> int:
    """Threads that a pass over blocks puts to use.

    Parameters
    ----------
    budget
        ``compute.block_budget`` in bytes. One block of it waits for its consumer.
    values
        Stored values to pass over; a plate of few blocks has work for few threads.
    gpu
        Whether a GPU computes: then threads read, and eight keep it busy.
    """
    block = block_bytes(budget)
    fit = budget // block - 1
    wanted = 8 if gpu else max(4, fit if fit > 7 else 0)
    blocks = wanted if values is None else int(8 * values / block) + 1
    return int(min(wanted, max(blocks, 2)))


def memory_mb(cells: float, budget: int, *, gram_mb: float = 0, gpus: int = 0) -> int:
    """MB of a step that holds blocks in flight, tables of ``cells`` and Gram matrices."""
    mb = BASE_MB + 4 * budget / 1e6 + TABLE_MB_PER_CELL * cells + gram_mb + GPU_MB * gpus
    return int(mb)


def minutes(seconds: float, threads: int = 1) -> int:
    """Minutes to ask for where a step was seen to take so many seconds of one core."""
    return int(START_MINUTES + SLACK * seconds / 60 / threads)


def plan(asks: Iterable[JobRequest]) -> str:
    """Table of what jobs ask for, a row a rule in the order of their first job."""
    rules: dict[str, list[JobRequest]] = defaultdict(list)
    for ask in asks:
        rules[ask.rule].append(ask)
    every = [ask for jobs in rules.values() for ask in jobs]
    rows = [["rule", "jobs", "threads", "GPUs", "GB each", "hours", "GPU hours", "disk GB"]]
    rows += [_row(rule, jobs) for rule, jobs in rules.items()]
    rows.append(_row("all", every))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(
        [
            "Plan: what the jobs ask for at most. Threads, GPUs and GB are of the largest job,",
            "hours and disk of all jobs together. Most jobs take a tenth of their time.",
            *lines,
        ]
    )


def _row(name: str, jobs: list[JobRequest]) -> list[str]:
    hours = sum(job.runtime for job in jobs) / 60
    gpu_hours = sum(job.runtime * job.gpu for job in jobs) / 60
    return [
        name,
        str(len(jobs)),
        str(max((job.threads for job in jobs), default=0)),
        str(max((job.gpu for job in jobs), default=0)),
        f"{max((job.mem_mb for job in jobs), default=0) / 1e3:.1f}",
        f"{hours:.1f}",
        f"{gpu_hours:.1f}",
        f"{sum(job.disk_mb for job in jobs) / 1e3:.1f}",
    ]
