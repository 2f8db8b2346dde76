"""A Slurm cluster on this machine: a controller and three nodes, two for CPUs and one with GPUs.

    python tests/slurm/cluster.py up|status|down

The daemons are Debian's and listen on the loopback address; the GPUs are names of /dev/null. The
program needs root and the packages slurmctld, slurmd, slurm-client and munge, refuses a machine
with another Slurm, and stops its processes by their ids.

Reasons of the configuration: Slurm's accounting watches memory because there are no control groups
(OverMemoryKill); slurmd 22.05 drops GPUs without ``File=``, which must be a device; the files are
in /etc/slurm because the executor's inner ``srun`` loses ``SLURM_CONF``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

NODES = {"cpu1": 17001, "cpu2": 17002, "gpu1": 17003}
MARK = "# Made by tests/slurm/cluster.py of scatlas.\n"
CONF = Path("/etc/slurm/slurm.conf")
GRES = Path("/etc/slurm/gres.conf")
STATE = Path("/var/lib/slurm-scatlas")
RUN = Path("/run/slurm-scatlas")
# One line per task: job, node, CUDA_VISIBLE_DEVICES.
TASKS = STATE / "tasks"
COMMANDS = ("slurmctld", "slurmd", "sbatch", "squeue", "munged")

SLURM_CONF = """\
ClusterName=scatlas
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
SlurmUser=slurm
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/%n.log
TaskProlog={state}/prolog
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=1
MinJobAge=86400
SlurmctldTimeout=300
SlurmdTimeout=300
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
PartitionName=cpu Nodes=cpu[1-2] Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=gpu Nodes=gpu1 MaxTime=1-00:00:00 State=UP
"""
NODE = "NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs=4 RealMemory=8000"
PROLOG = """#!/bin/sh
echo "$SLURM_JOB_ID $SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES:-none}}" >>{tasks}
"""


def lacking() -> str | None:
    """Reason why this machine can have no cluster, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in COMMANDS if shutil.which(name, path=path) is None]
    if missing:
        return f"there is no {', '.join(missing)}: install slurmctld, slurmd, slurm-client, munge"
    for file in (CONF, GRES):
        if file.exists() and not file.read_text().startswith(MARK):
            return f"{file} is of another cluster, which is left alone"
    return None


def command(*words: str, check: bool = True) -> str:
    env = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(
        words, env=env, text=True, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    if check and done.returncode:
        msg = f"{' '.join(words)}: {done.stdout}{done.stderr}"
        raise RuntimeError(msg)
    return done.stdout


def wait_for(what: str, done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            msg = f"after {seconds} s: {what}"
            raise TimeoutError(msg)
        time.sleep(0.2)


def up() -> None:
    """Start the daemons that do not run."""
    if why := lacking():
        raise RuntimeError(why)
    _configure()
    if not _munge_answers():
        folder = Path("/run/munge")
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, "munge", "munge")
        if not Path("/etc/munge/munge.key").exists():
            command("mungekey", "--create")
        command(
            *("runuser", "-u", "munge", "--", "munged", "--pid-file=/run/munge/munged.pid"),
        )
        shutil.copy("/run/munge/munged.pid", RUN / "munged.pid")
        wait_for("munge answers", _munge_answers)
    start_controller()
    for name in NODES:
        start_node(name)


def down() -> None:
    """Stop the daemons and remove the configuration."""
    ask = ("squeue", "-a", "-h", "--states=all", "-o", "%A")
    jobs = command(*ask, check=False).split() if _pid("slurmctld") else []
    for name in (*NODES, "slurmctld", "munged"):
        _end(name, signal.SIGTERM)
    # A step that has just ended would try for hours to reach the stopped controller.
    for pid in _keepers(jobs):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for file in (CONF, GRES):
        if file.exists() and file.read_text().startswith(MARK):
            file.unlink()
    shutil.rmtree(STATE, ignore_errors=True)


def start_controller() -> None:
    if _pid("slurmctld") is None:
        command("slurmctld")
    wait_for("slurmctld answers", lambda: "UP" in command("scontrol", "ping", check=False))


def restart_controller() -> None:
    _end("slurmctld", signal.SIGTERM)
    start_controller()


def start_node(name: str) -> None:
    if _pid(name) is None:
        command("slurmd", "-N", name)
    if state(name).startswith(("down", "drain")):
        command("scontrol", "update", f"nodename={name}", "state=resume")
    wait_for(f"{name} is up", lambda: state(name) in ("idle", "mixed", "allocated"))


def lose_node(name: str) -> None:
    """Kill a node's daemon and all its processes.

    Then report the node as down to the controller, which would notice after SlurmdTimeout.
    """
    numbers = command("squeue", "-h", "-w", name, "-o", "%A").split()
    _end(name, signal.SIGKILL)
    # First the processes that would report the end of the others.
    for pid in [*_keepers(numbers), *_running_on(name)]:
        with suppress(ProcessLookupError):  # it ended with another one
            os.kill(pid, signal.SIGKILL)
    command("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")


def state(name: str) -> str:
    return command("sinfo", "-h", "-N", "-n", name, "-o", "%T").split("\n")[0].rstrip("*")


def _keepers(numbers: list[str]) -> list[int]:
    """Slurm's processes that watch the steps of jobs."""
    heads = tuple(f"slurmstepd: [{number}.".encode() for number in numbers)
    return [pid for pid, text in _processes("cmdline") if heads and text.startswith(heads)]


def _running_on(name: str) -> list[int]:
    mark = f"SLURMD_NODENAME={name}".encode()
    return [pid for pid, text in _processes("environ") if mark in text.split(b"\0")]


def _processes(file: str) -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # the process has ended
                yield int(folder.name), (folder / file).read_bytes()


def _configure() -> None:
    for folder in (STATE, STATE / "ctld", STATE / "dev", RUN, CONF.parent):
        folder.mkdir(parents=True, exist_ok=True)
    for folder in (STATE, STATE / "ctld", RUN):
        shutil.chown(folder, "slurm", "slurm")
    host = socket.gethostname().split(".")[0]
    text = SLURM_CONF.format(host=host, state=STATE, run=RUN)
    for name, port in NODES.items():
        (STATE / name).mkdir(exist_ok=True)
        gpus = " Gres=gpu:test:2" * name.startswith("gpu")
        text += NODE.format(name=name, host=host, port=port) + gpus + "\n"
    for number in (0, 1):
        device = STATE / "dev" / f"gpu{number}"
        if not device.exists():
            os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
    CONF.write_text(MARK + text)
    GRES.write_text(f"{MARK}NodeName=gpu1 Name=gpu Type=test File={STATE}/dev/gpu[0-1]\n")
    prolog = STATE / "prolog"
    prolog.write_text(PROLOG.format(tasks=TASKS))
    prolog.chmod(0o755)


def _munge_answers() -> bool:
    return "STATUS:" in command("sh", "-c", "munge -n | unmunge", check=False)


def _pid(name: str) -> int | None:
    """Process id of a running daemon."""
    try:
        pid = int((RUN / f"{name}.pid").read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _end(name: str, sign: signal.Signals) -> None:
    pid = _pid(name)
    if pid is not None:
        os.kill(pid, sign)
        wait_for(f"{name} ends", lambda: _pid(name) is None)
    (RUN / f"{name}.pid").unlink(missing_ok=True)


if __name__ == "__main__":
    action = sys.argv[1] if len(sys.argv) > 1 else "status"
    if action in ("up", "down"):
        {"up": up, "down": down}[action]()
    if action != "down":
        sys.stdout.write(command("sinfo", "-N", "-l") + command("squeue", "-a"))
