"""``scatlas gene``: genes of an atlas by cluster, by cell, on the map, and for the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml
from natsort import natsorted

from scatlas.columns import check_groups, get_labels
from scatlas.errors import ConfigError, InputError
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.atomic import atomic_path
from scatlas.io.tables.table import open_tables
from scatlas.workflow.command_line import say, say_table
from scatlas.workflow.config.loading import load, read_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_CLUSTERS = "leiden"
_KEY = "explore.genes"


def gene(
    names: Sequence[str],
    config_file: Path,
    *,
    atlas: str | None = None,
    by: str | None = None,
    counts: bool = False,
    table: Path | None = None,
    figure: Path | None = None,
    add: bool = False,
) -> None:
    """Print each gene's share of cells with counts, and mean, by group; write the files."""
    from scatlas.get import genes

    names = [*dict.fromkeys(names)]
    if atlas is None:
        atlas = f"{read_config(config_file).folder}/atlas.zarr"
        if not Path(atlas).exists():
            raise InputError(f"{atlas}: there is no atlas yet: make it with scatlas run")
    groups = _groups(atlas, by)
    values = genes(atlas, names, layer="counts" if counts else None)
    say_table(_rows(groups, names, values, "mean count" if counts else "mean"))
    if table:
        _write_table(atlas, table, groups, pd.DataFrame(values, columns=names, copy=False))
        say(f"wrote {table}")
    if figure:
        _draw(atlas, figure, names, values)
        say(f"wrote {figure}")
    if add:
        say(add_genes(config_file, names))


def _groups(atlas: str, by: str | None) -> pd.Series:
    """Labels of the cells in a column of obs; without one of the clusters, else of no column."""
    with open_tables(atlas) as (obs, _):
        name = by or _CLUSTERS
        if name not in obs.columns and by is None:
            return pd.Series(np.full(obs.n_rows, "all"), name="cells", dtype="category")
        if name not in obs.columns:
            listed = ", ".join(obs.text_columns())
            raise InputError(f"{atlas}: obs has no column {name!r}: name one of {listed}")
        frame = obs.read([name], index=False)
    check_groups(frame[name], "--by")
    return pd.Series(get_labels(frame, name, "--by"), name=name)


def _rows(
    groups: pd.Series, names: Sequence[str], values: NDArray[Any], mean: str
) -> list[list[str]]:
    labels, codes = groups.cat.categories, groups.cat.codes.to_numpy()
    header = [str(groups.name), "cells"]
    for name in names:
        header += [f"{name} % of cells", f"{name} {mean}"]
    rest = [("no value", codes < 0)] if (codes < 0).any() else []
    rows = [header]
    for label, cells in [
        *((str(x), codes == labels.get_loc(x)) for x in natsorted(labels)),
        *rest,
        ("all", np.ones(len(codes), bool)),
    ]:
        n = int(cells.sum())
        row = [label, f"{n:,}"]
        for j in range(len(names)):
            own = values[cells, j]
            share, average = (100 * (own > 0).mean(), own.mean(dtype=np.float64)) if n else (0, 0)
            row += [f"{share:.1f}", f"{average:.3f}"]
        rows.append(row)
    return rows


def _write_table(atlas: str, path: Path, groups: pd.Series, values: pd.DataFrame) -> None:
    """Write a line per cell, some ten thousand at a time."""
    values.insert(0, str(groups.name), groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    sep = "," if path.suffix == ".csv" else "\t"
    with open_tables(atlas) as (obs, _), atomic_path(path) as partial:
        for lo, hi in obs.spans():
            part = values.iloc[lo:hi].set_axis(pd.Index(obs.names(lo, hi), name="cell"))
            part.to_csv(partial, sep=sep, mode="a" if lo else "w", header=not lo)


def _draw(atlas: str, path: Path, names: Sequence[str], values: NDArray[Any]) -> None:
    from anndata import AnnData

    from scatlas import pl
    from scatlas.io.matrices.lazy import read_embedding

    with Store.find(atlas).open() as root:
        if "X_umap" not in root.get("obsm", {}):
            raise InputError(
                f"{atlas}: there is no obsm['X_umap'] to draw on: build the atlas with "
                "map: {cells: all}"
            )
    xy = read_embedding(atlas, "X_umap").compute()
    # Real numbers get a colour scale, also where counts have few values.
    obs = pd.DataFrame(values.astype(np.float32, copy=False), columns=[*names], copy=False)
    cells = AnnData(obs=obs.set_axis(obs.index.astype(str)), obsm={"X_umap": xy})
    shown: Any = names[0] if len(names) == 1 else [*names]
    pl.save(pl.umap(cells, shown), path)


def add_genes(config_file: Path, names: Sequence[str]) -> str:
    """Add genes to ``explore.genes`` of a config, whose other text stays; a sentence on what was
    done.
    """
    with config_file.open(encoding="utf-8", newline="") as file:
        text = file.read()
    before = load(config_file).explore.genes
    new = [name for name in names if name not in before]
    if not new:
        return f"{_KEY} of {config_file} has {', '.join(names)} already"
    wanted = yaml.safe_load(text) or {}
    section = wanted.setdefault("explore", None) or {}
    given = section.get("genes") or []
    genes = [*new, *([given] if isinstance(given, str) else given)]
    wanted["explore"] = {**section, "genes": genes}
    changed = _with_genes(text, new)
    try:
        is_right = changed is not None and yaml.safe_load(changed) == wanted
    except yaml.YAMLError:
        is_right = False
    if changed is None or not is_right:
        listed = _inline(genes)
        raise ConfigError(
            f"{config_file}: its form is unusual, and nothing was changed: write "
            f"'genes: {listed}' below 'explore:' yourself"
        )
    with (
        atomic_path(config_file) as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        file.write(changed)
    return f"{_KEY} of {config_file} has {', '.join(new)} now: scatlas run shows them"


def _inline(names: Sequence[str]) -> str:
    return yaml.safe_dump([*names], default_flow_style=True, width=10**6).strip()


def _with_genes(text: str, new: Sequence[str]) -> str | None:
    """The text with more genes before those that are there, at positions that YAML's parser knows;
    None where it has no position for them.
    """
    line_end = "\r\n" if "\r\n" in text else "\n"
    root = yaml.compose(text, yaml.SafeLoader)
    explore, listed = _child(root, "explore"), _inline(new)
    if explore is None and not (root is not None and root.flow_style):
        end = "" if not text or text.endswith("\n") else line_end
        return f"{text}{end}{line_end}explore:{line_end}  genes: {listed}{line_end}"
    if isinstance(explore, yaml.ScalarNode) and not explore.value:  # all its keys are comments
        key = next(key for key, _ in root.value if key.value == "explore").end_mark.index
        line, rest = text[:key], text[key:].partition(line_end)
        return f"{line}{rest[0]}{line_end}  genes: {listed}{rest[1]}{rest[2]}"
    genes = _child(explore, "genes")
    parent = explore if genes is None else genes
    if not isinstance(parent, yaml.CollectionNode) or not parent.value:
        return None
    first = parent.value[0][0] if genes is None else parent.value[0]
    entries = [f"genes: {listed}"] if genes is None else [_inline([name])[1:-1] for name in new]
    dash = "" if genes is None else "- "
    between = ", " if parent.flow_style else f"{line_end}{' ' * parent.start_mark.column}{dash}"
    at = first.start_mark.index
    return "".join([text[:at], *(entry + between for entry in entries), text[at:]])


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)
