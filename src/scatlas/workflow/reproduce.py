"""Make an atlas again from its own record, and list all differences between the two.

``python -m scatlas.workflow.reproduce atlas.zarr --directory NEW`` writes config and plate sheet of
the record to ``NEW``, loads the plates and compares their content with the record, builds the
atlas, and compares its arrays with those of the given one. Options after ``--`` go to Snakemake.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from scatlas._util.operating_system import n_available_cores
from scatlas.errors import InputError, ScatlasError
from scatlas.io.files.checksums import VALUES_DIGEST, checksum
from scatlas.workflow import script
from scatlas.workflow.code_hash import workflow_folder
from scatlas.workflow.config.plate_sheet import DEMO_FOLDER
from scatlas.workflow.edits import pieces
from scatlas.workflow.provenance import CONTENT_FACTS, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zarr

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0 if the atlas is the same, 1 if it differs."""
    parser = argparse.ArgumentParser(
        prog="python -m scatlas.workflow.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("atlas", type=Path, help="atlas.zarr of the workflow")
    parser.add_argument("--directory", type=Path, required=True, help="folder to build in")
    parser.add_argument(
        "--plates-from",
        type=Path,
        default=Path(),
        help="folder that relative paths of plates start from (default: this one)",
    )
    parser.add_argument(
        "--backend", choices=["auto", "cpu", "gpu"], help="default: that of the record"
    )
    argv = sys.argv[1:] if argv is None else argv
    n_own = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:n_own])
    args.snakemake = argv[n_own + 1 :]
    record = read_record(args.atlas)
    if mapped := [plate["plate"] for plate in record["plates"] if plate.get("mapped")]:
        raise InputError(
            f"{args.atlas}: plate {mapped[0]!r} and others were mapped onto an atlas "
            f"({len(mapped)} in all): reproduce the atlas that it extends"
        )
    for warning in version_warnings(record):
        logger.warning("%s", warning)
    write_project(record, args.directory, plates_from=args.plates_from, backend=args.backend)
    results = args.directory / "results"
    names = [plate["plate"] for plate in record["plates"]]
    _run_snakemake(args, [f"results/manifests/load/{name}.json" for name in names])
    check_content(record, results / "manifests")
    _run_snakemake(args, ["atlas"])
    found = list(differences(args.atlas, results / "atlas.zarr"))
    for difference in found:
        logger.info("differs: %s", difference)
    if found:
        n = len(found)
        logger.info("%s: %d element%s of the atlas differ", args.atlas, n, "s" * (n != 1))
    else:
        logger.info("%s: made again, every array is the same", args.atlas)
    return int(bool(found))


def version_warnings(record: dict[str, Any]) -> Iterator[str]:
    """One sentence for each version that differs from that of the atlas with this record."""
    now = script.versions()
    for name, then in {**record["versions"], "scatlas": record["version"]}.items():
        if name in now and now[name] != then:
            yield f"{name} is {now[name]}, the atlas was made with {then}: results may differ"


def write_project(
    record: dict[str, Any], folder: Path, *, plates_from: Path, backend: str | None = None
) -> None:
    """Write ``config.yaml`` and ``plates.tsv`` of a record, with relative paths from
    ``plates_from``. ``backend`` None is that of the atlas, or ``auto`` if its steps ran on both.
    """
    labels = list(dict.fromkeys(name for plate in record["plates"] for name in plate["labels"]))
    rows = [["plate", "path", "counts", "fractional", *labels]]
    for plate in record["plates"]:
        path = _path(plate["path"], f"plate {plate['plate']!r}", plates_from)
        counts = "" if "genes" in plate else plate.get("counts", "")
        own = [plate["plate"], path, counts, plate.get("fractional", "")]
        rows.append([*own, *(plate["labels"].get(name, "") for name in labels)])
    if backend is None:
        backend = record["backend"] if record["backend"] in ("cpu", "gpu") else "auto"
    first = record["plates"][0]
    samples = {"path": rows[1][1], "by": first["by"]} if "by" in first else None
    # Plates of several files have it in their sheet.
    known = {"counts": "X", "fractional": "refuse"}
    known |= first if samples or "genes" in first else {}
    of_source = ("genes", "marker", "counts", "fractional")
    settings = {
        "map": {"cells": "sample"},  # unless the record says otherwise
        **_with_files(record["config"], plates_from),
        "plates": samples or "plates.tsv",
        "source": {name: known[name] for name in of_source if name in known},
        "outdir": "results",
        "backend": backend,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "plates.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")


def _with_files(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings of a record with full paths of the files that they name beside the plates."""
    found = dict(config)
    if config.get("labels"):
        found["labels"] = [_path(path, "labels", folder) for path in config["labels"]]
    for section, keys in (("map", ["use"]), ("annotate", ["reference", "model", "markers"])):
        own = config.get(section) or {}
        named = {key: _path(own[key], f"{section}.{key}", folder) for key in keys if own.get(key)}
        found |= {section: own | named} if named else {}
    return found


def _path(path: str, of: str, folder: Path) -> str:
    """Full path of a file of a record, or the address or the demo's file that it is."""
    if "://" in path:
        return path
    absolute = (folder / path).absolute()
    if absolute.exists():
        return str(absolute)
    if Path(path).is_relative_to(DEMO_FOLDER):
        return path
    raise InputError(
        f"{absolute} of {of} does not exist: put it there, or give the folder "
        "that relative paths start from with --plates-from"
    )


def check_content(record: dict[str, Any], manifests: Path) -> None:
    """Compare the plates, as loaded now, with the record; the error names each that has changed."""
    changed = []
    for then in record["plates"]:
        now = json.loads((manifests / "load" / f"{then['plate']}.json").read_text("utf-8"))
        # A record of an older version lacks the digest.
        differing = [name for name in CONTENT_FACTS if now[name] != then.get(name, now[name])]
        if not differing:
            continue
        facts = [f"{name} {then[name]:,} then, {now[name]:,} now" for name in differing
                 if name != "values_digest"]  # fmt: skip
        how = ", ".join(facts) or "the same numbers of cells, genes and counts, other content"
        changed.append(f"plate {then['plate']!r} ({then['path']}) has changed: {how}")
    if changed:
        raise InputError(f"{'; '.join(changed)}: give the plates that the atlas was made from")


def _run_snakemake(args: argparse.Namespace, targets: list[str]) -> None:
    workflow = workflow_folder()
    folder = args.directory.absolute()
    # Before the user's options: the last --cores counts.
    cores = str(n_available_cores())
    command = [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(workflow / "Snakefile")),
        *("--directory", str(folder), "--configfile", str(folder / "config.yaml")),
        *("--cores", cores, *args.snakemake, "--", *targets),
    ]
    ended = subprocess.run(command, cwd=workflow, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode:
        raise InputError(f"{folder}: the atlas could not be made again, see the messages above")


def differences(first: Path, second: Path) -> Iterator[str]:
    """Differences of two atlases, one sentence for each array or group but ``uns['scatlas']``;
    where checksums of files differ, only the values of the array count.
    """
    import zarr

    from scatlas.io.files.local_zarr import as_zarr_python, open_store

    nodes = [
        {
            name: node
            for name, node in as_zarr_python(open_store(path)).members(max_depth=None)
            if not f"{name}/".startswith("uns/scatlas/")
        }
        for path in (first, second)
    ]
    for name in sorted({*nodes[0], *nodes[1]}):
        if any(name not in atlas for atlas in nodes):
            owner = first if name in nodes[0] else second
            yield f"{name} is in {owner} alone"
            continue
        a, b = (atlas[name] for atlas in nodes)
        attributes = [
            {k: v for k, v in node.attrs.items() if k != VALUES_DIGEST} for node in (a, b)
        ]
        if attributes[0] != attributes[1]:
            yield f"{name}: its attributes differ ({attributes[0]} and {attributes[1]})"
        if isinstance(a, zarr.Group) != isinstance(b, zarr.Group):
            yield f"{name} is an array in one atlas and a group in the other"
        if isinstance(a, zarr.Group) or isinstance(b, zarr.Group):
            continue
        if checksum(first / name) != checksum(second / name):
            if difference := _array_difference(a, b):
                yield f"{name}: {difference}"
            else:
                logger.info(
                    "%s: the same values in other bytes (another version of a codec or of scatlas)",
                    name,
                )


def _array_difference(a: zarr.Array[Any], b: zarr.Array[Any]) -> str | None:
    """Difference of two arrays in shape, type or values; None if they are equal."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.shape} of {a.dtype} and {b.shape} of {b.dtype}"
    is_number = np.dtype(a.dtype).kind in "biuf"
    n_unequal, max_distance = 0, 0.0
    for piece in pieces(a):
        x, y = np.asarray(a[piece]), np.asarray(b[piece])
        unequal = x != y
        if np.dtype(a.dtype).kind == "f":
            unequal &= ~(np.isnan(x) & np.isnan(y))
        n_unequal += int(np.count_nonzero(unequal))
        if is_number and unequal.any():
            distances = np.abs(x[unequal].astype(np.float64) - y[unequal].astype(np.float64))
            max_distance = max(max_distance, float(distances.max()))
    if not n_unequal:
        return None
    total = int(np.prod(a.shape, dtype=np.int64))
    by = f", by at most {max_distance:.3g}" if is_number else ""
    return f"{n_unequal:,} of {total:,} values differ{by}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        sys.exit(main())
    except ScatlasError as error:
        sys.exit(f"error: {error}")
