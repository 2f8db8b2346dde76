"""Files of plates, from the arguments of ``scatlas init``."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from natsort import natsorted

from scatlas.errors import ConfigError, InputError
from scatlas.io.files.cell_files import CellFiles
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices.counts_source import find_source
from scatlas.io.matrices.parquet_source import ParquetSource
from scatlas.io.matrices.source import CountsSource, Sample, Wanted
from scatlas.io.products.split_samples import list_samples
from scatlas.workflow.config.loading import plate_names
from scatlas.workflow.config.plate_sheet import (
    WINDOWS,
    filtered_name,
    find_plates,
    is_pattern,
    is_plate,
    is_windows_path,
    name_plates,
    without_lists,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Columns of Parquet files that name the plates, the first that they have.
_PLATE_COLUMNS = ("plate", "sample")
_ZARR_ROOTS = ("zarr.json", ".zgroup", ".zattrs")
# Folders below that a folder without plates is searched for them, to name the pattern, and their
# names: of a run of Cell Ranger the matrices of single samples, and filtered ones.
_DEPTHS = [depth * "*/" for depth in range(6)]
_NAMES = (
    *("sample_filtered_feature_bc_matrix.h5", "filtered_feature_bc_matrix.h5"),
    *("sample_filtered_feature_bc_matrix", "filtered_feature_bc_matrix"),
    *("Gene/filtered", "DGE_filtered", "*.h5ad", "*.h5", "*.loom", "*.mtx", "*.mtx.gz"),
)


def find_files(arguments: list[str]) -> dict[str, str]:
    """Plates by name, with their paths, of files, stores, addresses, folders and patterns."""
    paths = natsorted({path: None for given in arguments for path in _paths(given)})
    paths = without_lists(paths)
    by_file: dict[object, str] = {}
    for path in paths:
        first = by_file.setdefault(path if "://" in path else Path(path).resolve(), path)
        if first != path:
            raise InputError(f"{path}: the same data as {first}: give one of them")
        _check_not_raw(path, paths)
    plates: dict[str, str] = {}
    for path, name in name_plates(paths).items():
        if name in plates:
            raise InputError(
                f"{path}: plate {name!r}, which {plates[name]} is, too: give one file per sample, "
                "or rename one"
            )
        plates[name] = path
    return plates


class Release(NamedTuple):
    """Parquet files of several plates, with ``plates.path`` and ``plates.by`` of a config."""

    path: str
    by: str
    plates: Mapping[str, Callable[[], CountsSource]]  # what opens each by its name


def find_release(arguments: list[str]) -> Release | None:
    """Find the Parquet files of a release; None for other arguments of ``scatlas init``."""
    paths = [Path(given).expanduser() for given in arguments]
    are_many = len(paths) > 1
    if are_many and {path.suffix for path in paths} != {".parquet"}:
        return None
    path = str(paths[0].parent if are_many else paths[0])
    files = CellFiles.find(path)
    if files is None or (are_many and {*files.files} != {*paths}):
        return None
    by = next((name for name in _PLATE_COLUMNS if name in files.columns), None)
    if by is None and paths[0].is_file():
        return None  # each file is a plate
    if by is None:
        raise InputError(
            f"{path}: no column names the plates ({', '.join(_PLATE_COLUMNS)}); it has "
            f"{', '.join(files.columns)}: write plates: {{path: {path}, by: NAME}} in a config"
        )
    names = plate_names(ParquetSource(files).plates(by), path)
    parts = {name: Wanted(sample=Sample(by, value)) for value, name in names.items()}
    opens = {name: partial(ParquetSource, files, part) for name, part in parts.items()}
    return Release(path, by, opens)


def find_samples(path: str) -> list[str]:
    """Plates of a folder of split-pipe that has several samples, by its column ``sample``."""
    text = TextMatrix.find(path)
    if text is None or not text.cells.name.startswith("cell_metadata.csv"):
        return []
    with find_source(path) as source:
        if "sample" not in source.table("obs").columns:
            return []
    samples = list_samples(path, "sample")
    return [*plate_names(samples, path).values()] if len(samples) > 1 else []


def _paths(given: str) -> list[str]:
    if "://" in given:
        return [given]
    path = Path(given).expanduser()
    if path.exists():
        return _at(path)
    if is_windows_path(given):
        raise InputError(f"{given}: no such file: {WINDOWS}")
    if not is_pattern(given):
        raise InputError(f"{given}: no such file or folder: correct the path")
    try:
        found = find_plates(str(path))
    except ConfigError:
        msg = f"{given}: no path matches this pattern: correct it (patterns start in {Path.cwd()})"
        raise InputError(msg) from None
    return [plate for name in found for plate in _at(Path(name))]


def _at(path: Path) -> list[str]:
    """The plate at a path, or the plates in the folder."""
    if path.is_file() or any((path / name).exists() for name in _ZARR_ROOTS):
        return [str(path)]
    return _in_folder(path)


def _in_folder(folder: Path) -> list[str]:
    try:
        return find_plates(str(folder))
    except ConfigError:
        pass
    for name, depth in product(_NAMES, _DEPTHS):
        found = filter(is_plate, folder.glob(f"{depth}{name}"))
        if any(filtered_name(path.name) is None for path in found):
            raise InputError(
                f"{folder}: no plates here, but in folders below: give their pattern, "
                f"'{folder}/{depth}{name}'"
            )
    what = "the folder is empty" if not any(folder.iterdir()) else "no plates in this folder"
    msg = f"{folder}: {what}: give h5ad, Zarr, Loom, Cell Ranger's .h5 or a folder with a .mtx file"
    raise InputError(msg)


def _check_not_raw(path: str, paths: list[str]) -> None:
    """Refuse an unfiltered matrix beside the filtered one, and all samples beside single ones."""
    given, others = Path(path), {Path(p).with_suffix(""): p for p in paths if p != path}
    same: list[str] = []
    for part in (given, given.parent):
        if filtered := filtered_name(part.name):
            beside = (part.with_name(filtered) / given.relative_to(part)).with_suffix("")
            same += [others[beside]] if beside in others else []
            if part.parent.match("multi/count"):  # of all samples
                samples = part.parents[2] / "per_sample_outs"
                same += [p for name, p in others.items() if name.is_relative_to(samples)]
    if same:
        raise InputError(f"{path}: the same sample as {same[0]}, with empty droplets: leave it out")
