"""Plates that are left out of the atlas because they cannot be used (``plates.on_error: skip``).

The step that refuses such a plate, and those after it, write placeholders, because Snakemake
expects outputs; the manifest holds the message under ``left_out``. `consensus` lists these plates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.errors import ScatlasError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

# Plates that one message names at most.
_MAX_NAMED = 20


class PlateLeftOut(ScatlasError):  # noqa: N818  (the run goes on)
    """A plate that cannot be used; the message is that of the error."""


def left_out(manifest: Path) -> str | None:
    """Message of the error for which a step has left its plate out; None if it has not."""
    message = json.loads(manifest.read_text("utf-8")).get("left_out")
    return None if message is None else str(message)


def plates_left_out(consensus: Path) -> dict[str, str]:
    """Plates that the atlas lacks, with messages, from the manifest of `consensus`."""
    return dict(json.loads(consensus.read_text("utf-8")).get("left_out", {}))


def check_previous(args: argparse.Namespace) -> None:
    """Leave a plate out that its previous step has left out, with the message of that step."""
    previous = getattr(args, "previous", None)
    if previous and (message := left_out(previous)):
        raise PlateLeftOut(message)


def is_about_plate(message: str, args: argparse.Namespace) -> bool:
    """Whether an error of bad input is about the plate: one that names an input or output of a step
    after `load` means a store that was lost or damaged, which leaves no plate out.
    """
    if hasattr(args, "source"):
        return True
    return not any(str(path) in message for path in vars(args).values() if isinstance(path, Path))


def write_placeholders(outputs: Iterable[Path], message: str) -> None:
    """Write outputs without content: an empty Zarr group for a store, the message for a file."""
    from scatlas.io.files.atomic import atomic_path
    from scatlas.io.zarr_writer.elements import create_group

    for output in outputs:
        with atomic_path(output) as path:
            if output.suffix == ".zarr":
                create_group(path, {"left_out": message})
            else:
                path.write_text(message, encoding="utf-8")


def sentences(messages: Mapping[str, str], mark: str = "- ") -> str:
    """One line per plate with the reason, of at most 20 plates; each line begins with a mark."""
    lines = [
        text if plate in text else f"{plate}: {text}"
        for plate, text in list(messages.items())[:_MAX_NAMED]
    ]
    if len(messages) > _MAX_NAMED:
        lines.append(f"and {len(messages) - _MAX_NAMED:,} more")
    return "\n".join(mark + line for line in lines)
