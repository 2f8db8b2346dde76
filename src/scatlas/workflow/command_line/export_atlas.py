"""``scatlas export``: an atlas in the forms that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas import export
from scatlas.compute.progress import progress
from scatlas.errors import DiskError
from scatlas.workflow.command_line.output import say

if TYPE_CHECKING:
    from pathlib import Path


def export_atlas(atlas: str, form: str, out: Path, *, seed: int) -> None:
    """Write an atlas (a path or an address) to a new file or folder in another form: ``h5ad``,
    ``cellxgene``, ``vitessce`` or ``annbatch``, whose order the seed decides.
    """
    write = getattr(export, f"to_{form}")
    options = {"seed": seed} if form == "annbatch" else {}
    try:
        with progress(f"export {out}"):
            write(atlas, out, **options)
    except OSError as error:
        if isinstance(error, DiskError):
            raise
        reason = " ".join(str(error).split())
        msg = f"{out} cannot be written ({reason}): make room, or name another folder"
        raise DiskError(msg) from error
    say(f"wrote {out}")
