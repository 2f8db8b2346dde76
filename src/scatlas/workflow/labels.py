"""Names for clusters and values for cells from the user's tables (config: labels), as obs columns.

A table of clusters says for which ones it was written (``clustering``, a digest): names of other
clusters are never used. Its columns ``n_cells``, ``share`` and ``markers`` help to fill it in.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.columns import MAX_NUMBERS
from scatlas.errors import InputError
from scatlas.io.files.local_zarr import open_store
from scatlas.io.tables.column import Column
from scatlas.io.zarr_writer.node_metadata import is_storable
from scatlas.workflow.config.plate_sheet import WRITTEN_COLUMNS
from scatlas.workflow.sample import read_column, rows_of_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CLUSTER, CELL, PLATE, CLUSTERING = "cluster", "cell", "plate", "clustering"
BY = "leiden"
# Column of markers.tsv with the name of each cluster.
LABEL = "label"
# Columns of a table of clusters that become no obs columns.
NOTES = ("n_cells", "share", "markers", "vote", CLUSTERING)
_KNOWN = (CLUSTER, CELL, PLATE, *NOTES)
_MAX_NAMED = 5


@dataclass(frozen=True)
class LabelTable:
    """A table as text, with the index ``cluster`` or ``cell``, and its columns of labels."""

    path: Path
    rows: pd.DataFrame
    columns: list[str]

    @property
    def is_of_clusters(self) -> bool:
        return self.rows.index.name == CLUSTER


def read_tables(paths: Sequence[Path | str]) -> list[LabelTable]:
    """Read and check tables by themselves; an obs column in two of them is refused."""
    tables = [_read_table(Path(path)) for path in paths]
    for first, second in combinations(tables, 2):
        if both := [name for name in second.columns if name in first.columns]:
            raise InputError(
                f"{second.path}: {first.path} has a column {both[0]!r}, too: rename one"
            )
    return tables


def read_clustering(path: Path) -> str | None:
    """Digest in a table that may have no names yet; None for another table."""
    header, *rows = read_rows(path)
    return rows[0][header.index(CLUSTERING)] if CLUSTERING in header else None


def _read_table(path: Path) -> LabelTable:
    header, *rows = read_rows(path)
    # In a table of cells, such as the whole obs, leiden is a column like others.
    keys = (CLUSTER, CELL, *([BY] if header[0] == BY else []))
    key = next((name for name in header if name in keys), None)
    if key is None:
        if near := get_close_matches(header[0].lower(), (CLUSTER, BY, CELL), 1, 0.7):
            raise InputError(f"{path}: column {header[0]!r} is nearly {near[0]!r}: rename it")
        key = header[0] = CELL  # pandas writes the index of obs first, with its name or without
    if "" in header:
        msg = f"{path}: column {header.index('') + 1} has no name: give it one, or delete it"
        raise InputError(msg)
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{path}: column {twice!r} occurs twice; rename one")
    table = pd.DataFrame(rows, columns=header, dtype=object)
    table = table.set_index(key).rename_axis(CLUSTER if key == BY else key)
    kind = str(table.index.name)
    notes = NOTES if kind == CLUSTER else (PLATE,)
    columns = [name for name in table if name not in notes]
    for name in columns:
        near = get_close_matches(name.lower(), _KNOWN, 1, 0.85)
        if near and near[0] not in table:
            raise InputError(f"{path}: column {name!r} is nearly {near[0]!r}: rename it")
        if not is_storable(name) or name in {*WRITTEN_COLUMNS, *_KNOWN}:
            raise InputError(f"{path}: obs cannot have a column of labels {name!r}: rename it")
    if not columns or not (table[columns] != "").any(axis=None):
        where = f" in {', '.join(columns)}" if columns else ", and no column for them"
        raise InputError(f"{path}: no {kind} has a name yet{where}: write names into cell_type")
    names = [table.index, table[PLATE]] if PLATE in table else [table.index]
    repeated = pd.MultiIndex.from_arrays(names).duplicated()
    if repeated.any():
        hint = "" if kind == CLUSTER or PLATE in table else ", or tell them apart by a column plate"
        name = table.index[repeated][0]
        raise InputError(f"{path}: {kind} {name!r} occurs twice; keep one row{hint}")
    return LabelTable(path, table, columns)


def read_rows(path: Path, kind: str = "labels") -> list[list[str]]:
    """Rows of a table as Excel, pandas and people write it, without empty rows and columns."""
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except (FileNotFoundError, IsADirectoryError):
        mend = "write it with scatlas label" if kind == "labels" else "correct annotate.markers"
        msg = f"{path}: there is no such table of {kind}: {mend}"
        raise InputError(msg) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file: save it as CSV (UTF-8)") from None
    first = text.partition("\n")[0]
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter=max("\t;,", key=first.count), strict=True
    )
    cells: list[list[str]] = []
    try:
        for row in rows:
            cells += [stripped] if any(stripped := [cell.strip() for cell in row]) else []
    except csv.Error as error:
        at = f"{path}: row {len(cells) + 1}"
        msg = f"{at} has a quote without its end ({error}): write the end, or remove it"
        raise InputError(msg) from None
    if len(cells) < 2:
        raise InputError(f"{path} has no rows: write a header, and the rows below it")
    width = max(number for number, name in enumerate(cells[0], start=1) if name)
    for number, row in enumerate(cells, start=1):
        if any(row[width:]):
            raise InputError(
                f"{path}: row {number} has {len(row)} cells, the header {width}: put quotes "
                "around a cell with a separator in it"
            )
    return [[*row, *[""] * width][:width] for row in cells]


@dataclass(frozen=True)
class Clusters:
    """Clusters of cells: their ``names`` and, of each cell, the number of its cluster; without a
    map of all cells those of the sample, which has the atlas's ``rows``.
    """

    names: list[str]
    codes: NDArray[Any]
    rows: NDArray[np.int64] | None

    @classmethod
    def read(cls, cell_map: Path | None, subset: Path, leiden: Path) -> Clusters:
        """Read those of ``map.zarr``, if there is one, or of the stores of the sample."""
        values = read_column(cell_map or leiden, BY)
        rows = None if cell_map else rows_of_sample(subset)
        return cls([*map(str, values.categories)], values.codes, rows)

    def of_cells(self, n_cells: int) -> NDArray[np.int64]:
        """Number of the cluster of each cell of the atlas, -1 for none."""
        numbers = np.full(n_cells, -1)
        numbers[slice(None) if self.rows is None else self.rows] = self.codes
        return numbers

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))

    @property
    def digest(self) -> str:
        """Text that other clusters of the same cells do not have: their number and a digest."""
        combined = hashlib.blake2b("\n".join(self.names).encode(), digest_size=6)
        for lo in range(0, self.codes.size, 2**20):
            combined.update(self.codes[lo : lo + 2**20].astype(np.int32).tobytes())
        return f"{len(self.names)}-{combined.hexdigest()}"

    def problem_of(self, table: LabelTable) -> str | None:
        """Why the names of a table are not of these clusters; None if they are."""
        unknown = [name for name in table.rows.index if name not in self.names]
        missing = [name for name in self.names if name not in table.rows.index]
        written_for = max(table.rows.get(CLUSTERING, [""]))
        if written_for not in ("", self.digest):
            then = written_for.partition("-")[0]
            words = f"was written for other clusters ({then} then, {len(self.names)} now)"
        elif unknown:
            words = f"names clusters that are not there ({', '.join(unknown[:_MAX_NAMED])})"
        elif missing:
            words = f"lacks clusters ({', '.join(missing[:_MAX_NAMED])})"
        else:
            return None
        return (
            f"{table.path} {words}, so no cell has its names: write a table of these "
            "clusters with scatlas label"
        )


def rows_of_cells(table: LabelTable, merged: Path) -> NDArray[np.int64]:
    """Row of each cell of the atlas in a table of cells, -1 for none; each row must have a cell."""
    obs = open_store(merged)["obs"]
    names = Column.open(merged, obs, obs.attrs["_index"])
    plates = Column.open(merged, obs, PLATE) if PLATE in table.rows else None
    keys = table.rows.index
    if plates:
        keys = pd.Index(table.rows[PLATE] + "\t" + keys)
    parts = [np.empty(0, np.int64)]
    for lo, hi in names.spans():
        texts = [*names.text(lo, hi)]
        if plates:
            # Names that several plates have end in that of their plate.
            pairs = [*zip(plates.text(lo, hi), texts, strict=True)]
            texts = [f"{plate}\t{text}" for plate, text in pairs]
            own = [f"{plate}\t{text.removesuffix(f'-{plate}')}" for plate, text in pairs]
            texts = [a if a in keys else b for a, b in zip(texts, own, strict=True)]
        parts.append(keys.get_indexer(pd.Index(texts, dtype=object)))
    rows = np.concatenate(parts)
    unused = np.setdiff1d(np.arange(len(keys)), rows)
    if unused.size:
        name, there = repr(table.rows.index[unused[0]]), repr(names.text(0, 1)[0])
        if plates:
            name += f" of plate {table.rows[PLATE].iloc[unused[0]]!r}"
            there += f" of plate {plates.text(0, 1)[0]!r}"
        raise InputError(
            f"{table.path}: {unused.size:,} of {len(keys):,} cells are not in the atlas, the first "
            f"is {name}; names there are like {there}: correct them or remove their rows; "
            "where plates share names, a column plate names that of each cell"
        )
    return rows


def values_of(labels: pd.Series) -> pd.Categorical | NDArray[np.float64]:
    """Labels of the rows of a table: categories in their order there, or numbers; "" is a gap."""
    numbers = pd.to_numeric(labels.replace("", np.nan), errors="coerce")
    if (numbers.notna() == (labels != "")).all() and numbers.nunique() > MAX_NUMBERS:
        return numbers.to_numpy(np.float64)
    names = [name for name in dict.fromkeys(labels) if name]
    return pd.Categorical(labels, categories=names)


@dataclass(frozen=True)
class Labels:
    """The labels of all cells of an atlas, in ``labels.zarr``; none without it."""

    path: Path | None = None
    obs: Any = ()
    columns: list[str] = field(default_factory=list)  # those of which cells have values
    names: dict[str, str] = field(default_factory=dict)  # of each cluster
    rows: dict[str, list[int]] = field(default_factory=dict)  # first and last ones by plate

    @classmethod
    def open(cls, path: Path | None) -> Labels:
        if path is None:
            return cls()
        store = open_store(path)
        return cls(path, store["obs"], **store.attrs["labels"])

    def values(self, column: str, lo: int, hi: int) -> Any:
        return Column.open(str(self.path), self.obs, column).array(lo, hi)
