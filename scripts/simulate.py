"""Make one of the demo's plates: the same file for the same number, on any machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, required=True, help="1, 2, 3 ...")
    parser.add_argument("--cells", type=int, default=2000, help="cells on the plate")
    parser.add_argument("--genes", type=int, default=3000, help="genes of each cell")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--out", type=Path, required=True, help="h5ad to write")
    args = parser.parse_args(argv)
    plate = simulate_plate(args.number, n_cells=args.cells, n_genes=args.genes, seed=args.seed)
    write_plate(args.out, plate)


if __name__ == "__main__":
    script.run_main(main)
