"""Write X of the merged plates gene after gene, for look-ups of single genes."""

from __future__ import annotations

from pathlib import Path

from scatlas.io import write_gene_copy
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--by-gene", type=Path, required=True, help="by_gene.zarr to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.by_gene]) as facts:
        facts |= write_gene_copy(args.merged, args.by_gene, block_budget=script.block_budget(args))


if __name__ == "__main__":
    script.run_main(main)
