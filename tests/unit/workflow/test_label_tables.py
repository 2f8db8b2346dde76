"""Tables of names for clusters and cells: what is read, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io import CsrWriter
from scatlas.workflow.labels import Clusters, read_tables, rows_of_cells, values_of

CLUSTERS = Clusters(["0", "1", "2"], np.array([0, 1, 2, 1, -1], np.int8), None)
OTHERS = Clusters(["0", "1"], np.array([0, 1, 1, 1, -1], np.int8), None)


def write(tmp_path: Path, text: str | bytes, name: str = "labels.tsv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "cluster\tcell_type\n0\tT cells\n1\t\n2\tB, naive\n",
        '\ufeffcluster;cell_type;;\r\n0;T cells;;\r\n1;;;\r\n2;"B, naive";;\r\n;;;\r\n',
        'leiden,cell_type\n"0",T cells\n1,\n2,"B, naive"\n',
        "cluster\tcell_type\n0\tT cells\n1\n2\tB, naive\n".encode("utf-16"),
        "cluster\tcell_type\tn_cells\tshare\tmarkers\n0\tT cells\t9\t2%\tA\n1\n2\tB, naive\n",
    ],
)
def test_tables_of_people_of_excel_and_of_pandas(tmp_path: Path, text: str | bytes):
    (table,) = read_tables([write(tmp_path, text)])
    assert table.columns == ["cell_type"]
    assert table.rows["cell_type"].to_dict() == {"0": "T cells", "1": "", "2": "B, naive"}
    assert CLUSTERS.problem_of(table) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows: write a header"),
        ("cluster\tcell_type\n", "has no rows: write a header"),
        (b"cluster\tcell_type\n0\t\xff\xfe\xfa\n", "is not a text file: save it as CSV"),
        ("clusters\tcell_type\n0\tA\n", "column 'clusters' is nearly 'cluster': rename it"),
        ("cluster\tmarker\n0\tA\n", "column 'marker' is nearly 'markers': rename it"),
        ("cluster\tcell_type\tcell_type\n0\tA\tB\n", "column 'cell_type' occurs twice"),
        ("cluster\tn_cells\n0\t3\n", "no cluster has a name yet, and no column for them"),
        ("cluster\tcell_type\n0\t\n", "no cluster has a name yet in cell_type"),
        ("cluster\tcell_type\n0\tA\n0\tB\n", "cluster '0' occurs twice; keep one row"),
        ("cell\ttype\nx\tA\nx\tB\n", "cell 'x' occurs twice; keep one row, or tell them apart by"),
        ("cluster\tcell/type\n0\tA\n", "obs cannot have a column of labels 'cell/type'"),
        ("cluster\tatlas_row\n0\tA\n", "obs cannot have a column of labels 'atlas_row'"),
        ('cluster\tcell_type\n0\t"A\n1\tB\n', "row 2 has a quote without its end"),
        ("cell,x\n" + '"a,1\n' * 40_000, "has a quote without its end"),
        (",cluster,cell_type\n0,0,A\n", "column 1 has no name: give it one, or delete it"),
        (",leiden,cell_type\na,0,A\nb,0,A\n", "obs cannot have a column of labels 'leiden'"),
        ("cluster\tcell_type\n0\tA\tB\n", "row 2 has 3 cells, the header 2: put quotes around"),
    ],
)
def test_what_a_table_cannot_be(tmp_path: Path, text: str | bytes, words: str):
    with pytest.raises(InputError) as error:
        read_tables([write(tmp_path, text)])
    assert words in str(error.value)
    assert "labels.tsv" in str(error.value)


def test_tables_that_are_missing_or_make_one_column(tmp_path: Path):
    with pytest.raises(
        InputError, match="there is no such table of labels: write it with scatlas label"
    ):
        read_tables([tmp_path / "no.tsv"])
    some = [write(tmp_path, "cluster\tx\n0\tA\n"), write(tmp_path, "cell\tx\na\tA\n", "b.tsv")]
    with pytest.raises(InputError, match=r"b\.tsv: .*labels\.tsv has a column 'x', too: rename"):
        read_tables(some)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0\tA\n1\tB\n", "lacks clusters (2)"),
        (
            "0\tA\n1\tB\n2\tC\n3\tD\n",
            "names clusters that are not there (3), so no cell has its names",
        ),
    ],
)
def test_a_table_by_hand_names_the_clusters_there_are(tmp_path: Path, rows: str, words: str):
    (table,) = read_tables([write(tmp_path, f"cluster\tcell_type\n{rows}")])
    problem = CLUSTERS.problem_of(table)
    assert problem is not None
    assert words in problem
    assert problem.endswith("write a table of these clusters with scatlas label")


def test_a_table_of_other_clusters_is_known_by_its_digest(tmp_path: Path):
    text = f"cluster\tx\tclustering\n0\tA\t{OTHERS.digest}\n1\tB\t{OTHERS.digest}\n"
    (table,) = read_tables([write(tmp_path, text)])
    assert OTHERS.problem_of(table) is None
    problem = CLUSTERS.problem_of(table)
    assert problem is not None
    assert "was written for other clusters (2 then, 3 now), so no cell has its names" in problem
    moved = Clusters(OTHERS.names, OTHERS.codes[::-1], None)
    assert "(2 then, 2 now)" in str(moved.problem_of(table))


def test_names_keep_their_order_and_measures_are_numbers():
    names = values_of(pd.Series(["b", "", "a", "b"]))
    assert list(names.categories) == ["b", "a"]
    assert names.codes.tolist() == [0, -1, 1, 0]
    assert list(values_of(pd.Series(["2", "1", ""])).categories) == ["2", "1"]
    numbers = values_of(pd.Series([*map(str, range(100)), ""]))
    np.testing.assert_array_equal(numbers, [*range(100), np.nan])


def test_cells_are_found_by_name_and_by_plate(tmp_path: Path):
    obs = pd.DataFrame(
        {"plate": pd.Categorical(["p1", "p1", "p2", "p2"])}, index=["a", "x-p1", "x-p2", "b"]
    )
    store = tmp_path / "merged.zarr"
    with CsrWriter(store, n_vars=1, obs=obs, data_dtype=np.float32) as writer:
        writer.append(sp.csr_matrix((4, 1), dtype=np.float32))
    by_name = write(tmp_path, "cell\tv\nb\t1\na\t2\n", "a.tsv")
    by_plate = write(tmp_path, "cell\tplate\tw\nx\tp2\t1\nx\tp1\t2\nb\tp2\t3\n", "b.tsv")
    tables = read_tables([by_name, by_plate])
    assert rows_of_cells(tables[0], store).tolist() == [1, -1, -1, 0]
    assert rows_of_cells(tables[1], store).tolist() == [-1, 1, 0, 2]
    (other,) = read_tables([write(tmp_path, "cell\tplate\tv\nb\tp1\t1\n", "d.tsv")])
    with pytest.raises(InputError, match="'b' of plate 'p1'; names there are like 'a' of plate"):
        rows_of_cells(other, store)
    (wrong,) = read_tables([write(tmp_path, "cell\tv\nx\t1\na\t2\n", "c.tsv")])
    with pytest.raises(InputError, match="1 of 2 cells are not in the atlas, the first is 'x'; na"):
        rows_of_cells(wrong, store)
