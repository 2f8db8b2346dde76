"""Damage thousands of files; each must end in a clear error or in correct data.

    python bench/fuzz.py --n 10000 --seed 0

Case ``i`` depends on its number alone: ``--n 1 --seed 4711`` repeats case 4711. Worker processes
run many cases each. A worker that crashes, or exceeds the time limit of one case, is replaced, and
its current case is reported. `tests.helpers.fuzz_cases` defines a defect. Ends with exit status 1
if there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(ROOT))

from tests.helpers.fuzz import BASES, Damage, damage, make  # noqa: E402
from tests.helpers.fuzz_cases import DEFECTS, FINE, Cases, Outcome, Result, base_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_START_SECONDS = 300  # the first start may compile kernels
_ADDRESS_SPACE = 1_500_000_000  # above the mapped memory of a worker at its start
_FILES = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=10_000, help="cases")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=30, help="seconds for one case")
    parser.add_argument("--out", type=Path, help="file for all outcomes, one JSON object per line")
    args = parser.parse_args()
    start = time.monotonic()
    results = []
    for result in run(range(args.seed, args.seed + args.n), args.workers, args.limit):
        results.append(result)
        for op, outcome in result.defects.items():
            print(f"case {result.seed} ({result.base}; {result.what}), {op}: {outcome.kind}")
            print("    " + outcome.detail.strip().replace("\n", "\n    "), flush=True)
    if args.out:
        lines = (json.dumps(asdict(result)) for result in sorted(results, key=lambda r: r.seed))
        args.out.write_text("".join(f"{line}\n" for line in lines))
    print(table(results))
    print(f"{args.n} cases in {time.monotonic() - start:.0f} s")
    return any(result.defects for result in results)


def table(results: list[Result]) -> str:
    """Table of outcomes by base; load and read_lazy of a file count as two."""
    defects = [kind for kind in DEFECTS if any(kind in _kinds(r) for r in results)]
    columns = [*FINE, *defects]
    lines = [f"{'':<26}{'cases':>7}" + "".join(f"{column:>9}" for column in columns)]
    for name in [*BASES, "all"]:
        these = [r for r in results if name in (r.base, "all")]
        found = Counter(kind for r in these for kind in _kinds(r))
        cells = "".join(f"{found[column]:>9}" for column in columns)
        lines.append(f"{name:<26}{len(these):>7}{cells}")
    return "\n".join(lines)


def _kinds(result: Result) -> list[str]:
    return [outcome.kind for outcome in result.outcomes.values()]


# -- the supervisor ------------------------------------------------------------------------------


@dataclass
class _Worker:
    process: Any
    pipe: Any
    log: Path
    deadline: float
    seed: int | None = None
    phase: str = "start"


def run(
    seeds: Sequence[int], n_workers: int, limit: float = 30, kind: type[Cases] = Cases
) -> Iterator[Result]:
    """Yield the results of all cases as they end.

    Parameters
    ----------
    seeds
        Numbers of the cases.
    n_workers
        Processes at the same time.
    limit
        Seconds for one case; then its process is killed with the stacks of all threads shown. The
        machine may have been busy: a case is blamed when it takes too long twice.
    kind
        What runs the cases in the workers.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.fuzz_cases", "hdf5plugin"])
    due = iter(seeds)
    slow: dict[int, dict[str, Outcome]] = {}  # stacks of cases that took too long
    numbers = itertools.count()
    with tempfile.TemporaryDirectory(prefix="scatlas-fuzz-") as folder:
        names = {base_of(seed) for seed in seeds[: len(BASES)]}
        (Path(folder) / "bases").mkdir()
        bases = {name: make(name, Path(folder) / "bases") for name in names}

        def hire() -> _Worker:
            home = Path(folder) / f"worker{next(numbers)}"
            home.mkdir()
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(kind(home, bases), theirs), daemon=True)
            process.start()
            theirs.close()
            return _Worker(process, ours, home / "log", time.monotonic() + _START_SECONDS)

        workers = [hire() for _ in range(min(n_workers, len(seeds)))]
        try:
            while workers:
                timeout = max(0, min(w.deadline for w in workers) - time.monotonic())
                ready = wait([w.pipe for w in workers], timeout)
                for worker in [*workers]:
                    if worker.pipe in ready:
                        result = _receive(worker, limit)
                    elif time.monotonic() > worker.deadline:
                        result = _kill(worker, limit)
                    else:
                        continue
                    if result is not None:
                        result.what = damage(bases[result.base], result.seed).what
                        result.outcomes |= slow.get(result.seed, {})
                        if "hang" in _kinds(result) and result.seed not in slow:
                            (where,) = result.outcomes.values()
                            slow[result.seed] = {"first": Outcome("slow", where.detail)}
                            due = itertools.chain([result.seed], due)
                        else:
                            yield result
                    if worker.phase == "gone":
                        workers[workers.index(worker)] = hire()
                    elif worker.phase == "ready":
                        worker.seed = next(due, None)
                        worker.phase, worker.deadline = "damage", time.monotonic() + limit
                        worker.pipe.send(worker.seed)
                        if worker.seed is None:
                            workers.remove(worker)
                            worker.process.join()
        finally:
            for worker in workers:
                worker.process.kill()


def _receive(worker: _Worker, limit: float) -> Result | None:
    """Receive a message: the start of an operation, or a result; a closed pipe is a crash."""
    try:
        message = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return _blame(worker, "crash", f"exit status {worker.process.exitcode}")
    if isinstance(message, Result):
        worker.phase = "ready"
        return message
    worker.phase = message
    if message != "ready":
        worker.deadline = time.monotonic() + limit
    return None


def _kill(worker: _Worker, limit: float) -> Result:
    os.kill(worker.process.pid, signal.SIGABRT)  # faulthandler writes the stack of each thread
    worker.process.join(10)
    worker.process.kill()
    worker.process.join()
    return _blame(worker, "hang", f"not done after {limit:g} s")


def _blame(worker: _Worker, kind: str, detail: str) -> Result:
    log = worker.log.read_text(errors="replace") if worker.log.exists() else ""
    log = log[log.rfind("Fatal Python error") :].partition("\nExtension modules")[0][:6000]
    if worker.seed is None:
        msg = f"a worker did not start: {detail}: {log}"
        raise RuntimeError(msg)
    phase, worker.phase = worker.phase, "gone"
    outcome = Outcome(kind, f"{detail}\n{log}")
    return Result(worker.seed, base_of(worker.seed), "", {phase: outcome})


# -- a worker ------------------------------------------------------------------------------------


def _work(cases: Cases, pipe: Any) -> None:
    log = (cases.folder / "log").open("w")
    for standard in (1, 2):  # HDF5's plugins print errors
        os.dup2(log.fileno(), standard)
    faulthandler.enable(log)
    for name, base in cases.bases.items():
        # Undamaged files first: loads code, starts threads, and checks the files.
        file = min(base.files)
        result = cases.judge(-1, name, Damage(file, base.files[file], "nothing", guarded=True))
        if any(outcome.kind != "correct" for outcome in result.outcomes.values()):
            msg = f"the undamaged base {name} is not read: {result}"
            raise RuntimeError(msg)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES,) * 2)  # to notice files that stay open
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send("ready")
    while (seed := pipe.recv()) is not None:
        pipe.send(cases.run(seed, pipe.send))


if __name__ == "__main__":
    sys.exit(main())
