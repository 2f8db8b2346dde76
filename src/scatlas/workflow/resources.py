"""Memory, run time, threads and disk that the jobs request, by the sizes of the plates; estimates
err upwards, and a job that needs more runs again with twice, then three times as much.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas._util.numbers import parse_bytes
from scatlas.compute.memory import gram_is_worth_storing, harmony_bytes, map_bytes
from scatlas.compute.threads import BLOCK_BYTES, DEFAULT_BUDGET
from scatlas.workflow.costs import (
    COSTS,
    GPU_START_S,
    GPU_THREADS,
    NS_PER_MOMENT,
    SELECTED_BYTES,
    SELECTED_SHARE,
    STEPS_TO_MAP,
    SUBSET_CELLS_PER_MINUTE,
    SUBSET_MINUTES,
    US_PER_HARMONY_COMPONENT,
    Job,
    block_threads,
    minutes,
)
from scatlas.workflow.job_environment import kept_cells
from scatlas.workflow.sizes import IGRAPH_CELLS, SAMPLE_CELLS, Size, plate_size, total, zarr_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config

# MB of memory. BASE_MB: Python with its libraries and compiled kernels, and two Snakemake processes
# around each job of a cluster. TABLE_MB_PER_CELL: twice the measured size of tables with one row
# per cell. GPU_MB: CUDA's libraries, its context, pinned memory, larger blocks (docs/memory.md).
BASE_MB = 900
TABLE_MB_PER_CELL = 3e-4
GPU_MB = 3000
# The same on the GPU: at most 3.2 GB, in pca with 6 million cells, 2,304 genes and 300 components
# (bench/results/gpu-scale_out-2026-11-22.txt). GPU_POOL_SHARE: what a pool takes of its part.
GPU_DEVICE_MB, GPU_POOL_SHARE = 4000, 0.9
# Per cell of the reference, beside its components, which k-means copies: lists, neighbours, labels.
REFERENCE_MB_PER_CELL = 1e-3
# Bytes on a GPU per sampled cell and component, which the lists copy and may convert; and per
# sampled cell and neighbour: its number and distance, and two edges of the graph with what Leiden
# keeps of them.
GPU_COMPONENT_BYTES, GPU_NEIGHBOR_BYTES = 12, 64
# How many times the sample's own size it takes with its neighbours and clusters, as measured.
SAMPLE_MEMORY = 2
# Four blocks' worth of memory per block in flight: raw, normalised, encoded, partial results.
BLOCK_COPIES = 4

# Threads of a job of a plate if there are several plates: four jobs fill 16 cores. More threads per
# job would gain less than more jobs: a value costs load 29 ns of each of two threads and 52 ns of
# each of eight (scaling-2026-11-23).
THREADS_SIDE_BY_SIDE = 4
# More, where they save a round of the jobs or occupy cores that would be idle.
THREADS_OF_PLATES = range(4, 7)

# Values of a small plate: one or two seconds per step on one core. Its minutes per step are few,
# because the time of a cluster job is the sum of those of its steps.
SMALL_PLATE_VALUES = 1e8
SMALL_PLATE_MINUTES = 3
SMALL_ATLAS_VALUES = 1e9
# Jobs of `group_sums`, at least, if there are as many plates: they keep the cores busy, and a plate
# whose cells have other labels sums few others again.
N_BATCHES = 8

# Rules that write stores. Snakemake guesses the disk of all others.
STORE_RULES = {rule for rule, cost in COSTS.items() if cost.disk}


class Estimates:
    """Resources that the jobs of a run request on their first attempt. ``gpu_bytes`` None: every
    job fits into one of the ``jobs_per_gpu`` parts. ``cores`` None: each job has its own.
    """

    def __init__(
        self,
        config: Config,
        plates: Sequence[Plate],
        *,
        jobs_per_gpu: int = 1,
        gpu_bytes: int | None = None,
        cores: int | None = None,
        n_gpus: int = 1,
    ) -> None:
        self.config: Config = config
        self.cores: int | None = cores
        self._gpu_slots = n_gpus * jobs_per_gpu
        self._jobs_per_gpu, self._gpu_bytes = jobs_per_gpu, gpu_bytes
        given = config.compute.block_budget
        self.budget: int | None = None if given == "auto" else parse_bytes(given)
        self._plates = {plate.plate: plate for plate in plates}
        self.n_plates: int = len(self._plates)
        self.plate = cache(lambda name: plate_size(self._plates[name]))

    def _job(self, plate: str | None, threads: int = 1) -> Job:
        return Job(self, plate, threads, self.plate(plate) if plate else self.atlas)

    # Sizes --------------------------------------------------------------------------------------

    @cached_property
    def atlas(self) -> Size:
        return total(self.plate(name) for name in self._plates)

    @cached_property
    def finished_atlas(self) -> Size:
        """Size of the atlas onto which new plates are mapped; zeros without one."""
        path = self.config.atlas
        return (zarr_shape(Path(path)) if path else None) or Size(0, 0)

    @cached_property
    def extended_atlas(self) -> Size:
        """Cells and selected values of that atlas with the new plates."""
        new = Size(self.atlas.cells, self.atlas.values * SELECTED_SHARE)
        return total([self.finished_atlas, new])

    @cached_property
    def reference_cells(self) -> float:
        """Cells of that atlas among which the nearest are found."""
        return min(self.config.new_plates.n_reference, self.finished_atlas.cells)

    @cached_property
    def subset_cells(self) -> float:
        config, cells = self.config, self.atlas.cells
        if config.map.method == "project" or config.subset.n_cells:
            return min(config.subset.n_cells or SAMPLE_CELLS, cells)
        # As many as map.memory allows: the sizes of the plates are estimates.
        most = parse_bytes(config.map.memory) / map_bytes(1, config.pca.n_comps)
        return min(max(SAMPLE_CELLS, most), cells)

    @property
    def mapped_cells(self) -> float:
        """Cells on a map of new plates."""
        return self.reference_cells + self.atlas.cells

    @property
    def own_harmony_cells(self) -> float:
        """Cells that `integrate` corrects: none if the rule `harmony` has corrected all."""
        return 0 if self.config.harmony else self.subset_cells

    @property
    def has_igraph_clusters(self) -> bool:
        """Whether igraph finds the clusters, on one core."""
        return self.subset_cells <= IGRAPH_CELLS

    @cached_property
    def max_consensus_genes(self) -> float:
        """Largest number of consensus genes to expect. Each needs the votes of ``min_plates``
        plates; plates that are alike agree on at most twice ``hvg.n_top_genes``.
        """
        hvg, consensus = self.config.hvg, self.config.consensus
        agreed = hvg.n_top_genes * self.n_plates / consensus.min_plates_of(self.n_plates)
        ranked = min(agreed, consensus.n_top_genes_of(hvg) or 2 * hvg.n_top_genes)
        return ranked + len(consensus.also)

    @cached_property
    def values_without_gram(self) -> float:
        """Stored values of the plates that do not store their Gram matrix."""
        return sum(
            size.values
            for size in map(self.plate, self._plates)
            if not gram_is_worth_storing(
                size.cells, size.values / (size.cells or 1), self.max_consensus_genes
            )
        )

    def is_small(self, plate: str) -> bool:
        """Whether the steps of a plate take about as long as the start of a process, or of CUDA."""
        return self.plate(plate).values <= SMALL_PLATE_VALUES

    @cached_property
    def first_of_batch(self) -> dict[str, str]:
        """By plate, the first of those whose sums by group share a job: neighbours in the plate
        sheet, an eighth of all plates at most, with the values of a small plate together.
        """
        found: dict[str, str] = {}
        batch: list[str] = []
        most = ceil(self.n_plates / N_BATCHES)
        for plate in self._plates:
            values = sum(self.plate(name).values for name in [*batch, plate])
            if len(batch) == most or values > SMALL_PLATE_VALUES:
                batch = []
            batch.append(plate)
            found[plate] = batch[0]
        return found

    def batch_size(self, first: str) -> Size:
        """Size of the plates that share a job with this one, the first of them."""
        return total(self.plate(name) for name, of in self.first_of_batch.items() if of == first)

    @property
    def is_small_atlas(self) -> bool:
        """Whether the steps of the merged plates take seconds each."""
        finished_values = self.finished_atlas.values / SELECTED_SHARE
        return self.atlas.values + finished_values <= SMALL_ATLAS_VALUES

    # Parts of the costs -------------------------------------------------------------------------

    @property
    def sample_mb(self) -> float:
        """MB of the sample with its neighbours and clusters."""
        return SAMPLE_MEMORY * map_bytes(self.subset_cells, self.config.pca.n_comps) / 1e6

    @property
    def gpu_sample_mb(self) -> float:
        neighbors = self.config.neighbors
        n_pcs = neighbors.n_pcs or self.config.pca.n_comps
        per_cell = GPU_COMPONENT_BYTES * n_pcs + GPU_NEIGHBOR_BYTES * neighbors.n_neighbors
        return 1e-6 * per_cell * self.subset_cells

    @property
    def sample_minutes(self) -> int:
        return int(SUBSET_MINUTES + self.subset_cells / SUBSET_CELLS_PER_MINUTE)

    @cached_property
    def gram_mb(self) -> float:
        """MB of one Gram matrix of the consensus genes."""
        return 8e-6 * self.max_consensus_genes**2

    @property
    def reference_mb(self) -> float:
        """MB of the cells among which the nearest of a new plate are found."""
        return self.reference_cells * (REFERENCE_MB_PER_CELL + 8e-6 * self.config.pca.n_comps)

    @property
    def harmony_comps(self) -> int:
        integrate = self.config.integrate
        return (integrate and integrate.n_pcs) or self.config.pca.n_comps

    @property
    def extended_atlas_bytes(self) -> float:
        whole = self.extended_atlas
        return whole.values * SELECTED_BYTES + whole.cells * self.config.pca.n_comps * 4

    @property
    def all_cells_threads(self) -> int:
        """Threads of a step in memory with all cells."""
        return 16 if self.atlas.cells > 1e6 else 4

    def harmony_mb(self, n_cells: float, *, streamed: bool = False) -> float:
        return harmony_bytes(n_cells, self.harmony_comps, streamed=streamed) / 1e6

    def harmony_seconds(self, n_cells: float) -> float:
        return 1e-6 * US_PER_HARMONY_COMPONENT * n_cells * self.harmony_comps

    # GPUs ---------------------------------------------------------------------------------------

    @cached_property
    def _cluster_gpus(self) -> int:
        """GPUs per job of the rules that may use a Dask cluster. With ``backend: auto`` jobs
        request GPUs only if their Python has CuPy.
        """
        backend, cluster = self.config.backend, self.config.compute.cluster
        if backend == "cpu" or (backend == "auto" and find_spec("cupy") is None):
            return 0
        if cluster is None:
            return 1
        return 0 if cluster.kind == "local-cpu" else cluster.devices or 1

    def prefers_cpu(self, plate: str) -> bool:
        """Whether ``backend: auto`` computes a plate on the CPU: its size alone decides."""
        config = self.config
        return config.backend == "auto" and not config.compute.cluster and self.is_small(plate)

    def gpus(self, rule: str, plate: str | None = None) -> int:
        if plate and self.prefers_cpu(plate):
            return 0
        if rule == "leiden" and self.has_igraph_clusters:
            return 0
        wanted = {"none": 0, "one": min(self._cluster_gpus, 1), "cluster": self._cluster_gpus}
        return wanted[COSTS[rule].gpus]

    def gpu_parts(
        self, rule: str, plate: str | None = None, threads: int = 1, attempt: int = 1
    ) -> int:
        """Parts of a GPU that a job locks, for the memory that it needs; all parts of several GPUs.
        A job that failed gets more, because it may have needed more memory.
        """
        n_gpus, parts = self.gpus(rule, plate), self._jobs_per_gpu
        if n_gpus != 1 or self.config.compute.cluster:
            return n_gpus * parts
        needed = 1 if plate else parts // 2 or 1  # few jobs of the atlas run at once
        if self._gpu_bytes:
            cost = COSTS[rule]
            matrices = cost.gpu_mb or cost.extra_mb
            needed_mb = GPU_DEVICE_MB + (matrices(self._job(plate, threads)) if matrices else 0)
            for_memory = 1e6 * needed_mb * parts / (GPU_POOL_SHARE * self._gpu_bytes)
            needed = max(needed, ceil(for_memory))
        return min(attempt * needed, parts)

    # Requests -----------------------------------------------------------------------------------

    def block_budget(self, threads: int) -> int:
        """Bytes of the blocks in flight of a job."""
        return self.budget or max(DEFAULT_BUDGET, BLOCK_BYTES * (threads + 1))

    def memory(self, rule: str, plate: str | None = None, threads: int = 1) -> int:
        """MB of memory of a job, which grows with its threads."""
        cost, job = COSTS[rule], self._job(plate, threads)
        cells = cost.table(job) if cost.table else job.size.cells if plate else 0
        blocks_mb = BLOCK_COPIES * self.block_budget(threads) / 1e6 if cost.blocks else 0
        matrices_mb = cost.extra_mb(job) if cost.extra_mb else 0
        gpus_mb = GPU_MB * self.gpus(rule, plate)
        return int(BASE_MB + blocks_mb + TABLE_MB_PER_CELL * cells + matrices_mb + gpus_mb)

    def runtime(self, rule: str, plate: str | None = None, threads: int = 1) -> int:
        """Minutes of a job."""
        if plate and self.is_small(plate):
            return SMALL_PLATE_MINUTES
        cost = COSTS[rule]
        limit = cost.minutes(self._job(plate, threads)) if cost.minutes else None
        if limit is not None:
            return limit
        return minutes(self.core_seconds(rule, plate), cost.workers(threads))

    def seconds(
        self, rule: str, plate: str | None = None, threads: int = 1, *, loads: bool = False
    ) -> float:
        """Seconds that a job is expected to take. A run that ``loads`` the plate takes the moments
        for ``hvg`` meanwhile if the bounds tell for which cells.
        """
        takes_moments = loads and rule in ("load", "hvg") and "bounds" in kept_cells(self.config)
        # With moments of `load`, hvg starts no GPU.
        on_gpu = self.gpus(rule, plate) > 0
        time = COSTS[rule].time_on(gpu=on_gpu)
        fixed = time.fixed_s + GPU_START_S * (on_gpu and not (takes_moments and rule == "hvg"))
        fixed += COSTS[rule].plate_s * self.n_plates
        seconds, values = self.core_seconds(rule, plate), self._job(plate).size.values
        if takes_moments:
            seconds = seconds + 1e-9 * NS_PER_MOMENT * values if rule == "load" else 0
        least = 1e-9 * time.least_ns_per_value * values
        return fixed + max(seconds / COSTS[rule].workers(threads), least)

    def core_seconds(self, rule: str, plate: str | None = None) -> float:
        """Seconds that a job is expected to take on one core, beside its fixed seconds."""
        cost, job = COSTS[rule], self._job(plate)
        time = cost.time_on(gpu=self.gpus(rule, plate) > 0)
        size = cost.size(job) if cost.size else job.size
        seconds = 1e-9 * time.ns_per_value * size.values + 1e-6 * time.us_per_cell * size.cells
        return cost.seconds(job, seconds) if cost.seconds else seconds

    def threads(self, rule: str, plate: str | None = None) -> int:
        """Threads of a job; of a step to the map no more than a copy by gene frees at its end."""
        wanted = self._wanted_threads(rule, plate)
        if rule in STEPS_TO_MAP and self.config.by_gene.genes and self.cores:
            return min(wanted, max(self._wanted_threads("by_gene", name) for name in self._plates))
        return wanted

    def _wanted_threads(self, rule: str, plate: str | None = None) -> int:
        own = COSTS[rule].threads
        own = own(self._job(plate)) if callable(own) else own
        if own is not None:
            return own
        if plate and self.is_small(plate):
            return 1  # several plates at a time keep the cores busier than threads of one
        values = self.plate(plate).values if plate else self.atlas.values * SELECTED_SHARE
        gpu, beside = self.gpus(rule, plate) > 0, bool(plate) and self.n_plates > 1
        # On a cluster a node often has eight cores per GPU; beside `hvg` other plates are loaded.
        few = gpu and (self.cores is None or rule == "hvg")
        threads = block_threads(self.budget, values, gpu=few)
        shares_gpu = self._jobs_per_gpu > 1 and self._cluster_gpus == 1
        # Alone on a GPU it takes all; and a given budget asks for its threads.
        if not beside or (not shares_gpu and (gpu or self.budget)):
            return threads
        return min(threads, self._threads_side_by_side(rule, plate))

    def _threads_side_by_side(self, rule: str, plate: str | None) -> int:
        """Threads of each job of a plate: those with which all plates are done first."""
        cores, gpu = self.cores, self.gpus(rule, plate) > 0
        if cores is None or (gpu and rule != "select_genes"):  # others load plates beside it
            return THREADS_SIDE_BY_SIDE

        def time(threads: int) -> float:
            at_once = min(cores // threads, self._gpu_slots if gpu else cores)
            seconds = self.seconds(rule, plate, threads) if gpu else 1 / threads
            return ceil(self.n_plates / at_once) * seconds

        choices = range(2, GPU_THREADS + 1) if gpu else THREADS_OF_PLATES
        return min((n for n in choices if n <= cores), key=time, default=THREADS_SIDE_BY_SIDE)

    def disk(self, rule: str, plate: str | None = None) -> int:
        """MB of the store that a job writes."""
        n_bytes = COSTS[rule].disk
        return int(n_bytes(self._job(plate)) / 1e6) if n_bytes else 0
