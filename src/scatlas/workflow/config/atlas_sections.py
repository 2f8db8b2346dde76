"""Sections on the merged plates: components, sample, map, clusters, new plates, devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from scatlas.workflow.config.plate_sheet import expand_home
from scatlas.workflow.config.values import (
    AboveZero,
    GpuMemory,
    MapMemory,
    Positive,
    Section,
    Text,
    check_block_budget,
)

if TYPE_CHECKING:
    from typing import Self


class Scale(Section):
    """Scaling of the genes before PCA."""

    zero_center: bool = Field(
        False, strict=True, description="Subtract each gene's mean before the clip at max_value."
    )
    max_value: AboveZero | None = Field(
        None,
        description="Clip scaled values at this maximum, for example 10, to limit extreme cells.",
    )


class PCA(Section):
    """Principal components of the merged plates."""

    n_comps: Positive = Field(
        300,
        description=(
            "Number of components. 50 is usual; 300 also separates the rare states of an atlas "
            "with millions of cells. It must be below the number of consensus genes and of cells."
        ),
    )
    zero_center: bool = Field(
        True,
        strict=True,
        description="Centre the genes (ordinary PCA). false: truncated SVD without centring.",
    )


class Subset(Section):
    """Sample of cells for the map and the clusters."""

    n_cells: Positive | None = Field(
        None,
        description=(
            "Cells to sample for neighbours, UMAP and Leiden. null: as map.method says, all cells "
            "or 1,000,000."
        ),
        examples=[50_000],
    )
    by: list[Text] = Field(
        [],
        description=(
            "The obs columns whose combinations of values are strata, for example [plate, "
            "cell_line]: the sample has at least min_cells cells of each, so that rare ones are on "
            "the map. All other cells are drawn at random. []: no strata."
        ),
        examples=[["plate", "cell_line"]],
    )
    min_cells: Positive = Field(
        50,
        description=(
            "Cells of each stratum in the sample at least, with by; all cells of a smaller "
            "stratum. n_cells must be enough for all strata."
        ),
    )


class Neighbors(Section):
    """Graph of similar cells, for UMAP and Leiden."""

    n_neighbors: Annotated[int, Field(strict=True, ge=2)] = Field(
        15,
        description=(
            "Neighbours per cell. 10 to 30 is usual: few show detail, many show the overall shape."
        ),
    )
    n_pcs: Positive | None = Field(
        None, description="Use only the first n_pcs components. null: all of pca.n_comps."
    )


class UMAP(Section):
    """Two-dimensional map of the sample."""

    min_dist: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = Field(
        0.5, description="Minimal distance of points: 0.1 gives dense clusters, 0.5 spreads them."
    )


class Leiden(Section):
    """Clusters of the sample."""

    resolution: AboveZero = Field(
        1.0, description="A higher resolution gives more, smaller clusters. 0.2 to 2 is usual."
    )


class Map(Section):
    """Map and clusters of all cells."""

    cells: Literal["all", "sample"] = Field(
        "all",
        description=(
            "all: every cell of the atlas gets obsm['X_umap'] and obs['leiden']. sample: only the "
            "sampled cells get them, in umap.h5ad."
        ),
    )
    method: Literal["auto", "full", "project"] = Field(
        "auto",
        description=(
            "full: neighbours, UMAP and clusters are computed with all cells. project: with a "
            "sample, subset.n_cells; every other cell gets its place and cluster from its nearest "
            "sampled cells, and obs has leiden_share (how many of these agree, 0 to 1) and "
            "map_distance (1 is usual, 2 is twice as far). auto: project if subset.n_cells is "
            "given, otherwise full if it fits into map.memory."
        ),
    )
    memory: MapMemory = Field(
        "16GB",
        description=(
            "Memory for the method full: about 4 kB per cell with 50 components, 6 kB with 300."
        ),
        examples=["16GB", "120GB"],
    )


class NewPlates(Section):
    """New plates that are mapped onto a finished atlas."""

    max_missing_genes: Annotated[float, Field(strict=True, ge=0, lt=1)] = Field(
        0.1,
        description=(
            "Share of the atlas's genes that a new plate may lack. Missing genes count as zero, "
            "which moves its cells on the map; the log names them."
        ),
    )
    obs: list[Text] = Field(
        [],
        description=(
            "The obs columns of the atlas, such as cell_type, whose labels new cells get by the "
            "vote of their nearest cells, as they get leiden. A column of this name on a new plate "
            "is kept with the prefix source_."
        ),
    )
    n_reference: Annotated[int, Field(strict=True, ge=100)] = Field(
        200_000,
        description=(
            "Cells of the atlas among which the nearest are found: a random sample, or all cells "
            "of a smaller atlas. 1.5 kB of memory per cell with 300 components."
        ),
    )


class Cluster(Section):
    """A Dask cluster that computes the blocks of a step."""

    kind: Literal["local-gpu", "local-cpu", "existing"] = Field(
        "local-gpu",
        description=(
            "local-gpu: one worker per GPU of the machine. local-cpu: workers on its CPUs. "
            "existing: a scheduler that is running already, with workers on any machine."
        ),
    )
    devices: Positive | None = Field(
        None, description="local-gpu: number of GPUs. null: all that are free."
    )
    n_workers: Positive | None = Field(
        None, description="local-cpu: number of worker processes. null: Dask's choice."
    )
    threads_per_worker: Positive | None = Field(
        None,
        description=("Threads per worker. null: 1 with local-gpu, Dask's choice with local-cpu."),
    )
    protocol: Literal["tcp", "ucx"] | None = Field(
        None,
        description=(
            "local-gpu: protocol between the workers. ucx uses NVLink and needs distributed-ucxx. "
            "null: tcp."
        ),
    )
    rmm_pool_size: GpuMemory | None = Field(
        None,
        description="Initial GPU memory per worker. null: half of the free memory.",
        examples=["20GB", "60GB"],
    )
    rmm_maximum_pool_size: GpuMemory | None = Field(
        None,
        description="Maximum of GPU memory per worker. null: 90% of the free memory.",
        examples=["20GB", "60GB"],
    )
    rmm_managed_memory: Annotated[bool, Field(strict=True)] | None = Field(
        None,
        description=("Managed memory instead of a pool, with protocol tcp; see compute.memory."),
    )
    device_memory_limit: GpuMemory | None = Field(
        None,
        description=(
            "local-gpu: a worker moves results to the host above this much GPU memory. null: 80% "
            "of the GPU."
        ),
        examples=["20GB", "60GB"],
    )
    memory_limit: GpuMemory | None = Field(
        None,
        description=(
            "local-gpu and local-cpu: a worker moves results to disk above this much host memory. "
            "null: its share of the machine's memory."
        ),
        examples=["20GB", "60GB"],
    )
    address: Text | None = Field(
        None, description="existing: address of the scheduler, for example tcp://10.0.0.1:8786."
    )
    scheduler_file: Annotated[Text, AfterValidator(expand_home)] | None = Field(
        None, description="existing: the scheduler file, which holds its address."
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        from scatlas.compute.cluster import check_cluster

        check_cluster(self.kind, self.model_dump(exclude_none=True, exclude={"kind"}))
        return self


class Compute(Section):
    """Memory and devices of a job."""

    block_budget: Annotated[Text, AfterValidator(check_block_budget)] = Field(
        "auto",
        description=(
            "Memory for the blocks of counts that a job processes at a time, at least 16MB; a "
            "block takes an eighth of it, at most 32MB. auto: 32MB for each thread of the job and "
            "one more, at least 256MB. Lower it on small machines."
        ),
        examples=["auto", "64MB"],
    )
    memory: Literal["pool", "managed", "async", "default"] = Field(
        "pool",
        description=(
            "Allocator of GPU memory. pool: a pool of RMM, the fastest. async: CUDA's own pool. "
            "managed: memory that moves between host and GPU, slower. default: CuPy's pool, the "
            "only one that works without RMM."
        ),
    )
    memory_limit: GpuMemory | None = Field(
        None,
        description=(
            "Maximum of GPU memory per job, which is at most 90% of its part (jobs_per_gpu). null: "
            "for a job with a whole GPU 90% of the free memory with pool, all free memory with "
            "managed, no limit otherwise. With managed and jobs_per_gpu: 1 it may exceed the GPU's "
            "memory, but some machines hang then."
        ),
        examples=["20GB", "60GB"],
    )
    jobs_per_gpu: Literal[1, 2, 3, 4] = Field(
        2,
        description=(
            "Parts into which jobs divide each GPU of this machine and its memory. A job gets one, "
            "or more if it needs more memory. Snakemake's resource gpu counts parts. Jobs on Slurm "
            "and jobs with compute.cluster have whole GPUs."
        ),
    )
    cluster: Cluster | None = Field(
        None,
        description=(
            "Each of the steps hvg, select_genes and pca starts this Dask cluster for its blocks. "
            "The keys rmm_... set the GPU memory of its workers. null: the step uses threads, and "
            "one GPU if there is one, which is the fastest for plates in files."
        ),
    )
