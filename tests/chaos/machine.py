"""Run one numbered fault and report its end."""

from __future__ import annotations

import shutil
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from tests.chaos.atlas import Atlas, scratch
from tests.chaos.case import Case, WrongEnd
from tests.chaos.faults import KINDS, NEED_COMPILER, kind_of


@dataclass(frozen=True)
class Outcome:
    """End of a fault."""

    seed: int
    number: int
    kind: str
    end: str  # right, sentence, wrong, skipped (no compiler), broken (the machine)
    why: str  # of a wrong end; else the last sentences
    seconds: float
    log: str  # events with the output of the runs


def attempt(atlas: Atlas, seed: int, number: int, *, quick: bool = False) -> Outcome:
    """Run a fault in a temporary folder; it depends on its numbers alone."""
    kind = kind_of(number)
    start = time.monotonic()

    def outcome(end: str, why: str, log: list[str]) -> Outcome:
        seconds = round(time.monotonic() - start, 1)
        return Outcome(seed, number, kind, end, why, seconds, "\n".join(log))

    if kind in NEED_COMPILER and not atlas.library:
        return outcome("skipped", "no C compiler makes writes fail here", [])
    place = Path(mkdtemp(prefix=f"scatlas-chaos-{seed}-{number}-", dir=scratch()))
    project = atlas.base.copied(place / "project")
    case = Case(atlas, project, Random(f"{seed}/{number}"), quick)
    try:
        end = KINDS[kind](case)
        return outcome(end, "; ".join(sorted(case.said)) if end == "sentence" else "", case.log)
    except WrongEnd as error:
        return outcome("wrong", str(error), case.log)
    except Exception:  # noqa: BLE001  (a fault of the machine must not end the others)
        return outcome("broken", traceback.format_exc(), case.log)
    finally:
        case.kill()
        with suppress(WrongEnd):
            case.wait_for_orphans()
        shutil.rmtree(place, ignore_errors=True)
