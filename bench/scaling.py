"""Benchmark of time and memory of every rule for plates of several sizes.

    python bench/scaling.py FOLDER --cells 50000 100000 200000 400000 800000

Simulates plates of each size in FOLDER (once), runs the workflow on them, one job at a time with
all cores, and prints nanoseconds per stored value and the peak memory of each rule: time should be
linear and memory constant.
"""

from __future__ import annotations

import runner
from workflow_run import QC, by_rule, make_plates, run_workflow


def main() -> None:
    parser = runner.parser(__doc__, folder="for plates and results", plates=1, genes=62_710)
    sizes = [50_000, 100_000, 200_000, 400_000, 800_000]
    parser.add_argument("--cells", type=int, nargs="+", default=sizes)
    parser.add_argument("--comps", type=int, default=300)
    parser.add_argument("--budget", default="auto", help="block budget of the jobs")
    args = parser.parse_args()
    found = []
    for cells in args.cells:
        folder = args.folder / f"cells{cells}"
        jobs = run_workflow(
            folder,
            make_plates(folder, args.plates, cells, args.genes),
            subset=5000,
            qc=QC,
            consensus={"min_plates": min(2, args.plates)},
            pca={"n_comps": args.comps},
            compute={"block_budget": args.budget},
        )
        found.append((cells, jobs.values, jobs.wall, by_rule(jobs)))
    lines = [
        *runner.head("anndata", "dask", "numba", "numpy", "zarr", "snakemake"),
        f"# {args.plates} plate(s); seconds of a rule (without the start of Python), ns per value, "
        "peak MB",
        f"{'cells':<18}" + "".join(f"{cells:>24,}" for cells, *_ in found),
        f"{'M values':<18}" + "".join(f"{values / 1e6:>24.0f}" for _, values, *_ in found),
        f"{'workflow':<18}" + "".join(f"{wall:>22.1f} s" for *_, wall, _ in found),
    ]
    for rule in found[0][3]:
        cells = ""
        for _, values, _, rules in found:
            seconds, peak = rules[rule]
            cells += f"{seconds:>8.2f}{seconds / values * 1e9:>8.1f}{peak / 1e6:>8.0f}"
        lines.append(f"{rule:<18}{cells}")
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
