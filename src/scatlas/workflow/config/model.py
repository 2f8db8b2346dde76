"""The config of a run: one typed source of keys, defaults, schemas, documentation and options.

``load`` turns a config file (or Snakemake's ``config``) into a `Config`, or raises one
`ConfigError` that says in plain words what is wrong with which key. Everything else that knows
about the config is generated from the models here: the JSON schemas, ``config/config.yaml`` and
the key table of ``config/README.md`` (``python -m scatlas.workflow.config.generate --write``), and
the options of the scripts (`add_options`, `from_options`, `options`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from scatlas.errors import ConfigError
from scatlas.workflow.config.cli_options import add_options, from_options, options
from scatlas.workflow.config.messages import explain
from scatlas.workflow.config.plate_sheet import at_home

if TYPE_CHECKING:
    from typing import Self

    from scatlas.workflow.config.plate_sheet import Plate

__all__ = [
    "HVG",
    "PCA",
    "QC",
    "UMAP",
    "Cluster",
    "Compute",
    "Config",
    "Consensus",
    "Doublets",
    "Harmony",
    "Integrate",
    "Leiden",
    "Neighbors",
    "Normalize",
    "Pseudobulk",
    "Report",
    "Scale",
    "Subset",
    "add_options",
    "fit_to_plates",
    "from_options",
    "load",
    "options",
    "query_columns",
]

MIN_BLOCK_BUDGET = 16_000_000  # bytes
MIN_MEMORY_LIMIT = 1_000_000_000  # bytes


# Values -----------------------------------------------------------------------------------------
# Strict: YAML has real numbers, so text ("2000"), true and 3.0 are mistakes where a count belongs.

Text = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Percent = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


_STRINGS = re.compile(r"'(?:\\.|[^'\\])*'" + "|" + r'"(?:\\.|[^"\\])*"')


def query_columns(query: str) -> list[str]:
    """Name the obs columns that a pandas query asks for, in order of first use.

    Parameters
    ----------
    query
        As for `pandas.DataFrame.query`; column names that are no identifiers stand in backticks.

    Returns
    -------
    The column names.

    Raises
    ------
    ValueError
        The text is not a query, or asks for no column.
    """
    quoted: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        name = f"_quoted_{len(quoted)}_"
        quoted[name] = match[1]
        return name

    text = re.sub(r"`([^`]+)`", placeholder, query.strip())
    text = _STRINGS.sub("''", text)
    text = text.replace("&", " and ").replace("|", " or ")  # as pandas reads them
    if re.search(r"(?<![=!<>])=(?!=)", text):
        msg = f"{query!r} is not a query: compare with == instead of ="
        raise ValueError(msg)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        msg = f"{query!r} is not a query: write for example pass_filter == 'full'"
        raise ValueError(msg) from None
    names = sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.Name)),
        key=lambda node: (node.lineno, node.col_offset),
    )
    columns = list(dict.fromkeys(quoted.get(node.id, node.id) for node in names))
    if not columns:
        msg = f"{query!r} asks for no obs column: write for example pass_filter == 'full'"
        raise ValueError(msg)
    return columns


def _query(query: str) -> str:
    query_columns(query)
    return query


def _block_budget(text: str) -> str:
    least = (MIN_BLOCK_BUDGET, "is too small to work with: give at least 16MB")
    return _size(text, *least, examples="256MB or 1GB")


def _memory_limit(text: str) -> str:
    least = (MIN_MEMORY_LIMIT, "is too little for a GPU to work with: give at least 1GB")
    return _size(text, *least, examples="20GB")


def _size(text: str, least: int, too_small: str, *, examples: str) -> str:
    from scatlas._util.byte_sizes import parse_bytes

    try:
        size = parse_bytes(text)
    except ValueError:
        msg = f"{text!r} is not a size: write for example {examples}"
        raise ValueError(msg) from None
    if size < least:
        msg = f"{text!r} {too_small}"
        raise ValueError(msg)
    return text


def _folder(text: str) -> str:
    if "://" in text:
        msg = f"{text!r} is an address: results are written to a local folder"
        raise ValueError(msg)
    if set(at_home(text)) & set("{}"):
        msg = f"{text!r}: a folder for results cannot have braces in its name"
        raise ValueError(msg)
    return Path(
        at_home(text)
    ).as_posix()  # "results/" and "./results" name the same outputs as "results"


# On more than two plates, as Tahoe's notebook has it.
DEFAULT_MIN_PLATES = 3


# Sections ---------------------------------------------------------------------------------------


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QC(_Section):
    """Which cells and genes stay."""

    filter: Annotated[Text, AfterValidator(_query)] | None = Field(
        None,
        description=(
            "Keep the cells for which this is true of their obs columns, for example "
            "pass_filter == 'full', or phase == 'G1' and cell_line in ['A549', 'HepG2']. Names "
            "with spaces go in backticks. null keeps every cell."
        ),
    )
    min_genes: NonNegative | None = Field(
        None,
        description=(
            "Drop cells with fewer expressed genes than this. 200 to 500 is usual: below it are "
            "mostly empty droplets and debris."
        ),
    )
    max_genes: NonNegative | None = Field(
        None,
        description=(
            "Drop cells with more expressed genes than this. Look at the violins first: a thin "
            "far upper tail is often two cells read as one (doublets)."
        ),
    )
    min_counts: NonNegative | None = Field(
        None,
        description=(
            "Drop cells with fewer counts (UMIs) than this. 500 to 1000 is usual for droplets."
        ),
    )
    max_counts: NonNegative | None = Field(
        None, description="Drop cells with more counts (UMIs) than this."
    )
    max_pct_mt: Percent | None = Field(
        None,
        description=(
            "Drop cells with more than this percentage of their counts in mitochondrial genes. "
            "5 to 20 is usual: damaged cells lose other RNA first. Muscle and liver need more."
        ),
    )
    mt_prefix: Text = Field(
        "MT-",
        description="How mitochondrial gene names begin: MT- in human, mt- in mouse.",
    )
    gene_names: Text | None = Field(
        None,
        description=(
            "The var column of the plates that holds these names, for example feature_name or "
            "gene_symbols where var is indexed by gene ids. null: the index."
        ),
    )
    min_cells: NonNegative | None = Field(
        None,
        description=(
            "A gene expressed in fewer than this many of a plate's kept cells cannot be chosen as "
            "highly variable there. 3 to 10 leaves out noise."
        ),
    )
    drop_rare_genes: Positive | None = Field(
        None,
        description=(
            "Take genes that fewer than this many of a plate's cells express for absent: their "
            "counts are no part of a cell's depth, and they are not ranked. Cells are counted "
            "before any is dropped; the bounds above see all genes. Reads the plate once more."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for low, high in (("min_genes", "max_genes"), ("min_counts", "max_counts")):
            a, b = getattr(self, low), getattr(self, high)
            if a is not None and b is not None and a > b:
                msg = f"{low} ({a}) is above {high} ({b}), so no cell could stay: lower one"
                raise ValueError(msg)
        return self


class Normalize(_Section):
    """How cells of different depth are made comparable."""

    target_sum: AboveZero | None = Field(
        None,
        description=(
            "Scale every cell to this many counts before the logarithm, for example 10000. null "
            "takes the median of the plate's kept, non-empty cells, which changes the data least."
        ),
    )


class HVG(_Section):
    """How a plate's highly variable genes (HVG) are chosen."""

    flavor: Literal["seurat", "cell_ranger", "seurat_v3"] = Field(
        "seurat",
        description=(
            "How genes are ranked, as in scanpy: seurat is the usual one. seurat_v3 ranks raw "
            "counts, which it reads twice."
        ),
    )
    n_top_genes: Positive = Field(
        2000,
        description=(
            "Highly variable genes per plate. 1000 to 5000 is usual: more of them tell finer "
            "states apart and cost memory and time."
        ),
    )


class Consensus(_Section):
    """Which plates' genes make the atlas."""

    min_plates: Positive | None = Field(
        None,
        description=(
            "The atlas keeps the genes that are highly variable on at least this many plates. "
            "Higher keeps fewer, more reproducible genes; never more than the number of plates. "
            "null takes 3, or all plates if there are fewer."
        ),
    )


class Scale(_Section):
    """Scaling of the genes before PCA."""

    zero_center: bool = Field(
        False,
        strict=True,
        description="Subtract each gene's mean before the clip at max_value.",
    )
    max_value: AboveZero | None = Field(
        None,
        description="Clip scaled values here, for example 10, to tame single extreme cells.",
    )


class PCA(_Section):
    """Principal components of the merged plates."""

    n_comps: Positive = Field(
        300,
        description=(
            "Components to compute. 50 is usual, 300 holds the rare states of an atlas with "
            "millions of cells; fewer than the consensus genes and the cells."
        ),
    )
    zero_center: bool = Field(
        True,
        strict=True,
        description="Centre the genes (ordinary PCA). false gives the uncentred, truncated SVD.",
    )


class Subset(_Section):
    """The sample of cells that is drawn."""

    n_cells: Positive | None = Field(
        1_000_000,
        description=(
            "Cells to sample for neighbours, UMAP and Leiden. null, and an atlas with fewer cells, "
            "takes all. UMAP of a million cells takes long on a CPU; 50000 show the same shape."
        ),
    )


class Neighbors(_Section):
    """The graph of similar cells under UMAP and Leiden."""

    n_neighbors: Annotated[int, Field(strict=True, ge=2)] = Field(
        15,
        description=(
            "Neighbours per cell. 10 to 30 is usual: small shows detail, large shows the overall "
            "shape."
        ),
    )
    n_pcs: Positive | None = Field(
        None, description="Use only the first so many components. null uses all of pca.n_comps."
    )


class UMAP(_Section):
    """The two-dimensional picture."""

    min_dist: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = Field(
        0.5, description="How tightly points may lie. 0.1 packs clusters, 0.5 spreads them."
    )


class Leiden(_Section):
    """Clustering."""

    resolution: AboveZero = Field(
        1.0, description="Higher gives more, smaller clusters. 0.2 to 2 is usual."
    )


class Pseudobulk(_Section):
    """Counts of the cells that are alike, summed."""

    by: Annotated[list[Text], Field(min_length=1)] = Field(
        ["cell_line", "drug"],
        description=(
            "The obs columns whose values make the groups. Each plate has its own groups; cells "
            "without a value are left out."
        ),
    )


class Doublets(_Section):
    """Cells that are two read as one."""

    by: Text | None = Field(
        None,
        description=(
            "The obs column that tells a plate's captures apart, such as lanes or sublibraries: "
            "doublets are made of cells of one. null: the plate is one capture."
        ),
    )
    expected_doublet_rate: Annotated[float, Field(strict=True, gt=0, lt=1)] = Field(
        0.05,
        description=(
            "Share of doublets that the protocol lets expect, for example 0.08 for 10,000 cells in "
            "a droplet lane."
        ),
    )
    threshold: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = Field(
        None,
        description=(
            "Score above which a cell is taken for a doublet. null: between the two modes of the "
            "simulated doublets' scores; look at their histogram."
        ),
    )
    filter: bool = Field(
        False,
        strict=True,
        description="Leave them out of the atlas. false: they stay, and obs says which they are.",
    )


class Harmony(_Section):
    """How Harmony mixes the cells of different plates."""

    key: Annotated[list[Text], Field(min_length=1)] = Field(
        ["plate"],
        description=(
            "The obs columns whose values are to be mixed, such as plate, or donor of the plate "
            "sheet. What they tell apart for good is lost: mix no column that is your question."
        ),
    )
    n_pcs: Positive | None = Field(
        None, description="Use only the first so many components. null uses all of pca.n_comps."
    )
    theta: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = Field(
        2.0,
        description="How hard to mix: 0 leaves it to chance, 1 to 4 is usual.",
    )
    max_iter_harmony: Positive = Field(10, description="Rounds at most; it ends when it is done.")


class Integrate(Harmony):
    """Components, map and clusters in which plates are mixed."""

    cells: Literal["subset", "all"] = Field(
        "subset",
        description=(
            "subset: the cells of the sample. all: those of the atlas, whose obsm then has "
            "X_pca_harmony; takes 3 kB of memory a cell with 50 components, 13 kB with 300."
        ),
    )
    umap: bool = Field(
        True, strict=True, description="Also draw the map and find the clusters of mixed cells."
    )
    label: Text | None = Field(
        "cell_line",
        description=(
            "The obs column whose values should stay apart, to see whether mixing has blurred "
            "them. null, and a column that the cells lack: none."
        ),
    )


class Report(_Section):
    """What the report shows."""

    colors: list[Text] = Field(
        ["cell_line", "plate", "drug", "leiden"],
        description=(
            "The obs columns by which the UMAP is coloured, one picture each. Columns that the "
            "plates lack are left out."
        ),
    )


class Cluster(_Section):
    """A Dask cluster on which the blocks of a step are worked on."""

    kind: Literal["local-gpu", "local-cpu", "existing"] = Field(
        "local-gpu",
        description=(
            "local-gpu: one worker a GPU of the machine. local-cpu: workers on its CPUs. existing: "
            "a scheduler that runs, wherever its workers are."
        ),
    )
    devices: Positive | None = Field(
        None, description="local-gpu: how many GPUs. null: all that are free."
    )
    n_workers: Positive | None = Field(
        None, description="local-cpu: worker processes. null: as Dask chooses."
    )
    threads_per_worker: Positive | None = Field(
        None,
        description=(
            "Threads of each worker. null: 1 with local-gpu, as Dask chooses with local-cpu."
        ),
    )
    protocol: Literal["tcp", "ucx"] | None = Field(
        None,
        description=(
            "local-gpu: how workers speak to each other. ucx uses NVLink and needs "
            "distributed-ucxx. null: tcp."
        ),
    )
    rmm_pool_size: Annotated[Text, AfterValidator(_memory_limit)] | None = Field(
        None,
        description="GPU memory that each worker takes at once. null: half of what is free.",
        examples=["20GB", "60GB"],
    )
    rmm_maximum_pool_size: Annotated[Text, AfterValidator(_memory_limit)] | None = Field(
        None,
        description="The most GPU memory that each worker takes. null: 90% of what is free.",
        examples=["20GB", "60GB"],
    )
    rmm_managed_memory: Annotated[bool, Field(strict=True)] | None = Field(
        None,
        description=(
            "Managed memory in place of a pool, in workers that speak tcp; see compute.memory."
        ),
    )
    device_memory_limit: Annotated[Text, AfterValidator(_memory_limit)] | None = Field(
        None,
        description=(
            "local-gpu: results beyond this much memory of a GPU are spilled to the host. null: "
            "80% of it."
        ),
        examples=["20GB", "60GB"],
    )
    memory_limit: Annotated[Text, AfterValidator(_memory_limit)] | None = Field(
        None,
        description=(
            "Local kinds: results beyond this much host memory of a worker are spilled to disk. "
            "null: its share of the machine's."
        ),
        examples=["20GB", "60GB"],
    )
    address: Text | None = Field(
        None, description="existing: address of the scheduler, for example tcp://10.0.0.1:8786."
    )
    scheduler_file: Annotated[Text, AfterValidator(at_home)] | None = Field(
        None, description="existing: the file in which the scheduler has written its address."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        from scatlas.compute.cluster_options import check_cluster

        check_cluster(self.kind, self.model_dump(exclude_none=True, exclude={"kind"}))
        return self


class Compute(_Section):
    """What a job may use."""

    block_budget: Annotated[Text, AfterValidator(_block_budget)] = Field(
        "256MB",
        description=(
            "Memory for the counts that a job holds in flight, at least 16MB. Lower it on small "
            "machines; the default suits plates of any size."
        ),
        examples=["256MB", "1GB"],
    )
    memory: Literal["pool", "managed", "async", "default"] = Field(
        "pool",
        description=(
            "How GPU memory is handed out. pool: a part of the GPU taken at once, the quickest. "
            "async: CUDA's own pool. managed: memory that moves between host and GPU, slower. "
            "default: CuPy's pool, the only one that needs no RMM."
        ),
    )
    memory_limit: Annotated[Text, AfterValidator(_memory_limit)] | None = Field(
        None,
        description=(
            "The most GPU memory that a job hands out. null: 90% of what is free with pool, what "
            "is free with managed, no limit else. With managed it may be more than the GPU has, "
            "but some machines hang then."
        ),
        examples=["20GB", "60GB"],
    )
    cluster: Cluster | None = Field(
        None,
        description=(
            "A Dask cluster for the blocks of hvg, select_genes and pca, started by each of these "
            "steps; its workers' GPU memory is what this section says. null: threads of the "
            "step itself, on one GPU if there is one, which is the quickest for plates in files."
        ),
    )


class Config(_Section):
    """Config of a scatlas run. Every key that is left out takes its default."""

    plates: Annotated[Text, AfterValidator(at_home)] = Field(
        "config/plates.tsv",
        description=(
            "The plate sheet: a tab-separated table with one row a plate and the columns plate (a "
            "name) and path (its h5ad or Zarr). ~ is your home, here and in the sheet."
        ),
    )
    outdir: Annotated[Text, AfterValidator(_folder)] = Field(
        "results", description="The folder for all results. ~ is your home."
    )
    backend: Literal["auto", "cpu", "gpu"] = Field(
        "auto",
        description=(
            "What the steps hvg, select_genes, pca, umap and integrate compute on; the others run "
            "on the CPU. gpu: an NVIDIA GPU, and an error that says why where none can be used. "
            "auto: a GPU where one can be used, else the CPU; the step's log says why. Both wait "
            "for GPUs that other jobs of this workflow have. Results agree to rounding (the UMAP "
            "in its shape, the clusters but for cells between two), so a change of this key runs "
            "no finished step again; --forcerun does."
        ),
    )
    seed: Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)] = Field(
        0,
        description=(
            "Random seed of the sample, UMAP, Leiden, Harmony and simulated doublets: the same "
            "seed, the same result (Leiden on a GPU: almost the same)."
        ),
    )
    qc: QC = Field(QC(), description="Which cells and genes stay. null: no bound.")
    genes: Literal["same", "intersect"] = Field(
        "same",
        description=(
            "same: all plates must have the same genes in the same order. intersect: genes that "
            "every plate has, in the order of the first plate."
        ),
    )
    doublets: Doublets | None = Field(
        None,
        description=(
            "Score the kept cells of each plate by Scrublet: doublet_score and predicted_doublet "
            "in the atlas's obs. null: not done."
        ),
    )
    normalize: Normalize = Field(
        Normalize(), description="How cells of different depth are made comparable."
    )
    hvg: HVG = Field(HVG(), description="How a plate's highly variable genes (HVG) are chosen.")
    consensus: Consensus = Field(Consensus(), description="Which genes make the atlas.")
    scale: Scale | None = Field(
        None,
        description=(
            "Scale genes to unit variance before PCA, so that weakly expressed genes weigh as "
            "much as strong ones. null: no scaling."
        ),
    )
    pca: PCA = Field(PCA(), description="Principal components of the merged plates.")
    subset: Subset = Field(Subset(), description="The sample of cells that is drawn.")
    neighbors: Neighbors = Field(
        Neighbors(), description="The graph of similar cells under UMAP and Leiden."
    )
    umap: UMAP = Field(UMAP(), description="The two-dimensional picture.")
    leiden: Leiden = Field(Leiden(), description="Clustering.")
    pseudobulk: Pseudobulk | None = Field(
        None,
        description=(
            "Also sum the raw counts of the kept cells of each plate and group, all genes: "
            "pseudobulk.h5ad. null: not made."
        ),
    )
    integrate: Integrate | None = Field(
        None,
        description=(
            "Mix the cells of different plates by Harmony: integrated.h5ad, with "
            "obsm['X_pca_harmony'], pictures before and after, and scores. null: not done."
        ),
    )
    report: Report = Field(Report(), description="What the report shows.")
    compute: Compute = Field(Compute(), description="What a job may use.")

    @field_validator(
        *("qc", "normalize", "hvg", "consensus", "pca", "subset"),
        *("neighbors", "umap", "leiden", "report", "compute"),
        mode="before",
    )
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        # A section whose keys are all commented out arrives as null.
        return {} if value is None else value

    @model_validator(mode="after")
    def _components(self) -> Self:
        n_pcs = self.neighbors.n_pcs
        if n_pcs is not None and n_pcs > self.pca.n_comps:
            msg = (
                f"neighbors.n_pcs ({n_pcs}) is above pca.n_comps ({self.pca.n_comps}): compute "
                "more components or use fewer"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _mixed_components(self) -> Self:
        mixed = self.integrate.n_pcs if self.integrate else None
        if mixed is not None and mixed > self.pca.n_comps:
            msg = (
                f"integrate.n_pcs ({mixed}) is above pca.n_comps ({self.pca.n_comps}): compute "
                "more components or use fewer"
            )
            raise ValueError(msg)
        n_pcs = self.neighbors.n_pcs
        if mixed is not None and n_pcs is not None and n_pcs > mixed:
            msg = (
                f"neighbors.n_pcs ({n_pcs}) is above integrate.n_pcs ({mixed}): neighbours are "
                "found among the mixed components too; mix as many"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _one_device(self) -> Self:
        kind = self.compute.cluster.kind if self.compute.cluster else None
        if (self.backend, kind) in {("cpu", "local-gpu"), ("gpu", "local-cpu")}:
            msg = f"compute.cluster.kind is {kind}, but backend is {self.backend}: change one"
            raise ValueError(msg)
        return self


# Loading ----------------------------------------------------------------------------------------


def load(source: Mapping[str, Any] | Path | str) -> Config:
    """Read and check a config.

    Parameters
    ----------
    source
        A YAML file, or what has been read from one (Snakemake's ``config``).

    Returns
    -------
    The config, with a default for each key that was left out.

    Raises
    ------
    ConfigError
        With one sentence for each problem: the key, its value and what is allowed.
    """
    if isinstance(source, Mapping):
        data, where = dict(source), "config"
    else:
        data, where = _read_yaml(Path(source)), str(source)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = explain(error, Config)
        if len(problems) == 1:
            msg = f"{where}: {problems[0]}"
        else:
            msg = "\n- ".join([f"{where} has {len(problems)} problems:", *problems])
        raise ConfigError(msg) from None


def fit_to_plates(config: Config, plates: Sequence[Plate]) -> Config:
    """Return the config with the defaults that depend on the number of plates.

    Raises
    ------
    ConfigError
        ``consensus.min_plates`` asks for more plates than there are, or ``pca.n_comps`` for more
        components than so many plates' genes can give.
    """
    n = len(plates)
    if config.consensus.min_plates is None:
        consensus = config.consensus.model_copy(update={"min_plates": min(DEFAULT_MIN_PLATES, n)})
        config = config.model_copy(update={"consensus": consensus})
    if config.consensus.min_plates > n:
        msg = (
            f"consensus.min_plates is {config.consensus.min_plates}, but {config.plates} has "
            f"{n} plate{'s' * (n != 1)}: no gene could be chosen; give at most {n}"
        )
        raise ConfigError(msg)
    # Each gene of the atlas has the votes of so many plates.
    max_genes = config.hvg.n_top_genes * n // config.consensus.min_plates
    if config.pca.n_comps > max_genes:
        msg = (
            f"pca.n_comps is {config.pca.n_comps}, but the atlas has at most {max_genes} genes: "
            f"hvg.n_top_genes ({config.hvg.n_top_genes}) of each of {n} plates, agreed "
            f"on by consensus.min_plates ({config.consensus.min_plates}); compute fewer components "
            "or raise hvg.n_top_genes"
        )
        raise ConfigError(msg)
    return config


class _Loader(yaml.SafeLoader):
    """YAML as Snakemake reads it, except that a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                msg = f"key {name!r} is given twice, on lines {seen[name]} and {line}"
                raise ConfigError(msg)
            seen[name] = line
        return super().construct_mapping(node, deep=deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text("utf-8-sig"), _Loader)  # a SafeLoader
    except FileNotFoundError:
        msg = f"{path}: there is no such config file"
        raise ConfigError(msg) from None
    except IsADirectoryError:
        msg = f"{path} is a folder: give a config file"
        raise ConfigError(msg) from None
    except UnicodeDecodeError:
        msg = f"{path} is not a text file: save the config as plain text (UTF-8)"
        raise ConfigError(msg) from None
    except ConfigError as error:
        msg = f"{path}: {error}; keep one of them"
        raise ConfigError(msg) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        hint = "indent with spaces, not tabs" if "\\t" in problem else "check colons and indents"
        msg = f"{path}{line}: not valid YAML ({problem}); {hint}"
        raise ConfigError(msg) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        msg = f"{path}: a config is a list of 'key: value' lines, not {type(data).__name__}"
        raise ConfigError(msg)
    return data
