"""Memory, run time, threads and disk that the jobs request, estimated from the sizes of the plates.

The estimates open no plate: they use the size of a file, or the shape in the metadata of a Zarr
store. They err upwards; a job that needs more runs again with twice, then three times as much.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas._util.byte_sizes import parse_bytes
from scatlas.compute.memory import (
    block_bytes,
    gram_is_worth_storing,
    harmony_bytes,
    map_bytes,
    max_gram_bytes,
)
from scatlas.compute.threads import BLOCK_BYTES, DEFAULT_BUDGET
from scatlas.workflow.costs import (
    COSTS,
    GPU_COSTS,
    GPU_START_S,
    MARKERS_PLATE_S,
    NS_PER_COMPONENT,
    NS_PER_GENE_CUBED,
    NS_PER_MOMENT,
    PLATE_S,
    US_PER_HARMONY_COMPONENT,
    US_PER_PAGE_CELL,
    US_PER_SAMPLED_CELL,
    Cost,
)
from scatlas.workflow.job_environment import kept_cells
from scatlas.workflow.sample_size import IGRAPH_CELLS, SAMPLE_CELLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config

# Values and bytes per cell of Tahoe-100M's plates, in gzip: denser files than most, so the estimate
# for others is too large. UNKNOWN_BYTES: an address, or a folder that is not a Zarr store.
VALUES_PER_CELL = 1451
BYTES_PER_CELL = 3000
UNKNOWN_BYTES = 10e9

# MB of memory. BASE_MB: Python with its libraries and compiled kernels, and two Snakemake processes
# around each job of a cluster. TABLE_MB_PER_CELL: twice the measured size of tables with one row
# per cell. GPU_MB: CUDA's libraries, its context, pinned memory, larger blocks (docs/memory.md).
BASE_MB = 900
TABLE_MB_PER_CELL = 3e-4
GPU_MB = 3000
# The same on the GPU: at most 3.2 GB, in pca with 6 million cells, 2,304 genes and 300 components
# (bench/results/gpu-scale_out-2026-11-22.txt). GPU_POOL_SHARE: what a pool takes of its part.
GPU_DEVICE_MB, GPU_POOL_SHARE = 4000, 0.9
# Per cell on 30 components, with scores and simulated doublets; and neighbours of one part.
DOUBLETS_MB_PER_CELL, DOUBLETS_MB = 0.35e-3, 500
# Sums of 60,000 genes, 8 bytes each, with one group per 1,000 cells.
PSEUDOBULK_MB_PER_CELL = 0.5e-3
# Sums of 100 groups of 60,000 genes, with the sums of one plate, moments and scores: 5 arrays each.
MARKERS_MB = 100 * 60_000 * 20 * 8e-6
# Cells placed on a map at a time, with their neighbours; and per reference cell, beside its
# components, which k-means copies: lists, neighbours, labels.
PLACED_MB, REFERENCE_MB_PER_CELL = 300, 1e-3
# Bytes on a GPU per sampled cell and component, which the lists copy and may convert; and per
# sampled cell and neighbour: its number and distance, and two edges of the graph with what Leiden
# keeps of them. And MB of the cells that are mapped at a time.
GPU_COMPONENT_BYTES, GPU_NEIGHBOR_BYTES, GPU_MAP_MB = 12, 64, 200
# Of what the sample takes with its neighbours and clusters, as measured.
SAMPLE_MEMORY = 2
# Cells that are mapped at a time.
MAP_MB = 500
# explore.html: histograms of a column, with the sums of genes; per point its position and codes
# (bench/results/explore-2026-11-25.txt); and the position of each cell of the atlas.
PAGE_MB, PAGE_MB_PER_CELL, POSITION_MB_PER_CELL = 800, 0.5e-3, 4e-6
# The stratum of each cell of the atlas.
STRATUM_MB_PER_CELL = 4e-6
# The merged obs is written by column: an atlas needs a tenth of the memory of its plates' tables.
MERGED_OBS_SHARE = 0.1
# Four blocks' worth of memory per block in flight: raw, normalised, encoded, partial results.
BLOCK_COPIES = 4

# Time limits. SLACK: how much slower than measured (scatlas.workflow.costs) a disk or a core may be
# before the limit ends the job.
SLACK = 20
SUBSET_MINUTES, SUBSET_CELLS_PER_MINUTE = 15, 10_000  # neighbours, UMAP, figures
START_MINUTES = 10

# Bytes per count in counts.zarr, bytes per value of the consensus genes (float32 and its index),
# and the share of a cell's values that these genes have.
COUNT_BYTES, SELECTED_BYTES, SELECTED_SHARE = 1.9, 5, 0.11
# Bytes per cell of map.zarr: two coordinates, a cluster, two numbers.
MAP_BYTES = 18
# Bytes per value of the samples of one file until they are loaded: float32 and uint16 or int32.
SAMPLE_BYTES = 8
# Bytes per value of the blocks sorted by gene: float32 and uint32.
SORTED_BYTES = 8

# Threads of a job of a plate if there are several plates: four jobs fill 16 cores, two on a GPU and
# two that load plates where there is one. More threads per job would gain less than more jobs: a
# value costs load 29 ns of each of two threads and 52 ns of each of eight (scaling-2026-11-23).
THREADS_SIDE_BY_SIDE = 4
# At most this number, where they save a round of the jobs or occupy cores that would be idle.
MAX_THREADS_SIDE_BY_SIDE = 6
# Threads that keep a GPU busy which shares the cores with other GPUs or jobs.
GPU_THREADS = 8

# Values of a small plate: one or two seconds per step on one core. Its minutes per step are few,
# because the time of a cluster job is the sum of those of its steps.
SMALL_PLATE_VALUES = 1e8
SMALL_PLATE_MINUTES = 3
SMALL_ATLAS_VALUES = 1e9

# Rules whose threads do not share their work, as measured.
_SERIAL_RULES = {"concat_on_disk", "atlas", "base", "merge_pseudobulk", "publish", "subset"}
# Rules that hold neither blocks nor tables of a plate.
_SMALL_RULES = {"simulate", "consensus", "publish"}
_CLUSTER_RULES = {"hvg", "select_genes", "pca"}  # on all GPUs of compute.cluster
_ONE_GPU_RULES = {"neighbors", "umap", "leiden", "map", "integrate"}
# Rules that write stores. Snakemake guesses the disk of all others.
STORE_RULES = {"split", "load", "select_genes", "concat_on_disk", "pca", "harmony", "map"}
STORE_RULES |= {"map_plate", "extend", "by_gene"}


@dataclass(frozen=True)
class Size:
    """Cells and stored values of one plate or several."""

    cells: float
    values: float


@dataclass(frozen=True)
class JobRequest:
    """Resources that one job requests; memory and disk in MB, run time in minutes."""

    rule: str
    threads: int
    mem_mb: int
    runtime: int
    gpu: float = 0
    disk_mb: int = 0


class Estimates:
    """Resources that the jobs of a run request, by rule and plate, on their first attempt. Jobs
    divide a GPU into ``jobs_per_gpu`` parts. ``gpu_bytes`` None: the memory of the smallest GPU is
    not known, every job fits into one part. ``cores`` None: each job has its own cores.
    """

    def __init__(
        self,
        config: Config,
        plates: Sequence[Plate],
        *,
        jobs_per_gpu: int = 1,
        gpu_bytes: int | None = None,
        cores: int | None = None,
    ) -> None:
        self._config = config
        self._cores = cores
        self._jobs_per_gpu, self._gpu_bytes = jobs_per_gpu, gpu_bytes
        given = config.compute.block_budget
        self._budget = None if given == "auto" else parse_bytes(given)
        self._plates = {plate.plate: plate for plate in plates}
        self.plate = cache(self._plate_size)

    def _plate_size(self, name: str) -> Size:
        return plate_size(self._plates[name])

    @cached_property
    def atlas(self) -> Size:
        """Size of all plates together."""
        return total(self.plate(name) for name in self._plates)

    @cached_property
    def finished_atlas(self) -> Size:
        """Size of the atlas onto which new plates are mapped; zeros without one."""
        path = self._config.atlas
        shape = _zarr_shape(Path(path)) if path else None
        return shape or Size(0, 0)

    @cached_property
    def extended_atlas(self) -> Size:
        """Cells and selected values of that atlas with the new plates."""
        old = self.finished_atlas
        new = Size(self.atlas.cells, self.atlas.values * SELECTED_SHARE)
        return Size(old.cells + new.cells, old.values + new.values)

    @cached_property
    def reference_cells(self) -> float:
        """Cells of that atlas among which the nearest are found."""
        return min(self._config.new_plates.n_reference, self.finished_atlas.cells)

    @cached_property
    def subset_cells(self) -> float:
        config, cells = self._config, self.atlas.cells
        if config.map.method == "project" or config.subset.n_cells:
            return min(config.subset.n_cells or SAMPLE_CELLS, cells)
        # As many as map.memory allows: the sizes of the plates are estimates.
        most = parse_bytes(config.map.memory) / map_bytes(1, config.pca.n_comps)
        return min(max(SAMPLE_CELLS, most), cells)

    @property
    def _sample_mb(self) -> float:
        return SAMPLE_MEMORY * map_bytes(self.subset_cells, self._config.pca.n_comps) / 1e6

    @cached_property
    def gram_mb(self) -> float:
        """MB of one Gram matrix of the consensus genes."""
        return 8e-6 * self.max_consensus_genes**2

    @cached_property
    def max_consensus_genes(self) -> float:
        """Largest number of consensus genes to expect. Each needs the votes of ``min_plates``
        plates; plates that are alike agree on at most twice ``hvg.n_top_genes``.
        """
        hvg, consensus, n_plates = self._config.hvg, self._config.consensus, len(self._plates)
        agreed = hvg.n_top_genes * n_plates / consensus.min_plates_of(n_plates)
        return min(agreed, consensus.n_top_genes_of(hvg) or 2 * hvg.n_top_genes)

    @cached_property
    def _cluster_gpus(self) -> int:
        """GPUs per job of the rules that may use a Dask cluster. With ``backend: auto`` jobs
        request GPUs only if their Python has CuPy.
        """
        backend, cluster = self._config.backend, self._config.compute.cluster
        if backend == "cpu" or (backend == "auto" and find_spec("cupy") is None):
            return 0
        if cluster is None:
            return 1
        return 0 if cluster.kind == "local-cpu" else cluster.devices or 1

    def is_small(self, plate: str) -> bool:
        """Whether the steps of a plate take about as long as the start of a process, or of CUDA."""
        return self.plate(plate).values <= SMALL_PLATE_VALUES

    @property
    def is_small_atlas(self) -> bool:
        """Whether the steps of the merged plates take seconds each."""
        of_finished = self.finished_atlas.values / SELECTED_SHARE
        return self.atlas.values + of_finished <= SMALL_ATLAS_VALUES

    def prefers_cpu(self, plate: str) -> bool:
        """Whether ``backend: auto`` computes a plate on the CPU: its size alone decides."""
        config = self._config
        return config.backend == "auto" and not config.compute.cluster and self.is_small(plate)

    def gpus(self, rule: str, plate: str | None = None) -> int:
        if plate and self.prefers_cpu(plate):
            return 0
        if rule in _CLUSTER_RULES:
            return self._cluster_gpus
        if rule == "leiden" and self.subset_cells <= IGRAPH_CELLS:
            return 0
        return min(self._cluster_gpus, 1) if rule in _ONE_GPU_RULES else 0

    def gpu_parts(
        self, rule: str, plate: str | None = None, threads: int = 1, attempt: int = 1
    ) -> int:
        """Parts of a GPU that a job locks, for the memory that it needs; all parts of several GPUs.
        A job that failed gets more, because it may have needed more memory.
        """
        n_gpus, parts = self.gpus(rule, plate), self._jobs_per_gpu
        if n_gpus != 1 or self._config.compute.cluster:
            return n_gpus * parts
        needed = 1
        if self._gpu_bytes:
            needed_mb = GPU_DEVICE_MB + self._gpu_mb(rule, plate, threads)
            needed = ceil(1e6 * needed_mb * parts / (GPU_POOL_SHARE * self._gpu_bytes))
        return min(attempt * needed, parts)

    def _gpu_mb(self, rule: str, plate: str | None, threads: int) -> float:
        """MB of a job's matrices on a GPU."""
        if rule not in ("neighbors", "umap", "leiden", "map"):
            return self._extra_mb(rule, plate, threads)
        config = self._config
        n_pcs = config.neighbors.n_pcs or config.pca.n_comps
        per_cell = GPU_COMPONENT_BYTES * n_pcs + GPU_NEIGHBOR_BYTES * config.neighbors.n_neighbors
        return 1e-6 * per_cell * self.subset_cells + GPU_MAP_MB * (rule == "map")

    def block_budget(self, threads: int) -> int:
        """Bytes of the blocks in flight of a job."""
        return self._budget or max(DEFAULT_BUDGET, BLOCK_BYTES * (threads + 1))

    def memory(self, rule: str, plate: str | None = None, threads: int = 1) -> int:
        """MB of memory of a job, which grows with its threads."""
        budget = 0 if rule in _SMALL_RULES else self.block_budget(threads)
        match rule:
            case "cell_groups" | "concat_on_disk" | "pca" | "atlas" | "base" | "map_report":
                cells = MERGED_OBS_SHARE * self.atlas.cells
            case "split":
                cells = self.atlas.cells
            case "reference":
                cells = MERGED_OBS_SHARE * self.finished_atlas.cells
            case "extend":
                cells = MERGED_OBS_SHARE * self.extended_atlas.cells
            case _:
                cells = self.plate(plate).cells if plate else 0
        extra_mb = self._extra_mb(rule, plate, threads)
        return memory_mb(cells, budget, extra_mb=extra_mb, gpus=self.gpus(rule, plate))

    def _extra_mb(self, rule: str, plate: str | None, threads: int) -> float:
        """MB of a job for matrices beside its blocks and tables."""
        cells = self.plate(plate).cells if plate else 0
        extra_mb = 0.0
        match rule:
            case "doublets":
                gram_mb = 8e-6 * self._config.hvg.n_top_genes**2
                extra_mb = DOUBLETS_MB_PER_CELL * cells + 4 * gram_mb + DOUBLETS_MB
            case "select_genes":
                # One Gram matrix per block in flight, and one to add another to, if the plate has
                # the values to store it (a triangle); at most twice as many as estimated.
                largest_mb = 2 * max_gram_bytes(2 * self.plate(plate).values) / 1e6 if plate else 0
                extra_mb = (threads + 3) * min(self.gram_mb, largest_mb)
            case "pseudobulk":
                extra_mb = PSEUDOBULK_MB_PER_CELL * cells
            case "group_sums" | "markers":
                extra_mb = MARKERS_MB
                if rule == "markers" and self._config.markers.wilcoxon:
                    extra_mb += self._sample_mb
            case "concat_on_disk" | "pca" | "atlas" | "base":
                extra_mb = 4 * self.gram_mb
            case "reference" | "map_report":
                extra_mb = self._reference_mb
            case "map_plate":
                extra_mb = self._reference_mb + PLACED_MB
            case "harmony":
                extra_mb = self._harmony_mb(self.atlas.cells)
            case "integrate":
                extra_mb = self._sample_mb
                if not self._config.harmony:  # else the rule harmony has corrected all cells
                    extra_mb += self._harmony_mb(self.subset_cells)
            case "subset" | "neighbors" | "umap" | "leiden" | "embedding" | "report":
                extra_mb = self._sample_mb
                if rule == "subset" and self._config.subset.by:
                    extra_mb += STRATUM_MB_PER_CELL * self.atlas.cells
            case "map":
                extra_mb = self._sample_mb + MAP_MB
            case "explore":
                extra_mb = PAGE_MB + PAGE_MB_PER_CELL * self.subset_cells
                extra_mb += POSITION_MB_PER_CELL * self.atlas.cells
        return extra_mb

    def runtime(self, rule: str, plate: str | None = None, threads: int = 1) -> int:
        """Minutes of a job."""
        if plate and self.is_small(plate):
            return SMALL_PLATE_MINUTES
        match rule:
            case "map_report":
                cells = self.reference_cells + self.atlas.cells
                return int(SUBSET_MINUTES + cells / SUBSET_CELLS_PER_MINUTE / 10)
            case "subset" | "neighbors" | "umap" | "leiden" | "embedding" | "report":
                return int(SUBSET_MINUTES + self.subset_cells / SUBSET_CELLS_PER_MINUTE)
            case "integrate":
                seconds = self._harmony_seconds(self.subset_cells)
                harmony = 0 if self._config.harmony else minutes(seconds, threads)
                return self.runtime("umap") + harmony
            case "markers" if self._config.markers.wilcoxon:
                return minutes(self.core_seconds(rule)) + self.runtime("umap")
        return minutes(self.core_seconds(rule, plate), _workers(rule, threads))

    def seconds(
        self, rule: str, plate: str | None = None, threads: int = 1, *, loads: bool = False
    ) -> float:
        """Seconds that a job is expected to take, without the time that it waits. A run that
        ``loads`` the plate takes the moments for ``hvg`` meanwhile if the bounds tell for which
        cells.
        """
        takes_moments = loads and rule in ("load", "hvg") and "bounds" in kept_cells(self._config)
        # With moments of `load`, hvg starts no GPU.
        on_gpu = self.gpus(rule, plate) > 0 and not (takes_moments and rule == "hvg")
        fixed = self._cost(rule, plate).fixed_s + GPU_START_S * on_gpu
        if rule in ("consensus", "report"):
            fixed += PLATE_S * len(self._plates)
        seconds = self.core_seconds(rule, plate)
        if takes_moments:
            moments = 1e-9 * NS_PER_MOMENT * self.plate(plate).values
            seconds = seconds + moments if rule == "load" else 0
        values = self.plate(plate).values if plate else self.atlas.values
        least = 1e-9 * self._cost(rule, plate).least_ns_per_value * values
        return fixed + max(seconds / _workers(rule, threads), least)

    def core_seconds(self, rule: str, plate: str | None = None) -> float:
        """Seconds that a job is expected to take on one core, beside its fixed seconds."""
        match rule:
            case "neighbors" | "umap" | "leiden" | "embedding" | "integrate":
                size = Size(self.subset_cells, 0)
            case "reference":
                size = Size(self.reference_cells, self.finished_atlas.values)
            case "map_report":
                size = Size(self.reference_cells + self.atlas.cells, 0)
            case "extend":
                size = self.extended_atlas
            case _:
                size = self.plate(plate) if plate else self.atlas
        cost = self._cost(rule, plate)
        seconds = 1e-9 * cost.ns_per_value * size.values + 1e-6 * cost.us_per_cell * size.cells
        match rule:
            case "normalize" if self._config.qc.drop_rare_genes:
                return self.core_seconds("hvg", plate)
            case "pca":
                projection = NS_PER_COMPONENT * self._config.pca.n_comps * size.cells
                eigenvectors = NS_PER_GENE_CUBED * self.max_consensus_genes**3
                gram = COSTS["select_genes"].ns_per_value * self._values_without_gram
                return 1e-9 * (projection + eigenvectors + gram)
            case "subset":
                return seconds + 1e-6 * US_PER_SAMPLED_CELL * self.subset_cells
            case "group_sums":
                return seconds * len(self._config.markers.by)
            case "markers":
                return MARKERS_PLATE_S * len(self._plates)
            case "harmony":
                return self._harmony_seconds(size.cells)
            case "explore":
                return seconds + 1e-6 * US_PER_PAGE_CELL * self.subset_cells
            case "integrate" if not self._config.harmony:
                return seconds + self._harmony_seconds(size.cells)
        return seconds

    def _cost(self, rule: str, plate: str | None) -> Cost:
        costs = COSTS | GPU_COSTS if self.gpus(rule, plate) else COSTS
        return costs.get(rule, Cost())

    @cached_property
    def _values_without_gram(self) -> float:
        """Stored values of the plates that do not store their Gram matrix."""
        sizes = [self.plate(name) for name in self._plates]
        return sum(
            size.values
            for size in sizes
            if not gram_is_worth_storing(
                size.cells, size.values / (size.cells or 1), self.max_consensus_genes
            )
        )

    def threads(self, rule: str, plate: str | None = None) -> int:
        """Threads of a job that reads blocks, or of the map."""
        if rule in {"harmony", "map"}:
            return 16 if self.atlas.cells > 1e6 else 4
        if rule == "leiden" and self.subset_cells <= IGRAPH_CELLS:
            return 1  # igraph has one
        if rule in ("neighbors", "umap", "leiden", "embedding"):
            if self.subset_cells <= 1e5:
                return 1 if rule == "embedding" else 4
            # Nothing can run beside `neighbors`; but a node often has eight cores per GPU.
            return 16 if rule == "neighbors" and not self.gpus(rule) else 8
        if plate and self.is_small(plate):
            return 1  # several plates at a time keep the cores busier than threads of one
        if rule == "normalize" and not self._config.qc.drop_rare_genes:
            return 1
        if rule in ("reference", "extend"):
            values = self.extended_atlas.values
        else:
            values = self.plate(plate).values if plate else self.atlas.values * SELECTED_SHARE
        gpu, beside = self.gpus(rule, plate) > 0, bool(plate) and len(self._plates) > 1
        # On a cluster a node often has eight cores per GPU; beside `hvg` other plates are loaded.
        few = gpu and (self._cores is None or rule == "hvg")
        threads = block_threads(self._budget, values, gpu=few)
        if self._jobs_per_gpu > 1 and self._cluster_gpus == 1:
            shares_cores = beside
        else:  # a GPU without other jobs; a given budget asks for its threads
            shares_cores = beside and not gpu and self._budget is None
        if not shares_cores:
            return threads
        if not gpu:
            most = threads_side_by_side(len(self._plates), self._cores)
        elif rule == "select_genes":  # all plates are loaded, so that only jobs on the GPU run
            own = (self._cores or 0) // self._jobs_per_gpu
            most = min(max(own, THREADS_SIDE_BY_SIDE), GPU_THREADS)
        else:
            most = THREADS_SIDE_BY_SIDE
        return min(threads, most)

    def disk(self, rule: str, plate: str | None = None) -> int:
        """MB of the store that a job writes."""
        size = self.plate(plate) if plate else self.atlas
        match rule:
            case "split":
                n_bytes = size.values * SAMPLE_BYTES
            case "load":
                n_bytes = size.values * COUNT_BYTES
            case "map_plate":
                selected = size.values * SELECTED_SHARE * SELECTED_BYTES
                n_bytes = selected + size.cells * self._config.pca.n_comps * 4
            case "extend":
                whole = self.extended_atlas
                n_bytes = whole.values * SELECTED_BYTES + whole.cells * self._config.pca.n_comps * 4
            case "select_genes" | "concat_on_disk":
                n_bytes = size.values * SELECTED_SHARE * SELECTED_BYTES
            case "by_gene":
                n_bytes = size.values * SELECTED_SHARE * (SELECTED_BYTES + SORTED_BYTES)
            case "pca":
                n_bytes = size.cells * self._config.pca.n_comps * 4
            case "map":
                n_bytes = size.cells * MAP_BYTES
            case "harmony":
                n_bytes = size.cells * self._harmony_comps * 4
            case _:
                n_bytes = 0
        return int(n_bytes / 1e6)

    @property
    def _reference_mb(self) -> float:
        per_cell = REFERENCE_MB_PER_CELL + 8e-6 * self._config.pca.n_comps
        return self.reference_cells * per_cell

    @property
    def _harmony_comps(self) -> int:
        integrate = self._config.integrate
        return (integrate and integrate.n_pcs) or self._config.pca.n_comps

    def _harmony_mb(self, n_cells: float) -> float:
        return harmony_bytes(n_cells, self._harmony_comps) / 1e6

    def _harmony_seconds(self, n_cells: float) -> float:
        return 1e-6 * US_PER_HARMONY_COMPONENT * n_cells * self._harmony_comps


def _workers(rule: str, threads: int) -> int:
    return 1 if rule in _SERIAL_RULES else threads


def plate_size(plate: Plate) -> Size:
    """Size of a plate: ``n_cells`` of the sheet, else a Zarr store's shape, else by its bytes."""
    if plate.is_simulated:
        return Size(2000, 2000 * 3000)
    path = Path(plate.path)
    shape = None if plate.is_remote else _zarr_shape(path)
    if shape:
        return Size(plate.n_cells or shape.cells, shape.values)
    if plate.n_cells:
        return Size(plate.n_cells, plate.n_cells * VALUES_PER_CELL)
    # A folder of Cell Ranger holds text, which is larger than the same counts as h5ad.
    files = path.iterdir() if path.is_dir() else [path]
    sizes = [] if plate.is_remote else [file.stat().st_size for file in files if file.is_file()]
    n_bytes = sum(sizes) or UNKNOWN_BYTES
    cells = n_bytes / BYTES_PER_CELL
    return Size(cells, cells * VALUES_PER_CELL)


def _zarr_shape(store: Path) -> Size | None:
    """Size of X by the metadata of a store; None if they lack its shape."""
    dense, values, offsets = (_array_shape(store / name) for name in ("X", "X/data", "X/indptr"))
    if values and offsets:
        return Size(offsets[0] - 1, values[0])
    return Size(dense[0], dense[0] * dense[1]) if dense and len(dense) == 2 else None


def _array_shape(array: Path) -> list[int] | None:
    for name in ("zarr.json", ".zarray"):
        try:
            return json.loads((array / name).read_text(encoding="utf-8")).get("shape")
        except (OSError, ValueError, AttributeError):
            continue  # missing or damaged: `load` refuses a damaged store with a message
    return None


def total(sizes: Iterable[Size]) -> Size:
    """Sum of the sizes of several plates."""
    sizes = list(sizes)
    return Size(sum(size.cells for size in sizes), sum(size.values for size in sizes))


def threads_side_by_side(n_plates: int, cores: int | None) -> int:
    """Threads of each job of a plate: those with which all plates are done first."""
    if cores is None or cores < MAX_THREADS_SIDE_BY_SIDE:
        return THREADS_SIDE_BY_SIDE

    def time(threads: int) -> float:
        rounds = ceil(n_plates / (cores // threads))
        return rounds / threads

    return min(range(THREADS_SIDE_BY_SIDE, MAX_THREADS_SIDE_BY_SIDE + 1), key=time)


def block_threads(
    budget: int | None,
    values: float | None = None,
    *,
    gpu: bool = False,
) -> int:
    """Threads that a pass over blocks can use within ``budget`` bytes, which also hold a block that
    waits for its consumer (None: as much as the threads need). Few stored ``values`` occupy few
    threads. Eight keep a ``gpu`` busy, for which few cores are there.
    """
    block = block_bytes(budget or DEFAULT_BUDGET)
    fit = budget // block - 1 if budget else 16
    wanted = GPU_THREADS if gpu else max(4, fit if fit > 7 else 0)
    blocks = wanted if values is None else int(8 * values / block) + 1
    return int(min(wanted, max(blocks, 2)))


def memory_mb(cells: float, budget: int, *, extra_mb: float = 0, gpus: int = 0) -> int:
    """MB of a job with blocks in flight, tables of ``cells``, further matrices, and GPUs."""
    blocks_mb = BLOCK_COPIES * budget / 1e6
    return int(BASE_MB + blocks_mb + TABLE_MB_PER_CELL * cells + extra_mb + GPU_MB * gpus)


def minutes(seconds: float, threads: int = 1) -> int:
    """Minutes to request for work that was measured to take ``seconds`` of one core."""
    return int(START_MINUTES + SLACK * seconds / 60 / threads)


def resource_table(requests: Iterable[JobRequest]) -> str:
    """Table of requested resources with one row per rule, in the order of their first jobs."""
    rules: dict[str, list[JobRequest]] = defaultdict(list)
    for request in requests:
        rules[request.rule].append(request)
    all_requests = [request for jobs in rules.values() for request in jobs]
    rows = [["rule", "jobs", "threads", "GPUs", "GB each", "hours", "GPU hours", "disk GB"]]
    rows += [_table_row(rule, jobs) for rule, jobs in rules.items()]
    rows.append(_table_row("all", all_requests))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(
        [
            "Plan: resources that the jobs request. Threads, GPUs and GB are of the largest job,",
            "hours and disk of all jobs together. Most jobs take a tenth of their hours.",
            *lines,
        ]
    )


def _table_row(name: str, jobs: list[JobRequest]) -> list[str]:
    hours = sum(job.runtime for job in jobs) / 60
    gpu_hours = sum(job.runtime * job.gpu for job in jobs) / 60
    return [
        name,
        str(len(jobs)),
        str(max((job.threads for job in jobs), default=0)),
        f"{max((job.gpu for job in jobs), default=0):.3g}",
        f"{max((job.mem_mb for job in jobs), default=0) / 1e3:.1f}",
        f"{hours:.1f}",
        f"{gpu_hours:.1f}",
        f"{sum(job.disk_mb for job in jobs) / 1e3:.1f}",
    ]
