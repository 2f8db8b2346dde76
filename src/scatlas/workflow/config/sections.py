"""The sections of the config: keys, types, defaults and what each key means.

Everything else that knows the keys follows from the models here: ``config/config.yaml`` and the key
table of ``config/README.md`` (``python -m scatlas.workflow.config.generate --write``), the JSON
schemas for editors, which are built with the documentation, and the options of the scripts
(`scatlas.workflow.config.cli_options`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from scatlas._util.gene_lists import GeneRule  # noqa: TC001  (pydantic evaluates it)
from scatlas.workflow.config.cell_query import query_columns
from scatlas.workflow.config.min_plates import min_plates_of
from scatlas.workflow.config.plate_sheet import COUNTS, expand_home

if TYPE_CHECKING:
    from typing import Self

MIN_BLOCK_BUDGET = 16_000_000  # bytes
MIN_MEMORY_LIMIT = 1_000_000_000  # bytes


# Values -----------------------------------------------------------------------------------------
# Strict: YAML has real numbers, so true and 3.0 are mistakes where a count belongs. All values of
# Snakemake's `--config section='{key: 2000}'` are text: see `_Section`.

Text = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Percent = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


def _check_query(query: str) -> str:
    query_columns(query)
    return query


def _check_block_budget(text: str) -> str:
    if text == "auto":
        return text
    too_small = "is too small: give at least 16MB"
    return _check_size(text, MIN_BLOCK_BUDGET, too_small, examples="256MB or 1GB")


def _check_memory_limit(text: str) -> str:
    too_small = "is too little for a GPU: give at least 1GB"
    return _check_size(text, MIN_MEMORY_LIMIT, too_small, examples="20GB")


def _check_size(text: str, min_bytes: int, too_small: str, *, examples: str) -> str:
    from scatlas._util.byte_sizes import parse_bytes

    try:
        n_bytes = parse_bytes(text)
    except ValueError:
        msg = f"{text!r} is not a size: write for example {examples}"
        raise ValueError(msg) from None
    if n_bytes < min_bytes:
        msg = f"{text!r} {too_small}"
        raise ValueError(msg)
    return text


def _check_min_plates(value: Any) -> Any:
    if value is None:
        return None
    is_list = isinstance(value, list)
    value = [_number_of(entry) for entry in value] if is_list else _number_of(value)
    for entry in value if is_list and value else [value]:
        is_number = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 1
        is_share = isinstance(entry, str) and re.fullmatch(r"\d+(\.\d+)?%", entry)
        if not is_number and not (is_share and 0 < float(entry[:-1]) <= 100):
            msg = (
                f"{entry!r} is neither a number of plates (at least 1) nor a share of them: write "
                "for example 3, 10% or [3, 10%]"
            )
            raise ValueError(msg)
    return value


def _folder(text: str) -> str:
    protocol, is_address, path = text.partition("://")
    if is_address and (protocol in {"http", "https"} or not path.strip("/")):
        msg = f"{text!r}: results can be copied to an address such as s3://bucket/folder"
        raise ValueError(msg)
    path = text.rstrip("/") if is_address else expand_home(text)
    if set(path) & set("{}"):
        msg = f"{text!r}: a folder for results cannot have braces in its name"
        raise ValueError(msg)
    if is_address:
        return path
    return Path(path).as_posix()  # "results/" and "./results" name the same outputs as "results"


def _local_file(path: str) -> str:
    if "://" in path:
        msg = f"{path!r} is an address: copy the file to this machine, it is read several times"
        raise ValueError(msg)
    return path


# Of Tahoe-100M.
_MARKER: list[float] = [1, -2]


def _check_marker(value: Any) -> Any:
    entry = [_number_of(part) for part in value] if isinstance(value, list) else value
    if entry in (None, [None]):
        return None
    if not isinstance(entry, list) or [*map(type, entry)] not in ([int, int], [int, float]):
        msg = f"{value!r} is no entry: write its token and its value, as [1, -2], or null for none"
        raise ValueError(msg)
    return entry


def _check_map_memory(text: str) -> str:
    too_small = "is too little for a map: give at least 1GB"
    return _check_size(text, MIN_MEMORY_LIMIT, too_small, examples="16GB")


MinPlates = Annotated[
    Positive | Text | list[Positive | Text] | None, BeforeValidator(_check_min_plates)
]
Query = Annotated[Text, AfterValidator(_check_query)]
GpuMemory = Annotated[Text, AfterValidator(_check_memory_limit)]
MapMemory = Annotated[Text, AfterValidator(_check_map_memory)]


# Sections ---------------------------------------------------------------------------------------


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, data: Any) -> Any:
        """Take text as a number, a flag or null where the key is one; one name is a list of one."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: _value_of(value, fields[key].annotation) if key in fields else value
            for key, value in data.items()
        }


def _value_of(value: Any, annotation: Any) -> Any:
    kinds = _kinds(annotation)
    if isinstance(value, str) and list in kinds and str not in kinds:
        return [value]
    return _number_of(value) if kinds and str not in kinds else value


def _number_of(value: Any) -> Any:
    """The number, flag or null that YAML reads a text as; other values as they are."""
    if not isinstance(value, str):
        return value
    import yaml

    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return found if found is None or isinstance(found, bool | int | float) else value


def _kinds(annotation: Any) -> set[type]:
    """Types of a key's values: str, int, float, bool, list, and models."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation))) - {NoneType}
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    return {origin or annotation}


class Plates(_Section):
    """The plates, and what happens if one of them cannot be used."""

    sheet: Annotated[Text, AfterValidator(expand_home)] = Field(
        "config/plates.tsv",
        description=(
            "The plate sheet: a tab-separated table with one row per plate and the columns plate "
            "(a name) and path (its h5ad or Zarr). ~ is your home folder, here and in the sheet. "
            "Or a folder of plates, or a pattern of their paths, such as "
            "runs/*/filtered_feature_bc_matrix.h5: plates are named by what differs in the paths. "
            "plates: my.tsv is short for plates: {sheet: my.tsv}."
        ),
    )
    path: Annotated[Text, AfterValidator(expand_home), AfterValidator(_local_file)] | None = Field(
        None,
        description=(
            "In place of a sheet, one h5ad or Zarr file of all samples, each of which becomes a "
            "plate: plates: {path: atlas.h5ad, by: sample}. Or the folder of a Parquet release: "
            "plates: {path: tahoe, by: plate}. On this machine."
        ),
    )
    by: Text | None = Field(
        None,
        description=(
            "The obs column of this file that names the sample of each cell. Plates have the names "
            "of the samples, with underscores in place of spaces, slashes and other characters "
            "that a plate's name cannot have; the column keeps the names."
        ),
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop",
        description=(
            "If a plate is empty, damaged, of other genes, or loses all cells: stop ends the run "
            "after the steps of all other plates, and names all such plates. skip leaves them out "
            "of the atlas, which is the same as if the sheet did not list them; the report lists "
            "them, and they come in once their files are mended."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_sheet_alone(cls, value: Any) -> Any:
        return {"sheet": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if (self.path is None) != (self.by is None):
            msg = "a file of samples needs both keys, path and by: give both, or a sheet"
            raise ValueError(msg)
        if self.path and "sheet" in self.model_fields_set:
            msg = f"give a sheet ({self.sheet}) or a file of samples ({self.path}), not both"
            raise ValueError(msg)
        return self

    @property
    def place(self) -> str:
        """The sheet, or the file of samples."""
        return self.path or self.sheet

    @property
    def skips(self) -> bool:
        """Whether bad plates are left out."""
        return self.on_error == "skip"


def _text_or_section(schema: dict[str, Any]) -> None:
    """Schema of ``plates``, which may be given by its sheet alone."""
    section = {"$ref": schema.pop("$ref")}
    schema |= {"anyOf": [{"type": "string"}, section], "default": Plates().sheet}


class Source(_Section):
    """Content of the plates' files."""

    counts: Text = Field(
        "X",
        description=(
            "Where the raw counts are: X, raw (raw.X, with the genes of raw.var), or layers/NAME, "
            "for example layers/counts; in files of Cell Ranger 2 with several genomes "
            "genome/NAME. A column counts of the plate sheet says so per plate. In Parquet files, "
            "beside the key genes, the column of the lists of counts."
        ),
        examples=["X", "raw", "layers/counts"],
    )
    fractional: Literal["refuse", "round"] = Field(
        "refuse",
        description=(
            "Fractional counts. refuse: an error, because such values are normalised most often. "
            "round: to the nearest whole number, halves to the even one, for expected counts of "
            "alevin, RSEM or a correction for ambient RNA. A column fractional of the plate sheet "
            "says so per plate."
        ),
    )
    genes: Text | None = Field(
        None,
        description=(
            "In Parquet files, the column of the lists of gene tokens. null: the one of lists of "
            "whole numbers, with the counts in the one of lists of floating point."
        ),
    )
    marker: Annotated[list[float] | None, BeforeValidator(_check_marker)] = Field(
        _MARKER,
        description=(
            "In Parquet files, token and value of the first entry of a cell where this is no gene, "
            "as in Tahoe-100M. null: there is none."
        ),
    )

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.genes is None and not re.match(COUNTS, self.counts):
            msg = (
                f"counts is {self.counts!r}; write X, raw or layers/NAME, or for a column of "
                "Parquet files the key genes, too"
            )
            raise ValueError(msg)
        return self

    @property
    def lists(self) -> str:
        """The keys of Parquet files as JSON, ``ListColumns`` of `scatlas.io`; "" by default."""
        given = self.model_dump(include={"genes", "marker"})
        return json.dumps(given) if given != Source().model_dump(include={*given}) else ""


class QC(_Section):
    """Which cells and genes are kept."""

    filter: Query | None = Field(
        None,
        description=(
            "Keep the cells whose obs columns fulfil this condition, for example "
            "pass_filter == 'full', or phase == 'G1' and cell_line in ['A549', 'HepG2']. Put "
            "column names with spaces in backticks. null: no condition."
        ),
    )
    min_genes: NonNegative | None = Field(
        None,
        description=(
            "Drop cells with fewer expressed genes than this. 200 to 500 is usual: barcodes "
            "with fewer are mostly empty droplets and debris."
        ),
    )
    max_genes: NonNegative | None = Field(
        None,
        description=(
            "Drop cells with more expressed genes than this. Look at the violins of the report "
            "first: a long, thin upper tail is often doublets (two cells with one barcode)."
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
            "5 to 20 is usual: damaged cells lose other RNA first. Muscle and liver cells need a "
            "higher bound."
        ),
    )
    mt_prefix: Text = Field(
        "MT-",
        description=(
            "Prefix of the names of mitochondrial genes: MT- in human, mt- in mouse, GRCh38_MT- "
            "behind a genome."
        ),
    )
    gene_names: Text | None = Field(
        None,
        description=(
            "The var column with gene symbols, for example feature_name or gene_symbols, for "
            "plates whose var is indexed by gene ids. null: the index of var."
        ),
    )
    min_cells: NonNegative | None = Field(
        None,
        description=(
            "A gene must be expressed in this many of a plate's kept cells to be chosen as highly "
            "variable on that plate. 3 to 10 excludes noise."
        ),
    )
    drop_rare_genes: Positive | None = Field(
        None,
        description=(
            "Ignore genes that fewer than this many of a plate's cells express: their counts do "
            "not add to a cell's depth, and they cannot be highly variable. All cells of the "
            "plate count, also those that QC drops; the bounds above use all genes. Reads the "
            "plate once more."
        ),
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for low, high in (("min_genes", "max_genes"), ("min_counts", "max_counts")):
            a, b = getattr(self, low), getattr(self, high)
            if a is not None and b is not None and a > b:
                msg = f"{low} ({a}) is above {high} ({b}), so no cell would be kept: lower one"
                raise ValueError(msg)
        return self


class Normalize(_Section):
    """Normalization of the cells' depth."""

    target_sum: AboveZero | None = Field(
        None,
        description=(
            "Scale every cell to this many counts before the logarithm, for example 10000. null: "
            "the median of the plate's kept, non-empty cells, which changes the data least."
        ),
    )


class HVG(_Section):
    """Highly variable genes (HVG) of each plate."""

    flavor: Literal["seurat", "cell_ranger", "seurat_v3"] = Field(
        "seurat",
        description=(
            "Method that ranks the genes, as in scanpy: seurat is the usual one. seurat_v3 ranks "
            "raw counts and reads them twice."
        ),
    )
    n_top_genes: Positive = Field(
        2000,
        description=(
            "Highly variable genes per plate. 1000 to 5000 is usual: more genes separate finer "
            "states and cost memory and time."
        ),
    )


class Consensus(_Section):
    """Genes of the atlas."""

    n_top_genes: Positive | None = Field(
        None,
        description=(
            "Genes of the atlas: those that are highly variable on most plates, of equally many "
            "plates those with the better median rank. null: one and a half times "
            "hvg.n_top_genes, or all genes that min_plates allows if that is given."
        ),
    )
    min_plates: MinPlates = Field(
        None,
        description=(
            "The atlas has only genes that are highly variable on at least this many plates, or "
            "on this share of the plates, or on both, as in [3, 10%]. More plates give fewer, more "
            "reproducible genes. The number cannot exceed the number of plates. null: 1."
        ),
        examples=["10%"],
    )

    @property
    def min_plates_entries(self) -> list[int | str]:
        """Numbers and shares of ``min_plates``."""
        return self.min_plates if isinstance(self.min_plates, list) else [self.min_plates or 1]

    def min_plates_of(self, n_plates: int) -> int:
        """Plates that must agree on a gene, where there are ``n_plates``."""
        return min_plates_of(self.min_plates_entries, n_plates)

    def n_top_genes_of(self, hvg: HVG) -> int | None:
        """Genes of the atlas at most, where plates have the genes of ``hvg``."""
        if self.n_top_genes is None and self.min_plates is None:
            return hvg.n_top_genes + hvg.n_top_genes // 2
        return self.n_top_genes


class Scale(_Section):
    """Scaling of the genes before PCA."""

    zero_center: bool = Field(
        False,
        strict=True,
        description="Subtract each gene's mean before the clip at max_value.",
    )
    max_value: AboveZero | None = Field(
        None,
        description="Clip scaled values at this maximum, for example 10, to limit extreme cells.",
    )


class PCA(_Section):
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


class Subset(_Section):
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


class Neighbors(_Section):
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


class UMAP(_Section):
    """Two-dimensional map of the sample."""

    min_dist: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = Field(
        0.5, description="Minimal distance of points: 0.1 gives dense clusters, 0.5 spreads them."
    )


class Leiden(_Section):
    """Clusters of the sample."""

    resolution: AboveZero = Field(
        1.0, description="A higher resolution gives more, smaller clusters. 0.2 to 2 is usual."
    )


class Map(_Section):
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


class Pseudobulk(_Section):
    """Raw counts summed by plate and group."""

    by: Annotated[list[Text], Field(min_length=1)] = Field(
        ["cell_line", "drug"],
        description=(
            "The obs columns that define the groups, within each plate. Cells without a value in "
            "one of them are left out."
        ),
    )


class Markers(_Section):
    """Marker genes of groups of cells."""

    by: list[Text] = Field(
        ["leiden"],
        description=(
            "The obs columns whose values are groups: leiden, plate, labels of the plate sheet, "
            "columns of all plates. Each group is compared with all other cells that have a value. "
            "[]: no marker genes."
        ),
    )
    n_genes: Positive = Field(100, description="Marker genes of each group in the table.")
    wilcoxon: bool = Field(
        False,
        strict=True,
        description=(
            "Also rank the atlas's genes by Wilcoxon rank sums of the sampled cells: "
            "tables/markers_wilcoxon.tsv."
        ),
    )


class Doublets(_Section):
    """Doublets: two cells with one barcode."""

    by: Text | None = Field(
        None,
        description=(
            "The obs column with the capture of each cell (lane, sublibrary): the two cells of a "
            "doublet come from one capture. null: the plate is one capture."
        ),
    )
    expected_doublet_rate: Annotated[float, Field(strict=True, gt=0, lt=1)] = Field(
        0.05,
        description=(
            "Expected doublet rate of the protocol, for example 0.08 for 10,000 cells in a "
            "droplet lane."
        ),
    )
    threshold: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = Field(
        None,
        description=(
            "Score above which a cell counts as a doublet. null: the minimum between the two modes "
            "of the simulated doublets' scores; check it in the histogram of the report."
        ),
    )
    filter: bool = Field(
        False,
        strict=True,
        description="Drop predicted doublets. false: keep them; obs has score and prediction.",
    )


class Harmony(_Section):
    """Batch correction by Harmony."""

    key: Annotated[list[Text], Field(min_length=1)] = Field(
        ["plate"],
        description=(
            "The obs columns with the batches to correct for, such as plate, or donor of the "
            "plate sheet. Real differences between the batches are removed, too: name no column "
            "whose effect you study."
        ),
    )
    n_pcs: Positive | None = Field(
        None, description="Use only the first n_pcs components. null: all of pca.n_comps."
    )
    theta: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = Field(
        2.0,
        description="Strength of the correction: 0 is the weakest, 1 to 4 is usual.",
    )
    max_iter_harmony: Positive = Field(10, description="Maximum of rounds; fewer on convergence.")


class Integrate(Harmony):
    """Batch correction of the components, with map, clusters and scores."""

    cells: Literal["subset", "all"] = Field(
        "subset",
        description=(
            "subset: correct the cells of the sample. all: correct the whole atlas, which gets "
            "obsm['X_pca_harmony']; this takes 3 kB of memory per cell with 50 components, 13 kB "
            "with 300."
        ),
    )
    umap: bool = Field(
        True, strict=True, description="Also compute UMAP and clusters of the corrected cells."
    )
    label: Text | None = Field(
        "cell_line",
        description=(
            "The obs column whose values should stay separate, such as the cell type: the scores "
            "show whether the correction has mixed them. Ignored if the cells lack it. null: none."
        ),
    )


class NewPlates(_Section):
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


class Report(_Section):
    """Content of the report."""

    colors: list[Text] = Field(
        ["cell_line", "plate", "drug", "leiden"],
        description=(
            "The obs columns that colour the UMAP, one picture per column. Columns that the plates "
            "lack are left out."
        ),
    )


class ExploreContent(_Section):
    """Content of explore.html that each plate counts."""

    columns: list[Text] = Field(
        [],
        description=(
            "The obs columns of the page explore.html. []: the 24 first ones with numbers, or with "
            "2 to 10,000 categories."
        ),
        examples=[["leiden", "plate", "drug"]],
    )
    n_genes: NonNegative = Field(
        300,
        description=(
            "Genes of the page, of those of the atlas: the best markers of each group, and the "
            "most variable ones."
        ),
    )


class Explore(ExploreContent):
    """The map as a page that opens by a double click."""

    page: bool = Field(True, strict=True, description="false: no explore.html.")
    points: Positive = Field(
        1_000_000,
        description=(
            "Cells of the sample on the page at most. Fewer, if the page would become too large."
        ),
    )
    max_mb: Annotated[float, Field(strict=True, ge=3, le=100, allow_inf_nan=False)] = Field(
        30.0, description="Size of the page at most, in MB."
    )

    @property
    def content(self) -> ExploreContent:
        """The keys that the job of a plate needs: others rerun the page alone."""
        return ExploreContent(**self.model_dump(include=set(ExploreContent.model_fields)))


class Cluster(_Section):
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
        from scatlas.compute.cluster_options import check_cluster

        check_cluster(self.kind, self.model_dump(exclude_none=True, exclude={"kind"}))
        return self


class Compute(_Section):
    """Memory and devices of a job."""

    block_budget: Annotated[Text, AfterValidator(_check_block_budget)] = Field(
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


class Config(_Section):
    """Config of a scatlas run. A missing key takes its default."""

    plates: Plates = Field(
        Plates(),
        description="The plate sheet, or a section with these keys.",
        json_schema_extra=_text_or_section,
    )
    outdir: Annotated[Text, AfterValidator(_folder)] = Field(
        "results",
        description=(
            "The folder for all results. ~ is your home folder. An address, such as "
            "s3://bucket/folder: the results are written to results/bucket/folder, and the atlas, "
            "tables and figures are copied to the address at the end (docs/results.md)."
        ),
    )
    atlas: Annotated[Text, AfterValidator(expand_home), AfterValidator(_local_file)] | None = Field(
        None,
        description=(
            "A finished atlas.zarr, onto which the plates are mapped (docs/new-plates.md). The "
            "settings of its record apply. null: the plates become a new atlas."
        ),
    )
    backend: Literal["auto", "cpu", "gpu"] = Field(
        "auto",
        description=(
            "Device of the steps hvg, select_genes, pca, neighbors, umap, leiden and integrate; "
            "the others run on the CPU. gpu: an NVIDIA GPU, or an error with the reason if none "
            "can be used. auto: a GPU if one can be used and the plate has over 100 million "
            "values, otherwise the CPU; the step's log gives the reason. "
            "Both wait for GPUs that other jobs of this workflow use. CPU and GPU results agree "
            "up to rounding (the UMAP in its shape, the clusters except for cells between two), "
            "so a change of this key reruns no finished step; --forcerun does."
        ),
    )
    seed: Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)] = Field(
        0,
        description=(
            "Random seed of the sample, UMAP, Leiden, Harmony and simulated doublets: the same "
            "seed gives the same result (Leiden on a GPU: almost the same)."
        ),
    )
    source: Source = Field(Source(), description="Content of the plates' files.")
    qc: QC = Field(QC(), description="Which cells and genes are kept. null: no bound.")
    genes: GeneRule = Field(
        "same",
        description=(
            "same: all plates must have the same genes in the same order. intersect: use the genes "
            "that every plate has, in the order of the first plate. union: use the genes of any "
            "plate; on plates that lack a gene its counts are zero."
        ),
    )
    doublets: Doublets | None = Field(
        None,
        description=(
            "Find doublets among the kept cells of each plate by Scrublet: doublet_score and "
            "predicted_doublet in the obs of the atlas. null: off."
        ),
    )
    normalize: Normalize = Field(Normalize(), description="Normalization of the cells' depth.")
    hvg: HVG = Field(HVG(), description="Highly variable genes (HVG) of each plate.")
    consensus: Consensus = Field(Consensus(), description="Genes of the atlas.")
    scale: Scale | None = Field(
        None,
        description=(
            "Scale genes to unit variance before PCA: weakly expressed genes then weigh as much as "
            "strongly expressed ones. null: no scaling."
        ),
    )
    pca: PCA = Field(PCA(), description="Principal components of the merged plates.")
    subset: Subset = Field(Subset(), description="Sample of cells for the map and the clusters.")
    neighbors: Neighbors = Field(
        Neighbors(), description="Graph of similar cells, for UMAP and Leiden."
    )
    umap: UMAP = Field(UMAP(), description="Two-dimensional map of the sample.")
    leiden: Leiden = Field(Leiden(), description="Clusters of the sample.")
    map: Map = Field(Map(), description="Map and clusters of all cells.")
    markers: Markers = Field(
        Markers(),
        description=(
            "Marker genes: tables/markers.tsv and figures, by Welch's t-test on all genes of the "
            "plates."
        ),
    )
    by_gene: Annotated[bool, Field(strict=True)] = Field(
        True,
        description=(
            "Also write X of the atlas gene after gene, by_gene.zarr, for sa.get.gene, cellxgene "
            "and Vitessce. It takes as much disk as X of the atlas, about 1 kB per cell."
        ),
    )
    pseudobulk: Pseudobulk | None = Field(
        None,
        description=(
            "Also sum the raw counts of the kept cells by plate and group, for all genes: "
            "pseudobulk.h5ad. null: off."
        ),
    )
    integrate: Integrate | None = Field(
        None,
        description=(
            "Correct the components for differences between plates by Harmony: integrated.h5ad, "
            "with obsm['X_pca_harmony'], pictures before and after, and scores. null: off."
        ),
    )
    new_plates: NewPlates = Field(
        NewPlates(), description="With atlas: how the plates are mapped onto it."
    )
    report: Report = Field(Report(), description="Content of the report.")
    explore: Explore = Field(
        Explore(), description="explore.html: the map as a page that opens by a double click."
    )
    compute: Compute = Field(Compute(), description="Memory and devices of a job.")

    @field_validator(
        *("source", "qc", "normalize", "hvg", "consensus", "pca", "subset"),
        *("neighbors", "umap", "leiden", "map", "markers", "new_plates", "report", "explore"),
        "compute",
        mode="before",
    )
    @classmethod
    def _fill_empty_section(cls, value: Any) -> Any:
        # YAML reads a section whose keys are all commented out as null.
        return {} if value is None else value

    @model_validator(mode="after")
    def _check_sample(self) -> Self:
        if self.map.method == "full" and self.subset.n_cells is not None:
            msg = (
                "map.method is full, which takes all cells, but subset.n_cells is given: leave "
                "one of them out"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_neighbor_components(self) -> Self:
        n_pcs = self.neighbors.n_pcs
        if n_pcs is not None and n_pcs > self.pca.n_comps:
            msg = (
                f"neighbors.n_pcs ({n_pcs}) is above pca.n_comps ({self.pca.n_comps}): compute "
                "more components or use fewer"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_harmony_components(self) -> Self:
        harmony = self.integrate.n_pcs if self.integrate else None
        if harmony is not None and harmony > self.pca.n_comps:
            msg = (
                f"integrate.n_pcs ({harmony}) is above pca.n_comps ({self.pca.n_comps}): compute "
                "more components or use fewer"
            )
            raise ValueError(msg)
        n_pcs = self.neighbors.n_pcs
        if harmony is not None and n_pcs is not None and n_pcs > harmony:
            msg = (
                f"neighbors.n_pcs ({n_pcs}) is above integrate.n_pcs ({harmony}): neighbours "
                "are found among the corrected components, too; correct as many"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        kind = self.compute.cluster.kind if self.compute.cluster else None
        if (self.backend, kind) in {("cpu", "local-gpu"), ("gpu", "local-cpu")}:
            msg = f"compute.cluster.kind is {kind}, but backend is {self.backend}: change one"
            raise ValueError(msg)
        return self

    @property
    def harmony(self) -> Harmony | None:
        """Options of the rule ``harmony``, if the whole atlas is corrected."""
        if self.integrate is None or self.integrate.cells != "all":
            return None
        return Harmony(**self.integrate.model_dump(include=set(Harmony.model_fields)))

    @property
    def address(self) -> str | None:
        """Address to which the results are copied, if ``outdir`` is one."""
        return self.outdir if "://" in self.outdir else None

    @property
    def folder(self) -> str:
        """Local folder of the results."""
        if self.address:
            return f"results/{self.address.partition('://')[2].strip('/')}"
        return self.outdir

    @property
    def maps_all_cells(self) -> bool:
        """Whether the atlas has the map and the clusters of all cells."""
        return self.map.cells == "all"

    @property
    def drops_doublets(self) -> bool:
        """Whether ``doublets`` is the last step that filters cells."""
        return self.doublets is not None and self.doublets.filter
