"""Options, log, one-sentence errors and manifest of all scripts of the workflow.

The *manifest* holds facts about the outputs and nothing that differs between equal runs: a step
that makes equal outputs again reruns no later step. The *run record*
(:func:`scatlas.workflow.integrity.run_record`) holds versions, seconds, peak memory, and files.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import gc
import json
import logging
import os
import platform
import shutil
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from fractions import Fraction
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas._util.operating_system import n_available_cores, peak_memory, processor_seconds
from scatlas._version import __version__
from scatlas.errors import DiskError, InputError, ScatlasError
from scatlas.workflow.integrity import file_records, refuse_damaged_inputs, run_record
from scatlas.workflow.left_out import (
    PlateLeftOut,
    check_previous,
    is_about_plate,
    write_placeholders,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    import pandas as pd

logger = logging.getLogger("scatlas")
_PACKAGES = ("anndata", "dask", "h5py", "numba", "numpy", "pandas", "scipy", "zarr")
_NO_LIMIT = "none"
_FULL_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT}


def parser(
    doc: str | None, *, gpu: bool = False, may_skip: bool = False
) -> argparse.ArgumentParser:
    """Option parser with the options that all scripts share; with ``gpu`` those of scripts that can
    compute on one, with ``may_skip`` of those that can leave their plate out.
    """
    new = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    new.add_argument(
        "--manifest", type=Path, required=True, help="JSON file to write: facts about the outputs"
    )
    new.add_argument("--threads", type=int, default=n_available_cores(), help="threads")
    new.add_argument("--attempt", type=int, default=1, help="number of the attempt")
    new.add_argument(
        "--block-budget",
        default="auto",
        help="memory for the blocks in flight, such as 256MB; auto: what the threads need",
    )
    if may_skip:
        # From the environment: a change of it must not rerun the steps of good plates.
        new.add_argument(
            "--on-error",
            choices=["stop", "skip"],
            default=os.environ.get("SCATLAS_ON_ERROR") or "stop",
            help="whether a plate that cannot be used is left out",
        )
        new.add_argument("--previous", type=Path, help="manifest of the plate's previous step")
    if gpu:
        new.add_argument(
            "--backend",
            choices=["auto", "cpu", "gpu"],
            default="auto",
            help="device; auto: a GPU if one can be used, else the CPU",
        )
        new.add_argument(
            "--memory",
            choices=["pool", "managed", "async", "default"],
            default="pool",
            help="allocator of GPU memory",
        )
        new.add_argument(
            "--memory-limit", default=_NO_LIMIT, help="maximum of GPU memory, such as 60GB"
        )
        new.add_argument(
            "--gpu-share",
            type=Fraction,
            default=Fraction(1),
            help="share of a GPU and of its memory, such as 1/2; other jobs may use the rest",
        )
        new.add_argument(
            "--cluster",
            default=os.environ.get("SCATLAS_CLUSTER", ""),
            help="section compute.cluster of the config, as JSON",
        )
    return new


@contextmanager
def recorded_run(
    args: argparse.Namespace,
    *,
    outputs: list[Path],
    reports: list[Path] | None = None,
    needs_gpu: Callable[[], bool] | None = None,
) -> Iterator[dict[str, Any]]:
    """Context of a script's work: set threads and device, then write the manifest, of which the
    script fills in the facts, and the run record.

    ``reports`` are further outputs, which differ between equal runs. ``needs_gpu`` is asked before
    a GPU is locked. If this or an earlier step leaves the plate out, outputs become placeholders.
    """
    from scatlas.compute.progress import progress
    from scatlas.compute.threads import use_threads
    from scatlas.io.files.checksums import checksum_of_digests, file_digests, write_json
    from scatlas.io.files.listing import stamp

    name = " ".join([Path(sys.argv[0]).stem, *filter(None, [getattr(args, "plate", None)])])
    with _lock_step(args.manifest):
        start = time.monotonic()
        source_path = getattr(args, "origin", None) or getattr(args, "source", None)
        source = {"source": stamp(source_path)} if source_path else {}
        facts: dict[str, Any] = {}
        # Snakemake tries again with more memory. That repairs no input: the next attempt repeats
        # the stored message instead of hours of reading.
        refusal = args.manifest.with_suffix(".refused")
        if args.attempt > 1 and refusal.exists():
            raise InputError(refusal.read_text(encoding="utf-8"))
        refusal.unlink(missing_ok=True)
        device_record: dict[str, Any] = {}
        skipped: PlateLeftOut | None = None
        try:
            with _store_refusal(args, refusal):
                check_previous(args)
                needs_device = not (_may_use_gpu(args) and needs_gpu) or needs_gpu()
            with (
                _use_device(args, device_record) if needs_device else nullcontext(),
                use_threads(args.threads, **_in_flight(args)),
                progress(name),
                _store_refusal(args, refusal),
            ):
                yield facts
        except PlateLeftOut as error:
            skipped = error
            write_placeholders([*outputs, *(reports or [])], str(skipped))
            reports = None
            facts = {"plate": args.plate, "left_out": str(skipped)}
            device_record["left_out"] = True
        digests = {path: file_digests(path) for path in [*outputs, *(reports or [])]}
        facts["outputs"] = {path.name: checksum_of_digests(digests[path]) for path in outputs}
        peak = peak_memory()
        seconds = round(time.monotonic() - start, 3)
        record = {
            "versions": versions(),
            "seconds": seconds,
            "processor_seconds": round(processor_seconds(), 3),
            "peak_memory_bytes": peak,
            "threads": args.threads,
            **device_record,
            **file_records(args.manifest, facts, digests),
            **source,
            "plan": os.environ.get("SCATLAS_PLAN"),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        with _store_refusal(args, refusal):
            write_json(run_record(args.manifest), record)
            write_json(args.manifest, facts)
        if skipped:
            raise skipped
        logger.info("%s: done in %.1f s, peak memory %.0f MB", name, seconds, peak / 1e6)


@contextmanager
def _lock_step(manifest: Path) -> Iterator[None]:
    """Wait for a process of the same step that outlived its killed Snakemake."""
    path = run_record(manifest).with_suffix(".lock")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s: waiting for the process of an earlier run", manifest)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # a full disk, or a file system without locks
            logger.info("%s cannot be locked: %s", path, error)
        yield


@contextmanager
def _store_refusal(args: argparse.Namespace, refusal: Path) -> Iterator[None]:
    """Store the message of errors that more memory cannot repair: bad input, and a full disk. If
    bad plates are to be left out, bad input is a `PlateLeftOut`, and no message is stored.
    """
    from scatlas.io.files.atomic import atomic_path

    try:
        yield
    except Exception as error:
        full_disk = _full_disk_message(error, refusal.parent)
        is_told = full_disk or isinstance(error, DiskError)
        if not is_told and (failed_disk := _failed_disk_message(error)):
            raise DiskError(failed_disk) from error  # the next attempt may succeed
        message = full_disk or _damaged_input_message(error, args)
        if message is None and isinstance(error, InputError):
            message = str(error)
            if getattr(args, "on_error", None) == "skip" and is_about_plate(message, args):
                raise PlateLeftOut(message) from error
        if message is None:
            raise
        # The partial output is already deleted, so this file usually fits on a full disk. If not,
        # the next attempt fails, too.
        with suppress(OSError), atomic_path(refusal) as partial:
            partial.write_text(message, encoding="utf-8")
        if isinstance(error, InputError) and message == str(error):
            raise
        raise (DiskError if full_disk else InputError)(message) from error


def _damaged_input_message(error: Exception, args: argparse.Namespace) -> str | None:
    """Message that names a damaged output of an earlier step, and the repair; None without one."""
    from scatlas.io.files.read_errors import REMEDY

    if isinstance(error, InputError) and REMEDY not in str(error):
        return None
    if hasattr(args, "source"):  # `load` reads no output of the workflow
        return None
    try:
        refuse_damaged_inputs(args.manifest)
    except InputError as damage:
        return str(damage)
    # The checksum of a chunk finds damage that leaves size and time unchanged.
    path = next((part for part in str(error).split(": ") if Path(part).exists()), None)
    if path is None or not isinstance(error, InputError):
        return None
    repair = f"delete it (rm -r {path}) and give the same command again, which makes it again"
    return str(error).replace(REMEDY, repair)


def _full_disk_message(error: BaseException | None, folder: Path) -> str | None:
    """Message that names the full disk, if an error reports one."""
    for cause in _causes(error):
        code = cause.errno if isinstance(cause, OSError) else None
        # HDF5 reports the text of the error alone, without its number.
        if code in _FULL_DISK_ERRNOS or os.strerror(errno.ENOSPC) in str(cause):
            name = cause.filename if isinstance(cause, OSError) else None
            path = Path(name) if isinstance(name, str | os.PathLike) else folder
            folders = (path.absolute(), *path.absolute().parents)
            mount = next(folder for folder in folders if folder.is_mount())
            free_mb = shutil.disk_usage(mount).free / 1e6
            reason = "your quota on it is used up" if code == errno.EDQUOT else "it is full"
            return (
                f"no space left on the disk mounted at {mount} ({reason}; without the partial "
                f"output of this step {free_mb:,.0f} MB are free): make room there, or set outdir "
                "to a folder on another disk, and run again"
            )
    return None


def _failed_disk_message(error: BaseException) -> str | None:
    """Message, if an error reports that a disk failed or that a partial output is gone."""
    for cause in _causes(error):
        name = str(getattr(cause, "filename", None) or "")
        # Several threads write a file: the first error may come from one that finds it missing.
        if os.strerror(errno.EIO) in str(cause) or ".partial" in name:
            reason = " ".join(str(cause).split())
            return (
                f"the disk failed while an output was written ({reason}): check the disk, and give "
                "the same command again"
            )
    return None


def _causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _may_use_gpu(args: argparse.Namespace) -> bool:
    """Whether the options allow a GPU or ask for workers of Dask."""
    requested = getattr(args, "backend", None)
    return requested is not None and (requested != "cpu" or bool(args.cluster))


@contextmanager
def _use_device(args: argparse.Namespace, record: dict[str, Any]) -> Iterator[None]:
    """Context with the GPU that the options request; its facts are added to the record."""
    requested = getattr(args, "backend", None)
    if not _may_use_gpu(args):
        record |= {"backend": "cpu"} if requested else {}
        yield
        return
    backend = _backend()
    limit = None if args.memory_limit == _NO_LIMIT else args.memory_limit
    cluster = json.loads(args.cluster) if args.cluster else None
    if cluster and cluster["kind"] == "local-cpu":
        requested = "cpu"
    with backend.use_backend(
        requested, memory_mode=args.memory, memory_limit=limit, share=args.gpu_share, on=cluster
    ) as found:
        record["backend"] = found
        yield
        if found == "gpu":
            record["gpu"] = backend.gpu_record()


def block_sizes(args: argparse.Namespace) -> dict[str, int]:
    """``block_budget`` and ``largest_block`` of a running script, which are larger on a GPU. They
    divide data into blocks, and do not depend on the threads.
    """
    from scatlas.compute import threads

    budget, largest = block_budget(args), threads.BLOCK_BYTES
    if on_gpu(args):
        budget, largest = max(budget, threads.GPU_BUDGET), threads.GPU_BLOCK_BYTES
    return {"block_budget": budget, "largest_block": largest}


def _in_flight(args: argparse.Namespace) -> dict[str, int]:
    """As :func:`block_sizes`; the budget ``auto`` has memory for the blocks of all threads."""
    sizes = block_sizes(args)
    if args.block_budget == "auto" and not on_gpu(args):
        needed = sizes["largest_block"] * (args.threads + 1)  # one waits for its consumer
        sizes["block_budget"] = max(sizes["block_budget"], needed)
    return sizes


def block_budget(args: argparse.Namespace) -> int:
    """Bytes that divide data into blocks."""
    from scatlas._util.numbers import parse_bytes
    from scatlas.compute.threads import DEFAULT_BUDGET

    return DEFAULT_BUDGET if args.block_budget == "auto" else parse_bytes(args.block_budget)


def on_gpu(args: argparse.Namespace) -> bool:
    return hasattr(args, "backend") and _backend().current_backend() == "gpu"


def _backend() -> ModuleType:
    # Not an import statement, so not in the code hash (scatlas.workflow.code_hash): the device does
    # not decide the outputs, and a change of that module must not rerun every step.
    return import_module("scatlas.compute.backend")


@cache
def versions() -> dict[str, str]:
    """Versions of Python, of scatlas and of the packages that results depend on."""
    from importlib.metadata import version

    packages = {package: version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), "scatlas": __version__, **packages}


def run_main(main: Callable[[], None], *, blocks: bool = True) -> None:
    """Run the main function of a script: log to standard error, end on bad input with one sentence.
    ``blocks``: its memory holds row blocks (:func:`scatlas.compute.memory.reuse_memory`).
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # a thousand lines for each PDF
    logging.captureWarnings(capture=True)
    # Python puts the script's folder first on the path, where umap.py hides the package umap.
    folder = str(Path(sys.argv[0]).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != folder]
    from scatlas.compute.memory import reuse_memory

    reuse_memory(blocks=blocks)
    # Imported objects stay; searching them for garbage would take a tenth of a second.
    gc.freeze()
    try:
        main()
    except PlateLeftOut as reason:
        logger.warning("the plate is left out: %s", reason)
    except ScatlasError as error:
        sys.exit(f"error: {error}")


def add_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--labels",
        type=json.loads,
        default="{}",
        metavar="JSON",
        help="by plate, the values of further obs columns: {PLATE: {COLUMN: VALUE}}",
    )


def add_obsm(parser: argparse.ArgumentParser) -> None:
    """Add the option with components that the map is of, if they are not those of pca."""
    parser.add_argument(
        "--obsm",
        nargs="+",
        default=[],
        metavar="NAME=PATH",
        help="further components of all cells: harmony.zarr or latent.zarr",
    )


def write_table(path: Path, table: pd.DataFrame) -> None:
    from scatlas.io.files.atomic import atomic_path

    with atomic_path(path) as partial:
        table.to_csv(partial, sep="\t", index=False, lineterminator="\n")


def plate_paths(values: list[str]) -> dict[str, Path]:
    """Paths by plate, or another name, from ``PLATE=PATH`` options, in their order."""
    return {plate: Path(path) for plate, _, path in (value.partition("=") for value in values)}
