"""``scatlas check``: every check that needs no run, in sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scatlas.errors import InputError, ScatlasError
from scatlas.io.matrices.counts_source import gene_names, what_elements_hold
from scatlas.io.matrices.source import COUNTS, EXPECTED
from scatlas.io.products.load_statistics import HOW_TO_ROUND
from scatlas.io.tables.cell_names import SharedCells
from scatlas.workflow.command_line.cell_agreement import stored_cells
from scatlas.workflow.command_line.gene_agreement import GeneAgreement
from scatlas.workflow.command_line.output import DONE, PROBLEM, Problem, say, say_json
from scatlas.workflow.command_line.project import read_project
from scatlas.workflow.command_line.snakemake_command import plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config

_TOTAL = re.compile(r"^total +(\d+)$", re.MULTILINE)


def check(config_file: Path, *, as_json: bool = False) -> int:
    """Check config, plate sheet, the structure of the plates, and the plan of Snakemake, and print
    each problem. Return 0 if the atlas can be built, else 1; with ``plates.on_error: skip`` plates
    with problems are no reason for 1.
    """
    config, plates = read_project(config_file)
    cells = SharedCells()
    problems = list(_problems_of_plates(config, plates, cells))
    errors, left_out = ([], problems) if config.plates.skips else (problems, [])
    n_steps = None
    try:
        total = _TOTAL.search(plan(config_file, "-n", "--quiet=rules"))
        n_steps = int(total[1]) if total else 0
    except InputError as error:
        errors.append(Problem(str(error)))
    if as_json:
        return say_json(
            *("check", config_file, errors),
            folder=config.folder,
            n_plates=len(plates),
            n_jobs_to_run=n_steps,
            left_out=[problem._asdict() for problem in left_out],
            same_cells=[Problem(text, name)._asdict() for name, text in cells.sentences().items()],
        )
    for sentence in cells.sentences().values():
        say(sentence)
    for problem in left_out:
        say(f"will be left out: {problem.message}")
    for problem in errors:
        say(f"error: {problem.message}")
    if errors:
        return PROBLEM
    todo = f"{n_steps:,} steps to run: scatlas run" if n_steps else "nothing to run"
    say(f"{config_file} is valid: {len(plates):,} plates, {todo}")
    return DONE


def _problems_of_plates(
    config: Config, plates: list[Plate], cells: SharedCells
) -> Iterator[Problem]:
    """Open each plate without reading its counts, and compare genes and cells."""
    genes = GeneAgreement()
    for plate in plates:
        if plate.is_remote or plate.is_simulated or config.plates.by:
            continue  # not here yet; or one file, which has been opened
        # With source.genes it is a column of Parquet files, whose only matrix is X.
        counts = "X" if config.source.genes else plate.counts or config.source.counts
        try:
            held = what_elements_hold(plate.path)
            words = held.get(counts, "is missing")
            if isinstance(words, InputError):
                raise words
            if counts in held:
                genes.add(plate.path, gene_names(plate.path, counts))
                cells.add(plate.plate, stored_cells(plate.path, counts))
        except ScatlasError as error:
            yield Problem(str(error), plate.plate)
            continue
        fractional = plate.fractional or config.source.fractional
        if words == COUNTS or (words == EXPECTED and fractional == "round"):
            continue
        found = [name for name, other in held.items() if other == COUNTS]
        which = f"{plate.path}: {counts} of plate {plate.plate!r}"
        if words == EXPECTED and not found:
            msg = f"{which} is fractional: {HOW_TO_ROUND}"
        elif found:
            mend = "correct source.counts, or the column counts"
            msg = f"{which} {words}, but {' or '.join(found)} {COUNTS}: {mend}"
        else:
            msg = f"{which} {words}: give a file with raw counts"
        yield Problem(msg, plate.plate)
    if (
        not config.atlas
        and config.genes == "same"
        and genes.setting != "same"
        and not config.plates.skips
    ):
        yield Problem(f"genes is same, but {genes.sentence}: set genes: {genes.setting}")
