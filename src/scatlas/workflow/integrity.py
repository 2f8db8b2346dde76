"""Comparison of the outputs of earlier steps with the files that the steps have written.

Snakemake checks one file per store, and ignores a missing output while all later outputs exist. It
misses a store that lost or changed another of its files, a failed step, and a lost result on which
another one depends. Therefore the workflow compares sizes and times with those in the run
records (:func:`run_record`), and the digest of a file whose time has changed.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas.errors import InputError
from scatlas.io.files.checksums import file_digest, json_bytes, text_digest, write_json
from scatlas.workflow import edits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

logger = logging.getLogger(__name__)
# Outputs that one message names at most.
_MAX_NAMED = 20
# Log before more bytes than this are read again.
_LOG_ABOVE_BYTES = 10**9


@dataclass
class Findings:
    # Manifests whose steps have to run again, with the reason.
    to_rerun: dict[Path, str] = field(default_factory=dict)
    # Stores that lack files, with a text that names the first one.
    incomplete: dict[Path, str] = field(default_factory=dict)
    # Run records by manifest, of steps whose existing outputs are unchanged.
    intact: dict[Path, dict[str, Any]] = field(default_factory=dict)
    # Run records by path, with the new times of files whose bytes are unchanged or edited.
    touched: dict[Path, dict[str, Any]] = field(default_factory=dict)
    # Results that their owner has edited, with what is different.
    edited: dict[Path, str] = field(default_factory=dict)

    def apply(self) -> None:
        """Remove the root metadata of incomplete stores, which Snakemake makes again where a step
        needs them, bring those of edited ones up to date, and update the run records.
        """
        for store in self.incomplete:
            (store / "zarr.json").unlink(missing_ok=True)
        try:
            for store in self.edited:
                if (store / "zarr.json").exists():
                    _consolidate_again(store)
            for path, record in self.touched.items():
                write_json(path, record)
        except OSError as error:
            logger.info("the records of results that have changed cannot be written: %s", error)

    @property
    def sentences(self) -> list[str]:
        return [
            f"{path} was edited ({what}) and stays as it is; if you have not edited it, delete it "
            f"(rm -r {path})"
            for path, what in self.edited.items()
        ]

    def refuse_to_write(self, outputs: Iterable[str]) -> None:
        """Refuse a run that would write an edited result again."""
        for path in map(Path, outputs):
            edited = next((e for e in self.edited if e in (path, path.parent)), None)
            if edited:
                raise InputError(
                    f"{edited} was edited ({self.edited[edited]}), and this run would write it "
                    f"again: move it away to keep it, or delete it (rm -r {edited}), and give the "
                    "same command again; labels in the config keeps names of clusters and cells"
                )


def _consolidate_again(store: Path) -> None:
    """Bring the consolidated metadata up to date, which anndata and zarr-python believe."""
    from scatlas.io.files.atomic import atomic_path
    from scatlas.io.files.local_zarr import current_nodes
    from scatlas.io.zarr_writer.elements import consolidated_metadata

    document = json.loads((store / "zarr.json").read_bytes())
    nodes = (document.get("consolidated_metadata") or {}).get("metadata")
    if current_nodes(store, document) is not nodes:
        with atomic_path(store / "zarr.json") as partial:
            partial.write_text(consolidated_metadata(store), encoding="utf-8")


def run_record(manifest: Path) -> Path:
    return manifest.parent / "runs" / manifest.name


def file_records(
    manifest: Path, facts: Mapping[str, Any], outputs: Mapping[Path, Mapping[str, str]]
) -> dict[str, Any]:
    """Entries of a run record for later comparison: the digest ``manifest`` of the facts of a
    manifest, and ``outputs``, by path and by name of a file ``[bytes, mtime in ns, digest]``.
    """
    folder = run_record(manifest).parent
    listed = {
        os.path.relpath(output, folder): {
            name: [*_size_and_time(output / name), digest] for name, digest in digests.items()
        }
        for output, digests in outputs.items()
    }
    return {"manifest": text_digest(json_bytes(facts)), "outputs": listed}


def refuse_damaged_inputs(manifest: Path) -> None:
    """After the failure of a step, compare the outputs of all other steps, which may be its inputs.
    The error that names a damaged one gives the repair.
    """
    root = next((folder for folder in manifest.parents if folder.name == "manifests"), None)
    if root is None:
        return
    found = check_outputs(path for path in _manifests(root) if path != manifest)
    for store, lacks in found.incomplete.items():
        raise InputError(f"{lacks}: delete it (rm -r {store}) and give the same command again")


def edited_results(folder: Path) -> list[str]:
    """A sentence for each result in a folder that its owner has edited."""
    return check_outputs(_manifests(folder / "manifests")).sentences


def _manifests(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.json")) if path.parent.name != "runs")


def check_outputs(manifests: Iterable[Path], *, results: Set[str] = frozenset()) -> Findings:
    """Compare the outputs of steps with their run records; files with other bytes are an error. A
    step that has lost one of ``results``, which users keep, runs again.
    """
    found = Findings()
    changed: dict[Path, str] = {}
    for manifest in manifests:
        record = _read_record(manifest)
        if isinstance(record, str):
            found.to_rerun[manifest] = record
            continue
        path = run_record(manifest)
        for name, files in record["outputs"].items():
            output = Path(os.path.normpath(path.parent / name))
            expected = output / "zarr.json" if "zarr.json" in files else output
            if (output / ".zgroup").exists() and edits.is_owners(output, manifest):
                found.edited[output] = "another program has written it again, as Zarr v2"
                found.to_rerun[manifest] = f"{expected} is missing"
            elif not expected.exists():
                # Snakemake itself notices other outputs that are missing as a whole, if a step
                # needs them.
                if str(expected) in results:
                    found.to_rerun[manifest] = f"{output} is missing"
            elif _check_output(manifest, output, record, name, found, changed):
                found.touched[path] = record
        if manifest not in found.to_rerun:
            found.intact[manifest] = record
    if changed:
        output, name = next(iter(changed.items()))
        file = f"{output}: {name}" if name else output
        more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        paths = " ".join(map(str, list(changed)[:_MAX_NAMED]))
        raise InputError(
            f"{file} is not what its step has written{more}: its bytes are damaged, or another "
            f"program has changed them; move it away to keep it, or delete it (rm -r {paths}), and "
            "give the same command again, which makes it again where it is needed"
        )
    return found


def _read_record(manifest: Path) -> dict[str, Any] | str:
    """The run record of a manifest, or the reason why its step has to run again."""
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
    record: dict[str, Any],
    name_in_record: str,
    found: Findings,
    changed: dict[Path, str],
) -> bool:
    """Compare an existing output; return whether the record of its files changed."""
    files: dict[str, list[Any]] = record["outputs"][name_in_record]
    # Size and time of files that were edited before, and read then.
    seen: dict[str, list[Any]] = record.get("edited", {}).get(name_in_record, {})
    missing, touched, other = [], [], []
    for name, (size, time, _) in files.items():
        try:
            now = _size_and_time(output / name)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(name)
            continue
        if now[0] != size or seen.get(name) == list(now):
            other.append(name)
        elif now[1] != time:
            touched.append(name)
    n_bytes = sum(files[name][0] for name in touched)
    if n_bytes > _LOG_ABOVE_BYTES:
        logger.info("%s: times have changed, reading %.1f GB again", output, n_bytes / 1e9)
    for name in touched:
        if file_digest(output / name, root=output, every_byte=True) != files[name][2]:
            other.append(name)
        else:
            files[name][1] = _size_and_time(output / name)[1]
    if edits.is_owners(output, manifest):
        what, damaged = _edit_of(output, files, missing, other, seen)
        if what:
            found.edited[output] = what
            now_seen = {name: list(_size_and_time(output / name)) for name in other}
            record.setdefault("edited", {})[name_in_record] = now_seen
            return True
        other = damaged
    if other:
        changed.setdefault(output, other[0])
    elif missing:
        lacks = f"{output} lacks {missing[0]} ({len(missing):,} of {len(files):,} files)"
        if "zarr.json" in files:
            found.incomplete[output] = lacks
        else:
            found.to_rerun[manifest] = lacks
        return False
    return bool(touched)


def _edit_of(
    output: Path,
    files: Mapping[str, list[Any]],
    missing: list[str],
    other: list[str],
    seen: Mapping[str, list[Any]],
) -> tuple[str | None, list[str]]:
    """What an owner has edited, None for nothing; and files that are damaged or lost beside it."""
    new = [name for name in other if seen.get(name) != list(_size_and_time(output / name))]
    if (damaged := edits.damaged_file(output, new)) is not None:
        return None, [damaged]
    if "zarr.json" not in files:
        return (", ".join(other) or "its content" if other else None), []
    if not other and not edits.added_nodes(output, files):
        return None, []  # files are missing, at most
    lost = edits.lost_file(files, missing, other)
    return (None, [lost]) if lost else (edits.what_differs(output, files, other), [])


def _size_and_time(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns
