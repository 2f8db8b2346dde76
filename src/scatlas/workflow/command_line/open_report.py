"""``scatlas open``: show the report in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from scatlas.errors import InputError
from scatlas.workflow.command_line.output import say
from scatlas.workflow.command_line.project import read_config


def open_report(config_file: Path) -> None:
    """Open ``report.html`` of the results in the user's browser, and print its path."""
    config = read_config(config_file)
    folder = Path(config.folder, "mapped") if config.atlas else Path(config.folder)
    page = (folder / "report.html").absolute()
    if not page.is_file():
        msg = f"{page}: there is no report yet: scatlas run makes it"
        raise InputError(msg)
    say(str(page))
    # Without a screen Python would start a browser of the terminal, which shows no pictures.
    if _has_screen() and not webbrowser.open(page.as_uri()):
        say("no browser was found: open this file in one")


def _has_screen() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)
