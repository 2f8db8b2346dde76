"""Style and scripts inside a page that opens from a file, and the policy that allows them alone."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def joined_scripts(folder: Path, names: Sequence[str]) -> str:
    """Modules ``{name}.js``, each after those that it imports, as one script without imports: files
    cannot import each other from ``file://``, and a module would wait for the whole page.
    """
    parts = []
    for name in names:
        text = (folder / f"{name}.js").read_text("utf-8")
        text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
        parts.append(re.sub(r"^export (?=\w)", "", text, flags=re.MULTILINE))
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"


def content_policy(script: str, style: str, images: str) -> str:
    """A Content-Security-Policy without network, which allows one script and one style by their
    digests, and images of the schemes ``images``, such as ``data:``.
    """
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        f"img-src {images}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest())
    return f"sha256-{digest.decode('ascii')}"
