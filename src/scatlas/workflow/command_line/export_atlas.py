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
    """Write an atlas in another form.

    Parameters
    ----------
    atlas
        Path or address of ``atlas.zarr``.
    form
        ``h5ad``, ``cellxgene``, ``vitessce`` or ``annbatch``.
    out
        File or folder to write.
    seed
        Of the order for annbatch.

    Raises
    ------
    InputError
        The output exists, or the atlas cannot be exported.
    DiskError
        The output cannot be written.
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
