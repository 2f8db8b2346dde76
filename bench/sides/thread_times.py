"""Run a script of the workflow twice; print the processor seconds of each thread of the second run.

    python bench/sides/thread_times.py FILE SCRIPT WARM_OPTIONS OPTIONS

The options are JSON lists. The first run imports modules and loads compiled kernels. Then this
program prints ``ready`` and waits for a line, so that a profiler can attach. It writes
``{"MainThread": 1.2, "scatlas-block": 5.0, ...}`` as JSON to FILE. Threads of one pool add up. The
kernel keeps the time of a thread only while it lives, so a watcher reads all of them every 10 ms;
it misses at most that much of each.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import threading
from collections import defaultdict
from pathlib import Path

_INTERVAL = 0.01


class Watcher(threading.Thread):
    """Reads the processor time of all threads of this process, from its start on."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watcher")
        self.nanoseconds: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.ended = threading.Event()
        self.read()
        self.before = dict(self.nanoseconds)

    def run(self) -> None:
        """Read until the end."""
        while not self.ended.wait(_INTERVAL):
            self.read()

    def read(self) -> None:
        """Read once."""
        self.names |= {thread.native_id or 0: thread.name for thread in threading.enumerate()}
        for task in Path("/proc/self/task").iterdir():
            try:
                text = (task / "schedstat").read_text()
            except OSError:  # it ended meanwhile
                continue
            self.nanoseconds[int(task.name)] = int(text.split()[0])

    def seconds(self) -> dict[str, float]:
        """Seconds by the name of the pool; threads that Python did not start are ``native``."""
        found: dict[str, float] = defaultdict(float)
        for task, nanoseconds in self.nanoseconds.items():
            name = re.sub(r"[-_]\d+(_\d+)?$", "", self.names.get(task, "native"))
            found[name] += (nanoseconds - self.before.get(task, 0)) / 1e9
        found.pop("watcher", None)
        return dict(found)


def main() -> None:
    out, script, warm, options = Path(sys.argv[1]), *sys.argv[2:]
    sys.argv = [script]
    module = runpy.run_path(script)
    blocks = not script.endswith("concat_on_disk.py")
    module["script"].run_main(lambda: module["main"](json.loads(warm)), blocks=blocks)
    print("ready", flush=True)
    sys.stdin.readline()
    watcher = Watcher()
    watcher.start()
    module["main"](json.loads(options))
    watcher.ended.set()
    watcher.join()
    watcher.read()
    out.write_text(json.dumps(watcher.seconds()))


if __name__ == "__main__":
    main()
