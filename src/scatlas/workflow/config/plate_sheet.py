"""The plate sheet: names, paths and labels of the plates."""

from __future__ import annotations

import csv
import re
from glob import glob
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from natsort import natsorted
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from scatlas.errors import ConfigError, InputError
from scatlas.io.files.text_matrix import TextMatrix, is_text_matrix
from scatlas.io.zarr_writer.node_metadata import is_storable
from scatlas.workflow.config.values import COUNTS, described, expand_home

__all__ = ["Plate", "read_plates"]

# Folder of the demo's plates, which are results.
DEMO_FOLDER = "resources/demo"
# No leading dot or dash: results of a plate live in a folder of its name. Its files have names of
# at most 255 bytes, which begin with it.
_MAX_NAME = 200
PLATE_NAME = rf"^[A-Za-z0-9_][A-Za-z0-9._-]{{0,{_MAX_NAME - 1}}}$"
# obs columns that steps of the workflow write: a label of that name would be lost. A measure of
# `integrate` is named by its column, with this prefix.
WRITTEN_COLUMNS = {
    *("total_counts", "n_genes_by_counts", "total_counts_mt", "pct_counts_mt", "size_factor"),
    *("doublet_score", "predicted_doublet", "leiden", "leiden_share"),
    *("leiden_harmony", "leiden_uncorrected", "map_distance", "unlike_atlas", "atlas_row"),
}
_MEASURE = "lisi_"

# Folders of unfiltered and of filtered matrices of STARsolo, split-pipe and kb-python.
_FILTERED = {
    "raw": "filtered",
    "DGE_unfiltered": "DGE_filtered",
    "counts_unfiltered": "counts_filtered",
}

# Folders of split-pipe with the cells of all samples, beside those of the single ones.
_ALL_SAMPLES = re.compile(r"(?<![^/])all-(?:sample|well)(?=/)")

_WINDOWS = re.compile(r"^[A-Za-z]:[\\/]|\\")
WINDOWS = "write a path of Windows as Linux does, with slashes (in WSL C:\\data is /mnt/c/data)"


def is_windows_path(path: str) -> bool:
    """Whether a path has the drive or the backslashes of Windows."""
    return bool(_WINDOWS.search(path))


class Plate(BaseModel):
    """One row of the plate sheet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plate: Annotated[str, Field(pattern=PLATE_NAME)] = Field(
        description=(
            "Name of the plate, also of its folder among the results: letters, digits, dots, "
            f"dashes and underscores, {_MAX_NAME} at most. Names must be unique."
        )
    )
    path: Annotated[str, Field(min_length=1), AfterValidator(expand_home)] = Field(
        description=(
            "The plate's counts, h5ad or Zarr: a path (absolute, or from the folder where "
            "Snakemake is started; ~ is your home) or an address such as https://..., s3://... "
            "or gs://... Paths must be unique."
        )
    )
    n_cells: Annotated[int, Field(ge=1)] | None = described(
        None,
        "Number of cells, if known: sets the memory and run time that the plate's jobs",
        "request. Otherwise they follow from the size of the file.",
    )
    counts: Annotated[str, Field(pattern=COUNTS)] | None = described(
        None,
        "Where the raw counts are: X, raw, layers/NAME or genome/NAME. Empty: as source.counts",
        "of the config says.",
    )
    fractional: Literal["refuse", "round"] | None = described(
        None,
        "What to do with fractional counts: refuse or round. Empty: as source.fractional of",
        "the config says.",
    )
    s3_profile: str | None = described(
        None,
        "Profile of ~/.aws/config for an s3:// address: its credentials, region and",
        "endpoint_url, the server.",
    )
    s3_requester_pays: Literal["yes"] | None = described(
        None, "yes: your account pays for the transfer from an s3:// address."
    )
    labels: dict[str, str] = described(
        {},
        "Any further column: a label of the plate, such as its donor or date, which becomes",
        "an obs column. Where it is empty, the plate keeps its own obs column of that name,",
        "if it has one.",
    )

    @property
    def is_simulated(self) -> bool:
        """Whether the plate is one of the demo's, which the workflow makes."""
        return Path(self.path).is_relative_to(DEMO_FOLDER)

    @property
    def has_s3_options(self) -> bool:
        """Whether the row has options for an s3:// address."""
        return bool(self.s3_profile or self.s3_requester_pays)

    @property
    def is_remote(self) -> bool:
        """Whether the path is an address instead of a local file."""
        return "://" in self.path


def read_plates(
    path: Path | str, *, check_files: bool = True, generated: Path | str | None = None
) -> list[Plate]:
    """Read and check the plates of a sheet, of a folder (of Cell Ranger's matrices of the same
    cells the filtered one counts, and HDF5 before text) or of a pattern of their paths.
    ``check_files`` refuses local files that do not exist, but for those in ``generated``.
    """
    path, found = Path(path), _find_files(str(path))
    header, rows = (["plate", "path"], found) if found else _read_rows(path)
    plates: list[Plate] = []
    row_of: dict[str, int] = {}
    row_of_file: dict[object, int] = {}
    for number, values in rows:
        plate = _parse_plate(f"{path}, row {number}", dict(zip(header, values, strict=True)))
        if plate.plate in row_of and found:
            first_path = plates[row_of[plate.plate] - 1].path
            raise ConfigError(
                f"{plate.path}: plate {plate.plate!r}, which {first_path} is, too: give one file "
                "per sample, or name the plates in a plate sheet"
            )
        if plate.plate in row_of:
            raise ConfigError(
                f"{path}: plate {plate.plate!r} is in rows {row_of[plate.plate]} and "
                f"{number}; give each plate another name"
            )
        row_of[plate.plate] = number
        is_generated = generated is not None and Path(plate.path).is_relative_to(generated)
        may_be_missing = not check_files or plate.is_remote or is_generated
        if not may_be_missing and not Path(plate.path).exists():
            folder = f"paths start from the working folder {Path.cwd()}"
            mend = WINDOWS if is_windows_path(plate.path) else folder
            which = f"{plate.path} of plate {plate.plate!r}"
            raise ConfigError(f"{path}, row {number}: {which} does not exist; {mend}")
        first = row_of_file.setdefault(_file_identity(plate), number)
        if first != number:
            raise ConfigError(
                f"{path}: rows {first} and {number} name the same data, {plate.path}: each cell "
                "would be in the atlas twice; remove one row"
            )
        plates.append(plate)
    if not plates:
        raise ConfigError(f"{path} lists no plate; add a row for each plate below the header")
    return plates


def _find_files(pattern: str) -> list[tuple[int, list[str]]]:
    """Numbered rows of the files of a folder or pattern; empty for the path of a sheet."""
    if not Path(pattern).is_dir() and not is_pattern(pattern):
        return []
    rows = name_plates(find_plates(pattern)).items()
    return [(number, [name, path]) for number, (path, name) in enumerate(rows, start=1)]


def is_pattern(path: str) -> bool:
    """Whether a path has the signs of a shell's pattern."""
    return bool(set(path) & set("*?["))


def find_plates(pattern: str) -> list[str]:
    """Paths of the plates in a folder, or of a pattern, in natural order; none is an error."""
    if Path(pattern).is_dir() and TextMatrix.find(pattern):
        paths = [pattern]
    elif Path(pattern).is_dir():
        paths = _without_copies([path for path in Path(pattern).iterdir() if is_plate(path)])
    else:
        paths = without_lists([str(Path(name)) for name in glob(pattern, recursive=True)])  # noqa: PTH207
    if not paths:
        msg = f"{pattern}: there are no plates here: correct the path, or give a plate sheet"
        raise ConfigError(msg)
    return natsorted(paths)


def without_lists(paths: list[str]) -> list[str]:
    """Paths but for those of the same cells: lists of text matrices, and all samples of split-pipe
    where a folder of a single sample of the same run is among the paths.
    """
    single = [path for path in paths if not _ALL_SAMPLES.search(path)]

    def is_of_parts(path: str) -> bool:
        if not _ALL_SAMPLES.search(path):
            return False
        of_run = re.compile("[^/]+".join(map(re.escape, _ALL_SAMPLES.split(path))))
        return any(map(of_run.fullmatch, single))

    paths = [path for path in paths if not is_of_parts(path)]
    by_list: dict[str, str] = {}
    for path in paths:
        if Path(path).is_dir() or not (text := TextMatrix.find(path)):
            continue
        if (first := by_list.setdefault(str(text.cells), path)) != path:
            raise InputError(f"{path}: it counts the same cells as {first}: give one of them")
        by_list[str(text.genes)] = path
    return [path for path in paths if path not in by_list]


def name_plates(paths: list[str]) -> dict[str, str]:
    """Name of the plate of each path: what distinguishes it from the others."""
    parts = [Path(path.removesuffix(".gz")).with_suffix("").parts for path in paths]
    # Folders and names that all paths share, at the beginning and at the end.
    first, last = _n_shared(parts), _n_shared([part[::-1] for part in parts])
    names = {}
    for path, part in zip(paths, parts, strict=True):
        name = "_".join(part[first : len(part) - last]) or part[-1]
        names[path] = as_plate_name(name)
    return names


def as_plate_name(text: str) -> str:
    """Name of a plate that is most like this text."""
    return re.sub(r"[^A-Za-z0-9._-]|^[.-]", "_", text)[:_MAX_NAME]


def _n_shared(parts: list[tuple[str, ...]]) -> int:
    """Number of first entries that are the same in all tuples."""
    shared = (len(set(entries)) == 1 for entries in zip(*parts, strict=False))
    return sum(takewhile(bool, shared))


def is_plate(path: Path) -> bool:
    """Whether a path may be a plate, by its name."""
    if is_text_matrix(path) or path.is_dir():
        return path.suffix == ".zarr" or is_text_matrix(path)
    other = path.stem.endswith(("molecule_info", "probe_bc_matrix"))
    return path.suffix in {".h5ad", ".h5", ".loom"} and not other


def _without_copies(paths: list[Path]) -> list[str]:
    """Paths but for Cell Ranger's further matrices of the same cells: unfiltered ones, and text."""
    names = {path.name.removesuffix(".h5") for path in paths}
    is_binary = {path.name for path in paths if path.suffix == ".h5"}
    return [
        str(path)
        for path in paths
        if filtered_name(path.name.removesuffix(".h5")) not in names
        and not ("_bc_matri" in path.name and f"{path.name}.h5" in is_binary)
    ]


def filtered_name(name: str) -> str | None:
    """Name of the filtered matrix beside an unfiltered one; None for other names."""
    if name in _FILTERED:
        return _FILTERED[name]
    is_raw = re.match(r"(sample_)?raw_\w+_bc_matri", name)
    return name.replace("raw_", "filtered_", 1) if is_raw else None


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Split a sheet into its header and its numbered rows (the header is row 1)."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such plate sheet") from None
    except UnicodeDecodeError:
        msg = f"{path} is not a text file: save the plate sheet as tab-separated text (UTF-8)"
        raise ConfigError(msg) from None
    # Parse per line: an open quote would swallow the rows after it.
    rows = [(n, _split_row(path, n, line)) for n, line in enumerate(text.split("\n"), start=1)]
    rows = [(number, row) for number, row in rows if any(row)]
    if not rows:
        msg = f"{path} is empty: write the columns plate and path and a row for each plate"
        raise ConfigError(msg)
    (_, header), *rows = rows
    for name in ("plate", "path"):
        if name not in header:
            raise ConfigError(_missing_column_message(path, name, header))
    header, rows = _without_empty_columns(path, header, rows)
    for name in header:
        if not is_storable(name) or name == "labels" or header.count(name) > 1:  # field of `Plate`
            problem = f"column {name!r} occurs twice" if header.count(name) > 1 else ""
            problem = problem or f"a column cannot be called {name!r}"
            raise ConfigError(f"{path}: {problem}; rename it")
        if name.startswith("s3_") and name not in Plate.model_fields:
            msg = f"{path}: {name!r} is no option of s3:// addresses: rename the column"
            raise ConfigError(msg)
        if name in WRITTEN_COLUMNS or name.startswith(_MEASURE):
            msg = f"{path}: scatlas itself writes a column {name!r} for each cell: rename it"
            raise ConfigError(msg)
    return header, rows


def _without_empty_columns(
    path: Path, header: list[str], rows: list[tuple[int, list[str]]]
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """A sheet without the columns that have neither a name nor a value, as Excel writes them."""
    n_named = max(number for number, name in enumerate(header, start=1) if name)
    n_needed = 1 + max(header.index("plate"), header.index("path"))
    for number, row in rows:
        while len(row) > n_named and not row[-1]:
            row.pop()
        # Labels may be missing at the end. A tab within a cell: quotes hide the end of another.
        if n_needed <= len(row) < n_named and not any("\t" in cell for cell in row):
            row += [""] * (n_named - len(row))
        if len(row) != n_named:
            raise ConfigError(
                f"{path}, row {number}: {len(row)} cells, but the header has {n_named}; "
                "separate cells by one tab"
            )
    used = [i for i in range(n_named) if header[i] or any(row[i] for _, row in rows)]
    return [header[i] for i in used], [(number, [row[i] for i in used]) for number, row in rows]


def _split_row(path: Path, number: int, line: str) -> list[str]:
    try:
        return [
            cell.strip() for row in csv.reader([line], delimiter="\t", strict=True) for cell in row
        ]
    except csv.Error:
        raise ConfigError(
            f'{path}, row {number}: a quote (") begins a cell and does not end it in the same '
            "row: remove the quotes"
        ) from None


def _file_identity(plate: Plate) -> object:
    """Key that is equal for two paths to one file, whatever their spelling or links."""
    path = plate.path
    if path.startswith("file://"):
        path = unquote(urlsplit(path).path)
    elif plate.is_remote:
        return path.rstrip("/")
    try:
        stat = Path(path).stat()
    except OSError:
        return Path(path).resolve()
    return stat.st_dev, stat.st_ino


def _missing_column_message(path: Path, name: str, header: list[str]) -> str:
    first = header[0]
    for sign, word in ((",", "commas"), (";", "semicolons"), (" ", "spaces")):
        if len(header) == 1 and {"plate", "path"} <= set(first.lower().split(sign)):
            return f"{path} is separated by {word}: separate the columns by tabs"
    near = next((column for column in header if column.lower() == name), None)
    mend = f"rename column {near!r}" if near else f"its columns are {', '.join(header)}"
    return f"{path} has no column {name!r}: {mend}"


def _parse_plate(where: str, row: dict[str, str]) -> Plate:
    own = {name: row.get(name) or None for name in Plate.model_fields.keys() - {"labels"}}
    cells, counts, fractional = own["n_cells"], own["counts"], own["fractional"]
    labels = {name: text for name, text in row.items() if name not in own}
    n_cells = int(cells) if cells and cells.isdecimal() else cells
    given = own | {"plate": row["plate"], "path": row["path"], "n_cells": n_cells}
    try:
        found = Plate.model_validate(given | {"labels": labels})
    except ValidationError as error:
        (problem, *_) = error.errors()
        column = problem["loc"][0]
    else:
        if found.has_s3_options and not found.path.startswith("s3://"):
            msg = f"{where}: {found.path} is no s3:// address: leave the columns s3_... empty"
            raise ConfigError(msg)
        return found
    plate, path = row["plate"], row["path"]
    if column == "plate" and not plate:
        msg = f"{where}: the plate has no name"
    elif column == "plate":
        msg = (
            f"{where}: {plate!r} cannot name a folder; use letters, digits, dots, dashes and "
            f"underscores, {_MAX_NAME} at most, with no dot or dash first"
        )
    elif column == "path" and path:
        msg = f"{where}: {problem['ctx']['error']}"
    elif column == "path":
        msg = f"{where}: plate {plate!r} has no path"
    elif column == "fractional":
        msg = f"{where}: fractional of {path} is {fractional!r}; write refuse or round"
    elif column == "s3_requester_pays":
        msg = (
            f"{where}: s3_requester_pays of {path} is {own[column]!r}; write yes or leave it empty"
        )
    elif column == "counts":
        msg = f"{where}: counts of {path} is {counts!r}; write X, raw or layers/NAME"
    else:
        msg = f"{where}: n_cells of {path} is {cells!r}; write a whole number or leave it empty"
    raise ConfigError(msg)
