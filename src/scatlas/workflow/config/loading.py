"""Read a config file and check it, alone and against the plate sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from scatlas.errors import ConfigError
from scatlas.workflow.config.messages import explain
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    from scatlas.workflow.config.plate_sheet import Plate


def load(source: Mapping[str, Any] | Path | str) -> Config:
    """Read and check a config, a YAML file or its content (Snakemake's ``config``), and add the
    defaults of missing keys. A ConfigError has one sentence for each problem: the key, its value
    and what is allowed.
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
        msg = (
            f"consensus.min_plates is {min_plates}, but {config.plates.place} has "
            f"{n} plate{'s' * (n != 1)}: no gene could be chosen; give at most {n}, or null"
        )
        raise ConfigError(msg)
    # Each gene of the atlas takes min_plates of the plates' n_top_genes votes.
    max_genes = config.hvg.n_top_genes * n // min_plates
    wanted = config.consensus.n_top_genes_of(config.hvg)
    if wanted is not None and config.pca.n_comps > wanted:
        msg = (
            f"pca.n_comps is {config.pca.n_comps}, but the atlas has at most {wanted} genes "
            "(consensus.n_top_genes); compute fewer components or choose more genes"
        )
        raise ConfigError(msg)
    if config.pca.n_comps > max_genes:
        msg = (
            f"pca.n_comps is {config.pca.n_comps}, but the atlas has at most {max_genes} genes: "
            f"hvg.n_top_genes ({config.hvg.n_top_genes}) of each of {n} plates, agreed "
            f"on by consensus.min_plates ({min_plates}); compute fewer components "
            "or raise hvg.n_top_genes"
        )
        raise ConfigError(msg)


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML as Snakemake reads it, except that a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                msg = f"key {name!r} is given twice, on lines {seen[name]} and {line}"
                raise ConfigError(msg)
            seen[name] = line
        return super().construct_mapping(node, deep=deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text("utf-8-sig"), _Loader)  # a SafeLoader
    except FileNotFoundError:
        msg = f"{path}: there is no such config file"
        raise ConfigError(msg) from None
    except IsADirectoryError:
        msg = f"{path} is a folder: give a config file"
        raise ConfigError(msg) from None
    except UnicodeDecodeError:
        msg = f"{path} is not a text file: save the config as plain text (UTF-8)"
        raise ConfigError(msg) from None
    except ConfigError as error:
        msg = f"{path}: {error}; keep one of them"
        raise ConfigError(msg) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        hint = "indent with spaces, not tabs" if "\\t" in problem else "check colons and indents"
        msg = f"{path}{line}: not valid YAML ({problem}); {hint}"
        raise ConfigError(msg) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        msg = f"{path}: a config is a list of 'key: value' lines, not {type(data).__name__}"
        raise ConfigError(msg)
    return data
