"""Jobs that are forked from a process with the libraries behave like those of a new Python."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow import fork_client

ROOT = Path(__file__).parents[3]
CLIENT = (sys.executable, "-IS", fork_client.__file__)
PROBE = """
import json, os, sys
from pathlib import Path
from threadpoolctl import threadpool_info

print("out", *sys.argv[1:])
print("err", file=sys.stderr)
modules = len([name for name in sys.modules if name.startswith("scatlas.kernels")])
threads = [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
facts = {"folder": os.getcwd(), "variable": os.environ.get("PROBE"), "input": sys.stdin.read()}
Path(sys.argv[1]).write_text(json.dumps(
    facts | {"modules": modules, "parent": os.getppid(), "blas": threads, "process": os.getpid()}
))
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]) if sys.argv[2].isdigit() else sys.argv[2])
"""
USAGE = """
import os, sys, time
from scatlas._util.operating_system import peak_memory, processor_seconds

held = b"1" * (int(sys.argv[2]) * 2**20)
while time.process_time() < float(sys.argv[1]):
    pass
print(os.getpid(), processor_seconds(), peak_memory() / 2**20)
"""
NOT_READY = "runs in a new Python, not a forked one: the server that forks is not ready"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of scripts: the workflow's and a probe."""
    folder = tmp_path_factory.mktemp("scripts")
    for script in (ROOT / "scripts").glob("*.py"):
        (folder / script.name).symlink_to(script)
    (folder / "probe.py").write_text(PROBE)
    return folder / "probe.py"


@pytest.fixture(scope="module")
def owner(probe: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process like Snakemake with a server that is ready; its end also ends the server."""
    process = subprocess.Popen(["sleep", "1000"])
    wait_until(lambda: is_ready(process, probe), 200)  # it may compile kernels
    yield process
    process.kill()
    process.wait()


def start(
    owner: subprocess.Popen[bytes], *words: object, typed: str = "", cwd: Path | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """A script of the process ``owner``, by the client."""
    return subprocess.run(
        [*CLIENT, *map(str, words)], env=environment(owner, **variables), input=typed, cwd=cwd,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def is_ready(owner: subprocess.Popen[bytes], probe: Path, **more: str) -> bool:
    """Whether a script is forked; starts the server if there is none."""
    done = start(owner, probe, os.devnull, **more)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.removesuffix("err\n") or NOT_READY in done.stderr
    return NOT_READY not in done.stderr


def environment(owner: subprocess.Popen[bytes], **more: str) -> dict[str, str]:
    path = {"PYTHONPATH": str(ROOT / "src")}
    return os.environ | path | {"SCATLAS_FORK_SERVER": str(owner.pid)} | more


def test_a_forked_script_has_all_of_its_client(
    owner: subprocess.Popen[bytes], probe: Path, tmp_path: Path
) -> None:
    file = tmp_path / "facts.json"
    done = start(owner, probe, file, "7", typed="typed", cwd=tmp_path, PROBE="set")
    assert (done.returncode, done.stderr) == (7, "err\n")
    assert done.stdout == f"out {file} 7\n"
    facts = json.loads(file.read_text())
    assert facts["modules"] > 5  # were imported before
    assert set(facts["blas"]) == {1}
    assert (facts["folder"], facts["variable"], facts["input"]) == (str(tmp_path), "set", "typed")

    # The next one comes from the same server, and knows nothing of the first.
    done = start(owner, probe, tmp_path / "again.json", "bad input")
    assert (done.returncode, done.stderr) == (1, "err\nbad input\n")
    second = json.loads((tmp_path / "again.json").read_text())
    assert (second["variable"], second["parent"]) == (None, facts["parent"])


def test_a_forked_script_imports_from_the_first_folder_of_pythonpath(
    probe: Path, tmp_path: Path
) -> None:
    """In an installed package that is the folder of all libraries."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "only_here.py").write_text("")
    script = probe.with_name("imports_late.py")
    script.write_text("import os, only_here\nprint('parent', os.getppid())")
    with subprocess.Popen(["sleep", "1000"]) as own:
        path = f"{tmp_path / 'libraries'}:{ROOT / 'src'}"
        try:
            wait_until(lambda: is_ready(own, probe, PYTHONPATH=path), 200)
            done = start(own, script, PYTHONPATH=path)
        finally:
            own.kill()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != f"parent {os.getpid()}\n", "the server did not fork it"


def test_a_script_has_this_package_before_the_users_libraries(probe: Path, tmp_path: Path) -> None:
    """Modules of a cluster give libraries by PYTHONPATH alone."""
    (tmp_path / "libraries/scatlas").mkdir(parents=True)
    script = probe.with_name("paths.py")
    script.write_text("import os; print(os.environ['PYTHONPATH'])")
    for given in ("libraries", f"{ROOT / 'src'}:libraries:", f":libraries:{ROOT / 'src'}"):
        env = os.environ | {"PYTHONPATH": given, "SCATLAS_FORK_SERVER": ""}
        command = [*CLIENT, str(script)]
        out = subprocess.check_output(command, env=env, cwd=tmp_path, text=True)
        assert out == f"{ROOT / 'src'}:{tmp_path / 'libraries'}\n"


def test_a_step_on_a_small_plate_starts_at_once(
    owner: subprocess.Popen[bytes], probe: Path, tmp_path: Path
) -> None:
    """In a third of the processor time of a new Python, with equal results."""
    write_plate(tmp_path / "plate.h5ad", simulate_plate(1, n_cells=200, n_genes=300))
    seconds, checksums = [], []
    # The first one may compile kernels.
    for number in ("", str(owner.pid), str(owner.pid), ""):
        folder = tmp_path / f"run{len(seconds)}"
        words = ["--plate", "p", "--threads", 1, "--source", tmp_path / "plate.h5ad"]
        words += ["--store", folder / "counts.zarr", "--manifest", folder / "load.json"]
        done = start(owner, probe.with_name("load.py"), *words, SCATLAS_FORK_SERVER=number)
        assert done.returncode == 0, done.stderr
        record = json.loads((folder / "runs/load.json").read_text())
        seconds.append(record["processor_seconds"])
        checksums.append(json.loads((folder / "load.json").read_text())["outputs"])
    assert checksums.count(checksums[0]) == 4
    assert seconds[2] < 0.6
    assert seconds[2] < seconds[3] / 3


def test_a_process_goes_on_with_the_next_step_of_a_plate(
    owner: subprocess.Popen[bytes], probe: Path, tmp_path: Path
) -> None:
    """It knows nothing of the step before, and ends with a failure or before another step."""
    text = PROBE + "import warnings; warnings.warn('told', stacklevel=2)\n"  # at runpy's line
    for name in ("load.py", "qc_filter.py"):
        (tmp_path / name).write_text(text)

    def process(name: str, *more: str, **options: Any) -> int:
        done = start(owner, tmp_path / name, tmp_path / "facts.json", *more, **options)
        assert done.returncode == len(more)
        assert more or done.stderr.count("told") == 1
        facts = json.loads((tmp_path / "facts.json").read_text())
        assert facts["input"] == options.get("typed", "")
        assert facts["variable"] == options.get("PROBE")
        return int(facts["process"])

    first = process("load.py", typed="typed", PROBE="set")
    assert process("qc_filter.py") == first
    assert process("load.py", "1") == first
    assert not is_running(first)  # it has failed
    second = process("load.py")
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: not is_running(second))
    third = process("load.py")  # of a process that waits nothing is needed
    assert start(owner, probe, os.devnull).returncode == 0
    wait_until(lambda: not is_running(third))
    assert len({first, second, third}) == 3


def test_a_step_counts_its_own_time_and_memory(
    owner: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A process with much memory does not wait for another step."""
    (tmp_path / "hvg.py").write_text(USAGE)
    seen = []
    for seconds, megabytes in ((0.6, 200), (0, 0), (0, 600), (0, 0)):
        done = start(owner, tmp_path / "hvg.py", str(seconds), str(megabytes))
        seen.append([float(word) for word in done.stdout.split()])
    (process, used, peak), (second, less, lower), (third, _, _), (last, _, _) = seen
    assert process == second == third != last
    assert used > 0.6 > less + 0.4
    assert peak > lower + 150


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_killed_client_ends_its_script(
    owner: subprocess.Popen[bytes], probe: Path, tmp_path: Path, *, goes_on: bool
) -> None:
    sleeper = tmp_path / "normalize.py"
    if goes_on:
        sleeper.write_text("")
        assert start(owner, sleeper).returncode == 0
    pid = tmp_path / "pid"
    sleeper.write_text(f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n")
    with sleeper.open("a") as text:
        text.write("time.sleep(1000)\n")
    client = subprocess.Popen([*CLIENT, str(sleeper)], env=environment(owner))
    wait_until(lambda: pid.exists() and pid.read_text().isdigit())
    script = int(pid.read_text())
    client.send_signal(signal.SIGKILL)
    client.wait()
    wait_until(lambda: not is_running(script))


def test_a_client_that_is_killed_before_its_request_harms_no_other(
    owner: subprocess.Popen[bytes], probe: Path, tmp_path: Path
) -> None:
    parents = []
    for name in ("a.json", "b.json"):
        assert start(owner, probe, tmp_path / name).returncode == 0
        parents.append(json.loads((tmp_path / name).read_text())["parent"])
        fork_client.connect(str(owner.pid), str(probe)).close()
    assert parents[0] == parents[1]


def test_a_killed_script_fails(owner: subprocess.Popen[bytes], probe: Path) -> None:
    killed = probe.with_name("killed.py")
    killed.write_text("import os\nos.kill(os.getpid(), 9)\n")
    assert start(owner, killed).returncode == 128 + signal.SIGKILL


def test_scripts_wait_for_the_server_to_start_on_few_cores_alone(probe: Path) -> None:
    waits = (os.cpu_count() or 1) <= fork_client.FEW_CORES
    with subprocess.Popen(["sleep", "1000"]) as new:
        try:
            assert is_ready(new, probe) == waits
            wait_until(lambda: is_ready(new, probe), 200)
        finally:
            new.kill()


def test_a_server_that_fails_is_named_and_the_script_runs(tmp_path: Path, probe: Path) -> None:
    """Here it finds none of the workflow's scripts beside this one."""
    alone = tmp_path / "probe.py"
    alone.write_text(PROBE)
    with subprocess.Popen(["sleep", "1000"]) as other:
        done = start(other, alone, tmp_path / "facts.json")
        other.kill()
    assert done.returncode == 0
    assert f"{alone} runs in a new Python, not a forked one: " in done.stderr
    assert json.loads((tmp_path / "facts.json").read_text())["modules"] == 0


def test_snakemake_starts_the_server_while_it_plans_a_run(tmp_path: Path) -> None:
    """A first run, no dry one, and before its first job, which is no step of a plate here."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--snakefile", ROOT / "Snakefile"]
    command += ["--configfile", "config/demo.yaml"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}

    def servers(snakemake: subprocess.Popen[bytes]) -> list[str]:
        find = ["pgrep", "--full", "--list-full", f"workflow.fork_server .* {snakemake.pid} "]
        return subprocess.run(find, capture_output=True, text=True, check=False).stdout.split()

    with subprocess.Popen([*command, "-n"], **quiet) as snakemake:
        assert snakemake.wait() == 0
    assert not servers(snakemake)
    with subprocess.Popen(command, **quiet) as snakemake:
        wait_until(lambda: servers(snakemake) != [])
        assert servers(snakemake)[-1].endswith("/scripts/load.py")
        snakemake.send_signal(signal.SIGINT)
    wait_until(lambda: servers(snakemake) == [])


def test_the_server_ends_with_its_owner(
    owner: subprocess.Popen[bytes], probe: Path, tmp_path: Path
) -> None:
    facts = tmp_path / "facts.json"
    assert start(owner, probe, facts).returncode == 0
    server = json.loads(facts.read_text())["parent"]
    assert is_running(server)
    owner.kill()
    owner.wait()
    wait_until(lambda: not is_running(server))


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
