"""Make one of the demo's plates, or several in one file: the same for the same numbers anywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow import script

if TYPE_CHECKING:
    from anndata import AnnData


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, nargs="+", required=True, help="1, 2, 3 ...")
    parser.add_argument("--cells", type=int, default=2000, help="cells on the plate")
    parser.add_argument("--genes", type=int, default=3000, help="genes of each cell")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--out", type=Path, required=True, help="h5ad to write")
    args = parser.parse_args(argv)
    options = {"n_cells": args.cells, "n_genes": args.genes, "seed": args.seed}
    plates = [simulate_plate(number, **options) for number in args.number]
    write_plate(args.out, plates[0] if len(plates) == 1 else concat_plates(plates))


def concat_plates(plates: list[AnnData]) -> AnnData:
    """Cells of several plates."""
    import anndata

    names = [f"plate{number}" for number in range(len(plates))]
    return anndata.concat(plates, keys=names, index_unique="-", merge="same")


if __name__ == "__main__":
    script.run_main(main)
