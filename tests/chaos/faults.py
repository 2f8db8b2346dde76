"""The kinds of fault. Each damages a case; `Case.settle` then acts like a user."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos import writes
from tests.chaos.atlas import CONFIG, SHEET, Write, copy, remove
from tests.chaos.case import Case, Run, WrongEnd, unit_of

# Changes of the config that change results; the first ones reuse stored results of earlier steps.
PROBES: list[dict[str, Any]] = [
    {"pca": {"n_comps": 7}},
    {"hvg": {"n_top_genes": 90}},
    {"umap": {"min_dist": 0.3}},
    {"normalize": {"target_sum": 1000}},
    {"qc": CONFIG["qc"] | {"min_genes": 60}},
]


def _changes(of_section: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Changes of one section each; a row of qc, doublets or integrate adds to that of the atlas."""
    kept = {name: CONFIG[name] for name in ("qc", "doublets")}
    kept["integrate"] = {"key": ["plate"], "max_iter_harmony": 3}
    return [
        {name: kept.get(name, {}) | value if isinstance(value, dict) else value}
        for name, values in of_section.items()
        for value in values
    ]


_BOUNDS = ({"max_genes": 120}, {"min_counts": 90}, {"max_counts": 400}, {"max_pct_mt": 20})
VALID = PROBES + _changes(
    {
        "seed": [1],
        "qc": [
            *({"filter": None}, *_BOUNDS, {"max_pct_mt": 20, "mt_prefix": "G"}),
            *({"min_cells": 8}, {"drop_rare_genes": 5}),
        ],
        "genes": ["intersect"],
        "doublets": [
            *(None, {"expected_doublet_rate": 0.2}),
            *({"filter": True, "threshold": 0.2}, {"by": "sublibrary"}),
        ],
        "hvg": [{"n_top_genes": 100, "flavor": name} for name in ("cell_ranger", "seurat_v3")],
        "consensus": [
            *({"min_plates": 1}, {"min_plates": 3}, {"n_top_genes": 60}, {"min_plates": "60%"}),
        ],
        "scale": [{"max_value": 2.5}, {"zero_center": True}],
        "pca": [{"n_comps": 8, "zero_center": False}],
        "subset": [{"n_cells": 150}, {"n_cells": None}],
        "neighbors": [{"n_neighbors": 10}, {"n_pcs": 5}],
        "leiden": [{"resolution": 0.4}],
        "pseudobulk": [None, {"by": ["cell_line", "drug"]}],
        "integrate": [
            *(None, {"cells": "subset"}, {"key": ["donor"], "theta": 1.0}, {"umap": True}),
            *({"label": None}, {"max_iter_harmony": 2, "n_pcs": 6}),
        ],
        "report": [{"colors": ["cell_line"]}],
        "compute": [{"block_budget": "32MB"}],
    }
)
FAILING = _changes(
    {
        "qc": [
            *({"filter": "no_such_column == 1"}, {"min_genes": 10_000}),
            *({"max_pct_mt": 20, "mt_prefix": "no-such-"}, {"drop_rare_genes": 1000}),
        ],
        "doublets": [{"by": "no_such_column"}],
        "pca": [{"n_comps": 10_000}],
        "hvg": [{"n_top_genes": 0}],
        "consensus": [{"min_plates": 4}],
        "neighbors": [{"n_pcs": 100}],
        "pseudobulk": [{"by": ["no_such_column"]}],
        "integrate": [{"key": ["no_such_column"], "use": use} for use in (False, True)],
        "compute": [{"block_budget": "many"}],
        "outdir": ["my.yaml/results"],
        "plates": ["no-such-sheet.tsv"],
        "no_such_key": [1],
    }
)

# Targets of a run before another change; the last costs least.
TARGETS = [(), ("atlas",), ("consensus",), ("consensus",)]
TIMES = ["now", "long ago", "tomorrow"]

# --- helpers --------------------------------------------------------------------------------------


def change_config(case: Case, change: dict[str, Any]) -> None:
    case.note(f"config: {change}")
    case.project.config = case.atlas.base.config | change
    case.project.write_config()


def probe(case: Case) -> None:
    """A change of the config that uses stored results."""
    change_config(case, PROBES[0] if case.quick else case.rng.choice(PROBES))


def maybe_probe(case: Case, share: float = 0.4) -> None:
    if case.rng.random() < share:
        probe(case)


def back(case: Case) -> None:
    """Restore the first inputs; times of files carry no information."""
    case.note("back to the first inputs")
    base = case.atlas.base
    change_config(case, {})
    for name in ("plates", "plates.tsv"):
        copy(base.folder / name, case.project.folder / name)


def settle_and_maybe_back(case: Case) -> str:
    """Check changed inputs, which need another undisturbed build; maybe restore them."""
    if case.quick or case.rng.random() < 0.4:
        run_without_judging(case, *case.rng.choice(TARGETS))
        back(case)
    return case.settle()


def run_without_judging(case: Case, *targets: str) -> None:
    done = case.run(*targets)
    if done.code:
        case.check_sentence(done)
        case.obey(done)


def some_files(case: Case) -> list[Path]:
    """Random files of the results; every kind of output is equally likely."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for path in sorted(path for path in case.results.rglob("*") if path.is_file()):
        name = path.relative_to(case.results).as_posix()
        unit = unit_of(name)
        kind = "record" if "/runs/" in name else unit.split("/")[0]
        if kind == "plates":
            kind = unit.split("/")[-1]
        kinds.setdefault(kind, {}).setdefault(unit, []).append(name)
    chosen = []
    for _ in range(case.rng.choice([1, 1, 1, 2, 3])):
        units = case.rng.choice(list(kinds.values()))
        names = case.rng.choice(list(units.values()))
        large = [name for name in names if "/c/" in name]
        chosen.append(case.rng.choice(large if large and case.rng.random() < 0.5 else names))
    return [case.results / name for name in dict.fromkeys(chosen)]


def set_time(path: Path, when: str) -> None:
    """Clocks of file systems differ, copies lose times."""
    seconds = {"now": time.time(), "long ago": 1e9, "tomorrow": time.time() + 86_400}[when]
    os.utime(path, (seconds, seconds))


def spoil(case: Case, path: Path, data: bytes | None) -> None:
    path.unlink()  # a hard link may have another name
    if data is not None:
        path.write_bytes(data)


def step_again(case: Case, write: Write) -> None:
    """Make the step of a write run again: remove its outputs, its manifest, or everything."""
    if not case.quick and case.rng.random() < 0.1:
        case.note("a first run")
        remove(case.results)
        remove(case.project.folder / ".snakemake")
        return
    maybe_probe(case, 0.3)
    manifest = case.results / write.manifest
    steps = [manifest]
    if case.rng.random() < 0.4:  # more steps
        others = sorted(path for path in case.results.rglob("manifests/**/*.json"))
        others = [path for path in others if path.parent.name != "runs"]
        steps += case.rng.sample(others, 2)
    for path in steps:
        case.note(f"removed {path.relative_to(case.results)}")
        path.unlink(missing_ok=True)
    if case.rng.random() < 0.3:
        unit = unit_of(write.path.replace(".partial", "").replace("/.", "/").lstrip("."))
        case.note(f"removed {unit}")
        remove(case.results / unit)


def maybe_back(case: Case, share: float = 0.4) -> None:
    """Maybe restore the inputs, so the results of the disturbed run are not needed."""
    if case.rng.random() < share:
        back(case)


def some_write(case: Case) -> Write:
    """A random write; steps and files are equally likely."""
    manifests = sorted({w.manifest for w in case.atlas.writes if case.is_asked_for(w.manifest)})
    manifest = case.rng.choice(manifests)
    return case.rng.choice([write for write in case.atlas.writes if write.manifest == manifest])


def state_file(case: Case) -> Path:
    return case.project.folder.with_name(f"{case.project.folder.name}.state")


def told(case: Case, kind: str, write: Write, root: str = "") -> dict[str, str]:
    case.note(f"{kind} at write {write.nth} of {write.path}{' and later ones' if root else ''}")
    return writes.environment(state_file(case), kind, write.path, write.nth, root)


# --- damage ---------------------------------------------------------------------------------------


def damaged(how: str) -> Callable[[Case], str]:
    """Remove, cut or empty some files, or flip a bit of them."""

    def fault(case: Case) -> str:
        for path in some_files(case):
            data: bytes | None = path.read_bytes()
            n = len(data)
            at = case.rng.randrange(n) if n and how in ("cut", "flipped") else 0
            if how == "flipped" and n:
                bit = 1 << case.rng.randrange(8)
                data = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            elif how != "flipped":
                data = None if how == "removed" else data[:at]
            case.note(f"{how} at {at} of {n} bytes: {path.relative_to(case.results)}")
            spoil(case, path, data)
        maybe_probe(case)
        return case.settle()

    return fault


def remove_store(case: Case) -> str:
    folders = [path for path in sorted(case.results.rglob("*")) if path.is_dir()]
    named = [path for path in folders if ".zarr" not in str(path.parent)]
    inner = [path for path in folders if ".zarr" in str(path.parent)]
    path = case.rng.choice(named if case.rng.random() < 0.7 else inner)
    if case.rng.random() < 0.05 and not case.quick:
        path = case.results
    case.note(f"removed folder {path.relative_to(case.project.folder)}")
    shutil.rmtree(path)
    maybe_probe(case)
    return case.settle()


def mix_up_plates(case: Case) -> str:
    """Replace a result of one plate by that of another, with its times."""
    one, two = case.rng.sample(list(SHEET), 2)
    pattern = case.rng.choice(["plates/{}/*", "manifests/*/{}.json", "manifests/*/runs/{}.json"])
    paths = sorted(case.results.glob(pattern.format(one)))
    path = case.rng.choice(paths)
    name = path.relative_to(case.results).as_posix()
    other = case.results / name.replace(f"/{one}", f"/{two}")
    case.note(f"{name} written over that of {two}")
    copy(path, other)
    maybe_probe(case)
    return case.settle()


def touch_results(case: Case) -> str:
    """Change times, as a copy without times does."""
    paths = [path for path in sorted(case.results.rglob("*")) if path.is_file()]
    case.rng.shuffle(paths)
    n = len(paths) if case.rng.random() < 0.5 else case.rng.randrange(1, len(paths))
    when = case.rng.choice(TIMES)
    case.note(f"touched {n} files of the results: {when}")
    for path in paths[:n]:
        set_time(path, when)
    maybe_probe(case)
    return case.settle()


def purge(case: Case) -> str:
    """Remove files older than a date, as scratch file systems do."""
    folder = case.project.folder if case.rng.random() < 0.4 else case.results
    paths = [path for path in folder.rglob("*") if path.is_file()]
    inputs = [case.project.folder / name for name in ("plates", "plates.tsv", "my.yaml")]
    paths = [path for path in paths if not any(path.is_relative_to(kept) for kept in inputs)]
    ages = sorted(path.stat().st_mtime_ns for path in paths)
    cut = ages[case.rng.randrange(len(ages))]
    old = [path for path in paths if path.stat().st_mtime_ns <= cut]
    case.note(f"purged {len(old)} of {len(paths)} files of {folder.name}")
    for path in old:
        path.unlink()
    if case.rng.random() < 0.5:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
    maybe_probe(case)
    return case.settle()


def forget(case: Case) -> str:
    """Remove Snakemake's records, or a part of them."""
    folder = case.project.folder / ".snakemake"
    if case.rng.random() < 0.5:
        case.note("removed .snakemake")
        shutil.rmtree(folder)
    else:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        n_most = 8 if case.quick else len(files)
        chosen = case.rng.sample(files, case.rng.randrange(1, n_most))
        how = case.rng.choice(["removed", "emptied"])
        case.note(f"{how} {len(chosen)} of {len(files)} files of .snakemake")
        for path in chosen:
            spoil(case, path, None if how == "removed" else b"")
    maybe_probe(case, 0.6)
    return case.settle()


# --- kills, and disks that fail -------------------------------------------------------------------


def kill_job(case: Case) -> str:
    write = some_write(case)
    step_again(case, write)
    done = case.run(environment=told(case, "KILL", write))
    if done.code == 0:  # Snakemake retries a step
        case.judge()
    maybe_back(case)
    return case.settle()


def failing_write(case: Case, kind: str) -> str:
    write = some_write(case)
    step_again(case, write)
    root = str(case.results) + "/" if case.rng.random() < 0.5 else ""
    case.disturbed(case.run(environment=told(case, kind, write, root and "results/")))
    maybe_back(case)
    return case.settle()


def kill_snakemake(case: Case) -> str:
    """Kill Snakemake at a write of a job or at any moment, with or without its jobs."""
    write = some_write(case)
    step_again(case, write)
    alone = case.rng.random() < 0.5
    if case.atlas.library and case.rng.random() < 0.6:
        running = waiting(case, write)
    else:
        seconds = case.rng.uniform(0, 4)
        case.note(f"after {seconds:.2f} s")
        running = case.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and running.process.poll() is None:
            time.sleep(0.005)
    case.note(f"killed Snakemake {'alone' if alone else 'and its jobs'}")
    running.kill() if alone else case.kill()
    running.end()
    if alone and case.rng.random() < 0.5:
        case.note("user: waits for the jobs that run on")
        case.wait_for_orphans()
    maybe_probe(case, 0.2)
    maybe_back(case, 0.3)
    return case.settle()


def waiting(case: Case, write: Write) -> Run:
    """Start a run that waits at a write of a job."""
    running = case.start(environment=told(case, "WAIT", write))
    while not writes.is_hit(state_file(case)) and running.process.poll() is None:
        time.sleep(0.005)
    return running


def meanwhile(case: Case) -> Run:
    """Start a run, whose step is due again, and stop it at a write of a job."""
    write = some_write(case)
    step_again(case, write)
    return waiting(case, write)


def two_runs(case: Case) -> str:
    first = meanwhile(case)
    changed = case.rng.random() < 0.4
    if changed:
        probe(case)
    second = case.start()
    ends = [first.end(), second.end()]
    for done in ends:
        if done.code:
            case.check_sentence(done)
    if not changed and any(done.code == 0 for done in ends):
        case.judge()
    return case.settle()


def inputs_change_in_a_run(case: Case) -> str:
    """Change inputs after Snakemake has planned its jobs."""
    running = meanwhile(case)
    if case.rng.random() < 0.5:
        probe(case)
    else:
        replace_source(case, case.rng.choice(list(SHEET)), "other")
    done = running.end()
    if done.code:
        case.check_sentence(done)
    return settle_and_maybe_back(case)


# --- plates ---------------------------------------------------------------------------------------


def source(case: Case, plate: str) -> Path:
    return case.project.folder / SHEET[plate]


def replace_source(case: Case, plate: str, kind: str) -> None:
    case.note(f"source of {plate}: {kind}")
    path = source(case, plate)
    copy(case.atlas.plates / f"{plate}-{kind}{path.suffix}", path)


def new_source(case: Case) -> str:
    """Replace the data of a plate, with any times."""
    plate = case.rng.choice(list(SHEET))
    kind = case.rng.choice(["other", "count", "obs"])
    replace_source(case, plate, kind)
    when = case.rng.choice(["as it is", *TIMES])
    case.note(f"its time: {when}")
    if when in TIMES:
        path = source(case, plate)
        for file in [path, *path.rglob("*")]:
            set_time(file, when)
    return settle_and_maybe_back(case)


def source_in_place(case: Case) -> str:
    """Overwrite files of the Zarr plate, but not its root metadata."""
    path = source(case, "p3")
    kind, part = case.rng.choice([("count", "X/data"), ("obs", "obs/cell_line")])
    case.note(f"source of p3: {part} changed in place")
    new = case.atlas.plates / f"p3-{kind}.zarr"
    for file in sorted((new / part).rglob("*")):
        if file.is_file():
            shutil.copy(file, path / part / file.relative_to(new / part))
    return settle_and_maybe_back(case)


def touch_source(case: Case) -> str:
    plate = case.rng.choice(list(SHEET))
    path = source(case, plate)
    files = [file for file in [path, *sorted(path.rglob("*"))] if file.is_file()]
    when = case.rng.choice(TIMES)
    chosen = files if case.rng.random() < 0.5 else [case.rng.choice(files)]
    case.note(f"touched {len(chosen)} files of the source of {plate}: {when}")
    for file in chosen:
        set_time(file, when)
    maybe_probe(case, 0.2)
    return case.settle()


def bad_source(case: Case) -> str:
    """Replace a source by one that is not readable or has no counts; later repair it."""
    plate = case.rng.choice(list(SHEET))
    path = source(case, plate)
    kind = case.rng.choice(
        ["fractional", "negative", "nan", "cut", "empty", "gone", "dangling", "folder", "closed"]
    )
    if kind in ("fractional", "negative", "nan"):
        replace_source(case, plate, kind)
    else:
        case.note(f"source of {plate}: {kind}")
        if kind == "gone":
            remove(path)
        elif kind == "dangling":
            remove(path)
            path.symlink_to("no-such-plate")
        elif kind == "folder":
            remove(path)
            path.mkdir()
        elif kind == "closed":
            (path if path.is_file() else path / "zarr.json").chmod(0)
        else:
            file = path if path.is_file() else path / "X/data/zarr.json"
            spoil(case, file, b"" if kind == "empty" else file.read_bytes()[:-40])
    end = case.settle()
    if case.rng.random() < 0.7:
        back(case)
        end = case.settle()
    return end


def sheet(case: Case) -> str:
    """Add, drop, rename or swap plates."""
    plates = dict(SHEET)
    what = case.rng.choice(["add", "drop", "rename", "rows", "files", "other genes", "twice"])
    names = list(plates)
    case.rng.shuffle(names)
    one, two = names[:2]
    if what in ("add", "other genes"):
        number = 4 if what == "add" else 5
        copy(case.atlas.plates / f"p{number}.h5ad", case.project.folder / f"plates/p{number}.h5ad")
        plates[f"p{number}"] = f"plates/p{number}.h5ad"
    elif what == "drop":
        del plates[one]
    elif what == "rename":
        plates = {("renamed" if name == one else name): path for name, path in plates.items()}
    elif what == "rows":
        plates[one] = plates.pop(one)
    elif what == "files":
        plates[one], plates[two] = plates[two], plates[one]
    else:
        plates["again"] = plates[one]
    case.note(f"plate sheet, {what}: {plates}")
    case.project.write_plates(plates)
    return settle_and_maybe_back(case)


# --- config ---------------------------------------------------------------------------------------


def valid_config(case: Case) -> str:
    change_config(case, case.rng.choice(VALID))
    if case.rng.random() < 0.3:
        run_without_judging(case, "atlas")  # and the following steps later
    return settle_and_maybe_back(case)


def failing_config(case: Case) -> str:
    change_config(case, case.rng.choice(FAILING))
    end = case.settle()
    if end == "right" and not any(map(case.goes_without, ("integrate", "pseudobulk"))):
        raise WrongEnd("a config that cannot work has worked")
    back(case)
    if not case.quick and case.rng.random() < 0.3:
        change_config(case, case.rng.choice(VALID))
    return case.settle()


KINDS: dict[str, Callable[[Case], str]] = {
    "file removed": damaged("removed"),
    "file truncated": damaged("cut"),
    "file emptied": damaged("emptied"),
    "byte flipped": damaged("flipped"),
    "folder removed": remove_store,
    "plates mixed up": mix_up_plates,
    "results touched": touch_results,
    "old files purged": purge,
    "Snakemake's memory lost": forget,
    "job killed": kill_job,
    "Snakemake killed": kill_snakemake,
    "disk full": partial(failing_write, kind="ENOSPC"),
    "I/O error": partial(failing_write, kind="EIO"),
    "two runs at once": two_runs,
    "inputs change in a run": inputs_change_in_a_run,
    "source replaced": new_source,
    "source changed in place": source_in_place,
    "source touched": touch_source,
    "source bad": bad_source,
    "plate sheet": sheet,
    "config changed": valid_config,
    "config that fails": failing_config,
}
# Kinds that need the shared library.
NEED_COMPILER = {
    "job killed",
    "disk full",
    "I/O error",
    "two runs at once",
    "inputs change in a run",
}


def kind_of(number: int) -> str:
    """Kind of a fault; kinds take turns."""
    return list(KINDS)[number % len(KINDS)]
