"""Steps that leave their plate out, in place of an error."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from scatlas.errors import InputError
from scatlas.workflow import script
from scatlas.workflow.consensus import plates_with_other_genes
from scatlas.workflow.left_out import PlateLeftOut, sentences


def options(folder: Path, *more: str):
    parser = script.parser("a step", may_skip=True)
    parser.add_argument("--plate")
    parser.add_argument("--store", type=Path)
    manifest = folder / "manifests/hvg/p1.json"
    return parser.parse_args(
        ["--manifest", str(manifest), "--plate", "p1", "--threads", "1",
         "--store", str(folder / "counts.zarr"), *more]
    )  # fmt: skip


def run(args, error: Exception | None = None) -> None:
    with script.recorded_run(
        args, outputs=[args.store, args.store.with_suffix(".parquet")]
    ) as facts:
        facts["n_cells"] = 3
        if error:
            raise error


def test_a_bad_plate_is_left_out_and_so_it_is_in_the_next_step(tmp_path: Path):
    args = options(tmp_path, "--on-error", "skip")
    with pytest.raises(PlateLeftOut, match="no cell"):
        run(args, InputError("plate p1 has no cell"))
    manifest = json.loads(args.manifest.read_text())
    assert manifest.pop("outputs").keys() == {"counts.zarr", "counts.parquet"}
    assert manifest == {"plate": "p1", "left_out": "plate p1 has no cell"}
    assert not args.manifest.with_suffix(".refused").exists()
    assert json.loads((args.store / "zarr.json").read_text())["attributes"] == {
        "left_out": "plate p1 has no cell"
    }

    later = options(tmp_path / "later", "--on-error", "skip", "--previous", str(args.manifest))
    with pytest.raises(PlateLeftOut, match="no cell"):
        run(later)
    assert json.loads(later.manifest.read_text())["left_out"] == "plate p1 has no cell"
    run(args)
    run(later)
    assert json.loads(later.manifest.read_text())["n_cells"] == 3


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_no_plate_is_left_out_by_default_or_for_a_lost_store(tmp_path: Path, on_error: str):
    args = options(tmp_path, "--on-error", on_error)
    error = InputError(f"{args.store}: no such file" if on_error == "skip" else "no cell")
    with pytest.raises(InputError, match=str(error)):
        run(args, error)
    assert args.manifest.with_suffix(".refused").read_text() == str(error)
    assert not args.manifest.exists()


def test_plates_with_other_genes_than_most():
    lists = {"a": "xyz", "b": "xzy", "c": "xzy", "d": "xy", "e": "xzy"}
    tables = {plate: pd.DataFrame(index=[*genes]) for plate, genes in lists.items()}
    found = plates_with_other_genes(tables)
    assert list(found) == ["a", "d"]
    assert (
        "plate a has 'y' as gene 2 where plate b (3 of 5 plates have its genes) has 'z'"
        in (found["a"])
    )
    # As many plates: the earlier one is right.
    assert list(plates_with_other_genes({"a": tables["a"], "b": tables["b"]})) == ["b"]
    assert plates_with_other_genes({}) == {}


def test_sentences_name_each_plate_and_at_most_twenty():
    assert sentences({"p1": "p1.h5ad is empty", "p2": "x"}) == "- p1.h5ad is empty\n- p2: x"
    assert sentences({f"p{i}": "x" for i in range(22)}).endswith("- p19: x\n- and 2 more")
