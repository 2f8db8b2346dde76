"""Write config.yaml, which follows from the sections of the config."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from scatlas.workflow.config.messages import allowed, inline, properties
from scatlas.workflow.config.sections import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scatlas.workflow.config.messages import Schema

COMMAND = "python -m scatlas.workflow.config.generate --write"
WIDTH = 96


def config_yaml() -> str:
    """Text of config.yaml: every key with its default and a comment with its meaning."""
    head = [
        "# Every key of the config with its default. Your config needs only the keys that differ",
        f"# (see README.md). Written by `{COMMAND}`.",
    ]
    return "\n".join([*head, *_yaml_lines(inline(Config.model_json_schema()))]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scatlas.workflow.config.generate",
        description="Write config/config.yaml of the repository in the working folder.",
    )
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args(arguments)
    if not Path("config/README.md").exists():
        parser.error(f"{Path.cwd()} is not the repository: it has no config/README.md")
    Path("config/config.yaml").write_text(config_yaml(), "utf-8")


def _yaml_lines(schema: Schema) -> Iterator[str]:
    for key, part in schema["properties"].items():
        yield ""
        if part.get("type") == "object":
            yield from comment(part["description"])
            yield f"{key}:"
            for name, leaf in part["properties"].items():
                yield from _key_lines(name, leaf, "  ")
            continue
        yield from _key_lines(key, part)


def _key_lines(key: str, part: Schema, indent: str = "") -> Iterator[str]:
    yield from comment(meaning(part), indent)
    section = properties(part)
    is_off = bool(section) and part["default"] is None
    if is_off:
        defaults = {name: leaf["default"] for name, leaf in section.items()}
        values = (f"{name}: {inline_yaml(v)}" for name, v in defaults.items() if v is not None)
        yield from comment(f"To switch it on: {key}: {{{', '.join(values)}}}", indent)
    for name, leaf in section.items():
        yield from comment(f"{name}: {meaning(leaf)}", indent)
    if is_off:
        # A comment: if this config had null, Snakemake would read {} of a user's config as null.
        yield f"{indent}# {key}: null"
    else:
        yield f"{indent}{key}: {inline_yaml(part['default'])}"


def meaning(schema: Schema) -> str:
    values = allowed(schema)
    note = "" if values == "text" else f" Allowed: {values}."
    return f"{schema['description']}{note}"


def comment(text: str, indent: str = "") -> list[str]:
    mark = f"{indent}# "
    return textwrap.wrap(
        text, WIDTH, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False
    )


def inline_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()


if __name__ == "__main__":
    main()
