"""Measured cost of each rule, from which run times are estimated.

Sources, in ``bench/results``: [1] ``scaling-2026-11-23``, the difference between 800,000 and 50,000
cells with two threads; [2] ``samples-140-2026-11-25``, jobs of 3,000 cells with one thread; [3]
``map-2026-11-25``, processor seconds; [4] ``gpu-scale_out-2026-11-22`` with seven threads; [5]
``gpu-workflow-2026-11-26``, several jobs at a time; [6] ``explore-2026-11-25``, processor seconds;
[7] ``gpu-preset-2026-11-26``, with the threads that its jobs had; [8] ``explore-2026-11-28``,
processor seconds. A line without such a number is a guess from similar work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Seconds of a job with one thread: fixed ones, and others that its threads divide, but for
    ``resources._SERIAL_RULES``. No number of threads takes less than ``least_ns_per_value``, the
    work in which they wait for each other.
    """

    fixed_s: float = 0.2
    ns_per_value: float = 0
    us_per_cell: float = 0
    least_ns_per_value: float = 0


COSTS = {
    "simulate": Cost(2),
    # Plates
    "split": Cost(0.2, 29),  # as load
    "load": Cost(0.2, 29, least_ns_per_value=6.5),  # [1], [2]; [4]: 32; [5]
    "qc_filter": Cost(0.03, us_per_cell=0.3),  # [1], [2]
    "normalize": Cost(0.02, us_per_cell=0.25),  # [1], [2]
    "doublets": Cost(0.5, 20, 500),  # four passes like hvg
    "hvg": Cost(0.1, 4.9),  # [1], [2]; of a plate that the run loads: see NS_PER_MOMENT
    "select_genes": Cost(0.15, 7.9, least_ns_per_value=5.6),  # [1], [2]; [5]
    "pseudobulk": Cost(0.2, 4.9),  # as hvg
    "cell_groups": Cost(0.3, us_per_cell=0.7),  # as the tables of qc_filter and normalize
    "group_sums": Cost(0.2, 40),  # for each column of groups
    "markers": Cost(0.5),  # and MARKERS_PLATE_S
    # Atlas
    "consensus": Cost(0.06),  # [1]
    "concat_on_disk": Cost(0.2, us_per_cell=1),  # [1], [4]; one thread
    "pca": Cost(0.5),  # and the costs below
    "base": Cost(0.3, us_per_cell=1),  # as atlas
    "by_gene": Cost(0.3, us_per_cell=9),  # 185 values per cell of a million cells
    "publish": Cost(1, us_per_cell=30),  # 3 kB per cell at 100 MB/s
    "atlas": Cost(0.3, us_per_cell=1),  # [1]: 0.3 without a map of all cells
    "merge_pseudobulk": Cost(0.3, us_per_cell=1),  # as atlas
    "subset": Cost(0.6, us_per_cell=1.3),  # [5], one thread; and US_PER_SAMPLED_CELL
    "map": Cost(0.5, us_per_cell=48),  # [3]
    "harmony": Cost(1),  # and the cost below
    # Cells of the sample
    "neighbors": Cost(1, us_per_cell=40),  # [3]
    "umap": Cost(1, us_per_cell=180),  # [3]
    "leiden": Cost(0.5, us_per_cell=57),  # [3]
    "embedding": Cost(0.5, us_per_cell=9.6),  # [7], eight threads
    "integrate": Cost(2, us_per_cell=280),  # as neighbors, umap and leiden
    "report": Cost(3, us_per_cell=1.3),  # [5], per cell of the atlas
    "explore": Cost(1, us_per_cell=0.8),  # [8], and US_PER_PAGE_CELL
    # New plates on a finished atlas
    "reference": Cost(0.5, 15, 300),  # three passes like hvg, then neighbours
    "map_plate": Cost(0.5, 14, 300),
    "map_report": Cost(3, us_per_cell=3),
    "extend": Cost(0.3, us_per_cell=2),
}
# Of jobs on a GPU, whose threads decode and copy. Other rules: as on the CPU.
GPU_COSTS = {
    "hvg": Cost(0.1, 4.5),  # [7], eight threads
    "select_genes": Cost(0.15, 7, least_ns_per_value=0.85),  # [5], [7]
    "neighbors": Cost(0.5, us_per_cell=24),  # [7], eight threads
    "umap": Cost(0.5, us_per_cell=24),  # [7], eight threads
    "leiden": Cost(0.5, us_per_cell=32),  # [7], eight threads
    "map": Cost(0.5, us_per_cell=9),  # [5]
}
GPU_START_S = 1.2  # CUDA, by ``gpu-start-2026-11-25``
# subset: writes the sampled cells [7].
US_PER_SAMPLED_CELL = 2.2

# Moments that `load` takes of the kept cells; `hvg` of such a run reads no counts. Processor time
# with 100,000 cells x 20,000 genes: ``load-moments-2026-11-25``.
NS_PER_MOMENT = 2.1

# pca: projection, per cell [1]; eigenvectors. A Gram matrix that a plate does not store
# costs as much as select_genes.
NS_PER_COMPONENT = 23
NS_PER_GENE_CUBED = 1
# explore packs the points of the page, per cell of the sample [6].
US_PER_PAGE_CELL = 15
US_PER_HARMONY_COMPONENT = 2  # per cell, for Harmony's usual number of rounds
# markers reads sums of 20 groups and 20,000 genes from each plate.
MARKERS_PLATE_S = 0.1
# consensus and report read a table per plate [2].
PLATE_S = 0.015
# Snakemake: before the first job, and in its main thread between the starts of two jobs [2].
SNAKEMAKE_START_S, JOB_START_S = 5, 0.08
