"""Options of the workflow's scripts for a benchmark, one plate after another."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scatlas.workflow.config.plate_sections import QC

FILTER = "pass_filter == 'full'"


class Job(NamedTuple):
    """A script and its options."""

    step: str
    plate: str | None
    argv: list[str]


@dataclass(frozen=True)
class Chain:
    """Jobs from plates to X_pca.

    Attributes
    ----------
    out
        Folder of the results.
    backend
        ``gpu`` or ``cpu``, for steps that support both.
    threads, budget
        Threads and block budget of each job.
    """

    out: Path
    backend: str
    threads: int
    budget: str
    n_top_genes: int
    min_plates: int
    n_comps: int

    def __post_init__(self) -> None:
        # As `scatlas.workflow.job_environment`: `load` takes the moments that `hvg` needs.
        bounds = QC(filter=FILTER).model_dump()
        os.environ["SCATLAS_KEPT_CELLS"] = json.dumps({"bounds": bounds})

    def at(self, plate: str, name: str) -> Path:
        """Path of a result of a plate."""
        return self.out / "plates" / plate / name

    def _job(self, step: str, plate: str | None = None, **options: object) -> Job:
        manifest = self.out / "manifests" / step / f"{plate or 'atlas'}.json"
        same = {"manifest": manifest, "threads": self.threads, "block_budget": self.budget}
        if plate:
            same["plate"] = plate
        argv = []
        for option, value in {**same, **options}.items():
            values = value if isinstance(value, list) else [value]
            argv += [f"--{option.replace('_', '-')}", *map(str, values)]
        return Job(step, plate, argv)

    def load(self, plate: str, source: Path) -> Job:
        """Job that reads the source."""
        store = self.at(plate, "counts.zarr")
        moments = self.at(plate, "moments.parquet")
        return self._job("load", plate, source=source, store=store, filter=FILTER, moments=moments)

    def genes(self, plate: str) -> list[Job]:
        """Jobs from a plate's counts to its highly variable genes."""
        store, qc = self.at(plate, "counts.zarr"), self.at(plate, "qc.parquet")
        factors = self.at(plate, "size_factors.parquet")
        summary = self.at(plate, "qc_summary.json")
        return [
            self._job(
                "qc_filter",
                plate,
                store=store,
                config=json.dumps({"qc": {"filter": FILTER}}),
                table=qc,
                summary=summary,
            ),
            self._job("normalize", plate, qc=qc, table=factors),
            self._job(
                "hvg",
                plate,
                store=store,
                moments=self.at(plate, "moments.parquet"),
                size_factors=factors,
                config=json.dumps({"hvg": {"n_top_genes": self.n_top_genes}}),
                table=self.at(plate, "hvg.parquet"),
                backend=self.backend,
            ),
        ]

    def consensus(self, plates: list[str]) -> Job:
        """Job that chooses the genes for all plates."""
        return self._job(
            "consensus",
            hvg=[f"{plate}={self.at(plate, 'hvg.parquet')}" for plate in plates],
            min_plates=self.min_plates,
            list=self.out / "consensus_genes.tsv",
            table=self.out / "consensus.parquet",
        )

    def select(self, plate: str) -> Job:
        """Job that selects these genes of a plate and sums their Gram matrix."""
        return self._job(
            "select_genes",
            plate,
            store=self.at(plate, "counts.zarr"),
            size_factors=self.at(plate, "size_factors.parquet"),
            genes=self.out / "consensus_genes.tsv",
            selected=self.at(plate, "selected.zarr"),
            gram=self.at(plate, "gram.zarr"),
            backend=self.backend,
        )

    def concat(self, plates: list[str]) -> Job:
        """Job that merges the plates."""
        return self._job(
            "concat_on_disk",
            selected=[f"{plate}={self.at(plate, 'selected.zarr')}" for plate in plates],
            merged=self.out / "merged.zarr",
        )

    def pca(self, plates: list[str]) -> Job:
        """Job that computes the components and projects the cells on them."""
        return self._job(
            "pca",
            merged=self.out / "merged.zarr",
            grams=[self.at(plate, "gram.zarr") for plate in plates],
            config=json.dumps({"pca": {"n_comps": self.n_comps}}),
            pca=self.out / "pca.zarr",
            backend=self.backend,
        )

    def all(self, sources: dict[str, Path]) -> list[Job]:
        """All jobs in a valid order."""
        plates = list(sources)
        before = [
            job
            for plate, source in sources.items()
            for job in [self.load(plate, source), *self.genes(plate)]
        ]
        selections = [self.select(plate) for plate in plates]
        after = [self.concat(plates), self.pca(plates)]
        return [*before, self.consensus(plates), *selections, *after]
