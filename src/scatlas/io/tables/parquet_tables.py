"""obs and var of cells in Parquet files, converted to a store on disk, a row group at a time."""

from __future__ import annotations

import ast
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.blocks import map_in_order
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.cell_files import (
    GENES_FILE,
    is_text,
    read_footer,
    reading_parquet,
    text_bounds,
)
from scatlas.io.tables.column_writer import ColumnWriter, Target
from scatlas.io.zarr_writer.elements import DATAFRAME, create_group
from scatlas.io.zarr_writer.sharded_array import encoding_pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from scatlas.io.files.cell_files import CellFiles, RowGroup

# Columns that name the cells, the first that the files have.
_NAMES = ("BARCODE_SUB_LIB_ID", "cell_id", "cell_name", "obs_names", "barcode", "__index_level_0__")
# Tables beside gene_metadata.parquet: of the wells, by the column sample, and of the cells.
SAMPLES_FILE, CELLS_FILE = "sample_metadata.parquet", "obs_metadata.parquet"
_ROWS, _ROWS_AT_ONCE = 2**17, 2**14
# Texts of a column that are held in memory; one with more is as good as a name.
_MAX_LABELS = 2**17
_TREATMENT = "drugname_drugconc"

Rows = tuple["RowGroup", np.ndarray | None]


def read_genes(files: CellFiles) -> tuple[pd.DataFrame, np.ndarray]:
    """var by unique symbols, and the gene of each token, or the type's greatest number for none."""
    from anndata.utils import make_index_unique

    path = files.metadata / GENES_FILE
    table = _read(path)
    if missing := [n for n in ("gene_symbol", "ensembl_id", "token_id") if n not in table]:
        raise InputError(
            f"{path}: it has no column {missing[0]!r}, but {', '.join(table)}: add it (token_id is "
            "the number that stands for a gene in the lists)"
        )
    tokens = table["token_id"].to_numpy(np.int64)
    if tokens.size == 0 or tokens.min() < 0 or np.unique(tokens).size < tokens.size:
        msg = f"{path}: token_id must have one whole number per gene: download this file again"
        raise InputError(msg)
    kind = np.dtype(np.uint16 if tokens.size < 2**16 else np.uint32)
    gene_of_token = np.full(tokens.max() + 1, np.iinfo(kind.type).max, kind)
    gene_of_token[tokens] = np.arange(tokens.size)
    symbols = table["gene_symbol"].astype(str).to_numpy(object)
    index = make_index_unique(pd.Index(symbols, dtype=object))
    ids = table["ensembl_id"].astype(str).to_numpy(object)
    return pd.DataFrame({"gene_ids": ids, "token_id": tokens}, index=index), gene_of_token


class _ColumnOnDisk:
    """One column that grows on disk: numbers, or codes of labels in the order of appearance."""

    def __init__(self, file: Path, n_rows: int, dtype: np.dtype | None) -> None:
        self.labels: dict[str, int] | None = {} if dtype is None else None
        kind = np.dtype(np.int32) if dtype is None else dtype
        self.values = np.memmap(file, kind, "w+", shape=(max(1, n_rows),))[:n_rows]

    def put(self, rows: slice | np.ndarray, column: pa.ChunkedArray) -> None:
        if self.labels is None:
            self.values[rows] = column.to_numpy(zero_copy_only=False)
            return
        if self.has_many_labels:
            return
        encoded = column if hasattr(column.type, "value_type") else column.dictionary_encode()
        encoded = encoded.combine_chunks()
        own = [
            self.labels.setdefault(str(t), len(self.labels)) for t in encoded.dictionary.to_pylist()
        ]
        codes = encoded.indices.fill_null(len(own)).to_numpy(zero_copy_only=False)
        self.values[rows] = np.array([*own, -1], np.int32)[codes]

    @property
    def has_many_labels(self) -> bool:
        """Whether the column has too many texts to be kept."""
        return self.labels is not None and len(self.labels) > _MAX_LABELS

    def is_used(self) -> np.ndarray:
        """Whether a cell has each label, and last whether one has a gap: bool [labels + 1]."""
        used = np.zeros(len(self.labels or ()) + 1, bool)
        for lo in range(0, self.values.size, _ROWS):
            used[self.values[lo : lo + _ROWS]] = True
        return used

    def write(self, path: Path, pool: Any) -> None:
        """Write the column, with its labels sorted, as pandas sorts categories."""
        if self.labels is None:
            target, recode = Target("number", self.values.dtype), None
        else:
            used = self.is_used()
            labels = np.array([label for label, code in self.labels.items() if used[code]], object)
            order = np.argsort(labels)
            target = Target.categorical(labels[order])
            recode = np.full(used.size, -1, target.dtype)
            recode[np.flatnonzero(used[:-1])[order]] = np.arange(order.size)
        with ColumnWriter(path, target, pool) as writer:
            for lo in range(0, self.values.size, _ROWS):
                values = np.asarray(self.values[lo : lo + _ROWS])
                writer.append(values if recode is None else recode[values])


def write_obs(
    files: CellFiles, rows: list[Rows], folder: Path, scratch: Path, by: tuple[str, str] | None
) -> list[str]:
    """Write obs of some cells from all columns but lists, and the tables beside; return notices.

    ``rows``: row groups, each with a mask of cells, or None for all; ``by``: a column and its one
    value in these cells. ``scratch`` gets 4 to 8 bytes per cell and column.
    """
    key = next((name for name in _NAMES if name in files.columns), None)
    if key is None:
        raise InputError(
            f"{files.path}: no column names the cells ({', '.join(_NAMES[:-1])}); it has "
            f"{', '.join(files.columns) or 'no other columns'}: rename the one with the names"
        )
    n_cells = sum(group.n_taken(taken) for group, taken in rows)
    scratch.mkdir(parents=True, exist_ok=True)
    kinds = {name: kind for name, kind in files.columns.items() if name != key}
    columns, notices = _new_columns(kinds, "obs", n_cells, scratch / "own")
    hashes = np.memmap(scratch / "hashes", np.uint64, "w+", shape=(max(1, n_cells),))[:n_cells]
    text = Target("text", np.dtype(object))
    runs = _runs(rows)

    def read(i: int) -> tuple[EncodedText, NDArray[np.uint64], pa.Table]:
        table = _cells(files, runs[i], [key, *columns])
        names = _names(files, runs[i][0][0], key, table[key])
        return names, names.hashes(), table

    first = 0
    with (
        encoding_pool() as pool,
        ColumnWriter(folder / "_index", text, pool) as index,
        closing(map_in_order(read, len(runs), pool=pool)) as parts,
    ):
        for names, own, table in parts:
            index.append(names)
            span = slice(first, first + len(names))
            hashes[span] = own
            for name, column in columns.items():
                column.put(span, table[name])
            first = span.stop
    order = np.argsort(hashes, kind="stable")
    _check_unique_names(files, key, hashes, order, rows)
    extra: dict[str, _ColumnOnDisk] = {}
    if (files.metadata / CELLS_FILE).exists():
        extra, more = _cells_table(
            files, key, hashes, order, by, {key, *columns}, scratch / "cells"
        )
        notices += more
    written = {**columns, **extra}
    for name in [name for name, column in written.items() if column.has_many_labels]:
        notices.append(f"obs column {name!r} is left out: over {_MAX_LABELS:,} different texts")
        del written[name]
    with encoding_pool() as pool:
        for name, column in written.items():
            column.write(folder / name, pool)
        for name, (target, values) in _doses(files, columns.get("sample")).items():
            written[name] = columns["sample"]
            with ColumnWriter(folder / name, target, pool) as writer:
                codes = columns["sample"].values
                for lo in range(0, n_cells, _ROWS):
                    writer.append(values[codes[lo : lo + _ROWS]])
    create_group(folder, {**DATAFRAME, "column-order": [*written], "_index": "_index"})
    return notices


def _runs(rows: list[Rows]) -> list[list[Rows]]:
    """Row groups that follow each other in a file, some thousand rows at a time."""
    runs: list[list[Rows]] = []
    n_rows = 0
    for group, taken in rows:
        n_rows += group.n_rows
        if not runs or runs[-1][0][0].file != group.file or n_rows > _ROWS_AT_ONCE:
            runs.append([])
            n_rows = group.n_rows
        runs[-1].append((group, taken))
    return runs


def _cells(files: CellFiles, run: list[Rows], columns: list[str]) -> pa.Table:
    table = files.read([group for group, _ in run], columns)
    if all(taken is None for _, taken in run):
        return table
    return table.filter(
        np.concatenate([np.ones(g.n_rows, bool) if taken is None else taken for g, taken in run])
    )


def _new_columns(
    kinds: Mapping[str, Any], table: str, n_rows: int, folder: Path
) -> tuple[dict[str, _ColumnOnDisk], list[str]]:
    """Files for columns of text and numbers; a sentence for each other column."""
    import pyarrow as pa

    folder.mkdir()
    columns, notices = {}, []
    for number, (name, kind) in enumerate(kinds.items()):
        dtype = None
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            dtype = np.dtype(kind.to_pandas_dtype())
        elif pa.types.is_boolean(kind):
            dtype = np.dtype(bool)
        elif not is_text(kind):
            notices.append(f"{table} column {name!r} is left out: it holds {kind}")
            continue
        columns[name] = _ColumnOnDisk(folder / str(number), n_rows, dtype)
    return columns, notices


def _names(files: CellFiles, group: RowGroup, key: str, column: pa.ChunkedArray) -> EncodedText:
    path = files.files[group.file]
    if column.null_count:
        raise InputError(
            f"{path}: from row group {group.number} on {column.null_count:,} cells have no {key}: "
            "download this file again"
        )
    with reading_parquet(path, f"row group {group.number}, column {key},"):
        return EncodedText.of_arrow(column.cast("string").combine_chunks())


def _check_unique_names(
    files: CellFiles, key: str, hashes: np.ndarray, order: np.ndarray, rows: list[Rows]
) -> None:
    ordered = hashes[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not same.size:
        return
    first, second = sorted(order[same[0] : same[0] + 2].tolist())
    begin = 0
    for group, taken in rows:
        n = group.n_taken(taken)
        if first < begin + n:
            name = _cells(files, [(group, taken)], [key])[key][first - begin].as_py()
            break
        begin += n
    raise InputError(
        f"{files.path}: the cell name {name!r} stands twice in {key} (cells {first} and {second}), "
        f"{same.size:,} names in all: remove the files that hold cells twice"
    )


def _cells_table(
    files: CellFiles,
    key: str,
    hashes: np.ndarray,
    order: np.ndarray,
    by: tuple[str, str] | None,
    known: set[str],
    scratch: Path,
) -> tuple[dict[str, _ColumnOnDisk], list[str]]:
    """Columns of the table of all cells that the cells' own files lack."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = files.metadata / CELLS_FILE
    with reading_parquet(path, "the footer"):
        footer, schema = read_footer(path), pq.read_schema(path)
    if key not in schema.names:
        return {}, [f"{path.name} is left out: it has no column {key!r}"]
    kinds = {name: schema.field(name).type for name in schema.names if name not in known}
    columns, notices = _new_columns(kinds, path.name, hashes.size, scratch)
    found = np.zeros(hashes.size, bool)
    ordered = hashes[order]
    wanted = by if by is not None and by[0] in schema.names else None
    texts = [name for name in columns if is_text(kinds[name])]
    with (
        encoding_pool() as pool,
        reading_parquet(path, "a row group"),
        pq.ParquetFile(path, metadata=footer, read_dictionary=texts) as file,
    ):
        batches = file.iter_batches(
            _ROWS, [*_row_groups(footer, wanted)], [key, *columns], use_threads=False
        )
        for batch in batches:
            names = batch[key].cast("string").fill_null("")
            own = EncodedText.of_arrow(names).hashes()
            found_at = pool.map(ordered.searchsorted, np.array_split(own, n_threads()))
            at = np.minimum(np.concatenate([*found_at]), ordered.size - 1)
            hit = ordered[at] == own
            rows = order[at[hit]]
            found[rows] = True
            picked = pa.table(batch if hit.all() else batch.filter(hit))
            for name, column in columns.items():
                column.put(rows, picked[name])
    if n := int(hashes.size - found.sum()):
        msg = f"{path}: it lacks {n:,} of {hashes.size:,} cells: download this file again"
        raise InputError(msg)
    return columns, notices


def _row_groups(footer: Any, wanted: tuple[str, str] | None) -> Iterator[int]:
    roots = [footer.schema.column(i).path.partition(".")[0] for i in range(footer.num_columns)]
    for number in range(footer.num_row_groups):
        if wanted is not None:
            column = footer.row_group(number).column(roots.index(wanted[0]))
            low, high = text_bounds(column.statistics)
            if low is not None and high is not None and not low <= wanted[1] <= high:
                continue
        yield number


def _doses(files: CellFiles, sample: _ColumnOnDisk | None) -> dict[str, tuple[Target, np.ndarray]]:
    """Treatment columns per label of ``sample`` and for none; of several drugs doses are gaps."""
    path = files.metadata / SAMPLES_FILE
    if sample is None or sample.labels is None or not path.exists():
        return {}
    table = _read(path)
    if not {"sample", _TREATMENT} <= set(table) or _TREATMENT in files.columns:
        return {}
    texts = dict(zip(table["sample"].astype(str), table[_TREATMENT].astype(str), strict=True))
    used = sample.is_used()
    labels = [label if used[code] else None for label, code in sample.labels.items()]
    if missing := [label for label in labels if label and label not in texts]:
        raise InputError(f"{path}: it lacks the sample {missing[0]!r}: download this file again")
    treatments = [texts[label] if label else None for label in labels]
    parsed = [_dose(path, text) if text else (np.nan, None) for text in treatments]
    doses = np.array([*(dose for dose, _ in parsed), np.nan])
    columns = {"dose": (Target("number", doses.dtype), doses)}
    for name, own in ((_TREATMENT, treatments), ("dose_unit", [unit for _, unit in parsed])):
        series = pd.Categorical([*own, None])
        target = Target.categorical(series.categories.to_numpy(object))
        columns[name] = (target, np.asarray(series.codes, target.dtype))
    return columns


def _dose(path: Path, text: str) -> tuple[float, str | None]:
    try:
        drugs = ast.literal_eval(text)
        doses = [(float(dose), str(unit)) for _, dose, unit in drugs]
    except (ValueError, SyntaxError, TypeError) as error:
        raise InputError(
            f"{path}: {_TREATMENT} holds {text[:60]!r}, no list of drugs: download this file again"
        ) from error
    return doses[0] if len(doses) == 1 else (np.nan, None)


def _read(path: Path) -> pd.DataFrame:
    """A small table, whole."""
    with reading_parquet(path, "the table"):
        return pd.read_parquet(path)
