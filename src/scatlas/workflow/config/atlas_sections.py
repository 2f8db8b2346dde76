"""Sections on the merged plates: components, sample, map, clusters, new plates, devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from scatlas.workflow.config.values import (
    AboveZero,
    GpuMemory,
    LocalPath,
    MapMemory,
    Positive,
    Section,
    Text,
    check_block_budget,
    described,
    expand_home,
)

if TYPE_CHECKING:
    from typing import Self


class Scale(Section):
    """Scaling of the genes before PCA."""

    zero_center: bool = described(
        False, "Subtract each gene's mean before the clip at max_value.", strict=True
    )
    max_value: AboveZero | None = described(
        None, "Clip scaled values at this maximum, for example 10, to limit extreme cells."
    )


class PCA(Section):
    """Principal components of the merged plates."""

    n_comps: Positive = described(
        300,
        "Number of components. 50 is usual; 300 also separates the rare states of an atlas",
        "with millions of cells. It must be below the number of consensus genes and of cells.",
    )
    zero_center: bool = described(
        True, "Centre the genes (ordinary PCA). false: truncated SVD without centring.", strict=True
    )


class Subset(Section):
    """Sample of cells for the map and the clusters."""

    n_cells: Positive | None = described(
        None,
        "Cells to sample for neighbours, UMAP and Leiden. null: as map.method says, all cells",
        "or 1,000,000.",
        examples=[50_000],
    )
    by: list[Text] = described(
        [],
        "The obs columns whose combinations of values are strata, for example [plate,",
        "cell_line]: the sample has at least min_cells cells of each, so that rare ones are on",
        "the map. All other cells are drawn at random. []: no strata.",
        examples=[["plate", "cell_line"]],
    )
    min_cells: Positive = described(
        50,
        "Cells of each stratum in the sample at least, with by; all cells of a smaller",
        "stratum. n_cells must be enough for all strata.",
    )


class Neighbors(Section):
    """Graph of similar cells, for UMAP and Leiden."""

    n_neighbors: Annotated[int, Field(strict=True, ge=2)] = described(
        15, "Neighbours per cell. 10 to 30 is usual: few show detail, many show the overall shape."
    )
    n_pcs: Positive | None = described(
        None, "Use only the first n_pcs components. null: all of pca.n_comps."
    )


class UMAP(Section):
    """Two-dimensional map of the sample."""

    min_dist: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = described(
        0.5, "Minimal distance of points: 0.1 gives dense clusters, 0.5 spreads them."
    )


class Leiden(Section):
    """Clusters of the sample."""

    resolution: AboveZero = described(
        1.0, "A higher resolution gives more, smaller clusters. 0.2 to 2 is usual."
    )


class Map(Section):
    """Map and clusters of all cells."""

    cells: Literal["all", "sample"] = described(
        "all",
        "all: every cell of the atlas gets obsm['X_umap'] and obs['leiden']. sample: only the",
        "sampled cells get them, in umap.h5ad.",
    )
    method: Literal["auto", "full", "project"] = described(
        "auto",
        "full: neighbours, UMAP and clusters are computed with all cells. project: with a",
        "sample, subset.n_cells; every other cell gets its place and cluster from its nearest",
        "sampled cells, and obs has leiden_share (how many of these agree, 0 to 1) and",
        "map_distance (1 is usual, 2 is twice as far). auto: project if subset.n_cells is",
        "given, otherwise full if it fits into map.memory.",
    )
    memory: MapMemory = described(
        "16GB",
        "Memory for the method full: about 4 kB per cell with 50 components, 6 kB with 300.",
        examples=["16GB", "120GB"],
    )

    use: LocalPath | None = described(
        None,
        "An h5ad file or Zarr store with components of all cells of the atlas by another method,",
        "such as the latent space of scvi-tools. Neighbours, map and clusters are of these. null:",
        "of the principal components, or of those that integrate corrects.",
        examples=["latent.h5ad"],
    )
    use_rep: Text = described(
        "X_scVI", "With use: the key of obsm of these components, there and in the atlas."
    )


class NewPlates(Section):
    """New plates that are mapped onto a finished atlas."""

    max_missing_genes: Annotated[float, Field(strict=True, ge=0, lt=1)] = described(
        0.1,
        "Share of the atlas's genes that a new plate may lack. Missing genes count as zero,",
        "which moves its cells on the map; the log names them.",
    )
    obs: list[Text] = described(
        [],
        "The obs columns of the atlas, such as cell_type, whose labels new cells get by the",
        "vote of their nearest cells, as they get leiden. A column of this name on a new plate",
        "is kept with the prefix source_.",
    )
    n_reference: Annotated[int, Field(strict=True, ge=100)] = described(
        200_000,
        "Cells of the atlas among which the nearest are found: a random sample, or all cells",
        "of a smaller atlas. 1.5 kB of memory per cell with 300 components.",
    )


class Cluster(Section):
    """A Dask cluster that computes the blocks of a step."""

    kind: Literal["local-gpu", "local-cpu", "existing"] = described(
        "local-gpu",
        "local-gpu: one worker per GPU of the machine. local-cpu: workers on its CPUs.",
        "existing: a scheduler that is running already, with workers on any machine.",
    )
    devices: Positive | None = described(
        None, "local-gpu: number of GPUs. null: all that are free."
    )
    n_workers: Positive | None = described(
        None, "local-cpu: number of worker processes. null: Dask's choice."
    )
    threads_per_worker: Positive | None = described(
        None, "Threads per worker. null: 1 with local-gpu, Dask's choice with local-cpu."
    )
    protocol: Literal["tcp", "ucx"] | None = described(
        None,
        "local-gpu: protocol between the workers. ucx uses NVLink and needs distributed-ucxx.",
        "null: tcp.",
    )
    rmm_pool_size: GpuMemory | None = described(
        None,
        "Initial GPU memory per worker. null: half of the free memory.",
        examples=["20GB", "60GB"],
    )
    rmm_maximum_pool_size: GpuMemory | None = described(
        None,
        "Maximum of GPU memory per worker. null: 90% of the free memory.",
        examples=["20GB", "60GB"],
    )
    rmm_managed_memory: Annotated[bool, Field(strict=True)] | None = described(
        None, "Managed memory instead of a pool, with protocol tcp; see compute.memory."
    )
    device_memory_limit: GpuMemory | None = described(
        None,
        "local-gpu: a worker moves results to the host above this much GPU memory. null: 80%",
        "of the GPU.",
        examples=["20GB", "60GB"],
    )
    memory_limit: GpuMemory | None = described(
        None,
        "local-gpu and local-cpu: a worker moves results to disk above this much host memory.",
        "null: its share of the machine's memory.",
        examples=["20GB", "60GB"],
    )
    address: Text | None = described(
        None, "existing: address of the scheduler, for example tcp://10.0.0.1:8786."
    )
    scheduler_file: Annotated[Text, AfterValidator(expand_home)] | None = described(
        None, "existing: the scheduler file, which holds its address."
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        from scatlas.compute.cluster import check_cluster

        check_cluster(self.kind, self.model_dump(exclude_none=True, exclude={"kind"}))
        return self


class Compute(Section):
    """Memory and devices of a job."""

    block_budget: Annotated[Text, AfterValidator(check_block_budget)] = described(
        "auto",
        "Memory for the blocks of counts that a job processes at a time, at least 16MB; a",
        "block takes an eighth of it, at most 32MB. auto: 32MB for each thread of the job and",
        "one more, at least 256MB. Lower it on small machines.",
        examples=["auto", "64MB"],
    )
    memory: Literal["pool", "managed", "async", "default"] = described(
        "pool",
        "Allocator of GPU memory. pool: a pool of RMM, the fastest. async: CUDA's own pool.",
        "managed: memory that moves between host and GPU, slower. default: CuPy's pool, the",
        "only one that works without RMM.",
    )
    memory_limit: GpuMemory | None = described(
        None,
        "Maximum of GPU memory per job, which is at most 90% of its part (jobs_per_gpu). null:",
        "for a job with a whole GPU 90% of the free memory with pool, all free memory with",
        "managed, no limit otherwise. With managed and jobs_per_gpu: 1 it may exceed the GPU's",
        "memory, but some machines hang then.",
        examples=["20GB", "60GB"],
    )
    jobs_per_gpu: Literal[1, 2, 3, 4] = described(
        4,
        "Parts into which jobs divide each GPU of this machine and its memory. A job of a plate",
        "gets one, others half of the GPU, or more if they need more memory. Snakemake's resource",
        "gpu counts parts. Jobs on Slurm and jobs with compute.cluster have whole GPUs.",
    )
    cluster: Cluster | None = described(
        None,
        "Each of the steps hvg, select_genes and pca starts this Dask cluster for its blocks.",
        "The keys rmm_... set the GPU memory of its workers. null: the step uses threads, and",
        "one GPU if there is one, which is the fastest for plates in files.",
    )
