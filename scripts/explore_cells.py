"""Find what the pixels of each plate depend on beside its own cells, for explore.html."""

from __future__ import annotations

from pathlib import Path

from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import ExploreContent
from scatlas.workflow.explore import MapCells, choose, digest_of_page, digests_of_plates


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--cells", type=Path, required=True, help="atlas.zarr, or umap.h5ad")
    parser.add_argument("--umap", type=Path, required=True, help="umap.h5ad, the sample")
    parser.add_argument("--markers", type=Path, help="markers.tsv, if there are marker genes")
    add_sections(parser, explore=ExploreContent)
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[]) as facts:
        cells, sample = MapCells(args.cells), MapCells(args.umap)
        content = read_section(args, "explore", ExploreContent)
        columns, genes = choose(cells, sample, content, args.markers)
        facts["page"] = digest_of_page(sample, columns, genes)
        facts["plates"] = digests_of_plates(cells)


if __name__ == "__main__":
    script.run_main(main)
