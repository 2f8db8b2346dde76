"""Damage a small atlas in thousands of ways; each must end in the right bytes or in a sentence.

    python bench/chaos.py --faults 2000 --workers 2
    python bench/chaos.py --seed 0 --only 4711

Fault ``i`` of a seed depends on these two numbers alone, as far as parallel processes allow.
Outcomes are appended to a file in the folder, and an interrupted run continues from it.
`tests.chaos.faults` lists the faults, `tests.chaos.case` defines a wrong end. Ends with exit status
1 if there is one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    os.environ["PYTHONPATH"] = str(ROOT / "src")

import runner  # noqa: E402

from tests.chaos.atlas import Atlas, code_digest  # noqa: E402
from tests.chaos.faults import KINDS, kind_of  # noqa: E402
from tests.chaos.machine import Outcome, attempt  # noqa: E402

ENDS = ("right", "sentence", "wrong", "skipped", "broken")


def main() -> int:
    parser = runner.parser(__doc__, faults=100, first=0, seed=0, workers=1)
    parser.add_argument("--only", type=int, nargs="+", help="only these faults, with their output")
    parser.add_argument("--kind", choices=KINDS, help="only faults of this kind")
    parser.add_argument("--quick", action="store_true", help="few undisturbed builds, as in CI")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/chaos", help="for atlases")
    args = parser.parse_args()
    folder = args.folder / code_digest()
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f"outcomes-{args.seed}{'-quick' * args.quick}.jsonl"
    numbers = args.only or range(args.first, args.first + args.faults)
    if args.kind:
        numbers = [number for number in numbers if kind_of(number) == args.kind]
    known = {} if args.only else read(journal)
    outcomes = [known[number] for number in numbers if number in known]
    due = [number for number in numbers if number not in known]
    if outcomes:
        print(f"{len(outcomes)} of {len(numbers)} faults are known from an earlier run")
    Atlas(folder).make()
    with ProcessPoolExecutor(
        args.workers, multiprocessing.get_context("spawn"), prepare, (folder,)
    ) as pool:
        running = [pool.submit(one, args.seed, number, args.quick) for number in due]
        for done in as_completed(running):
            outcome = done.result()
            outcomes.append(outcome)
            if args.only:
                print(outcome.log)
            else:
                with journal.open("a") as stream:
                    stream.write(json.dumps(asdict(outcome)) + "\n")
            print(line(outcome), flush=True)
    runner.publish(report(outcomes, args.seed), args.out)
    return any(outcome.end in ("wrong", "broken") for outcome in outcomes)


def prepare(folder: Path) -> None:
    """End a worker when its parent process ends, for any reason."""
    global _atlas
    _atlas = Atlas(folder)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def one(seed: int, number: int, quick: bool) -> Outcome:
    return attempt(_atlas, seed, number, quick=quick)


def read(journal: Path) -> dict[int, Outcome]:
    """Outcomes of an interrupted run; its last line may be incomplete."""
    found = {}
    if journal.exists():
        for text in journal.read_text().splitlines():
            try:
                outcome = Outcome(**json.loads(text))
            except ValueError:
                continue
            found[outcome.number] = outcome
    return found


def line(outcome: Outcome) -> str:
    what = f"{outcome.number:>5} {outcome.kind:<24}{outcome.end:<9}{outcome.seconds:>6} s"
    if outcome.end not in ("wrong", "broken"):
        return what
    again = f"python bench/chaos.py --seed {outcome.seed} --only {outcome.number}"
    happened = [
        text
        for part in re.split(r"^--- run (.*?)^---$", outcome.log, flags=re.DOTALL | re.MULTILINE)[
            ::2
        ]
        for text in part.splitlines()
        if text
    ]
    return "\n    ".join([what, again, *happened, f"WRONG: {outcome.why}"])


def report(outcomes: list[Outcome], seed: int) -> list[str]:
    """Lines of a result: machine, and the outcomes by kind of fault."""
    hours = sum(o.seconds for o in outcomes) / 3600
    ends = [end for end in ENDS if end in ENDS[:3] or any(o.end == end for o in outcomes)]
    lines = [
        *runner.head("anndata", "dask", "h5py", "numba", "numpy", "zarr", "snakemake"),
        f"# {len(outcomes)} faults of seed {seed}, {hours:.1f} h of work",
        f"{'':<26}{'faults':>8}" + "".join(f"{end:>10}" for end in ends),
    ]
    for kind in [*KINDS, "all"]:
        these = Counter(o.end for o in outcomes if kind in (o.kind, "all"))
        if these:
            row = "".join(f"{these[end]:>10}" for end in ends)
            lines.append(f"{kind:<26}{these.total():>8}{row}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
