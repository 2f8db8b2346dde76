"""explore.html in Chromium and Firefox: opened from a file, without network, by mouse and keys."""

from __future__ import annotations

import base64

import numpy as np
import pandas as pd
import pytest

from scatlas.matrix.map_pixels import box_of, positions
from tests.explore.cells import HOSTILE, Made, effects_of, make_page, plate_of, sample
from tests.helpers import bidi
from tests.helpers.bidi import Tab, in_both

pytestmark = pytest.mark.browser
tab = bidi.tab

SAVED = """
window.saved = [];
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { window.saved.push(blob); return make.call(URL, blob); };
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A page of two maps and of markers."""
    folder = tmp_path_factory.mktemp("explore")
    cells = sample()
    mixed = cells.copy()
    mixed.obsm["X_umap_harmony"] = cells.obsm["X_umap"][:, ::-1] * 2
    rows = [("leiden", str(i), 1, f"GENE{i}") for i in range(12)]
    markers = pd.DataFrame(rows, columns=["by", "group", "rank", "names"])
    markers.to_csv(folder / "markers.tsv", sep="\t", index=False)
    measured, _ = plate_of(cells, folder)
    effects_of(folder)
    effects = {"effects": folder / "effects.h5ad"}
    paths = effects | {"mixed": mixed, "markers": folder / "markers.tsv", "measured": measured}
    return make_page(folder, cells, **paths)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same of 96 million cells, and 10,000 levels."""
    folder = tmp_path_factory.mktemp("large")
    return make_page(folder, sample(30_000, n_levels=10_000), times=3200)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Many points, and little else."""
    folder = tmp_path_factory.mktemp("many")
    return make_page(folder, sample(150_000), columns=["leiden"], n_genes=0)


def settled(tab: Tab) -> None:
    """Wait until all changes are shown."""
    tab.run("await explorer.loading; await new Promise((done) => setTimeout(done, 50));")


def stage(tab: Tab, i: int = 0) -> tuple[float, float, float, float]:
    return tuple(
        tab.run(
            f"const b = document.querySelector('#view-{i} canvas.overlay').getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height];"
        )
    )


def pixels_of(tab: Tab, i: int = 0) -> dict[str, int]:
    """Colours of a map and how many pixels have them; white is left out."""
    return tab.run(
        f"""
        const view = explorer.views[{i}];
        const copy = view.snapshot(explorer.camera({i}), explorer.layer);
        const data = copy.getContext("2d").getImageData(0, 0, copy.width, copy.height).data;
        const found = {{}};
        for (let p = 0; p < data.length; p += 4) {{
          const key = [data[p], data[p + 1], data[p + 2]].join();
          if (key !== "255,255,255") found[key] = (found[key] ?? 0) + 1;
        }}
        return found;
        """
    )


def inside(made: Made, outline: list[list[int]], key: str = "X_umap") -> np.ndarray:
    """Cells inside an outline, by the even-odd rule."""
    xy = made.cells.obsm[key]
    x, y = positions(xy, box_of(xy)).T.astype(float)
    is_inside = np.zeros(len(x), bool)
    for (xi, yi), (xj, yj) in zip(outline, [outline[-1], *outline[:-1]], strict=True):
        crosses = (yi > y) != (yj > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            is_inside ^= crosses & (x < (xj - xi) * (y - yi) / (yj - yi) + xi)
    return is_inside


@in_both
def test_it_opens_from_a_file_without_network(tab: Tab, made: Made):
    tab.show(made.page)
    tab.assert_without_network()
    assert tab.run("return window.hacked ?? null") is None
    assert tab.text("#facts") == "1,200 cells"
    assert tab.run("return document.getElementById('message').hidden")
    assert tab.run("return performance.getEntriesByName('first-picture')[0].startTime") < 5000
    tab.assert_no_injected_script_runs()


@pytest.mark.parametrize("renderer", ["canvas", "webgl"])
def test_points_have_the_colours_of_their_levels(tab: Tab, made: Made, renderer: str):
    tab.show(made.page, f"?renderer={renderer}#color=column:plate&layer=points")
    name = tab.run("return explorer.views[0].renderer.name")
    if renderer == "webgl" and name != "WebGL 2":
        assert tab.name == "Firefox", "Chromium has WebGL in software"
        return
    assert name == {"canvas": "2-D canvas", "webgl": "WebGL 2"}[renderer]
    found = pixels_of(tab)
    # WebGL's points are a little transparent.
    near = {
        tuple(round(int(part) / 64) for part in key.split(","))
        for key, n in found.items()
        if n > 300
    }
    assert len(near) >= 3
    if renderer == "canvas":
        assert {"0,114,178", "230,159,0", "0,158,115"} <= set(found)
        # Each plate has a third of the cells.
        sizes = [found[key] for key in ("0,114,178", "230,159,0", "0,158,115")]
        assert max(sizes) < 1.3 * min(sizes)


def test_hidden_levels_are_not_drawn_and_come_back(tab: Tab, made: Made):
    tab.show(made.page, "?renderer=canvas#color=column:plate")
    tab.click("#legends .levels li:nth-child(2) input")
    settled(tab)
    assert "230,159,0" not in pixels_of(tab)
    assert "hide=" in tab.run("return location.hash")
    tab.click("#legends .row button:nth-child(2)")  # hide all
    settled(tab)
    assert not {"0,114,178", "0,158,115"} & set(pixels_of(tab))
    tab.click("#legends .row button:nth-child(1)")  # show all
    settled(tab)
    assert {"0,114,178", "230,159,0", "0,158,115"} <= set(pixels_of(tab))
    assert "hide=" not in tab.run("return location.hash")


@pytest.mark.parametrize("tool", ["box", "lasso"])
def test_a_selection_has_the_cells_of_pandas(tab: Tab, made: Made, tool: str):
    tab.show(made.page)
    left, top, width, height = stage(tab)
    tab.click(f"#{tool}")
    middle = (left + width / 2, top + height / 2)
    corners = [(-150, -200), (90, -180), (180, 100), (-60, 150)]
    path = [(middle[0] + dx, middle[1] + dy) for dx, dy in corners]
    tab.drag([path[0], path[2]] if tool == "box" else path)
    tab.wait("document.querySelector('#markers table')")
    selected = tab.run("return explorer.selection")
    mask = inside(made, selected["outline"])
    assert 100 < mask.sum() < 1100
    assert tab.text("#selected") == f"{mask.sum():,} cells selected."
    assert tab.run("return [...explorer.mask].map((value) => value > 0)") == mask.tolist()
    # Composition.
    rows = tab.run(
        "return Object.fromEntries([...document.querySelectorAll('.composition')].map((table) => "
        "[table.caption.textContent, [...table.tBodies[0].rows].map((row) => "
        "[row.cells[0].querySelector('button').title, row.cells[1].textContent])]))"
    )
    expected = made.cells.obs["plate"][mask].value_counts()
    assert {name: int(n) for name, n in rows["plate"]} == expected[expected > 0].to_dict()
    # Markers: the best gene by Welch's t of the values.
    x = made.cells.to_df()
    a, b = x[mask], x[~mask]
    t = (a.mean() - b.mean()) / np.sqrt(a.var() / len(a) + b.var() / len(b))
    found = tab.run(
        "return [...document.querySelectorAll('#markers tbody tr')].map((row) => "
        "[row.cells[0].textContent, Number(row.cells[1].textContent)])"
    )
    # Of codes of 8 bits: near ties may change places.
    assert {name for name, _ in found[:3]} <= set(t[made.genes].nlargest(5).index)
    np.testing.assert_allclose([value for _, value in found], t[[n for n, _ in found]], atol=0.3)
    # Names of the cells.
    tab.run(SAVED)
    tab.click("#save-cells")
    tab.wait("window.saved.length")
    lines = tab.run("return window.saved[0].text()").splitlines()
    obs = made.cells.obs[mask]
    assert lines[0] == "cell\tplate"
    assert lines[1:] == [f"{name}\t{plate}" for name, plate in obs["plate"].items()]
    # Escape clears it.
    tab.keys("\ue00c")
    assert tab.run("return document.getElementById('selection').hidden")
    assert tab.errors == []


def test_hidden_cells_are_not_selected(tab: Tab, made: Made):
    tab.show(made.page, "#color=column:plate&hide=" + '["plate","p2"]')
    tab.keys("v")
    tab.wait("explorer.mask")
    assert tab.text("#selected") == "800 cells selected."


def test_two_maps_share_a_selection(tab: Tab, made: Made):
    tab.show(made.page)
    tab.keys("2")
    tab.wait("explorer.states.length === 2")
    settled(tab)
    assert [tab.run(f"return document.getElementById('map-{i}').value") for i in (0, 1)] == [
        "0",
        "1",
    ]
    left, top, width, height = stage(tab, 1)
    tab.click("#box")
    tab.drag([(left + 0.3 * width, top + 0.3 * height), (left + 0.7 * width, top + 0.6 * height)])
    tab.wait("explorer.mask")
    selected = tab.run("return explorer.selection")
    assert selected["map"] == 1
    xy = made.cells.obsm["X_umap"][:, ::-1] * 2
    x, y = positions(xy, box_of(xy)).T.astype(int)
    (x0, y0), _, (x1, y1), _ = selected["outline"]
    low, high = sorted((y0, y1))
    mask = (x > x0) & (x < x1) & (y > low) & (y < high)
    assert abs(tab.run("return [...explorer.mask].filter(Boolean).length") - mask.sum()) <= 2
    same = "return explorer.views[0].chosen === explorer.views[1].chosen"
    assert tab.run(same)
    assert tab.errors == []


def test_search_by_keys_finds_a_gene_and_a_level(tab: Tab, made: Made):
    tab.show(made.page)
    tab.keys("/")
    tab.keys("gene7")
    tab.wait("!document.getElementById('found').hidden")
    tab.keys("\ue007")
    tab.wait("explorer.states[0].color.name === 'GENE7'")
    tab.keys("script>")
    tab.wait("document.querySelectorAll('#found [role=option]').length === 2")
    rows = tab.run(
        "return [...document.querySelectorAll('#found .name')].map((e) => e.textContent)"
    )
    assert rows == [HOSTILE[0], HOSTILE[3]]
    tab.keys("\ue007")
    tab.wait("explorer.states[0].only")
    settled(tab)
    assert tab.run("return explorer.states[0].only") == {"column": "group", "level": HOSTILE[0]}
    assert tab.text("#only-0") == f"only group: {HOSTILE[0]} ×"
    n = int((made.cells.obs["group"] == HOSTILE[0]).sum())
    assert (
        tab.run(
            "const view = explorer.views[0];"
            "return [...view.codes.keys()].filter((i) => view.shows(i)).length"
        )
        == n
    )
    tab.click("#only-0")
    tab.wait("!explorer.states[0].only")
    assert tab.run("return window.hacked ?? null") is None
    assert tab.errors == []


def test_names_of_the_data_are_text(tab: Tab, made: Made):
    tab.show(made.page, "#color=column:group")
    names = tab.run("return [...document.querySelectorAll('.levels label')].map((e) => e.title)")
    shown = tab.run(
        "return [...document.querySelectorAll('.levels .name')].map((e) => e.textContent)"
    )
    assert len(set(shown)) == len(names)
    assert shown[0] == "<script…1</script>", "long names are cut"
    assert names[: len(HOSTILE)] == HOSTILE
    assert tab.run("return document.querySelectorAll('main img, main b, aside script').length") == 0
    sizes = tab.run(
        "return [...document.querySelectorAll('.levels .size')].map((e) => e.textContent)"
    )
    expected = made.cells.obs["group"].value_counts()[HOSTILE[0]]
    assert sizes[0].startswith(f"{expected:,} (")


def test_one_value_in_the_colours_of_another_column_has_its_points(tab: Tab, large: Made):
    tab.show(large.page, '#color=column:leiden&only=["plate","p2"]')
    obs = large.cells.obs[large.cells.obs["plate"] == "p2"]
    sizes = obs["leiden"].value_counts()
    assert tab.text(".levels .size").startswith(f"{sizes['0']:,} (")
    assert tab.text(".legend > .note") == "points with plate: p2"
    layers = tab.run("return explorer.views[0].layers(explorer.camera(0), 'auto')")
    assert layers == {"opacity": 0, "count": 30_000}, "few enough to be drawn at once"
    assert tab.run("return explorer.views[0].nShown") == len(obs)


@in_both
def test_cells_without_a_value_are_shown_picked_and_counted(tab: Tab, made: Made):
    n = int(made.cells.obs["leiden"].isna().sum())
    tab.show(made.page, "?renderer=canvas#color=column:leiden&layer=points")
    row = "#legends .levels li:last-child"
    assert tab.text(row).split("\n")[0].startswith("no value")
    assert tab.text(f"{row} .size") == f"{n} ({100 * n / made.cells.n_obs:.1f}%)"
    grey = "217,217,217"
    assert pixels_of(tab)[grey] > 50
    tab.click(f"{row} input")
    settled(tab)
    assert grey not in pixels_of(tab)
    tab.run("document.activeElement.blur()")
    tab.keys("/no val\ue007")
    settled(tab)
    assert tab.text("#only-0") == "only leiden: no value ×"
    tab.click("#legends .row button:nth-child(1)")  # show all
    settled(tab)
    shown = pixels_of(tab)
    assert shown[grey] > 50
    assert all(len(set(colour.split(","))) == 1 for colour in shown), "its name, and no colour"
    tab.keys("v")
    tab.wait("document.querySelector('.composition')")
    assert tab.text("#selected").startswith(f"{n} cells selected")
    tab.run(SAVED)
    tab.click("#save-svg")
    tab.wait("window.saved.length")
    assert ">no value</text>" in tab.run("return window.saved[0].text()")


def test_keys_and_wheel_move_the_map(tab: Tab, made: Made):
    tab.show(made.page)
    camera = "return [explorer.cameras[0].x, explorer.cameras[0].y, explorer.cameras[0].zoom]"
    tab.run("document.querySelector('#view-0 canvas.overlay').focus()")
    x, y, zoom = tab.run(camera)
    tab.keys("+\ue014\ue013")  # right, up
    moved = tab.run(camera)
    assert moved[0] > x
    assert moved[1] > y
    assert moved[2] == pytest.approx(1.4 * zoom)
    left, top, width, height = stage(tab)
    tab.wheel(left + width / 3, top + height / 3, -400)
    assert tab.run(camera)[2] > moved[2]
    tab.drag([(left + 300, top + 300), (left + 350, top + 320)])
    panned = tab.run(camera)
    assert panned[0] != moved[0]
    tab.keys("0")
    assert tab.run(camera) == [0.5, 0.5, 1]


def test_a_link_shows_the_same_view_again(tab: Tab, made: Made):
    tab.show(made.page)
    tab.keys("2")
    tab.wait("explorer.states.length === 2")
    tab.run("await explorer.setColour(1, explorer.atlas.colour('gene', 'GENE3'))")
    tab.run(
        "const level = explorer.atlas.columns[2].levels[0];"
        "await explorer.change(0, { only: { column: 'group', level } })"
    )
    tab.run("document.querySelector('#view-0 canvas.overlay').focus()")
    tab.keys("++v")
    tab.wait("explorer.mask && location.hash.includes('lasso')")
    tab.run("await new Promise((done) => setTimeout(done, 500))")
    facts = (
        "return [explorer.states, explorer.selection, "
        "document.getElementById('selected').textContent]"
    )
    before, link = tab.run(facts), tab.run("return location.href")
    pixels = pixels_of(tab, 1)
    tab.open(link)
    tab.wait(bidi.READY)
    assert tab.run(facts) == before
    assert pixels_of(tab, 1) == pixels
    assert tab.run("return location.href") == link
    tab.run("location.hash = '#color=column:phase'; return 1")
    tab.wait("explorer.states[0].color.name === 'phase'")
    assert tab.run("return explorer.states.length") == 1


def test_picture_and_legend_are_saved(tab: Tab, made: Made):
    tab.show(made.page, "#color=column:group")
    tab.run(SAVED)
    tab.click("#save-png")
    tab.click("#save-svg")
    tab.wait("window.saved.length === 2")
    kinds = tab.run("return window.saved.map((blob) => blob.type)")
    png, svg = (kinds.index(f"image/{kind}") for kind in ("png", "svg+xml"))
    data = tab.run(
        f"const bytes = new Uint8Array(await window.saved[{png}].arrayBuffer());"
        "return btoa(String.fromCharCode(...bytes.subarray(0, 24)))"
    )
    head = base64.b64decode(data)
    assert head.startswith(b"\x89PNG")
    _, _, width, _ = stage(tab)
    assert int.from_bytes(head[16:20]) == pytest.approx(width, abs=1)
    legend = tab.run(f"return window.saved[{svg}].text()")
    assert "&lt;script&gt;" in legend
    assert "<script" not in legend
    assert (
        tab.run(
            f"const text = await window.saved[{svg}].text();"
            "const read = new DOMParser().parseFromString(text, 'image/svg+xml');"
            "return [...read.querySelectorAll('text')].map((e) => e.textContent).slice(1, 4)"
        )
        == HOSTILE[:3]
    )


def test_a_dark_page_saves_white_pictures(tab: Tab, made: Made):
    tab.show(made.page, "#color=column:phase&theme=dark")
    first = (
        "const ground = (i) => [...i.getContext('2d').getImageData(2, 2, 1, 1).data].slice(0, 3);"
    )
    ground = f"{first} return ground(explorer.views[0].snapshot(explorer.camera(0), 'auto'))"
    page = "getComputedStyle(document.body).backgroundColor"
    assert tab.run(ground) == [22, 25, 29]
    assert tab.run(f"return {page}") == "rgb(22, 25, 29)"
    tab.run(SAVED)
    tab.click("#save-png")
    tab.wait("window.saved.length")
    saved = tab.run(
        f"{first} const image = await createImageBitmap(window.saved[0]);"
        "const copy = new OffscreenCanvas(image.width, image.height);"
        "copy.getContext('2d').drawImage(image, 0, 0); return ground(copy)"
    )
    assert saved == [255, 255, 255]
    settled(tab)
    assert tab.run(ground) == [22, 25, 29], "dark again"
    tab.click("#dark")
    settled(tab)
    assert tab.run(ground) == [255, 255, 255]
    assert tab.run(f"return {page}") == "rgb(255, 255, 255)"
    # The reader's system is light: no choice is left that the address would keep.
    assert "theme" not in tab.run("return location.hash")
    tab.click("#dark")
    settled(tab)
    assert "theme=dark" in tab.run("return location.hash")


def test_a_screen_reader_hears_the_view(tab: Tab, made: Made):
    tab.show(made.page, "#color=column:phase")
    spoken = tab.text("#description")
    assert spoken.startswith("UMAP of 1,200 cells, coloured by phase. 3 values; largest: ")
    assert (
        tab.run(
            "return document.querySelector('#view-0 canvas.overlay').getAttribute('aria-label')"
        )
        == spoken
    )
    unnamed = tab.run(
        "return [...document.querySelectorAll('button, select, input, canvas.overlay')]"
        ".filter((e) => e.checkVisibility()).filter((e) => !(e.textContent.trim() || "
        "e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert unnamed == []


def test_it_fits_a_telephone(tab: Tab, made: Made):
    tab.resize(390, 800)
    try:
        tab.show(made.page)
        page = "document.documentElement"
        content, window = tab.run(f"return [{page}.scrollWidth, {page}.clientWidth]")
        assert content <= window
        assert 370 <= window <= 390  # a bar for scrolling takes some
        seen = "[...document.querySelectorAll('.tools button')].filter((e) => e.checkVisibility())"
        assert tab.run(f"return new Set({seen}.map((e) => e.offsetTop)).size") == 1, "one row"
        tab.click("#more")
        assert tab.run(f"return {seen}.map((e) => e.id)")[-3:] == ["save-png", "save-svg", "help"]
        tab.click("#more")
        _, _, map_width, map_height = stage(tab)
        assert map_width == window
        assert map_height > 250
        left, top, *_ = stage(tab)
        before = tab.run("return explorer.cameras[0].x")
        tab.drag([(left + 200, top + 150), (left + 120, top + 150)], kind="touch")
        assert tab.run("return explorer.cameras[0].x") > before
        tab.run("await explorer.setTwo(true)")
        assert stage(tab, 1)[2] == window
    finally:
        tab.resize(1200, 800)


def test_densities_of_96_million_cells(tab: Tab, large: Made):
    tab.show(large.page, "?renderer=canvas#color=column:leiden&layer=density")
    assert tab.text("#facts") == "96,000,000 cells, 30,000 of them as points"
    first = "document.querySelector('.levels .size').textContent"
    n = int((large.cells.obs["leiden"] == "0").sum()) * 3200
    assert tab.run(f"return {first}").startswith(f"{n:,} (")
    # About the cells of the pixels in view.
    left, top, width, height = stage(tab)
    tab.click("#box")
    tab.drag([(left + 0.3 * width, top + 0.2 * height), (left + 0.6 * width, top + 0.7 * height)])
    tab.wait("explorer.mask && document.getElementById('selected').textContent")
    said = tab.text("#selected")
    found = int(said.partition("About ")[2].partition(" of all")[0].replace(",", ""))
    sampled = int(tab.run("return document.getElementById('selected').dataset.cells"))
    assert found == pytest.approx(3200 * sampled, rel=0.03)
    # A gene: where cells have it, the mean is seen.
    tab.run("await explorer.setColour(0, explorer.atlas.colour('gene', 'GENE59'))")
    assert len(pixels_of(tab)) > 50
    assert tab.errors == []


def test_search_finds_symbols_and_says_how_to_add_a_measured_gene(tab: Tab, made: Made):
    tab.show(made.page)
    tab.keys("/")
    tab.keys("sym7")
    tab.wait("!document.getElementById('found').hidden")
    rows = "return [...document.querySelectorAll('#found li')].map((e) => e.textContent)"
    assert tab.run(rows)[0] == "SYM7gene GENE7"
    assert "SYM70not on this page" in tab.run(rows)
    tab.keys("\ue007")
    tab.wait("explorer.states[0].color.name === 'GENE7'")
    tab.keys("measured 3")
    tab.wait("document.querySelector('#found .kind')?.textContent === 'not on this page'")
    tab.click("#found [role=option]")
    tab.wait("document.querySelector('#found .note')")
    assert "To add it: scatlas gene 'MEASURED 3' --add, then scatlas run." in tab.text("#found")
    assert tab.run("return explorer.states[0].color.name") == "GENE7"
    assert tab.errors == []


@in_both
def test_conditions_are_chosen_by_mouse_keys_and_link(tab: Tab, made: Made):
    tab.show(made.page)
    tab.click("#show-effects")
    tab.wait("explorer.panel.points.length")
    assert (
        tab.text("#effects .chosen")
        == "[('drug x', 5.0, 'uM')], <script>window.hacked = 1</script>: 60 genes"
    )
    doses = "return [...document.querySelectorAll('.doses button')].map((e) => e.textContent)"
    assert tab.run(doses) == ["0.05 uM: 5 genes", "0.5 uM: 20 genes", "5.0 uM: 60 genes"]
    tab.run("explorer.panel.heat.focus()")
    tab.keys("\ue014\ue015")  # right, down
    tab.wait("document.querySelector('#effects .chosen').textContent.startsWith('level 8, A549')")
    tab.wait("document.querySelectorAll('#effects tbody tr').length === 15")
    tab.click("#effects tbody tr:nth-child(3) button")
    tab.wait("explorer.states[0].color.name === 'GENE2'")
    settled(tab)
    tab.click("#effects .row button")  # its cells
    tab.wait("explorer.states[0].only")
    assert tab.run("return explorer.states[0].only") == {"column": "group", "level": "level 8"}
    settled(tab)
    link = tab.run("return location.href")
    tab.open(link)
    tab.wait(bidi.READY)
    tab.wait("explorer.panel.points.length")
    assert tab.run("return location.href") == link
    assert tab.text("#effects .chosen").startswith("level 8, A549: 40 genes")
    tab.run("explorer.panel.find.focus()")
    tab.keys("DRUG X")
    tab.wait("explorer.panel.rows.length === 3")
    tab.click("#show-effects")
    assert "effect=" not in tab.run("return location.hash")
    assert tab.run("return window.hacked ?? null") is None
    assert tab.errors == []


def test_10_000_levels_can_be_searched(tab: Tab, large: Made):
    tab.show(large.page, "#color=column:group")
    assert tab.run("return document.querySelectorAll('.levels li').length") == 250
    assert "more: search for them" in tab.text(".legend > .note:last-child")
    tab.run("document.querySelector('.legend input[type=search]').focus()")
    tab.keys("level 9999")
    tab.wait("document.querySelectorAll('.levels li').length === 1")
    tab.click(".levels .only")
    tab.wait("explorer.states[0].only")
    settled(tab)
    shown = "return [...explorer.views[0].codes].filter((code) => code !== 0xfffe).length"
    assert tab.run(shown) == (large.cells.obs["group"] == "level 9999").sum()
    assert tab.errors == []


def test_frames_while_moving(tab: Tab, many: Made, capsys: pytest.CaptureFixture[str]):
    """The speed of this machine, printed; bench/explore.py makes pages of a million points."""
    tab.show(many.page, "#layer=points")
    found = tab.run(
        """
        const view = explorer.views[0];
        let frames = 0;
        const begin = performance.now();
        await new Promise((done) => {
          const move = () => {
            explorer.camera(0).pan(5 * Math.sin(frames / 9), 3, ...view.size);
            explorer.moved();
            frames++;
            if (performance.now() - begin < 1500) requestAnimationFrame(move);
            else done();
          };
          requestAnimationFrame(move);
        });
        const [first] = performance.getEntriesByName("first-picture");
        return {
          name: view.renderer.name, first: first.startTime,
          rate: (1000 * frames) / (performance.now() - begin), points: view.movingCount,
        };
        """
    )
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{tab.name}, {found['name']}: first picture after {found['first']:.0f} ms, "
            f"{found['rate']:.0f} frames per second with {found['points']:,.0f} points moving"
        )
    assert found["rate"] > 3  # of a machine that others use
