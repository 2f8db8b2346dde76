#!/usr/bin/env bash
# NumPy 2.4.6 with the OpenBLAS of its wheel, threadpoolctl 3.8.0: in a process that was forked from one in which
# OpenBLAS has worked, threadpool_limits(1) starts the threads that it is to limit: they are gone after the
# fork, the call that sets their number makes them again, and they spin before they sleep. On two cores and more
# each forked process so takes tens of milliseconds of processor time that one with OPENBLAS_NUM_THREADS=1 does
# not; with the other OpenBLAS of SciPy it is twice that. Who forks a process per task, and limits BLAS there
# to be quick or to have the same bits, pays it per task. Seen on two cores: "a limit in a forked process: 23
# times the processor time of one that OpenBLAS had from the start", and 28 times.
set -euo pipefail
if (($(nproc) < 2)); then echo "needs two cores"; exit 0; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6 threadpoolctl==3.8.0
cat >"$folder/fork.py" <<'PY'
import os
import resource
import time

import numpy as np
from threadpoolctl import threadpool_limits

a = np.ones((300, 300))
a @ a


def seconds_of_children(work):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            work()
            time.sleep(0.1)
            os._exit(0)
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


print(seconds_of_children(lambda: threadpool_limits(1)))
PY
usual=$("$folder/venv/bin/python" "$folder/fork.py")
single=$(OPENBLAS_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/fork.py")
python3 -c "
ratio = $usual / $single
print(f'a limit in a forked process: {ratio:.0f} times the processor time of one that OpenBLAS had from the start')
assert ratio > 2, 'a limit starts no threads now'
"
