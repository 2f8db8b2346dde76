"""Whether the outputs of earlier steps are still as their steps left them.

Snakemake looks at the one file by which a rule names a store, and takes a missing output for no
work while everything behind it is there. Two things escape it: a store that lost or changed one of
its other files, and a step that failed, whose outputs are gone while an older atlas still stands.
So each step lists its files with size, time and digest in its run record
(:func:`run_record`), and the workflow compares them when it starts: a directory
listing, and a digest where a time has changed.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas.errors import InputError
from scatlas.io.files.checksums import digest_of, json_text, text_digest, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)
# Outputs named in one sentence.
_NAMED = 20
# Bytes to read anew from which on the log says so.
_LONG = 10**9


@dataclass
class Findings:
    """What :func:`check` has found.

    Attributes
    ----------
    to_run
        Manifests whose steps have to run again, and why.
    incomplete
        Stores that lack files, and the first of these.
    sound
        Run records by manifest, where outputs, as far as they are there, are as their step left
        them.
    records
        Run records, by path, with the new times of files that only were touched.
    """

    to_run: dict[Path, str] = field(default_factory=dict)
    incomplete: dict[Path, str] = field(default_factory=dict)
    sound: dict[Path, dict[str, Any]] = field(default_factory=dict)
    records: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def withdraw(self) -> None:
        """Remove the root metadata of incomplete stores, so that Snakemake takes them for missing.

        It makes them again where a step needs them, and in a run that needs nothing of them
        leaves them.
        """
        for store in self.incomplete:
            (store / "zarr.json").unlink(missing_ok=True)
        for path, record in self.records.items():
            try:
                write_json(path, record)
            except OSError as error:
                logger.info("%s: the times of its files cannot be noted: %s", path, error)


def run_record(manifest: Path) -> Path:
    """Where the run record of a step lies."""
    return manifest.parent / "runs" / manifest.name


def stamps(
    manifest: Path, facts: Mapping[str, Any], outputs: Mapping[Path, Mapping[str, str]]
) -> dict[str, Any]:
    """What a run record says of a step's files, to be compared later.

    Parameters
    ----------
    manifest
        Manifest of the step, not written yet.
    facts
        What it will hold.
    outputs
        By output, the digests of its files by name
        (:func:`scatlas.io.files.checksums.file_digests`).

    Returns
    -------
    ``manifest``, its digest; ``outputs``, by path from the folder of the run record and by name
    ``[bytes, mtime in ns, digest]``.
    """
    folder = run_record(manifest).parent
    listed = {
        os.path.relpath(output, folder): {
            name: [*_size_and_time(output / name), digest] for name, digest in digests.items()
        }
        for output, digests in outputs.items()
    }
    return {"manifest": text_digest(json_text(facts)), "outputs": listed}


def explain(manifest: Path) -> None:
    """After a failure: whether it is one of the step's inputs, an output of another step.

    Parameters
    ----------
    manifest
        Manifest of the step, in the folder ``manifests`` of a workflow's results.

    Raises
    ------
    InputError
        An output is damaged; the sentence says how to have it made again.
    """
    root = next((folder for folder in manifest.parents if folder.name == "manifests"), None)
    if root is None:
        return
    steps = (path for path in root.rglob("*.json") if path.parent.name != "runs")
    found = check(path for path in steps if path != manifest)
    for store, lacks in found.incomplete.items():
        msg = f"{lacks}: delete it (rm -r {store}) and give the same command again"
        raise InputError(msg)


def check(manifests: Iterable[Path]) -> Findings:
    """Compare the outputs of steps with what the steps have left.

    Parameters
    ----------
    manifests
        Manifest of each step of a workflow, whether it is there or not.

    Raises
    ------
    InputError
        Files have other bytes than their step wrote: they are damaged, or somebody's work.
    """
    found = Findings()
    changed: dict[Path, str] = {}
    for manifest in manifests:
        record = _read_record(manifest)
        if isinstance(record, str):
            found.to_run[manifest] = record
            continue
        path = run_record(manifest)
        for name, files in record["outputs"].items():
            output = Path(os.path.normpath(path.parent / name))
            if _check_output(manifest, output, files, found, changed):
                found.records[path] = record
        if manifest not in found.to_run:
            found.sound[manifest] = record
    if changed:
        raise InputError(_sentence(changed))
    return found


def _read_record(manifest: Path) -> dict[str, Any] | str:
    """The run record that belongs to a manifest, or why its step has to run again."""
    path = run_record(manifest)
    try:
        text = manifest.read_bytes()
        record = json.loads(path.read_bytes())
        fits = record["manifest"] == text_digest(text) and isinstance(record["outputs"], dict)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{path} is damaged"
    return record if fits else f"{manifest} is damaged"


def _check_output(
    manifest: Path,
    output: Path,
    files: dict[str, list[Any]],
    found: Findings,
    changed: dict[Path, str],
) -> bool:
    """Compare one file or folder; whether times of its files changed, which are noted anew."""
    is_store = "zarr.json" in files
    # An output that is gone as a whole is Snakemake's to miss, where it is needed.
    if not (output / "zarr.json" if is_store else output).exists():
        return False
    missing = []
    touched = []
    for name, (size, time, _) in files.items():
        try:
            now = _size_and_time(output / name)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(name)
            continue
        if now[0] != size:
            changed.setdefault(output, name)
        elif now[1] != time:
            touched.append(name)
    if missing:
        lacks = f"{output} lacks {missing[0]} ({len(missing):,} of {len(files):,} files)"
        if is_store:
            found.incomplete[output] = lacks
        else:
            found.to_run[manifest] = lacks
        return False
    n_bytes = sum(files[name][0] for name in touched)
    if n_bytes > _LONG:
        logger.info("%s: times have changed, reading %.1f GB anew", output, n_bytes / 1e9)
    for name in touched:
        if digest_of(output / name, root=output, every_byte=True) != files[name][2]:
            changed.setdefault(output, name)
        files[name][1] = _size_and_time(output / name)[1]
    return bool(touched)


def _size_and_time(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _sentence(changed: Mapping[Path, str]) -> str:
    output, name = next(iter(changed.items()))
    where = f"{output}: {name} is" if name else f"{output} is"
    more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
    paths = " ".join(map(str, list(changed)[:_NAMED]))
    return (
        f"{where} not what its step has written{more}: it is damaged, or was edited; move it away "
        f"to keep it, or delete it (rm -r {paths}), and give the same command again, which makes "
        "it anew where it is needed"
    )
