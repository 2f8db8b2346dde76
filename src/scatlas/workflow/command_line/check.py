"""``scatlas check``: every check that needs no run, in sentences."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from scatlas.columns import close_names, gene_positions, known_names
from scatlas.errors import InputError, ScatlasError
from scatlas.io import METRICS
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.matrices.counts_source import find_source, gene_names, what_elements_hold
from scatlas.io.matrices.source import COUNTS, EXPECTED, Wanted
from scatlas.io.products.load_statistics import HOW_TO_ROUND
from scatlas.io.tables.cell_names import SharedCells
from scatlas.workflow.command_line import DONE, PROBLEM, Problem, say, say_json
from scatlas.workflow.command_line.compared import ComparedSamples
from scatlas.workflow.command_line.run import plan
from scatlas.workflow.config.loading import read_project
from scatlas.workflow.config.plate_sheet import DEMO_FOLDER, WRITTEN_COLUMNS
from scatlas.workflow.config.sections import Config
from scatlas.workflow.config.values import query_columns
from scatlas.workflow.integrity import edited_results

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.io.tables.table import Table
    from scatlas.workflow.config.plate_sheet import Plate


def stored_cells(path: str, counts: str) -> Iterator[tuple[EncodedText, NDArray[np.int64]]]:
    """Cells of a plate for :class:`scatlas.io.tables.cell_names.SharedCells`, which only rows of
    CSR have beside the counts; the step `concat_on_disk` compares those of other plates.
    """
    with find_source(path, Wanted(counts)) as source:
        if (n_genes := source.genes_per_cell()) is None:
            return
        obs = source.table("obs")
        for lo, hi in obs.spans():
            yield EncodedText.encode(obs.names(lo, hi)), n_genes[lo:hi]


# Below this share of genes that all plates have, their union is suggested.
_ENOUGH = 0.8


class GeneAgreement:
    """Genes of all plates so far."""

    def __init__(self) -> None:
        self._first: pd.Index | None = None
        self._first_path = ""
        self._shared: set[str] = set()
        self._all: set[str] = set()
        self._same = True

    def add(self, path: str, genes: pd.Index) -> None:
        """Add the genes of a plate, which must share one with the plates before."""
        if self._first is None:
            self._first, self._first_path = genes, path
            self._shared, self._all = set(genes), set(genes)
            return
        self._same = self._same and genes.equals(self._first)
        before = len(self._shared)
        self._shared &= set(genes)
        self._all |= set(genes)
        if before and not self._shared:
            raise InputError(
                f"{path}: it shares no gene with {self._first_path}: its first gene is "
                f"{genes[0]!r}, there it is {self._first[0]!r}; give files with the same kind of "
                "gene names"
            )

    @property
    def n_usable(self) -> int:
        """Genes of an atlas with :attr:`setting`."""
        return len(self._all if self.setting == "union" else self._shared)

    @property
    def setting(self) -> str:
        """Value of ``genes`` in the config."""
        if self._same:
            return "same"
        allowed = get_args(Config.model_fields["genes"].annotation)
        few = len(self._shared) < _ENOUGH * len(self._all)
        return "union" if few and "union" in allowed else "intersect"

    @property
    def sentence(self) -> str:
        """What the plates share."""
        if self._same:
            return f"all plates have the same {len(self._shared):,} genes in the same order"
        return (
            f"all plates share {len(self._shared):,} genes of {len(self._all):,} that any has"
            if len(self._shared) < len(self._all)
            else f"all plates have the same {len(self._all):,} genes, in different orders"
        )


_TOTAL = re.compile(r"^total +(\d+)$", re.MULTILINE)


def check(config_file: Path, *, as_json: bool = False) -> int:
    """Check config, plate sheet, the structure of the plates, and the plan of Snakemake, and print
    each problem. Return 0 if the atlas can be built, else 1; with ``plates.on_error: skip`` plates
    with problems are no reason for 1.
    """
    config, plates = read_project(config_file)
    named, not_used, bad_table = columns_of_labels(config)
    named += config.annotate.columns if config.annotate else []
    cells, columns, genes = SharedCells(), AskedColumns(config, named), AskedGenes(config)
    compared = ComparedSamples(config)
    problems = list(_problems_of_plates(config, plates, cells, columns, genes, compared))
    errors, left_out = ([], problems) if config.plates.skips else (problems, [])
    good = [plate for plate in plates if plate.plate not in {bad.plate for bad in problems}]
    errors += [*bad_table, *_problems_of_types(config, good, columns)]
    if config.map.use and not Path(config.map.use).exists():
        errors.append(Problem(f"map.use: {config.map.use} does not exist: correct it"))
    n_opened = 1 if config.plates.by else len(plates)
    said = dict([*columns.sentences(n_opened), *genes.sentences(len(plates))])
    # A picture or score without its column is left out; other steps would end.
    notices = [text for text, key in said.items() if key in _LEFT_OUT]
    errors += [Problem(text) for text, key in said.items() if key not in _LEFT_OUT]
    not_compared, doubts = compared.sentences(n_opened)
    errors += not_compared
    notices += _doubtful_values(config) + not_used + doubts
    n_steps, edited = None, []
    try:
        edited = edited_results(Path(config.folder))
        total = _TOTAL.search(plan(config_file, "-n", "--quiet=rules"))
        n_steps = int(total[1]) if total else 0
    except InputError as error:
        # Its rules refuse missing files, too.
        if not any(problem.message in str(error) for problem in errors):
            errors.append(Problem(str(error)))
    if as_json:
        return say_json(
            *("check", config_file, errors),
            folder=config.folder,
            n_plates=len(plates),
            n_jobs_to_run=n_steps,
            left_out=[problem._asdict() for problem in left_out],
            same_cells=[Problem(text, name)._asdict() for name, text in cells.sentences().items()],
            notices=notices,
            edited=edited,
        )
    for sentence in [*edited, *cells.sentences().values(), *notices]:
        say(sentence)
    for problem in left_out:
        say(f"will be left out: {problem.message}")
    for problem in errors:
        say(f"error: {problem.message}")
    if errors:
        return PROBLEM
    todo = f"{n_steps:,} steps to run: scatlas run" if n_steps else "nothing to run"
    say(f"{config_file} is valid: {len(plates):,} plates, {todo}")
    return DONE


def columns_of_labels(config: Config) -> tuple[list[str], list[str], list[Problem]]:
    """obs columns that the tables of labels make, sentences on tables of other clusters than those
    of a finished map, or why a table cannot be used.
    """
    if not config.labels:
        return [], [], []
    from scatlas.workflow.command_line.label import present_clusters  # h5py and pandas
    from scatlas.workflow.labels import read_tables

    try:
        tables = read_tables(config.labels)
    except InputError as error:
        return [], [], [Problem(str(error))]
    clusters = present_clusters(config) if any(table.is_of_clusters for table in tables) else None
    problems = [clusters.problem_of(t) for t in tables if t.is_of_clusters] if clusters else []
    return [name for table in tables for name in table.columns], [*filter(None, problems)], []


def _problems_of_types(
    config: Config, plates: Sequence[Plate], asked: AskedColumns
) -> Iterator[Problem]:
    """What annotate names: obs columns, labelled cells, and a model."""
    wanted = config.annotate
    if wanted is None or config.atlas:
        return
    for name in wanted.columns:
        if plate := asked.first_with(name):
            yield Problem(
                f"annotate.key: plate {plate} has an obs column {name!r} already: give another "
                "key, for example predicted_type",
                plate,
            )
    for key in ("reference", "model", "markers"):
        path = getattr(wanted, key)
        if not path or path.startswith(DEMO_FOLDER):
            continue
        if not Path(path).exists():
            yield Problem(f"annotate.{key}: {path} does not exist: correct it")
            continue
        try:
            _check_source(key, path, config, plates)
        except ScatlasError as error:
            yield Problem(str(error))


def _check_source(key: str, path: str, config: Config, plates: Sequence[Plate]) -> None:
    """Read labelled cells, or a model, and compare their genes with those of the first plate."""
    import pandas as pd

    from scatlas.io.products.celltypist_models import read_model
    from scatlas.matrix.annotate import MIN_SHARE, shared_genes
    from scatlas.workflow.annotation import read_marker_lists
    from scatlas.workflow.labelled_cells import check_file

    model = read_model(Path(path)) if key == "model" else None
    if key == "markers":
        model = read_marker_lists(Path(path))
    if model is None and config.annotate:
        check_file(path, config.annotate, config.compute.block_budget)
    genes = gene_names(path) if model is None else pd.Index(model.genes)
    local = [plate for plate in plates if not plate.is_remote and Path(plate.path).exists()]
    if not local or config.source.genes:
        return
    plate = local[0]
    with find_source(plate.path, Wanted(plate.counts or config.source.counts)) as source:
        names = known_names(source.table("var").read(), genes)
    if model is not None:
        there = shared_genes(model, names, f"plate {plate.plate}").of_annotator
        for name, row in zip(model.labels, model.coef, strict=True):
            if not (row[there] > 0).any():
                some = ", ".join(model.genes[row > 0][:5])
                raise InputError(
                    f"{path}: plate {plate.plate} measures no gene that speaks for {name!r} "
                    f"({some}): correct the names, or remove this type"
                )
    n_shared = genes.intersection(names).size
    if n_shared < MIN_SHARE * min(genes.size, names.size):
        raise InputError(
            f"{path} shares {n_shared:,} of its {genes.size:,} genes with plate {plate.plate}: "
            f"there is {str(genes[0])!r}, here {str(names[0])!r}: give labelled cells of this "
            "species and of these names (symbols or ids)"
        )


def _doubtful_values(config: Config) -> list[str]:
    """Sentences on values that are allowed, but probably mean something else."""
    bound = config.qc.max_pct_mt
    if bound is None or not 0 < bound < 1:
        return []
    return [
        (
            f"qc.max_pct_mt is {bound:g}, and keeps cells with at most {bound:g} of 100 counts in "
            f"mitochondrial genes: write {100 * bound:g} if you mean {100 * bound:g}%"
        )
    ]


# Keys without whose columns, or genes, the steps do less.
_LEFT_OUT = {"report.colors", "integrate.label", "by_gene.genes"}
# Keys that name columns of the plates' cells alone, without the labels of the sheet.
_OF_CELLS = {"qc.filter", "doublets.by"}


class AskedColumns:
    """obs columns that the config names, beside those that the plates have."""

    def __init__(self, config: Config, labels: Iterable[str] = ()) -> None:
        made, named = {"plate", *METRICS}, {*labels}
        if config.doublets:
            made |= {"doublet_score", "predicted_doublet"}
        steps = made | named | (WRITTEN_COLUMNS - {"doublet_score", "predicted_doublet"})
        by = [config.qc.by] if config.qc.mads and config.qc.by != "plate" else []
        doublets, mixing = config.doublets, config.integrate
        summed = {name: getattr(config, name) for name in ("pseudobulk", "effects")}
        groups = {"leiden", "plate", *METRICS, *named}
        filtered = query_columns(config.qc.filter) if config.qc.filter else []
        # By key: the columns that it names, and those that no plate needs to have.
        self._asked: dict[str, tuple[Sequence[str], set[str]]] = {
            "qc.filter": (filtered, set(METRICS)),
            "qc.by": (by, set(METRICS)),
            "doublets.by": ([doublets.by] if doublets and doublets.by else [], set(METRICS)),
            "markers.by": (config.markers.by, {"leiden", *made, *named}),
            "pseudobulk.by": (summed["pseudobulk"].by if summed["pseudobulk"] else [], groups),
            "effects": (summed["effects"].columns if summed["effects"] else [], groups),
            "integrate.key": (mixing.key if mixing else [], made),
            "integrate.label": ([mixing.label] if mixing and mixing.label else [], made | named),
            "subset.by": (config.subset.by, made),
            "explore.columns": (config.explore.columns if config.explore.page else [], steps),
            # By default those of many plates, of which some have none.
            "report.colors": (
                config.report.colors if "colors" in config.report.model_fields_set else [],
                steps,
            ),
        }
        learnt = config.annotate if config.annotate and not config.annotate.reference else None
        self._asked["annotate"] = (learnt.columns_of_cells if learnt else [], {"plate"})
        if config.atlas:  # new plates take the atlas's own steps
            self._asked = {key: self._asked[key] for key in ("qc.filter", "qc.by", "doublets.by")}
        self._without: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
        self._n_plates = 0
        self._first_with: dict[str, str] = {}

    def add(self, plate: Plate, columns: Collection[str]) -> None:
        """Compare the columns of a plate; a label of the plate sheet is a column of the atlas."""
        self._n_plates += 1
        for name in {*columns, *plate.labels}:
            self._first_with.setdefault(name, plate.plate)
        for key, (names, made) in self._asked.items():
            labels = {} if key in _OF_CELLS else plate.labels
            for name in names:
                if name not in made and name not in columns and not labels.get(name):
                    lacking = self._without.setdefault((key, name), [])
                    lacking.append((plate.plate, list(columns)))

    def first_with(self, column: str) -> str | None:
        """First plate with a column, if any has it."""
        return self._first_with.get(column)

    def sentences(self, n_plates: int) -> Iterator[tuple[str, str]]:
        """One sentence for each column that plates lack, and the key that names it; types are
        learnt from those of all plates that have them.
        """
        for (key, name), lacking in self._without.items():
            if key == "annotate" and len(lacking) < n_plates:
                continue
            plate, columns = lacking[0]
            which = f"{self._n_plates - len(lacking):,} of {self._n_plates:,} plates have"
            if len(lacking) == self._n_plates:
                which = "no plate has"
            close = get_close_matches(name, columns, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            has = ", ".join(columns) or "none"
            text = (
                f"{which} an obs column {name!r}, which {key} names; {hint}plate {plate} has {has}"
            )
            yield text, key


class AskedGenes:
    """Genes that the config names, of which a plate has to measure each."""

    def __init__(self, config: Config) -> None:
        named = {
            "consensus.also": config.consensus.also,
            "explore.genes": config.explore.genes if config.explore.page else [],
            "by_gene.genes": config.by_gene.names,
        }
        named = {} if config.atlas else named
        self._missing = {(key, name): "" for key, names in named.items() for name in names}
        self._n_plates = 0

    def add(self, var: Table) -> None:
        """Look for the genes that no plate before had."""
        self._n_plates += 1
        if not self._missing:
            return
        table = var.read()
        for key, name in [*self._missing]:
            if gene_positions(table, [name], key) == [None]:
                self._missing[key, name] = close_names(table, name)
            else:
                del self._missing[key, name]

    def sentences(self, n_plates: int) -> Iterator[tuple[str, str]]:
        """One sentence for each gene that none of all plates has, and the key that names it."""
        for (key, name), close in self._missing.items() if self._n_plates == n_plates else ():
            yield f"no plate measures a gene {name!r}, which {key} names; {close}", key


def _problems_of_plates(
    config: Config,
    plates: list[Plate],
    cells: SharedCells,
    columns: AskedColumns,
    asked: AskedGenes,
    compared: ComparedSamples,
) -> Iterator[Problem]:
    """Open each plate without reading its counts, and compare genes, cells and columns."""
    genes = GeneAgreement()
    if config.plates.by and not config.source.genes:  # one file, which has been opened
        with find_source(plates[0].path) as source:
            columns.add(plates[0], source.table("obs").columns)
            yield from compared.add(plates[0], source.table("obs"), config.plates.by)
    for plate in plates:
        if plate.is_remote or plate.is_simulated or config.plates.by:
            continue  # not here yet
        # With source.genes it is a column of Parquet files, whose only matrix is X.
        counts = "X" if config.source.genes else plate.counts or config.source.counts
        try:
            held = what_elements_hold(plate.path)
            words = held.get(counts, "is missing")
            if isinstance(words, InputError):
                raise words
            if counts in held:
                names = gene_names(plate.path, counts)
                if (bound := config.qc.min_genes or 0) > len(names):
                    yield Problem(
                        f"qc.min_genes is {bound:,}, but plate {plate.plate} has {len(names):,} "
                        "genes, so it would keep no cell: lower it",
                        plate.plate,
                    )
                genes.add(plate.path, names)
                cells.add(plate.plate, stored_cells(plate.path, counts))
                with find_source(plate.path, Wanted(counts)) as source:
                    columns.add(plate, source.table("obs").columns)
                    yield from compared.add(plate, source.table("obs"))
                    asked.add(source.table("var"))
        except ScatlasError as error:
            yield Problem(str(error), plate.plate)
            continue
        fractional = plate.fractional or config.source.fractional
        if words == COUNTS or (words == EXPECTED and fractional == "round"):
            continue
        found = [name for name, other in held.items() if other == COUNTS]
        which = f"{plate.path}: {counts} of plate {plate.plate!r}"
        if words == EXPECTED and not found:
            msg = f"{which} is fractional: {HOW_TO_ROUND}"
        elif found:
            mend = "correct source.counts, or the column counts"
            msg = f"{which} {words}, but {' or '.join(found)} {COUNTS}: {mend}"
        else:
            msg = f"{which} {words}: give a file with raw counts"
        yield Problem(msg, plate.plate)
    if (
        not config.atlas
        and config.genes == "same"
        and genes.setting != "same"
        and not config.plates.skips
    ):
        yield Problem(f"genes is same, but {genes.sentence}: set genes: {genes.setting}")
