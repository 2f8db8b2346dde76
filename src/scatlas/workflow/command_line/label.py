"""``scatlas label``: the table in which a user names the clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from natsort import natsorted

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.workflow.command_line import say, say_table
from scatlas.workflow.config.loading import read_config
from scatlas.workflow.labels import BY, CLUSTER, CLUSTERING, Clusters, read_clustering, read_tables

if TYPE_CHECKING:
    from scatlas.workflow.config.sections import Config

_N_MARKERS = 8  # of each cluster
_COLUMN = "cell_type"


def label(config_file: Path, out: Path | None) -> None:
    """Print and write the table of the present clusters, with their sizes and first markers. One of
    these clusters is not replaced; one of other clusters is kept under another name.
    """
    config = read_config(config_file)
    table = table_of_clusters(config)
    if out is None:
        of_clusters = (Path(path) for path in config.labels or [] if not _is_of_cells(path))
        out = next(of_clusters, Path("labels.tsv"))
    if out.exists():
        if read_clustering(out) in (None, table[CLUSTERING].iloc[0]):
            raise InputError(f"{out} is there: give its clusters names, or another file as --out")
        kept = next(
            path for n in range(1, 1000) if not (path := out.with_suffix(f".{n}.tsv")).exists()
        )
        out.rename(kept)
        say(f"{out} was written for other clusters: it is now {kept}")
    column = column_of_names(config)
    shown = table.drop(columns=[CLUSTERING, column]).astype(str)
    say_table([list(shown), *shown.to_numpy().tolist()])
    with atomic_path(out) as path:
        table.to_csv(path, sep="\t", index=False, lineterminator="\n")
    todo = "" if str(out) in (config.labels or []) else f", write labels: {out} into {config_file}"
    say(f"wrote {out}: fill in its column {column}{todo}, and give the command: scatlas run")


def _is_of_cells(path: str) -> bool:
    """Whether a table of the config names cells; one of clusters may have no names yet."""
    try:
        return Path(path).exists() and not read_tables([path])[0].is_of_clusters
    except InputError:
        return False


def table_of_clusters(config: Config) -> pd.DataFrame:
    """Clusters of a finished map: name to fill in, cells, their share, markers, and the digest."""
    folder = Path(config.folder)
    clusters = present_clusters(config)
    if clusters is None:
        raise InputError(f"{folder}: there are no clusters yet: make them with scatlas run")
    sizes = pd.Series(clusters.sizes, clusters.names)
    table = pd.DataFrame({CLUSTER: natsorted(clusters.names), column_of_names(config): ""})
    table["n_cells"] = table[CLUSTER].map(sizes)
    table["share"] = (100 * table["n_cells"] / max(1, sizes.sum())).map("{:.1f}%".format)
    table["markers"] = table[CLUSTER].map(first_markers(folder)).fillna("")
    if config.annotate:
        proposed, table["vote"] = (table[CLUSTER].map(part).fillna("") for part in votes(folder))
        table[column_of_names(config)] = proposed
    return table.assign(**{CLUSTERING: clusters.digest})


def present_clusters(config: Config) -> Clusters | None:
    """Clusters of a finished map, if there is one."""
    folder = Path(config.folder)
    cell_map = folder / "map.zarr" if config.maps_all_cells else None
    files = (folder / "embedding/subset.zarr", folder / "embedding/leiden.zarr")
    is_there = ((cell_map or files[1]) / "zarr.json").exists()
    return Clusters.read(cell_map, *files) if is_there else None


def column_of_names(config: Config) -> str:
    """Column to fill in, which must not be that of the types of cells (config: annotate)."""
    return "cluster_name" if config.annotate and _COLUMN in config.annotate.columns else _COLUMN


def votes(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Vote of each cluster, "" for none, and the same or "unknown" with its share."""
    path = folder / "tables/annotation.tsv"
    if not path.exists():
        return {}, {}
    table = pd.read_csv(path, sep="\t", dtype={BY: str}, keep_default_na=False)
    first = table[table["source"] == table["source"].iloc[0]]
    share = first["share"].where(first["vote"] != "", first["unknown"])
    words = first["vote"].replace("", "unknown") + (100 * share).map(" {:.0f}%".format)
    names, said = (dict(zip(first[BY], part, strict=True)) for part in (first["vote"], words))
    return names, said


def first_markers(folder: Path) -> dict[str, str]:
    """First marker genes of each cluster, if there are some."""
    from scatlas.workflow.explore import read_markers

    path = folder / "tables/markers.tsv"
    if not path.exists():
        return {}
    markers = read_markers(path)
    best = markers[(markers["by"] == BY) & (markers["rank"] <= _N_MARKERS)]
    return best.groupby("group")["names"].agg(" ".join).to_dict()
