"""Where work runs, on machines without a GPU: what is refused and how, claims, clusters.

CUDA's answers are played: by a process that is asked in its place, by a library ``libcuda.so.1``
compiled here, and by stand-ins for CuPy and RMM that raise what the real ones do.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import scatlas as sa
from scatlas import step
from scatlas.compute import backend, claims, cluster, device_memory, devices
from scatlas.compute.devices import VISIBLE, Device, Machine
from scatlas.errors import ConfigError, GpuError

GB = 10**9
ONE, TWO, THREE = (
    Device(uuid=f"GPU-{n}", token=f"GPU-{n}", name=f"H20{n}", total=141 * GB, free=140 * GB)
    for n in range(3)
)


def machine(*shown: Device, driver: int = 13020, status: int = 0) -> Machine:
    return Machine(driver=driver, status=status, devices=shown)


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No claim of other tests, nothing left of a GPU that was used before."""
    monkeypatch.setenv("SCATLAS_CLAIMS_DIR", str(tmp_path / "claims"))
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.delenv("SCATLAS_CLUSTER", raising=False)
    monkeypatch.setattr(backend, "_started", None)


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
            Device=_Device,
            set_allocator=lambda allocator: setattr(self, "allocator", allocator),
        )

    def get_default_memory_pool(self) -> Any:
        return self.pool


class _Device:
    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


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


def refusal(ask: Any, call: Any = backend.choose) -> str:
    with pytest.raises(GpuError) as caught:
        call("gpu", ask=ask)
    text = str(caught.value)
    assert text.startswith("backend: gpu cannot be used, as ")
    assert "\n" not in text
    return text


NO_DEVICE = machine(status=100)
BUSY = machine(Device(**vars(ONE) | {"free": GB // 5}))
OLD = machine(Device(**vars(ONE) | {"capability": (6, 1)}))
CLOSED = machine(Device(**vars(ONE) | {"compute_mode": 2}))


@pytest.mark.parametrize(
    "found, message",
    [
        (machine(status=-1, driver=0), "there is no NVIDIA driver (libcuda.so.1) on this machine"),
        (NO_DEVICE, "the NVIDIA driver shows no GPU to this job"),
        (machine(), "the NVIDIA driver shows no GPU to this job"),
        (machine(status=803), "of different versions: restart the machine"),
        (machine(status=802), "start the machine's NVIDIA Fabric Manager service"),
        (machine(status=7), "CUDA does not start (error 7)"),
        (
            machine(ONE, driver=12040),
            "CuPy is for CUDA 13 and the NVIDIA driver runs CUDA up to 12.4: install scatlas[gpu-",
        ),
        (
            machine(ONE, driver=11080),
            "driver runs CUDA up to 11.8, which is too old: install a driver for CUDA 13 or newer",
        ),
        (BUSY, "no GPU is free (GPU-0 (H200) has 0.2 of 141 GB free, as others use it): wait"),
        (OLD, "H200 is too old: it has compute capability 6.1, 7.0 is needed"),
        (CLOSED, "H200 is closed to CUDA (compute mode 'prohibited')"),
    ],
)
def test_each_reason_is_a_sentence_and_auto_falls_back_with_it(
    cupy: Cupy, caplog: pytest.LogCaptureFixture, found: Machine, message: str
):
    text = refusal(lambda: found)
    assert message in text
    with caplog.at_level(logging.INFO, "scatlas"):
        assert backend.choose("auto", ask=lambda: found) == "cpu"
    (line,) = caplog.messages
    assert line == text.replace("backend: gpu cannot be used", "backend: auto works on the CPU")


def test_a_hidden_gpu_is_told_apart_from_none(cupy: Cupy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VISIBLE, "")
    assert "CUDA_VISIBLE_DEVICES is ''; unset it" in refusal(lambda: NO_DEVICE)


def test_without_cupy_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, caplog):
    def ask() -> Machine:
        raise AssertionError

    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert "CuPy is not installed: install scatlas[gpu-cu12] or" in refusal(ask)
    with caplog.at_level(logging.INFO, "scatlas"):
        assert backend.choose("auto", ask=ask) == "cpu"
    assert "backend: auto works on the CPU, as CuPy is not installed" in caplog.text
    assert backend.choose("cpu", ask=ask) == "cpu"


def test_a_cupy_that_does_not_load(cupy: Cupy):
    cupy.fails["runtimeGetVersion"] = ImportError("libcudart.so.13: cannot open\nshared file")
    assert "CuPy is installed and does not load (libcudart.so.13: cannot open)" in refusal(
        lambda: machine(ONE)
    )


def test_a_cupy_without_its_compiler(cupy: Cupy):
    error = "CuPy failed to load libnvrtc.so.13: OSError: libnvrtc.so.13: cannot open"
    cupy.fails["nvrtc"] = RuntimeError(error)
    assert "does not find that version's compiler, nvrtc (CuPy failed to load" in (
        text := refusal(lambda: machine(ONE))
    )
    assert "install cupy-cuda13x[ctk]" in text


@pytest.mark.parametrize(
    "status, message",
    [
        (2, "has no memory left even to start: others use it"),
        (35, "the NVIDIA driver is too old for this CuPy"),
        (46, "is taken by another process, which has it alone (compute mode)"),
        (719, "CUDA does not start: cudaErrorX: error 719"),
    ],
)
def test_a_gpu_that_does_not_start(cupy: Cupy, rmm: Any, caplog, status: int, message: str):
    def use(name: str, ask: Any) -> None:
        with backend.use(name, ask=ask) as found:
            assert found == backend.current() == "cpu"
            assert VISIBLE not in os.environ, "the claim was given up"

    cupy.fails["memGetInfo"] = CUDARuntimeError(status)
    assert message in refusal(lambda: machine(ONE, TWO), use)
    with caplog.at_level(logging.INFO, "scatlas"):
        use("auto", lambda: machine(ONE, TWO))
    assert message in caplog.text


def test_a_newer_driver_than_cupy_is_fine(cupy: Cupy):
    cupy.cuda.runtime.runtimeGetVersion = lambda: 12090
    assert backend.choose("gpu", ask=lambda: machine(ONE)) == "gpu"


def test_work_runs_on_a_claimed_gpu_with_one_allocator(cupy: Cupy, rmm: Any):
    assert backend.current() == "cpu"
    with backend.use("gpu", ask=lambda: machine(ONE, TWO)) as found:
        assert found == backend.current() == "gpu"
        assert os.environ[VISIBLE] == "GPU-0"
        assert cupy.allocator == "RMM's allocator"
        assert rmm.set[0].made[1][0] == "PoolMemoryResource"
        record = backend.record()
    assert backend.current() == "cpu"
    assert VISIBLE not in os.environ
    assert cupy.allocator == "pool's malloc"
    assert record["name"] == "H200"
    assert (record["memory_mode"], record["peak_memory_bytes"]) == ("pool", 11)
    versions = {"driver_cuda": "13.2", "cuda": "13.2", "cupy": "14.2.0"}
    assert record["versions"].items() >= versions.items()


def test_a_process_stays_on_the_gpu_on_which_cuda_has_started(cupy: Cupy, rmm: Any):
    with backend.use("gpu", ask=lambda: machine(ONE, TWO)):
        pass
    less = Device(**vars(ONE) | {"free": 90 * GB})
    with backend.use("gpu", ask=lambda: machine(less, TWO)):
        assert os.environ[VISIBLE] == "GPU-0"


def test_cuda_that_was_started_before_is_seen(cupy: Cupy, rmm: Any):
    cupy.n_devices = 2
    with (
        pytest.raises(GpuError, match="choose the backend before the first CuPy array"),
        backend.use("gpu", ask=lambda: machine(ONE, TWO)),
    ):
        pass


def test_an_error_inside_is_not_hidden_by_those_that_follow(cupy: Cupy, rmm: Any):
    def work() -> None:
        with backend.use("gpu", ask=lambda: machine(ONE)):
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
        backend.use("auto", ask=lambda: machine(ONE)) as found,
    ):
        assert found == "cpu"
    assert "memory mode 'pool' needs RMM, which is not installed: install rmm-cu12" in caplog.text
    with backend.use("gpu", memory_mode="default", ask=lambda: machine(ONE)) as found:
        assert found == "gpu"
        assert cupy.allocator == "pool's malloc"


# Asking CUDA --------------------------------------------------------------------------------------

LIBCUDA = r"""
#include <string.h>
#include <stdlib.h>
int cuInit(int flags) { char *s = getenv("FAKE_STATUS"); return s ? atoi(s) : 0; }
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *handle, int i) { *handle = 10 + i; return 0; }
int cuDeviceGetName(char *name, int n, int d) { strcpy(name, d == 10 ? "One" : "Two"); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 80000000000ul; return 0; }
int cuDeviceGetUuid(char *uuid, int d) { memset(uuid, d, 16); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return 0; }
"""
LIBNVML = r"""
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(char *uuid, void **h) {
    *h = (void *)0x100000007ul; return uuid[4] == '0' && uuid[5] == 'a' ? 0 : 6; }
int nvmlDeviceGetMemoryInfo(void *h, memory *m) {
    m->free = h == (void *)0x100000007ul ? 79000000000ul : 1; return 0; }
"""


@pytest.fixture
def libcuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler, with which to make a library that answers as CUDA's")
    for name, source in {"libcuda.so.1": LIBCUDA, "libnvidia-ml.so.1": LIBNVML}.items():
        (tmp_path / "lib.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", "-w", "-o", str(tmp_path / name)]
        subprocess.run([*command, str(tmp_path / "lib.c")], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def test_cuda_is_asked_in_a_process_of_its_own(libcuda: None):
    found = devices.ask()
    assert (found.driver, found.status) == (12040, 0)
    one, two = found.devices
    assert one.uuid == one.token == "GPU-0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a"
    assert (one.name, one.total, one.free, one.capability) == ("One", 80 * GB, 79 * GB, (9, 0))
    assert (two.name, two.free) == ("Two", None), "NVML does not know it"


def test_devices_are_called_as_the_scheduler_calls_them(libcuda: None, monkeypatch):
    monkeypatch.setenv(VISIBLE, " 3,1")
    assert [device.token for device in devices.ask().devices] == ["3", "1"]


def test_a_driver_that_fails_tells_its_status(libcuda: None, monkeypatch):
    monkeypatch.setenv("FAKE_STATUS", "803")
    with pytest.raises(GpuError, match="of different versions"):
        devices.usable(devices.ask())


def test_a_driver_that_hangs_or_crashes_is_a_sentence(monkeypatch):
    for error, message in (
        (subprocess.TimeoutExpired("x", 1), "has not answered within 120 s"),
        (subprocess.CalledProcessError(-11, "x"), "ended the process that asked for GPUs"),
    ):
        monkeypatch.setattr(devices.subprocess, "run", _raising(error))
        with pytest.raises(GpuError, match=message):
            devices.ask()


def _raising(error: Exception) -> Any:
    def function(*_: Any, **__: Any) -> None:
        raise error

    return function


# Claims -------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from scatlas.compute import claims
from scatlas.compute.devices import Device, Machine
shown = [Device(f"GPU-{n}", f"GPU-{n}", "H200", 10**11, 10**11) for n in range(int(sys.argv[1]))]
with claims.claim(int(sys.argv[2]), machine=Machine(13020, 0, tuple(shown))) as mine:
    print(*(device.uuid for device in mine), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Any]:
    """``hold(n, of)``: a process that claims n of so many GPUs, and what it says."""
    running = []

    def start(n: int, of: int) -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(of), str(n)], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        running.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in running:
        process.kill()
        process.communicate()


def three() -> Machine:
    return machine(*(Device(f"GPU-{n}", f"GPU-{n}", "H200", 10**11, 10**11) for n in range(3)))


def test_jobs_take_different_gpus_and_death_frees_them(hold):
    first, gpu = hold(1, 2)
    second, other = hold(1, 2)
    assert {gpu, other} == {"GPU-0", "GPU-1"}
    third, nothing = hold(1, 2)
    assert nothing == ""
    said = third.communicate()[1]
    assert "no GPU is free" in said
    for process, name in ((first, gpu), (second, other)):
        assert f"{name} (H200) is claimed by process {process.pid}" in said
    first.send_signal(signal.SIGKILL)
    first.wait()
    _, again = hold(1, 2)
    assert again == gpu


def test_several_at_once_are_taken_together_or_not_at_all(hold):
    hold(2, 3)
    with (
        pytest.raises(GpuError, match="2 GPUs are wanted and 1 are free"),
        claims.claim(2, machine=three()),
    ):
        pass
    with claims.claim(None, machine=three()) as mine:
        assert [device.uuid for device in mine] == ["GPU-2"]
        assert os.environ[VISIBLE] == "GPU-2"
    _, left = hold(1, 3)
    assert left == "GPU-2", "the refused claim and the one that ended hold nothing"


def test_many_jobs_that_start_at_once_never_share(tmp_path: Path):
    command = [sys.executable, "-c", HOLD, "3", "1"]
    jobs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(6)
    ]
    try:
        said = [job.stdout.readline().strip() for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    assert sorted(filter(None, said)) == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_claim_inside_a_claim_is_of_the_same_gpus():
    with claims.claim(2, machine=three()) as outer:
        with claims.claim(1, machine=three()) as inner:
            assert inner[0] in outer
        with claims.claim(None, machine=machine(*outer)) as inner:
            assert inner == outer
        assert os.environ[VISIBLE] == "GPU-0,GPU-1"
    assert VISIBLE not in os.environ
    assert claims._held == set()


def test_what_a_scheduler_hands_out_is_used_as_it_is(monkeypatch):
    monkeypatch.setenv(VISIBLE, "MIG-1")
    mig = Device("GPU-9", "MIG-1", "H200 MIG 1g", 10**10, None)
    with claims.claim(1, machine=machine(mig)):
        assert os.environ[VISIBLE] == "MIG-1"
    monkeypatch.setenv(VISIBLE, "5,7")
    two = [Device(f"GPU-{n}", t, "H200", 10**11, n) for n, t in ((2 * GB, "5"), (3 * GB, "7"))]
    with claims.claim(1, machine=machine(*two)):
        assert os.environ[VISIBLE] == "7", "the one with more free memory"
    assert os.environ[VISIBLE] == "5,7"


def test_a_folder_for_claims_that_is_not_ours(monkeypatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCATLAS_CLAIMS_DIR", str(tmp_path / "file"))
    with (
        pytest.raises(GpuError, match="where claims on GPUs lie, cannot be made: File exists"),
        claims.claim(machine=three()),
    ):
        pass
    monkeypatch.delenv("SCATLAS_CLAIMS_DIR")
    monkeypatch.setattr(claims.os, "getuid", lambda: 12345678)
    try:
        with (
            pytest.raises(GpuError, match="is not yours: set SCATLAS_CLAIMS_DIR to another"),
            claims.claim(machine=three()),
        ):
            pass
    finally:
        shutil.rmtree("/tmp/scatlas-12345678")


def test_no_gpu_cannot_be_claimed():
    with (
        pytest.raises(GpuError, match="0 GPUs cannot be claimed"),
        claims.claim(0, machine=three()),
    ):
        pass


# Memory -------------------------------------------------------------------------------------------

PLAIN = ("CudaMemoryResource", None)


@pytest.mark.parametrize(
    "options, made",
    [
        ({}, ("PoolMemoryResource", PLAIN, {
            "initial_pool_size": 50 * GB // 256 * 256, "maximum_pool_size": 90 * GB // 256 * 256})),
        ({"initial": "2GB", "maximum": 0.5}, ("PoolMemoryResource", PLAIN, {
            "initial_pool_size": 2 * GB // 256 * 256,
            "maximum_pool_size": 141 * GB // 2 // 256 * 256})),
        ({"maximum": "1GiB"}, ("PoolMemoryResource", PLAIN, {
            "initial_pool_size": 2**30, "maximum_pool_size": 2**30})),
        ({"mode": "managed"}, (
            "LimitingResourceAdaptor", ("ManagedMemoryResource", None), 100 * GB, None)),
        ({"mode": "managed", "maximum": "300GB"}, (
            "LimitingResourceAdaptor", ("ManagedMemoryResource", None), 300 * GB // 256 * 256,
            None)),
        ({"mode": "async"}, ("CudaAsyncMemoryResource", {"initial_pool_size": None})),
        ({"mode": "async", "initial": "1GiB", "maximum": "2GiB"}, (
            "LimitingResourceAdaptor",
            ("CudaAsyncMemoryResource", {"initial_pool_size": 2**30}), 2**31, None)),
    ],
)  # fmt: skip
def test_modes(cupy: Cupy, rmm: Any, options: dict, made: tuple):
    sa.memory(**options)
    assert rmm.set[0].made == ("StatisticsResourceAdaptor", made, None)
    assert cupy.allocator == "RMM's allocator"
    assert device_memory.current_mode() == options.get("mode", "pool")
    assert device_memory.peak_bytes() == 11
    sa.memory("default", maximum="3GB")
    assert rmm.set[0].made == PLAIN
    assert (cupy.allocator, cupy.limit) == ("pool's malloc", 3 * GB // 256 * 256)
    assert device_memory.peak_bytes() == 7


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
        ({"maximum": "lots"}, "a size of 'lots' is not understood"),
        ({"initial": "3GB", "maximum": "2GB"}, "initial (3,000,000,000 bytes) is above maximum"),
    ],
)
def test_refused_memory(cupy: Cupy, rmm: Any, options: dict, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        sa.memory(**options)


def test_memory_that_the_gpu_has_not(cupy: Cupy, rmm: Any):
    rmm.mr.PoolMemoryResource = _raising(MemoryError("std::bad_alloc: out_of_memory: CUDA error"))
    with pytest.raises(GpuError, match=r"'pool' does not start on GPU 0 \(std::bad_alloc: out_of"):
        sa.memory("pool")


def test_memory_without_a_gpu(cupy: Cupy, rmm: Any):
    cupy.fails["getDevice"] = CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device")
    with pytest.raises(GpuError, match=r"'pool' needs a GPU, and CUDA does not start \(cudaErrorN"):
        sa.memory("pool")


def test_missing_packages_for_memory(monkeypatch):
    monkeypatch.setattr(device_memory, "find_spec", lambda name: None)
    with pytest.raises(GpuError, match="memory mode 'default' needs CuPy: install scatlas"):
        sa.memory("default")


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


def test_clusters_name_the_packages_that_they_lack(monkeypatch):
    def lacking(*names: str) -> None:
        present = ModuleSpec("x", None)
        monkeypatch.setattr(cluster, "find_spec", lambda n: None if n in names else present)

    for names, options, message in (
        (("distributed",), {"kind": "local-cpu"}, "needs distributed, which is not installed"),
        (("dask_cuda",), {"kind": "local-gpu"}, "install dask-cuda (scatlas[gpu-cu12] or"),
        (
            ("distributed_ucxx",),
            {"kind": "local-gpu", "protocol": "ucx"},
            "protocol 'ucx' needs distributed-ucxx",
        ),
    ):
        lacking(*names)
        with pytest.raises(ConfigError, match=re.escape(message)), sa.cluster(**options):
            pass


def test_no_cluster_needs_nothing():
    with sa.cluster() as client:
        assert client is None


def test_workers_of_gpus_are_started_on_claimed_ones(monkeypatch):
    """Its arguments; tests/gpu starts it."""
    made = {}
    fake = ModuleType("dask_cuda")
    fake.LocalCUDACluster = lambda **options: made.update(options)
    monkeypatch.setitem(sys.modules, "dask_cuda", fake)
    monkeypatch.setattr(devices, "ask", three)
    with ExitStack() as stack:
        cluster._gpu_workers(stack, devices=[2, 0], device_memory_limit="10GB")
        assert claims._held == {"GPU-0", "GPU-2"}
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


def test_a_cluster_of_this_machines_cpus(tmp_path: Path):
    pytest.importorskip("distributed")
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "use.py"), str(tmp_path / "scheduler.json")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("address").startswith("tcp://127.0.0.1:")
    assert found == {"workers": 2, "sum": 45, "existing": 3, "by address": 3}


def test_a_scheduler_that_does_not_answer(monkeypatch, tmp_path: Path):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "_SECONDS", 1)
    with (
        pytest.raises(ConfigError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9"),
        sa.cluster("existing", address="tcp://127.0.0.1:9"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"no\.json: there is no such scheduler file"),
        sa.cluster("existing", scheduler_file=tmp_path / "no.json"),
    ):
        pass


# Steps --------------------------------------------------------------------------------------------


def run(folder: Path, *options: str) -> dict[str, Any]:
    """The run record of a step with these options."""
    manifest = folder / "m.json"
    args = step.parser("doc", gpu=True).parse_args(["--manifest", str(manifest), *options])
    with step.run(args, outputs=[]) as facts:
        facts["on"] = backend.current()
    record = json.loads(step.run_record(manifest).read_text())
    assert json.loads(manifest.read_text()) == {"on": record["backend"], "outputs": {}}
    return record


def test_the_run_record_says_what_a_step_worked_on(cupy: Cupy, rmm: Any, monkeypatch, tmp_path):
    # A default argument is bound when the function is made.
    monkeypatch.setitem(backend.use.__wrapped__.__kwdefaults__, "ask", lambda: machine(ONE))
    record = run(tmp_path, "--backend", "gpu", "--memory", "async", "--memory-limit", "20GB")
    assert record["backend"] == "gpu"
    assert record["gpu"]["memory_mode"] == "async"
    assert record["gpu"]["peak_memory_bytes"] == 11
    assert "gpu" not in run(tmp_path, "--backend", "cpu")


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
        step.parser("doc").parse_args(["--manifest", "m.json", "--backend", "cpu"])


def test_a_step_on_a_cluster(tmp_path: Path):
    pytest.importorskip("distributed")
    program = tmp_path / "step.py"
    program.write_text(
        textwrap.dedent("""
            import sys
            from scatlas import step
            from scatlas.compute import backend

            def main():
                args = step.parser("doc", gpu=True).parse_args()
                with step.run(args, outputs=[]) as facts:
                    from distributed import default_client
                    facts["workers"] = len(default_client().scheduler_info()["workers"])

            if __name__ == "__main__":
                step.execute(main)
        """)
    )
    cluster = json.dumps({"kind": "local-cpu", "n_workers": 1, "threads_per_worker": 1})
    manifest = tmp_path / "m.json"
    subprocess.run(
        [sys.executable, str(program), "--manifest", str(manifest)],
        env=os.environ | {"SCATLAS_CLUSTER": cluster}, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(manifest.read_text())["workers"] == 1
    assert json.loads(step.run_record(manifest).read_text())["backend"] == "cpu"
