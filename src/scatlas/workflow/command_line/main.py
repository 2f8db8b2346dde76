"""The options of the command ``scatlas``."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from scatlas._version import __version__
from scatlas.errors import DiskError, InputError, ScatlasError
from scatlas.workflow.command_line import DONE, PROBLEM, Problem, say, say_json

_DESCRIPTION = """\
One atlas from many plates of single-cell counts. In the folder of your project:

  scatlas init FILES...   look at the files; write atlas.yaml, plates.tsv, init.png
  scatlas check           say whether the atlas can be built
  scatlas run             build it (calls Snakemake)
  scatlas status          say what is done, running and failed
  scatlas open            show the report
  scatlas gene CD3D       a gene by cluster; on the map, as a table, in the explorer
  scatlas label           write the table in which you name the clusters
  scatlas export ATLAS    write atlas.zarr in the form of another program
"""

# Forms of `scatlas export`, with what it writes.
_FORMS = {
    "h5ad": "one h5ad file with equal content",
    "cellxgene": "h5ad file for cellxgene: X by gene, colours of the categories",
    "vitessce": "folder for Vitessce: Zarr with X by gene, and a view config",
    "annbatch": "folder for training with annbatch: the cells in random order",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    n_own = argv.index("--") if "--" in argv else len(argv)
    parser = _parser()
    args, others = parser.parse_known_args(argv[:n_own])
    others += argv[n_own + 1 :]
    if others and args.command != "run":
        parser.error(f"only scatlas run takes further options: leave out {' '.join(others)}")
    try:
        return _call(args, others)
    except ScatlasError as error:
        if getattr(args, "json", False):
            return say_json(args.command, args.config, [Problem(str(error))])
        sys.stderr.write(f"error: {error}\n")
        return PROBLEM
    except BrokenPipeError:  # of `scatlas gene CD3D | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEM


def _call(args: argparse.Namespace, others: list[str]) -> int:
    if args.command == "export":  # needs neither Snakemake nor a config
        form = next(form for form in _FORMS if getattr(args, form))
        _export(args, form, getattr(args, form))
        return DONE
    if args.command == "gene":  # nor does this need Snakemake
        from scatlas.workflow.command_line.gene import gene

        options = ("atlas", "by", "counts", "table", "figure", "add")
        gene(args.names, args.config, **{name: getattr(args, name) for name in options})
        return DONE
    from scatlas.workflow.command_line.run import check_folder, check_installed, use_writable_caches

    check_installed()
    check_folder()
    use_writable_caches()
    # Each command imports its own modules: `scatlas open` needs no HDF5.
    match args.command:
        case "init":
            from scatlas.workflow.command_line.init import init

            init(args.files, args.config, args.outdir, force=args.force)
            return DONE
        case "check":
            from scatlas.workflow.command_line.check import check

            return check(args.config, as_json=args.json)
        case "run":
            from scatlas.workflow.command_line.run import run

            return run(args.config, others, slurm=args.slurm)
        case "status":
            from scatlas.workflow.command_line.status import status

            return status(args.config, as_json=args.json)
        case "label":
            from scatlas.workflow.command_line.label import label

            label(args.config, args.out)
            return DONE
        case _:
            _open_report(args.config)
            return DONE


def _export(args: argparse.Namespace, form: str, out: Path) -> None:
    """Write an atlas (a path or address) in another form."""
    from scatlas import export
    from scatlas.compute.progress import progress

    options: dict[str, Any] = {"seed": args.seed} if form == "annbatch" else {}
    if form in ("h5ad", "cellxgene"):
        options = {"genes": _genes_to_export(args.genes), "counts": args.counts}
    elif args.genes or args.counts:
        raise InputError("--genes and --counts go with --h5ad or --cellxgene: leave them out")
    write = getattr(export, f"to_{form}")
    try:
        with progress(f"export {out}"):
            write(args.atlas, out, **options)
    except OSError as error:
        if isinstance(error, DiskError):
            raise
        reason = " ".join(str(error).split())
        msg = f"{out} cannot be written ({reason}): make room, or name another folder"
        raise DiskError(msg) from error
    say(f"wrote {out}")


def _genes_to_export(given: list[str] | None) -> list[str] | str | None:
    """Names of genes, those of a file in its place; ``all``."""
    if not given or given == ["all"]:
        return "all" if given else None
    from scatlas.workflow.config.values import _read_names

    try:
        return _read_names(given)
    except ValueError as error:
        raise InputError(f"--genes: {error}") from None


def _open_report(config_file: Path) -> None:
    """Open ``report.html`` of the results in the user's browser, and print its path."""
    from scatlas.workflow.config.loading import read_config

    config = read_config(config_file)
    folder = Path(config.folder, "mapped") if config.atlas else Path(config.folder)
    page = (folder / "report.html").absolute()
    if not page.is_file():
        raise InputError(f"{page}: there is no report yet: scatlas run makes it")
    say(str(page))
    # Without a screen Python would start a browser of the terminal, which shows no pictures.
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    has_screen = sys.platform == "darwin" or any(os.environ.get(name) for name in names)
    if has_screen and not webbrowser.open(page.as_uri()):
        say("no browser was found: open this file in one")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scatlas",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *, config: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        if config:
            command.add_argument(
                "--config", type=Path, default=Path("atlas.yaml"), help="default: atlas.yaml"
            )
        return command

    init = add("init", "look at the files of the plates, and write config and plate sheet")
    init.add_argument(
        "files", nargs="+", metavar="FILES", help="files, stores, folders or patterns of plates"
    )
    init.add_argument("--outdir", default="results", help="folder of the results, for the config")
    init.add_argument("--force", action="store_true", help="replace existing files")
    check = add("check", "check config and plates, and plan the run, without running it")
    run = add("run", "run Snakemake; its options follow, such as --cores 8 or -n")
    run.add_argument(
        "--slurm", action="store_true", help="submit the steps to Slurm, with the profile slurm/"
    )
    status = add("status", "list what is done, running and failed, by step and plate")
    for command in (check, status):
        command.add_argument(
            "--json", action="store_true", help="print one JSON object for programs, also of errors"
        )
    labels = add("label", "write the table in which you name the clusters")
    labels.add_argument(
        "--out", type=Path, help="table to write; default: that of the config, or labels.tsv"
    )
    add("open", "show the report in a browser")
    gene = add("gene", "print genes by cluster; draw them, write them, add them to the explorer")
    _add_gene_options(gene)
    export = add("export", "write an atlas in the form of another program", config=False)
    _add_export_options(export)
    return parser


def _add_gene_options(gene: argparse.ArgumentParser) -> None:
    gene.add_argument("names", nargs="+", metavar="GENE", help="measured genes, such as CD3D")
    gene.add_argument("--atlas", help="atlas.zarr, or its address; default: that of the config")
    gene.add_argument("--by", metavar="COLUMN", help="obs column of the groups; default: leiden")
    gene.add_argument("--counts", action="store_true", help="counts, not log-normalised values")
    gene.add_argument(
        "--table", type=Path, metavar="FILE", help="write the values of each cell: .tsv, .csv"
    )
    gene.add_argument("--figure", type=Path, metavar="FILE", help="draw the genes on the map")
    gene.add_argument(
        "--add", action="store_true", help="add the genes to explore.genes of the config"
    )


def _add_export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument("atlas", metavar="ATLAS", help="atlas.zarr, or its address")
    forms = export.add_mutually_exclusive_group(required=True)
    for form, text in _FORMS.items():
        forms.add_argument(f"--{form}", type=Path, metavar="OUT", help=text)
    export.add_argument(
        "--genes",
        nargs="+",
        metavar="GENE",
        help="with --h5ad or --cellxgene: all measured genes (all), these, or those of a text file",
    )
    export.add_argument(
        "--counts",
        action="store_true",
        help="also raw counts: layers['counts'], for cellxgene raw.X",
    )
    export.add_argument("--seed", type=int, default=0, help="order of the cells for annbatch")
