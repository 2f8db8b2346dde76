"""Where work runs, on machines without a GPU: what is refused and how, locks, clusters.

The driver's answers are played: by a function that is asked in its place, by a library
``libnvidia-ml.so.1`` compiled here, and by stand-ins for CuPy and RMM that raise what the real ones
do.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from fractions import Fraction
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import scatlas as sa
from scatlas.compute import backend, cluster, device_memory, gpu_devices, gpu_locks
from scatlas.compute.gpu_devices import VISIBLE, Device, Machine
from scatlas.errors import ConfigError, GpuError
from scatlas.workflow import script
from tests.helpers import cluster_steps
from tests.helpers.programs import run_program

GB = 10**9
ONE, TWO, THREE = (
    Device(uuid=f"GPU-{n}", name=f"H20{n}", total=141 * GB, free=140 * GB) for n in range(3)
)


def machine(*shown: Device, driver: int = 13020) -> Machine:
    return Machine(driver=driver, devices=shown)


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No lock of other tests, nothing left of a GPU that was used before."""
    monkeypatch.setenv("SCATLAS_LOCKS_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.delenv("SCATLAS_CLUSTER", raising=False)
    monkeypatch.setattr(backend, "_started", None)
    monkeypatch.setattr(gpu_locks, "_kept", set())
    monkeypatch.setattr(gpu_locks, "_held", {})


# CuPy and RMM as they behave -------------------------------------------------------------------


class CUDARuntimeError(RuntimeError):
    """CuPy's, of which code reads ``status``."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text or f"cudaErrorX: error {status}")
        self.status = status


class Cupy(ModuleType):
    """What the package asks of CuPy; ``fails`` maps a function to the error that it raises."""

    def __init__(self, version: int = 13020) -> None:
        super().__init__("cupy")
        self.__spec__ = ModuleSpec("cupy", None)
        self.__version__ = "14.2.0"
        self.fails: dict[str, Exception] = {}
        self.free, self.total, self.n_devices = 100 * GB, 141 * GB, 1
        self.allocator: Any = None
        self.limit = 0

        def call(name: str, answer: Any) -> Any:
            def function(*_: Any) -> Any:
                if name in self.fails:
                    raise self.fails[name]
                return answer() if callable(answer) else answer

            return function

        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            runtimeGetVersion=call("runtimeGetVersion", version),
            driverGetVersion=call("driverGetVersion", 13020),
            getDeviceCount=call("getDeviceCount", lambda: self.n_devices),
            memGetInfo=call("memGetInfo", lambda: (self.free, self.total)),
            getDevice=call("getDevice", 0),
            getDeviceProperties=call("getDeviceProperties", {"name": b"H200"}),
        )
        nvrtc = SimpleNamespace(getVersion=call("nvrtc", (13, 0)))
        self.pool = SimpleNamespace(
            malloc="pool's malloc",
            free_all_blocks=call("free_all_blocks", None),
            set_limit=lambda size: setattr(self, "limit", size),
            total_bytes=lambda: 7,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            nvrtc=nvrtc,
            Device=nullcontext,
            set_allocator=lambda allocator: setattr(self, "allocator", allocator),
        )

    def get_default_memory_pool(self) -> Any:
        return self.pool


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    fake = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def rmm(monkeypatch: pytest.MonkeyPatch, cupy: Cupy) -> Any:
    """Stand-in for RMM whose resources say how they were made, innermost last."""
    fake = ModuleType("rmm")
    fake.__spec__ = ModuleSpec("rmm", None)
    fake.set = {}

    def resource(name: str) -> Any:
        class Resource:
            allocation_counts = SimpleNamespace(peak_bytes=11)

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self.made = (name, *(getattr(a, "made", a) for a in args), kwargs or None)

        Resource.__name__ = name
        return Resource

    names = ("CudaMemoryResource", "PoolMemoryResource", "ManagedMemoryResource")
    names += ("CudaAsyncMemoryResource", "LimitingResourceAdaptor", "StatisticsResourceAdaptor")
    fake.mr = SimpleNamespace(
        **{name: resource(name) for name in names}, set_per_device_resource=fake.set.__setitem__
    )
    home = ModuleType("rmm.allocators.cupy")
    home.rmm_cupy_allocator = "RMM's allocator"
    for name, module in {"rmm": fake, "rmm.allocators.cupy": home}.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield fake
    device_memory._counting.clear()
    monkeypatch.setattr(device_memory, "_mode", "default")


# CPU or GPU ---------------------------------------------------------------------------------------


def refusal(query_gpus: Any, call: Any = backend.choose_backend) -> str:
    with pytest.raises(GpuError) as caught:
        call("gpu", query_gpus=query_gpus)
    text = str(caught.value)
    assert text.startswith("backend: gpu cannot be used, as ")
    assert "\n" not in text
    return text


def use(name: str, query_gpus: Any) -> str:
    """As ``choose_backend``, but with a start of CUDA."""
    with backend.use_backend(name, query_gpus=query_gpus) as found:
        assert found == backend.current_backend() == "cpu"
        assert VISIBLE not in os.environ, "the lock was given up"
    return found


def changed(**values: Any) -> Machine:
    return machine(Device(**vars(ONE) | values))


NO_FILE = "libcudart.so.13: cannot open\nshared file"
NO_NVRTC = "CuPy failed to load libnvrtc.so.13: OSError: libnvrtc.so.13: cannot open"
REASONS: list[tuple[Machine, dict[str, Exception], str]] = [
    (machine(), {}, "the NVIDIA driver shows no GPU to this job"),
    (
        machine(ONE, driver=12040),
        {},
        "CuPy is for CUDA 13 and the NVIDIA driver runs CUDA up to 12.4: install scatlas[gpu-",
    ),
    (
        machine(ONE, driver=11080),
        {},
        "driver runs CUDA up to 11.8, which is too old: install a driver for CUDA 13 or newer",
    ),
    (
        changed(free=GB // 5),
        {},
        "no GPU is free (GPU-0 (H200) has 0.2 of 141 GB free, as others use it): wait",
    ),
    (
        changed(capability=(6, 1)),
        {},
        "H200 is too old: it has compute capability 6.1, 7.0 is needed",
    ),
    (changed(compute_mode=2), {}, "H200 is closed to CUDA (compute mode 'prohibited')"),
    (
        machine(ONE),
        {"runtimeGetVersion": ImportError(NO_FILE)},
        "CuPy is installed and does not load (libcudart.so.13: cannot open): reinstall it",
    ),
    (
        machine(ONE),
        {"nvrtc": RuntimeError(NO_NVRTC)},
        f"does not find that version's compiler, nvrtc ({NO_NVRTC}): install cupy-cuda13x[ctk]",
    ),
    *(
        (machine(ONE, TWO), {"memGetInfo": CUDARuntimeError(status)}, message)
        for status, message in {
            2: "has no memory left even to start: others use it",
            35: "the NVIDIA driver is too old for this CuPy",
            46: "is taken by another process, which has it alone (compute mode)",
            802: "start the machine's NVIDIA Fabric Manager service",
            803: "of different versions: restart the machine",
            719: "CUDA does not start: cudaErrorX: error 719",
        }.items()
    ),
]


@pytest.mark.parametrize(("found", "fails", "message"), REASONS)
def test_each_reason_is_a_sentence_and_auto_falls_back_with_it(
    cupy: Cupy,
    rmm: Any,
    caplog: pytest.LogCaptureFixture,
    found: Machine,
    fails: dict,
    message: str,
):
    cupy.fails |= fails
    call = use if "memGetInfo" in fails else backend.choose_backend
    text = refusal(lambda: found, call)
    assert message in text
    with caplog.at_level(logging.INFO, "scatlas"):
        assert call("auto", query_gpus=lambda: found) == "cpu"
    (line,) = caplog.messages
    assert line == text.replace("backend: gpu cannot be used", "backend: auto works on the CPU")


def test_a_hidden_gpu_is_told_apart_from_none(cupy: Cupy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VISIBLE, "")
    assert "CUDA_VISIBLE_DEVICES is ''; unset it" in refusal(machine)


def test_without_cupy_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    never = _raising(AssertionError())
    assert "CuPy is not installed: install scatlas[gpu-cu12] or" in refusal(never)
    with caplog.at_level(logging.INFO, "scatlas"):
        assert backend.choose_backend("auto", query_gpus=never) == "cpu"
    assert "backend: auto works on the CPU, as CuPy is not installed" in caplog.text
    assert backend.choose_backend("cpu", query_gpus=never) == "cpu"


@pytest.mark.parametrize("built", [12090, 13090])
def test_a_driver_of_the_same_or_a_newer_major_version_is_fine(cupy: Cupy, built: int):
    cupy.cuda.runtime.runtimeGetVersion = lambda: built
    assert backend.choose_backend("gpu", query_gpus=lambda: machine(ONE)) == "gpu"


def test_work_runs_on_a_locked_gpu_with_one_allocator(cupy: Cupy, rmm: Any):
    assert backend.current_backend() == "cpu"
    with backend.use_backend("gpu", query_gpus=lambda: machine(ONE, TWO)) as found:
        assert found == backend.current_backend() == "gpu"
        assert os.environ[VISIBLE] == "GPU-0"
        assert cupy.allocator == "RMM's allocator"
        assert rmm.set[0].made[1][0] == "PoolMemoryResource"
        record = backend.gpu_record()
    assert backend.current_backend() == "cpu"
    assert VISIBLE not in os.environ
    assert cupy.allocator == "pool's malloc"
    assert record["name"] == "H200"
    assert (record["memory_mode"], record["peak_memory_bytes"]) == ("pool", 11)
    versions = {"driver_cuda": "13.2", "cuda": "13.2", "cupy": "14.2.0"}
    assert record["versions"].items() >= versions.items()


def test_a_process_stays_on_the_gpu_on_which_cuda_has_started(cupy: Cupy, rmm: Any):
    with backend.use_backend("gpu", query_gpus=lambda: machine(ONE, TWO)):
        pass
    less = Device(**vars(ONE) | {"free": 90 * GB})
    with backend.use_backend("gpu", query_gpus=lambda: machine(less, TWO)):
        assert os.environ[VISIBLE] == "GPU-0"


def test_cuda_that_was_started_before_is_seen(cupy: Cupy, rmm: Any):
    cupy.n_devices = 2
    with (
        pytest.raises(GpuError, match="choose the backend before the first CuPy array"),
        backend.use_backend("gpu", query_gpus=lambda: machine(ONE, TWO)),
    ):
        pass


def test_an_error_inside_is_not_hidden_by_those_that_follow(cupy: Cupy, rmm: Any):
    def work() -> None:
        with backend.use_backend("gpu", query_gpus=lambda: machine(ONE)):
            cupy.fails["free_all_blocks"] = CUDARuntimeError(700)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_missing_rmm_is_said_before_work_begins(cupy: Cupy, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "rmm", None)
    monkeypatch.setattr(
        device_memory, "find_spec", lambda name: None if name == "rmm" else ModuleSpec(name, None)
    )
    with (
        caplog.at_level(logging.INFO, "scatlas"),
        backend.use_backend("auto", query_gpus=lambda: machine(ONE)) as found,
    ):
        assert found == "cpu"
    assert "memory mode 'pool' needs RMM, which is not installed: install rmm-cu12" in caplog.text
    with backend.use_backend(
        "gpu", memory_mode="default", query_gpus=lambda: machine(ONE)
    ) as found:
        assert found == "gpu"
        assert cupy.allocator == "pool's malloc"


# Asking the driver --------------------------------------------------------------------------------

# GPU 1 is not for this user; GPU 2 is divided, and its part 1 does not exist.
NVML = r"""
#include <stdlib.h>
#include <stdio.h>
#define AT(h) ((long)(h) & 0xff)
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { char *s = getenv("FAKE_STATUS"); return s ? atoi(s) : 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12040; return getenv("NO_CUDA") ? 12 : 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
    *h = (void *)(0x100000000ul + i); return i == 1 ? 4 : 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { *a = 9; *b = AT(h); return 0; }
int nvmlDeviceGetComputeMode(void *h, int *m) { *m = AT(h) == 3 ? 3 : 0; return 0; }
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *then) {
    if (AT(h) == 0) return 3; *now = *then = AT(h) == 2; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **part) {
    *part = (void *)(0x200000010ul + i); return i == 1 ? 6 : 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) {
    snprintf(s, n, "%s-%02lx-f00d", AT(h) < 0x10 ? "GPU" : "MIG", AT(h)); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { snprintf(s, n, "H%ld", AT(h)); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory *m) {
    m->total = 80000000000ul; m->free = 79000000000ul; return AT(h) == 3 ? 3 : 0; }
"""
SHOWN = ["GPU-00-f00d", "MIG-10-f00d", "MIG-12-f00d", "GPU-03-f00d"]


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler, with which to make a library that answers as the driver's")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True)
    monkeypatch.setattr(gpu_devices, "_NVML", str(library))
    gpu_devices._nvml.cache_clear()
    yield
    gpu_devices._nvml.cache_clear()


def test_the_driver_tells_all_that_is_needed(nvml: None):
    found = gpu_devices.query_gpus()
    assert found.driver == 12040
    assert [device.uuid for device in found.devices] == SHOWN
    one, part, _, last = found.devices
    assert (one.name, one.total, one.free, one.capability) == ("H0", 80 * GB, 79 * GB, (9, 0))
    assert (part.name, part.capability, part.compute_mode) == ("H16", (9, 2), 0)
    assert (last.total, last.free, last.compute_mode) == (0, None, 3), "NVML knows no memory"


@pytest.mark.parametrize(
    "listed, shown",
    [
        (" 2,0", [3, 0]),
        ("1", [1]),  # the first part of a divided GPU
        ("GPU-03-f00d, MIG-12", [3, 2]),
        ("MIG-1", []),  # could be several
        ("0,7,2", [0]),
        ("0,-1,2", [0]),
        ("2,2", [3]),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_devices_that_are_listed_are_shown_in_that_order(nvml, monkeypatch, listed, shown):
    monkeypatch.setenv(VISIBLE, listed)
    assert [device.uuid for device in gpu_devices.query_gpus().devices] == [SHOWN[i] for i in shown]


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("FAKE_STATUS", "9", "the NVIDIA driver is not loaded"),
        ("FAKE_STATUS", "18", "of different versions: restart the machine"),
        ("FAKE_STATUS", "7", r"the NVIDIA driver does not start \(error 7\)"),
        ("NO_CUDA", "", r"there is no CUDA library \(libcuda.so.1\) on this machine"),
    ],
)
def test_a_driver_that_fails_is_a_sentence(nvml, monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(GpuError, match=message):
        gpu_devices.query_gpus()


def test_no_driver_and_one_that_is_too_old(monkeypatch):
    gpu_devices._nvml.cache_clear()
    monkeypatch.setattr(gpu_devices, "_NVML", "libno-such.so.1")
    with pytest.raises(GpuError, match=r"no NVIDIA driver \(libno-such.so.1\).*compute,utility"):
        gpu_devices.query_gpus()
    monkeypatch.setattr(gpu_devices, "_nvml", SimpleNamespace)
    with pytest.raises(GpuError, match="the NVIDIA driver is too old: install a newer one"):
        gpu_devices.query_gpus()


def _raising(error: Exception) -> Any:
    def function(*_: Any, **__: Any) -> None:
        raise error

    return function


# Locks --------------------------------------------------------------------------------------------

HOLD = """
import logging, os, sys, time
from fractions import Fraction
from scatlas.compute import gpu_locks
from scatlas.compute.gpu_devices import Device, Machine

def query_gpus():
    free = [float(gigabytes) for gigabytes in open(sys.argv[3]).read().split()]
    named = enumerate(free[: int(sys.argv[1])])
    return Machine(13020, tuple(Device(f"GPU-{n}", "H200", 10**11, int(f * 1e9)) for n, f in named))

logging.basicConfig(level=logging.INFO, format="%(message)s")
n, share, gpu_locks._LOG_SECONDS = int(sys.argv[2]), Fraction(sys.argv[4]), float(sys.argv[5])
with gpu_locks.lock_gpus(n, share=share, query_gpus=query_gpus) as mine:
    print(*(device.uuid for device in mine), flush=True)
    time.sleep(600)
"""


class Job:
    """A process that locks n of several GPUs, waits for them, and then holds them."""

    def __init__(self, n: int, of: int, memory: Path, share: str, log_seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(of), str(n), str(memory), share, str(log_seconds)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self.process.pid

    def has(self) -> str:
        """The GPUs that it has got, when it has them, or nothing when it was refused."""
        return self.process.stdout.readline().strip()

    def says(self) -> str:
        """A line of its log, when there is one."""
        return self.process.stderr.readline().strip()

    def waits(self, seconds: float = 0.5) -> bool:
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    """Function that sets how many GB are free of each GPU, for all jobs."""

    def free(gigabytes: str) -> None:
        (tmp_path / "next").write_text(gigabytes)
        (tmp_path / "next").rename(tmp_path / "memory")

    free("100 100 100")
    return free


@pytest.fixture
def job(memory: Any, tmp_path: Path) -> Iterator[Any]:
    """``job(n, of=m)`` starts one, which ends with the test; ``share`` is of each of its GPUs.

    Between two lines of its log are ``log_seconds``; one that ``has`` its GPUs is waited for.
    """
    jobs = []

    def start(
        n: int, of: int, share: str = "1", log_seconds: float = 60, has: str | None = None
    ) -> Job:
        jobs.append(Job(n, of, tmp_path / "memory", share, log_seconds))
        assert has is None or jobs[-1].has() == has
        return jobs[-1]

    yield start
    for each in jobs:
        each.kill()
        each.process.communicate()


def three() -> Machine:
    return machine(*(Device(f"GPU-{n}", "H200", 10**11, 10**11) for n in range(3)))


def test_a_job_waits_for_the_gpu_of_another_until_that_dies(job):
    first = job(1, of=1, has="GPU-0")
    second = job(1, of=1)
    said = f"waiting for a GPU: GPU-0 (H200) is locked by process {first.pid} (-c)"
    assert second.says() == said
    assert second.waits()
    first.kill()
    assert second.has() == "GPU-0"


def test_several_are_taken_together_and_none_is_held_meanwhile(job):
    first = job(2, of=3, has="GPU-0 GPU-1")
    both = job(2, of=3)
    assert both.says().startswith("waiting for 2 GPUs: GPU-0 (H200) is locked by process")
    with gpu_locks.lock_gpus(None, query_gpus=three) as mine:
        assert [device.uuid for device in mine] == ["GPU-2"]
        assert os.environ[VISIBLE] == "GPU-2"
    assert job(1, of=3).has() == "GPU-2"
    assert both.waits()
    first.kill()
    assert both.has() == "GPU-0 GPU-1"


def test_a_holders_memory_is_not_that_of_others(job, memory):
    first = job(1, of=1, has="GPU-0")
    memory("0.1")
    second = job(1, of=1)
    assert "is locked by process" in second.says()
    first.kill()
    assert second.waits(1), "the driver gives memory back a little after the lock"
    memory("100")
    assert second.has() == "GPU-0"


def test_memory_that_others_use_is_not_waited_for(job, memory):
    first = job(1, of=1, has="GPU-0")
    second = job(1, of=1)
    second.says()
    memory("0.1")
    first.kill()
    assert second.has() == "", "it has ended"
    last = second.process.stderr.read().splitlines()[-1]
    assert "no GPU is free (GPU-0 (H200) has 0.1 of 100 GB free, as others use it)" in last


def test_a_gpu_that_others_use_is_passed_over_while_another_is_awaited(job, memory):
    memory("0.1 100")
    job(1, of=2, has="GPU-1")
    second = job(1, of=2)
    assert "GPU-1 (H200) is locked by process" in second.says()
    assert second.waits(4)
    memory("100 100")
    assert second.has() == "GPU-0", "those others have ended"


def test_a_waiting_job_can_be_ended(job):
    first = job(1, of=1)
    first.has()
    second = job(1, of=1)
    second.says()
    second.process.terminate()
    assert second.process.wait(timeout=300) == -signal.SIGTERM


@pytest.mark.parametrize("name", ["auto", "gpu"])
def test_a_backend_does_not_depend_on_what_else_runs(cupy, rmm, job, monkeypatch, caplog, name):
    monkeypatch.setattr(gpu_locks, "_LOG_SECONDS", 0.5)
    first = job(1, of=1, has="GPU-0")
    assert backend.choose_backend(name, query_gpus=lambda: machine(ONE)) == "gpu", "without waiting"

    def end_after_two_lines() -> None:
        deadline = time.monotonic() + 120
        while len(caplog.messages) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        first.kill()

    with caplog.at_level(logging.INFO, "scatlas"):
        threading.Thread(target=end_after_two_lines).start()
        with backend.use_backend(name, query_gpus=lambda: machine(ONE)) as found:
            assert found == "gpu"
    said = f"GPU-0 (H200) is locked by process {first.pid} (-c)"
    first_line, *more, last = caplog.messages
    assert first_line == f"waiting for a GPU: {said}"
    assert more[0] == f"waiting for a GPU, for 0 min by now: {said}"
    assert last == "working on H200, 141 GB"


@pytest.mark.parametrize(
    ("n", "share", "message"),
    [
        (4, 1, "4 GPUs are wanted and 3 are available"),
        (0, 1, "0 GPUs cannot be locked"),
        *(
            (1, share, "the share of a GPU is .*: give more than 0 and at most 1")
            for share in (0, -1, Fraction(3, 2))
        ),
    ],
)
def test_what_cannot_be_locked(n: int, share: Any, message: str):
    with (
        pytest.raises(GpuError, match=message),
        gpu_locks.lock_gpus(n, share=share, query_gpus=three),
    ):
        pass


def test_many_jobs_that_start_at_once_never_share(job):
    jobs = [job(1, of=3) for _ in range(6)]
    outputs = [each.process.stdout for each in jobs]
    got: dict[Any, str] = {}
    for n in (3, 4, 5, 6):
        while len(got) < n:
            for output in select.select(set(outputs) - set(got), [], [])[0]:
                got[output] = output.readline().strip()
        assert len(got) == n
        waiting = [each for each in jobs if each.process.stdout not in got]
        holding = [each for each in jobs if each.process.poll() is None and each not in waiting]
        assert sorted(got[each.process.stdout] for each in holding) == ["GPU-0", "GPU-1", "GPU-2"]
        if n == 3:
            late = job(1, of=3)
            line = late.says()
            assert line.startswith("waiting for a GPU: ")
            assert {str(each.pid) for each in holding} <= set(re.findall(r"\d+", line))
            late.kill()
        holding[0].kill()


def test_a_gpu_for_one_process_is_held_until_that_ends(cupy: Cupy, rmm: Any, job):
    alone = Device(**vars(ONE) | {"compute_mode": gpu_devices.EXCLUSIVE})
    with backend.use_backend("gpu", query_gpus=lambda: machine(alone)):
        pass
    other = job(1, of=1)
    assert f"is locked by process {os.getpid()}" in other.says()
    with backend.use_backend("gpu", query_gpus=lambda: machine(alone)) as found:
        assert found == "gpu"
    for kept in gpu_locks._held.values():
        kept.close()
    assert other.has() == "GPU-0"


def test_a_lock_inside_a_lock_is_of_the_same_gpus():
    with gpu_locks.lock_gpus(2, query_gpus=three) as outer:
        with gpu_locks.lock_gpus(1, query_gpus=three) as inner:
            assert inner[0] in outer
        with gpu_locks.lock_gpus(None, query_gpus=lambda: machine(*outer)) as inner:
            assert inner == outer
        assert os.environ[VISIBLE] == "GPU-0,GPU-1"
    assert VISIBLE not in os.environ
    assert gpu_locks._held == {}


def test_the_one_with_most_free_memory_is_taken_and_then_alone_visible(monkeypatch):
    monkeypatch.setenv(VISIBLE, "5,7")
    two = machine(*(Device(f"GPU-{n}", "H200", 10**11, n * GB) for n in (2, 3)))
    with gpu_locks.lock_gpus(1, query_gpus=lambda: two):
        assert os.environ[VISIBLE] == "GPU-3"
    assert os.environ[VISIBLE] == "5,7"
    unknown = Device("MIG-9", "H200 MIG 1g", 0, None)
    with gpu_locks.lock_gpus(1, query_gpus=lambda: machine(unknown)):
        assert os.environ[VISIBLE] == "MIG-9"


def test_a_folder_for_locks_that_is_not_ours(monkeypatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCATLAS_LOCKS_DIR", str(tmp_path / "file"))
    with (
        pytest.raises(
            GpuError, match="the folder of the GPU locks, cannot be created: File exists"
        ),
        gpu_locks.lock_gpus(query_gpus=three),
    ):
        pass
    monkeypatch.delenv("SCATLAS_LOCKS_DIR")
    monkeypatch.setattr(gpu_locks.os, "getuid", lambda: 12345678)
    try:
        with (
            pytest.raises(GpuError, match="is not yours: set SCATLAS_LOCKS_DIR to another"),
            gpu_locks.lock_gpus(query_gpus=three),
        ):
            pass
    finally:
        shutil.rmtree("/tmp/scatlas-12345678")


def test_two_jobs_share_a_gpu_for_which_a_third_and_one_that_wants_all_wait(job):
    first, second = job(1, of=1, share="1/2"), job(1, of=1, share="1/2")
    assert {first.has(), second.has()} == {"GPU-0"}
    third = job(1, of=1, share="1/2")
    line = third.says()
    assert line.startswith("waiting for a GPU: GPU-0 (H200) is locked by processes ")
    assert {str(first.pid), str(second.pid)} <= set(re.findall(r"\d+", line))
    assert third.waits()
    first.kill()
    assert third.has() == "GPU-0"
    whole = job(1, of=1)
    whole.says()
    second.kill()
    assert whole.waits(1)
    third.kill()
    assert whole.has() == "GPU-0"


def test_jobs_spread_over_gpus_before_they_share_one(job):
    shared = [job(1, of=2, share="1/2").has() for _ in range(4)]
    assert sorted(shared[:2]) == sorted(shared[2:]) == ["GPU-0", "GPU-1"]


def test_shares_of_different_runs_never_exceed_a_gpu(job):
    job(1, of=1, share="1/3", has="GPU-0")
    job(1, of=1, share="1/2", has="GPU-0")
    for share in ("1/4", "1/3", "1"):
        assert job(1, of=1, share=share).waits(1), "a sixth is left"
    assert job(1, of=1, share="1/6").has() == "GPU-0"


def test_memory_that_a_sharing_job_uses_is_waited_for(job, memory):
    first = job(1, of=1, share="1/2", has="GPU-0")
    memory("0.1")
    second = job(1, of=1, share="1/2", log_seconds=0.5)
    said = f"GPU-0 (H200) has 0.1 of 100 GB free beside process {first.pid} (-c)"
    # First it waits for a moment without a change of the memory.
    assert any(said in second.says() for _ in range(20))
    assert second.waits(0.1)
    memory("40")
    assert second.has() == "GPU-0"


def test_an_exclusive_gpu_is_not_shared(monkeypatch):
    alone = Device(**vars(ONE) | {"compute_mode": gpu_devices.EXCLUSIVE})
    for device, n_files in ((ONE, 6), (alone, 12)):
        with gpu_locks.lock_gpus(
            1, share=Fraction(1, 2), query_gpus=functools.partial(machine, device)
        ):
            folder = Path(os.environ["SCATLAS_LOCKS_DIR"])
            held = [path for path in folder.glob("GPU-0.*.lock") if is_locked(path)]
            assert len(held) == n_files


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# Memory -------------------------------------------------------------------------------------------

PLAIN = ("CudaMemoryResource", None)
MANAGED = ("ManagedMemoryResource", None)


def whole(gigabytes: float) -> int:
    """Bytes, a multiple of what RMM can divide."""
    return int(gigabytes * GB) // 256 * 256


def pool(initial: float, maximum: float) -> tuple:
    sizes = {"initial_pool_size": whole(initial), "maximum_pool_size": whole(maximum)}
    return ("PoolMemoryResource", PLAIN, sizes)


def limited(inner: tuple, limit: int) -> tuple:
    return ("LimitingResourceAdaptor", inner, limit, None)


def asynchronous(initial: int | None = None) -> tuple:
    return ("CudaAsyncMemoryResource", {"initial_pool_size": initial})


GIB, HALF = 2**30 / GB, {"share": 0.5}


@pytest.mark.parametrize(
    ("free", "options", "made"),
    [
        (100, {}, pool(50, 90)),
        (100, {"initial": "2GB", "maximum": 0.5}, pool(2, 141 / 2)),
        (100, {"maximum": "1GiB"}, pool(GIB, GIB)),
        (100, {"mode": "managed"}, limited(MANAGED, 100 * GB)),
        (100, {"mode": "managed", "maximum": "300GB"}, limited(MANAGED, whole(300))),
        (100, {"mode": "async"}, asynchronous()),
        (
            100,
            {"mode": "async", "initial": "1GiB", "maximum": "2GiB"},
            limited(asynchronous(2**30), 2**31),
        ),
        (140, HALF, pool(35.25, 63.45)),  # half of 141 GB, and of that as much as of a whole GPU
        (70, HALF, pool(35, 63)),  # another job has its half
        (20, HALF, pool(10, 18)),  # other programs use most of the GPU
        (140, {"maximum": "60GB"} | HALF, pool(35.25, 60)),
        (140, {"maximum": "90GB"} | HALF, pool(35.25, 63.45)),
        (100, {"mode": "managed"} | HALF, limited(MANAGED, whole(63.45))),
        (100, {"mode": "async"} | HALF, limited(asynchronous(), whole(63.45))),
    ],
)
def test_modes(cupy: Cupy, rmm: Any, free: int, options: dict, made: tuple):
    cupy.free = free * GB
    sa.memory(**options)
    assert rmm.set[0].made == ("StatisticsResourceAdaptor", made, None)
    assert cupy.allocator == "RMM's allocator"
    assert device_memory.current_mode() == options.get("mode", "pool")
    assert device_memory.peak_bytes() == 11
    sa.memory("default", maximum="3GB")
    assert rmm.set[0].made == PLAIN
    assert (cupy.allocator, cupy.limit) == ("pool's malloc", whole(3))
    assert device_memory.peak_bytes() == 7
    if "share" in options:
        sa.memory("default", share=0.5)
        assert cupy.limit == whole(0.9 * min(free, 70.5))


def test_each_of_several_devices(cupy: Cupy, rmm: Any):
    sa.memory("pool", devices=[0, 1])
    assert set(rmm.set) == {0, 1}
    assert device_memory.peak_bytes() == 22


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "pool+managed"}, "'pool+managed' is unknown (a pool of managed memory is not"),
        ({"mode": "huge"}, "'huge' is unknown: use pool, managed, async or default"),
        (
            {"mode": "managed", "initial": "1GB"},
            "managed memory and a pool exclude each other: a pool would take all its memory at",
        ),
        ({"mode": "default", "initial": "1GB"}, "takes nothing at once: leave out initial"),
        ({"maximum": "142GB"}, "maximum is '142GB': give more than 0 and at most the GPU's 141"),
        ({"maximum": 0.0}, "maximum is 0.0: give more than 0"),
        ({"share": 0}, "share is 0: give more than 0 and at most 1"),
        ({"share": 1.5}, "share is 1.5: give more than 0 and at most 1"),
        ({"maximum": "lots"}, "a size of 'lots' is not understood"),
        ({"initial": "3GB", "maximum": "2GB"}, "initial (3,000,000,000 bytes) is above maximum"),
    ],
)
def test_refused_memory(cupy: Cupy, rmm: Any, options: dict, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        sa.memory(**options)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("memory", r"'pool' does not start on GPU 0 \(std::bad_alloc: out_of"),
        ("device", r"'pool' needs a GPU, and CUDA does not start \(cudaErrorN"),
        ("cupy", "memory mode 'pool' needs CuPy: install scatlas"),
    ],
)
def test_memory_that_cannot_be_had(cupy: Cupy, rmm: Any, monkeypatch, fault: str, message: str):
    match fault:
        case "memory":
            error = MemoryError("std::bad_alloc: out_of_memory: CUDA error")
            rmm.mr.PoolMemoryResource = _raising(error)
        case "device":
            error = CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device")
            cupy.fails["getDevice"] = error
        case "cupy":
            monkeypatch.setattr(device_memory, "find_spec", lambda name: None)
    with pytest.raises(GpuError, match=message):
        sa.memory("pool")


# Clusters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "slurm"}, "kind 'slurm' is unknown: use in-process, local-gpu, local-cpu or"),
        ({"kind": "in-process", "n_workers": 2}, "kind 'in-process', which takes no option"),
        ({"kind": "local-cpu", "protocol": "ucx"}, "protocol does not belong to a cluster of kind"),
        ({"kind": "local-gpu", "protocol": "udp"}, "protocol 'udp' is unknown: use tcp or ucx"),
        (
            {"kind": "local-gpu", "rmm_managed_memory": True, "protocol": "ucx"},
            "managed memory and protocol 'ucx' exclude each other: UCX hands GPU memory",
        ),
        (
            {"kind": "local-gpu", "rmm_managed_memory": True, "rmm_pool_size": "1GB"},
            "managed memory and a pool exclude each other",
        ),
        ({"kind": "existing"}, "needs either its address or its scheduler_file"),
        (
            {"kind": "existing", "address": "tcp://127.0.0.1:1", "scheduler_file": "x"},
            "needs either its address or its scheduler_file",
        ),
    ],
)
def test_refused_clusters(options: dict, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)), sa.cluster(**options):
        pass


@pytest.mark.parametrize(
    ("lacking", "options", "message"),
    [
        ("distributed", {"kind": "local-cpu"}, "needs distributed, which is not installed"),
        ("dask_cuda", {"kind": "local-gpu"}, "install dask-cuda (scatlas[gpu-cu12] or"),
        (
            "distributed_ucxx",
            {"kind": "local-gpu", "protocol": "ucx"},
            "protocol 'ucx' needs distributed-ucxx",
        ),
    ],
)
def test_clusters_name_the_package_that_they_lack(monkeypatch, lacking, options, message):
    present = ModuleSpec("x", None)
    monkeypatch.setattr(cluster, "find_spec", lambda name: None if name == lacking else present)
    with pytest.raises(ConfigError, match=re.escape(message)), sa.cluster(**options):
        pass


def test_no_cluster_needs_nothing():
    with sa.cluster() as client:
        assert client is None


def test_workers_of_gpus_are_started_on_locked_ones(monkeypatch):
    """Its arguments; tests/gpu starts it."""
    made = {}
    fake = ModuleType("dask_cuda")
    fake.LocalCUDACluster = lambda **options: made.update(options)
    monkeypatch.setitem(sys.modules, "dask_cuda", fake)
    monkeypatch.setattr(gpu_devices, "query_gpus", three)
    with ExitStack() as stack:
        cluster._gpu_workers(stack, devices=[2, 0], device_memory_limit="10GB")
        assert set(gpu_locks._held) == {"GPU-0", "GPU-2"}
    assert made == {
        "CUDA_VISIBLE_DEVICES": ["GPU-0", "GPU-2"],
        "host": "127.0.0.1",
        "dashboard_address": None,
        "threads_per_worker": 1,
        "protocol": "tcp",
        "device_memory_limit": "10GB",
    }
    for wrong in ([3], [0, 0], [-1]):
        with (
            pytest.raises(GpuError, match="give numbers from 0 to 2, each once"),
            ExitStack() as stack,
        ):
            cluster._gpu_workers(stack, devices=wrong)


USE = """
import json, sys
import dask.array as da
import scatlas as sa

if __name__ == "__main__":
    with sa.cluster("local-cpu", n_workers=2, threads_per_worker=1) as client:
        address = client.scheduler_info()["address"]
        client.write_scheduler_file(sys.argv[1])
        found = {"address": address, "workers": len(client.scheduler_info(n_workers=-1)["workers"])}
        found["sum"] = int(da.arange(10, chunks=5).sum().compute())
        with sa.cluster("existing", scheduler_file=sys.argv[1]) as other:
            found["existing"] = other.submit(sum, [1, 2]).result()
        with sa.cluster("existing", address=address) as other:
            found["by address"] = other.submit(sum, [1, 2]).result()
    print(json.dumps(found))
"""


@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_that_workers_cannot_import_ends_in_a_sentence(guarded: bool, tmp_path: Path):
    """Without the guard workers would wait for the GPU of their parent, for ever."""
    pytest.importorskip("distributed")
    lines = USE if guarded else USE.replace('if __name__ == "__main__":', "if True:")
    (tmp_path / "use.py").write_text(lines)
    script = ["-"] if guarded else [str(tmp_path / "use.py")]  # standard input has no file
    done = subprocess.run(
        [sys.executable, *script, str(tmp_path / "scheduler.json")],
        input=lines, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ConfigError: the workers of the cluster did not start" in done.stderr
    assert ("a worker of the cluster runs the script that starts it" in done.stderr) != guarded


def test_a_cluster_of_this_machines_cpus(tmp_path: Path):
    pytest.importorskip("distributed")
    found = run_program(USE, str(tmp_path / "scheduler.json"), file=tmp_path / "use.py")
    assert found.pop("address").startswith("tcp://127.0.0.1:")
    assert found == {"workers": 2, "sum": 45, "existing": 3, "by address": 3}


@pytest.mark.filterwarnings("ignore")
def test_functions_on_a_cluster_give_the_bits_of_one_process(tmp_path: Path):
    """None of the blocks is summed in the process that asks."""
    pytest.importorskip("distributed")
    program = Path(cluster_steps.__file__).read_text()
    found = run_program(program, "local-cpu", "2", file=tmp_path / "use.py")
    same = {"unharmed": True, "counts": True, "genes": True, "apart": 0}
    assert found == {"workers": 2, "other bits": [], "blocks here": 0, **same}


def test_a_scheduler_that_does_not_answer(monkeypatch, tmp_path: Path):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 1)
    for options, message in (
        ({"address": "tcp://127.0.0.1:9"}, "no Dask scheduler answers at tcp://127.0.0.1:9"),
        ({"scheduler_file": tmp_path / "no.json"}, "no.json: there is no such scheduler file"),
    ):
        with pytest.raises(ConfigError, match=message), sa.cluster("existing", **options):
            pass


# Steps --------------------------------------------------------------------------------------------


def run(folder: Path, *options: str) -> dict[str, Any]:
    """The run record of a step with these options."""
    manifest = folder / "m.json"
    args = script.parser("doc", gpu=True).parse_args(["--manifest", str(manifest), *options])
    with script.recorded_run(args, outputs=[]) as facts:
        facts["on"] = backend.current_backend()
    record = json.loads(script.run_record(manifest).read_text())
    assert json.loads(manifest.read_text()) == {"on": record["backend"], "outputs": {}}
    return record


def test_the_run_record_says_what_a_step_worked_on(cupy: Cupy, rmm: Any, monkeypatch, tmp_path):
    # A default argument is bound when the function is made.
    monkeypatch.setitem(
        backend.use_backend.__wrapped__.__kwdefaults__, "query_gpus", lambda: machine(ONE)
    )
    record = run(tmp_path, "--backend", "gpu", "--memory", "async", "--memory-limit", "20GB")
    assert record["backend"] == "gpu"
    assert record["gpu"]["memory_mode"] == "async"
    assert record["gpu"]["peak_memory_bytes"] == 11
    assert "gpu" not in run(tmp_path, "--backend", "cpu")


def test_a_step_locks_its_share_of_a_gpu(cupy: Cupy, rmm: Any, monkeypatch, tmp_path: Path):
    monkeypatch.setitem(
        backend.use_backend.__wrapped__.__kwdefaults__, "query_gpus", lambda: machine(ONE)
    )
    options = ("--manifest", str(tmp_path / "m.json"), "--backend", "gpu")
    for share, largest in ((None, 90), ("1/4", 0.9 * 141 / 4)):
        given = ("--gpu-share", share) if share else ()
        args = script.parser("doc", gpu=True).parse_args([*options, *given])
        with script.recorded_run(args, outputs=[]):
            _, (_, _, sizes), _ = rmm.set[0].made
            files = Path(os.environ["SCATLAS_LOCKS_DIR"]).glob("GPU-0.*.lock")
            assert sum(map(is_locked, files)) == (3 if share else 12)
        assert sizes["maximum_pool_size"] == int(largest * GB) // 256 * 256


def test_a_step_without_a_gpu(monkeypatch, tmp_path: Path, caplog):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with caplog.at_level(logging.INFO, "scatlas"):
        assert run(tmp_path, "--backend", "auto")["backend"] == "cpu"
    assert "backend: auto works on the CPU, as CuPy is not installed" in caplog.text
    with pytest.raises(GpuError, match="backend: gpu cannot be used, as CuPy is not installed"):
        run(tmp_path, "--backend", "gpu")
    assert not (tmp_path / "m.refused").exists(), "a GPU may be free at the next attempt"


def test_only_steps_that_can_use_a_gpu_have_the_options():
    with pytest.raises(SystemExit):
        script.parser("doc").parse_args(["--manifest", "m.json", "--backend", "cpu"])


def test_a_step_on_a_cluster(tmp_path: Path):
    pytest.importorskip("distributed")
    program = tmp_path / "step.py"
    program.write_text(
        textwrap.dedent("""
            import sys
            from scatlas.workflow import script
            from scatlas.compute import backend

            def main():
                args = script.parser("doc", gpu=True).parse_args()
                with script.recorded_run(args, outputs=[]) as facts:
                    from distributed import default_client
                    facts["workers"] = len(default_client().scheduler_info()["workers"])

            if __name__ == "__main__":
                script.run_main(main)
        """)
    )
    cluster = json.dumps({"kind": "local-cpu", "n_workers": 1, "threads_per_worker": 1})
    manifest = tmp_path / "m.json"
    subprocess.run(
        [sys.executable, str(program), "--manifest", str(manifest)],
        env=os.environ | {"SCATLAS_CLUSTER": cluster}, check=True, timeout=600,
    )  # fmt: skip
    assert json.loads(manifest.read_text())["workers"] == 1
    assert json.loads(script.run_record(manifest).read_text())["backend"] == "cpu"
