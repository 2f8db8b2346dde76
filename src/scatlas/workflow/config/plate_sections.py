"""Sections on the plates and their genes: sheet, source, cells, depth, genes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from scatlas.workflow.config import min_plates_of
from scatlas.workflow.config.values import (
    COUNTS,
    AboveZero,
    GeneNames,
    MinPlates,
    NonNegative,
    Percent,
    Positive,
    Query,
    Section,
    Text,
    described,
    expand_home,
    local_file,
    number_of,
)

if TYPE_CHECKING:
    from typing import Self


# What Tahoe-100M has.
_MARKER: list[float] = [1, -2]


def _check_marker(value: Any) -> Any:
    entry = [number_of(part) for part in value] if isinstance(value, list) else value
    if entry in (None, [None]):
        return None
    if not isinstance(entry, list) or [*map(type, entry)] not in ([int, int], [int, float]):
        msg = f"{value!r} is no entry: write its token and its value, as [1, -2], or null for none"
        raise ValueError(msg)
    return entry


class Plates(Section):
    """The plates, and what happens if one of them cannot be used."""

    sheet: Annotated[Text, AfterValidator(expand_home)] = described(
        "config/plates.tsv",
        "The plate sheet: a tab-separated table with one row per plate and the columns plate",
        "(a name) and path (its h5ad or Zarr). ~ is your home folder, here and in the sheet.",
        "Or a folder of plates, or a pattern of their paths, such as",
        "runs/*/filtered_feature_bc_matrix.h5: plates are named by what differs in the paths.",
        "plates: my.tsv is short for plates: {sheet: my.tsv}.",
    )
    path: Annotated[Text, AfterValidator(expand_home), AfterValidator(local_file)] | None = (
        described(
            None,
            "In place of a sheet, one h5ad or Zarr file of all samples, each of which becomes a",
            "plate: plates: {path: atlas.h5ad, by: sample}. Or the folder of a Parquet release:",
            "plates: {path: tahoe, by: plate}. On this machine.",
        )
    )
    by: Text | None = described(
        None,
        "The obs column of this file that names the sample of each cell. Plates have the names",
        "of the samples, with underscores in place of spaces, slashes and other characters",
        "that a plate's name cannot have; the column keeps the names.",
    )
    on_error: Literal["stop", "skip"] = described(
        "stop",
        "If a plate is empty, damaged, of other genes, or loses all cells: stop ends the run",
        "after the steps of all other plates, and names all such plates. skip leaves them out",
        "of the atlas, which is the same as if the sheet did not list them; the report lists",
        "them, and they come in once their files are mended.",
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


class Source(Section):
    """Content of the plates' files."""

    counts: Text = described(
        "X",
        "Where the raw counts are: X, raw (raw.X, with the genes of raw.var), or layers/NAME,",
        "for example layers/counts; in files of Cell Ranger 2 with several genomes",
        "genome/NAME. A column counts of the plate sheet says so per plate. In Parquet files,",
        "beside the key genes, the column of the lists of counts.",
        examples=["X", "raw", "layers/counts"],
    )
    fractional: Literal["refuse", "round"] = described(
        "refuse",
        "Fractional counts. refuse: an error, because such values are normalised most often.",
        "round: to the nearest whole number, halves to the even one, for expected counts of",
        "alevin, RSEM or a correction for ambient RNA. A column fractional of the plate sheet",
        "says so per plate.",
    )
    genes: Text | None = described(
        None,
        "In Parquet files, the column of the lists of gene tokens. null: the one of lists of",
        "whole numbers, with the counts in the one of lists of floating point.",
    )
    marker: Annotated[list[float] | None, BeforeValidator(_check_marker)] = described(
        _MARKER,
        "In Parquet files, token and value of the first entry of a cell where this is no gene,",
        "as in Tahoe-100M. null: there is none.",
    )

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.genes is None and not re.match(COUNTS, self.counts):
            raise ValueError(
                f"counts is {self.counts!r}; write X, raw or layers/NAME, or for a column of "
                "Parquet files the key genes, too"
            )
        return self

    @property
    def lists(self) -> str:
        """The keys of Parquet files as JSON, ``ListColumns`` of `scatlas.io`; "" by default."""
        given = self.model_dump(include={"genes", "marker"})
        return json.dumps(given) if given != Source().model_dump(include={*given}) else ""


class QC(Section):
    """Which cells and genes are kept."""

    filter: Query | None = described(
        None,
        "Keep the cells whose obs columns fulfil this condition, for example",
        "pass_filter == 'full', or phase == 'G1' and cell_line in ['A549', 'HepG2']. Put",
        "column names with spaces in backticks. null: no condition.",
    )
    min_genes: NonNegative | None = described(
        None,
        "Drop cells with fewer expressed genes than this. 200 to 500 is usual: barcodes",
        "with fewer are mostly empty droplets and debris.",
    )
    max_genes: NonNegative | None = described(
        None,
        "Drop cells with more expressed genes than this. Look at the violins of the report",
        "first: a long, thin upper tail is often doublets (two cells with one barcode).",
    )
    min_counts: NonNegative | None = described(
        None, "Drop cells with fewer counts (UMIs) than this. 500 to 1000 is usual for droplets."
    )
    max_counts: NonNegative | None = described(
        None, "Drop cells with more counts (UMIs) than this."
    )
    max_pct_mt: Percent | None = described(
        None,
        "Drop cells with more than this percentage of their counts in mitochondrial genes.",
        "5 to 20 is usual: damaged cells lose other RNA first. Muscle and liver cells need a",
        "higher bound.",
    )
    mads: AboveZero | None = described(
        None,
        "Also drop the cells unlike the others of their plate: those whose counts or genes, as",
        "log(1 + x), are farther from its median than this many median absolute deviations (5",
        "is usual), and those whose mitochondrial percentage is more than 3 deviations, and at",
        "least 8 points, above it. Each plate has its own bounds, of the cells that pass the",
        "condition and the bounds above; the report has a table. null: no such bounds.",
    )
    by: Text = described(
        "plate",
        "Cells that mads compares with each other: those of a plate, or those of a plate with",
        "the same value in this obs column, such as sample. Groups of fewer than 30 cells have",
        "no such bounds.",
    )
    mt_prefix: Text = described(
        "MT-",
        "Prefix of the names of mitochondrial genes: MT- in human, mt- in mouse, GRCh38_MT-",
        "behind a genome.",
    )
    gene_names: Text | None = described(
        None,
        "The var column with gene symbols, for example feature_name or gene_symbols, for",
        "plates whose var is indexed by gene ids. null: the index of var.",
    )
    min_cells: NonNegative | None = described(
        None,
        "A gene must be expressed in this many of a plate's kept cells to be chosen as highly",
        "variable on that plate. 3 to 10 excludes noise.",
    )
    drop_rare_genes: Positive | None = described(
        None,
        "Ignore genes that fewer than this many of a plate's cells express: their counts do",
        "not add to a cell's depth, and they cannot be highly variable. All cells of the",
        "plate count, also those that QC drops; the bounds above use all genes. Reads the",
        "plate once more.",
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for low, high in (("min_genes", "max_genes"), ("min_counts", "max_counts")):
            a, b = getattr(self, low), getattr(self, high)
            if a is not None and b is not None and a > b:
                msg = f"{low} ({a}) is above {high} ({b}), so no cell would be kept: lower one"
                raise ValueError(msg)
        return self


class Normalize(Section):
    """Normalization of the cells' depth."""

    target_sum: AboveZero | None = described(
        None,
        "Scale every cell to this many counts before the logarithm, for example 10000. null:",
        "the median of the plate's kept, non-empty cells, which changes the data least.",
    )


class HVG(Section):
    """Highly variable genes (HVG) of each plate."""

    flavor: Literal["seurat", "cell_ranger", "seurat_v3"] = described(
        "seurat",
        "Method that ranks the genes, as in scanpy: seurat is the usual one. seurat_v3 ranks",
        "raw counts and reads them twice.",
    )
    n_top_genes: Positive = described(
        2000,
        "Highly variable genes per plate. 1000 to 5000 is usual: more genes separate finer",
        "states and cost memory and time.",
    )


class Consensus(Section):
    """Genes of the atlas."""

    n_top_genes: Positive | None = described(
        None,
        "Genes of the atlas: those that are highly variable on the largest number of plates,",
        "of equally many plates those with the better median rank. null: one and a half times",
        "hvg.n_top_genes, or all genes that min_plates allows if that is given.",
    )
    min_cells: NonNegative = described(
        100,
        "Plates with fewer kept cells than this, and than half of the median plate, do not choose",
        "genes: chance decides which genes vary most among few cells. The cells of small plates",
        "are in the atlas like all others.",
    )
    min_plates: MinPlates = described(
        None,
        "The atlas has only genes that are highly variable on at least this many plates, or",
        "on this share of the plates, or on both, as in [3, 10%], of those that choose. More",
        "plates give fewer, more reproducible genes. The number cannot exceed the number of",
        "plates. null: 1.",
        examples=["10%"],
    )
    also: GeneNames = described(
        [],
        "Genes that the atlas has in any case, such as [ISG15], or a text file with a gene in",
        "each line: genes that differ between plates vary on none of them. They come on top of",
        "n_top_genes, and components, map and clusters follow them like all genes of the atlas.",
        "To look at a gene alone, name it in explore.genes.",
        examples=[["ISG15", "IFI6"], ["genes.txt"]],
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
