"""With the base installation alone, a function says which extra to install."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

import scatlas as sa
from scatlas._util.imports import EXTRAS
from scatlas.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """Hide a package, as if it were not installed."""

    def hide(name: str) -> None:
        for module in list(sys.modules):
            if module.partition(".")[0] == name or module.startswith("scatlas.pl."):
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)

    return hide


def cells(n: int = 120) -> ad.AnnData:
    rng = np.random.default_rng(0)
    adata = ad.AnnData(rng.poisson(1.0, (n, 60)).astype(np.float32))
    adata.obsm["X_pca"] = rng.normal(size=(n, 5)).astype(np.float32)
    adata.obs["plate"] = np.repeat(["a", "b"], n // 2)
    return adata


def with_graph() -> ad.AnnData:
    adata = cells()
    sa.pp.neighbors(adata)
    return adata


CALLS = {
    "neighbors": ("sklearn", cells, lambda adata: sa.pp.neighbors(adata)),
    "scrublet": ("sklearn", cells, lambda adata: sa.pp.scrublet(adata, n_prin_comps=5)),
    "leiden": ("igraph", with_graph, lambda adata: sa.tl.leiden(adata)),
    "highly_variable_genes": (
        "skmisc",
        cells,
        lambda adata: sa.pp.highly_variable_genes(adata, flavor="seurat_v3"),
    ),
    "umap of pl": ("matplotlib", cells, lambda adata: sa.pl.umap(adata.obsm["X_pca"][:, :2])),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_extra_is_named(without, name: str):
    module, make, call = CALLS[name]
    adata = make()
    without(module)
    package, extra = EXTRAS[module]
    with pytest.raises(
        InputError, match=rf"{package} is not installed: pip install 'scatlas\[{extra}\]'"
    ):
        call(adata)


def test_the_line_of_a_message_needs_no_index_with_scatlas():
    """Because pip takes the extra from the scatlas that is installed."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "scatlas[plot]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "already satisfied: scatlas[plot]" in done.stdout


def test_each_extra_brings_its_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for module, (package, extra) in EXTRAS.items():
        assert any(text.startswith(package) for text in extras[extra]), package
        assert importlib.util.find_spec(module), module
