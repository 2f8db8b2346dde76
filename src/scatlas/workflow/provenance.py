"""What an atlas says of its own making: ``uns['scatlas']``.

The record holds what decides the atlas (settings, plates, versions) and nothing else: no times, and
no setting of a later step, so that equal runs give equal bytes and a change of the UMAP leaves the
atlas alone. Checksums of stores leave it out (:func:`scatlas.io.checksum`): it says how, not what.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from scatlas._version import __version__
from scatlas.errors import InputError
from scatlas.workflow.integrity import run_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scatlas.workflow.config.model import Config
    from scatlas.workflow.config.plate_sheet import Plate

logger = logging.getLogger(__name__)

# Keys of the config that reach the atlas, and the seed of what is made from it. Where files lie and
# what a job may use do not show in an atlas; neither does anything after it.
KEYS = ("seed", "qc", "doublets", "genes", "normalize", "hvg", "consensus", "scale", "pca")
# What the step `load` has found in a plate; the digest is that of its values, whatever the bytes in
# which this version stores them.
CONTENT = ("n_cells", "n_genes", "n_values", "total_counts", "max_count", "values_digest")
PLATE_STEPS = ("load", "qc_filter", "normalize", "hvg", "select_genes")
ATLAS_STEPS = ("consensus", "concat_on_disk", "pca")


def recipe(config: Config, plates: Sequence[Plate]) -> str:
    """What decides an atlas, as the workflow hands it to the step ``atlas``.

    Returns
    -------
    JSON in one line: ``config``, every key of :data:`KEYS` with its value, and of ``integrate``
    what decides the mixed components if the atlas has them, and ``plates`` in the order of the
    sheet, each with ``plate``, ``path`` and ``labels``. Equal settings give equal text.
    """
    rows = [{"plate": p.plate, "path": p.path, "labels": p.labels} for p in plates]
    settings = config.model_dump(mode="json", include=set(KEYS))
    if config.integrate and config.integrate.cells == "all":
        # What mixes the cells; how they are looked at is a later step's.
        settings["integrate"] = config.integrate.model_dump(exclude={"umap", "label"})
    return _line({"config": settings, "plates": rows})


def record(made_by: str, manifests: Path) -> dict[str, Any]:
    """The record of an atlas whose steps have left their manifests.

    Parameters
    ----------
    made_by
        Text of :func:`recipe`.
    manifests
        Folder of the manifests of a run.

    Returns
    -------
    For ``uns['scatlas']``: ``version``, ``seed``, ``backend`` (``cpu``, ``gpu``, or both), and as
    JSON ``config``, ``plates`` (with the content of each as loaded, :data:`CONTENT`) and
    ``versions`` of the packages. Where steps ran with several versions all of them are named.
    """
    decided = json.loads(made_by)
    plates = []
    for row in decided["plates"]:
        loaded = json.loads((manifests / "load" / f"{row['plate']}.json").read_text("utf-8"))
        plates.append({**row, **{name: loaded[name] for name in CONTENT}})
    names = [row["plate"] for row in plates]
    plate_steps, atlas_steps = list(PLATE_STEPS), list(ATLAS_STEPS)
    if decided["config"]["doublets"]:
        plate_steps.append("doublets")
    if "integrate" in decided["config"]:
        atlas_steps.append("harmony")
    runs = list(_runs(manifests, names, plate_steps, atlas_steps))
    versions = [
        pair
        for run in runs
        for part in (run, run.get("gpu", {}))
        for pair in part.get("versions", {}).items()
    ]
    return {
        "version": __version__,
        "seed": decided["config"]["seed"],
        "backend": ", ".join(sorted({run["backend"] for run in runs if "backend" in run})),
        "config": _line(decided["config"]),
        "plates": _line(plates),
        "versions": _line({name: _all_of(name, versions) for name, _ in versions}),
    }


def read_record(atlas: Path) -> dict[str, Any]:
    """The record of an atlas, its JSON decoded.

    Raises
    ------
    InputError
        There is no atlas, or one without a record.
    """
    # Half a second to import, which the workflow does without while it reads its rules.
    import zarr
    from anndata.io import read_elem

    if not (atlas / "zarr.json").is_file():
        msg = f"{atlas}: there is no atlas.zarr here: correct the path"
        raise InputError(msg)
    root = zarr.open_group(atlas, mode="r")
    if "uns/scatlas" not in root:
        msg = (
            f"{atlas} does not say how it was made (no uns['scatlas']): only an atlas.zarr of the "
            "workflow does"
        )
        raise InputError(msg)
    found = read_elem(root["uns/scatlas"])
    decoded = {name: json.loads(found[name]) for name in ("config", "plates", "versions")}
    return {**found, "seed": int(found["seed"]), **decoded}


def _runs(
    manifests: Path,
    plates: Iterable[str],
    plate_steps: Iterable[str],
    atlas_steps: Iterable[str],
) -> Iterable[dict[str, Any]]:
    """Run records of the steps behind an atlas."""
    names = [f"{step}/{plate}" for plate in plates for step in plate_steps]
    for name in (*names, *atlas_steps):
        file = run_record(manifests / f"{name}.json")
        if file.is_file():
            yield json.loads(file.read_text("utf-8"))
        else:
            logger.info("%s is missing: the record leaves out the versions of this step", file)


def _all_of(name: str, versions: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted({str(version) for known, version in versions if known == name}))


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
