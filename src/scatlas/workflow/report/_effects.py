"""Effects of conditions in the report: how strong they are, and the genes of the strongest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem

from scatlas import pl
from scatlas._util.names import split_dose
from scatlas.get import effects as effects_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from scatlas.workflow.report._page import Picture, ReportWriter, Table

_N_VOLCANOES = 6
_N_ROWS = 10  # genes of each condition in the table
_FDR = 0.05
_N_STRIPS, _N_COMPOUNDS, _N_GENES = 3, 12, 6  # figures of doses, strips of each, genes of a strip


def effects(
    writer: ReportWriter, path: Path, wanted: Mapping[str, Any], *, is_sample: bool = False
) -> list[Picture | Table]:
    """Pictures and tables of ``effects.h5ad``; ``wanted`` is the config's section effects. With
    ``is_sample`` only sampled cells have clusters.
    """
    condition, within = wanted["condition"], wanted["within"]
    labels = dict.fromkeys([condition, *within], str)
    table = pd.read_csv(writer.tables / "effects.tsv", sep="\t", dtype=labels)
    left_out = pd.read_csv(writer.tables / "effects_left_out.tsv", sep="\t", dtype=str).fillna("")
    n_significant = table["n_significant"]
    groups = table[within].agg(", ".join, axis=1) if within else pd.Series("all cells", table.index)
    long = table.assign(condition=table[condition], group=groups)
    strength, distances = (
        long.pivot_table(index="condition", columns="group", values=name, sort=False)
        for name in ("n_significant", "edistance")
    )
    said = (
        f"Heat maps of {len(strength)} values of {condition}: genes that they change, and how far "
        "their cells are from the control."
    )
    draw = partial(pl.effect_strength, strength, distances)
    items: list[Picture | Table] = [writer.picture("effect_strength", draw, said)]
    (writer.figures / "volcano").mkdir(parents=True, exist_ok=True)
    strongest = n_significant.sort_values(ascending=False, kind="stable").index[:_N_VOLCANOES]
    rows = []
    conditions = zip(strongest, _read_conditions(path, strongest), strict=True)
    for number, (row, genes) in enumerate(conditions, start=1):
        rows.append(genes.head(_N_ROWS))
        title = f"{table[condition][row]}, {groups[row]}" if within else table[condition][row]
        said = f"Volcano plot of {title} beside {wanted['control']}."
        draw = partial(pl.volcano, genes, title)
        items.append(writer.picture("volcano", draw, said, color=f"{number:02d}", title=title))
    items += _doses(writer, path, table[condition], groups, n_significant)
    for name, title, frame in (
        ("effects", "Effects of the conditions", table),
        ("effects_left_out", "Conditions without effects", left_out),
    ):
        shown = frame.set_index(condition)
        items.append(writer.table(name, title, shown, written=True))
    genes = pd.concat(rows).set_index("gene")
    items.append(writer.table("strongest_effects", "Genes of the strongest effects", genes))
    return [*items, *_composition(writer, is_sample=is_sample)]


def _composition(writer: ReportWriter, *, is_sample: bool) -> list[Picture | Table]:
    """How conditions change the shares of clusters and types: a picture of each that has values."""
    (writer.figures / "share_changes").mkdir(parents=True, exist_ok=True)
    gaps: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
    texts = dict.fromkeys([0, 1, 2], str)
    table = pd.read_csv(writer.tables / "composition.tsv", sep="\t", dtype=texts, **gaps)
    first, _, cluster = table.columns[:3]  # the second is the user's
    table = table.fillna(dict.fromkeys([*table.columns[:3], "reason"], ""))
    items: list[Picture | Table] = []
    for by, rows in table.groupby(first, sort=False):
        if not rows["p_value"].notna().any():
            continue  # the table says why
        own = rows.drop(columns=first).rename(columns={cluster: by})
        n_changed = int((rows["fdr"] < _FDR).sum())
        said = f"Intervals of the shares of {by} in each condition; {n_changed} differ."
        draw = partial(pl.composition, own)
        known = {"is_sample": is_sample and by == "leiden", "n_changed": n_changed}
        items.append(writer.picture("share_changes", draw, said, color=str(by), **known))
    shown = table.sort_values("p_value", kind="stable").set_index(first)
    title = "Shares of clusters by condition"
    return [*items, writer.table("composition", title, shown, written=True, names=[cluster])]


def _doses(
    writer: ReportWriter, path: Path, names: pd.Series, groups: pd.Series, n: pd.Series
) -> list[Picture]:
    """Strips of the groups whose compounds, where names say several doses, change most genes."""
    (writer.figures / "dose_response").mkdir(parents=True, exist_ok=True)  # without doses, too
    parts = [(row, *dose) for row, name in names.items() if (dose := split_dose(name))]
    doses = pd.DataFrame(parts, columns=["row", "compound", "at", "dose"])
    doses = doses.assign(group=doses["row"].map(groups), n_significant=doses["row"].map(n))
    several = doses.groupby(["group", "compound"])["at"].transform("nunique") > 1
    doses = doses[several].sort_values(["group", "compound", "at", "row"], kind="stable")
    strength = doses.groupby("group", sort=False)["n_significant"].sum()
    pictures = []
    strongest = strength.sort_values(ascending=False, kind="stable").index[:_N_STRIPS]
    for number, group in enumerate(strongest, start=1):
        own = doses[doses["group"] == group]
        most = own.groupby("compound", sort=False)["n_significant"].max()
        compounds = most.sort_values(ascending=False, kind="stable").index[:_N_COMPOUNDS]
        strips = pd.concat(_strip(path, own[own["compound"] == name]) for name in compounds)
        said = f"Strips of log2 fold changes by dose of {len(compounds)} compounds in {group}."
        draw = partial(pl.dose_response, strips, group)
        color = f"{number:02d}"
        pictures.append(writer.picture("dose_response", draw, said, color=color, title=group))
    return pictures


def _strip(path: Path, doses: pd.DataFrame) -> pd.DataFrame:
    """The surest genes of a compound's strongest dose, at each of its doses."""
    with h5py.File(path) as file:
        genes = read_elem(file["var"]).index
        t = np.abs(file["layers/t"][doses.loc[doses["n_significant"].idxmax(), "row"]])
        at = np.argsort(-np.nan_to_num(t, nan=-1.0), kind="stable")[:_N_GENES]
        parts = []
        for row in doses.itertuples():
            fold = {"gene": genes[at], "log2_fold_change": file["X"][row.row][at]}
            facts = {name: getattr(row, name) for name in ("compound", "dose", "n_significant")}
            parts.append(pd.DataFrame({**facts, **fold}))
    return pd.concat(parts, ignore_index=True)


def _read_conditions(path: Path, rows: Iterable[int]) -> Iterator[pd.DataFrame]:
    """Effects of some rows of ``effects.h5ad``, which is not read as a whole."""
    with h5py.File(path) as file:
        obs, var, varm, uns = (read_elem(file[name]) for name in ("obs", "var", "varm", "uns"))
        for row in rows:
            x, t = file["X"][row : row + 1], file["layers/t"][row : row + 1]
            part = AnnData(x, obs=obs.iloc[[row]], var=var, layers={"t": t}, varm=varm, uns=uns)
            yield effects_table(part)
