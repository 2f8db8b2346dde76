"""Build the demo many times and compare every byte of stores, tables and figures.

    python bench/repeat.py --times 20

Each build runs in a new folder, from the simulation of the plates to the report. Odd builds use one
core, even ones all. Files about the run itself (logs, run times) are not compared. Ends with exit
status 1 if two builds differ.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import runner
import yaml
from runner import ROOT

sys.path.insert(0, str(ROOT))

from tests.workflow.runs import Project


def main() -> int:
    parser = runner.parser(__doc__, times=20, cores=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    config = yaml.safe_load((ROOT / "config/demo.yaml").read_text()) | {"outdir": "results"}
    config["plates"] = str(ROOT / config.get("plates", "config/plates.tsv"))
    first: dict[str, str] = {}
    unequal: set[str] = set()
    lines = runner.head("anndata", "dask", "h5py", "numba", "numcodecs", "numpy", "zarr")
    for n in range(args.times):
        folder = Path(tempfile.mkdtemp(prefix="scatlas-repeat-"))
        begin = time.monotonic()
        project = Project(folder, config)
        project.build(cores=1 if n % 2 else args.cores)
        digests = {
            name: hashlib.blake2b(content).hexdigest()
            for name, content in project.outputs().items()
        }
        first = first or digests
        differ = {name for name in {*first, *digests} if first.get(name) != digests.get(name)}
        lines.append(
            f"build {n + 1}: {len(digests):,} files, {len(differ)} differ from the first build, "
            f"{time.monotonic() - begin:.0f} s"
        )
        print(lines[-1], flush=True)
        unequal |= differ
        shutil.rmtree(folder)
    lines += [f"differs: {name}" for name in sorted(unequal)]
    runner.publish(lines, args.out)
    return int(bool(unequal))


if __name__ == "__main__":
    sys.exit(main())
