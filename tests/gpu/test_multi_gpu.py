"""The published multi-GPU showcase: every step on a persisted X, one worker per GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.shared import needs, skip_without
from tests.helpers import cluster_steps
from tests.helpers.programs import run_program


@needs("rmm")
@needs("dask_cuda")
@pytest.mark.parametrize("n", [1, 2])
def test_the_showcase(tmp_path: Path, n: int):
    """The bits of one GPU without a cluster, and the numbers of the CPU."""
    skip_without(n)
    program, locks = Path(cluster_steps.__file__).read_text(), str(tmp_path / "locks")
    found = run_program(
        program, "local-gpu", str(n), file=tmp_path / "use.py", SCATLAS_LOCKS_DIR=locks
    )
    assert found.pop("apart") < 1e-5
    del found["blocks here"]
    same = {"unharmed": True, "counts": True, "genes": True}
    assert found == {"workers": n, "other bits": [], **same}
