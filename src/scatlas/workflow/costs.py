"""What each rule costs: one row with its time, memory, threads, GPUs and disk.

Sources of the times, in ``bench/results``: [1] ``scaling-2026-11-23``, the difference between
800,000 and 50,000 cells with two threads; [2] ``samples-140-2026-11-25``, jobs of 3,000 cells with
one thread; [3] ``map-2026-11-25``, processor seconds; [4] ``gpu-scale_out-2026-11-22`` with seven
threads; [5] ``gpu-workflow-2026-11-26``, several jobs at a time; [6] ``explore-2026-11-25``,
processor seconds; [7] ``gpu-preset-2026-11-26``, with the threads that its jobs had; [8]
``explore-2026-11-28``; [9] ``samples-2026-11-29``. A time without a number is a guess.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal

from scatlas.compute.memory import GPU_HARMONY_BYTES, block_bytes, max_gram_bytes
from scatlas.compute.threads import DEFAULT_BUDGET
from scatlas.workflow.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.workflow.resources import Estimates

STEPS_TO_MAP = {"concat_on_disk", "pca", "subset", "neighbors", "umap", "map"}  # beside by_gene
# MB of memory. The merged obs is written by column: an atlas needs a tenth of its plates' tables.
MERGED_OBS_SHARE = 0.1
# Per cell on 30 components, with scores and simulated doublets; and neighbours of one part.
DOUBLETS_MB_PER_CELL, DOUBLETS_MB = 0.35e-3, 500
# Sums of 60,000 genes, 8 bytes each, with one group per 1,000 cells.
PSEUDOBULK_MB_PER_CELL = 0.5e-3
# Effects of 20,000 conditions on 20,000 genes, or 1,400 on 60,000: counts, 8 bytes each if a plate
# lacks genes (bench/results/effects-2026-11-29.txt: 2 GB with 4 bytes).
EFFECTS_MB = 4_000
# 2**18 cells with 50 components in fp64 at a time, and the sums of 100,000 replicates.
COMPARED_MB = 600
# Sums of 100 groups of 60,000 genes, with the sums of one plate, moments and scores: 5 arrays each.
MARKERS_MB = 100 * 60_000 * 20 * 8e-6
# Cells placed on a map at a time, with their neighbours; cells mapped at a time, and on a GPU.
PLACED_MB, MAP_MB, GPU_MAP_MB = 300, 500, 200
# explore.html: histograms of a column, with the sums of genes; per point its position and codes
# (bench/results/explore-2026-11-25.txt); and position and pixel of each cell of the atlas.
PAGE_MB, PAGE_MB_PER_CELL, POSITION_MB_PER_CELL = 800, 0.5e-3, 6e-6
# Position, number and names of 60,000 genes on each plate, values that wait; values put together.
BY_GENE_MB, JOINED_MB = 60_000 * 40e-6 + 0.7, 300
# A hundred types of 1,000 cells with 1,000 values each, twice; scores of the cells of some blocks.
ANNOTATOR_MB, ANNOTATE_MB = 100 * 1000 * 1000 * 16e-6, 400
# Numbers of the cells of the atlas that are drawn from, and the stratum of each.
DRAWN_MB_PER_CELL, STRATUM_MB_PER_CELL = 8e-6, 4e-6
# Chunks that a thread reads at once.
READ_MB = 20
# The name of a cell, here and in a file of components.
LATENT_MB_PER_CELL = 240e-6

# Bytes of disk per count in counts.zarr, per value of the consensus genes (float32 and its index),
# and the share of a cell's values that these genes have.
COUNT_BYTES, SELECTED_BYTES, SELECTED_SHARE = 1.9, 5, 0.11
# Bytes per cell of map.zarr: two coordinates, a cluster, two numbers. Bytes per value of the
# samples of one file until they are loaded: float32 and uint16 or int32. Bytes per count by gene,
# and of the blocks sorted by gene: the count and its row, both uint16.
MAP_BYTES, SAMPLE_BYTES, BY_GENE_BYTES, SORTED_BYTES = 18, 8, 2.5, 4

# merge_by_gene copies plates up to this number of values [9].
MAX_JOINED_VALUES, NS_PER_JOINED_VALUE = 2**26, 12
GPU_START_S = 1.2  # CUDA, by ``gpu-start-2026-11-25``
# Moments that `load` takes of the kept cells; `hvg` of such a run reads no counts. Processor time
# with 100,000 cells x 20,000 genes: ``load-moments-2026-11-25``.
NS_PER_MOMENT = 2.1
# pca: projection, per cell [1]; eigenvectors.
NS_PER_COMPONENT, NS_PER_GENE_CUBED = 23, 1
# embedding reads X of the atlas [5]; explore packs the points of the page [6].
US_PER_CELL_READ, US_PER_PAGE_CELL = 1.3, 15
# Harmony, per cell and component, and on a GPU per cell with 50 components: harmony-2026-11-29 and
# gpu-harmony-2026-11-29, of four rounds.
US_PER_HARMONY_COMPONENT, HARMONY_GPU_US = 0.5, 0.4
# markers reads sums of 20 groups and 20,000 genes from each plate; consensus and report read a
# table per plate [2].
MARKERS_PLATE_S, PLATE_S = 0.1, 0.015
# Snakemake: before the first job, and in its main thread between the starts of two jobs [2].
SNAKEMAKE_START_S, JOB_START_S = 5, 0.08


# Time limits. SLACK: how much slower than measured a disk or a core may be before the limit.
SLACK = 20
START_MINUTES = 10
SUBSET_MINUTES, SUBSET_CELLS_PER_MINUTE = 15, 10_000  # neighbours, UMAP, figures

# Threads that keep a GPU busy which shares the cores with other GPUs or jobs.
GPU_THREADS = 8


@dataclass(frozen=True)
class Cost:
    """Seconds of a job with one thread: fixed ones, and others that its threads divide. No number
    of threads takes less than ``least_ns_per_value``, the work in which they wait for each other.
    """

    fixed_s: float = 0.2
    ns_per_value: float = 0
    us_per_cell: float = 0
    least_ns_per_value: float = 0


@dataclass(frozen=True)
class Job:
    """A job with the size of its plate, or of the atlas."""

    of: Estimates
    plate: str | None
    threads: int
    size: Size


@dataclass(frozen=True)
class RuleCost:
    """Row of one rule; None stands for what most rules do. A rule that only reads the blocks of its
    plate needs no row.
    """

    time: Cost = Cost()
    gpu_time: Cost | None = None  # of a job on a GPU, whose threads decode and copy
    _: KW_ONLY
    gpus: Literal["none", "one", "cluster"] = "none"  # cluster: all GPUs of compute.cluster
    size: Callable[[Job], Size] | None = None  # what the time grows with; None: Job.size
    seconds: Callable[[Job, float], float] | None = None  # from the seconds by size
    minutes: Callable[[Job], int | None] | None = None  # the time limit; None: from the seconds
    plate_s: float = 0  # fixed seconds per plate
    threads: Callable[[Job], int | None] | int | None = None  # None: as its blocks occupy
    serial: bool = False  # its threads do not share its work, as measured
    blocks: bool = True  # it holds blocks of a matrix
    table: Callable[[Job], float] | None = None  # cells of its tables; None: of its plate
    extra_mb: Callable[[Job], float] | None = None  # matrices beside blocks and tables
    gpu_mb: Callable[[Job], float] | None = None  # matrices on a GPU; None: extra_mb
    disk: Callable[[Job], float] | None = None  # bytes of its store; Snakemake guesses others

    def time_on(self, *, gpu: bool) -> Cost:
        return (self.gpu_time if gpu else None) or self.time

    def workers(self, threads: int) -> int:
        return 1 if self.serial else threads


def block_threads(budget: int | None, values: float, *, gpu: bool = False) -> int:
    """Threads that a pass over blocks can use within ``budget`` bytes, which also hold a block that
    waits for its consumer (None: as much as the threads need). Few stored ``values`` occupy few
    threads. Eight keep a ``gpu`` busy, for which few cores are there.
    """
    block = block_bytes(budget or DEFAULT_BUDGET)
    fit = budget // block - 1 if budget else 16
    wanted = GPU_THREADS if gpu else max(4, fit if fit > 7 else 0)
    return int(min(wanted, max(int(8 * values / block) + 1, 2)))


def minutes(seconds: float, threads: int = 1) -> int:
    """Minutes to request for work that was measured to take ``seconds`` of one core."""
    return int(START_MINUTES + SLACK * seconds / 60 / threads)


def _normalize_seconds(job: Job, seconds: float) -> float:
    # To find rare genes it reads all counts.
    return job.of.core_seconds("hvg", job.plate) if job.of.config.qc.drop_rare_genes else seconds


def _doublets_mb(job: Job) -> float:
    gram_mb = 8e-6 * job.of.config.hvg.n_top_genes**2
    return DOUBLETS_MB_PER_CELL * job.size.cells + 4 * gram_mb + DOUBLETS_MB


def _select_genes_mb(job: Job) -> float:
    """One Gram matrix per block in flight, and one to add another to, if the plate has the values
    to store it (a triangle); at most twice as many as estimated.
    """
    largest_mb = 2 * max_gram_bytes(2 * job.size.values) / 1e6
    return (job.threads + 3) * min(job.of.gram_mb, largest_mb)


def _batch_size(job: Job) -> Size:
    return job.of.batch_size(job.plate) if job.plate else job.size


def _markers_mb(job: Job) -> float:
    return MARKERS_MB + (job.of.sample_mb if job.of.config.markers.wilcoxon else 0)


def _markers_minutes(job: Job) -> int | None:
    if not job.of.config.markers.wilcoxon:
        return None
    return minutes(job.of.core_seconds("markers")) + job.of.runtime("umap")


def _pca_seconds(job: Job, _: float) -> float:
    projection = NS_PER_COMPONENT * job.of.config.pca.n_comps * job.size.cells
    eigenvectors = NS_PER_GENE_CUBED * job.of.max_consensus_genes**3
    # A Gram matrix that a plate does not store costs as much as select_genes.
    gram = COSTS["select_genes"].time.ns_per_value * job.of.values_without_gram
    return 1e-9 * (projection + eigenvectors + gram)


def _subset_mb(job: Job) -> float:
    per_cell = DRAWN_MB_PER_CELL + (STRATUM_MB_PER_CELL if job.of.config.subset.by else 0)
    components_mb = 8e-6 * job.of.config.pca.n_comps * job.of.subset_cells
    return per_cell * job.of.atlas.cells + components_mb + READ_MB * job.threads


def _sample_threads(job: Job, few: int, many: int) -> int:
    return few if job.of.subset_cells <= 1e5 else many


def _latent_mb(job: Job) -> float:
    return job.size.cells * (LATENT_MB_PER_CELL + 8e-6 * job.of.config.pca.n_comps)


def _integrate_minutes(job: Job) -> int:
    seconds = job.of.harmony_seconds(job.of.own_harmony_cells)
    own = 0 if job.of.config.harmony else minutes(seconds, job.threads)
    return job.of.runtime("umap") + own


def _page_mb(job: Job) -> float:
    points_mb = PAGE_MB_PER_CELL * job.of.subset_cells
    return PAGE_MB + points_mb + POSITION_MB_PER_CELL * job.of.atlas.cells


def _joined_values(job: Job) -> float:
    return min(job.size.values, MAX_JOINED_VALUES * job.of.n_plates)


def _selected_bytes(job: Job) -> float:
    return job.size.values * SELECTED_SHARE * SELECTED_BYTES


def _components_bytes(job: Job) -> float:
    return job.size.cells * job.of.config.pca.n_comps * 4


# The rows of the steps of the merged plates, of the sample and of the page differ from these.
_MERGED = RuleCost(
    table=lambda job: MERGED_OBS_SHARE * job.of.atlas.cells, extra_mb=lambda job: 4 * job.of.gram_mb
)
_SAMPLE = RuleCost(
    size=lambda job: Size(job.of.subset_cells, 0),
    minutes=lambda job: job.of.sample_minutes,
    extra_mb=lambda job: job.of.sample_mb,
    gpu_mb=lambda job: job.of.gpu_sample_mb,
)
# Columns and components of cells, a block at a time; sums of replicates.
_COMPARED = RuleCost(
    Cost(1, us_per_cell=2.5), threads=2, serial=True, blocks=False, extra_mb=lambda _: COMPARED_MB
)
_ON_GPU = replace(_SAMPLE, gpus="one")
_NEW_PLATES = RuleCost(extra_mb=lambda job: job.of.reference_mb)

COSTS: defaultdict[str, RuleCost] = defaultdict(RuleCost)
COSTS |= {
    "simulate": RuleCost(Cost(2), threads=1, blocks=False),
    # Plates. split: as load. load: [1], [2], [5]; [4]: 32.
    "split": RuleCost(
        Cost(0.2, 29),
        table=lambda job: job.size.cells,
        disk=lambda job: job.size.values * SAMPLE_BYTES,
    ),
    "load": RuleCost(
        Cost(0.2, 29, least_ns_per_value=6.5), disk=lambda job: job.size.values * COUNT_BYTES
    ),
    "qc_filter": RuleCost(Cost(0.03, us_per_cell=0.3), threads=1),  # [1], [2]
    "normalize": RuleCost(  # [1], [2]
        Cost(0.02, us_per_cell=0.25),
        seconds=_normalize_seconds,
        threads=lambda job: None if job.of.config.qc.drop_rare_genes else 1,
    ),
    "doublets": RuleCost(Cost(0.5, 20, 500), extra_mb=_doublets_mb),  # four passes like hvg
    # [1], [2]; of a plate that the run loads: see NS_PER_MOMENT. GPU, eight threads: [7].
    "hvg": RuleCost(Cost(0.1, 4.9), Cost(0.1, 4.5), gpus="cluster"),
    "select_genes": RuleCost(  # [1], [2], [5]; GPU: [5], [7]
        Cost(0.15, 7.9, least_ns_per_value=5.6),
        Cost(0.15, 7, least_ns_per_value=0.85),
        gpus="cluster",
        extra_mb=_select_genes_mb,
        disk=_selected_bytes,
    ),
    "by_gene": RuleCost(  # [9]
        Cost(0.05, 25), disk=lambda job: job.size.values * (BY_GENE_BYTES + SORTED_BYTES)
    ),
    "pseudobulk": RuleCost(  # as hvg
        Cost(0.2, 4.9), extra_mb=lambda job: PSEUDOBULK_MB_PER_CELL * job.size.cells
    ),
    "effects": RuleCost(  # counts of one group of cells
        Cost(5), plate_s=PLATE_S, threads=4, extra_mb=lambda _: EFFECTS_MB
    ),
    "edistance": _COMPARED,
    "composition": _COMPARED,
    # As the tables of qc_filter and normalize.
    "cell_groups": RuleCost(Cost(0.3, us_per_cell=0.7), threads=1, table=_MERGED.table),
    "labels": RuleCost(Cost(0.3, us_per_cell=0.7), threads=1, table=_MERGED.table),
    # Training: chosen cells and genes. annotate: as hvg, with scores of 100 types.
    "annotator": RuleCost(
        Cost(20, 10), threads=4, extra_mb=lambda _: ANNOTATOR_MB, minutes=lambda _: 240
    ),
    "annotate": RuleCost(Cost(0.3, 15, 20), extra_mb=lambda _: ANNOTATE_MB),
    "group_sums": RuleCost(  # [9]
        Cost(0.1, 20),
        size=_batch_size,
        seconds=lambda job, seconds: seconds * len(job.of.config.markers.by),
        table=lambda job: _batch_size(job).cells,
        extra_mb=lambda _: MARKERS_MB,
    ),
    "markers": RuleCost(
        Cost(0.5),
        seconds=lambda job, _: MARKERS_PLATE_S * job.of.n_plates,
        minutes=_markers_minutes,
        threads=1,
        extra_mb=_markers_mb,
    ),
    # Atlas. consensus: [1]. concat_on_disk, one thread: [1], [4]. atlas: [1], 0.3 without a map.
    "consensus": RuleCost(Cost(0.06), plate_s=PLATE_S, threads=1, blocks=False),
    "concat_on_disk": replace(
        _MERGED, time=Cost(0.2, us_per_cell=1), serial=True, disk=_selected_bytes
    ),
    "pca": replace(
        _MERGED, time=Cost(0.5), gpus="cluster", seconds=_pca_seconds, disk=_components_bytes
    ),
    "atlas": replace(_MERGED, time=Cost(0.3, us_per_cell=1), threads=1, serial=True),
    "merge_by_gene": RuleCost(  # links, a table of genes and plates, and copies of small plates
        Cost(0.5),
        plate_s=PLATE_S,
        threads=1,
        blocks=False,
        table=_MERGED.table,
        seconds=lambda job, seconds: seconds + 1e-9 * NS_PER_JOINED_VALUE * _joined_values(job),
        extra_mb=lambda job: BY_GENE_MB * job.of.n_plates + JOINED_MB,
        disk=lambda job: _joined_values(job) * BY_GENE_BYTES,
    ),
    # 3 kB per cell at 100 MB/s.
    "publish": RuleCost(Cost(1, us_per_cell=30), threads=1, serial=True, blocks=False),
    "merge_pseudobulk": RuleCost(Cost(0.3, us_per_cell=1), threads=4, serial=True),  # as atlas
    "map": RuleCost(  # [3]; GPU: [5]
        Cost(0.5, us_per_cell=48),
        Cost(0.5, us_per_cell=9),
        gpus="one",
        threads=lambda job: job.of.all_cells_threads,
        extra_mb=lambda job: job.of.sample_mb + MAP_MB,
        gpu_mb=lambda job: job.of.gpu_sample_mb + GPU_MAP_MB,
        disk=lambda job: job.size.cells * MAP_BYTES,
    ),
    "harmony": RuleCost(
        Cost(1),
        Cost(2, us_per_cell=HARMONY_GPU_US),
        gpus="one",
        seconds=lambda job, s: s or job.of.harmony_seconds(job.size.cells),
        threads=lambda job: job.of.all_cells_threads,
        extra_mb=lambda job: job.of.harmony_mb(job.size.cells, streamed=True),
        gpu_mb=lambda job: job.of.harmony_mb(job.size.cells) + GPU_HARMONY_BYTES / 1e6,
        # With two temporary files of the same size.
        disk=lambda job: 3 * job.size.cells * job.of.harmony_comps * 4,
    ),
    "latent": RuleCost(
        Cost(0.5, us_per_cell=3),
        threads=1,
        serial=True,
        blocks=False,
        extra_mb=_latent_mb,
        disk=_components_bytes,
    ),
    # Cells of the sample; the first one reads the components of all. [3]; GPU: [7]; subset and
    # embedding, without X: ``mapway-2026-11-29``.
    "subset": RuleCost(
        Cost(0.3, us_per_cell=0.3),
        threads=lambda job: job.of.all_cells_threads,
        blocks=False,
        extra_mb=_subset_mb,
    ),
    "neighbors": replace(
        _ON_GPU,
        time=Cost(1, us_per_cell=40),
        gpu_time=Cost(0.5, us_per_cell=24),
        # Nothing can run beside it; but a node often has eight cores per GPU.
        threads=lambda job: _sample_threads(job, 4, 8 if job.of.gpus("neighbors") else 16),
    ),
    "umap": replace(
        _ON_GPU,
        time=Cost(1, us_per_cell=180),
        gpu_time=Cost(0.5, us_per_cell=24),
        threads=lambda job: _sample_threads(job, 4, 8),
    ),
    "leiden": replace(
        _ON_GPU,
        time=Cost(0.5, us_per_cell=57),
        gpu_time=Cost(0.5, us_per_cell=32),
        threads=lambda job: 1 if job.of.has_igraph_clusters else 8,  # igraph has one
    ),
    "embedding": replace(
        _SAMPLE,
        time=Cost(0.5, us_per_cell=12),
        seconds=lambda job, seconds: seconds + 1e-6 * US_PER_CELL_READ * job.of.atlas.cells,
        threads=lambda job: _sample_threads(job, 1, 8),
        # Of all cells a column is in memory, of a sample its X.
        extra_mb=lambda job: job.of.sample_mb * (0.03 if job.of.config.map.method == "full" else 1),
    ),
    "integrate": replace(  # as neighbors, umap and leiden, with Harmony
        _ON_GPU,
        time=Cost(2, us_per_cell=280),
        seconds=lambda job, s: s + job.of.harmony_seconds(job.of.own_harmony_cells),
        minutes=_integrate_minutes,
        threads=4,
        extra_mb=lambda job: job.of.sample_mb + job.of.harmony_mb(job.of.own_harmony_cells),
        gpu_mb=None,
    ),
    # Per cell of the atlas: [5]. Figures at a time: of a small atlas few, with a core for its page.
    "report": replace(
        _SAMPLE,
        time=Cost(3, us_per_cell=0.6),
        size=None,
        plate_s=PLATE_S,
        threads=lambda job: (
            max(1, min(4, (job.of.cores or 1) - job.of.config.explore.page))
            if job.of.is_small_atlas
            else 8
        ),
        extra_mb=lambda job: job.of.sample_mb + 150 * job.threads,  # pixels, and 2**18 cells
    ),
    # The page: [8]; genes that the atlas lacks: as select_genes.
    "explore": RuleCost(
        Cost(1, 7.9, 0.8),
        seconds=lambda job, seconds: seconds + 1e-6 * US_PER_PAGE_CELL * job.of.subset_cells,
        plate_s=0.04,
        threads=lambda job: 1 if job.of.is_small_atlas else 4,  # beside the report
        extra_mb=_page_mb,
    ),
    # New plates on a finished atlas. reference: three passes like hvg, then neighbours.
    "reference": replace(
        _NEW_PLATES,
        time=Cost(0.5, 15, 300),
        size=lambda job: Size(job.of.reference_cells, job.of.finished_atlas.values),
        threads=lambda job: block_threads(job.of.budget, job.of.extended_atlas.values),
        table=lambda job: MERGED_OBS_SHARE * job.of.finished_atlas.cells,
    ),
    "map_plate": replace(
        _NEW_PLATES,
        time=Cost(0.5, 14, 300),
        extra_mb=lambda job: job.of.reference_mb + PLACED_MB,
        disk=lambda job: _selected_bytes(job) + _components_bytes(job),
    ),
    "map_report": replace(
        _NEW_PLATES,
        time=Cost(3, us_per_cell=3),
        size=lambda job: Size(job.of.mapped_cells, 0),
        minutes=lambda job: int(
            SUBSET_MINUTES + job.of.mapped_cells / SUBSET_CELLS_PER_MINUTE / 10
        ),
        threads=1,
        table=_MERGED.table,
    ),
    "extend": RuleCost(
        Cost(0.3, us_per_cell=2),
        size=lambda job: job.of.extended_atlas,
        threads=lambda job: block_threads(job.of.budget, job.of.extended_atlas.values),
        table=lambda job: MERGED_OBS_SHARE * job.of.extended_atlas.cells,
        disk=lambda job: job.of.extended_atlas_bytes,
    ),
}
