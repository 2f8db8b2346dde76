"""Results that their owner has edited: which they are, what differs, and whether it can be read.

Atlas, files of cells, tables, figures and pages are for users alone, who may add cell types to the
atlas or mend a word of a table. Such a result stays as it is, and each run names it. Bytes that
nothing can read are damaged, whoever wrote them.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas._util.names import first_names
from scatlas.io.files.listing import walk_files

if TYPE_CHECKING:
    from collections.abc import Collection

    import zarr

logger = logging.getLogger(__name__)
_MAX_NAMED = 5  # elements of a store
# Last bytes of complete files, by the ends of their names.
_LAST_BYTES = {".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF", ".svg": b"</svg>", ".html": b"</html>"}
_VALUES_AT_ONCE = 2**22
# The part of a file's name in a Zarr store that follows the name of its node.
_IN_NODE = re.compile(r"/?(zarr\.json|c(/\d+)*)$")


def is_owners(output: Path, manifest: Path) -> bool:
    """Whether an output of a step is for users alone."""
    root = next((path.parent for path in manifest.parents if path.name == "manifests"), None)
    if root is None or not output.is_relative_to(root):
        return False
    parts = output.relative_to(root).parts
    first, *rest = parts[1:] if parts[0] == "mapped" and parts[1:] else parts
    is_file = first == "atlas.zarr" or Path(first).suffix in {".h5ad", ".html"}
    return first in {"tables", "figures"} or (is_file and not rest)


def added_nodes(store: Path, files: Collection[str]) -> set[str]:
    """Metadata of the nodes of a store that its step has not written."""
    return {file for file, _ in walk_files(store) if file.endswith("zarr.json")} - {*files}


def lost_file(
    files: Collection[str], missing: Collection[str], changed: Collection[str]
) -> str | None:
    """A missing file of a node that has others left, and that nobody has written again."""
    gone = {*missing}
    left = {_node(file) for file in files if file not in gone}
    written = {_node(file) for file in changed if file.endswith("zarr.json")}
    return next((file for file in missing if _node(file) in left - written), None)


def what_differs(store: Path, files: Collection[str], changed: Collection[str]) -> str:
    """Elements of a store that were added, removed and changed, in words, by the ``files`` of its
    step and by those with other bytes.
    """
    before = {*map(_element, files)} - {""}
    after = {*map(_element, added_nodes(store, []))} - {""}
    changed_elements = {*map(_element, changed)} & before & after
    # A table whose elements have all changed is named as a whole.
    for group in {element.partition("/")[0] for element in changed_elements}:
        elements = {e for e in before & after if e.partition("/")[0] == group}
        is_whole = elements <= changed_elements | {group}
        changed_elements -= elements if is_whole else {group}
        changed_elements |= {group} if is_whole else set()
    parts = {"added": after - before, "removed": before - after, "changed": changed_elements}
    words = [
        f"{first_names(sorted(elements), _MAX_NAMED)} {what}"
        for what, elements in parts.items()
        if elements
    ]
    return "; ".join(words) or "attributes changed"


def _node(file: str) -> str:
    return _IN_NODE.sub("", file)


def _element(file: str) -> str:
    """Element of an AnnData to which a file of its store belongs: X, obs/leiden, uns/pca."""
    parts = _node(file).split("/")
    return "/".join(parts[: 1 if parts[0] == "X" else 2])


def damaged_file(output: Path, files: Collection[str]) -> str | None:
    """One of the edited files that is incomplete, as far as the formats tell; decodes them all."""
    first_of = {_node(file): file for file in reversed([*files])}
    for node, file in first_of.items():
        path = output / node
        try:
            is_complete = _is_complete(path, in_store=(output / "zarr.json").exists())
        except Exception as error:  # noqa: BLE001 - of a decoder, which may be any
            logger.info("%s cannot be read: %s", path, error)
            is_complete = False
        if not is_complete:
            return file
    return None


def _is_complete(path: Path, *, in_store: bool) -> bool:
    if in_store:
        _read_node(path)
    elif path.suffix == ".h5ad":
        _read_file(path)
    else:
        data = path.read_bytes().rstrip()
        return bool(data) and data.endswith(_LAST_BYTES.get(path.suffix, b""))
    return True


def _read_file(path: Path) -> None:
    import h5py

    from scatlas.io.files.hdf5_writing import decode

    def read(_: str, node: h5py.Dataset | h5py.Group) -> None:
        if isinstance(node, h5py.Dataset) and node.chunks and node.size:
            deque(decode(node), maxlen=0)

    with h5py.File(path, "r") as file:
        file.visititems(read)


def _read_node(path: Path) -> None:
    import zarr

    node = zarr.open(path, mode="r")
    if isinstance(node, zarr.Array):
        for piece in pieces(node):
            node[piece]


def pieces(array: zarr.Array[Any]) -> list[Any]:
    """Rows of an array that are read at once, of whole chunks."""
    if not array.shape:
        return [...]
    row_values = max(1, array.size // max(1, array.shape[0]))
    chunk = (array.shards or array.chunks)[0]
    rows = max(1, _VALUES_AT_ONCE // row_values // chunk) * chunk
    return [slice(lo, lo + rows) for lo in range(0, array.shape[0], rows)]
