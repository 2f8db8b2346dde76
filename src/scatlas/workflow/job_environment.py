"""Values that jobs read from the environment instead of from their options.

Snakemake reruns a step when its options change. These values do not decide what a step writes, so a
change must not rerun it. A job of a cluster reads the files again, perhaps hours later: it takes
the config of its run from the environment, and refuses other plates or other code.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scatlas.errors import InputError
from scatlas.io.files.checksums import text_digest
from scatlas.workflow.config.plate_sheet import WRITTEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scatlas.workflow.config.plate_sheet import Plate
    from scatlas.workflow.config.sections import Config

# Columns of integrate.key that later steps add to the plates' own.
_ADDED_COLUMNS = {"plate", *WRITTEN_COLUMNS}


def job_environment(
    config: Config, plates: Sequence[Plate], *, reference: str, reference_counts: str = "X"
) -> dict[str, str]:
    """Environment variables of all jobs. ``reference`` is the path of the plate that has the genes
    of all plates (``genes: same``), empty for none; its counts are at ``reference_counts``.
    """
    cluster, qc = config.compute.cluster, config.qc
    return {
        "SCATLAS_CLUSTER": cluster.model_dump_json(exclude_none=True) if cluster else "",
        "SCATLAS_QC_FILTER": qc.filter or "",
        "SCATLAS_MAX_PCT_MT": "" if qc.max_pct_mt is None else str(qc.max_pct_mt),
        "SCATLAS_KEPT_CELLS": json.dumps(kept_cells(config)),
        "SCATLAS_REFERENCE_PLATE": reference,
        "SCATLAS_REFERENCE_COUNTS": reference_counts,
        "SCATLAS_MIXED_BY": json.dumps(columns_to_mix(config, plates)),
        "SCATLAS_N_COMPS": str(config.pca.n_comps),
        "SCATLAS_ON_ERROR": config.plates.on_error,
    }


def kept_cells(config: Config) -> dict[str, Any]:
    """Which cells `load` takes moments of, so that `hvg` need not read the counts: ``bounds``, the
    settings under ``qc`` if they alone decide, else ``unknown``, the reason.
    """
    qc, flavor = config.qc, config.hvg.flavor
    if config.atlas:
        return {"unknown": "the genes of new plates are those of the finished atlas"}
    if flavor != "seurat":
        return {"unknown": f"hvg.flavor {flavor} needs more than the moments of the counts' shares"}
    if config.drops_doublets:
        return {"unknown": "doublets.filter drops cells later"}
    if qc.mads:
        return {"unknown": "qc.mads compares the cells of a plate when all are known"}
    if qc.drop_rare_genes:
        return {"unknown": "qc.drop_rare_genes changes the totals of the cells later"}
    return {"bounds": qc.model_dump()}


def columns_to_mix(config: Config, plates: Sequence[Plate]) -> dict[str, list[str] | None]:
    """Columns of ``integrate.key`` with the plates (None: all) whose kept cells need values in
    them; none where doublets are dropped, because the cells without a value may be these.
    """
    if not config.integrate or config.drops_doublets:
        return {}
    columns: dict[str, list[str] | None] = {}
    for name in config.integrate.key:
        unlabelled = [plate.plate for plate in plates if not plate.labels.get(name)]
        if unlabelled and name not in _ADDED_COLUMNS:
            columns[name] = unlabelled if len(unlabelled) < len(plates) else None
    return columns


_VARIABLE = "SCATLAS_RUN"


def of_run(part: str, value: Any, *, module: str, is_main: bool) -> Any:
    """A part of the plan of a run, which Snakemake's main process writes and its jobs read.
    ``value`` is what this process has read, and the result where an executor hands on no
    environment. Another workflow may import this one as several modules.
    """
    run, key = json.loads(os.environ.get(_VARIABLE) or "{}"), f"{module} {part}"
    if not is_main:
        return run.get(key, value)
    # `load` refuses what JSON does not know.
    os.environ[_VARIABLE] = json.dumps(run | {key: value}, default=str)
    return value


def bind(place: str, text: str, *, module: str, is_main: bool) -> None:
    """Refuse to go on if this is a job, and its run began with another text at this place."""
    digest = text_digest(text.encode())
    if of_run(place, digest, module=module, is_main=is_main) != digest:
        raise InputError(
            f"{place} has changed since this run began: give the same command again when the run "
            "has ended"
        )


def set_options(provider: Any, profile: str | None, *, requester_pays: bool) -> None:
    """Give the plugin's provider the profile of a plate, and let the account pay."""
    session = import_module("boto3").Session  # a package of the plugin
    if profile and profile not in session().available_profiles:
        raise InputError(f"s3_profile {profile!r} is not in ~/.aws: correct the plate sheet")
    if profile:
        provider.s3c = session(profile_name=profile).resource("s3")
    if requester_pays:
        pays = {"x-amz-request-payer": "requester"}
        events = provider.s3c.meta.client.meta.events
        events.register("before-call.s3", lambda params, **_: params["headers"].update(pays))
