"""Parquet files of cells, as Tahoe-100M is released: the same plates as split by hand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from scatlas.datasets import simulate_plate, write_release
from scatlas.errors import DiskError, InputError, TooLargeError
from scatlas.io import list_samples, load_plate, split_samples
from scatlas.io.files.cell_files import CellFiles, ListColumns
from scatlas.io.matrices.counts_source import open_counts
from scatlas.io.matrices.parquet_source import ParquetSource
from scatlas.io.matrices.source import Sample
from scatlas.workflow.command_line.find_files import find_release
from tests.helpers.files import files

NAMES = ["plate1", "plate2", "plate3"]
FIRST = "data/train-00000-of-00003.parquet"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three plates in three files, in row groups of 60 cells of which two hold two plates."""
    folder = tmp_path_factory.mktemp("release") / "tahoe"
    sizes = enumerate((230, 200, 170), start=1)
    plates = [simulate_plate(number, n_cells=n, n_genes=300) for number, n in sizes]
    write_release(folder, plates, rows_per_group=60)
    return folder


@pytest.fixture
def release(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(sound, tmp_path / "tahoe")


def rewrite(release: Path, change: dict[str, object], file: str | Path = FIRST) -> None:
    """Replace columns of a file."""
    table = pq.read_table(release / file)
    for name, values in change.items():
        kind = table.schema.field(name).type
        table = table.set_column(table.column_names.index(name), name, pa.array(values, kind))
    pq.write_table(table, release / file, row_group_size=60)


def lists(release: Path, name: str, file: str | Path = FIRST) -> list[list]:
    return pq.read_table(release / file)[name].to_pylist()


def load(release: Path, out: Path, plate: str = "plate1") -> dict:
    return load_plate(release, out, plate=plate, sample=Sample("plate", plate))


def by_hand(release: Path, plate: str) -> ad.AnnData:
    """A plate as a user would make it with pyarrow and pandas, cell after cell."""
    table = pa.concat_tables(pq.read_table(f) for f in sorted((release / "data").glob("*")))
    cells = table.to_pandas().query(f"plate == {plate!r}").set_index("BARCODE_SUB_LIB_ID")
    genes = pd.read_parquet(release / "metadata/gene_metadata.parquet")
    gene_of = {token: i for i, token in enumerate(genes["token_id"])}
    x = np.zeros((len(cells), len(genes)), np.float32)
    for row, (tokens, values) in enumerate(zip(cells.genes, cells.expressions, strict=True)):
        assert (tokens[0], values[0]) == (1, -2)
        for token, value in zip(tokens[1:], values[1:], strict=True):
            x[row, gene_of[token]] += value
    obs = cells.drop(columns=["genes", "expressions"]).astype("category")
    facts = pd.read_parquet(release / "metadata/obs_metadata.parquet")
    facts = facts.set_index("BARCODE_SUB_LIB_ID").loc[obs.index]
    for name in facts.columns.difference(obs.columns, sort=False):
        text = facts[name].dtype == object
        obs[name] = facts[name].astype("category") if text else facts[name]
    wells = pd.read_parquet(release / "metadata/sample_metadata.parquet").set_index("sample")
    treatment = wells["drugname_drugconc"].loc[obs["sample"].astype(str)].to_numpy()
    found = [re.fullmatch(r"\[\('.*', ([\d.]+), '(\w+)'\)\]", text) for text in treatment]
    obs["dose"] = [float(match[1]) for match in found]
    obs["drugname_drugconc"] = pd.Categorical(treatment)
    obs["dose_unit"] = pd.Categorical([match[2] for match in found])
    obs.index.name = None
    var = pd.DataFrame(
        {"gene_ids": genes["ensembl_id"].to_numpy(), "token_id": genes["token_id"].to_numpy()},
        index=pd.Index(genes["gene_symbol"].to_numpy()),
    )
    return ad.AnnData(sp.csr_matrix(x), obs=obs, var=var)


@pytest.mark.parametrize("plate", NAMES[:2])
def test_a_plate_has_the_bytes_of_one_split_by_hand(sound: Path, tmp_path: Path, plate: str):
    by_hand(sound, plate).write_h5ad(tmp_path / "hand.h5ad")
    wanted = load_plate(tmp_path / "hand.h5ad", tmp_path / "hand.zarr", plate=plate)
    found = load(sound, tmp_path / "own.zarr", plate)
    own, hand = files(tmp_path / "own.zarr"), files(tmp_path / "hand.zarr")
    assert own.keys() == hand.keys()
    assert [name for name in own if own[name] != hand[name]] == []
    assert found == wanted | {"notices": []}


def test_plates_and_cells_are_those_of_the_footers(sound: Path):
    table = pa.concat_tables(pq.read_table(f) for f in sorted((sound / "data").glob("*")))
    for place in (sound, sound / "data", f"{sound}/data/*.parquet"):
        assert (
            list_samples(place, "plate")
            == table["plate"].to_pandas().value_counts(sort=False).to_dict()
        )
    found = CellFiles.find(sound)
    assert found is not None
    assert ParquetSource(found).is_ordered("plate", 3)
    assert sum(group.is_mixed for group in found.footers("plate")) == 2
    assert not ParquetSource(found).is_ordered("drug", 8)


def test_plates_that_whole_numbers_name_have_all_their_cells(release: Path, tmp_path: Path):
    """As texts 5 is above 10, so the least and greatest of a row group with both say nothing."""
    number = dict(zip(NAMES, (2, 5, 10), strict=True))
    for file in (*(release / "data").glob("*"), release / "metadata/obs_metadata.parquet"):
        table = pq.read_table(file)
        own = pa.array([number[name] for name in table["plate"].to_pylist()])
        table = table.set_column(table.column_names.index("plate"), "plate", own)
        pq.write_table(table, file, row_group_size=60)
    plates = list_samples(release, "plate")
    for name, n_cells in plates.items():
        assert load(release, tmp_path / name, name)["n_cells"] == n_cells
    assert [*plates] == ["2", "5", "10"]


def test_files_in_no_order_are_split_in_one_pass(release: Path, tmp_path: Path):
    order = np.random.default_rng(0).permutation(len(lists(release, "genes")))
    for file in sorted((release / "data").glob("*")):
        table = pq.read_table(file)
        pq.write_table(table.take(order[order < len(table)]), file, row_group_size=60)
    stores = {name: tmp_path / f"{name}.zarr" for name in NAMES}
    split_samples(release, stores, by="plate", block_budget="1MB")
    for name in NAMES:
        load_plate(stores[name], tmp_path / "split", plate=name)
        load(release, tmp_path / "own", name)
        assert files(tmp_path / "split/X") == files(tmp_path / "own/X")
        shutil.rmtree(tmp_path / "split")
        shutil.rmtree(tmp_path / "own")


def test_repeated_genes_are_added_and_told(release: Path, tmp_path: Path):
    before = load(release, tmp_path / "before.zarr")
    genes, counts = lists(release, "genes"), lists(release, "expressions")
    genes[4] = [*genes[4], genes[4][1]]
    counts[4] = [*counts[4], 300.0]
    rewrite(release, {"genes": genes, "expressions": counts})
    after = load(release, tmp_path / "after.zarr")
    assert after["notices"] == ["1 entries of a gene that a cell holds already: added to it"]
    assert after["n_values"] == before["n_values"]
    assert after["total_counts"] == before["total_counts"] + 300


FAULTS = {
    "unknown token": (
        lambda g, c: g[3].__setitem__(2, 99_999),
        "00000-of-00003.parquet: row group 0: row 3 holds token 99999, which gene_metadata",
    ),
    "reserved token": (lambda g, c: g[3].__setitem__(2, 1), "row 3 holds token 1, which"),
    "negative value": (
        lambda g, c: c[65].__setitem__(2, -2.0),
        r"train-00000-of-00003.parquet: row group 1: expressions holds -2, a negative value",
    ),
    "fractional value": (lambda g, c: c[65].__setitem__(2, 0.5), "holds 0.5, a fractional value"),
    "negative part": (
        lambda g, c: (g[65].append(g[65][1]), c[65].append(-1.0)),
        "row group 1: expressions holds -1, a negative value",
    ),
    "half of a count, twice": (
        lambda g, c: (g[65].extend(2 * [g[65][1]]), c[65].extend([0.5, 0.5])),
        "row group 1: expressions holds 0.5, a fractional value",
    ),
    "unlike lengths": (
        lambda g, c: c[65].pop(),
        "row group 1: a cell has lists of unlike lengths in genes and expressions",
    ),
    "missing list": (lambda g, c: g.__setitem__(5, None), "row group 0: a list or an entry of it"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cell_that_cannot_be_read_is_named_and_nothing_written(
    release: Path, tmp_path: Path, fault: str
):
    change, message = FAULTS[fault]
    genes, counts = lists(release, "genes"), lists(release, "expressions")
    change(genes, counts)
    rewrite(release, {"genes": genes, "expressions": counts})
    with pytest.raises(InputError, match=message):
        load(release, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_a_damaged_page_is_named(release: Path, tmp_path: Path):
    footer = pq.read_metadata(release / FIRST)
    column = footer.row_group(1).column(0)
    content = bytearray((release / FIRST).read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin : begin + 40] = bytes(40)
    (release / FIRST).write_bytes(content)
    message = "00000-of-00003.parquet: row group 1, columns genes, expressions, cannot be decoded"
    with pytest.raises(InputError, match=f"{message}.*: download this file again"):
        load(release, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
    load(release, tmp_path / "b.zarr", "plate3")  # which is not in this file


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError("full")])
def test_what_the_system_refuses_is_no_damage(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", fail)
    with pytest.raises((DiskError, TooLargeError)) as refused:
        load(release, tmp_path / "a.zarr")
    assert "download" not in str(refused.value)


@pytest.mark.parametrize("change", [{"n_rows": 59}, {"n_rows": 61}, {"n_values": 60}])
def test_a_row_group_must_be_as_long_as_its_footer_says(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, int]
):
    read = CellFiles._footer
    monkeypatch.setattr(
        CellFiles,
        "_footer",
        lambda *given: [group._replace(**change) for group in read(*given)],
    )
    with pytest.raises(InputError, match=r"row groups? 0\b.*: not the [\d,]+ cells and [\d,]+ ent"):
        load(release, tmp_path / "a.zarr")


def typed(genes: pa.DataType, counts: pa.DataType, *, gaps: bool = True) -> dict[str, object]:
    fields = (pa.field("element", kind, gaps) for kind in (genes, counts))
    return {"types": [pa.list_(field) for field in fields]}


# How files are written; whether it takes Arrow to decode the lists.
WRITERS = {
    "other codecs": (
        {"compression": {"genes.list.element": "zstd", "expressions.list.element": "gzip"}},
        False,
    ),
    "no codec": ({"compression": "none"}, False),
    "a page per cell": ({"data_page_size": 1, "write_batch_size": 1}, False),
    "other types": (typed(pa.int32(), pa.float64(), gaps=False), False),
    "unsigned tokens": (typed(pa.uint16(), pa.float32()), True),
    "small dictionaries": ({"dictionary_pagesize_limit": 200, "data_page_size": 200}, True),
    "no dictionaries": ({"use_dictionary": False}, True),
    "pages of version 2": ({"data_page_version": "2.0"}, True),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_lists_are_the_same_from_any_writer(
    sound: Path, release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
):
    load(sound, tmp_path / "wanted.zarr")
    options, by_arrow = WRITERS[writer]
    for file in (release / "data").glob("*"):
        table = pq.read_table(file)
        for name, kind in zip(("genes", "expressions"), options.get("types", ()), strict=False):
            at = table.column_names.index(name)
            table = table.set_column(at, pa.field(name, kind), table[name].cast(kind))
        others = {name: value for name, value in options.items() if name != "types"}
        pq.write_table(table, file, row_group_size=60, **others)
    read, decoded = CellFiles.read, []
    monkeypatch.setattr(CellFiles, "read", lambda *given: decoded.append(given[2]) or read(*given))
    load(release, tmp_path / "own.zarr")
    assert files(tmp_path / "own.zarr/X") == files(tmp_path / "wanted.zarr/X")
    # One of the five row groups of the plate holds another, too.
    assert decoded.count(["genes", "expressions"]) == (5 if by_arrow else 1)


def test_cells_without_entries_are_read(release: Path, tmp_path: Path):
    genes, counts = lists(release, "genes"), lists(release, "expressions")
    genes[0], counts[0], genes[70], counts[70] = [], [], [1], [-2]
    rewrite(release, {"genes": genes, "expressions": counts})
    assert load(release, tmp_path / "a.zarr")["n_empty_cells"] == 2


def test_missing_repeated_and_foreign_files_are_listed(release: Path):
    second = release / "data/train-00001-of-00003.parquet"
    for name, what in (
        ("train-1-of-00003.parquet", "are the same part"),
        ("train-00000-of-00004.parquet", "is not of the 3 files"),
        ("train-00000-of-00003 (1).parquet", "is not of the 3 files"),
    ):
        shutil.copy(second, second.with_name(name))
        with pytest.raises(InputError, match=re.escape(name) + f".*{what}"):
            CellFiles.find(release)
        second.with_name(name).unlink()
    second.unlink()
    with pytest.raises(InputError, match=r"1 of 3 files are missing, train-00001-of-00003.parquet"):
        CellFiles.find(release)


def test_cells_that_the_tables_beside_lack_are_counted(release: Path, tmp_path: Path):
    table = pq.read_table(release / "metadata/obs_metadata.parquet")
    names = table["BARCODE_SUB_LIB_ID"].to_pylist()
    lost = lists(release, "BARCODE_SUB_LIB_ID")[:2]
    kept = pa.array([name not in lost for name in names])
    pq.write_table(table.filter(kept), release / "metadata/obs_metadata.parquet")
    with pytest.raises(InputError, match=r"obs_metadata.parquet: it lacks 2 of [\d]+ cells"):
        load(release, tmp_path / "a.zarr")
    (release / "metadata/obs_metadata.parquet").unlink()
    load(release, tmp_path / "b.zarr")
    assert "gene_count" not in ad.read_zarr(tmp_path / "b.zarr").obs


def test_a_cell_name_that_stands_twice_is_named(release: Path, tmp_path: Path):
    names = lists(release, "BARCODE_SUB_LIB_ID")
    names[70] = names[3]
    rewrite(release, {"BARCODE_SUB_LIB_ID": names})
    message = rf"the cell name '{names[3]}' stands twice in BARCODE_SUB_LIB_ID \(cells 3 and 70\)"
    with pytest.raises(InputError, match=message):
        load(release, tmp_path / "a.zarr")


def with_other_names(release: Path) -> None:
    """Columns of whole numbers for tokens and counts, and other lists; cells without a marker."""
    for file in (release / "data").glob("*"):
        table = pq.read_table(file)
        tokens, counts = ([row[1:] for row in table[n].to_pylist()] for n in table.column_names[:2])
        table = table.drop_columns(["genes", "expressions"])
        extra = {"gene_ids": tokens, "values": [[*map(int, row)] for row in counts], "pca": counts}
        for name, rows in extra.items():
            table = table.append_column(name, pa.array(rows))
        pq.write_table(table, file, row_group_size=60)


def test_columns_of_other_names_and_no_marker(release: Path, sound: Path, tmp_path: Path):
    with_other_names(release)
    sample, columns = Sample("plate", "plate1"), ListColumns("gene_ids", marker=None)
    options = {"plate": "p", "sample": sample, "counts_in": "values"}
    found = load_plate(release, tmp_path / "a.zarr", lists=columns, **options)
    wanted = load(sound, tmp_path / "b.zarr")
    assert found["values_digest"] == wanted["values_digest"]
    assert found["notices"] == ["obs column 'pca' is left out: it holds list<element: double>"]
    stores = {name: tmp_path / f"{name}.zarr" for name in NAMES}
    split_samples(release, stores, by="plate", counts_in="values", lists=columns)
    split = load_plate(stores["plate1"], tmp_path / "c.zarr", plate="p")
    assert split["values_digest"] == wanted["values_digest"]


def test_the_first_entry_that_is_left_out_is_the_one_asked_for(release: Path, tmp_path: Path):
    wanted = load(release, tmp_path / "a.zarr")
    for file in (release / "data").glob("*"):
        tokens, counts = (lists(release, name, file) for name in ("genes", "expressions"))
        for own, amounts in zip(tokens, counts, strict=True):
            own[0], amounts[0] = 0, -1
        rewrite(release, {"genes": tokens, "expressions": counts}, file)
    options = {"plate": "plate1", "sample": Sample("plate", "plate1")}
    found = load_plate(release, tmp_path / "b.zarr", lists=ListColumns(marker=(0, -1)), **options)
    assert found == wanted
    for wrong in ((1, -2), None):
        with pytest.raises(InputError, match="row 0 holds token 0, which"):
            load_plate(release, tmp_path / "c.zarr", lists=ListColumns(marker=wrong), **options)


@pytest.mark.parametrize(
    ("genes", "counts", "sentence"),
    [
        ("tokens", "values", r"'tokens' \(source.genes\) is no column of lists of whole numbers; "),
        ("gene_ids", "X", r"'X' \(source.counts\) is no column of lists of other numbers; "),
        ("gene_ids", "gene_ids", r"'gene_ids' \(source.counts\) is no column of lists of other"),
        ("drug", "values", r"gene_ids \(of int64\), values \(of int64\), pca \(of double\): cor"),
        (None, "X", r"name them in the config, as source: {genes: NAME, counts: NAME}"),
    ],
)
def test_columns_that_cannot_be_the_lists_are_refused(
    release: Path, genes: str | None, counts: str, sentence: str
):
    with_other_names(release)
    with pytest.raises(InputError, match=sentence):
        open_counts(release, counts, lists=ListColumns(genes))
    simulate_plate(1, n_cells=20, n_genes=200).write_h5ad(release / "a.h5ad")
    with pytest.raises(InputError, match=r"no Parquet file, and source.genes \('g'\) is a column"):
        open_counts(release / "a.h5ad", lists=ListColumns("g"))


def test_one_file_per_well_is_the_same_release(release: Path, tmp_path: Path):
    """Files ``smp_*.parquet``: of any number, with more columns; metadata beside or one up."""
    wanted = load(release, tmp_path / "a.zarr")
    table = pa.concat_tables(pq.read_table(f) for f in sorted((release / "data").glob("*")))
    table = table.append_column("drugconc", table["drug"])
    shutil.rmtree(release / "data")
    (release / "wells").mkdir()
    wells = table["sample"].unique().to_pylist()
    for well in wells:
        own = table.filter(pa.compute.equal(table["sample"], well))
        pq.write_table(own, release / f"wells/{well}.parquet")
    for beside in ("wells/metadata", "wells", "none"):
        for place in (release / "wells", f"{release}/wells/smp_*.parquet"):
            assert [*list_samples(place, "plate")] == NAMES
            assert set(list_samples(place, "sample")) == {*wells}
            found = load(place, tmp_path / "b.zarr")
            assert found["total_counts"] == wanted["total_counts"]
            assert "drugconc" in ad.read_zarr(tmp_path / "b.zarr").obs
            shutil.rmtree(tmp_path / "b.zarr")
        one_by_one = [str(file) for file in (release / "wells").glob("smp_*")]
        for arguments in (one_by_one, [f"{release}/wells"]):
            assert find_release(arguments)[:2] == (f"{release}/wells", "plate")
        assert find_release(one_by_one[1:]) is None
        (release / beside).mkdir(exist_ok=True)
        for file in [*release.rglob("*_metadata.parquet")]:
            file.rename(release / beside / file.name)
    with pytest.raises(InputError, match=r"no gene_metadata.parquet, .* in .*/wells, .*/metadata"):
        CellFiles.find(release / "wells")


def test_tables_are_converted_beside_the_store(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))  # a folder of memory, and full
    (tmp_path / "out/.a.zarr.source/obs").mkdir(parents=True)  # of a run that was killed
    load(sound, tmp_path / "out/a.zarr")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.zarr"]
