"""Run a script in a process that is forked from one whose libraries are imported.

    python -IS fork_client.py script.py ARGUMENTS

Importing the libraries takes a job a second, longer than its work on a plate of some thousand
cells: a server (:mod:`scatlas.workflow.fork_server`) imports them once and forks; Snakemake starts
it in a first run, else its first job. If the client is killed, so is the process. If no server can
run, or on more than a few cores while it starts, the script starts in a new Python. Two thirds of
the client's time would be imports of json, socket and hashlib: it takes what C modules have.
"""

from __future__ import annotations

import _socket as socket
import errno
import marshal
import os
import struct
import sys
from zlib import crc32

# Up to this number of cores scripts wait for the server: those that start would slow it down.
FEW_CORES = 4


def main() -> None:
    command = sys.argv[1:]
    os.environ.update(additions(os.environ))
    snakemake_pid = os.environ.get("SCATLAS_FORK_SERVER")  # the process number of Snakemake
    if snakemake_pid:
        try:
            sys.exit(run_at(connect(snakemake_pid, os.path.abspath(command[0])), command))
        except OSError as error:  # also without abstract sockets, or with too many processes
            refused = isinstance(error, ConnectionRefusedError)
            reason = "the server that forks is not ready" if refused else str(error)
            sys.stderr.write(f"{command[0]} runs in a new Python, not a forked one: {reason}\n")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *command])


def additions(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Variables of jobs and of the server. This package is before the user's folders of libraries,
    as modules of a cluster set them; Snakemake leaves none in its conda environments. The server
    starts in another folder. Other threads of BLAS would begin in each process, and spin for 25 ms.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    given = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    paths = dict.fromkeys([package, *map(os.path.abspath, given)])
    return {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}


def run_at(server: socket.socket, command: list[str], **more: str) -> int | str:
    """Run a command in a process that the server forks; return its exit status."""
    request: dict[str, object] = {"argv": command, "folder": os.getcwd(), **more}
    request["environment"] = dict(os.environ)
    send_request(server, [0, 1, 2], request)
    if not server.recv(1):
        raise ConnectionError("the server has failed")
    status = server.recv(1)
    return status[0] if status else "the process that forked this job has been killed"


def send_request(server: socket.socket, files: list[int], request: dict[str, object]) -> None:
    """Send a command, and the three files that are its input, output and messages."""
    text = marshal.dumps(request)  # the server is of the same Python
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", *files))
    server.sendmsg([struct.pack("!Q", len(text))], [rights])
    server.sendall(text)


def connect(snakemake_pid: str, script: str) -> socket.socket:
    """Connect to the server of one Snakemake and one Python; start it if there is none. It raises
    ConnectionRefusedError while the server is not ready, and OSError where none can run.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("this system does not tell who is at the other end of a socket")
    # The name has no file: nothing is left to remove, and no path is too long.
    # Snakemake, which may ask first, calls this Python by another name than jobs.
    python = crc32(os.fsencode(os.path.dirname(sys.executable) + sys.version))
    address = f"\0scatlas-{os.getuid()}-{snakemake_pid}-{python}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # of a server that runs
            raise
    else:
        if (os.cpu_count() or 1) <= FEW_CORES:
            listener.listen(128)  # else the server does, when it is ready
        start_server(listener, snakemake_pid, script)
    listener.close()
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    # Any user may take this name: hand the environment to none but this one.
    _, user, _ = struct.unpack("3i", server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise PermissionError(f"the server belongs to user {user}")
    return server


def start_server(listener: socket.socket, snakemake_pid: str, script: str) -> None:
    """Start the server that will listen at a socket, and whose first job is the script."""
    import subprocess  # here, because the first job alone needs it

    module = "scatlas.workflow.fork_server"
    # Each request brings its own variables; those of the workflow are options of scripts.
    env = {name: text for name, text in os.environ.items() if not name.startswith("SCATLAS_")}
    subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(listener.fileno()), snakemake_pid, script],
        pass_fds=[listener.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env | additions(env),
        cwd="/",
        start_new_session=True,  # Ctrl-C ends this client, and so the script
    )


if __name__ == "__main__":
    main()
