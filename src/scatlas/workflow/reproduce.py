"""Make an atlas again from its own record, and say exactly where the two differ.

``python -m scatlas.workflow.reproduce atlas.zarr --directory NEW`` writes config and plate sheet of
the record to ``NEW``, loads the plates and compares what is in them with the record, builds the
atlas, and compares its arrays with those of the given one. What follows ``--`` goes to Snakemake.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from scatlas.errors import InputError, ScatlasError
from scatlas.io.files.checksums import VALUES_DIGEST, checksum
from scatlas.workflow import script
from scatlas.workflow.provenance import CONTENT, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zarr

logger = logging.getLogger("scatlas")
_CHECKOUT = Path(__file__).parents[3]
# Plates that the workflow simulates where they are missing.
_GENERATED = Path("resources/demo")
# Values compared at once.
_PIECE = 2**22


def main(argv: list[str] | None = None) -> int:
    """Run the command; 0 where the atlas is the same, 1 where it differs."""
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
        "--backend", choices=["auto", "cpu", "gpu"], help="default: the one of the record"
    )
    argv = sys.argv[1:] if argv is None else argv
    own = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:own])
    args.snakemake = argv[own + 1 :]
    found = read_record(args.atlas)
    for note in notes(found):
        logger.warning("%s", note)
    write_project(found, args.directory, plates_from=args.plates_from, backend=args.backend)
    results = args.directory / "results"
    names = [plate["plate"] for plate in found["plates"]]
    _build(args, [f"results/manifests/load/{name}.json" for name in names])
    check_plates(found, results / "manifests")
    _build(args, ["atlas"])
    different = list(differences(args.atlas, results / "atlas.zarr"))
    for sentence in different:
        logger.info("differs: %s", sentence)
    if different:
        n = len(different)
        logger.info("%s: %d element%s of the atlas differ", args.atlas, n, "s" * (n != 1))
    else:
        logger.info("%s: made again, every array is the same", args.atlas)
    return int(bool(different))


def notes(found: dict[str, Any]) -> Iterator[str]:
    """One sentence for each version that is another one than when the atlas was made.

    Parameters
    ----------
    found
        Record of :func:`scatlas.workflow.provenance.read_record`.
    """
    now = script.versions()
    for name, then in {**found["versions"], "scatlas": found["version"]}.items():
        if name in now and now[name] != then:
            yield f"{name} is {now[name]}, the atlas was made with {then}: results may differ"


def write_project(
    found: dict[str, Any], folder: Path, *, plates_from: Path, backend: str | None = None
) -> None:
    """Write ``config.yaml`` and ``plates.tsv`` of a record.

    Parameters
    ----------
    found
        Record of :func:`scatlas.workflow.provenance.read_record`.
    folder
        Where; made if need be.
    plates_from
        Folder that relative paths of plates start from; in the new sheet they are absolute.
    backend
        What to compute on; None: what the atlas was computed on, or ``auto`` if that were both.

    Raises
    ------
    InputError
        A plate is not where the record says.
    """
    labels = list(dict.fromkeys(name for plate in found["plates"] for name in plate["labels"]))
    rows = [["plate", "path", *labels]]
    for plate in found["plates"]:
        path = _placed(plate, plates_from)
        rows.append([plate["plate"], path, *(plate["labels"].get(name, "") for name in labels)])
    settings = {
        **found["config"],
        "plates": "plates.tsv",
        "outdir": "results",
        "backend": backend or (found["backend"] if found["backend"] in ("cpu", "gpu") else "auto"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "plates.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")


def _placed(plate: dict[str, Any], plates_from: Path) -> str:
    path = plate["path"]
    if "://" in path:
        return path
    there = (plates_from / path).absolute()
    if there.exists():
        return str(there)
    if Path(path).is_relative_to(_GENERATED):
        return path
    msg = (
        f"{there} of plate {plate['plate']!r} does not exist: put it there, or say with "
        "--plates-from which folder relative paths start from"
    )
    raise InputError(msg)


def check_plates(found: dict[str, Any], manifests: Path) -> None:
    """Compare the plates as they were loaded now with the record.

    Raises
    ------
    InputError
        Naming each plate that has changed, and how.
    """
    changed = []
    for then in found["plates"]:
        now = json.loads((manifests / "load" / f"{then['plate']}.json").read_text("utf-8"))
        # A record of an older version lacks the digest.
        differ = [name for name in CONTENT if now[name] != then.get(name, now[name])]
        if not differ:
            continue
        facts = [f"{name} {then[name]:,} then, {now[name]:,} now" for name in differ
                 if name != "values_digest"]  # fmt: skip
        how = ", ".join(facts) or "the same numbers of cells, genes and counts, other content"
        changed.append(f"plate {then['plate']!r} ({then['path']}) has changed: {how}")
    if changed:
        msg = f"{'; '.join(changed)}: give the plates that the atlas was made of"
        raise InputError(msg)


def _build(args: argparse.Namespace, targets: list[str]) -> None:
    snakefile = _CHECKOUT / "Snakefile"
    if not snakefile.is_file():
        msg = f"{snakefile} is missing: run this from a checkout of scatlas, which has the workflow"
        raise InputError(msg)
    folder = args.directory.absolute()
    # A later option wins: one of the user's replaces this one.
    cores = str(len(os.sched_getaffinity(0)))
    command = [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(snakefile)),
        *("--directory", str(folder), "--configfile", str(folder / "config.yaml")),
        *("--cores", cores, *args.snakemake, "--", *targets),
    ]
    ended = subprocess.run(command, cwd=_CHECKOUT, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode:
        msg = f"{folder}: the atlas could not be made again, see the messages above"
        raise InputError(msg)


def differences(first: Path, second: Path) -> Iterator[str]:
    """Where two atlases differ, one sentence for each array or group.

    Arrays are compared by the checksums of their files, and value by value where these differ, a
    piece at a time: only values count, not the bytes in which they are stored. ``uns['scatlas']``
    says how they were made and is left out.
    """
    import zarr

    roots = [zarr.open_group(path, mode="r") for path in (first, second)]
    nodes = [
        {
            name: node
            for name, node in root.members(max_depth=None)
            if not f"{name}/".startswith("uns/scatlas/")
        }
        for root in roots
    ]
    for name in sorted({*nodes[0], *nodes[1]}):
        if any(name not in these for these in nodes):
            where = first if name in nodes[0] else second
            yield f"{name} is in {where} alone"
            continue
        a, b = (these[name] for these in nodes)
        facts = [{k: v for k, v in node.attrs.items() if k != VALUES_DIGEST} for node in (a, b)]
        if facts[0] != facts[1]:
            yield f"{name}: its attributes differ ({facts[0]} and {facts[1]})"
        if type(a) is not type(b):
            yield f"{name} is an array in one atlas and a group in the other"
        elif hasattr(a, "dtype") and checksum(first / name) != checksum(second / name):
            if how := _difference(a, b):
                yield f"{name}: {how}"
            else:
                logger.info(
                    "%s: the same values, stored in other bytes (another version of a codec or of "
                    "scatlas)",
                    name,
                )


def _difference(a: zarr.Array, b: zarr.Array) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.shape} of {a.dtype} and {b.shape} of {b.dtype}"
    numbers = np.dtype(a.dtype).kind in "biuf"
    unequal, furthest = 0, 0.0
    size = int(np.prod(a.shape[1:], dtype=np.int64))
    rows = max(1, _PIECE // max(size, 1))
    for start in range(0, a.shape[0], rows) if a.shape else [...]:
        piece = ... if start is ... else slice(start, start + rows)
        x, y = np.asarray(a[piece]), np.asarray(b[piece])
        differ = x != y
        if np.dtype(a.dtype).kind == "f":
            differ &= ~(np.isnan(x) & np.isnan(y))
        unequal += int(np.count_nonzero(differ))
        if numbers and differ.any():
            apart = np.abs(x[differ].astype(np.float64) - y[differ].astype(np.float64))
            furthest = max(furthest, float(apart.max()))
    if not unequal:
        return None
    total = int(np.prod(a.shape, dtype=np.int64))
    by = f", by at most {furthest:.3g}" if numbers else ""
    return f"{unequal:,} of {total:,} values differ{by}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        sys.exit(main())
    except ScatlasError as error:
        sys.exit(f"error: {error}")
