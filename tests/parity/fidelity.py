"""docs/fidelity.md: the largest differences from scanpy's results that the parity tests saw.

SCATLAS_FIDELITY=1 python -m pytest tests/parity -m "not workflow"  # records, without -n
python -m tests.parity.fidelity --page                              # writes the page
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
RECORDS, PAGE = Path(__file__).parent / "records", ROOT / "docs" / "fidelity.md"
PACKAGES = ["scanpy", "anndata", "numpy", "scipy", "scikit-learn", "umap-learn", "leidenalg"]
NOT_COMPARED = {"pp.sample", "pp.harmony_integrate"}  # shared with scanpy; the page says why
TEXT = """\
<!-- Written by `python -m tests.parity.fidelity --page` from tests/parity/records. -->

# How close results are to scanpy's

The tests in [`tests/parity`](../tests/parity) call scatlas and scanpy with the same simulated data
and compare. Each file of tests passed as a whole; this is the largest difference in it, divided by
the largest absolute value of scanpy's array or column (by 1 if that is 0). "Equal" means equal
numbers. Where scanpy computes in float32, tests compare with its result for float64, or allow its
rounding: these differences are mostly scanpy's. The reasons of the intended differences are on
[their page](differences.md).

{versions}

| function | matrices | comparisons | {heads} | intended differences |
|---|---|---|{lines}---|
{rows}

Of `pp.downsample_counts` the totals are compared, of `pp.scrublet` the parents and scores of
doublets, of `tl.umap` the maps with `method="umap-learn"`, of
`tl.ingest` components and labels with more votes than any other. Not compared: `pp.sample`, which
draws other cells by intention, and `pp.harmony_integrate`, which has its own test beside harmonypy.
"""


def difference(ours: Any, theirs: Any) -> float:
    """Largest absolute difference over the largest absolute value, by column for tables."""
    if isinstance(theirs, pd.DataFrame):
        return max((difference(ours[name], theirs[name]) for name in theirs), default=0.0)
    a, b = np.asarray(ours), np.asarray(theirs)
    if a.dtype.kind not in "iuf" or b.dtype.kind not in "iuf" or np.array_equal(a, b):
        return 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = (np.broadcast_to(x, finite.shape)[finite].astype(np.float64) for x in (a, b))
    return float(np.abs(a - b).max(initial=0) / (np.abs(b).max(initial=0) or 1))


def write(file: str, record: dict[str, dict[str, Any]]) -> None:
    """Put the record of a file of tests into the records of this version of scanpy."""
    path = RECORDS / f"scanpy-{'.'.join(version('scanpy').split('.')[:2])}.json"
    files = json.loads(path.read_text())["files"] if path.exists() else {}
    files[file] = {
        name: {
            "matrices": " ".join(sorted(entry["matrices"])),
            "comparisons": entry["comparisons"],
            "largest": f"{entry['largest']:.1g}",
        }
        for name, entry in sorted(record.items())
        if entry["comparisons"]
    }
    versions = {"Python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    found = {"versions": versions, "files": dict(sorted(files.items()))}
    path.write_text(json.dumps(found, indent=1) + "\n")


def records() -> list[dict[str, Any]]:
    """The records of each version of scanpy."""
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]


def entries(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """What each file of tests found of a function."""
    return [found[name] for found in record["files"].values() if name in found]


def _row(name: str) -> str:
    first = entries(records()[0], name)
    matrices = sorted({word for entry in first for word in entry["matrices"].split()})
    most = [[float(e["largest"]) for e in entries(record, name)] for record in records()]
    bare = name.split(".")[1]
    text = (ROOT / "docs/differences.md").read_text().partition("## On GPUs")[0]
    places = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    places = [place for place in places if re.search(rf"\b{bare}\b", place, re.IGNORECASE)]
    cells = [
        f"`{name}`",
        ", ".join(matrices) or "graphs, components",
        str(sum(entry["comparisons"] for entry in first)),
        *((f"{max(m):.0e}" if max(m) else "equal") if m else "not run" for m in most),
        "; ".join(re.sub(r"^(?:(?:`[a-z0-9_.]+`|PCA),? )+", "", place) for place in places)
        or "none",
    ]
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The page that the records give."""
    versions = [record["versions"] for record in records()]
    names = {name for found in records()[0]["files"].values() for name in found}
    return TEXT.format(
        versions="\n".join(f"- {', '.join(f'{k} {v}' for k, v in v.items())}" for v in versions),
        heads=" | ".join(f"scanpy {packages['scanpy']}" for packages in versions),
        lines="---|" * len(versions),
        rows="\n".join(map(_row, sorted(names, key=lambda name: ("ptg".index(name[0]), name)))),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", required=True, help="write the page")
    parser.parse_args()
    PAGE.write_text(page())
