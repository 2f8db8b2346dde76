"""Call every public function with matrices of any type, layout and shape; check the results.

    python bench/adversarial.py --seconds 3600 --seed 0

The tests of `tests/adversarial` use a few fixed examples; this program draws random ones for some
time. The functions take turns, each with --turn examples. Prints each failing example, shrunk, and
the number of examples per function. Ends with exit status 1 if one failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import scanpy
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.adversarial.functions import FUNCTIONS  # noqa: E402
from tests.adversarial.judge import Function, judge  # noqa: E402

_QUIET = settings(
    database=None,
    deadline=None,
    derandomize=False,
    phases=[Phase.generate, Phase.shrink],
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="when to stop")
    parser.add_argument("--turn", type=int, default=50, help="examples of a function in a turn")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first turn; each turn adds one"
    )
    parser.add_argument("--only", default="", help="only functions whose name contains this text")
    args = parser.parse_args()
    table = {name: function for name, function in FUNCTIONS.items() if args.only in name}
    logging.disable(logging.WARNING)
    scanpy.settings.verbosity = "error"
    start, turn = time.monotonic(), args.seed
    seen: Counter[str] = Counter()
    failed: dict[str, str] = {}
    while time.monotonic() - start < args.seconds and len(failed) < len(table):
        for name, function in table.items():
            if name in failed or time.monotonic() - start > args.seconds:
                continue
            n, found = examples(function, turn, args.turn)
            seen[name] += n
            if found:
                failed[name] = found
                print(f"{name}: FAILED in turn {turn}\n{found}", flush=True)
        turn += 1
    for name in table:
        print(f"{name:<50}{seen[name]:>8}  {'FAILED' if name in failed else 'as promised'}")
    total = sum(seen.values())
    print(f"{total:,} examples in {time.monotonic() - start:.0f} s, {len(failed)} functions failed")
    return bool(failed)


def examples(function: Function, turn: int, n: int) -> tuple[int, str]:
    """Number of judged examples, and the smallest failure."""
    judged = 0
    last = ""  # in the end the failure, which Hypothesis runs once more

    @seed(turn)
    @settings(_QUIET, max_examples=n)
    @given(function.values, function.forms)
    def check(values, form):
        nonlocal judged, last
        judged += 1
        last = f"{values}\n{form}"
        judge(function, values, form)

    try:
        check()
    except Exception as error:  # noqa: BLE001 - every exception is a failure
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        return judged, f"{type(error).__name__}: {error}\n{where}{last}"
    return judged, ""


if __name__ == "__main__":
    sys.exit(main())
