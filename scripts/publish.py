"""Copy the results to an address, such as s3://bucket/atlas; only what it lacks."""

from __future__ import annotations

from pathlib import Path

from scatlas.io import publish
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the results")
    parser.add_argument("--names", nargs="+", required=True, help="results to copy")
    parser.add_argument("--address", required=True, help="where")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[]) as facts:
        journal = args.manifest.with_suffix(".uploads")
        facts |= publish(args.folder, args.names, args.address, journal=journal)


if __name__ == "__main__":
    script.run_main(main, blocks=False)
