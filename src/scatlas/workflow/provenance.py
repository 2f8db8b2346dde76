"""The record of an atlas about its origin: ``uns['scatlas']``.

It holds everything that decides the atlas and nothing else (no times), so that equal runs write
equal bytes. Checksums of stores exclude it (:func:`scatlas.io.checksum`).
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from scatlas._version import __version__
from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum
from scatlas.workflow.integrity import run_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config

logger = logging.getLogger(__name__)

# Config keys that affect the atlas, and the seed of later steps.
ATLAS_KEYS = ("seed", "qc", "doublets", "genes", "normalize", "hvg", "consensus", "scale", "pca")
# Further ones if the atlas has the map of all cells.
MAP_KEYS = ("subset", "neighbors", "umap", "leiden", "map")
# Facts of the step `load` about a plate. The digest is that of its values, not of the stored bytes.
CONTENT_FACTS = ("n_cells", "n_genes", "n_values", "total_counts", "max_count", "values_digest")
PLATE_STEPS = ("load", "qc_filter", "normalize", "hvg", "select_genes")
ATLAS_STEPS = ("consensus", "concat_on_disk", "pca")
MAP_STEPS = ("subset", "neighbors", "umap", "leiden", "map")


def plate_rows(config: Config, plates: Sequence[Plate]) -> list[dict[str, Any]]:
    """Plates as a record lists them: ``plate``, ``path`` and ``labels``, in the order of the sheet;
    with ``counts`` if they are not in X, ``fractional`` if they are rounded, and ``by`` if the path
    is that of a file of samples; ``genes`` and ``marker`` as the config has them.
    """
    rows = []
    for plate in plates:
        rows.append({"plate": plate.plate, "path": plate.path, "labels": plate.labels})
        counts = plate.counts or config.source.counts
        rows[-1] |= {"counts": counts} if counts != "X" else {}
        fractional = plate.fractional or config.source.fractional
        rows[-1] |= {"fractional": fractional} if fractional != "refuse" else {}
        rows[-1] |= {"by": config.plates.by} if config.plates.by else {}
        rows[-1] |= json.loads(config.source.lists or "{}")
    return rows


def recipe(config: Config, plates: Sequence[Plate]) -> str:
    """Settings and plates (as :func:`plate_rows`) that decide an atlas, as JSON in one line, equal
    for equal settings: the keys :data:`ATLAS_KEYS`, with :data:`MAP_KEYS` and those of
    ``integrate`` if the atlas has them.
    """
    keys = {*ATLAS_KEYS, *(MAP_KEYS if config.maps_all_cells else ())}
    settings = config.model_dump(mode="json", include=keys)
    if config.integrate and config.integrate.use:
        # The other keys belong to a later step.
        settings["integrate"] = config.integrate.model_dump(exclude={"umap", "label"})
    if config.labels and config.maps_all_cells:
        settings["labels"] = config.labels
    if config.annotate and config.maps_all_cells:
        settings["annotate"] = config.annotate.model_dump(mode="json")
    return _json_line({"config": settings, "plates": plate_rows(config, plates)})


def record(settings_json: str, manifests: Path) -> dict[str, Any]:
    """``uns['scatlas']`` of an atlas, from its :func:`recipe` and the manifests of its steps;
    ``config``, ``plates`` (each with its :data:`CONTENT_FACTS`) and ``versions`` are JSON.
    """
    decided = json.loads(settings_json)
    plates = _with_content(decided["plates"], manifests)
    plate_steps, atlas_steps = list(PLATE_STEPS), list(ATLAS_STEPS)
    if decided["config"]["doublets"]:
        plate_steps.append("doublets")
    if "integrate" in decided["config"]:
        atlas_steps.append("harmony")
    if decided["config"].get("map", {}).get("use"):
        atlas_steps.append("latent")
    if "map" in decided["config"]:
        atlas_steps += MAP_STEPS
    of_plates = [f"{step}/{row['plate']}" for row in plates for step in plate_steps]
    records = {}
    for step in [*of_plates, *atlas_steps]:
        file = run_record(manifests / f"{step}.json")
        if file.is_file():
            records[step] = json.loads(file.read_text("utf-8"))
        else:
            logger.info("%s is missing: the record leaves out the versions of this step", file)
    # Clusters have the same bits on both, and those of few cells leave the GPU to other jobs.
    computed = [run for step, run in records.items() if step != "leiden"]
    versions: dict[str, set[str]] = {}
    for run in records.values():
        for part in (run, run.get("gpu", {})):
            for name, number in part.get("versions", {}).items():
                versions.setdefault(name, set()).add(str(number))
    return {
        "version": __version__,
        "seed": decided["config"]["seed"],
        "backend": ", ".join(sorted({run["backend"] for run in computed if "backend" in run})),
        "config": _json_line(decided["config"]),
        "plates": _json_line(plates),
        "versions": _json_line(
            {name: ", ".join(sorted(found)) for name, found in versions.items()}
        ),
    }


def extended_record(
    atlas: Path, plates: Sequence[Mapping[str, Any]], manifests: Path
) -> dict[str, Any]:
    """Record of a new version of an atlas: that of the old one, whose checksum is ``extends``, with
    the new plates of :func:`plate_rows`, which have ``mapped``: true.
    """
    old = read_record(atlas)
    new = [{**row, "mapped": True} for row in _with_content(plates, manifests)]
    return {
        **old,
        "version": __version__,
        "config": _json_line(old["config"]),
        "plates": _json_line([*old["plates"], *new]),
        "versions": _json_line(old["versions"]),
        "extends": checksum(atlas),
    }


def _with_content(plates: Sequence[Mapping[str, Any]], manifests: Path) -> list[dict[str, Any]]:
    """Rows of plates with their :data:`CONTENT_FACTS`."""
    found = []
    for row in plates:
        loaded = json.loads((manifests / "load" / f"{row['plate']}.json").read_text("utf-8"))
        found.append({**row, **{name: loaded[name] for name in CONTENT_FACTS}})
    return found


def read_record(atlas: Path) -> dict[str, Any]:
    """Read the record of an atlas and decode its JSON."""
    # Half a second to import, which parsing the rules does not need.
    from anndata.io import read_elem

    from scatlas.io.files.local_zarr import open_with_zarr_python

    if not (atlas / "zarr.json").is_file():
        raise InputError(f"{atlas}: there is no atlas.zarr here: correct the path")
    root = open_with_zarr_python(atlas)
    if "uns/scatlas" not in root:
        raise InputError(
            f"{atlas} has no record of its origin (uns['scatlas']): give an atlas.zarr of the "
            "workflow"
        )
    found = read_elem(root["uns/scatlas"])
    decoded = {name: json.loads(found[name]) for name in ("config", "plates", "versions")}
    return {**found, "seed": int(found["seed"]), **decoded}


def _json_line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
