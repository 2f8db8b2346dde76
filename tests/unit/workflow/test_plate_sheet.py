"""The plate sheet: what is read, what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from scatlas.errors import ConfigError, InputError
from scatlas.io import METRICS
from scatlas.workflow.command_line.find_files import find_files
from scatlas.workflow.config.plate_sheet import WRITTEN_COLUMNS, Plate, read_plates


@pytest.fixture
def sheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.h5ad").touch()
    (tmp_path / "b.zarr").mkdir()

    def write(text, encoding="utf-8"):
        path = tmp_path / "plates.tsv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def refusal(path, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        read_plates(path, **options)
    return str(caught.value)


def test_plates_in_order_with_labels(sheet):
    path = sheet("n_cells\tplate\tdonor\tpath\n12\tz\td 1\ta.h5ad\n\ty\t\tb.zarr\n")
    assert read_plates(path) == [
        Plate(plate="z", path="a.h5ad", n_cells=12, labels={"donor": "d 1"}),
        Plate(plate="y", path="b.zarr", n_cells=None, labels={"donor": ""}),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["plate\tpath\tdonor\t\t", "a\ta.h5ad\td\t\t", "b\tb.zarr\t\t\t"],
        ["plate\tpath\tdonor\t", "a\ta.h5ad\td", "b\tb.zarr"],
        ["plate\tpath\tdonor", "a\ta.h5ad\td\t\t", "b\tb.zarr\t"],
        ["\tplate\tpath\t \tdonor", "\ta\ta.h5ad\t\td", " \tb\tb.zarr\t"],
    ],
)
def test_columns_without_a_name_and_a_value_are_left_out(sheet, lines):
    """Excel writes empty columns beside the table, or none where the last labels are empty."""
    assert read_plates(sheet("\n".join(lines))) == [
        Plate(plate="a", path="a.h5ad", labels={"donor": "d"}),
        Plate(plate="b", path="b.zarr", labels={"donor": ""}),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sheets_of_any_editor(sheet, encoding, end):
    lines = ["plate\tpath", "a\ta.h5ad", "", 'b\t"b.zarr"', "\t"]
    plates = read_plates(sheet(end.join(lines), encoding))
    assert [(p.plate, p.path) for p in plates] == [("a", "a.h5ad"), ("b", "b.zarr")]


def test_paths_may_be_absolute_or_remote(sheet, tmp_path):
    path = sheet(f"plate\tpath\na\t{tmp_path}/a.h5ad\nb\ts3://bucket/b.zarr\n")
    assert [p.is_remote for p in read_plates(path)] == [False, True]


@pytest.mark.parametrize("row", ["plate", "b", "c", "d"])
@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("quoted", ['"{}', '"{}"x', '"{}""', '"'])
def test_a_quote_takes_in_no_other_row(sheet, row, column, quoted):
    """Whichever cell it opens."""
    table = [["plate", "path", "note"], *([name, "x.h5ad", "n"] for name in "bcd")]
    number = [cells[0] for cells in table].index(row)
    table[number][column] = quoted.format(table[number][column])
    path = sheet("\n".join(map("\t".join, table)))
    assert refusal(path, check_files=False).startswith(f"{path}, row {number + 1}: a quote")


def test_quotes_within_a_cell_are_quotes(sheet):
    path = sheet('plate\tpath\tnote\nb\tx.h5ad\tlane 5" tall\nc\ty.h5ad\t"a ""b"" c"\n')
    notes = [plate.labels["note"] for plate in read_plates(path, check_files=False)]
    assert notes == ['lane 5" tall', 'a "b" c']


@pytest.mark.parametrize("text", ['"b\tx.h5ad\tn"', 'b\t"x.h5ad\tn"'])
def test_a_quote_takes_in_no_tab(sheet, text):
    path = sheet(f"plate\tpath\tnote\n{text}\n")
    assert "cells, but the header has 3" in refusal(path, check_files=False)


def same_spelled_otherwise(folder: Path) -> str:
    return f"{folder}/../{folder.name}/./a.h5ad"


def link(folder: Path) -> str:
    (folder / "link.h5ad").symlink_to("a.h5ad")
    return "link.h5ad"


def hard_link(folder: Path) -> str:
    (folder / "hard.h5ad").hardlink_to(folder / "a.h5ad")
    return "hard.h5ad"


def link_of_the_folder(folder: Path) -> str:
    (folder / "linked").symlink_to(folder)
    return "linked/a.h5ad"


@pytest.mark.parametrize(
    "other",
    [
        lambda _: "a.h5ad",
        same_spelled_otherwise,
        link,
        hard_link,
        link_of_the_folder,
        lambda folder: (folder / "a.h5ad").as_uri(),
    ],
)
def test_the_same_data_twice(sheet, tmp_path, other):
    second = other(tmp_path)
    path = sheet(f"plate\tpath\np\ta.h5ad\nq\tb.zarr\nr\t{second}\n")
    text = refusal(path)
    assert text.startswith(f"{path}: rows 2 and 4 name the same data, {second}: each cell would be")


@pytest.mark.parametrize("address", ["s3://bucket/b.zarr", "https://x.org/b.zarr"])
def test_the_same_address_twice(sheet, address):
    path = sheet(f"plate\tpath\np\t{address}\nq\t{address}/\n")
    assert "rows 2 and 3 name the same data" in refusal(path)
    assert len(read_plates(sheet(f"plate\tpath\np\t{address}\nq\t{address}2\n"))) == 2


def test_the_same_demo_plate_twice(sheet):
    path = sheet("plate\tpath\np\tdemo/a.h5ad\nq\tdemo/../demo/a.h5ad\n")
    assert "rows 2 and 3 name the same data" in refusal(path, generated="demo")


def test_home(sheet, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    (tmp_path / "me/a.h5ad").touch()
    (tmp_path / "~").mkdir()
    (tmp_path / "~/a.h5ad").touch()
    (plate, other) = read_plates(sheet("plate\tpath\np\t~/a.h5ad\nq\t./~/a.h5ad\n"))
    assert plate.path == f"{tmp_path}/me/a.h5ad"
    assert other.path == "./~/a.h5ad"
    path = sheet("plate\tpath\np\t~nobody-of-this-name/a.h5ad\n")
    assert refusal(path) == (
        f"{path}, row 2: '~nobody-of-this-name/a.h5ad': the home of ~nobody-of-this-name is not "
        "known; write the path in full"
    )


def test_missing_file(sheet, tmp_path):
    path = sheet("plate\tpath\na\ta.h5ad\nb\tresources/demo/b.h5ad\n")
    text = refusal(path)
    assert text == (
        f"{path}, row 3: resources/demo/b.h5ad of plate 'b' does not exist; paths start from the "
        f"working folder {tmp_path}"
    )
    assert refusal(path, generated="resources/dem") == text
    assert len(read_plates(path, generated="resources/demo")) == 2
    assert len(read_plates(path, check_files=False)) == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty: write the columns plate and path"),
        ("plate\tpath\n", "lists no plate; add a row for each plate below the header"),
        ("plate\tfile\na\tx\n", "has no column 'path': its columns are plate, file"),
        ("Plate\tpath\na\tx\n", "has no column 'plate': rename column 'Plate'"),
        ("plate,path\na,x\n", "is separated by commas: separate the columns by tabs"),
        ("plate;path;n_cells\na;x;1\n", "is separated by semicolons: separate the columns by tabs"),
        ("plate path\na x\n", "is separated by spaces: separate the columns by tabs"),
        ("plate\tpath\tday\tday\na\tx\t1\t1\n", "column 'day' occurs twice; rename it"),
        ("plate\tpath\t\tday\na\tx\t1\t1\n", "a column cannot be called ''; rename it"),
        (f"plate\tpath\t{'é' * 128}\na\tx\t1\n", "a column cannot be called 'ééé"),
        (f"plate\tpath\n{'p' * 201}\tx\n", "cannot name a folder; use letters, digits"),
        ("plate\tpath\tmg/l\na\tx\t1\n", "a column cannot be called 'mg/l'; rename it"),
        ("plate\tpath\tleiden\na\tx\tb\n", "itself writes a column 'leiden' for each cell: rename"),
        ("plate\tpath\tlisi_day\na\tx\tb\n", "itself writes a column 'lisi_day' for each cell"),
        ("plate\tpath\ts3_key\na\tx\tb\n", "'s3_key' is no option of s3:// addresses: rename"),
        ("plate\tpath\ts3_profile\na\ta.h5ad\tx\n", "a.h5ad is no s3:// address: leave the col"),
        (
            "plate\tpath\ts3_requester_pays\na\ts3://b/a.h5ad\tmaybe\n",
            "s3_requester_pays of s3://b/a.h5ad is 'maybe'; write yes or leave it",
        ),
        ("plate\tpath\na\n", "row 2: 1 cells, but the header has 2; separate cells by one tab"),
        ("plate\tpath\na\t\ta.h5ad\n", "row 2: 3 cells, but the header has 2"),
        ("plate\tpath\na\ta.h5ad\n\na\tb.zarr\n", "plate 'a' is in rows 2 and 4; give each"),
        ("plate\tpath\na b\ta.h5ad\n", "row 2: 'a b' cannot name a folder; use letters, digits,"),
        ("plate\tpath\n../a\ta.h5ad\n", "row 2: '../a' cannot name a folder"),
        ("plate\tpath\n..\ta.h5ad\n", "row 2: '..' cannot name a folder"),
        ("plate\tpath\n-a\ta.h5ad\n", "row 2: '-a' cannot name a folder"),
        ("plate\tpath\n\ta.h5ad\n", "row 2: the plate has no name"),
        ("plate\tpath\na\t\n", "row 2: plate 'a' has no path"),
        ("plate\tpath\tn_cells\na\ta.h5ad\t7,000\n", "n_cells of a.h5ad is '7,000'; write a whole"),
        ("plate\tpath\tn_cells\na\ta.h5ad\t-2\n", "n_cells of a.h5ad is '-2'; write a whole"),
        ("plate\tpath\tn_cells\na\ta.h5ad\t0\n", "n_cells of a.h5ad is '0'; write a whole"),
        ("plate\tpath\tfractional\na\ta.h5ad\tup\n", "fractional of a.h5ad is 'up'; write refuse"),
        ("plate\tpath\tcounts\na\ta.h5ad\tumis\n", "counts of a.h5ad is 'umis'; write X, raw or"),
        ("plate\tpath\tn_cells\na\ta.h5ad\t2.5\n", "n_cells of a.h5ad is '2.5'; write a whole"),
    ],
)
def test_refusals(sheet, text, message):
    path = sheet(text)
    shown = refusal(path)
    assert message in shown
    assert shown.startswith(str(path))
    assert "\n" not in shown


def test_other_files_are_refused(sheet, tmp_path):
    text = "is not a text file: save the plate sheet as tab-separated text (UTF-8)"
    assert text in refusal(sheet("plate\tpath\na\tx\n", "utf-16"))
    assert "there is no such plate sheet" in refusal(tmp_path / "none.tsv")
    (tmp_path / "empty").mkdir()
    assert "there are no plates here: correct the path" in refusal(tmp_path / "empty")


def touch(*paths: str | Path) -> None:
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("pattern", "paths", "names"),
    [
        ("r/*/outs/m.h5", ["r/s10/outs/m.h5", "r/s9/outs/m.h5"], ["s9", "s10"]),
        ("r/**/m.h5", ["r/a/1/m.h5", "r/b 2/m.h5"], ["a_1", "b_2"]),
        ("r/s*.h5ad", ["r/s1.h5ad"], ["s1"]),
        ("r", ["r/x.h5ad", "r/y.h5", "r/z.zarr/zarr.json", "r/w/matrix.mtx.gz", "r/notes.txt"],
         ["w", "x", "y", "z"]),
    ],
)  # fmt: skip
def test_a_folder_or_pattern_is_a_sheet(tmp_path, monkeypatch, pattern, paths, names):
    monkeypatch.chdir(tmp_path)
    touch(*paths)
    plates = read_plates(pattern)
    assert [plate.plate for plate in plates] == names
    assert all(Path(plate.path).exists() for plate in plates)


MULTI = [
    *(f"per_sample_outs/{sample}/count/sample_{name}" for sample in "ab" for name in (
        "filtered_feature_bc_matrix.h5", "filtered_feature_bc_matrix/matrix.mtx.gz",
        "raw_feature_bc_matrix.h5", "molecule_info.h5",
    )),
    *("multi/count/raw_feature_bc_matrix.h5", "multi/count/raw_molecule_info.h5"),
]  # fmt: skip
FILTERED, RAW = "filtered_feature_bc_matrix", "raw_feature_bc_matrix"
COUNT = [f"{n}{end}" for n in (FILTERED, RAW) for end in (".h5", "/matrix.mtx.gz")]


@pytest.mark.parametrize(
    ("paths", "given", "found"),
    [
        (MULTI, "o", f"*/*/*/sample_{FILTERED}.h5"),
        (MULTI, "o/per_sample_outs", f"*/*/sample_{FILTERED}.h5"),
        (MULTI, "o/per_sample_outs/a", f"*/sample_{FILTERED}.h5"),
        (MULTI, "o/per_sample_outs/a/count", [f"sample_{FILTERED}.h5"]),
        ([path for path in MULTI if path.endswith("gz")], "o", f"*/*/*/sample_{FILTERED}"),
        ([f"count/{path}" for path in COUNT], "o", f"*/{FILTERED}.h5"),  # aggr
        ([f"s{i}/outs/{path}" for i in (1, 2) for path in COUNT], "o", f"*/*/{FILTERED}.h5"),
        ([*COUNT, "gex_molecule_info.h5"], "o", [f"{FILTERED}.h5"]),  # count, arc
        (COUNT[1::2], "o", [FILTERED]),
        ([COUNT[1], COUNT[2]], "o", [FILTERED]),
        (COUNT[2:], "o", [f"{RAW}.h5"]),  # there is no filtered one
        (["filtered_gene_bc_matrices_h5.h5", "raw_gene_bc_matrices_h5.h5"], "o",
         ["filtered_gene_bc_matrices_h5.h5"]),
        (["raw_a.h5", "filtered_a.h5", "b.h5"], "o", ["b.h5", "filtered_a.h5", "raw_a.h5"]),
    ],
)  # fmt: skip
def test_the_same_cells_are_taken_once_from_a_run_of_cell_ranger(
    tmp_path, monkeypatch, paths, given, found
):
    monkeypatch.chdir(tmp_path)
    for path in (Path("o", path) for path in paths):
        touch(path)
        if ".mtx" in path.name:
            touch(path.with_name("features.tsv"), path.with_name("barcodes.tsv"))
    if isinstance(found, list):
        assert list(find_files([given]).values()) == [f"{given}/{n}" for n in found]
        return
    with pytest.raises(InputError, match="give their pattern") as caught:
        find_files([given])
    pattern = str(caught.value).split("'")[1]
    assert pattern == f"{given}/{found}"
    assert all(FILTERED in path for path in find_files([pattern]).values())


def test_the_matrix_of_all_samples_is_refused_beside_those_of_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(*MULTI)
    with pytest.raises(InputError, match="the same sample as per_sample_outs/a/count"):
        find_files(["multi/count/raw_*matrix.h5", "per_sample_outs/*/*/*_filtered*.h5"])


def test_a_pattern_of_nothing_and_one_of_equal_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"r/\*.h5: there are no plates here"):
        read_plates("r/*.h5")
    for name in ("a b", "a_b"):
        (tmp_path / f"{name}.h5").touch()
    with pytest.raises(ConfigError, match=r"a_b\.h5: plate 'a_b', which a b\.h5 is, too: give one"):
        read_plates("*.h5")


@pytest.mark.parametrize("path", ["C:\\data\\x.h5", "data\\x.h5", "D:/data/x.h5ad"])
def test_a_path_of_windows_is_named(tmp_path, path):
    sheet = tmp_path / "plates.tsv"
    sheet.write_text(f"plate\tpath\np1\t{path}\n")
    with pytest.raises(ConfigError) as error:
        read_plates(sheet)
    assert str(error.value) == (
        f"{sheet}, row 2: {path} of plate 'p1' does not exist; write a path of Windows as Linux "
        "does, with slashes (in WSL C:\\data is /mnt/c/data)"
    )


def test_each_plate_says_what_to_do_with_fractions(tmp_path):
    sheet = tmp_path / "plates.tsv"
    sheet.write_text("plate\tpath\tfractional\np1\ta.h5ad\tround\np2\tb.h5ad\t\n")
    plates = read_plates(sheet, check_files=False)
    assert [plate.fractional for plate in plates] == ["round", None]
    assert plates[0].labels == {}


def test_columns_of_steps_are_no_labels():
    assert {*METRICS} <= WRITTEN_COLUMNS
