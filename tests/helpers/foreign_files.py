"""Files in the layouts in which other tools write counts, all of the same plate.

The layouts were taken from the tools' sources and published files: Cell Ranger 2, 3 and 7 to 9,
loompy 2 and 3 (also velocyto), zellkonverter, SeuratDisk, sceasy, anndataR, CELLxGENE, and anndata
0.6 to 0.12.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr

N_CELLS, N_GENES = 60, 120
GENES = [*(f"MT-{i}" for i in range(4)), *(f"GENE{i}" for i in range(4, N_GENES))]
IDS = [f"ENSG{i:011}" for i in range(N_GENES)]
CELLS = [f"ACGTACGTACGT{i:04}-1" for i in range(N_CELLS)]
EXPRESSION = "Gene Expression"


def counts() -> sp.csr_matrix:
    """Counts of all files, int32 [cells x genes]."""
    rng = np.random.default_rng(4)
    x = rng.negative_binomial(1, 0.4, (N_CELLS, N_GENES))
    x[:, :4] = rng.poisson(0.5, (N_CELLS, 4))
    return sp.csr_matrix(x.astype(np.int32))


def _normalised(x: sp.csr_matrix) -> sp.csr_matrix:
    scale = sp.diags_array(1e4 / np.asarray(x.sum(axis=1)).ravel())
    return sp.csr_matrix(scale @ x).astype(np.float32).log1p()


# -- Cell Ranger -----------------------------------------------------------------------------------


def _write_csc(group: h5py.Group, x: sp.csr_matrix, cells: list[str]) -> None:
    options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "chunks": (300,)}
    group.create_dataset("barcodes", data=np.array(cells, "S18"), compression="gzip")
    group.create_dataset("data", data=x.data.astype(np.int32), **options)
    group.create_dataset("indices", data=x.indices.astype(np.int64), **options)
    group.create_dataset("indptr", data=x.indptr.astype(np.int64), compression="gzip")
    group.create_dataset("shape", data=np.array(x.shape[::-1], np.int32))


def cell_ranger_2(path: Path) -> None:
    """``filtered_gene_bc_matrices_h5.h5`` of one genome."""
    with h5py.File(path, "w") as file:
        file.attrs["chemistry_description"] = "Single Cell 3' v2"
        group = file.create_group("GRCh38")
        _write_csc(group, counts(), CELLS)
        group["genes"], group["gene_names"] = np.array(IDS, "S"), np.array(GENES, "S")


def cell_ranger_2_barnyard(path: Path) -> None:
    """``filtered_gene_bc_matrices_h5.h5`` of two genomes, with other cells each."""
    cell_ranger_2(path)
    with h5py.File(path, "r+") as file:
        group = file.create_group("mm10")
        _write_csc(group, counts()[:20, :30], CELLS[:20])
        group["genes"] = np.array([f"ENSMUSG{i}" for i in range(30)], "S")
        group["gene_names"] = np.array([f"mt-{i}" for i in range(30)], "S")


def _cell_ranger_h5(
    path: Path, others: dict[str, int], version: str, more: Callable[[h5py.Group], object]
) -> None:
    types = [EXPRESSION] * N_GENES + [kind for kind, n in others.items() for _ in range(n)]
    n_more = len(types) - N_GENES
    rng = np.random.default_rng(5)
    wide = sp.hstack([counts(), sp.csr_matrix(rng.poisson(50, (N_CELLS, n_more)))], "csr")
    with h5py.File(path, "w") as file:
        file.attrs.update(
            {
                "filetype": "matrix",
                "version": 2,
                "software_version": version,
                "library_ids": np.array(["run1"], "S"),
                "original_gem_groups": np.array([1]),
            }
        )
        matrix = file.create_group("matrix")
        _write_csc(matrix, wide, CELLS)
        features = matrix.create_group("features")
        features["id"] = np.array([*IDS, *(f"F{i}" for i in range(n_more))], "S")
        features["name"] = np.array([*GENES, *(f"CD{i}" for i in range(n_more))], "S")
        features["feature_type"] = np.array(types, "S")
        features["genome"] = np.array(["GRCh38"] * N_GENES + [""] * n_more, "S")
        features["_all_tag_keys"] = np.array(["genome"], "S")
        more(features)


def cell_ranger_3(path: Path) -> None:
    """Genes alone."""
    _cell_ranger_h5(path, {}, "3.1.0", lambda _: None)


def cell_ranger_7(path: Path) -> None:
    """With antibodies, CRISPR guides and tags of multiplexed samples, and their sequences."""

    def tags(features: h5py.Group) -> None:
        for name in ("pattern", "read", "sequence"):
            features[name] = np.array([""] * features["id"].size, "S")

    kinds = {"Antibody Capture": 3, "CRISPR Guide Capture": 2, "Multiplexing Capture": 4}
    _cell_ranger_h5(path, kinds, "cellranger-7.1.0", tags)


def cell_ranger_9(path: Path) -> None:
    """Of probes, with the group of the probe set among the features, and antigens."""

    def probes(features: h5py.Group) -> None:
        features.create_group("target_sets")["Human Transcriptome v1.1"] = np.arange(N_GENES)

    _cell_ranger_h5(path, {"Antigen Capture": 2, "Custom": 1}, "cellranger-9.0.1", probes)


def cell_ranger_2_folder(path: Path) -> None:
    """``filtered_gene_bc_matrices/GRCh38``: no compression, and genes in descending order."""
    _folder(path, "genes.tsv", [f"{i}\t{name}" for i, name in zip(IDS, GENES, strict=True)], "")


def cell_ranger_3_folder(path: Path) -> None:
    """``filtered_feature_bc_matrix`` of version 3 and later."""
    lines = [f"{i}\t{name}\t{EXPRESSION}" for i, name in zip(IDS, GENES, strict=True)]
    _folder(path, "features.tsv", lines, ".gz")


def _folder(path: Path, name: str, lines: list[str], suffix: str) -> None:
    x = counts()
    path.mkdir()
    entries = [
        f"{gene + 1} {cell + 1} {x[cell, gene]}"
        for cell in range(x.shape[0])
        for gene in sorted(x[cell].indices, reverse=not suffix)
    ]
    head = ["%%MatrixMarket matrix coordinate integer general", "%", f"{N_GENES} {N_CELLS} {x.nnz}"]
    texts = {"matrix.mtx": [*head, *entries], "barcodes.tsv": CELLS, name: lines}
    for file, content in texts.items():
        text = "\n".join([*content, ""]).encode()
        (path / f"{file}{suffix}").write_bytes(gzip.compress(text) if suffix else text)


# -- Loom ------------------------------------------------------------------------------------------


def _loom(path: Path, layers: dict[str, np.ndarray], *, version: int) -> None:
    with h5py.File(path, "w") as file:
        if version == 3:  # loompy 3 stores the attributes of the file as data sets
            file["attrs/LOOM_SPEC_VERSION"] = "3.0.0"
        else:
            file.attrs["LOOM_SPEC_VERSION"] = "2.0.1"
        text = h5py.string_dtype()
        names = {"Gene": GENES, "Accession": IDS}
        for name, values in names.items():
            file.create_dataset(f"row_attrs/{name}", data=np.array(values, object), dtype=text)
        file.create_dataset("col_attrs/CellID", data=np.array(CELLS, object), dtype=text)
        file["col_attrs/total"] = layers[""].sum(axis=0)
        file["col_attrs/tsne"] = np.zeros((N_CELLS, 2))
        for name in ("layers", "row_graphs", "col_graphs"):
            file.create_group(name)
        for name, values in layers.items():
            file.create_dataset(
                f"layers/{name}" if name else "matrix", data=values, chunks=(64, 64),
                maxshape=(values.shape[0], None), compression="gzip", compression_opts=2,
            )  # fmt: skip


def loom_3(path: Path) -> None:
    """As loompy 3 and ``AnnData.write_loom`` write it: float32."""
    _loom(path, {"": counts().T.toarray().astype(np.float32)}, version=3)


def loom_velocyto(path: Path) -> None:
    """As velocyto writes it: layers of spliced and unspliced counts, uint16."""
    x = counts().T.toarray().astype(np.uint16)
    _loom(path, {"": x, "spliced": x // 2, "unspliced": x - x // 2}, version=2)


# -- AnnData ---------------------------------------------------------------------------------------


def _tables() -> dict[str, pd.DataFrame]:
    obs = pd.DataFrame({"line": pd.Categorical(["a", "b"] * (N_CELLS // 2))}, index=CELLS)
    return {"obs": obs, "var": pd.DataFrame({"gene_ids": IDS}, index=GENES)}


def cellxgene(path: Path) -> None:
    """Normalised X, counts in ``raw.X``, ids as names and the symbols in ``feature_name``."""
    var = pd.DataFrame(index=IDS)
    var["feature_name"] = pd.Categorical(GENES)
    var["feature_biotype"] = pd.Categorical(["gene"] * N_GENES)
    raw = ad.AnnData(counts().astype(np.float32), obs=_tables()["obs"], var=var)
    adata = raw.copy()
    adata.X, adata.raw = _normalised(counts()), raw
    adata.var["feature_is_filtered"] = False
    adata.uns = {"schema_version": "5.2.0", "title": "an atlas"}
    adata.obsm["X_umap"] = np.zeros((N_CELLS, 2))
    adata.write_h5ad(path, compression="gzip")


def symbols_in_var(path: Path) -> None:
    """As CELLxGENE's files, but ``raw.var`` has no columns, and genes are in another order."""
    adata = ad.AnnData(_normalised(counts()), **_tables())
    adata.var = pd.DataFrame({"feature_name": GENES, "chromosome": 1}, index=IDS)
    adata = adata[:, N_GENES - 3 :: -1].copy()
    var = pd.DataFrame(index=IDS)
    adata.raw = ad.AnnData(counts().astype(np.float32), obs=adata.obs, var=var)
    adata.write_h5ad(path)


def zellkonverter(path: Path) -> None:
    """``writeH5AD`` of a SingleCellExperiment: CSC of float64, as R's dgCMatrix."""
    adata = ad.AnnData(sp.csc_matrix(counts().astype(np.float64)), **_tables())
    adata.layers["logcounts"] = sp.csc_matrix(_normalised(counts()).astype(np.float64))
    adata.uns["X_name"] = "counts"
    adata.write_h5ad(path)


def sceasy(path: Path) -> None:
    """``convertFormat(from="seurat", main_layer="data")``: counts in ``raw``, CSC."""
    adata = ad.AnnData(sp.csc_matrix(counts().astype(np.float64)), **_tables())
    adata.raw = adata.copy()
    adata.X = sp.csc_matrix(_normalised(counts()).astype(np.float64))
    adata.write_h5ad(path)


def anndata_r(path: Path) -> None:
    """``write_h5ad`` of anndataR: attributes are arrays of one value, and nothing is empty text."""
    adata = ad.AnnData(counts().astype(np.float64), **_tables())
    adata.write_h5ad(path)
    with h5py.File(path, "r+") as file:

        def as_array(_: str, node: h5py.Group | h5py.Dataset) -> None:
            for name in ("encoding-type", "encoding-version", "_index"):
                if name in node.attrs:
                    value = node.attrs[name]
                    del node.attrs[name]
                    node.attrs.create(name, [value], dtype=h5py.string_dtype())

        file.visititems(as_array)
        as_array("/", file)


def anndata_06(path: Path) -> None:
    """anndata 0.6: tables as compound data sets, categories in ``uns``, counts in ``raw.X``."""

    def compound(columns: dict[str, object]) -> np.ndarray:
        arrays = {name: np.asarray(values) for name, values in columns.items()}
        table = np.empty(N_CELLS if "line" in arrays else N_GENES, [
            (name, values.dtype) for name, values in arrays.items()
        ])  # fmt: skip
        for name, values in arrays.items():
            table[name] = values
        return table

    codes = np.arange(N_CELLS) % 2
    genes = compound({"index": np.array(GENES, "S"), "gene_ids": np.array(IDS, "S")})
    arrays = {
        "obs": compound({"index": np.array(CELLS, "S"), "line": codes.astype(np.int8)}),
        "var": genes,
        "raw.var": genes,
        "uns/line_categories": np.array(["a", "b"], "S"),
    }
    attributes = {}
    for name, x in (("X", _normalised(counts())), ("raw.X", counts().astype(np.float32))):
        attributes[name] = {"h5sparse_format": "csr", "h5sparse_shape": x.shape}
        arrays |= {f"{name}/{part}": getattr(x, part) for part in ("data", "indices", "indptr")}
    if path.suffix == ".h5ad":
        with h5py.File(path, "w") as root:
            for name, values in arrays.items():
                root[name] = values
            for name, values in attributes.items():
                root[name].attrs.update(values)
        return
    root = zarr.open_group(path, mode="w", zarr_format=2)
    for name, values in arrays.items():
        root.create_array(name, data=values)
    for name, values in attributes.items():
        root[name].attrs.update(values)


def seurat_disk(path: Path) -> None:
    """``Convert(dest = "h5ad")`` of SeuratDisk, without metadata of genes: counts in ``raw``.

    Tables of genes have no encoding and no order of columns; factors are codes without a reference
    to their labels, which are in ``__categories``.
    """
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        for name, x in (("X", _normalised(counts())), ("raw/X", counts())):
            group = file.create_group(name)
            for part in ("data", "indices", "indptr"):
                group[part] = getattr(x, part).astype(np.float64 if part == "data" else np.int32)
            encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
            group.attrs.update({"shape": np.array(x.shape), **encoding})
        for name, names in (("obs", CELLS), ("var", GENES), ("raw/var", GENES)):
            file.create_dataset(f"{name}/_index", data=np.array(names, object), dtype=text)
            file[name].attrs["_index"] = "_index"
        file["raw/var"].attrs["column-order"] = h5py.Empty("S1")
        file["var/features"] = np.array(GENES, "S")
        file["obs/line"] = np.arange(N_CELLS, dtype=np.int32) % 2
        file["obs/__categories/line"] = np.array(["a", "b"], "S")
        file["obs/some"] = np.array([0, -(2**31)] * (N_CELLS // 2), np.int32)  # NA in R
        file["obs/__categories/some"] = np.array(["known"], "S")
        encoding = {"encoding-type": "dataframe", "encoding-version": "0.1.0"}
        file["obs"].attrs.update({"column-order": ["line", "some"], **encoding})
        for name in ("obsm", "varm", "layers"):
            file.create_group(name)


def anndata_07(path: Path) -> None:
    """anndata 0.7: categories in ``__categories``, no encoding of the root, text without one."""
    adata = ad.AnnData(counts().astype(np.float32), **_tables())
    adata.write_h5ad(path)
    with h5py.File(path, "r+") as file:
        for name in ("encoding-type", "encoding-version"):
            del file.attrs[name]
        codes, labels = file["obs/line/codes"][:], file["obs/line/categories"][:]
        del file["obs/line"]
        file["obs/__categories/line"] = labels
        file["obs/line"] = codes
        file["obs/line"].attrs["categories"] = file["obs/__categories/line"].ref
        for table in ("obs", "var"):
            file[table].attrs["encoding-version"] = "0.1.0"
            for column in file[table].values():
                for name in ("encoding-type", "encoding-version"):
                    column.attrs.pop(name, None)
        for name in ("layers", "obsm", "varm", "obsp", "varp", "uns"):
            file.pop(name, None)


def anndata_012(path: Path) -> None:
    """anndata 0.12: Zarr v3."""
    adata = ad.AnnData(counts().astype(np.float32), **_tables())
    with ad.settings.override(zarr_write_format=3):
        adata.write_zarr(path)


# Writer, name of the file, where the counts are, and whether ids are the names of genes.
FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "cell_ranger_2": (cell_ranger_2, "filtered_gene_bc_matrices_h5.h5", "X"),
    "cell_ranger_2_barnyard": (cell_ranger_2_barnyard, "barnyard.h5", "genome/GRCh38"),
    "cell_ranger_2_folder": (cell_ranger_2_folder, "GRCh38", "X"),
    "cell_ranger_3": (cell_ranger_3, "filtered_feature_bc_matrix.h5", "X"),
    "cell_ranger_3_folder": (cell_ranger_3_folder, "filtered_feature_bc_matrix", "X"),
    "cell_ranger_7": (cell_ranger_7, "sample_filtered_feature_bc_matrix.h5", "X"),
    "cell_ranger_9": (cell_ranger_9, "sample_filtered_feature_bc_matrix.h5", "X"),
    "loom_3": (loom_3, "plate.loom", "X"),
    "loom_velocyto": (loom_velocyto, "velocyto.loom", "X"),
    "cellxgene": (cellxgene, "cellxgene.h5ad", "raw"),
    "symbols_in_var": (symbols_in_var, "names.h5ad", "raw"),
    "seurat_disk": (seurat_disk, "seurat-disk.h5ad", "raw"),
    "zellkonverter": (zellkonverter, "sce.h5ad", "X"),
    "sceasy": (sceasy, "seurat.h5ad", "raw"),
    "anndata_r": (anndata_r, "r.h5ad", "X"),
    "anndata_06": (anndata_06, "older.h5ad", "raw"),
    "anndata_06_zarr": (anndata_06, "older.zarr", "raw"),
    "anndata_07": (anndata_07, "old.h5ad", "X"),
    "anndata_012": (anndata_012, "new.zarr", "X"),
}
