"""Sections of the config as an option of a script: ``--config '{"hvg": {"n_top_genes": 800}}'``."""

from __future__ import annotations

import argparse
import json
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from scatlas.errors import ConfigError
from scatlas.workflow.config.messages import explain

if TYPE_CHECKING:
    from typing import TypeVar

    Model = TypeVar("Model", bound=BaseModel)


def add_sections(parser: argparse.ArgumentParser, **models: type[BaseModel]) -> None:
    """Add the option ``--config`` for sections by their names, with the meaning of each key."""
    keys = [
        f"{name}.{key}: {field.description} (default: {json.dumps(field.default)})"
        for name, model in models.items()
        for key, field in model.model_fields.items()
    ]
    parser.add_argument(
        "--config",
        type=partial(_sections_of, names=set(models)),
        default={},
        metavar="JSON",
        help="; ".join(["keys of the config that differ from the defaults", *keys]).replace(
            "%", "%%"
        ),
    )


def read_section(args: argparse.Namespace, name: str, model: type[Model]) -> Model:
    """Read a section from parsed options; a ConfigError names each key that is out of bounds."""
    try:
        return model.model_validate(args.config.get(name, {}))
    except ValidationError as error:
        problems = explain(error, model, name=lambda keys: ".".join([name, *keys]))
        raise ConfigError("; ".join(problems)) from None


def sections_option(**sections: BaseModel | None) -> str:
    """Write sections as a shell-quoted option, from which equal ones are read; None is left out."""
    given = {
        name: part.model_dump(mode="json") for name, part in sections.items() if part is not None
    }
    return shlex.join(["--config", json.dumps(given)])


def _sections_of(text: str, *, names: set[str]) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        msg = f"{text!r} is no JSON ({error}): write for example " + '\'{"pca": {"n_comps": 50}}\''
        raise argparse.ArgumentTypeError(msg) from None
    if not isinstance(found, dict) or set(found) - names:
        msg = f"{text!r}: give sections by their names: {', '.join(sorted(names))}"
        raise argparse.ArgumentTypeError(msg)
    return found
