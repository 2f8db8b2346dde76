"""Compare every byte that the workflow writes before and after a change of the code.

    python bench/same_bytes.py --out before.tsv                      # in the checkout of before
    python bench/same_bytes.py --out after.tsv --before before.tsv   # in that of after

The presets run on small plates, a config with every optional step, samples of one file, new plates
on a finished atlas, and the five real plates (SCATLAS_TEST_DATA). Records of a step (JSON) are
compared field by field, because those that name the code may differ. Give --only NAME for some.
Ends with exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata as ad
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from scatlas.datasets import simulate_plates, write_plate, write_release  # noqa: E402
from tests.workflow.runs import VARYING  # noqa: E402

SMALL = {
    "hvg": {"n_top_genes": 200},
    "pca": {"n_comps": 20},
    "neighbors": {"n_pcs": 15},
    "compute": {"block_budget": "16MB"},
    "backend": "cpu",
}
EVERYTHING = {
    "genes": "union",
    "doublets": {},
    "pseudobulk": {"by": ["cell_line"]},
    "integrate": {"key": ["plate"], "label": "cell_line"},
    "markers": {"by": ["leiden", "plate"], "wilcoxon": True},
    "scale": {"max_value": 10},
    "subset": {"by": ["plate", "cell_line"], "n_cells": 900},
}


def plates_of(folder: Path, n_plates: int, *, prefix: str = "") -> str:
    """Write simulated plates and their sheet, and return its path."""
    simulated = simulate_plates(n_plates=n_plates, n_cells=400, n_genes=1200)
    plates = {prefix + name: plate for name, plate in simulated.items()}
    for name, plate in plates.items():
        write_plate(folder / f"{name}.h5ad", plate)
    return sheet_of(folder, {name: folder / f"{name}.h5ad" for name in plates})


def sheet_of(folder: Path, paths: dict[str, Path]) -> str:
    lines = ["plate\tpath", *(f"{name}\t{path}" for name, path in paths.items())]
    (folder / "sheet.tsv").write_text("\n".join([*lines, ""]))
    return str(folder / "sheet.tsv")


def preset(name: str, **changes: Any) -> dict:
    """A preset's settings, without a cluster, of a size for small plates."""
    config = yaml.safe_load((ROOT / f"config/{name}.yaml").read_text())
    for key, value in (SMALL | changes).items():
        joined = isinstance(value, dict) and isinstance(config.get(key), dict)
        config[key] = config[key] | value if joined else value
    config["compute"].pop("cluster", None)
    return config


def demo(folder: Path) -> dict:
    config = yaml.safe_load((ROOT / "config/demo.yaml").read_text())
    (folder / "sheet.tsv").write_bytes((ROOT / config["plates"]).read_bytes())
    return config | {"plates": str(folder / "sheet.tsv")}


def release(folder: Path) -> dict:
    plates = simulate_plates(n_plates=4, n_cells=400, n_genes=1200)
    write_release(folder / "tahoe", [*plates.values()], rows_per_group=150)
    return preset("tahoe-100m", plates={"path": str(folder / "tahoe"), "by": "plate"})


def one_plate(name: str) -> Callable[[Path], dict]:
    return lambda folder: preset(name, plates=plates_of(folder, 1), qc={"min_genes": 10})


def everything(folder: Path) -> dict:
    return SMALL | EVERYTHING | {"plates": plates_of(folder, 3)}


def seurat_v3(folder: Path) -> dict:
    hvg = {"n_top_genes": 200, "flavor": "seurat_v3"}
    return SMALL | {"plates": plates_of(folder, 3), "hvg": hvg, "genes": "intersect"}


def samples(folder: Path) -> dict:
    plates = simulate_plates(n_plates=5, n_cells=150, n_genes=600)
    merged = ad.concat(plates, label="sample", index_unique="-")
    write_plate(folder / "all.h5ad", merged)
    return SMALL | {"plates": {"path": str(folder / "all.h5ad"), "by": "sample"}}


def new_plates(folder: Path) -> dict:
    (known := folder / "known").mkdir()
    atlas = known / "results/atlas.zarr"
    run(known, SMALL | {"plates": plates_of(known, 2), "outdir": "results"})
    config = {"plates": plates_of(folder, 3, prefix="new_"), "atlas": str(atlas)}
    return config | {"new_plates": {"obs": ["cell_line"]}}


def real(folder: Path) -> dict:
    files = sorted(Path(os.environ["SCATLAS_TEST_DATA"], "mixology").glob("*.h5ad"))
    sheet = sheet_of(folder, {path.stem: path for path in files})
    qc = {"filter": "pass_filter == 'full'"}
    return {"plates": sheet, "qc": qc, "pca": {"n_comps": 50}, "backend": "cpu"}


CASES: dict[str, Callable[[Path], dict]] = {
    "demo": demo,
    "tahoe-100m": release,
    "cell-atlas-11m": one_plate("cell-atlas-11m"),
    "brain-1.3m": one_plate("brain-1.3m"),
    "everything": everything,
    "seurat_v3": seurat_v3,
    "samples": samples,
    "new plates": new_plates,
    "real": real,
}


def run(folder: Path, config: dict) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--configfile", str(folder / "config.yaml")]
    command += ["--cores", "2", "--retries", "0", "--quiet"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder}: the workflow failed:\n{(done.stdout + done.stderr)[-6000:]}")


def digests(results: Path) -> dict[str, str]:
    """Digest of each file, of a record's each field."""
    found: dict[str, str] = {}
    for path in sorted(results.rglob("*")):
        name = path.relative_to(results).as_posix()
        if not path.is_file() or "/runs/" in name or name.startswith(VARYING):
            continue
        content = path.read_bytes()
        if name.startswith("manifests") and path.suffix == ".json":
            fields = json.loads(content)
            parts = {f"{name}:{key}": json.dumps(fields[key]).encode() for key in fields}
        else:
            parts = {name: content}
        found |= {
            key: hashlib.blake2b(part, digest_size=16).hexdigest() for key, part in parts.items()
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="table of digests to write")
    parser.add_argument("--before", type=Path, help="table of before, to compare with")
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES], help="cases to run")
    args = parser.parse_args()
    after: dict[str, str] = {}
    for case in args.only:
        begin = time.monotonic()
        # Paths are in some records: the folder is the same each time.
        folder = Path(tempfile.gettempdir(), "scatlas-same-bytes", case.replace(" ", "-"))
        if folder.exists():
            raise SystemExit(f"{folder} exists: delete it, or wait until another run ends")
        folder.mkdir(parents=True)
        run(folder, CASES[case](folder) | {"outdir": "results"})
        written = digests(folder / "results")
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        after |= {f"{case}/{name}": digest for name, digest in written.items()}
        print(
            f"{case}: {len(written):,} files and fields, {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    args.out.write_text("".join(f"{name}\t{digest}\n" for name, digest in after.items()))
    if args.before is None:
        return 0
    lines = (line.split("\t") for line in args.before.read_text().splitlines())
    before = {name: digest for name, digest in lines if name.partition("/")[0] in args.only}
    differ = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    print(
        "\n".join(
            [f"{len(before):,} before, {len(after):,} after, {len(differ):,} differ", *differ]
        )
    )
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
