"""HTML pages of docs/: no warning of the build, notebooks without errors, valid links."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anndata as ad
import pytest

import scatlas as sa

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.md"))
# What their text relies on.
SAID = {
    "out_of_core": ("other blocks: True", "in memory: True"),
    "several_gpus": ("the same bits: True", "2 workers"),
    "new_cells": ("the same places: True",),
}
# Public modules; only functions and classes have a page.
MODULES = ("pp", "tl", "get", "pl", "io", "datasets")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the pages, without results of notebooks and the theme, which takes a third."""
    options = ("nb_execution_mode=off", "html_theme=basic")
    return build(tmp_path_factory.mktemp("docs"), *(f"-D{option}" for option in options))


def build(folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2", *options]
    command += ["-c", str(ROOT / "docs"), "-d", str(folder / "doctrees")]
    done = subprocess.run(
        [*command, str(ROOT), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
        # The same pages with any settings of the machine.
        env=os.environ | {"PYTHONWARNINGS": "", "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_each_public_name_has_a_page(built: Path) -> None:
    names = {"scatlas.read_lazy", "scatlas.memory", "scatlas.cluster"}
    for module in MODULES:
        for name in getattr(sa, module).__all__:
            member = getattr(getattr(sa, module), name)
            if inspect.isfunction(member) or inspect.isclass(member):
                names.add(f"scatlas.{module}.{name}")
    names -= {"scatlas.io.read_lazy"}  # the same as scatlas.read_lazy
    pages = {path.stem for path in (built / "docs" / "api" / "generated").glob("*.html")}
    assert names - pages == set(), "list them in docs/api/index.md"


def test_a_reference_page_has_parameters_results_errors_and_passes(built: Path) -> None:
    page = (built / "docs/api/generated/scatlas.pp.normalize_total.html").read_text()
    text = re.sub(r"<[^>]+>", "", page)
    for part in ("Parameters", "counts_per_cell", "Returns", "norm_factor", "Raises", "InputError"):
        assert part in text
    assert "Passes over a Dask X" in text
    assert sa.pp.normalize_total.passes_note in text.replace("\n", " ")


@pytest.mark.filterwarnings("default")  # of other packages
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_code_of_a_notebook_runs(name: str, capsys: pytest.CaptureFixture) -> None:
    text = (ROOT / "docs/notebooks" / f"{name}.md").read_text()
    names: dict[str, object] = {}
    cells = re.findall(r"^```{code-cell} ipython3\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # A notebook may change settings, which tests after it in this process would have.
    names_of_settings = ("zarr_write_format", "auto_shard_zarr_v3")
    with ad.settings.override(**{name: getattr(ad.settings, name) for name in names_of_settings}):
        for cell in cells:
            exec(compile(cell.replace("%matplotlib inline", ""), f"{name}.md", "exec"), names)
    said = capsys.readouterr().out
    assert all(sentence in said for sentence in SAID.get(name, ()))


@pytest.mark.weekly
def test_kernels_run_each_notebook(tmp_path: Path) -> None:
    """A cell that fails is an error of the build."""
    built = build(tmp_path)
    for page in [built / f"docs/notebooks/{name}.html" for name in NOTEBOOKS]:
        assert page.read_text().count('class="cell_output') >= 2


def _links(page: Path) -> set[str]:
    return set(re.findall(r'(?:href|src)="([^"]+)"', page.read_text()))


def test_each_link_leads_somewhere(built: Path) -> None:
    pages = [page for page in built.rglob("*.html") if "_static" not in page.parts]
    ids = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in pages}
    broken = []
    for page in pages:
        for link in _links(page):
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            path = unquote(parts.path)
            target = page if not path else (page.parent / path).resolve()
            fragment = unquote(parts.fragment)
            lost = fragment and target in ids and fragment not in ids[target]
            if not target.exists() or lost:
                broken.append(f"{page.relative_to(built)}: {link}")
    assert broken == []
    assert len(pages) > 60


def test_the_guide_says_how_often_functions_read() -> None:
    text = (ROOT / "docs" / "out-of-core.md").read_text()
    rows = re.findall(r"^\| ((?:`sa\.\w+\.\w+`(?:, )?)+) \| (\d)", text, re.MULTILINE)
    assert len(rows) >= 9
    for names, number in rows:
        for module, name in re.findall(r"`sa\.(\w+)\.(\w+)`", names):
            assert getattr(getattr(sa, module), name).passes == int(number), name


def test_each_picture_is_on_a_page_and_those_of_the_gallery_are_small() -> None:
    pages = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    pages[ROOT / "README.md"] = (ROOT / "README.md").read_text()
    pictures = {path.name for path in (ROOT / "docs/images").iterdir()}
    shown = {
        path: re.findall(r"!\[.+\]\((?:docs/|\.\./)?images/(.+?)\)", text)
        for path, text in pages.items()
    }
    assert {name for names in shown.values() for name in names} == pictures
    gallery = shown[ROOT / "docs/gallery.md"]
    assert len(gallery) >= 5
    assert max((ROOT / "docs/images" / name).stat().st_size for name in gallery) < 200_000
