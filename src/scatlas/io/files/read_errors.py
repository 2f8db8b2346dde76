"""Why a file cannot be read, as one sentence with the way out: failures of decoders, and files of
other programs.
"""

from __future__ import annotations

import errno
import shlex
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from scatlas.errors import DiskError, InputError, MissingPackageError, ScatlasError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What a user can do about damaged data; :mod:`scatlas.workflow.script` replaces it for outputs.
REMEDY = "copy or download the file again, or write it again from its source"
# What packages say about types that newer versions of them may know.
_UNKNOWN = {"No Zarr data type": "zarr", "No read method registered": "anndata"}
MORE_MEMORY = "needs more memory than there is: give the job more memory"
# Compressed files by their first bytes: name, program that unpacks them, and the end of the name
# that this program needs.
_PACKED = {
    b"\x1f\x8b": ("a gzip", "gunzip", ".gz"),
    b"BZh": ("a bzip2", "bunzip2", ".bz2"),
    b"\xfd7zXZ": ("an xz", "unxz", ".xz"),
    b"\x28\xb5\x2f\xfd": ("a zstd", "unzstd", ".zst"),
}
# First bytes, in lower case, of files that users often give instead of data, and hints.
_OTHER_KINDS = {
    b"version https://git-lfs": "it is a pointer of Git LFS, the data are elsewhere; fetch them "
    "with: git lfs pull",
    b"/annex/objects/": "it is a pointer of git-annex, the data are elsewhere; fetch them with: "
    "git annex get {path}",
    b"pk\x03\x04": "it is a zip archive, of a Zarr store perhaps; unpack it with: "
    "unzip -o {path} -d {folder}, and give the folder that holds zarr.json, .zgroup or a .mtx file",
    b"<!doctype": "it is a web page, as of a download that needs a login; download it again",
    b"<html": "it is a web page, as of a download that needs a login; download it again",
}
_TAR = (
    "it is a tar archive; unpack it with: mkdir {folder} && tar -xf {path} -C {folder}, and give "
    "what was in it"
)
_HEADER_BYTES = 512
# Ends of the names of lists beside a text matrix.
_LISTS = (
    *("barcodes.tsv", "features.tsv", "genes.tsv", ".mtx_rows", ".mtx_cols"),
    *("all_genes.csv", "cell_metadata.csv", ".barcodes.txt", ".genes.txt"),
)
_OF_R = {".rds": "readRDS", ".rda": "get(load", ".rdata": "get(load"}
_IN_R = "{kind}; write it as h5ad in R with: {call}"
_BPCELLS = "it is a matrix of BPCells"
_TENX = {"data", "indices", "indptr", "shape"}


class UnsupportedLayoutError(Exception):
    """Only h5py or zarr-python can read an array; the message is the reason."""


def permission_error(path: Path | str, element: str = "the file") -> InputError:
    return InputError(f"{path}: no permission to read {element}: ask the owner for read access")


@contextmanager
def reading(path: str, element: str) -> Iterator[None]:
    """Turn any failure to decode an element into the error that :func:`read_error` names."""
    try:
        yield
    except ScatlasError:
        raise
    # h5py, zarr, numcodecs and anndata raise a dozen classes here, some of them private.
    except Exception as error:
        raise read_error(path, element, error) from error


def read_error(path: str, element: str, error: Exception) -> ScatlasError:
    """Error for a failed read. Only a decoder's refusal says that data are damaged: without a
    package, memory or a disk that works, a plate is no bad input, which would be left out.
    """
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    code = getattr(error, "errno", None)
    # Of numcodecs and zarr, which are not imported here.
    if isinstance(error, ImportError) or type(error).__name__ == "UnknownCodecError":
        msg = f"{path}: {element} needs a package that does not load ({reason}): install it"
        return MissingPackageError(msg)
    if isinstance(error, MemoryError) or code == errno.ENOMEM:
        return TooLargeError(f"{path}: {element} {MORE_MEMORY}")
    if isinstance(error, PermissionError):
        return permission_error(path, element)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        msg = f"{path}: {element} cannot be read, as a file is missing ({reason}): {REMEDY}"
        return InputError(msg)
    # Damaged bytes name places that no file has: the system calls these arguments invalid.
    by_system = isinstance(error, OSError) and code not in (None, errno.EINVAL)
    if by_system or isinstance(error, TimeoutError | ConnectionError):
        msg = (
            f"{path}: {element} cannot be read, as the system reports ({reason}): check the disk "
            "or the network, and give the same command again"
        )
        return DiskError(msg)
    msg = f"{path}: {element} cannot be read ({reason}): the data are damaged; {REMEDY}"
    for words, package in _UNKNOWN.items():
        if words in reason:
            what = f"{element} cannot be read, as {package} does not know its type ({reason})"
            msg = f"{path}: {what}: update the package {package}, or write the file without it"
    return InputError(msg)


def way_out_of_file(path: Path) -> str | None:
    """Name the kind of a file that is no data, and what to do; None if unknown."""
    if path.name.removesuffix(".gz").endswith(_LISTS):
        return f"give its folder, {path.parent}"
    if read := _OF_R.get(path.suffix.lower()):
        end = ")" * (1 + read.count("("))
        call = f"anndataR::write_h5ad({read}({str(path)!r}{end}, {_h5ad(path)!r})"
        return _IN_R.format(kind="it is an object of R", call=call)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except PermissionError as error:
        raise permission_error(path) from error
    if not header:
        return "it is empty; copy or download it again"
    quoted = shlex.quote(str(path))
    for first_bytes, (kind, program, end) in _PACKED.items():
        if header.startswith(first_bytes):
            rename = "" if path.suffix == end else f"mv {quoted} {shlex.quote(f'{path}{end}')} && "
            packed = shlex.quote(f"{path}{end}") if rename else quoted
            return f"it is {kind} archive; unpack it with: {rename}{program} {packed}"
    folder = shlex.quote(str(path.with_suffix("") if path.suffix else f"{path}.unpacked"))
    for first_bytes, hint in _OTHER_KINDS.items():
        if header.lstrip().lower().startswith(first_bytes):
            return hint.format(path=quoted, folder=folder)
    return _TAR.format(path=quoted, folder=folder) if header[257:262] == b"ustar" else None


def way_out_of_folder(path: Path) -> str | None:
    """Name the kind of a folder that is no Zarr store, and what to do; None if unknown."""
    if (path / "idxptr").is_file():
        return _of_bpcells(path, f"BPCells::open_matrix_dir({str(path)!r})")
    if any((path / name).exists() for name in ("__group", "__tiledb_group.tdb")):
        return (
            "it is an experiment of TileDB-SOMA; write it as h5ad with: python -c "
            f'"import tiledbsoma as s, tiledbsoma.io as io; io.to_h5ad(s.Experiment.open('
            f"{str(path)!r}), {_h5ad(path)!r}, 'RNA')\""
        )
    return None


def way_out_of_store(path: str, root: Any) -> str | None:
    """Kind of an HDF5 file or Zarr store by its root group, and what to do; None if unknown."""
    in_hdf5 = hasattr(root, "filename")
    for holder, kind in (("mod", "MuData"), ("tables", "SpatialData")):
        if holder not in root:
            continue
        names = sorted(_members(root[holder]))
        name = "rna" if "rna" in names or not names else names[0]
        key, out = f"{holder}/{name}", _h5ad(path).removesuffix("h5ad") + f"{name}.h5ad"
        if not in_hdf5:
            return f"it is {kind}; give the AnnData in it: {path}/{key}"
        return (
            f"it is {kind}; write the AnnData in it as h5ad with: python -c "
            f'"import anndata.io, h5py; anndata.io.read_elem(h5py.File({path!r})[{key!r}])'
            f'.write_h5ad({out!r})"'
        )
    if "dataset_0" in root and not in_hdf5:
        return f"it is a collection of annbatch; give each AnnData in it: {path}/dataset_0"
    if {"assays", "meta.data"} <= set(root):
        call = f"SeuratDisk::Convert({path!r}, dest = 'h5ad')"
        return _IN_R.format(kind="it is an object of Seurat", call=call)
    for name in root:
        found = _members(root[name])
        if "barcodes" in found:
            return (
                "it is a matrix of Cell Ranger; load takes it, or read it with: "
                f"scanpy.read_10x_h5({path!r})"
            )
        if "idxptr" in found:
            return _of_bpcells(path, f"BPCells::open_matrix_hdf5({path!r}, {name!r})")
        if found >= _TENX:
            matrix = f"HDF5Array::TENxMatrix({path!r}, {name!r})"
            call = (
                "zellkonverter::writeH5AD(SingleCellExperiment::SingleCellExperiment("
                f"list(counts = {matrix})), {_h5ad(path)!r})"
            )
            return _IN_R.format(kind="it is a TENxMatrix", call=call)
    return None


def _of_bpcells(path: Path | str, matrix: str) -> str:
    call = f"BPCells::write_matrix_anndata_hdf5({matrix}, {_h5ad(path)!r})"
    return _IN_R.format(kind=_BPCELLS, call=call)


def _members(element: Any) -> set[str]:
    return set() if hasattr(element, "dtype") else set(element)


def _h5ad(path: Path | str) -> str:
    """Name of the file to write: beside a local source, here for one at an address."""
    name = str(path)
    return str(PurePath(name.rpartition("/")[2] if "://" in name else name).with_suffix(".h5ad"))
