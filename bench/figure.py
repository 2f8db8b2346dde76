"""docs/images/performance.png and its table in docs/performance.md, from files of bench/results.

python bench/figure.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs/performance.md", ROOT / "docs/images/performance.png"
BEGIN, END = "<!-- ratios: written by `python bench/figure.py` -->", "<!-- end of ratios -->"
# What was done, with what it is compared, the file of results, and the ratio in it.
GZIP, RAW = "gzip plates to 300 components", "uncompressed plates to 300 components"
ROWS = [
    (f"{GZIP}, functions", "scanpy + Dask", "vs_scanpy", 0, r"^functions .* (\S+)  "),
    (f"{GZIP}, scripts", "scanpy + Dask", "vs_scanpy", 0, r"^scripts .* (\S+)  "),
    (f"{RAW}, functions", "scanpy + Dask", "vs_scanpy", 1, r"^functions .* (\S+)  "),
    (f"{RAW}, scripts", "scanpy + Dask", "vs_scanpy", 1, r"^scripts .* (\S+)  "),
    ("60 samples, all default results", "scanpy in memory", "samples", 0, r"^ratio (\S+)"),
    ("map of 100,000 cells", "scanpy", "map", 0, r"^scatlas  +2 .* (\S+)x"),
    ("functions in memory, mean of 325", "scanpy", "functions", 0, r"^geometric .* ratios (\S+),"),
    ("500,000 cells on one H200", "rapids-singlecell", "gpu-vs_rsc_h5ad", 0, r"gpu: (\S+) times"),
]


def rows() -> list[tuple[str, str, float, str]]:
    """Task, peer with its version and cores, ratio, and file of each row."""
    found = []
    for task, peer, name, nth, pattern in ROWS:
        path = sorted((ROOT / "bench/results").glob(f"{name}-2*.txt"))[-1]
        text = path.read_text()
        ratio = float(re.findall(pattern, text, re.MULTILINE)[nth])
        package = "rapids-singlecell-cu13" if peer.startswith("rapids") else "scanpy"
        version = re.search(rf"{package} ([\d.]+)", text)[1].rstrip(".")
        cores = re.search(r"\d+ cores", text)[0]
        found.append((task, f"{peer} ({version}), {cores}", ratio, path.name))
    return found


def main() -> None:
    """Write the picture, and the table between the marks of the page."""
    found = rows()
    lines = ["| task | beside | times as fast | file |", "|---|---|---:|---|"]
    lines += [f"| {task} | {peer} | {ratio:.1f} | `{file}` |" for task, peer, ratio, file in found]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")
    figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
    bars = ax.barh([f"{task}\n{peer}" for task, peer, *_ in found], [row[2] for row in found])
    ax.bar_label(bars, fmt="%.1f", padding=3)
    ax.set(xscale="log", xlim=(1, 60), xlabel="times as fast as the peer (logarithmic)")
    ax.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"], minor=False)
    ax.set_xticks([], minor=True)
    ax.invert_yaxis()
    ax.tick_params(axis="y", labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
