"""The plates of one file of many samples (``plates.path`` and ``plates.by``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.errors import ConfigError
from scatlas.workflow.config.plate_sheet import Plate, as_plate_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scatlas.workflow.config.sections import Config

# Folder of the list of samples, in the folder where Snakemake is started.
_LISTS = Path(".snakemake/scatlas")


class Sample(Plate):
    """A plate that is one ``sample`` of a file; ``path`` is the file of all samples. `load` may
    read the sample from the file itself, without `split`.
    """

    sample: str
    is_read_in_place: bool = False


def sample_plates(config: Config, *, is_main: bool) -> list[Sample]:
    """The samples of a file as plates, in the order of their first cells.

    The main process of Snakemake reads the column of the samples, and stores the list until the
    file changes. The jobs of a cluster, which parse the rules again, read the list.
    """
    from scatlas.io.files.checksums import text_digest, write_json
    from scatlas.io.files.listing import stamp

    path, by, source = str(config.plates.path), str(config.plates.by), config.source
    key = json.dumps([path, by, source.counts, source.lists])
    file = _LISTS / f"samples-{text_digest(key.encode())[:16]}.json"
    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if not found or (is_main and found["stamp"] != stamp(path)):
        # Opens the file, half a second.
        from scatlas.io.files.cell_files import ListColumns
        from scatlas.io.matrices.counts_source import find_source
        from scatlas.io.matrices.source import Wanted
        from scatlas.io.products.split_samples import list_samples

        before = stamp(path)
        samples = list_samples(path, by)
        lists = ListColumns(**json.loads(source.lists or "{}"))
        with find_source(path, Wanted(source.counts, lists=lists)) as opened:
            in_place = opened.is_ordered(by, len(samples))
        found = {"stamp": before, "samples": list(samples.items()), "in_place": in_place}
        write_json(file, found)
    sizes = dict(found["samples"])
    return [
        Sample(
            plate=name,
            path=path,
            n_cells=sizes[sample],
            labels={},
            sample=sample,
            is_read_in_place=found["in_place"],
        )
        for sample, name in plate_names(sizes, f"{path}: obs[{by!r}]").items()
    ]


def plate_names(samples: Iterable[str], where: str) -> dict[str, str]:
    """Name of the plate of each sample, which is also a folder. Characters that a plate's name
    cannot have become underscores; the column of the samples keeps the names as they are. It is an
    error, which begins with ``where``, if two samples have the same plate.
    """
    names: dict[str, str] = {}
    sample_of: dict[str, str] = {}
    for sample in samples:
        name = as_plate_name(sample)
        if name in sample_of:
            msg = (
                f"{where}: the samples {sample_of[name]!r} and {sample!r} would both be plate "
                f"{name!r}: rename one"
            )
            raise ConfigError(msg)
        names[sample], sample_of[name] = name, sample
    return names
