"""What a step asks of a machine follows from what is stored, without opening a plate."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import pytest
from scipy import sparse

from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.resources import (
    BASE_MB,
    BYTES_PER_CELL,
    VALUES_PER_CELL,
    JobRequest,
    Size,
    block_threads,
    memory_mb,
    minutes,
    plan,
    plate_size,
    total,
)

BUDGET = 256_000_000


@pytest.mark.filterwarnings("ignore:.*zarr v[23]:UserWarning", "ignore:Consolidated:UserWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_says_its_shape(tmp_path: Path, zarr_format: int):
    x = sparse.random(30, 20, density=0.3, format="csr", random_state=0)
    with ad.settings.override(zarr_write_format=zarr_format):
        ad.AnnData(x).write_zarr(tmp_path / "sparse.zarr")
        ad.AnnData(x.toarray()).write_zarr(tmp_path / "dense.zarr")
    assert plate_size(Plate(plate="p", path=str(tmp_path / "sparse.zarr"))) == Size(30, x.nnz)
    assert plate_size(Plate(plate="p", path=str(tmp_path / "dense.zarr"))) == Size(30, 600)


def test_a_file_is_taken_to_hold_cells_like_tahoes(tmp_path: Path):
    path = tmp_path / "p.h5ad"
    path.write_bytes(bytes(10 * BYTES_PER_CELL))
    assert plate_size(Plate(plate="p", path=str(path))) == Size(10, 10 * VALUES_PER_CELL)
    told = Plate(plate="p", path=str(path), n_cells=7)
    assert plate_size(told) == Size(7, 7 * VALUES_PER_CELL)


def test_an_address_and_a_damaged_store_have_a_size(tmp_path: Path):
    (tmp_path / "X").mkdir()
    (tmp_path / "X" / "zarr.json").write_text("{")
    for path in ("s3://bucket/p.zarr", str(tmp_path)):
        assert plate_size(Plate(plate="p", path=path)).cells > 1_000_000
        assert plate_size(Plate(plate="p", path=path, n_cells=5)).cells == 5


def test_sizes_add_up():
    assert total([Size(1, 10), Size(2, 20)]) == Size(3, 30)
    assert total([]) == Size(0, 0)


@pytest.mark.parametrize(
    ("budget", "values", "gpu", "threads"),
    [
        (BUDGET, None, False, 4),
        (BUDGET, 1e9, False, 4),
        (BUDGET, 1e9, True, 8),
        (BUDGET, 100, False, 2),  # one block
        (BUDGET, 9e6, False, 3),  # 72 MB in blocks of 32 MB
        (16_000_000, 1e9, False, 4),
        (544_000_000, 1e9, False, 16),  # docs/memory.md
        (544_000_000, 1e6, False, 2),
    ],
)
def test_threads_follow_from_blocks(budget: int, values: float | None, gpu: bool, threads: int):
    assert block_threads(budget, values, gpu=gpu) == threads


def test_memory_follows_from_the_budget_and_not_from_the_counts():
    assert memory_mb(0, 0) == BASE_MB
    assert memory_mb(0, BUDGET) == BASE_MB + 1024
    assert memory_mb(1e6, BUDGET) == BASE_MB + 1024 + 300
    assert memory_mb(1e6, BUDGET, gpus=2, gram_mb=50) == BASE_MB + 1024 + 300 + 50 + 6000


def test_time_has_slack_for_slow_disks():
    assert minutes(0) == 10
    assert minutes(60) == 30
    assert minutes(60, threads=4) == 15


def test_the_plan_adds_up():
    asks = [
        JobRequest("load", 4, 2000, 30, disk_mb=1500),
        JobRequest("load", 2, 3000, 60, disk_mb=500),
        JobRequest("hvg", 8, 5000, 90, gpu=2),
    ]
    lines = plan(asks).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:]}
    assert list(rows) == ["load", "hvg", "all"]
    assert rows["load"] == ["2", "4", "0", "3.0", "1.5", "0.0", "2.0"]
    assert rows["hvg"] == ["1", "8", "2", "5.0", "1.5", "3.0", "0.0"]
    assert rows["all"] == ["3", "8", "2", "5.0", "3.0", "3.0", "2.0"]
    assert len({len(line) for line in lines[2:]}) == 1, "a table"


def test_nothing_to_do_is_no_error():
    assert plan([]).splitlines()[-1].split() == ["all", "0", "0", "0", "0.0", "0.0", "0.0", "0.0"]
