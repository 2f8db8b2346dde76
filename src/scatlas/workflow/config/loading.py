"""Read a config and its plates, and check them, alone and together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from scatlas.errors import ConfigError, InputError
from scatlas.workflow.config.messages import explain
from scatlas.workflow.config.plate_sheet import Plate, as_plate_name, read_plates
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    from collections.abc import Iterable


def load(source: Mapping[str, Any] | Path | str) -> Config:
    """Read and check a config, a file or its content, with the defaults of missing keys; a
    ConfigError has one sentence for each problem: the key, its value and what is allowed.
    """
    if isinstance(source, Mapping):
        data, where = dict(source), "config"
    else:
        data, where = _read_yaml(Path(source)), str(source)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = explain(error, Config)
        if len(problems) == 1:
            msg = f"{where}: {problems[0]}"
        else:
            msg = "\n- ".join([f"{where} has {len(problems)} problems:", *problems])
        raise ConfigError(msg) from None


def check_plates(config: Config, plates: Sequence[Plate]) -> None:
    """Refuse a config that cannot give an atlas of these plates: ``consensus.min_plates`` is above
    the number of plates, or ``pca.n_comps`` above the number of genes that they can agree on.
    """
    n, min_plates = len(plates), config.consensus.min_plates_of(len(plates))
    if min_plates > n:
        raise ConfigError(
            f"consensus.min_plates is {min_plates}, but {config.plates.place} has "
            f"{n} plate{'s' * (n != 1)}: no gene could be chosen; give at most {n}, or null"
        )
    # Each gene of the atlas takes min_plates of the plates' n_top_genes votes.
    max_genes = config.hvg.n_top_genes * n // min_plates
    wanted = config.consensus.n_top_genes_of(config.hvg)
    if wanted is not None and config.pca.n_comps > wanted:
        raise ConfigError(
            f"pca.n_comps is {config.pca.n_comps}, but the atlas has at most {wanted} genes "
            "(consensus.n_top_genes); compute fewer components or choose more genes"
        )
    if config.pca.n_comps > max_genes:
        raise ConfigError(
            f"pca.n_comps is {config.pca.n_comps}, but the atlas has at most {max_genes} genes: "
            f"hvg.n_top_genes ({config.hvg.n_top_genes}) of each of {n} plates, agreed "
            f"on by consensus.min_plates ({min_plates}); compute fewer components "
            "or raise hvg.n_top_genes"
        )


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML as Snakemake reads it, except that a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                raise ConfigError(f"key {name!r} is given twice, on lines {seen[name]} and {line}")
            seen[name] = line
        return super().construct_mapping(node, deep=deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text("utf-8-sig"), _Loader)  # a SafeLoader
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such config file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give a config file") from None
    except UnicodeDecodeError:
        msg = f"{path} is not a text file: save the config as plain text (UTF-8)"
        raise ConfigError(msg) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; keep one of them") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        hint = "indent with spaces, not tabs" if "\\t" in problem else "check colons and indents"
        raise ConfigError(f"{path}{line}: not valid YAML ({problem}); {hint}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        msg = f"{path}: a config is a list of 'key: value' lines, not {type(data).__name__}"
        raise ConfigError(msg)
    return data


# Folder of the list of samples, in the folder where Snakemake is started.
_LISTS = Path(".snakemake/scatlas")


class Sample(Plate):
    """A plate that is one ``sample`` of a file; ``path`` is the file of all samples. `load` may
    read the sample from the file itself, without `split`.
    """

    sample: str
    is_read_in_place: bool = False


def sample_plates(config: Config, *, is_main: bool) -> list[Sample]:
    """The samples of a file as plates, in the order of their first cells; the main process of
    Snakemake stores the list, and the jobs of a cluster read it.
    """
    from scatlas.io.files.checksums import text_digest, write_json
    from scatlas.io.files.listing import stamp

    path, by, source = str(config.plates.path), str(config.plates.by), config.source
    key = json.dumps([path, by, source.counts, source.lists])
    file = _LISTS / f"samples-{text_digest(key.encode())[:16]}.json"
    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if not found or (is_main and found["stamp"] != stamp(path)):
        # Opens the file, half a second.
        from scatlas.io.files.cell_files import ListColumns
        from scatlas.io.matrices.counts_source import find_source
        from scatlas.io.matrices.source import Wanted
        from scatlas.io.products.split_samples import list_samples

        before = stamp(path)
        samples = list_samples(path, by)
        lists = ListColumns(**json.loads(source.lists or "{}"))
        with find_source(path, Wanted(source.counts, lists=lists)) as opened:
            in_place = opened.is_ordered(by, len(samples))
        found = {"stamp": before, "samples": list(samples.items()), "in_place": in_place}
        write_json(file, found)
    sizes = dict(found["samples"])
    return [
        Sample(
            plate=name,
            path=path,
            n_cells=sizes[sample],
            labels={},
            sample=sample,
            is_read_in_place=found["in_place"],
        )
        for sample, name in plate_names(sizes, f"{path}: obs[{by!r}]").items()
    ]


def plate_names(samples: Iterable[str], where: str) -> dict[str, str]:
    """Name of the plate of each sample, in which underscores replace characters that a folder
    cannot have. Two samples of one plate are an error that begins with ``where``.
    """
    names: dict[str, str] = {}
    sample_of: dict[str, str] = {}
    for sample in samples:
        name = as_plate_name(sample)
        if name in sample_of:
            raise ConfigError(
                f"{where}: the samples {sample_of[name]!r} and {sample!r} would both be plate "
                f"{name!r}: rename one"
            )
        names[sample], sample_of[name] = name, sample
    return names


def read_config(path: Path) -> Config:
    """Read and check a config, which must exist."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such config: write it with scatlas init FILES")
    return load(path)


def read_project(path: Path) -> tuple[Config, list[Plate]]:
    """Read and check a config and its plates."""
    config = read_config(path)
    if config.plates.by:
        return config, [*sample_plates(config, is_main=True)]
    plates = read_plates(config.plates.sheet)
    if not config.atlas:  # else the atlas decides what its config leaves open
        check_plates(config, plates)
    return config, plates
