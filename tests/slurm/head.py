"""Snakemake that looks at Slurm's queue every two seconds.

    python tests/slurm/head.py all --profile slurm ...

The executor waits ten seconds longer after each look at which no job has ended, to spare the
controllers of large clusters: half the time of these tests. SIGUSR1 prints where each thread is.
Nothing else differs from ``python -m snakemake``, which all jobs start, with the Python of the
variable PYTHON_OF_JOBS if it is set.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

SECONDS = 2

Executor.next_seconds_between_status_checks = property(
    lambda executor: SECONDS, lambda executor, seconds: None
)

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    # A shell lets what it starts in the background ignore Ctrl-C, and so all that this starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = os.environ.get("PYTHON_OF_JOBS", sys.executable)
    sys.exit(main())
