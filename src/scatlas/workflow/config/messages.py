"""Sentences for users about the problems of a config."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Schema = dict[str, Any]


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    name: Callable[[tuple[str, ...]], str] = ".".join,
) -> list[str]:
    """Translate pydantic's error of ``model.model_validate`` to one sentence for each key; ``name``
    turns its path into its name for users, by default dotted (``qc.min_genes``).
    """
    schema = inline(model.model_json_schema())
    sentences: dict[tuple[str, ...], str] = {}
    for item in error.errors(include_url=False):
        loc = tuple(str(part) for part in item["loc"])
        if loc in sentences:  # another branch of the same value
            continue
        if item["type"] in {"extra_forbidden", "invalid_key"}:
            sentences[loc] = _unknown_key(loc, schema, name)
        elif item["type"] == "value_error":
            prefix = f"{name(loc)}: " if loc else ""
            sentences[loc] = f"{prefix}{item['ctx']['error']}"
        elif item["type"] == "missing":
            sentences[loc] = f"{name(loc)} is missing; it must be {allowed(subschema(schema, loc))}"
        else:
            value, key_schema = item["input"], subschema(schema, loc)
            sentences[loc] = (
                f"{name(loc)} is {_format_value(value)}; it must be {allowed(key_schema)}"
                f"{_number_hint(value, key_schema)}"
            )
    return list(sentences.values())


def inline(schema: Schema) -> Schema:
    """Replace references by their definitions and drop pydantic's titles."""
    definitions = schema.get("$defs", {})

    def walk(node: Any, *, names: bool = False) -> Any:
        if isinstance(node, list):
            return [walk(part) for part in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[1]]
            node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
        return {
            key: walk(value, names=key == "properties")
            for key, value in node.items()
            # `names`: the keys of this node are config keys, and one could be called title.
            if names or key not in {"title", "$defs"}
        }

    return walk(schema)


def branches(schema: Schema) -> list[Schema]:
    """The alternatives of a value, null last."""
    parts = schema.get("anyOf", [schema])
    if "anyOf" in schema and "examples" in schema:
        parts = [{**part, "examples": schema["examples"]} for part in parts]
    return sorted(parts, key=lambda part: part.get("type") == "null")


def properties(schema: Schema) -> dict[str, Schema]:
    """Keys of a section; empty for any other value."""
    for part in branches(schema):
        if "properties" in part:
            return part["properties"]
    return {}


def subschema(schema: Schema, loc: tuple[str, ...]) -> Schema:
    """The part of a schema that describes one key."""
    for part in loc:
        keys = properties(schema)
        if part in keys:
            schema = keys[part]
        else:
            schema = next((s["items"] for s in branches(schema) if "items" in s), schema)
    return schema


def allowed(schema: Schema) -> str:
    """Which values a key takes, in words.

    >>> allowed({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'a whole number of at least 1, or null'
    """
    *first, last = (_allowed_values(part) for part in branches(schema))
    return f"{', '.join(first)}, or {last}" if first else last


def _allowed_values(schema: Schema) -> str:
    if "enum" in schema:
        *first, last = (str(value) for value in schema["enum"])
        return f"{', '.join(first)} or {last}" if first else last
    kind = schema["type"]
    if kind in {"integer", "number"}:
        return ("a whole number" if kind == "integer" else "a number") + _range(schema)
    if kind == "array":
        some = " of at least one entry" if schema.get("minItems") else ""
        return f"a list{some}, each entry {allowed(schema['items'])}"
    if kind == "object":
        return f"a section with the keys {', '.join(schema.get('properties', {}))}"
    if kind == "string" and "examples" in schema:
        return f"text such as {' or '.join(schema['examples'])}"
    return {"string": "text", "boolean": "true or false", "null": "null"}[kind]


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {_format_number(low)} to {_format_number(high)}"
    if low is not None:
        return f" of at least {_format_number(low)}"
    if "exclusiveMinimum" in schema:
        above = f" above {_format_number(schema['exclusiveMinimum'])}"
        top = schema.get("exclusiveMaximum")
        return above if top is None else f"{above} and below {_format_number(top)}"
    return ""


def _format_number(value: float) -> str:
    return f"{value:.15g}"


def _format_value(value: Any) -> str:
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), repr(value))
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number_hint(value: Any, schema: Schema) -> str:
    """Hint for 1e6, 1,000 and "5", which YAML reads as text."""
    if not isinstance(value, str):
        return ""
    if not any(part.get("type") in {"integer", "number"} for part in branches(schema)):
        return ""
    try:
        number = float(value.replace(",", "").replace(" ", "").replace("_", ""))
    except ValueError:
        return ""
    return f" (this is read as text: write {number:.15g} without quotes)"


def _key_paths(schema: Schema, loc: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, part in properties(schema).items():
        yield (*loc, key)
        yield from _key_paths(part, (*loc, key))


def _unknown_key(
    loc: tuple[str, ...], schema: Schema, name: Callable[[tuple[str, ...]], str]
) -> str:
    *section, key = loc
    known = list(properties(subschema(schema, tuple(section))))
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    other_paths = [
        path for path in _key_paths(schema) if path[-1] == key and path[:-1] != (*section,)
    ]
    where = f" in {name(tuple(section))}" if section else ""
    if near:
        hint = f"did you mean {by_lower[near[0]]!r}? "
    elif other_paths:
        path = other_paths[0]
        place = f"in section {name(path[:-1])}" if len(path) > 1 else "at the top level"
        hint = f"it belongs {place}; "
    else:
        hint = ""
    return f"unknown key {key!r}{where}: {hint}known keys: {', '.join(known)}"
