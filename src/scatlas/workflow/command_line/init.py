"""``scatlas init``: look at the files, and write a config and a plate sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.tables.cell_names import SharedCells
from scatlas.workflow.command_line.cell_agreement import stored_cells
from scatlas.workflow.command_line.find_files import find_files, find_release, find_samples
from scatlas.workflow.command_line.gene_agreement import GeneAgreement
from scatlas.workflow.command_line.output import say, say_table
from scatlas.workflow.command_line.plate_facts import PlateFacts, read_facts
from scatlas.workflow.command_line.project import read_project
from scatlas.workflow.command_line.project_files import (
    SHEET,
    config_text,
    mitochondrial,
    sheet_text,
    why_no_bound,
)
from scatlas.workflow.command_line.qc_bounds import kept_by, suggest_bounds
from scatlas.workflow.snakefile import workflow_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

PICTURE = Path("init.png")


def init(arguments: list[str], config: Path, outdir: str, *, force: bool = False) -> None:
    """Write ``plates.tsv``, the config for results in ``outdir``, and ``init.png`` in the working
    folder. If a file exists already (without ``force``), or a plate cannot be read, nothing is
    written.
    """
    for file in (config, Path(SHEET), PICTURE):
        if file.exists() and not force:
            msg = f"{file}: it exists already: move it away, or replace it with --force"
            raise InputError(msg)
    genes, cells = GeneAgreement(), SharedCells()
    plates = []
    release = find_release(arguments)
    paths = dict.fromkeys(release.plates, release.path) if release else find_files(arguments)
    for name, path in paths.items():
        facts, names = read_facts(name, path, release and release.plates[name]())
        genes.add(path, names)
        plates.append(facts)
        if not release:
            cells.add(name, stored_cells(path, facts.counts))
    _check_different(plates)
    bounds = suggest_bounds(
        [plate.metrics for plate in plates], with_mt=mitochondrial(plates) is not None
    )
    if unfiltered := [plate.min_genes for plate in plates if plate.min_genes]:
        bounds.setdefault("min_genes", min(unfiltered))  # else empty droplets would be kept
    place: str | dict[str, str] = SHEET
    n_plates, path = len(plates), plates[0].path
    if release:
        place = {"path": release.path, "by": release.by}
    elif n_plates == 1 and (samples := find_samples(path)):
        place, n_plates = {"path": path, "by": "sample"}, len(samples)
        plates[0].notices.append(f"each of its {n_plates} samples is a plate: {', '.join(samples)}")
    texts = {config: config_text(plates, genes, bounds, outdir, place, n_plates)}
    if place == SHEET:
        texts[Path(SHEET)] = sheet_text(plates)
    for file, text in texts.items():
        with atomic_path(file) as partial:
            partial.write_text(text, "utf-8")
    _draw(plates, bounds)
    read_project(config)
    _report(plates, genes, bounds, list(texts))
    for sentence in cells.sentences().values():
        say(sentence)


def _check_different(plates: Sequence[PlateFacts]) -> None:
    """Refuse two files with the same cells."""
    seen: dict[tuple[int, bytes], PlateFacts] = {}
    for plate in plates:
        totals = plate.metrics[["total_counts", "n_genes_by_counts"]].to_numpy().tobytes()
        first = seen.setdefault((plate.n_cells, totals), plate)
        if first is not plate and len(plate.metrics) > 1:
            msg = f"{plate.path}: it has the same counts as {first.path}: give one of them"
            raise InputError(msg)


def _draw(plates: Sequence[PlateFacts], bounds: dict[str, int]) -> None:
    from scatlas import pl

    tables = {
        plate.name: plate.metrics.assign(keep=kept_by(plate.metrics, bounds)) for plate in plates
    }
    pl.save(pl.qc_violins(tables, bounds), PICTURE)


def _report(
    plates: Sequence[PlateFacts],
    genes: GeneAgreement,
    bounds: dict[str, int],
    written: Sequence[Path],
) -> None:
    rows = [["plate", "cells", "genes", "counts in", "MT genes", "kept of the cells seen"]]
    for plate in plates:
        keep = kept_by(plate.metrics, bounds)
        kept = f"{100 * keep.mean():.1f}%" if keep.size else "-"
        rows.append(
            [
                *(plate.name, f"{plate.n_cells:,}", f"{plate.n_genes:,}", plate.counts),
                *(f"{plate.n_mt:,}", f"{kept} of {keep.size:,}"),
            ]
        )
    say_table(rows)
    for plate in plates:
        for notice in plate.notices:
            say(f"{plate.path}: {notice}")
    if mitochondrial(plates) is None:
        say(why_no_bound(plates))
    say(f"{genes.sentence}: genes: {genes.setting}")
    say(f"wrote {', '.join(map(str, written))} and {PICTURE} (the suggested bounds)")
    say(f"every key with its default: {workflow_folder() / 'config/config.yaml'}")
    say("next: scatlas check, then scatlas run")
