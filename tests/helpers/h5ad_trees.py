"""Elements of h5ad files beside those that anndata writes."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import h5py


def assert_as_anndata_writes(path: Path, scratch: Path) -> None:
    """Compare names, encodings and types with a file that anndata writes of what it reads."""
    ad.read_h5ad(path).write_h5ad(scratch, convert_strings_to_categoricals=False)
    with h5py.File(path) as ours, h5py.File(scratch) as theirs:
        assert tree(ours) == tree(theirs), path
        if "X" in ours and ours["X"].attrs["encoding-type"] != "array":
            ad.read_h5ad(path, backed="r")[:5].to_memory()


def tree(node: h5py.Group | h5py.Dataset) -> dict[str, object]:
    """Attributes and type of an element, and of those in it; links are followed."""
    found: dict[str, object] = {name: str(value) for name, value in node.attrs.items()}
    if isinstance(node, h5py.Group):
        return found | {f"/{name}": tree(child) for name, child in node.items()}
    return found | {"dtype": node.dtype, "ndim": node.ndim}
