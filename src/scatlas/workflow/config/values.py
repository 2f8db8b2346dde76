"""Types of the values of keys, and the base of all sections."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MIN_BLOCK_BUDGET = 16_000_000  # bytes
MIN_MEMORY_LIMIT = 1_000_000_000  # bytes
# Where the counts of a file are.
COUNTS = r"^(X|raw|(layers|genome)/[^/]+)$"


# Strict: YAML has real numbers, so true and 3.0 are mistakes where a count belongs. All values of
# Snakemake's `--config section='{key: 2000}'` are text: see `Section`.

Text = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Percent = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


def _check_query(query: str) -> str:
    query_columns(query)
    return query


def check_block_budget(text: str) -> str:
    if text == "auto":
        return text
    too_small = "is too small: give at least 16MB"
    return _check_size(text, MIN_BLOCK_BUDGET, too_small, examples="256MB or 1GB")


def _check_memory_limit(text: str) -> str:
    too_small = "is too little for a GPU: give at least 1GB"
    return _check_size(text, MIN_MEMORY_LIMIT, too_small, examples="20GB")


def _check_size(text: str, min_bytes: int, too_small: str, *, examples: str) -> str:
    from scatlas._util.numbers import parse_bytes

    try:
        n_bytes = parse_bytes(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a size: write for example {examples}") from None
    if n_bytes < min_bytes:
        raise ValueError(f"{text!r} {too_small}")
    return text


def _check_min_plates(value: Any) -> Any:
    if value is None:
        return None
    is_list = isinstance(value, list)
    value = [number_of(entry) for entry in value] if is_list else number_of(value)
    for entry in value if is_list and value else [value]:
        is_number = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 1
        is_share = isinstance(entry, str) and re.fullmatch(r"\d+(\.\d+)?%", entry)
        if not is_number and not (is_share and 0 < float(entry[:-1]) <= 100):
            raise ValueError(
                f"{entry!r} is neither a number of plates (at least 1) nor a share of them: write "
                "for example 3, 10% or [3, 10%]"
            )
    return value


def expand_home(path: str) -> str:
    """A path with ``~`` and ``~name`` replaced by the home; ValueError if it is not known."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        user = path.partition("/")[0]
        msg = f"{path!r}: the home of {user} is not known; write the path in full"
        raise ValueError(msg) from None


def local_file(path: str) -> str:
    if "://" in path:
        msg = f"{path!r} is an address: copy the file to this machine, it is read several times"
        raise ValueError(msg)
    return path


LocalPath = Annotated[Text, AfterValidator(expand_home), AfterValidator(local_file)]


def _check_map_memory(text: str) -> str:
    too_small = "is too little for a map: give at least 1GB"
    return _check_size(text, MIN_MEMORY_LIMIT, too_small, examples="16GB")


# Endings of files with a gene per line; names of genes may have dots and slashes.
_LISTS = (".txt", ".tsv", ".csv")
_MAX_NAMES = 5_000  # all names are part of the commands of steps


def _read_names(entries: list[str]) -> list[str]:
    """Names of genes; those of a file in its place."""
    names: dict[str, None] = {}
    for entry in entries:
        if not entry.endswith(_LISTS):
            names[entry] = None
            continue
        path = Path(expand_home(local_file(entry)))
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = "is no text" if isinstance(error, ValueError) else "cannot be read"
            msg = f"{entry!r} {reason}: name genes, or a text file with a gene in each line"
            raise ValueError(msg) from None
        found = [name for line in lines if (name := re.split(r"[\t,]", line)[0].strip())]
        if not found:
            raise ValueError(f"{entry!r} names no gene: write one in each line")
        names |= dict.fromkeys(found)
    if len(names) > _MAX_NAMES:
        raise ValueError(f"{len(names):,} genes are named: name {_MAX_NAMES:,} at most")
    return list(names)


def _check_gene_choice(value: Any) -> Any:
    if value is None or value in ("auto", "all", "atlas"):
        return value
    names = [value] if isinstance(value, str) and value.endswith(_LISTS) else value
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return _read_names(names)
    raise ValueError(
        f"{value!r} is neither auto, all nor atlas, nor a list of genes: write for example "
        "[CD3D, MS4A1]"
    )


MinPlates = Annotated[
    Positive | Text | list[Positive | Text] | None, BeforeValidator(_check_min_plates)
]
GeneChoice = Annotated[
    Literal["auto", "all", "atlas"] | list[Text] | None, BeforeValidator(_check_gene_choice)
]
GeneNames = Annotated[list[Text], AfterValidator(_read_names)]
Query = Annotated[Text, AfterValidator(_check_query)]
GpuMemory = Annotated[Text, AfterValidator(_check_memory_limit)]
MapMemory = Annotated[Text, AfterValidator(_check_map_memory)]


def described(default: Any, *lines: str, **more: Any) -> Any:
    """A key with its default and what it means, in lines; ``more`` as in pydantic's Field."""
    return Field(default, description=" ".join(lines), **more)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, data: Any) -> Any:
        """Take text as a number, a flag or null where the key is one; one name is a list of one."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: _value_of(value, fields[key].annotation) if key in fields else value
            for key, value in data.items()
        }


def _value_of(value: Any, annotation: Any) -> Any:
    kinds = _kinds(annotation)
    if isinstance(value, str) and list in kinds and str not in kinds:
        return [value]
    return number_of(value) if kinds and str not in kinds else value


def number_of(value: Any) -> Any:
    """The number, flag or null that YAML reads a text as; other values as they are."""
    if not isinstance(value, str):
        return value
    import yaml

    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return found if found is None or isinstance(found, bool | int | float) else value


def _kinds(annotation: Any) -> set[type]:
    """Types of a key's values: str, int, float, bool, list, and models."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation))) - {NoneType}
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    return {origin or annotation}


_STRING_LITERALS = re.compile(r"'(?:\\.|[^'\\])*'" + "|" + r'"(?:\\.|[^"\\])*"')


def query_columns(query: str) -> list[str]:
    """Name the obs columns that a pandas query reads, in order of first use; ValueError if the text
    is not a query, or names no column. Names that are not identifiers are in backticks.
    """
    tree, quoted = _parse(query)
    names = sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.Name)),
        key=lambda node: (node.lineno, node.col_offset),
    )
    columns = list(dict.fromkeys(quoted.get(node.id, node.id) for node in names))
    if not columns:
        raise ValueError(f"{query!r} names no obs column: write for example pass_filter == 'full'")
    return columns


def decides_each_cell_alone(query: str) -> bool:
    """Whether the answer for a cell depends on its own values alone. Methods of a column, such as
    ``total_counts.median()``, may read all cells.
    """
    tree, _ = _parse(query)
    return not any(isinstance(node, ast.Attribute | ast.Call) for node in ast.walk(tree))


def _parse(query: str) -> tuple[ast.Expression, dict[str, str]]:
    """Syntax tree of a query, and the column names that its placeholders stand for."""
    quoted: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        name = f"_quoted_{len(quoted)}_"
        quoted[name] = match[1]
        return name

    text = re.sub(r"`([^`]+)`", placeholder, query.strip())
    text = _STRING_LITERALS.sub("''", text)
    text = text.replace("&", " and ").replace("|", " or ")  # as pandas reads them
    if re.search(r"(?<![=!<>])=(?!=)", text):
        raise ValueError(f"{query!r} is not a query: compare with == instead of =")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        msg = f"{query!r} is not a query: write for example pass_filter == 'full'"
        raise ValueError(msg) from None
    return tree, quoted
