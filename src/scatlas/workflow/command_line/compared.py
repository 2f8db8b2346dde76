"""What ``scatlas check`` says of the comparison of conditions (config: effects), from obs alone, so
that nobody waits hours for it: from the numbers of cells of each sample before QC.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.columns import kind_of_values
from scatlas.errors import InputError
from scatlas.matrix.effects_design import Design
from scatlas.matrix.effects_groups import add_cells, count_cells, label_names, read_labels
from scatlas.workflow.cell_filter import evaluate_filter
from scatlas.workflow.command_line import Problem
from scatlas.workflow.config.values import query_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.io.tables.table import Table
    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config, Effects


class ComparedSamples:
    """Numbers of cells by the columns that effects names, plate by plate."""

    def __init__(self, config: Config) -> None:
        self._wanted = None if config.atlas else config.effects
        self._filter = config.qc.filter
        self._parts: list[pd.DataFrame] = []
        self._which_holds_numbers = ""  # a column of conditions that are numbers

    def add(self, plate: Plate, obs: Table, by: str | None = None) -> Iterator[Problem]:
        """Count a plate's cells, and yield what is wrong with its labels. Clusters and types of
        ``within`` are known later. ``by``: the column with the plates of one file.
        """
        if (wanted := self._wanted) is None:
            return
        constants = {} if by else {**plate.labels, "plate": plate.plate}
        there = {*obs.columns, *filter(constants.get, constants)} | ({"plate"} if by else set())
        within = [name for name in wanted.within if name in there]
        names = label_names(wanted.condition, within, wanted.replicate, wanted.block)
        if not there.issuperset(names.values()):
            return  # AskedColumns names what is missing
        asked = query_columns(self._filter) if self._filter else []
        read = dict.fromkeys([*names.values(), *asked])
        table = obs.read([name for name in read if name in obs.columns], index=False)
        if by and "plate" in read:
            table["plate"] = obs.read([by], index=False)[by]
        table = table.assign(**{name: constants[name] for name in read if constants.get(name)})
        needed = {f"effects {key}": name for key, name in names.items() if "within" not in key}
        if self._filter and set(asked) <= set(table):
            keep = evaluate_filter(table, self._filter, source=plate.path, allow_none=True)
            table = table[keep]
        elif self._filter:  # it asks for metrics, and may drop these cells
            table = table.dropna(subset=[*needed.values()])
        if kind_of_values(pd.Series(table[wanted.condition].unique())) == "numbers":
            self._which_holds_numbers = ", which holds numbers"
        try:
            read_labels(table, needed)
            table = read_labels(table, names)
        except InputError as error:
            yield Problem(f"plate {plate.plate}: {error}", plate.plate)
            return
        self._parts.append(count_cells(table))

    def sentences(self, n_plates: int) -> tuple[list[Problem], list[str]]:
        """Why there will be no effects, and what will be left out; nothing unless all plates were
        counted.
        """
        wanted = self._wanted
        if wanted is None or not self._parts or len(self._parts) < n_plates:
            return [], []
        samples = add_cells(self._parts)
        conditions = samples["condition"]
        if wanted.control not in set(conditions):
            names = conditions.unique()
            near = get_close_matches(wanted.control, names, 1) or sorted(names)[:3]
            column = f"{wanted.condition}{self._which_holds_numbers}"
            problem = Problem(
                f"no plate has the control {wanted.control!r}, which effects.control names, in "
                f"{column}: name one of its values, such as {', '.join(map(repr, near))}"
            )
            return [problem], []
        large = samples[samples["n"] >= wanted.min_cells]
        problems = [*_no_effects(wanted, large)]
        return problems, [] if problems else [*_left_out(wanted, samples, large)]


def _no_effects(wanted: Effects, large: pd.DataFrame) -> Iterator[Problem]:
    """Why no condition can be compared, by the design that the models have."""
    within = [name for name in large if name.startswith("within")]
    designs = [
        _design(own, wanted.control)
        for _, own in (large.groupby(within) if within else [((), large)])
    ]
    few = f"with {wanted.min_cells:,} cells or more (effects.min_cells)"
    if not any(design.compared().size for design in designs):
        where = f" with it in one {wanted.block}" if wanted.block else ""
        yield Problem(
            f"effects: no value of {wanted.replicate} {few} of another condition than "
            f"{wanted.control!r} can be compared{where}: lower min_cells, or name another block"
        )
    elif not any(design.compared().size and design.df for design in designs):
        where = f" in one {wanted.block}" if wanted.block else ""
        yield Problem(
            f"effects: no condition has two values of {wanted.replicate} {few}{where}, so that "
            "nothing tells how much these differ: name another replicate or block, or add "
            "controls"
        )


def _left_out(wanted: Effects, samples: pd.DataFrame, large: pd.DataFrame) -> Iterator[str]:
    """Blocks without control, and conditions of few cells."""
    others = samples[samples["condition"] != wanted.control]
    if wanted.block:
        with_control = set(large.loc[large["condition"] == wanted.control, "block"])
        there = samples["block"].drop_duplicates()
        without = there[~there.isin(with_control)]
        compared = set(others.loc[others["block"].isin(with_control), "condition"])
        lost = [name for name in others["condition"].unique() if name not in compared]
        if len(without):
            yield (
                f"{len(without):,} of {len(there):,} values of {wanted.block} have no "
                f"value of {wanted.replicate} with {wanted.min_cells:,} cells of the control "
                f"{wanted.control!r}, so that effects leaves out their samples, and "
                f"{len(lost):,} conditions with them; the first is {without.iloc[0]!r}"
            )
    keys = [name for name in samples if name.startswith("within") or name == "condition"]
    most = others.groupby(keys)["n"].max()
    few = most[most < wanted.min_cells]
    if few.size:
        first = few.index[0] if len(keys) == 1 else ", ".join(few.index[0])
        yield (
            f"{few.size:,} of {most.size:,} conditions have no value of {wanted.replicate} "
            f"with {wanted.min_cells:,} cells (effects.min_cells), so that effects leaves them "
            f"out; the first is {first!r}, with {few.iloc[0]:,}"
        )


def _design(samples: pd.DataFrame, control: str) -> Design:
    codes, names = pd.factorize(samples["condition"])
    blocks = pd.factorize(samples["block"])[0] if "block" in samples else np.zeros(codes.size, int)
    number = int(pd.Index(names).get_indexer([control])[0])
    return Design.build(np.arange(codes.size), codes, blocks, number)
