"""What every script of the workflow shares: options, log, one-sentence errors, manifest.

A step leaves two small JSON files beside its outputs. The *manifest* says what was made (counts,
checksums) and nothing that changes from run to run, so that a step which makes the same thing
again reruns nothing after it. The *run record* (:func:`scatlas.workflow.integrity.run_record`) says
how: versions, seconds, peak memory, and the files that were written.
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
import re
import shutil
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas._version import __version__
from scatlas.errors import DiskError, InputError, ScatlasError
from scatlas.workflow.integrity import explain, run_record, stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

logger = logging.getLogger("scatlas")
_PACKAGES = ("anndata", "dask", "h5py", "numba", "numpy", "pandas", "scipy", "zarr")
_NO_LIMIT = "none"
# What the system answers where nothing more can be written.
_FULL = {errno.ENOSPC, errno.EDQUOT}


def parser(doc: str | None, *, gpu: bool = False) -> argparse.ArgumentParser:
    """Option parser of a script with the options all of them share.

    Parameters
    ----------
    doc
        Description of the script.
    gpu
        Whether the step can work on a GPU; :func:`run` then claims one as the options say.
    """
    new = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    new.add_argument(
        "--manifest", type=Path, required=True, help="JSON file that says what was made"
    )
    new.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads")
    new.add_argument("--attempt", type=int, default=1, help="above 1, after a failure: which one")
    new.add_argument(
        "--block-budget", default="256MB", help="memory for the row blocks in flight, as 256MB"
    )
    if gpu:
        new.add_argument(
            "--backend",
            choices=["auto", "cpu", "gpu"],
            default="auto",
            help="what to work on; auto: a GPU where one can be used, else the CPU",
        )
        new.add_argument(
            "--memory",
            choices=["pool", "managed", "async", "default"],
            default="pool",
            help="how memory of the GPU is handed out",
        )
        new.add_argument(
            "--memory-limit",
            default=_NO_LIMIT,
            help="the most memory of the GPU that is handed out, as 60GB",
        )
        new.add_argument(
            "--cluster",
            default=os.environ.get("SCATLAS_CLUSTER", ""),
            help="section compute.cluster of the config, as JSON",
        )
    return new


@contextmanager
def run(
    args: argparse.Namespace, *, outputs: list[Path], reports: list[Path] | None = None
) -> Iterator[dict[str, Any]]:
    """Run a step: use its threads, report its passes, and write its manifest when it ends well.

    A step that can work on a GPU finds out with :func:`scatlas.compute.backend.current` whether it
    has one.

    Parameters
    ----------
    args
        Options of :func:`parser`.
    outputs
        Files and stores that the step writes; the manifest holds their checksums.
    reports
        Files and folders that it writes besides, which tell of the run and differ from run to run.

    Yields
    ------
    Facts for the manifest, to be filled by the step.
    """
    from scatlas.compute.progress import progress
    from scatlas.compute.threads import use_threads
    from scatlas.io.files.checksums import checksum_of, file_digests, write_json
    from scatlas.io.files.stamps import stamp

    name = " ".join([Path(sys.argv[0]).stem, *filter(None, [getattr(args, "plate", None)])])
    with _alone(args.manifest):
        start = time.monotonic()
        source = {"source": stamp(args.source)} if hasattr(args, "source") else {}
        facts: dict[str, Any] = {}
        # Snakemake tries again with more memory. That mends no input: the sentence is remembered,
        # so that hours of reading are not spent three times.
        refused = args.manifest.with_suffix(".refused")
        if args.attempt > 1 and refused.exists():
            raise InputError(refused.read_text(encoding="utf-8"))
        refused.unlink(missing_ok=True)
        device: dict[str, Any] = {}
        with (
            _device(args, device),
            use_threads(args.threads, **block_sizes(args)),
            progress(name),
            _remembered(args, refused),
        ):
            yield facts
        digests = {path: file_digests(path) for path in [*outputs, *(reports or [])]}
        facts["outputs"] = {path.name: checksum_of(digests[path]) for path in outputs}
        peak = _peak_memory()
        seconds = round(time.monotonic() - start, 3)
        record = {
            "versions": versions(),
            "seconds": seconds,
            "peak_memory_bytes": peak,
            "threads": args.threads,
            **device,
            **stamps(args.manifest, facts, digests),
            **source,
            "plan": os.environ.get("SCATLAS_PLAN"),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        with _remembered(args, refused):
            write_json(run_record(args.manifest), record)
            write_json(args.manifest, facts)
        logger.info("%s: done in %.1f s, peak memory %.0f MB", name, seconds, peak / 1e6)


@contextmanager
def _alone(manifest: Path) -> Iterator[None]:
    """Wait for a process that still works on the same step: one whose Snakemake was killed."""
    path = run_record(manifest).with_suffix(".lock")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s: a process of an earlier run is still at it, waiting for it", manifest)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # a full disk, or a file system without locks
            logger.info("%s cannot be locked: %s", path, error)
        yield


@contextmanager
def _remembered(args: argparse.Namespace, refused: Path) -> Iterator[None]:
    """Write down the sentence of what more memory cannot mend: bad input, and a full disk."""
    from scatlas.io.files.atomic import atomic_path

    try:
        yield
    except Exception as error:
        full = _no_space(error, refused.parent)
        if not full and (failed := _failed_disk(error)):
            raise DiskError(failed) from error  # the next attempt may fare better
        sentence = full or _damage(error, args)
        if sentence is None and isinstance(error, InputError):
            sentence = str(error)
        if sentence is None:
            raise
        # Where the disk is full, what was written in part is gone by now, which makes room for it;
        # if it does not, the step is tried again in vain.
        with suppress(OSError), atomic_path(refused) as partial:
            partial.write_text(sentence, encoding="utf-8")
        if isinstance(error, InputError) and sentence == str(error):
            raise
        raise (DiskError if full else InputError)(sentence) from error


def _damage(error: Exception, args: argparse.Namespace) -> str | None:
    """A sentence that names the output of an earlier step that is damaged, and how to mend it."""
    from scatlas.io.files.anndata_file import AGAIN

    if isinstance(error, InputError) and AGAIN not in str(error):
        return None
    if hasattr(args, "source"):  # what `load` reads is no output of ours
        return None
    try:
        explain(args.manifest)
    except InputError as damage:
        return str(damage)
    # Damage that leaves size and time alone is found by the checksum of a chunk.
    path = next((part for part in str(error).split(": ") if Path(part).exists()), None)
    if path is None or not isinstance(error, InputError):
        return None
    mend = f"delete it (rm -r {path}) and give the same command again, which makes it anew"
    return str(error).replace(AGAIN, mend)


def _no_space(error: BaseException | None, folder: Path) -> str | None:
    """A sentence that names the disk, if an error says that a disk is full."""
    for cause in _chain(error):
        code = cause.errno if isinstance(cause, OSError) else None
        # HDF5 gives the words, and no number.
        if code in _FULL or os.strerror(errno.ENOSPC) in str(cause):
            name = cause.filename if isinstance(cause, OSError) else None
            named = isinstance(name, str | os.PathLike)
            place = (Path(name) if named else folder).absolute()
            while not place.is_mount() and place != place.parent:
                place = place.parent
            free = shutil.disk_usage(place).free / 1e6
            why = "your quota on it is used up" if code == errno.EDQUOT else "it is full"
            return (
                f"no space left on the disk mounted at {place} ({why}; without what this step had "
                f"begun, {free:,.0f} MB are free): make room there, or set outdir to a folder on "
                "another disk, and run again"
            )
    return None


def _failed_disk(error: BaseException) -> str | None:
    """A sentence, if an error says that a disk failed, or that what is being written is gone."""
    for cause in _chain(error):
        name = str(getattr(cause, "filename", None) or "")
        # Of a file that is written by several threads another may tell first that it is gone.
        if os.strerror(errno.EIO) in str(cause) or ".partial" in name:
            why = " ".join(str(cause).split())
            return (
                f"the disk did not take what was written ({why}): look after the disk, and give "
                "the same command again"
            )
    return None


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error, what caused it, and so on."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


@contextmanager
def _device(args: argparse.Namespace, record: dict[str, Any]) -> Iterator[None]:
    """Context in which a step has the GPU that its options ask for; the record says which."""
    asked = getattr(args, "backend", None)
    if asked is None or (asked == "cpu" and not args.cluster):
        record |= {"backend": "cpu"} if asked else {}
        yield
        return
    backend = _backend()
    limit = None if args.memory_limit == _NO_LIMIT else args.memory_limit
    cluster = json.loads(args.cluster) if args.cluster else None
    if cluster and cluster["kind"] == "local-cpu":
        asked = "cpu"
    with backend.use(asked, memory_mode=args.memory, memory_limit=limit, on=cluster) as found:
        record["backend"] = found
        yield
        if found == "gpu":
            record["gpu"] = backend.record()


def block_sizes(args: argparse.Namespace) -> dict[str, int]:
    """``block_budget`` and ``largest_block`` of a running step: larger where it has a GPU.

    They depend on the step's options and on where it works alone.
    """
    from scatlas._util.byte_sizes import parse_bytes
    from scatlas.compute import threads

    budget, largest = parse_bytes(args.block_budget), threads.BLOCK_BYTES
    if on_gpu(args):
        budget, largest = max(budget, threads.GPU_BUDGET), threads.GPU_BLOCK_BYTES
    return {"block_budget": budget, "largest_block": largest}


def on_gpu(args: argparse.Namespace) -> bool:
    """Whether a running step works on a GPU."""
    return hasattr(args, "backend") and _backend().current() == "gpu"


def _backend() -> ModuleType:
    # Not an import statement: where a step works is no part of what it makes, and a change there
    # must not run every step again (scatlas.workflow.code_hash).
    return import_module("scatlas.compute.backend")


@cache
def versions() -> dict[str, str]:
    """Versions of Python, of scatlas and of the packages that results may depend on."""
    from importlib.metadata import version

    packages = {package: version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), "scatlas": __version__, **packages}


def _peak_memory() -> int:
    """Bytes that this process had resident at most."""
    # getrusage would count the process that has started this one as well.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1])


def execute(main: Callable[[], None], *, blocks: bool = True) -> None:
    """Run a script's main: log to standard error, and end on bad input with one sentence.

    ``blocks`` says whether its memory holds row blocks or, if not, tables
    (:func:`scatlas.compute.memory.reuse_memory`).
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.captureWarnings(capture=True)
    # Python puts a script's folder first on the path, where umap.py hides the package umap.
    folder = str(Path(sys.argv[0]).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != folder]
    from scatlas.compute.memory import reuse_memory

    reuse_memory(blocks=blocks)
    # What is imported stays: a look through it for garbage takes a tenth of a second.
    gc.freeze()
    try:
        main()
    except ScatlasError as error:
        sys.exit(f"error: {error}")


def pairs(values: list[str]) -> dict[str, Path]:
    """``PLATE=PATH`` options as a mapping, in their order."""
    return {plate: Path(path) for plate, _, path in (value.partition("=") for value in values)}
