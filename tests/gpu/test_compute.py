"""Backend, GPU memory, GPU locks, and a cluster of one and two GPUs, on real GPUs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scatlas.compute import gpu_devices
from tests.gpu.shared import needs, skip_without
from tests.helpers.programs import run_program

cp = pytest.importorskip("cupy")


def test_nvml_tells_what_cuda_tells():
    found = gpu_devices.query_gpus()
    assert found.driver == cp.cuda.runtime.driverGetVersion()
    assert len(found.devices) == cp.cuda.runtime.getDeviceCount()
    for ordinal, device in enumerate(found.devices):
        told = cp.cuda.runtime.getDeviceProperties(ordinal)
        assert device.name == told["name"].decode()
        assert device.capability == (told["major"], told["minor"])
        assert device.total == pytest.approx(told["totalGlobalMem"], rel=0.02)
        assert device.free is None or 0 < device.free <= device.total
        if isinstance(told.get("uuid"), bytes):
            # CuPy ends it at a zero byte.
            assert device.uuid.replace("-", "").startswith(f"GPU{told['uuid'].hex()}")


USE = """
    import json, logging, os, sys
    logging.basicConfig(level=logging.INFO)
    from scatlas.compute import backend
    assert backend.choose_backend("gpu") == "gpu"
    with backend.use_backend("gpu", memory_mode=sys.argv[1]) as found:
        import cupy as cp
        assert cp.cuda.runtime.getDeviceCount() == 1
        a = cp.ones(10_000_000)
        total = float(a.sum())
        try:
            cp.empty(2**46, "u1")
        except MemoryError:
            refused = True
        record = backend.gpu_record()
        if sys.argv[1] != "default":
            import rmm
            record["resource"] = type(rmm.mr.get_current_device_resource()).__name__
    after = float(cp.ones(5).sum() + a[:5].sum())
    with backend.use_backend("gpu", memory_mode=sys.argv[1]):
        again = float(cp.ones(7).sum())
    print(json.dumps(record | {"sums": [total, after, again], "refused": refused}))
"""


@pytest.mark.parametrize(
    "mode",
    ["default", *(pytest.param(mode, marks=needs("rmm")) for mode in ("pool", "async", "managed"))],
)
def test_each_memory_mode(mode: str):
    record = run_program(USE, mode)
    assert record["sums"] == [10_000_000, 10, 7]
    assert record["memory_mode"] == mode
    assert record["refused"], "no mode hands out more than there is"
    assert 80_000_000 <= record["peak_memory_bytes"] < 10**9
    assert record["versions"]["cupy"] == cp.__version__
    assert mode == "default" or record["resource"] == "StatisticsResourceAdaptor"


@needs("rmm")
def test_a_limit_is_kept():
    program = """
        import json
        from scatlas.compute import backend
        found = {}
        with backend.use_backend("gpu", memory_mode="pool", memory_limit="1GB"):
            import cupy as cp
            a = cp.empty(800_000_000, "u1")
            try:
                b = cp.empty(800_000_000, "u1")
            except MemoryError:
                found["pool"] = "full"
        print(json.dumps(found))
    """
    assert run_program(program) == {"pool": "full"}


@needs("rmm")
def test_two_jobs_share_a_gpu(tmp_path):
    """Each fills what its pool may take of its half, at the same time."""
    program = textwrap.dedent("""
        import os, sys
        from fractions import Fraction
        from scatlas.compute import backend
        with backend.use_backend("gpu", share=Fraction(1, 2)):
            import cupy as cp
            held = []
            try:
                while True:
                    held.append(cp.ones(2**28, "u1"))
            except MemoryError:
                pass
            print(os.environ["CUDA_VISIBLE_DEVICES"], len(held) * 2**28, flush=True)
            sys.stdin.read()
    """)
    env = os.environ | {
        "CUDA_VISIBLE_DEVICES": gpu_devices.query_gpus().devices[0].uuid,
        "SCATLAS_LOCKS_DIR": str(tmp_path),
    }
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    total = gpu_devices.query_gpus().devices[0].total
    for job in jobs:
        uuid, held = job.stdout.readline().split()
        assert uuid == env["CUDA_VISIBLE_DEVICES"]
        assert 0.3 * total < int(held) < 0.46 * total
    assert [job.communicate("")[0] for job in jobs] == ["", ""]


HOLD = """
import logging, sys, time
logging.basicConfig(level=logging.INFO)
from scatlas.compute import backend
with backend.use_backend(sys.argv[1], memory_mode="default") as found:
    import cupy as cp
    total = float(cp.ones(3).sum())
    # More than processes of others may use.
    held = cp.empty(cp.cuda.runtime.memGetInfo()[0] - 700_000_000, "u1")
    print(found, total, flush=True)
    time.sleep(600)
"""


def test_cuda_is_not_started_by_asking():
    program = """
        import ctypes, json, time
        from scatlas.compute import backend, gpu_devices
        start = time.perf_counter()
        gpu_devices.query_gpus()
        asked = time.perf_counter()
        gpu_devices.query_gpus()
        again = time.perf_counter()
        assert backend.choose_backend("gpu") == "gpu"
        count = ctypes.c_int()
        status = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
        print(json.dumps({"first": asked - start, "second": again - asked, "status": status}))
    """
    found = run_program(program)
    assert found["status"] == 3, "CUDA_ERROR_NOT_INITIALIZED"
    assert found["second"] < 0.1


@pytest.mark.parametrize("name", ["auto", "gpu"])
def test_a_job_waits_for_a_locked_gpu_until_its_process_dies(tmp_path: Path, name: str):
    uuid = gpu_devices.query_gpus().devices[0].uuid
    env = os.environ | {"SCATLAS_LOCKS_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": uuid}

    def start(backend: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOLD, backend], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    jobs = [start("gpu")]
    try:
        assert jobs[0].stdout.readline().strip() == "gpu 3.0"
        jobs.append(start(name))
        said = f"is locked by process {jobs[0].pid}"
        assert any(said in line for line in iter(jobs[1].stderr.readline, ""))
        assert not select.select([jobs[1].stdout], [], [], 2)[0]
        jobs[0].kill()
        jobs[0].wait()
        assert jobs[1].stdout.readline().strip() == "gpu 3.0"
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


CLUSTER = """
import json, sys
import scatlas as sa


def work(seed):
    import cupy as cp

    x = cp.random.default_rng(seed).random(1000)
    return float(x.sum()), type(x).__module__, cp.cuda.runtime.getDeviceCount()


def resource():
    import os
    import rmm

    import cupy as cp

    allocator = cp.cuda.get_allocator()
    return [
        type(rmm.mr.get_current_device_resource()).__name__,
        getattr(allocator, "__name__", str(allocator)),
        os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0],
    ]


if __name__ == "__main__":
    n, options = int(sys.argv[1]), json.loads(sys.argv[2])
    with sa.cluster("local-gpu", devices=n, **options) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        done = client.gather(client.map(work, range(8)))
        print(json.dumps({
            "workers": len(workers),
            "addresses": sorted(workers),
            "threads": [w["nthreads"] for w in workers.values()],
            "resources": list(client.run(resource).values()),
            "kinds": sorted({kind for _, kind, _ in done}),
        }))
"""


@needs("rmm")
@needs("dask_cuda")
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"threads_per_worker": 2, "rmm_pool_size": "2GB", "rmm_maximum_pool_size": "10GB"},
        {"rmm_managed_memory": True, "device_memory_limit": "20GB"},
    ],
    ids=["pool", "managed"],
)
def test_a_cluster_has_one_worker_a_gpu_with_one_allocator(tmp_path: Path, n: int, options: dict):
    skip_without(n)
    locks, file = str(tmp_path / "locks"), tmp_path / "use.py"
    found = run_program(CLUSTER, str(n), json.dumps(options), file=file, SCATLAS_LOCKS_DIR=locks)
    assert found["workers"] == n
    assert all(address.startswith("tcp://127.0.0.1:") for address in found["addresses"])
    assert found["threads"] == [options.get("threads_per_worker", 1)] * n
    kinds, allocators, shown = zip(*found["resources"], strict=True)
    assert set(kinds) == {"StatisticsResourceAdaptor"}
    assert set(allocators) == {"rmm_cupy_allocator"}
    assert len(set(shown)) == n, "two workers share a GPU"
    assert found["kinds"] == ["cupy"]


@needs("rmm")
def test_a_step_on_the_gpu_says_so_in_its_run_record(tmp_path: Path):
    program = """
        import json, sys
        from pathlib import Path
        from scatlas.workflow import script
        from scatlas.compute import backend
        args = script.parser("", gpu=True).parse_args(
            ["--manifest", sys.argv[1], "--backend", "gpu", "--memory", "pool"]
        )
        with script.recorded_run(args, outputs=[]) as facts:
            import cupy as cp
            facts["sum"] = float(cp.ones(1000).sum())
            facts["on"] = backend.current_backend()
        record = json.loads(script.run_record(Path(sys.argv[1])).read_text())
        print(json.dumps(record["gpu"] | {"on": facts["on"], "backend": record["backend"]}))
    """
    locks = str(tmp_path / "locks")
    found = run_program(program, str(tmp_path / "m.json"), SCATLAS_LOCKS_DIR=locks)
    assert (found["on"], found["backend"]) == ("gpu", "gpu")
    assert found["peak_memory_bytes"] >= 8000
