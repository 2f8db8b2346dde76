"""Data of explore.html: counts that add up, what is chosen, and a size that holds."""

from __future__ import annotations

import base64
import json
import re
import warnings
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scatlas.errors import InputError
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.matrix.effects_moderation import t_pvalues
from scatlas.matrix.map_pixels import (
    MEANS_SIDE,
    SIDE,
    Box,
    box_of,
    count_levels,
    pixels,
    positions,
    side_for,
)
from scatlas.workflow.config.sections import Explore
from scatlas.workflow.explore import MapCells, choose, count_pixels
from scatlas.workflow.explore._cells import read_genes
from scatlas.workflow.explore._choose import TOP_MARKERS, choose_genes
from scatlas.workflow.explore._effects import effect_blocks
from scatlas.workflow.explore._pack import coarsen, pack_names, page_bytes, varints
from tests.explore.cells import HOSTILE, PLATES, Made, effects_of, make_page, plate_of, sample


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_page(tmp_path_factory.mktemp("page"), sample())


def blocks_of(page: Path) -> dict[str, bytes]:
    found = re.findall(
        r'<script type="text/plain" id="block-([^"]+)">([^<]*)</script>', page.read_text()
    )
    return {name: zlib.decompress(base64.b64decode(text), -15) for name, text in found}


def read_varints(data: bytes) -> list[int]:
    out, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            out.append(value)
            value = shift = 0
    return out


# Positions and pixels ----------------------------------------------------------------------------


def test_a_box_holds_its_cells_and_ignores_missing_ones():
    xy = np.array([[0, 0], [10, 5], [np.nan, 1e9]], np.float32)
    box = box_of(xy)
    assert box.side == pytest.approx(10.2)
    places = positions(xy, box)
    assert (places[:2] > 0).all()
    assert (places[:2] < 65535).all()
    assert box_of(np.empty((0, 2))) == Box(0, 0, 1)
    assert box_of(np.ones((3, 2))).side > 0


def test_cells_outside_the_box_lie_on_its_border():
    places = positions(np.array([[-5, 0.5], [7, 0.5], [1, 1]]), Box(0, 0, 1))
    assert places.tolist() == [[0, 32768], [65535, 32768], [65535, 65535]]


def test_pixels_are_the_first_bits_of_the_positions():
    places = np.random.default_rng(0).integers(0, 65536, (1000, 2)).astype(np.uint16)
    for side in (8, MEANS_SIDE, SIDE):
        x, y = places.astype(int).T // (65536 // side)
        expected = y * side + x
        assert (pixels(places, side) == expected).all()


@pytest.mark.parametrize(("n_levels", "side"), [(1, 512), (256, 512), (257, 256), (10_000, 64)])
def test_histograms_of_many_levels_are_coarser(n_levels: int, side: int):
    assert side_for(n_levels) == side


def test_counts_of_parts_equal_those_of_pandas():
    rng = np.random.default_rng(0)
    pixel, codes = rng.integers(0, 64, 5000), rng.integers(-1, 300, 5000)
    parts = [(pixel[at], codes[at]) for at in (slice(1000), slice(1000, 1000), slice(1000, None))]
    found = count_levels(parts, 300, 64)
    known = pd.DataFrame({"level": codes, "pixel": pixel})[codes >= 0]
    expected = known.groupby(["level", "pixel"]).size()
    assert found.counts.tolist() == expected.tolist()
    assert found.keys.tolist() == [level * 64 + at for level, at in expected.index]
    assert count_levels([], 300, 64).keys.size == 0


def test_coarser_counts_are_those_of_wider_pixels():
    places = np.random.default_rng(2).integers(0, 65536, (4000, 2)).astype(np.uint16)
    codes = np.random.default_rng(3).integers(0, 4, 4000)
    fine = count_levels([(pixels(places, 64), codes)], 4, 64**2)
    expected = count_levels([(pixels(places, 32), codes)], 4, 32**2)
    found = coarsen(fine, 64)
    assert (found.keys == expected.keys).all()
    assert (found.counts == expected.counts).all()


@given(st.lists(st.integers(0, 2**62)))
def test_variable_length_integers_can_be_read(values: list[int]):
    assert read_varints(bytes(varints(np.array(values, np.int64)))) == values


# What is chosen ----------------------------------------------------------------------------------


def test_columns_with_colours_are_chosen(made: Made):
    kinds = {column.name: column.kind for column in made.columns}
    # One value, and a name for each cell, have no colours.
    assert kinds == {
        **dict.fromkeys(("leiden", "plate", "group", "phase"), "category"),
        "total_counts": "category",  # few values
        "score": "number",
    }
    assert [column.levels for column in made.columns if column.name == "plate"] == [list(PLATES)]
    assert next(c for c in made.columns if c.name == "group").levels[: len(HOSTILE)] == HOSTILE


def test_named_columns_must_exist(tmp_path: Path, made: Made):
    cells = MapCells(made.page.parent / "umap.h5ad")
    with pytest.raises(InputError, match=r"no obs column 'missing', which explore.columns names"):
        choose(cells, cells, Explore(columns=["missing"]), None)
    with pytest.raises(InputError, match=r"obs\['barcode'\].*leave it out"):
        choose(cells, cells, Explore(columns=["barcode"]), None)
    columns, genes = choose(cells, cells, Explore(columns=["phase"], n_genes=0), None)
    assert [column.name for column in columns] == ["phase"]
    assert genes == []


def test_genes_are_markers_of_all_groups_and_named_and_variable_ones(tmp_path: Path):
    rows = [("leiden", g, r, f"GENE{10 * r + int(g)}") for g in "012" for r in (1, 2)]
    more = [("leiden", "0", 3, "ELSEWHERE"), ("leiden", "0", TOP_MARKERS + 1, "GENE3")]
    table = pd.DataFrame([*rows, *more], columns=["by", "group", "rank", "names"])
    table.to_csv(tmp_path / "markers.tsv", sep="\t", index=False)
    var, path = sample(30).var, tmp_path / "markers.tsv"
    best = ["GENE10", "GENE11", "GENE12", "GENE20", "GENE21", "GENE22"]
    genes = choose_genes(var, path, Explore(n_genes=8), known=var.index)
    assert genes == [*best, "GENE59", "GENE58"]
    # In any case: the best markers and named genes, of the atlas or not.
    genes = choose_genes(var, path, Explore(n_genes=2), ["NAMED", "GENE11"])
    assert genes == ["NAMED", "GENE11", "GENE10", *best[2:], "ELSEWHERE"]
    assert choose_genes(var, None, Explore(n_genes=2)) == ["GENE59", "GENE58"]
    assert len(choose_genes(var, None, Explore(n_genes=500))) == 60


def test_a_page_has_room_for_so_many_genes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rows = [("leiden", str(g), r, f"M{g}-{r}") for g in range(40) for r in range(1, 11)]
    table = pd.DataFrame(rows, columns=["by", "group", "rank", "names"])
    table.to_csv(tmp_path / "markers.tsv", sep="\t", index=False)
    genes = choose_genes(sample(30).var, tmp_path / "markers.tsv", Explore(max_mb=4), ["NAMED"])
    assert len(genes) == 200
    assert {f"M{g}-{r}" for g in range(40) for r in range(1, 5)} < set(genes)
    assert "201 of the best marker genes of all groups are not on the page" in caplog.text
    with pytest.raises(InputError, match="names 151 genes, but a page of 3 MB has room for 150"):
        choose_genes(sample(30).var, None, Explore(max_mb=3), [f"G{i}" for i in range(151)])


def test_names_of_genes_are_small_and_can_be_read():
    rng = np.random.default_rng(0)
    ids = {f"ENSG{i:011d}" for i in rng.choice(300_000, 30_000, replace=False)}
    clones = {f"AC{i:06d}.{i % 9}" for i in rng.choice(10**6, 15_000, replace=False)}
    words = {"".join(rng.choice([*"ABCDEFGHIKLMNOPRSTXZ"], 4)) + str(i % 40) for i in range(15_000)}
    names = sorted({*ids, *clones, *words, *HOSTILE, "", "\\", 100 * "A", 101 * "A"})
    packed = pack_names(names)
    assert len(base64.b64encode(packed)) < 250_000
    found, last = [], ""
    for text in json.loads(zlib.decompress(packed, -15)):
        last = last[: ord(text[0]) - 35] + text[1:]
        found.append(last)
    assert found == names


# The page ----------------------------------------------------------------------------------------


def test_the_page_has_all_cells(made: Made):
    blocks = blocks_of(made.page)
    meta = json.loads(blocks["meta"])
    assert meta["n_cells"] == meta["n_points"] == made.cells.n_obs
    n, *numbers = read_varints(blocks["cells"])
    assert sum(numbers[n:]) == made.cells.n_obs
    obs = made.cells.obs
    for i, column in enumerate(meta["columns"]):
        if column["kind"] == "number":
            continue
        n, *numbers = read_varints(blocks[f"counts-{i}"])
        levels = np.cumsum(numbers[:n]) // column["side"] ** 2
        names = [*column["levels"], *filter(None, [column.get("no_value")])]
        assert names[len(column["levels"]) :] == (
            ["no value"] if column["name"] == "leiden" else []
        )
        found = np.bincount(levels, numbers[n:], len(names))
        expected = obs[column["name"]].astype("string").fillna("no value").value_counts()
        assert {k: v for k, v in zip(names, found, strict=True) if v} == dict(expected)


def test_cells_of_unknown_type_are_called_so_and_are_no_level(tmp_path: Path):
    cells = sample(60)
    cells.obs["kind"] = cells.obs["kind_runner_up"] = cells.obs["leiden"]
    cells.obs["kind_probability"] = 0.5
    cells.obs["leiden"] = cells.obs["leiden"].cat.rename_categories({"3": "no value"})
    page = make_page(tmp_path, cells, columns=["kind", "leiden", "plate"], n_genes=0).page
    columns = json.loads(blocks_of(page)["meta"])["columns"]
    assert [one.get("no_value") for one in columns] == ["unknown", "(no value)", None]
    assert all(one.get("no_value") not in one["levels"] for one in columns)


def test_long_levels_have_short_names_that_differ(made: Made):
    columns = {
        column["name"]: column for column in json.loads(blocks_of(made.page)["meta"])["columns"]
    }
    assert "short" not in columns["plate"], "its names are short"
    levels, short = (columns["group"][key] for key in ("levels", "short"))
    assert max(map(len, levels)) > 30
    assert max(map(len, short)) <= 24
    assert len(set(short)) == len(levels)


def test_points_are_the_cells_in_order(made: Made):
    blocks = blocks_of(made.page)
    meta = json.loads(blocks["meta"])
    n = made.cells.n_obs
    assert blocks["names"].decode().split("\n") == list(made.cells.obs_names)
    planes = np.frombuffer(blocks["xy"], np.uint8).reshape(4, n).astype(np.uint16)
    xy = np.stack([planes[0] << 8 | planes[1], planes[2] << 8 | planes[3]], axis=1)
    left, bottom, side = meta["box"]
    back = xy / 65536 * side + (left, bottom)
    assert np.abs(back - made.cells.obsm["X_umap"]).max() < 2 * side / 65536
    (i,) = (i for i, column in enumerate(meta["columns"]) if column["name"] == "leiden")
    codes = np.frombuffer(blocks[f"column-{i}"], np.uint8)
    expected = made.cells.obs["leiden"].cat.codes.to_numpy()
    assert (codes == np.where(expected < 0, 12, expected)).all()


def test_genes_of_points_and_means_of_pixels(made: Made):
    blocks = blocks_of(made.page)
    meta = json.loads(blocks["meta"])
    x = pd.DataFrame(made.cells.X.toarray(), columns=made.cells.var_names)
    place = positions(made.cells.obsm["X_umap"], box_of(made.cells.obsm["X_umap"]))
    pixel = pixels(place, MEANS_SIDE)
    means = np.frombuffer(blocks["gene-means"], np.uint8).reshape(len(meta["genes"]), -1)
    for i, gene in enumerate(meta["genes"][:10]):
        values = np.frombuffer(blocks[f"gene-{i}"], np.uint8)
        exact = x[gene["name"]].to_numpy()
        assert ((values > 0) == (exact > 0)).all()
        assert (
            np.abs((values - 1.0).clip(0) / 254 * gene["high"] - exact).max() < gene["high"] / 200
        )
        expected = pd.Series(exact).groupby(pixel).mean().clip(upper=gene["mean_high"])
        assert np.abs(means[i] / 255 * gene["mean_high"] - expected).max() < gene["mean_high"] / 200


def test_genes_that_the_atlas_lacks_come_from_the_counts(tmp_path: Path):
    cells = sample(600)
    measured, counts = plate_of(cells, tmp_path)
    found = make_page(
        tmp_path, cells, measured=measured, genes=["MEASURED 7", "SYM62", "SYM3"], n_genes=5
    )
    assert found.genes == ["GENE3", "GENE59", "GENE58", "MEASURED 7", "MEASURED 2"]
    blocks = blocks_of(found.page)
    meta = json.loads(blocks["meta"])
    assert [gene["symbol"] for gene in meta["genes"][2:]] == ["SYM58", "SYM67", "SYM62"]
    assert len(json.loads(blocks["measured"])) == 180 - 10
    pixel = pixels(positions(cells.obsm["X_umap"], box_of(cells.obsm["X_umap"])), MEANS_SIDE)
    means = np.frombuffer(blocks["gene-means"], np.uint8).reshape(5, -1)
    for i, gene in ((3, 7), (4, 2)):
        exact = np.log1p(counts[cells.obs["atlas_row"]][:, [gene]].toarray().ravel() / 0.5)
        assert meta["genes"][i]["high"] == pytest.approx(np.log1p(2), abs=1e-4)
        values = np.frombuffer(blocks[f"gene-{i}"], np.uint8)
        assert (values == np.where(exact > 0, 255, 0)).all()
        expected = pd.Series(exact).groupby(pixel).mean().clip(upper=meta["genes"][i]["mean_high"])
        found_means = means[i] / 255 * meta["genes"][i]["mean_high"]
        assert np.abs(found_means - expected).max() < 0.005


def test_a_name_that_no_plate_measures_has_close_ones(tmp_path: Path):
    cells = sample(30)
    measured, _ = plate_of(cells, tmp_path)
    with pytest.raises(
        InputError, match=r"explore.genes: no plate measures a gene 'measured9'"
    ) as e:
        make_page(tmp_path, cells, measured=measured, genes=["measured9"])
    assert "close names are 'MEASURED 9'" in str(e.value)


def test_the_same_input_gives_the_same_bytes(made: Made, tmp_path: Path):
    again = make_page(tmp_path, sample())
    assert again.page.read_bytes() == made.page.read_bytes()


def test_bytes_do_not_depend_on_threads(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scatlas.workflow.explore._pack.n_threads", lambda: 7)
    assert make_page(tmp_path, sample()).page.read_bytes() == made.page.read_bytes()


def test_a_page_of_many_cells_holds_its_size(tmp_path: Path):
    """More columns, genes and points than 3 MB hold."""
    cells = sample(60_000, n_levels=10_000)
    cells.obs_names = [f"{hash_word(i)}" for i in range(cells.n_obs)]
    found = make_page(tmp_path, cells, max_mb=3)
    assert found.facts["bytes"] == found.page.stat().st_size <= 3e6
    assert found.page.stat().st_size > 2e6
    assert found.facts["n_cells"] == 60_000
    assert 1000 < found.facts["n_gene_points"] <= found.facts["n_points"] <= 60_000
    meta = json.loads(blocks_of(found.page)["meta"])
    assert len(next(c for c in meta["columns"] if c["name"] == "group")["levels"]) == 10_000


def hash_word(i: int) -> str:
    return f"{i * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF:016x}"


def test_effects_are_on_the_page_within_its_size(tmp_path: Path, made: Made):
    effects = effects_of(tmp_path)
    page = make_page(tmp_path, sample(), effects=tmp_path / "effects.h5ad").page
    blocks = blocks_of(page)
    meta = json.loads(blocks["effects"])
    rows, columns = meta["rows"], meta["groups"]
    assert rows[0] == "[('drug x', 5.0, 'uM')]", "the strongest first"
    assert meta["doses"][0] == ["drug x", 5.0, "5.0 uM"]
    assert meta["doses"][rows.index("level 8")] is None
    numbers = np.reshape(read_varints(blocks["effects-numbers"]), (len(rows), len(columns))) - 1
    assert (numbers == -1).sum() == 1, "one has no comparison"
    for line, name, n in effects.obs[["line", "group", "n_significant"]].to_numpy():
        assert numbers[rows.index(name), columns.index(line)] == n
    cell = meta["shown"].index(columns.index("A549"))
    n, step, *values = read_varints(blocks[f"effect-{cell}"])
    genes, fold, height = np.reshape(values, (3, -1))
    assert (n, step, len(genes)) == (60, 8, 60 + -(-2939 // 8))
    names = sorted(effects.var_names)
    own = effects["row 0", [names[gene] for gene in genes]]
    assert (np.where(fold % 2, -1, 1) * (fold // 2) / 200).tolist() == pytest.approx(
        own.X[0].tolist(), abs=1 / 400
    )
    expected = -np.log10(t_pvalues(own.layers["t"][0].astype(float), np.full(len(genes), 30.0)))
    np.testing.assert_allclose(height / 100, expected, atol=0.006)
    assert (np.diff(height) <= 0).all()
    few = effect_blocks(tmp_path / "effects.h5ad", 10_000)
    assert page_bytes(few) <= 10_000
    assert 0 < sum(name.startswith("effect-") for name in few) < len(effects)
    assert "effects" not in made.page.read_text().lower(), "its page has no trace of them"


def test_long_names_become_rows_of_the_atlas(tmp_path: Path):
    cells = sample(3000)
    cells.obs_names = [f"{hash_word(i)}{hash_word(i + 9999)}" for i in range(3000)]
    blocks = blocks_of(make_page(tmp_path, cells, columns=["leiden"]).page)
    assert "names" not in blocks
    assert np.cumsum(read_varints(blocks["rows"])).tolist() == cells.obs["atlas_row"].tolist()


def test_a_second_map_of_the_same_cells_is_packed(tmp_path: Path):
    cells = sample(300)
    mixed = cells.copy()
    mixed.obsm["X_umap_harmony"] = cells.obsm["X_umap"][:, ::-1].copy()
    blocks = blocks_of(make_page(tmp_path, cells, mixed=mixed).page)
    assert json.loads(blocks["meta"])["maps"] == ["UMAP", "UMAP after Harmony"]
    planes = {
        name: np.frombuffer(blocks[name], np.uint8).reshape(4, 300) for name in ("xy", "xy-1")
    }
    assert (planes["xy"][[2, 3, 0, 1]] == planes["xy-1"]).all()
    other = mixed[::-1].copy()
    assert json.loads(blocks_of(make_page(tmp_path, cells, mixed=other).page)["meta"])["maps"] == [
        "UMAP"
    ]


@pytest.mark.parametrize("stored", ["h5ad", "zarr"])
def test_counts_do_not_depend_on_their_parts(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
):
    cells = MapCells(tmp_path / f"atlas.{stored}")
    if stored == "h5ad":
        write_h5ad(cells.path, made.cells)
    else:
        # zarr-python and anndata announce changes.
        with warnings.catch_warnings(action="ignore"):
            made.cells.write_zarr(cells.path, convert_strings_to_categoricals=False)
    sample = MapCells(made.page.parent / "umap.h5ad")
    whole = count_pixels(sample, sample, made.columns)
    rows = np.arange(0, made.cells.n_obs, 3)
    whole_genes = read_genes(sample, sample, made.genes, whole.wide_pixel, rows)
    monkeypatch.setattr("scatlas.workflow.explore._cells._CELLS_AT_ONCE", 7)
    found = count_pixels(cells, sample, made.columns)
    genes = read_genes(cells, sample, made.genes, found.wide_pixel, rows, block_budget="10kB")
    assert int(found.wide_cells.sum()) == made.cells.n_obs
    np.testing.assert_equal(found, whole)
    np.testing.assert_equal(genes.means, whole_genes.means)
    assert (genes.points != whole_genes.points).nnz == 0
    expected = made.cells[rows, made.genes].X
    assert (genes.points != expected).nnz == 0


def test_nothing_of_the_data_is_markup(made: Made):
    text = made.page.read_text()
    assert not any(name in text for name in HOSTILE if "<" in name)
    assert text.count("</script>") == text.count("<script")
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
