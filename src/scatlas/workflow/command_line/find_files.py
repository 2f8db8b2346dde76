"""Files of plates, from the arguments of ``scatlas init``."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import NamedTuple

from natsort import natsorted

from scatlas.errors import ConfigError, InputError
from scatlas.io.files.cell_files import CellFiles
from scatlas.io.matrices.matrix_market import is_matrix_market
from scatlas.io.matrices.parquet_source import Sample, list_plates
from scatlas.workflow.config.plate_sheet import (
    WINDOWS,
    filtered_name,
    find_plates,
    is_pattern,
    is_plate,
    is_windows_path,
    name_plates,
)
from scatlas.workflow.config.samples import plate_names

# Columns of Parquet files that name the plates, the first that they have.
_PLATE_COLUMNS = ("plate", "sample")
_ZARR_ROOTS = ("zarr.json", ".zgroup", ".zattrs")
# Folders below that a folder without plates is searched for them, to name the pattern, and their
# names: of a run of Cell Ranger the matrices of single samples, and filtered ones.
_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*")
_NAMES = (
    *("sample_filtered_feature_bc_matrix.h5", "filtered_feature_bc_matrix.h5"),
    *("sample_filtered_feature_bc_matrix", "filtered_feature_bc_matrix"),
    *("*.h5ad", "*.h5", "*.loom"),
)


def find_files(arguments: list[str]) -> dict[str, str]:
    """Plates by name, with their paths.

    Parameters
    ----------
    arguments
        Files, stores, addresses, folders of plates, and patterns.

    Raises
    ------
    InputError
        An argument has no plates, or two files are the same plate.
    """
    paths = natsorted({path: None for given in arguments for path in _paths(given)})
    by_file: dict[object, str] = {}
    for path in paths:
        first = by_file.setdefault(path if "://" in path else Path(path).resolve(), path)
        if first != path:
            msg = f"{path}: the same data as {first}: give one of them"
            raise InputError(msg)
        _check_not_raw(path, paths)
    plates: dict[str, str] = {}
    for path, name in name_plates(paths).items():
        if name in plates:
            msg = (
                f"{path}: plate {name!r}, which {plates[name]} is, too: give one file per sample, "
                "or rename one"
            )
            raise InputError(msg)
        plates[name] = path
    return plates


class Release(NamedTuple):
    """Parquet files of several plates.

    Attributes
    ----------
    path, by
        As ``plates.path`` and ``plates.by`` of a config.
    files
        What was found there.
    plates
        By the name of each plate, the part of the files.
    """

    path: str
    by: str
    files: CellFiles
    plates: dict[str, Sample]


def find_release(arguments: list[str]) -> Release | None:
    """Find the Parquet files of a release; None for other arguments of ``scatlas init``.

    Raises
    ------
    InputError
        Files are missing or of another release, or no column names the plates.
    """
    if len(arguments) != 1:
        return None
    path = str(Path(arguments[0]).expanduser())
    files = CellFiles.find(path)
    if files is None:
        return None
    by = next((name for name in _PLATE_COLUMNS if name in files.columns), None)
    if by is None:
        msg = (
            f"{path}: no column names the plates ({', '.join(_PLATE_COLUMNS)}); it has "
            f"{', '.join(files.columns)}: rename the one with the plates"
        )
        raise InputError(msg)
    names = plate_names(list_plates(files, by), path)
    return Release(path, by, files, {name: Sample(by, value) for value, name in names.items()})


def _paths(given: str) -> list[str]:
    if "://" in given:
        return [given]
    path = Path(given).expanduser()
    if path.exists():
        is_one = path.is_file() or is_matrix_market(path)
        if is_one or any((path / name).exists() for name in _ZARR_ROOTS):
            return [str(path)]
        return _in_folder(path)
    if is_windows_path(given):
        msg = f"{given}: no such file: {WINDOWS}"
        raise InputError(msg)
    if not is_pattern(given):
        msg = f"{given}: no such file or folder: correct the path"
        raise InputError(msg)
    try:
        return find_plates(str(path))
    except ConfigError:
        msg = f"{given}: no path matches this pattern: correct it (patterns start in {Path.cwd()})"
        raise InputError(msg) from None


def _in_folder(folder: Path) -> list[str]:
    try:
        return find_plates(str(folder))
    except ConfigError:
        pass
    for name, depth in product(_NAMES, _DEPTHS):
        found = filter(is_plate, folder.glob(f"{depth}/{name}"))
        if any(filtered_name(path.name) is None for path in found):
            msg = (
                f"{folder}: no plates here, but in folders below: give their pattern, "
                f"'{folder}/{depth}/{name}'"
            )
            raise InputError(msg)
    what = "the folder is empty" if not any(folder.iterdir()) else "no plates in this folder"
    msg = f"{folder}: {what}: give h5ad, Zarr, Loom, Cell Ranger's .h5 or a folder with matrix.mtx"
    raise InputError(msg)


def _check_not_raw(path: str, paths: list[str]) -> None:
    """Refuse an unfiltered matrix of Cell Ranger beside the filtered one of the same samples."""
    folder, name = Path(path).parent, Path(path).name
    if (filtered := filtered_name(name)) is None:
        return
    same = [p for p in paths if Path(p).parent == folder and Path(p).stem == Path(filtered).stem]
    if folder.match("multi/count"):  # of all samples
        same += [p for p in paths if Path(p).is_relative_to(folder.parents[1] / "per_sample_outs")]
    if same:
        msg = f"{path}: the same sample as {same[0]}, with empty droplets: leave it out"
        raise InputError(msg)
