"""``scatlas init``: look at the files, and write a config and a plate sheet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.tables.cell_names import SharedCells
from scatlas.workflow.code_hash import workflow_folder
from scatlas.workflow.command_line import say, say_table
from scatlas.workflow.command_line.check import GeneAgreement, stored_cells
from scatlas.workflow.command_line.find_files import find_files, find_release, find_samples
from scatlas.workflow.command_line.plate_facts import (
    N_MADS,
    PlateFacts,
    kept_by,
    read_facts,
    suggest_bounds,
    unlike_others,
)
from scatlas.workflow.config.generate import comment
from scatlas.workflow.config.loading import read_project
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHEET = "plates.tsv"
# From this number of cells on, more components separate rare states.
_MANY_CELLS = 1_000_000


def sheet_text(plates: Sequence[PlateFacts]) -> str:
    """Text of the plate sheet; with columns on the counts in which the plates differ."""
    columns = {"plate": "name", "path": "path", "n_cells": "n_cells"}
    columns |= {
        name: name
        for name in ("counts", "fractional")
        if len({getattr(plate, name) for plate in plates}) > 1
    }
    rows = [list(columns)]
    rows += [[str(getattr(plate, name)) for name in columns.values()] for plate in plates]
    return "".join("\t".join(row) + "\n" for row in rows)


def config_text(
    plates: Sequence[PlateFacts],
    genes: GeneAgreement,
    bounds: Mapping[str, int],
    outdir: str,
    place: str | Mapping[str, str],
    n_plates: int,
) -> str:
    """Text of the config: the keys that depend on the files, each with a comment on what was seen;
    ``place`` is the value of ``plates``, and ``n_plates`` how many these are.
    """
    n_cells = sum(plate.n_cells for plate in plates)
    n = f"{n_plates:,} plate{'s' * (n_plates != 1)} with {n_cells:,} cells"
    return "\n".join(
        [
            *comment(
                f"Written by scatlas init, which found {n}. Edit it as you like: scatlas check "
                "says whether it is valid, scatlas run builds the atlas. A key that is not here "
                "has its default."
            ),
            f"plates: {_yaml(place)}",
            f"outdir: {_yaml(outdir)}",
            "",
            *_source(plates),
            *comment(f"{_first_upper(genes.sentence)}."),
            f"genes: {genes.setting}",
            "",
            *_qc(plates, bounds),
            *_sizes(n_cells, genes.n_usable),
            "",
        ]
    )


def mitochondrial(plates: Sequence[PlateFacts]) -> tuple[str, str | None] | None:
    """Prefix and column of the mitochondrial genes; None if not all plates have the same."""
    found = {(p.mt_prefix, p.gene_names) if p.n_mt else None for p in plates}
    return next(iter(found)) if len(found) == 1 else None


def why_no_bound(plates: Sequence[PlateFacts]) -> str:
    """Sentence on plates for which :func:`mitochondrial` finds nothing."""
    without = [plate.name for plate in plates if not plate.n_mt]
    reason = f"plate {without[0]} has no" if without else "the plates differ in the names of"
    return (
        f"no bound on mitochondrial counts: {reason} genes that begin with MT- or mt-, also behind "
        "a genome"
    )


def _source(plates: Sequence[PlateFacts]) -> list[str]:
    numbers = Counter(plate.counts for plate in plates)
    places = ", ".join(f"{place} of {n:,} plates" for place, n in numbers.items())
    (place, _), *others = numbers.items()
    said = (
        f"see the column counts of {SHEET}"
        if others
        else f"Raw counts are in {place} of all plates"
    )
    lines = comment(f"Raw counts are in {places}: {said}." if others else f"{said}.")
    keys = [] if others else [f"  counts: {_yaml(place)}"]
    n_rounded = sum(plate.fractional == "round" for plate in plates)
    if n_rounded:
        where = "" if n_rounded == len(plates) else f"; see the column fractional of {SHEET}"
        lines += comment(f"Those of {n_rounded:,} plates are fractional, and are rounded{where}.")
        keys += [] if where else ["  fractional: round"]
    return [*lines, *(["source:", *keys] if keys else []), ""]


def _qc(plates: Sequence[PlateFacts], bounds: Mapping[str, int]) -> list[str]:
    shares = [100 * (1 - kept_by(p.metrics, bounds)[0].mean()) for p in plates if len(p.metrics)]
    least, most = (min(shares), max(shares)) if shares else (0.0, 0.0)
    n_seen = sum(len(plate.metrics) for plate in plates)
    how = (
        f"{N_MADS} median absolute deviations from the median of a plate, of log(1 + x) for genes "
        "and counts; 3, and at least 8 points, above it for mitochondrial percentages"
    )
    if "mads" in bounds:
        how += ". The other bounds are limits for all plates"
    unlike = ", ".join(unlike_others({plate.name: plate.metrics for plate in plates}))
    lines = [
        *comment(
            f"Bounds suggested by {n_seen:,} cells: {how}, the widest of all plates"
            f"{f' but {unlike} (unlike the others)' if unlike else ''}. Of these cells they "
            f"drop {least:.1f}% to {most:.1f}% per plate; init.png shows them. Delete a line to "
            "drop no cell by it."
        ),
        "qc:",
        *([f"  mads: {N_MADS}", "  by: plate"] if "mads" in bounds else []),
    ]
    for key in ("min_genes", "max_genes", "min_counts", "max_counts"):
        lines += [f"  {key}: {bounds[key]}"] if key in bounds else [f"  # {key}: null"]
    return [*lines, *_mt(plates, bounds), ""]


def _mt(plates: Sequence[PlateFacts], bounds: Mapping[str, int]) -> list[str]:
    found = mitochondrial(plates)
    if found is None:
        text = _first_upper(why_no_bound(plates))
        return [*comment(f"{text}.", "  "), "  # max_pct_mt: null"]
    prefix, column = found
    number = min(plate.n_mt for plate in plates)
    place = f"column {column} of var" if column else "the index of var"
    return [
        *comment(f"{number:,} genes begin with {prefix} in {place}.", "  "),
        f"  mt_prefix: {_yaml(prefix)}",
        *([f"  gene_names: {_yaml(column)}"] if column else []),
        f"  max_pct_mt: {bounds.get('max_pct_mt', 'null')}",
    ]


def _sizes(n_cells: int, n_genes: int) -> list[str]:
    """Numbers of genes and components, where the defaults do not suit the plates."""
    lines: list[str] = []
    if n_genes < 2 * Config().hvg.n_top_genes:
        lines += [
            *comment(f"Half of the {n_genes:,} genes."),
            *["hvg:", f"  n_top_genes: {max(1, n_genes // 2)}", ""],
        ]
    usual = 300 if n_cells >= _MANY_CELLS else 50
    n_comps = max(1, min(usual, n_cells // 10, n_genes // 4))
    return [
        *lines,
        *comment("50 components are usual, 300 for millions of cells."),
        *["pca:", f"  n_comps: {n_comps}"],
    ]


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.strip().removesuffix("...").strip()


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


PICTURE = Path("init.png")


def init(arguments: list[str], config: Path, outdir: str, *, force: bool = False) -> None:
    """Write ``plates.tsv``, the config and ``init.png`` in the working folder: nothing if a file
    exists (without ``force``) or a plate cannot be read.
    """
    for file in (config, Path(SHEET), PICTURE):
        if file.exists() and not force:
            raise InputError(f"{file}: it exists already: move it away, or replace it with --force")
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
    unlike = unlike_others({plate.name: plate.metrics for plate in plates})
    place: str | dict[str, str] = SHEET
    n_plates, path = len(plates), plates[0].path
    if release:
        place = {"path": release.path, "by": release.by}
    elif n_plates == 1 and (samples := find_samples(path)):
        place, n_plates = {"path": path, "by": "sample"}, len(samples)
        plates[0].notices.append(f"each of its {n_plates} samples is a plate: {', '.join(samples)}")
    bounds = suggest_bounds(
        [plate.metrics for plate in plates if plate.name not in unlike],
        with_mt=mitochondrial(plates) is not None,
        n_genes=max(plate.n_genes for plate in plates),
        floors=n_plates > 1,
    )
    bounds |= {"mads": N_MADS} if n_plates > 1 else {}
    if unfiltered := [plate.min_genes for plate in plates if plate.min_genes]:
        bounds.setdefault("min_genes", min(unfiltered))  # else empty droplets would be kept
    for plate in plates:
        if plate.name in unlike:
            how = f"it is unlike the other plates: {unlike[plate.name]}"
            plate.notices.append(f"{how}: its cells shape no suggested bound")
        if (kept := kept_by(plate.metrics, bounds)[0]).size and kept.mean() < 0.5:
            plate.notices.append(
                f"only {kept.mean():.0%} of its cells would be kept"
                if kept.any()
                else "none of its cells would be kept, which stops a run: leave out this file, or "
                "set plates: {on_error: skip}"
            )
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

    tables, own = {}, {}
    for plate in plates:
        keep, own[plate.name] = kept_by(plate.metrics, bounds)
        tables[plate.name] = plate.metrics.assign(keep=keep)
    by_plate = pd.concat(own).droplevel(1) if "mads" in bounds else None
    pl.save(pl.qc_violins(tables, bounds, by_plate=by_plate), PICTURE)


def _report(
    plates: Sequence[PlateFacts],
    genes: GeneAgreement,
    bounds: dict[str, int],
    written: Sequence[Path],
) -> None:
    rows = [["plate", "cells", "genes", "counts in", "MT genes", "kept of the cells seen"]]
    for plate in plates:
        keep, _ = kept_by(plate.metrics, bounds)
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
