"""Damaged files: one of each layout, others each week; ``bench/fuzz.py`` reads ten thousand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench import fuzz
from scatlas.errors import InputError
from tests.conftest import WEEK
from tests.helpers import fuzz_cases
from tests.helpers.fuzz import BASES, Base, Damage, covered, damage, make
from tests.helpers.fuzz_cases import Cases, Outcome, Result, base_of

pytestmark = pytest.mark.slow

# Each base as often as any other.
SEEDS = range(50_000, 50_000 + len(BASES))
SEEDS_OF_A_WEEK = range(WEEK * 1000, WEEK * 1000 + 20 * len(BASES))
# A loop in libhdf5, a crash in its Blosc plugin, chunks sought in a wrong place.
DEFECTS_OF_THE_PAST = (30_001_502, 30_003_366, 20_261_477)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """All cases of this file in one run, because its processes take seconds to start."""
    return run([*SEEDS, *DEFECTS_OF_THE_PAST])


def run(seeds: Sequence[int]) -> list[Result]:
    return list(fuzz.run(seeds, n_workers=min(2, os.cpu_count() or 1), limit=300))


def test_damaged_files_end_in_an_error_or_in_correct_data(results: list[Result]):
    check([result for result in results if result.seed in SEEDS], SEEDS)


@pytest.mark.weekly
def test_damages_of_the_week():
    check(run(SEEDS_OF_A_WEEK), SEEDS_OF_A_WEEK)


def check(results: list[Result], seeds: Sequence[int]) -> None:
    assert sorted(result.seed for result in results) == list(seeds)
    defects = {
        f"case {result.seed} of {result.base} ({result.what}), {op}": outcome
        for result in results
        for op, outcome in result.defects.items()
    }
    assert not defects
    kinds = [outcome.kind for result in results for outcome in result.outcomes.values()]
    # The damage does hurt; some of it does not matter, and some no format would notice.
    assert kinds.count("error") > len(kinds) / 2
    assert kinds.count("correct") > len(kinds) / 50
    assert kinds.count("wrong") > len(kinds) / 50


def test_damage_that_was_a_defect(results: list[Result]):
    found = {result.seed: result.defects for result in results if result.seed not in SEEDS}
    assert found == {seed: {} for seed in DEFECTS_OF_THE_PAST}


# -- the fuzz sees what it should see ------------------------------------------------------------


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Base]:
    names = ("h5-chunked", "h5-gzip", "z3-shards-blosc-crc32c")
    return {name: make(name, tmp_path_factory.mktemp(name)) for name in names}


@pytest.fixture
def cases(bases, tmp_path) -> Cases:
    return Cases(tmp_path, bases)


def first_one_doubled(base: Base, *, guarded: bool) -> Damage:
    """The first 1 of X became 2, both as little-endian float32."""
    content = base.files[""]
    at = content.index(b"\x00\x00\x80\x3f", base.values[""][0][0])
    content = content[:at] + b"\x00\x00\x00\x40" + content[at + 4 :]
    return Damage("", content, "one value", guarded)


def kinds(result: Result) -> set[str]:
    return {outcome.kind for outcome in result.outcomes.values()}


def nothing(base: Base) -> Damage:
    file = sorted(base.values)[0]
    return Damage(file, base.files[file], "nothing", guarded=True)


@pytest.mark.parametrize("name", ["h5-chunked", "h5-gzip", "z3-shards-blosc-crc32c"])
def test_what_is_not_damaged_is_correct(cases, name):
    for seed in range(2):
        assert kinds(cases.judge(seed, name, nothing(cases.bases[name]))) == {"correct"}
    assert not list((cases.folder).glob("out/*"))


def test_wrong_values_have_an_excuse_only_without_a_checksum(cases):
    base = cases.bases["h5-chunked"]
    for guarded, kind in ((False, "wrong"), (True, "silent")):
        done = first_one_doubled(base, guarded=guarded)
        assert kinds(cases.judge(0, "h5-chunked", done)) == {kind}


def test_values_that_the_library_does_not_read(cases, monkeypatch):
    """A reader that is wrong where h5py is right, or where h5py refuses."""
    good = replace(nothing(cases.bases["h5-gzip"]), guarded=False)
    monkeypatch.setattr(cases, "x", cases.x * 2)  # what is right is now wrong
    assert kinds(cases.judge(0, "h5-gzip", good)) == {"wrong"}
    monkeypatch.setattr(fuzz_cases, "read_reference", lambda path: 1 / 0)
    outcomes = cases.judge(0, "h5-gzip", good).outcomes
    assert outcomes["lazy"].kind == "unlike"


def raises(error: Exception):
    def load_plate(path, out, **_):
        raise type(error)(str(error).format(path=path))

    return load_plate


def leaves_a_file(path, out, **_):
    out.mkdir(parents=True)
    raise InputError(f"{path}: no")


def takes_memory(path, out, **_):
    np.ones(fuzz_cases.MOST_MEMORY // 8 + 10**6)
    raise InputError(f"{path}: no")


@pytest.mark.parametrize(
    "load_plate, kind",
    [
        (raises(ValueError("no")), "foreign"),
        (raises(MemoryError()), "memory"),
        (raises(InputError("a sentence without the path")), "message"),
        (raises(InputError("{path}: two\nlines")), "message"),
        (raises(InputError("{path}: one sentence")), "error"),
        (leaves_a_file, "leftover"),
        (takes_memory, "memory"),
    ],
)
def test_a_wrong_end_of_load_is_a_defect(cases, monkeypatch, load_plate, kind):
    monkeypatch.setattr(fuzz_cases, "load_plate", load_plate)
    result = cases.judge(0, "h5-gzip", nothing(cases.bases["h5-gzip"]))
    assert result.outcomes["load"].kind == kind
    assert list(result.defects) == ([] if kind == "error" else ["load"])


class Bad(Cases):
    """Crashes in case 1, hangs in case 2 once, in case 3 always; case 4 lacks memory."""

    def run(self, seed, tell):
        tell("load")
        if seed == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if seed == 3 or (seed == 2 and not (self.folder.parent / "2").exists()):
            (self.folder.parent / str(seed)).touch()
            time.sleep(1000)
        if seed == 4:
            with pytest.raises(MemoryError):
                bytearray(2**41)
        return Result(seed, base_of(seed), "", {"load": Outcome("error")})


def test_crashes_and_hangs_are_blamed_on_their_case():
    results = {r.seed: r for r in fuzz.run(range(6), n_workers=2, limit=4, kind=Bad)}
    assert sorted(results) == list(range(6))
    found = {seed: [o.kind for o in r.outcomes.values()] for seed, r in results.items()}
    once = {seed: ["error"] for seed in range(6)}
    assert found == {**once, 1: ["crash"], 2: ["error", "slow"], 3: ["hang", "slow"]}
    assert results[1].what
    assert "exit status -11" in results[1].outcomes["load"].detail
    assert "Segmentation fault" in results[1].outcomes["load"].detail
    assert "time.sleep" not in results[3].outcomes["load"].detail
    assert "in run" in results[3].outcomes["load"].detail


# -- the damage ----------------------------------------------------------------------------------


def test_damage_depends_on_its_number_alone(bases, tmp_path):
    for name, base in bases.items():
        again = make(name, tmp_path)
        assert again.files == base.files
        for seed in range(40):
            assert damage(base, seed) == damage(again, seed)
        assert len({damage(base, seed).content for seed in range(40)}) > 30


@pytest.mark.parametrize(
    "new, guarded, wanted",
    [
        (b"abXdef", [(2, 4)], True),
        (b"abXdXf", [(2, 4)], False),
        (b"abXdXf", [(2, 3), (4, 6)], True),
        (b"ab", [(2, 6)], True),
        (b"ab", [(2, 5)], False),
        (b"abXdef", [], False),
    ],
)
def test_where_a_checksum_covers_the_damage(new, guarded, wanted):
    assert covered(b"abcdef", new, guarded) == wanted
