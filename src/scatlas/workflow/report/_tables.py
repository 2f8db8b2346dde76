"""The report's tables: one function per table, from plain numbers to a DataFrame."""

from __future__ import annotations

import json
from collections import Counter
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas._version import __version__
from scatlas.columns import name_of_gaps
from scatlas.workflow.cell_filter import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_STEPS = (
    *("simulate", "split", "load", "qc_filter", "doublets", "normalize", "hvg", "consensus"),
    *("select_genes", "concat_on_disk", "pca", "harmony", "subset"),
    *("neighbors", "umap", "leiden", "map", "labels", "embedding", "atlas"),
    *("cell_groups", "group_sums", "markers", "by_gene", "merge_by_gene", "integrate"),
    *("explore", "publish"),
)
_PACKAGES = (
    *("anndata", "zarr", "numpy", "scipy", "pandas", "numba", "dask", "scikit-learn"),
    *("umap-learn", "pynndescent", "igraph", "leidenalg", "matplotlib"),
)


def cells(summaries: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Cells before and after QC, cells removed per rule, and medians of kept cells, by plate."""
    rules = list(dict.fromkeys(rule for plate in summaries.values() for rule in plate["removed"]))
    rows = {}
    for name, plate in summaries.items():
        rows[name] = {
            "cells": plate["n_cells"],
            "kept": plate["n_kept"],
            **{f"removed by {rule}": plate["removed"].get(rule, 0) for rule in rules},
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("plate")
    # With a space, which no plate's name has.
    table.loc["all plates"] = table.sum()
    table.insert(2, "kept %", (100 * table["kept"] / table["cells"].clip(lower=1)).round(1))
    for key in ("median_counts", "median_genes"):
        values = [plate[key] for plate in summaries.values()]
        table[key.replace("_", " ")] = [*values, np.nan]
    return table


def left_out(messages: Mapping[str, str]) -> pd.DataFrame:
    """Plates that the atlas lacks, and why."""
    return pd.DataFrame({"reason": dict(messages)}, dtype=object).rename_axis("plate")


def thresholds(summaries: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Bound of each QC rule that is set, and the cells that it removed on all plates."""
    n_cells = sum(plate["n_cells"] for plate in summaries.values())
    first = next(iter(summaries.values()))["thresholds"]
    rows: dict[str, dict[str, Any]] = {}
    for rule, bound in first.items():
        if bound is not None:
            taken = sum(plate["removed"].get(rule, 0) for plate in summaries.values())
            share = round(100 * taken / max(1, n_cells), 1)
            rows[rule] = {"bound": bound, "cells removed": taken, "% of all cells": share}
    columns = ["bound", "cells removed", "% of all cells"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("rule")


def bounds(summaries: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Bounds of each plate, or of each group of its cells (``qc.by``), and the cells they keep."""
    tables = []
    for plate, summary in summaries.items():
        table = pd.DataFrame(summary["bounds"], index=[plate] * len(summary["bounds"]))
        table[[*BOUNDS]] = table[[*BOUNDS]].astype(float)  # None alone would be objects
        tables.append(table if len(table) > 1 else table.drop(columns="group"))
    table = pd.concat(tables).rename_axis("plate")
    table["kept %"] = (100 * table["kept"] / table["cells"].clip(lower=1)).round(1)
    table[[*BOUNDS]] = table[[*BOUNDS]].round(1)
    group = ["group"] if "group" in table else []
    return table[[*group, "cells", "kept", "kept %", *BOUNDS]]


def doublets(captures: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Doublets per capture: predicted, detectable among simulated ones, and estimated in all."""
    rows = {}
    doubtful = any("doubt" in facts for facts in captures.values())
    for name, facts in captures.items():
        rate = facts["n_doublets"] / max(1, facts["n_cells"])
        detectable = facts["detectable"]
        rows[name] = {
            "cells": facts["n_cells"],
            "threshold": np.nan if facts["threshold"] is None else facts["threshold"],
            "predicted doublets": facts["n_doublets"],
            "predicted %": round(100 * rate, 2),
            "detectable %": np.nan if detectable is None else round(100 * detectable, 1),
            "in all %": round(100 * rate / detectable, 2) if detectable else np.nan,
            **({"doubt": facts.get("doubt", "")} if doubtful else {}),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("capture")


def consensus(variable: Mapping[str, Collection[str]], chosen: Collection[str]) -> pd.DataFrame:
    """Highly variable genes by number of plates, and how many of them the atlas has."""
    times = Counter(chain.from_iterable(variable.values()))
    n_plates = len(variable)
    n_genes = np.bincount(list(times.values()), minlength=n_plates + 1)
    taken = np.bincount([times[gene] for gene in chosen], minlength=n_plates + 1)
    plates = pd.RangeIndex(1, n_plates + 1, name="plates")
    return pd.DataFrame({"genes": n_genes[1:], "in the atlas": taken[1:]}, index=plates)


def crosstab(obs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Cells of each cluster by the values of a column."""
    values = obs[column].astype("string")
    values = values.fillna(name_of_gaps(column, obs.columns, set(values.dropna())))
    return pd.crosstab(obs["leiden"].astype(str), values)


def clusters(
    table: pd.DataFrame, column: str, names: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Name and cells of each cluster, its most common value of a column, and the cells of each."""
    table = table.loc[natsorted(table.index), natsorted(table)]
    table.columns.name = None
    largest = table.idxmax(axis=1)
    total = table.sum(axis=1)
    share = (100 * table.max(axis=1) / total).round(1)
    facts = {"name": table.index.map(names).fillna("")} if names else {}
    facts |= {"cells": total, f"most common {column}": largest, "its %": share}
    return pd.concat([pd.DataFrame(facts), table], axis=1).rename_axis("leiden")


def runs(manifests: Path) -> pd.DataFrame:
    """Time and memory of each rule, from the run records (Snakemake's benchmarks see the process
    that waits for a forked job); damaged records and values that are no number are left out.
    """
    rows: list[dict[str, Any]] = []
    for path in manifests.rglob("runs/*.json"):
        step = path.parent.parent
        try:
            record = json.loads(path.read_bytes())
            rows.append(
                {
                    "rule": path.stem if step == manifests else step.name,
                    "seconds": record.get("seconds"),
                    "memory": record.get("peak_memory_bytes"),
                    "cpu": record.get("processor_seconds"),
                }
            )
        except (ValueError, AttributeError):
            continue
    jobs = pd.DataFrame(rows, columns=["rule", "seconds", "memory", "cpu"])
    numbers = jobs.drop(columns="rule").apply(pd.to_numeric, errors="coerce").astype(float)
    by_rule = jobs[["rule"]].join(numbers).groupby("rule", sort=False)
    table = pd.DataFrame(
        {
            "jobs": by_rule.size(),
            "seconds, all jobs": by_rule["seconds"].sum().round(1),
            "seconds, longest job": by_rule["seconds"].max().round(1),
            "CPU seconds": by_rule["cpu"].sum(min_count=1).round(1),
            "peak memory, MiB": (by_rule["memory"].max() / 2**20).round(0),
        }
    )
    order = {step: i for i, step in enumerate(_STEPS)}
    return table.loc[sorted(table.index, key=lambda rule: (order.get(rule, len(order)), rule))]


def settings(config: Mapping[str, Any]) -> pd.DataFrame:
    """Every key of the config, its sections spelled out as ``qc.min_genes``."""
    rows: dict[str, str] = {}

    def walk(section: Mapping[str, Any], prefix: str) -> None:
        for key, value in section.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                rows[f"{prefix}{key}"] = _as_text(value)

    walk(config, "")
    return pd.DataFrame({"value": rows}).rename_axis("key")


def _as_text(value: Any) -> str:
    """A value roughly as in YAML, for display only."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return str(value)


def versions() -> pd.DataFrame:
    """Versions of the packages that made the results."""
    # scatlas itself may be run from a checkout, not installed.
    numbers = {"scatlas": __version__} | {package: version(package) for package in _PACKAGES}
    return pd.DataFrame({"version": numbers}).rename_axis("package")
