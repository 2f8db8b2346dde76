"""Matrices in Matrix Market's text format, with the lists of their cells and genes, by file names.

Any name may end in ``.gz``. Cell Ranger, STARsolo and BD Rhapsody write ``matrix.mtx``,
``features.tsv`` (once ``genes.tsv``) and ``barcodes.tsv``, and archives put the sample's name
before these; split-pipe, alevin, kb-python and the Single Cell Expression Atlas have other names.
Further matrices are taken if one list beside them is called genes and one cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scatlas.errors import InputError
from scatlas.io.files.read_errors import reading

Axis = Literal["genes", "cells"]

_MATRIX = re.compile(r"(.+)\.mtx(\.gz)?")
# Matrices, without .mtx, that are the plate of their folder, whatever else is there.
_KNOWN = ("matrix", "count_matrix", "DGE", "cells_x_genes", "quants_mat")
# Names of the list of genes and of cells, and what the rows are, by the name of the matrix.
_LISTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Axis]] = {
    "count_matrix": (("all_genes.csv", "target_genes.csv"), ("cell_metadata.csv",), "cells"),
    "quants_mat": (("quants_mat_cols.txt",), ("quants_mat_rows.txt",), "cells"),
}
_LISTS["DGE"] = _LISTS["count_matrix"]
# Other lists: a name before them is the beginning of the name of the matrix.
_NAMED = r"(.*?)[._-]?({})(?:_?(?:names?|ids?))?\.(?:tsv|txt|csv)(?:\.gz)?"
_GENES, _CELLS = ("features?", "genes?", "vars?"), ("barcodes?", "cells?", "obs")
_NO_GENES = re.compile(r"_x_(tcc|features|transcripts)")
_PLATES = {".h5ad", ".h5", ".loom", ".zarr"}


@dataclass(frozen=True)
class TextMatrix:
    """Files of one matrix, and of the lists with a line per gene and per cell."""

    path: str
    matrix: Path
    genes: Path
    cells: Path
    rows: Axis | None  # what they are by the names of the files; None if these do not tell

    @classmethod
    def find(cls, path: Path | str) -> TextMatrix | None:
        """Find the files at a path, if it is such a matrix; one without genes is refused."""
        given = Path(path)
        if "://" in str(path):
            return None
        with reading(str(path), "the list of its files"):
            if given.is_dir():
                matrix = _matrix_of(given)
            else:
                matrix = given if _MATRIX.fullmatch(given.name) and given.is_file() else None
            if matrix is None:
                return None
            names = _names(matrix.parent)
        stem = _stem(matrix.name)
        if kind := _NO_GENES.search(stem):
            raise InputError(
                f"{matrix}: its columns are {kind[1]}, no genes: give the matrix of genes, which "
                "kb count writes as cells_x_genes.mtx"
            )
        genes, cells, rows = _lists(stem, names)
        if genes is None and any(name.startswith("all_guides.csv") for name in names):
            raise InputError(
                f"{matrix}: all_guides.csv lists guides, no genes: give the folder of the whole "
                "transcriptome, DGE_filtered"
            )
        for name, what in ((genes, "features.tsv"), (cells, "barcodes.tsv")):
            if name is None:
                due = _LISTS[stem][what == "barcodes.tsv"][0] if stem in _LISTS else what
                msg = f"{matrix}: {due} is missing, also with .gz: put this list beside the matrix"
                raise InputError(msg)
        assert genes is not None
        assert cells is not None
        return cls(str(path), matrix, matrix.parent / genes, matrix.parent / cells, rows)


def is_text_matrix(path: Path) -> bool:
    """Whether a path in a folder of plates may be a text matrix, by the names of its files."""
    is_dir = path.is_dir()
    files = _names(path) if is_dir else [path.name]
    stems = [_stem(name) for name in files if _MATRIX.fullmatch(name)]
    names = _names(path if is_dir else path.parent) if stems else []
    return any((is_dir and stem in _KNOWN) or None not in _lists(stem, names)[:2] for stem in stems)


def _names(folder: Path) -> list[str]:
    """Names in a folder, in order, a file before its compressed copy."""
    return sorted(path.name for path in folder.iterdir())


def _stem(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".mtx")


def _matrix_of(folder: Path) -> Path | None:
    names = _names(folder)
    files = {_stem(name): name for name in reversed(names) if _MATRIX.fullmatch(name)}
    known = next((files[stem] for stem in _KNOWN if stem in files), None)
    if known or not files:
        return folder / known if known else None
    lists = {_lists(stem, names)[:2] for stem in files}
    has_plates = any(Path(name).suffix in _PLATES for name in names)
    is_stray = (None, None) in lists and any((folder / name).is_dir() for name in names)
    if len(lists) > 1 or has_plates or is_stray:
        return None
    if len(files) > 1 and None not in next(iter(lists)):
        few = ", ".join(sorted(files.values()))
        raise InputError(
            f"{folder}: several matrices of the same cells ({few}): give one of these files, or a "
            "folder with the counts of all reads, as STARsolo's Gene/filtered"
        )
    return folder / next(iter(files.values())) if len(files) == 1 else None


def _lists(stem: str, names: list[str]) -> tuple[str | None, str | None, Axis | None]:
    """Lists of genes and of cells of a matrix, and what its rows are."""

    def first(*wanted: str) -> str | None:
        return next((n for name in wanted for n in (name, f"{name}.gz") if n in names), None)

    if first(f"{stem}.mtx_rows"):
        return first(f"{stem}.mtx_rows"), first(f"{stem}.mtx_cols"), "genes"
    if stem in _LISTS:
        genes, cells, rows = _LISTS[stem]
        if first(*genes) or first(*cells):
            return first(*genes), first(*cells), rows
    found = [_named(stem, names, kinds) for kinds in (_GENES, _CELLS)]
    if stem.startswith("cells_x_genes"):
        return found[0], found[1], "cells"
    is_cell_ranger = found[1] is not None and _stem(found[1]).endswith("barcodes.tsv")
    return found[0], found[1], "genes" if is_cell_ranger else None


def _named(stem: str, names: list[str], kinds: tuple[str, ...]) -> str | None:
    """The list that shares most of its name with the matrix, and is of the first kind."""
    found = [
        (-len(match[1]), i, name)
        for i, kind in enumerate(kinds)
        for name in names
        if (match := re.fullmatch(_NAMED.format(kind), name)) and stem.startswith(match[1])
    ]
    return min(found)[2] if found else None
