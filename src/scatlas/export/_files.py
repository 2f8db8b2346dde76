"""An atlas as h5ad, for cellxgene, and for Vitessce."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas._util.colours import colours
from scatlas.compute.progress import progress_meter
from scatlas.errors import DiskError, InputError
from scatlas.export._measured import Matrices, matrices
from scatlas.export._nodes import (
    Hdf5Sink,
    NodeCopy,
    ZarrV2Sink,
    attributes,
    categories,
    n_values,
)
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.atomic import atomic_path, work_folder
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.products.gene_major import write_csc
from scatlas.io.zarr_writer.elements import DICT, RAW, STRING_ARRAY, create_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scatlas.export._nodes import Sink

_UMAP = "X_umap"
# Columns with more categories make lists that nobody reads.
_MAX_CATEGORIES = 100
# Columns that are shown first.
_FIRST = ("leiden", "plate")


def to_h5ad(
    atlas: Path | str,
    out: Path | str,
    *,
    genes: Sequence[str] | str | None = None,
    counts: bool = False,
    block_budget: str | int = "256MB",
) -> None:
    """Copy an atlas to one h5ad file, with equal content or with more genes; atomic.

    The file is not compressed, so that it is read at the speed of the disk. Memory does not grow
    with the atlas.

    Parameters
    ----------
    atlas
        Zarr store, at a path or an address; with `genes` or `counts` in the folder of its results.
    out
        File to write.
    genes
        ``"all"`` measured genes, or their names, in place of those of the atlas: X has
        log-normalised values as in the atlas. Columns of ``var`` that only genes of the atlas have
        are NaN or False for others, and loadings (``varm``) zero.
    counts
        Add the raw counts as ``layers['counts']``, CSR in float32.
    block_budget
        Memory for the blocks of counts in flight.

    Raises
    ------
    InputError
        The file exists, the atlas is damaged or no Zarr store, no plate measures a gene, or the
        counts of the plates are not beside the atlas.
    """
    out = Path(out)
    with (
        _open(atlas, out) as (store, root),
        matrices(store, root, out, genes, block_budget, counts=counts) as parts,
        atomic_path(out) as partial,
        create_hdf5(partial) as file,
    ):
        nodes = {name: root[name] for name in root} | {"X": parts.x, "var": parts.var}
        nodes |= {} if parts.varm is None else {"varm": parts.varm}
        sink = Hdf5Sink(file)
        sink.group("", attributes(root))
        for name in ("layers", "varp"):
            sink.group(name, DICT)
            if genes is not None:  # the atlas has them of its genes alone
                nodes.pop(name, None)
        if parts.counts is not None:
            nodes["layers/counts"] = parts.counts
        total = sum(n_values(node) for node in nodes.values())
        with closing(progress_meter(total, unit="values")) as passed, _reading(store):
            for name in sorted(nodes):
                NodeCopy(sink, passed).copy(nodes[name], name)


def to_cellxgene(
    atlas: Path | str,
    out: Path | str,
    *,
    genes: Sequence[str] | str | None = None,
    counts: bool = False,
    block_budget: str | int = "256MB",
) -> None:
    """Write an atlas as the h5ad file that cellxgene reads fastest; atomic.

    X is stored gene after gene (CSC), sorted in a temporary store beside the output.
    Numbers of ``obs``, ``var`` and ``obsm`` have 32 bits, numbers with gaps are float32 with NaN,
    and ``uns`` has the colours of each categorical column (``leiden_colors``). The rest of ``uns``
    and pairs of cells are left out. Memory does not grow with the atlas.

    Parameters
    ----------
    atlas
        Zarr store with ``obsm['X_umap']``, at a path or an address.
    out
        File to write.
    genes
        As for :func:`to_h5ad`.
    counts
        Add the raw counts as ``raw.X``, CSR in float32, where CELLxGENE's schema asks for them.
    block_budget
        Memory for X while it is sorted by gene, and for blocks of counts.

    Raises
    ------
    InputError
        As :func:`to_h5ad`, or the atlas is without a map.
    """
    out = Path(out)
    with (
        _open(atlas, out) as (store, root),
        matrices(store, root, out, genes, block_budget, counts=counts) as parts,
        _x_by_gene(parts.store, root, out, block_budget) as x,
        atomic_path(out) as partial,
        create_hdf5(partial) as file,
    ):
        sink = Hdf5Sink(file)
        _copy_for_browsers(store, root, parts._replace(x=x), sink)
        for name, values in categories(root["obs"]).items():
            array = sink.array(f"uns/{name}_colors", (len(values),), None, STRING_ARRAY)
            array[...] = np.array(colours(len(values)), object)


def to_vitessce(atlas: Path | str, out: Path | str, *, block_budget: str | int = "256MB") -> None:
    """Write an atlas as a folder that Vitessce reads over HTTP; atomic.

    The folder has ``atlas.zarr``, as :func:`to_cellxgene` but in Zarr v2 with chunks of 256 kB, and
    ``view.json``, a view config with the UMAP, genes, and a set of cells for each categorical
    column.

    Parameters
    ----------
    atlas, block_budget
        As for :func:`to_cellxgene`.
    out
        Folder to write.

    Raises
    ------
    InputError
        As :func:`to_cellxgene`.
    """
    out = Path(out)
    with (
        _open(atlas, out) as (store, root),
        _x_by_gene(store, root, out, block_budget) as x,
        atomic_path(out) as partial,
    ):
        partial.mkdir()
        parts = Matrices(store, x, root["var"], root["varm"], None)
        _copy_for_browsers(store, root, parts, ZarrV2Sink(partial / "atlas.zarr"))
        config = _view_config(categories(root["obs"]))
        (partial / "view.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def _copy_for_browsers(store: Store, root: Any, parts: Matrices, sink: Sink) -> None:
    narrow = {"obs": root["obs"], "var": parts.var, "obsm": root["obsm"], "varm": parts.varm}
    whole = {"X": parts.x}
    sink.group("", attributes(root))
    for name in ("layers", "obsp", "varp", "uns"):
        sink.group(name, DICT)
    if parts.counts is not None:
        sink.group("raw", RAW)
        sink.group("raw/varm", DICT)
        whole["raw/X"], narrow["raw/var"] = parts.counts, parts.var
    total = sum(n_values(node) for node in (*whole.values(), *narrow.values()))
    with closing(progress_meter(total, unit="values")) as passed, _reading(store):
        for name, node in whole.items():
            NodeCopy(sink, passed).copy(node, name)
        for name, node in narrow.items():
            NodeCopy(sink, passed, narrow=True).copy(node, name)


@contextmanager
def _open(atlas: Path | str, out: Path) -> Iterator[tuple[Store, Any]]:
    """Open the atlas, after a check that nothing would be overwritten."""
    check_new(out)
    store = Store.find(atlas)
    if store.kind != "zarr":
        msg = f"{atlas}: only a Zarr store can be exported, this is an h5ad file: give atlas.zarr"
        raise InputError(msg)
    with store.open() as root:
        if "X" not in root or "obs" not in root or "var" not in root:
            raise InputError(f"{atlas}: no AnnData: X, obs or var is missing: give atlas.zarr")
        yield store, root


def check_new(out: Path) -> None:
    """Refuse to overwrite a file or folder."""
    if out.exists():
        raise InputError(f"{out}: it exists already: move it away, or give another name")


@contextmanager
def _x_by_gene(store: Store, root: Any, out: Path, block_budget: str | int) -> Iterator[Any]:
    """X as CSC, in a temporary store beside the output."""
    if _UMAP not in root.get("obsm", {}):
        raise InputError(
            f"{store.path}: there is no obsm[{_UMAP!r}] to show: build the atlas with "
            "map: {cells: all}"
        )
    with work_folder(out.with_name(f"{out.name}.by_gene")) as folder:
        matrix, _ = read_matrix(store.path, compact=True, block_budget=block_budget)
        write_csc(matrix, folder / "X", block_budget=block_budget)
        create_group(folder, {})
        yield open_store(folder)["X"]


@contextmanager
def _reading(store: Store) -> Iterator[None]:
    """Name the atlas in errors of reading, and not in those of a full disk."""
    try:
        with reading(store.path, "the atlas"):
            yield
    except (DiskError, InputError) as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from error
        raise


def _view_config(columns: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """View config of Vitessce, schema 1.0.16 (https://vitessce.io/docs/view-config-json)."""
    shown = [name for name in columns if 0 < len(columns[name]) <= _MAX_CATEGORIES]
    shown.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    options = {
        "obsFeatureMatrix": {"path": "X"},
        "obsEmbedding": [{"path": "obsm/X_umap", "dims": [0, 1], "embeddingType": "UMAP"}],
        "obsSets": [{"name": name, "path": f"obs/{name}"} for name in shown],
    }
    return {
        "version": "1.0.16",
        "name": "atlas",
        "description": "",
        "datasets": [
            {
                "uid": "A",
                "name": "atlas",
                "files": [{"fileType": "anndata.zarr", "url": "atlas.zarr", "options": options}],
            }
        ],
        "coordinationSpace": {
            "dataset": {"A": "A"},
            "embeddingType": {"A": "UMAP"},
            "obsSetColor": {"A": [color for name in shown for color in _colors(name, columns)]},
        },
        "layout": [
            _view("scatterplot", 0, 0, 8, 12, embeddingType="A"),
            _view("obsSets", 8, 0, 4, 6),
            _view("featureList", 8, 6, 4, 6),
        ],
        "initStrategy": "auto",
    }


def _view(component: str, x: int, y: int, w: int, h: int, **scopes: str) -> dict[str, Any]:
    scopes = {"dataset": "A", "obsSetColor": "A", **scopes}
    return {"component": component, "coordinationScopes": scopes, "x": x, "y": y, "w": w, "h": h}


def _colors(name: str, columns: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    values = columns[name]
    return [
        {"path": [name, value], "color": [int(color[i : i + 2], 16) for i in (1, 3, 5)]}
        for value, color in zip(values, colours(len(values)), strict=True)
    ]
