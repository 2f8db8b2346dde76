"""The table of all keys of the config, and the JSON schemas for editors, from its sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from scatlas.workflow.config.generate import WIDTH, inline_yaml, meaning
from scatlas.workflow.config.messages import branches, inline, properties
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.workflow.config.messages import Schema


def key_table() -> str:
    """Markdown table of every key, its default and its meaning."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key, default, schema in leaves(inline(Config.model_json_schema())):
        lines.append(f"| `{key}` | `{inline_yaml(default)}` | {meaning(schema)} |")
    return "\n".join(lines)


def leaves(schema: Schema, above: str = "") -> Iterator[tuple[str, Any, Schema]]:
    """Each key, also those of sections, with its default and its schema."""
    for key, part in properties(schema).items():
        name = f"{above}{key}"
        if part.get("type") != "object":
            yield name, part["default"], part
        if any("properties" in branch for branch in branches(part)):
            yield from leaves(part, f"{name}.")


def schema_files() -> dict[str, str]:
    """JSON schemas for editors, by file name."""
    schemas = {"config": config_schema(), "plates": plates_schema()}
    return {
        f"{name}.schema.yaml": yaml.safe_dump(
            schema, sort_keys=False, width=WIDTH, allow_unicode=True
        )
        for name, schema in schemas.items()
    }


def config_schema() -> Schema:
    """JSON schema of the config."""
    schema = inline(Config.model_json_schema())
    for section in schema["properties"].values():
        if section.get("type") == "object":
            # YAML reads a section whose keys are all commented out as null.
            section["type"] = ["object", "null"]
    return with_draft(schema)


def plates_schema() -> Schema:
    """JSON schema of one row of the plate sheet."""
    schema = inline(Plate.model_json_schema())
    labels = schema["properties"].pop("labels")
    schema["additionalProperties"] = {
        "description": labels["description"],
        "type": ["string", "number", "boolean", "null"],
    }
    return with_draft(schema)


def with_draft(schema: Schema) -> Schema:
    """A schema that names its draft."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
