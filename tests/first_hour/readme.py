"""The README's lines for one of its readers, and a folder like a fresh clone."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from scatlas.datasets import simulate_plate, write_plate
from tests.workflow import warm

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(\S*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
# Lines that need a network or minutes: the environment of the tests, and a copy of the checkout,
# are there already. tests/docs/test_commands.py parses them.
MADE_BEFORE = re.compile(
    r"git clone |cd |python3(\.\d+)? -m venv |source |(\S*/)?pip install |make "
)


def blocks(reader: str, language: str) -> list[str]:
    """Blocks of code of a language in the section of a reader."""
    text = (ROOT / "README.md").read_text()
    section = text.split(f"\n## {reader}\n")[1].split("\n## ")[0]
    found = [match for match in BLOCK.finditer(section) if match[2] == language]
    return [re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE) for match in found]


def commands(reader: str) -> tuple[list[str], list[str]]:
    """Commands of a reader: those made before a test, and those to run, both in their order."""
    lines = "".join(blocks(reader, "bash")).splitlines()
    words = [word.strip() for line in lines for word in re.sub(r"\s#.*", "", line).split("&&")]
    made = [word for word in words if MADE_BEFORE.match(word)]
    assert words[: len(made)] == made, "an environment comes first"
    return made, words[len(made) :]


def clone(folder: Path) -> Path:
    """What ``git clone`` would give, with changes that are not committed yet."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if name.startswith(("tests/", "bench/", "docs/")) or not (ROOT / name).exists():
            continue
        target = folder / "scatlas" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    # Compiling the kernels takes 15 seconds; those of the checkout are the same.
    for path in (ROOT / "src").rglob("__pycache__/*.nb*"):
        target = folder / "scatlas" / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    return folder / "scatlas"


def write_sheet_and_config(folder: Path, n_plates: int) -> None:
    """Write the README's plate sheet, with ``n_plates`` rows and small plates, and its config."""
    (sheet,) = blocks("I have 14 plates and a cluster", "")
    header, row, *_ = sheet.splitlines(keepends=True)
    rows = [row.replace("plate1", f"plate{i}") for i in range(1, n_plates + 1)]
    assert set(sheet.splitlines(keepends=True)[1:]) <= {*rows}
    data = folder.parent / "data"
    (folder / "plates.tsv").write_text(header + "".join(rows).replace("/data/", f"{data}/"))
    for number in range(1, n_plates + 1):
        adata = simulate_plate(number, n_cells=120, n_genes=600)
        write_plate(data / f"plate{number}.h5ad", adata)
    (config,) = blocks("I have 14 plates and a cluster", "yaml")
    (folder / "my.yaml").write_text(config)


def run(line: str, folder: Path, **variables: str) -> str:
    """Run a line in a shell, as a user does, with the warm ``python`` of the tests."""
    if line.startswith("snakemake "):
        line = f"{shlex.quote(warm.python())} -m {line}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=warm.environment() | variables, text=True,
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}"
    return done.stdout
