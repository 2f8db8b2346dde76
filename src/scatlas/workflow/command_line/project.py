"""Config and plates of the working folder, read without Snakemake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.errors import InputError
from scatlas.workflow.config.loading import check_plates, load
from scatlas.workflow.config.plate_sheet import read_plates
from scatlas.workflow.config.samples import sample_plates

if TYPE_CHECKING:
    from pathlib import Path

    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config


def read_config(path: Path) -> Config:
    """Read and check a config, which must exist."""
    if not path.is_file():
        msg = f"{path}: there is no such config: write it with scatlas init FILES"
        raise InputError(msg)
    return load(path)


def read_project(path: Path) -> tuple[Config, list[Plate]]:
    """Read and check a config and its plates."""
    config = read_config(path)
    if config.plates.by:
        return config, [*sample_plates(config, is_main=True)]
    plates = read_plates(config.plates.sheet)
    if not config.atlas:  # else the atlas decides what its config leaves open
        check_plates(config, plates)
    return config, plates
