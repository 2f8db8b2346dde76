"""The sections of the config: keys, types, defaults and what each key means.

Everything else that knows the keys follows from the models here: ``config/config.yaml``
(``python -m scatlas.workflow.config.generate --write``), the table of keys and the JSON schemas for
editors, which are built with the documentation, and the options of the scripts
(`scatlas.workflow.config.cli_options`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from scatlas.columns import GeneRule  # noqa: TC001  (pydantic evaluates it)
from scatlas.workflow.config.atlas_sections import (
    PCA,
    UMAP,
    Compute,
    Leiden,
    Map,
    Neighbors,
    NewPlates,
    Scale,
    Subset,
)
from scatlas.workflow.config.plate_sections import HVG, QC, Consensus, Normalize, Plates, Source
from scatlas.workflow.config.values import (
    GeneChoice,
    GeneNames,
    LocalPath,
    NonNegative,
    Positive,
    Section,
    Text,
    described,
    expand_home,
)

if TYPE_CHECKING:
    from typing import Self


def _folder(text: str) -> str:
    protocol, is_address, path = text.partition("://")
    if is_address and (protocol in {"http", "https"} or not path.strip("/")):
        msg = f"{text!r}: results can be copied to an address such as s3://bucket/folder"
        raise ValueError(msg)
    path = text.rstrip("/") if is_address else expand_home(text)
    if set(path) & set("{}"):
        raise ValueError(f"{text!r}: a folder for results cannot have braces in its name")
    if max(len(os.fsencode(name)) for name in path.split("/")) > os.pathconf("/", "PC_NAME_MAX"):
        raise ValueError(f"{text[:20]}... is too long for the name of a folder: give a shorter one")
    if is_address:
        return path
    return Path(path).as_posix()  # "results/" and "./results" name the same outputs as "results"


def _text_or_section(schema: dict[str, Any]) -> None:
    """Schema of ``plates``, which may be given by its sheet alone."""
    section = {"$ref": schema.pop("$ref")}
    schema |= {"anyOf": [{"type": "string"}, section], "default": Plates().sheet}


def _flag_or_section(schema: dict[str, Any]) -> None:
    """Schema of ``by_gene``, which may be given as a flag."""
    section = {"$ref": schema.pop("$ref")}
    schema |= {"anyOf": [{"type": "boolean"}, section], "default": True}


class ByGene(Section):
    """Counts gene after gene, for look-ups of single genes."""

    genes: GeneChoice = described(
        "auto",
        "Genes of the copy. all: every measured gene. atlas: those of the atlas. A list such as",
        "[CD3D, MS4A1], or a text file with a gene in each line: those of the atlas, and these.",
        "auto: all, if the plates hold at most 2,000,000,000 values, else atlas. null: no copy.",
        examples=[["CD3D", "MS4A1"], ["genes.txt"]],
    )

    @property
    def names(self) -> list[str]:
        """Genes beside those of the atlas that are named here."""
        return self.genes if isinstance(self.genes, list) else []


class Pseudobulk(Section):
    """Raw counts summed by plate and group."""

    by: Annotated[list[Text], Field(min_length=1)] = described(
        ["cell_line", "drug"],
        "The obs columns that define the groups, within each plate. Cells without a value in",
        "one of them are left out.",
    )


class Effects(Section):
    """Effects of conditions, such as drugs, guides or diseases, on each gene."""

    condition: Text = described(
        "drug",
        "The obs column with the conditions, which may be a label of the plate sheet.",
    )
    control: Text = described("DMSO_TF", "The condition that all others are compared with.")
    within: list[Text] = described(
        [],
        "Columns such as [cell_line], [leiden] or [cell_type]: conditions are compared within each",
        "of their values. []: all cells together.",
    )
    replicate: Text = described(
        "plate",
        "The column with the wells, animals or donors, whose cells are summed: they are what is",
        "counted as repeated, not the cells.",
    )
    block: Text | None = described(
        None,
        "The column with plates or batches: a condition is compared with the controls of the same",
        "ones. null: with all controls.",
    )
    method: Literal["voom", "trend"] = described(
        "voom",
        "voom: a weight for each sum, by its expected count. trend: equal weights, for sums of",
        "similar size.",
    )
    robust: bool = described(
        False,
        "Genes that vary far more than others borrow less from these, and do not change what they",
        "borrow.",
        strict=True,
    )
    min_cells: NonNegative = described(10, "Sums of fewer cells are left out.")
    p_values: bool = described(
        True,
        "Also write standard errors, p-values and false discovery rates; without them the tables",
        "take half the disk, and sa.get.effects derives them.",
        strict=True,
    )

    @property
    def columns(self) -> list[str]:
        """Columns of the sums, which are made plate by plate."""
        names = [*self.within, self.condition, self.replicate, self.block]
        return [name for name in dict.fromkeys(names) if name and name != "plate"]

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        named = [*self.within, self.condition, self.replicate]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ValueError(
                f"{twice!r} has two parts: give different columns for condition, within, replicate"
            )
        if self.block in {self.condition, self.replicate, *self.within}:
            raise ValueError(
                f"block is {self.block!r}, which is condition, within or replicate, too: name "
                "another column, or null"
            )
        return self


class Markers(Section):
    """Marker genes of groups of cells."""

    by: list[Text] = described(
        ["leiden"],
        "The obs columns whose values are groups: leiden, plate, labels of the plate sheet,",
        "columns of all plates. Each group is compared with all other cells that have a value.",
        "[]: no marker genes.",
    )
    n_genes: Positive = described(100, "Marker genes of each group in the table, or fewer.")
    min_fold_change: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = described(
        1.5,
        "A marker gene has at least this many times the mean of all other cells: with many",
        "cells, differences of a few per cent are significant, too. 0: all genes.",
    )
    wilcoxon: bool = described(
        False,
        "Also rank the atlas's genes by Wilcoxon rank sums of the sampled cells:",
        "tables/markers_wilcoxon.tsv.",
        strict=True,
    )


class Annotate(Section):
    """Types of cells by a classifier, which leaves cells without a type where it is not sure."""

    reference: LocalPath | None = described(
        None,
        "Labelled cells to learn from: h5ad or Zarr with counts, or log1p of counts normalised to",
        "10,000 per cell, of all measured genes in X. null: with label, the plates that have it.",
        examples=["reference.h5ad"],
    )
    label: list[Text] = described(
        [],
        "The obs columns with the types, from the coarsest to the finest, such as [cell_type] or",
        "[lineage, cell_type]. []: nothing is learnt, and model decides.",
    )
    groups: Text | None = described(
        None,
        "The obs column with donors or plates of the labelled cells: whole ones are held out, to",
        "find how sure a type has to be. null: random cells are; of the plates, whole plates.",
    )
    ontology: Text | None = described(
        None, "The obs column with Cell Ontology ids of the finest types. null: none."
    )
    model: LocalPath | None = described(
        None,
        "A CellTypist model (.pkl), or a model of scatlas (.h5ad). null: none.",
        examples=["Immune_All_Low.pkl"],
    )
    markers: LocalPath | None = described(
        None,
        "A table of marker genes (TSV or CSV) with the columns label, up and, if you like, down:",
        "genes of a type that its cells have, or lack. They name clusters. null: none.",
        examples=["marker_genes.tsv"],
    )
    key: Text = described(
        "cell_type",
        "The obs column of the types; further ones begin with its name. Of several sources the",
        "first one has it, in the order labelled cells, model, markers; the others' columns have",
        "the name with _model or _markers.",
    )

    @property
    def sources(self) -> dict[str, str]:
        """The obs column by source: ``reference``, ``model``, ``markers``; the first decides."""
        given = [*["reference"][: len(self.label)]]
        given += [name for name in ("model", "markers") if getattr(self, name)]
        return {name: self.key if n == 0 else f"{self.key}_{name}" for n, name in enumerate(given)}

    @property
    def votes(self) -> list[str]:
        """obs columns with one type for all cells of a cluster."""
        return [key if name == "markers" else f"{key}_vote" for name, key in self.sources.items()]

    @property
    def columns_of_cells(self) -> list[str]:
        """obs columns that the labelled cells need."""
        return [*self.label, *filter(None, (self.groups, self.ontology))]

    @property
    def columns(self) -> list[str]:
        """All obs columns that the cells get."""
        names = []
        for source, key in self.sources.items():
            endings = ["probability", "runner_up", "vote"] * (source != "markers")
            endings += [*self.label[:-1], *["ontology_term_id"][: bool(self.ontology)]] * (
                source == "reference"
            )
            names += [key, *(f"{key}_{ending}" for ending in endings)]
        return names

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.sources:
            what = "reference has no label" if self.reference else "it names no source of types"
            raise ValueError(f"{what}: give label, the obs column of the types, model or markers")
        return self


class Doublets(Section):
    """Doublets: two cells with one barcode."""

    by: Text | None = described(
        None,
        "The obs column with the capture of each cell (lane, sublibrary): the two cells of a",
        "doublet come from one capture. null: the plate is one capture.",
    )
    expected_doublet_rate: Annotated[float, Field(strict=True, gt=0, lt=1)] = described(
        0.05,
        "Expected doublet rate of the protocol, for example 0.08 for 10,000 cells in a",
        "droplet lane.",
    )
    threshold: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = described(
        None,
        "Score above which a cell counts as a doublet. null: the minimum between the two modes",
        "of the simulated doublets' scores; check it in the histogram of the report. No cell is",
        "predicted to be a doublet where that gives more than three times the expected rate.",
    )
    min_cells: NonNegative = described(
        500,
        "In captures with fewer kept cells no cell is predicted to be a doublet without a",
        "threshold: their scores do not tell doublets from cells, and a droplet lane of 500",
        "cells has two doublets.",
    )
    filter: bool = described(
        False,
        "Drop predicted doublets. false: keep them; obs has score and prediction.",
        strict=True,
    )


class Harmony(Section):
    """Batch correction by Harmony."""

    key: Annotated[list[Text], Field(min_length=1)] = described(
        ["plate"],
        "The obs columns with the batches to correct for, such as plate, or donor of the",
        "plate sheet. Real differences between the batches are removed, too: name no column",
        "whose effect you study.",
    )
    n_pcs: Positive | None = described(
        None, "Use only the first n_pcs components. null: all of pca.n_comps."
    )
    theta: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = described(
        2.0, "Strength of the correction: 0 is the weakest, 1 to 4 is usual."
    )
    max_iter_harmony: Positive = described(10, "Maximum of rounds; fewer on convergence.")


class Integrate(Harmony):
    """Batch correction of the components, with the map and scores before and after."""

    use: bool = described(
        True,
        "true: correct all cells, whose obsm['X_pca_harmony'] neighbours, map, clusters and new",
        "plates use. false: correct the sample alone, beside an atlas that stays uncorrected.",
        strict=True,
    )
    umap: bool = described(
        True,
        "Also compute UMAP and clusters of the other components: with use, of those before the",
        "correction; else of those after it.",
        strict=True,
    )
    label: Text | None = described(
        "cell_line",
        "The obs column whose values should stay separate, such as the cell type: the scores",
        "show whether the correction has mixed them. Ignored if the cells lack it. null: none.",
    )

    @model_validator(mode="after")
    def _check_label(self) -> Self:
        if self.label in self.key:
            raise ValueError(
                f"integrate.label ({self.label}) should stay separate, but integrate.key mixes it: "
                "name another column, or set label to null"
            )
        return self


class Report(Section):
    """Content of the report."""

    colors: list[Text] = described(
        ["cell_line", "plate", "drug", "leiden"],
        "The obs columns that colour the UMAP, one picture per column. Columns that the plates",
        "lack are left out.",
    )
    formats: Annotated[list[Literal["png", "pdf", "svg"]], Field(min_length=1)] = described(
        ["png"],
        "Files of each figure: pdf and svg for papers, beside png, which is always written.",
        examples=[["png", "pdf"]],
    )


class Explore(Section):
    """The map as a page that opens by a double click."""

    columns: list[Text] = described(
        [],
        "The obs columns of the page explore.html. []: the 24 first ones with numbers, or with",
        "2 to 10,000 categories.",
        examples=[["leiden", "plate", "drug"]],
    )
    genes: GeneNames = described(
        [],
        "Genes that the page has in any case, such as [CD3D, MS4A1], or a text file with a gene",
        "in each line: any measured gene, also if the atlas lacks it.",
        examples=[["CD3D", "MS4A1"], ["genes.txt"]],
    )
    n_genes: NonNegative = described(
        300,
        "Genes of the page: the 10 best markers of each group and those of the key genes in any",
        "case, then the most variable ones of the atlas up to this number.",
    )
    page: bool = described(True, "false: no explore.html.", strict=True)
    points: Positive = described(
        1_000_000,
        "Cells of the sample on the page at most. Fewer, if the page would become too large.",
    )
    max_mb: Annotated[float, Field(strict=True, ge=3, le=100, allow_inf_nan=False)] = described(
        30.0, "Size of the page at most, in MB."
    )


class Config(Section):
    """Config of a scatlas run. A missing key takes its default."""

    plates: Plates = described(
        Plates(),
        "The plate sheet, or a section with these keys.",
        json_schema_extra=_text_or_section,
    )
    title: Text | None = described(
        None,
        "Title of the report. null: the name of the folder of the results, or Atlas of single",
        "cells if this is results.",
        examples=["Blood of twelve donors"],
    )
    outdir: Annotated[Text, AfterValidator(_folder)] = described(
        "results",
        "The folder for all results. ~ is your home folder. An address, such as",
        "s3://bucket/folder: the results are written to results/bucket/folder, and the atlas,",
        "tables and figures are copied to the address at the end (docs/results.md).",
    )
    atlas: LocalPath | None = described(
        None,
        "A finished atlas.zarr, onto which the plates are mapped (docs/new-plates.md). The",
        "settings of its record apply. null: the plates become a new atlas.",
    )
    backend: Literal["auto", "cpu", "gpu"] = described(
        "auto",
        "Device of the steps hvg, select_genes, pca, harmony, neighbors, umap, leiden, map and",
        "integrate; the others run on the CPU. gpu: an NVIDIA GPU, or an error with the reason",
        "if none can be used. auto: a GPU if one can be used and the plate has over 100 million",
        "values, otherwise the CPU; the step's log gives the reason.",
        "Both wait for GPUs that other jobs of this workflow use. CPU and GPU results agree",
        "up to rounding (the UMAP in its shape, the clusters except for cells between two),",
        "so a change of this key reruns no finished step; --forcerun does.",
    )
    seed: Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)] = described(
        0,
        "Random seed of the sample, UMAP, Leiden, Harmony and simulated doublets: the same",
        "seed gives the same result (Leiden on a GPU: almost the same).",
    )
    source: Source = described(Source(), "Content of the plates' files.")
    qc: QC = described(QC(), "Which cells and genes are kept. null: no bound.")
    genes: GeneRule = described(
        "same",
        "same: all plates must have the same genes in the same order. intersect: use the genes",
        "that every plate has, in the order of the first plate. union: use the genes of any",
        "plate; on plates that lack a gene its counts are zero.",
    )
    doublets: Doublets | None = described(
        None,
        "Find doublets among the kept cells of each plate by Scrublet: doublet_score and",
        "predicted_doublet in the obs of the atlas. null: off.",
    )
    normalize: Normalize = described(Normalize(), "Normalization of the cells' depth.")
    hvg: HVG = described(HVG(), "Highly variable genes (HVG) of each plate.")
    consensus: Consensus = described(Consensus(), "Genes of the atlas.")
    scale: Scale | None = described(
        None,
        "Scale genes to unit variance before PCA: weakly expressed genes then weigh as much as",
        "strongly expressed ones. null: no scaling.",
    )
    pca: PCA = described(PCA(), "Principal components of the merged plates.")
    subset: Subset = described(Subset(), "Sample of cells for the map and the clusters.")
    neighbors: Neighbors = described(Neighbors(), "Graph of similar cells, for UMAP and Leiden.")
    umap: UMAP = described(UMAP(), "Two-dimensional map of the sample.")
    leiden: Leiden = described(Leiden(), "Clusters of the sample.")
    map: Map = described(Map(), "Map and clusters of all cells.")
    markers: Markers = described(
        Markers(),
        "Marker genes: tables/markers.tsv and figures, by Welch's t-test on all genes of the",
        "plates.",
    )
    labels: list[Text] | None = described(
        None,
        "Tables that name clusters or cells: labels.tsv of `scatlas label`, or a table with the",
        "column cell and obs columns to make (docs/after/names.md). null: none.",
        examples=[["labels.tsv"]],
    )
    annotate: Annotate | None = described(
        None,
        "Also give each cell its type, learnt from labelled cells or by a CellTypist model, with",
        "its probability (docs/after/cells.md). null: off.",
    )
    by_gene: ByGene = described(
        ByGene(),
        "Also write the counts of the kept cells gene after gene, by_gene.zarr, for sa.get.gene",
        "and scatlas gene: about as much disk as counts.zarr. false: no copy; each gene that is",
        "not in the atlas then takes a pass over all counts.",
        json_schema_extra=_flag_or_section,
    )
    pseudobulk: Pseudobulk | None = described(
        None,
        "Also sum the raw counts of the kept cells by plate and group, for all genes:",
        "pseudobulk.h5ad. null: off.",
    )
    effects: Effects | None = described(
        None,
        "Also compare conditions with their control, gene by gene, on sums of replicates: effects/",
        "and effects.h5ad. null: off.",
    )
    integrate: Integrate | None = described(
        None,
        "Correct the components for differences between plates by Harmony: integrated.h5ad,",
        "with obsm['X_pca_harmony'], pictures before and after, and scores. null: off.",
    )
    new_plates: NewPlates = described(NewPlates(), "With atlas: how the plates are mapped onto it.")
    report: Report = described(Report(), "Content of the report.")
    explore: Explore = described(
        Explore(), "explore.html: the map as a page that opens by a double click."
    )
    compute: Compute = described(Compute(), "Memory and devices of a job.")

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

    @field_validator("by_gene", mode="before")
    @classmethod
    def _fill_by_gene(cls, value: Any) -> Any:
        return {"genes": None} if value is False else {} if value in (True, None) else value

    @model_validator(mode="after")
    def _check_sample(self) -> Self:
        if self.map.method == "full" and self.subset.n_cells is not None:
            raise ValueError(
                "map.method is full, which takes all cells, but subset.n_cells is given: leave "
                "one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_other_components(self) -> Self:
        if self.map.use and self.integrate:
            raise ValueError(
                "map.use and integrate are both given, but the map is of one kind of components: "
                "remove one of them"
            )
        if self.map.use_rep in ("X_pca", "X_pca_harmony", "X_umap"):
            raise ValueError(
                f"map.use_rep is {self.map.use_rep}, which scatlas writes itself: give those "
                "components another name"
            )
        return self

    @model_validator(mode="after")
    def _check_neighbor_components(self) -> Self:
        n_pcs = None if self.map.use else self.neighbors.n_pcs
        if n_pcs is not None and n_pcs > self.pca.n_comps:
            raise ValueError(
                f"neighbors.n_pcs ({n_pcs}) is above pca.n_comps ({self.pca.n_comps}): compute "
                "more components or use fewer"
            )
        return self

    @model_validator(mode="after")
    def _check_harmony_components(self) -> Self:
        harmony = self.integrate.n_pcs if self.integrate else None
        if harmony is not None and harmony > self.pca.n_comps:
            raise ValueError(
                f"integrate.n_pcs ({harmony}) is above pca.n_comps ({self.pca.n_comps}): compute "
                "more components or use fewer"
            )
        n_pcs = self.neighbors.n_pcs
        if harmony is not None and n_pcs is not None and n_pcs > harmony:
            raise ValueError(
                f"neighbors.n_pcs ({n_pcs}) is above integrate.n_pcs ({harmony}): neighbours "
                "are found among the corrected components, too; correct as many"
            )
        return self

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        kind = self.compute.cluster.kind if self.compute.cluster else None
        if (self.backend, kind) in {("cpu", "local-gpu"), ("gpu", "local-cpu")}:
            msg = f"compute.cluster.kind is {kind}, but backend is {self.backend}: change one"
            raise ValueError(msg)
        return self

    @property
    def switched_on(self) -> list[str]:
        """Keys that are null by default and have a value."""
        fields = type(self).model_fields.items()
        return [key for key, field in fields if field.default is None and getattr(self, key)]

    @property
    def names_cells(self) -> bool:
        """Whether the step ``labels`` gives cells obs columns: the user's, or types."""
        return bool(self.labels or self.annotate)

    @property
    def harmony(self) -> Harmony | None:
        """Options of the rule ``harmony``, if the whole atlas is corrected."""
        if self.integrate is None or not self.integrate.use:
            return None
        return Harmony(**self.integrate.model_dump(include=set(Harmony.model_fields)))

    @property
    def basis(self) -> tuple[str, str]:
        """Step and key of obsm of the components that neighbours, map and clusters are of."""
        if self.harmony:
            return "harmony", "X_pca_harmony"
        return ("latent", self.map.use_rep) if self.map.use else ("pca", "X_pca")

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
