"""docs/troubleshooting.md lists the messages that the code raises, each with its mend."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

import scatlas as sa
from scatlas.errors import ScatlasError
from scatlas.workflow.command_line.find_files import find_files
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import read_plates

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import messages  # noqa: E402
import troubleshooting  # noqa: E402


def test_the_page_is_up_to_date(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        troubleshooting.main(["--check"])
    assert ended.value.code == 0, f"{troubleshooting.COMMAND}\n{capsys.readouterr().out}"


def test_check_prints_what_differs(tmp_path: Path, monkeypatch, capsys) -> None:
    text = troubleshooting.PAGE.read_text()
    monkeypatch.setattr(troubleshooting, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(text.replace("there is no such plate sheet", "gone"))
    with pytest.raises(SystemExit) as ended:
        troubleshooting.main(["--check"])
    assert ended.value.code == 1
    assert "+| `<path>: there is no such plate sheet` |" in capsys.readouterr().out
    troubleshooting.main(["--write"])
    assert (tmp_path / "page.md").read_text() == text


def test_each_pattern_of_a_mend_is_needed() -> None:
    texts = [m.text for m in troubleshooting.listed() if not troubleshooting.split_mend(m.text)[1]]
    known = troubleshooting.mends()
    first = {next(p for p in known if re.search(p, text)) for text in texts}
    assert set(known) - first == set()


def test_a_message_without_a_mend_is_refused() -> None:
    with pytest.raises(LookupError, match="no mend for 'it broke'"):
        troubleshooting.mend_of("it broke")


def test_no_error_of_the_code_is_overlooked() -> None:
    """Each file that makes errors with a text has a message, or only passes errors on."""
    files = {message.file for message in messages.messages()}
    makes = re.compile(r"raise (Input|Config|Gpu|TooLarge|Disk)Error\(")
    silent = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src/scatlas", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if makes.search(path.read_text())
    } - files
    # They pass on the text of another error.
    assert silent == {
        "src/scatlas/workflow/config/cli_options.py",
        "src/scatlas/workflow/script.py",
    }


def plate(**options: object) -> ad.AnnData:
    return ad.AnnData(np.ones((3, 4), np.float32), **options)


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: read_plates(folder / "none.tsv"),
        lambda folder: load(folder / "none.yaml"),
        lambda folder: load({"plates": "p.tsv", "qc": {"min_gene": 3}}),
        lambda folder: load({"plates": "p.tsv", "qc": {"min_genes": "many"}}),
        lambda folder: load({"plates": "p.tsv", "outdir": "s3://bucket/x{y}"}),
        lambda folder: find_files(["C:\\data\\p1.h5ad"]),
        lambda folder: sa.read_lazy(folder / "none.h5ad"),
        lambda folder: sa.read_lazy(folder),
        lambda folder: sa.pp.normalize_total(plate(), layer="none"),
        lambda folder: sa.pp.highly_variable_genes(plate(), batch_key="none"),
        lambda folder: sa.tl.umap(plate()),
        lambda folder: sa.tl.leiden(plate(), flavor="none"),
        lambda folder: sa.get.aggregate(plate(), "none", "sum"),
    ],
)
def test_an_error_is_found_on_the_page(tmp_path: Path, act: Callable[[Path], object]) -> None:
    with pytest.raises(ScatlasError) as raised:
        act(tmp_path)
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", troubleshooting.PAGE.read_text(), re.MULTILINE)
    said = str(raised.value)
    found = [mend for problem, mend in rows if re.search(as_pattern(problem), said, re.DOTALL)]
    assert found, said


def as_pattern(problem: str) -> str:
    return re.sub(r"<\w+>|…", ".+", re.escape(problem).replace("\\…", "…"))
