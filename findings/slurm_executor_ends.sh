#!/usr/bin/env bash
# snakemake-executor-plugin-slurm 2.8.0: jobs whose end the executor does not see, so that Snakemake waits
# for ever. It compares the state with fixed words. sacct writes who cancelled a job ("CANCELLED by 1000"),
# and PREEMPTED, REVOKED, LAUNCH_FAILED and RECONFIG_FAIL are ends that are not among them. A job that Slurm
# has forgotten goes on, too. Where sacct fails (no accounting), all jobs are dropped without a word.
# Seen: "goes on: CANCELLED by 1000, PREEMPTED, REVOKED, LAUNCH_FAILED, RECONFIG_FAIL, forgotten" and
# "sacct fails: dropped".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check \
  snakemake==9.27.1 snakemake-executor-plugin-slurm==2.8.0
mkdir "$folder/bin"
# Stand-ins: sacct tells the state in a file, or fails; scontrol knows no MinJobAge.
printf '#!/bin/sh\n[ -e %s/answers ] && cat %s/answers\n' "$folder" "$folder" >"$folder/bin/sacct"
printf '#!/bin/sh\n' >"$folder/bin/scontrol"
chmod +x "$folder"/bin/*
PATH="$folder/bin:$PATH" "$folder/venv/bin/python" - "$folder/answers" <<'PY'
import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

from snakemake_executor_plugin_slurm import Executor

answers = Path(sys.argv[1])
settings = SimpleNamespace(
    status_command="sacct", status_attempts=1, init_seconds_before_status_checks=40,
    keep_successful_logs=True, requeue=False,
)


def look() -> str:
    """What the executor does with a job: done, failed, goes on, or dropped."""
    executor, said = Executor.__new__(Executor), []
    vars(executor).update(
        workflow=SimpleNamespace(executor_settings=settings), logger=logging.getLogger(), run_uuid="run",
        status_rate_limiter=AsyncExitStack(), _next_seconds_between_status_checks=40,
        _preemption_warning=True, _failed_nodes=set(), _status_query_calls=0, _status_query_failures=0,
        _status_query_total_seconds=0.0, _status_query_min_seconds=None, _status_query_max_seconds=0.0,
        _status_query_cycle_rows=[],
        report_job_success=lambda job: said.append("done"),
        report_job_error=lambda job, **more: said.append("failed"),
    )
    job = SimpleNamespace(external_jobid="1", aux={})

    async def check() -> None:
        async for _ in executor.check_active_jobs([job]):
            said.append("goes on")

    asyncio.run(check())
    return said[0] if said else "dropped"


found = {}
ends = ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "CANCELLED by 1000", "PREEMPTED", "REVOKED"]
for state in [*ends, "LAUNCH_FAILED", "RECONFIG_FAIL", "forgotten"]:
    answers.write_text("" if state == "forgotten" else f"1|{state}\n")
    found[state] = look()
answers.unlink()
fails = look()
print("goes on:", ", ".join(state for state in found if found[state] == "goes on"))
print("sacct fails:", fails)
assert [found[state] for state in ends[:4]] == ["done", "failed", "failed", "failed"]
assert {found[state] for state in found if state not in ends[:4]} == {"goes on"}
assert fails == "dropped"
PY
