"""Config of new plates on a finished atlas: the settings of its record, and checks before a run,
without zarr-python and anndata, because each job of a cluster parses the rules again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas._version import __version__
from scatlas.errors import ConfigError, InputError
from scatlas.io.files.read_errors import read_error, reading
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scatlas.workflow.config.plate_sheet import Plate

# Keys that new plates may set; all others are those of the atlas.
OWN_KEYS = ("plates", "outdir", "atlas", "backend", "source", "new_plates", "report", "compute")
# Settings of the atlas that have no meaning for new plates.
_NOT_FOR_NEW_PLATES = ("integrate", "pseudobulk", "labels")
_COMPONENTS = ("varm/PCs", "obsm/X_pca", "uns/pca/params/zero_center")
_MAP = ("obsm/X_umap", "obs/leiden", "uns/umap/params/a", "uns/umap/params/b")
_LABELS = {"categorical", "string-array", "nullable-string-array", "nullable-boolean"}


@dataclass(frozen=True)
class FinishedAtlas:
    """An atlas.zarr: the Zarr metadata of its elements by key (such as ``obs/leiden``), and of its
    record the version of scatlas, the settings and the plates.
    """

    path: Path
    nodes: Mapping[str, Mapping[str, Any]]
    version: str
    config: dict[str, Any]
    plates: list[dict[str, Any]]

    @classmethod
    def open(cls, path: Path) -> FinishedAtlas:
        """Read metadata and record of an atlas that this version can extend."""
        from scatlas.io.files.local_zarr import current_nodes  # for such runs alone

        try:
            document = json.loads((path / "zarr.json").read_bytes())
            nodes = current_nodes(path, document) or {}
            is_anndata = document["attributes"]["encoding-type"] == "anndata"
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            is_anndata = False
        except OSError as error:
            raise read_error(str(path), "its metadata", error) from error
        if not is_anndata:
            raise InputError(f"atlas: {path} is no atlas.zarr of scatlas: correct the path")
        if "uns/scatlas" not in nodes:
            raise InputError(
                f"atlas: {path} has no record of its settings (uns['scatlas']): give an "
                "atlas.zarr of the workflow"
            )
        version, config, plates = (
            _stored_text(path / "uns/scatlas" / name) for name in ("version", "config", "plates")
        )
        if int(version.partition(".")[0]) > int(__version__.partition(".")[0]):
            raise InputError(
                f"atlas: {path} was made with scatlas {version}, but this is {__version__}: "
                "update scatlas"
            )
        return cls(path, nodes, version, json.loads(config), json.loads(plates))

    def check(self, columns: Sequence[str]) -> None:
        """Refuse an atlas that lacks what new cells need: components, a map of all cells, or one of
        the ``columns`` of obs whose labels they get.
        """
        for needed, what, mend in (
            (_COMPONENTS, "components", "build it again"),
            (_MAP, "map of all cells", "build it with map.cells: all"),
        ):
            lacks = next((key for key in needed if key not in self.nodes), None)
            if lacks:
                raise InputError(f"atlas: {self.path} has no {what} (it lacks {lacks}): {mend}")
        for name in columns:
            known = self.nodes["obs"]["attributes"]["column-order"]
            if name not in known:
                raise InputError(
                    f"new_plates.obs: {self.path} has no obs column {name!r}; it has "
                    f"{', '.join(known)}"
                )
            if self.nodes[f"obs/{name}"]["attributes"].get("encoding-type") not in _LABELS:
                raise InputError(
                    f"new_plates.obs: obs[{name!r}] of {self.path} holds numbers, of which there "
                    "is no vote: name columns of labels"
                )


def load_new_plates(given: Mapping[str, Any], atlas: FinishedAtlas) -> Config:
    """Config of new plates: own keys, and the settings of the atlas, which none may contradict."""
    wanted = load(given)
    if wanted.plates.skips:
        raise ConfigError(
            "plates.on_error is skip, but new plates do not depend on each other: remove the key, "
            "and run snakemake with --keep-going"
        )
    settings = {k: v for k, v in atlas.config.items() if k not in _NOT_FOR_NEW_PLATES}
    made_with = load(settings)
    if made_with.map.use:
        raise ConfigError(
            f"atlas: the map of {atlas.path} is of obsm[{made_with.map.use_rep!r}] from another "
            "method (map.use), which new plates lack: build the atlas again with the new plates"
        )
    for key in Config.model_fields:
        if key in OWN_KEYS or key not in given:
            continue
        mine, theirs = (getattr(config, key) for config in (wanted, made_with))
        for name, value, own in _differences(key, mine, theirs, given[key]):
            raise ConfigError(
                f"{name} is {_as_text(value)} in the config, but {_as_text(own)} in the record of "
                f"{atlas.path}: new plates need the settings of their atlas, so remove the key"
            )
    own = {key: given[key] for key in OWN_KEYS if key in given}
    # The genes of new plates are compared with those of the atlas, not with each other.
    return load({**settings, **own, "genes": "intersect"})


def check_new_plates(config: Config, plates: Sequence[Plate], atlas: FinishedAtlas) -> None:
    """Refuse plates or columns that the atlas has already, and results in its folder."""
    known = {plate["plate"] for plate in atlas.plates}
    for plate in plates:
        if plate.plate in known:
            raise ConfigError(
                f"{config.plates.place}: plate {plate.plate!r} is the name of a plate of "
                f"{atlas.path}: give the new plate another name"
            )
    labels = {label for plate in plates for label in plate.labels}
    for name in config.new_plates.obs:
        if taken := labels & {name, f"{name}_share"}:
            raise ConfigError(
                f"{config.plates.place}: new_plates.obs has {name!r}, so the step map_plate writes "
                f"a column {min(taken)!r} for each cell: rename that column of the sheet"
            )
    types = config.annotate.columns if config.annotate else []
    if twice := next((name for name in types if name in config.new_plates.obs), None):
        raise ConfigError(
            f"new_plates.obs has {twice!r}, which new cells get by the classifier of their atlas: "
            "remove it there"
        )
    if config.address:
        raise ConfigError(
            f"outdir: {config.outdir} is an address: with atlas, name a local folder, and copy the "
            "results there yourself"
        )
    if Path(config.outdir).resolve() in atlas.path.resolve().parents:
        raise ConfigError(
            f"outdir: {config.outdir} holds the atlas {atlas.path}, which stays as it is: name "
            "another folder"
        )


def _differences(key: str, mine: Any, theirs: Any, given: Any) -> Iterator[tuple[str, Any, Any]]:
    """Keys that a config gives with another value than the atlas, with both values."""
    if hasattr(mine, "model_fields_set") and hasattr(theirs, "model_fields_set"):
        for name in given or {}:
            yield from _differences(
                f"{key}.{name}", getattr(mine, name), getattr(theirs, name), given[name]
            )
    elif mine != theirs:
        yield key, mine, theirs


def _as_text(value: Any) -> str:
    if hasattr(value, "model_dump"):
        value = value.model_dump(exclude_none=True)
    return json.dumps(value, ensure_ascii=False)


def _stored_text(array: Path) -> str:
    """A text of a store as scatlas writes it: one chunk."""
    with reading(str(array), "the record"):
        from numcodecs import VLenUTF8, Zstd

        (text,) = VLenUTF8().decode(Zstd().decode((array / "c").read_bytes()))
    return str(text)
