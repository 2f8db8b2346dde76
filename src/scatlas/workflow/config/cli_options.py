"""Sections of the config as command-line options of the scripts, and back."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from scatlas.errors import ConfigError
from scatlas.workflow.config.messages import explain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    from pydantic.fields import FieldInfo

    Model = TypeVar("Model", bound=BaseModel)

_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def add_options(
    parser: argparse.ArgumentParser, model: type[BaseModel], *, prefix: str = ""
) -> None:
    """Add one option for each field of a section of the config, with its type, default and
    description.

    ``min_genes: int | None`` becomes ``--min-genes N``; a boolean becomes ``--x`` and ``--no-x``; a
    list repeats its option per entry. A list or optional field with a non-empty default gets
    ``--no-x``, which empties it. A ``prefix`` (``--scale-zero-center``) is for models that share
    names.
    """
    group = parser.add_argument_group(model.__name__, model.__doc__)
    for name, field in model.model_fields.items():
        kind = _option_type(field)
        flag, dest = _option_flag(name, prefix), _option_dest(name, prefix)
        default = _default(field)
        text = (field.description or "").replace("%", "%%") + " (default: %(default)s)"
        if kind.type is bool:
            # Else Python 3.11 and 3.12 would add the default to the help twice.
            action, hidden = argparse.BooleanOptionalAction, argparse.SUPPRESS
            group.add_argument(flag, dest=dest, action=action, default=hidden, help=text)
            parser.set_defaults(**{dest: default})
            continue
        group.add_argument(
            flag,
            dest=dest,
            type=kind.type,
            default=default,
            choices=kind.choices,
            metavar=None if kind.choices else _METAVARS[kind.type],
            action=_ReplaceDefault if kind.is_list else "store",
            help=text,
        )
        if (kind.optional or kind.is_list) and not _is_empty(default):
            group.add_argument(
                _option_flag(name, prefix, no=True),
                dest=dest,
                action="store_const",
                const=[] if kind.is_list else None,
                default=argparse.SUPPRESS,
                help=f"empty {flag}",
            )


def from_options(namespace: argparse.Namespace, model: type[Model], *, prefix: str = "") -> Model:
    """Read a model from parsed options; a ConfigError names each that is out of bounds."""
    values = {name: getattr(namespace, _option_dest(name, prefix)) for name in model.model_fields}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = explain(error, model, name=lambda loc: _option_flag(loc[0], prefix))
        raise ConfigError("; ".join(problems)) from None


def options(instance: BaseModel, *, prefix: str = "") -> str:
    """Write a model as shell-quoted options, which `from_options` turns into an equal model."""
    words: list[str] = []
    for name, field in type(instance).model_fields.items():
        value = getattr(instance, name)
        flag = _option_flag(name, prefix)
        if isinstance(value, bool):
            words.append(_option_flag(name, prefix, no=not value))
        elif _is_empty(value):
            if not _is_empty(_default(field)):
                words.append(_option_flag(name, prefix, no=True))
        else:
            entries = value if isinstance(value, list) else [value]
            # With `=`, argparse does not read a value that begins with a dash as an option.
            words += [f"{flag}={entry}" for entry in entries]
    return shlex.join(words)


class _ReplaceDefault(argparse.Action):
    """Collect a list without the entries of its default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        given = getattr(namespace, self.dest)
        given = [] if given is self.default or given is None else given
        setattr(namespace, self.dest, [*given, values])


class _OptionType(NamedTuple):
    type: type
    optional: bool
    is_list: bool
    choices: Sequence[Any] | None


def _option_type(field: FieldInfo) -> _OptionType:
    annotation = _without_annotations(field.annotation)
    optional, is_list, choices = False, False, None
    if get_origin(annotation) in {Union, UnionType}:
        parts = [_without_annotations(part) for part in get_args(annotation)]
        optional = NoneType in parts
        others = [part for part in parts if part is not NoneType]
        annotation = others[0] if len(others) == 1 else annotation
    if get_origin(annotation) is list and not optional:  # None and [] would read the same
        is_list, annotation = True, _without_annotations(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        annotation = type(choices[0])
    if annotation not in {*_METAVARS, bool} or (annotation is bool and (optional or is_list)):
        msg = f"no option can hold a value of type {field.annotation}"
        raise TypeError(msg)
    return _OptionType(annotation, optional, is_list, choices)


def _without_annotations(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _is_empty(value: Any) -> bool:
    return value is None or value == []


def _option_dest(name: str, prefix: str) -> str:
    return f"{prefix}_{name}" if prefix else name


def _option_flag(name: str, prefix: str, *, no: bool = False) -> str:
    return f"--{'no-' * no}{_option_dest(name, prefix).replace('_', '-')}"
