"""View config of Vitessce: https://vitessce.io/docs/view-config-json (schema 1.0.16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scatlas._util.colours import colours

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Columns with more categories make lists that nobody reads.
_MAX_CATEGORIES = 100
# Columns that are shown first.
_FIRST = ("leiden", "plate")


def view_config(columns: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """View of the map, the genes and the sets of cells of ``atlas.zarr`` in the same folder."""
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
