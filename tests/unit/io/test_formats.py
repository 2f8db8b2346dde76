"""Each format of plates gives the same by one protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scatlas.datasets import simulate_plate, write_release
from scatlas.io.matrices import store_source
from scatlas.io.matrices.counts_source import find_source
from scatlas.io.matrices.source import Wanted
from scatlas.workflow.command_line.plate_facts import read_facts
from tests.helpers import foreign_files

SOME = ["cell_ranger_3_folder", "cell_ranger_7", "loom_3", "anndata_06", "anndata_07", "release"]


@pytest.mark.parametrize("name", SOME)
def test_each_format_gives_cells_genes_and_blocks(tmp_path: Path, name: str):
    write, file, counts = foreign_files.FILES.get(name, (None, "tahoe", "X"))
    x = foreign_files.counts()
    if write:
        write(tmp_path / file)
    else:
        plate = simulate_plate(1, n_cells=60, n_genes=200)
        write_release(tmp_path / file, [plate], rows_per_group=20)
        x = plate.X[(plate.obs["pass_filter"] == "full").to_numpy()]
    with find_source(tmp_path / file, Wanted(counts)) as source:
        assert counts in source.elements()
        assert source.others_with_counts() == []
        assert list(source.table("var").index()) == list(source.genes())
        assert (source.table("obs").n_rows, len(source.genes())) == source.shape == x.shape
        cut, read = source.blocks(20_000, print)
        found = np.concatenate([read(i).toarray() for i in range(len(cut))])
        np.testing.assert_array_equal(found, x.toarray())
        assert sum(block.sum() for block in source.some_blocks(print)) == x.sum()
        source.check_complete()
        source.check_unchanged()
        assert source.path_of(0).startswith(str(tmp_path))


def test_init_does_not_convert_a_text_matrix_with_antibodies(tmp_path: Path, monkeypatch):
    foreign_files.cell_ranger_2_folder(tmp_path / "run")
    lines = (tmp_path / "run/genes.tsv").read_text().splitlines()
    types = ["Antibody Capture", *["Gene Expression"] * (len(lines) - 1)]
    rows = (f"{line}\t{kind}\n" for line, kind in zip(lines, types, strict=True))
    (tmp_path / "run/genes.tsv").write_text("".join(rows))
    monkeypatch.setattr(store_source, "convert_matrix_market", None)
    facts, genes = read_facts("p", str(tmp_path / "run"))
    assert (facts.n_cells, facts.n_genes) == (60, len(genes)) == (60, 119)
