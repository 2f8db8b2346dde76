"""Every command in the pages works: the test runs it, or its tool parses it."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from snakemake.cli import parse_args

import scatlas
from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow.command_line import main as command_line
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import read_plates
from tests.workflow import warm

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "config/README.md", "envs/README.md", "Snakefile"),
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "profiles").rglob("*.yaml"))),
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "config").glob("*.yaml"))),
)
# First words of commands in code without a language.
TOOLS = ("snakemake", "S", "make", "python", "pip", "bash", "git", "sbatch", "source", "export")
TOOLS += (".venv/bin/python", ".venv/bin/pip", "scatlas")
# Run on small plates, in this order; all other Snakemake commands are planned with -n.
RUN = (
    "snakemake --configfile=my.yaml",
    "snakemake --configfile=my.yaml --unlock",
    "snakemake --configfile=my.yaml atlas",
    "snakemake --configfile=my.yaml --report snakemake-report.html",
    "snakemake --configfile=new.yaml map_plates",
)
# With these options even -n calls a program that may be missing: Snakemake parses them.
PROGRAMS = {"--software-deployment-method conda": "conda"}
# Not run: each with its reason, and the check instead.
PARSED = {
    r"make ": "builds, tests or installs for minutes: planned by make -n",
    r"(\S*/)?pip install ": "installs packages: parsed by pip, extras and files looked up",
    r"(\S*/)?python.* -m (scatlas|tests)\.": "writes to the checkout, or runs for minutes: parsed",
    r"(\S*/)?python -m pytest ": "runs a test: the file and a test with that name exist",
    r"python bench/\w+\.py": "runs for minutes to hours: its --help knows the options",
    r"python docs/\w+\.py": "writes to the checkout: its --help knows the options",
    r"docker ": "needs a daemon, and builds for minutes: parsed by the shell, and the file exists",
    r"python tests/slurm/": "starts a Slurm cluster: the file exists and knows the word",
    r"python3(\.12)? -m venv ": "makes an environment: parsed by the shell",
    r"bash \.ci/run": "runs all tests: parsed by the shell",
    r"(git clone|cd|source|export) ": "needs a network, or changes the shell: parsed by the shell",
    r"\$\{EDITOR": "opens an editor: parsed by the shell, and the file exists",
    r"scatlas ": "needs files of the user; tests/first_hour runs them: parsed by the program",
    r"(sbatch|for|done)\b": "needs Slurm: parsed by the shell",
}


@dataclass(frozen=True)
class Command:
    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def code(page: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Blocks of code with their language, and inline code."""
    text = (ROOT / page).read_text("utf-8")
    if not page.endswith(".md"):
        lines = re.findall(r"^#   ?(\w+ .*)", text, re.MULTILINE)
        # After two spaces follows a description.
        return [("", re.split(r" {2,}", line)[0]) for line in lines], re.findall(r"`(.+?)`", text)
    fence = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
    blocks = [(match[2], match[3]) for match in fence.finditer(text)]
    return blocks, re.findall(r"`([^`\n]+)`", fence.sub("", text))


@cache
def commands() -> list[Command]:
    found: dict[str, Command] = {}
    for page in PAGES:
        blocks, inline = code(page)
        lines = [(name, line) for name, block in blocks for line in block.split("\n")]
        for language, line in [*lines, *(("", text) for text in inline if " " in text)]:
            if line.startswith("--forcerun "):
                line = f"S {line}"
            for text in map(str.strip, re.sub(r"(^|\s)#.*", "", line).split("&&")):
                known = text.startswith(tuple(f"{tool} " for tool in TOOLS)) or text == "snakemake"
                if text and (language == "bash" or (not language and known)):
                    found.setdefault(text, Command(page, text))
    return list(found.values())


def snakemake_lines() -> list[str]:
    """Complete Snakemake commands: with the meaning of S, and with the omitted options."""
    (short,) = re.findall(r"`S` stands for `(.+?)`", (ROOT / "docs/reruns.md").read_text())
    texts = [re.sub(r"^S(?= )", short, command.text) for command in commands()]
    texts = [text.replace(" ... ", f" {short.partition(' ')[2]} ") for text in texts]
    return [text for text in dict.fromkeys(texts) if text.split()[0] == "snakemake"]


# Each once: with -n and without it is the same plan.
PLANNED = list(
    dict.fromkeys(text.removesuffix(" -n") for text in snakemake_lines() if text not in RUN)
)
OTHERS = [command for command in commands() if command.text.split()[0] not in ("snakemake", "S")]
HELP = [command for command in OTHERS if command.text.endswith("--help")]
NOT_RUN = [command for command in OTHERS if command not in HELP]


def test_the_commands_are_found():
    """And the lists in this file have no command that is on no page."""
    assert len(commands()) > 50
    assert set(RUN) <= {*snakemake_lines()}
    texts = [command.text for command in NOT_RUN]
    assert [why for why in PARSED if not any(re.match(why, text) for text in texts)] == []


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkout with the files that the pages tell users to write."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in {".snakemake", ".git", "results", "resources", "config", "build"}:
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "config", folder / "config")
    data = folder / "data"
    data.mkdir()
    for page, sheet, config in (
        ("README.md", "plates.tsv", "my.yaml"),
        ("config/README.md", "config/my-plates.tsv", "config/mine.yaml"),
    ):
        text = "\n".join(block.replace("\n   ", "\n") for _, block in code(page)[0])
        rows = re.search(r"^ *plate\tpath\n(?: *\w+\t/data/.*\n)+", text, re.MULTILINE)[0]
        rows = re.sub("^ +", "", rows, flags=re.MULTILINE).replace("/data/", f"{data}/")
        (folder / sheet).write_text(rows)
        text = next(block for name, block in code(page)[0] if name == "yaml" and "plates:" in block)
        assert f"plates: {sheet}" in text
        (folder / config).write_text(text)
        for number, plate in enumerate(read_plates(folder / sheet, check_files=False), start=1):
            write_plate(Path(plate.path), simulate_plate(number, n_cells=120, n_genes=600))
        assert load(folder / config).plates.sheet == sheet
    (block,) = (text for name, text in code("docs/new-plates.md")[0] if "atlas:" in text)
    (folder / "new.yaml").write_text(block)
    write_plate(data / "new.h5ad", simulate_plate(9, n_cells=120, n_genes=600))
    (folder / "new-plates.tsv").write_text(f"plate\tpath\nnew\t{data}/new.h5ad\n")
    return folder


def run(text: str, folder: Path) -> str:
    """Run a command as a user does, but with the warm ``python`` and ``snakemake``."""
    words = shlex.split(text)
    if words[0] == "snakemake":
        words[:1] = ["python", "-m", "snakemake"]
    if words[0] == "python":
        words[0] = warm.python()
    done = subprocess.run(
        words, cwd=folder, env=warm.environment() | {"COLUMNS": "200"}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout[-4000:]}"
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def atlas(checkout: Path) -> Path:
    for text in RUN:
        run(text, checkout)
    return checkout


def test_the_atlas_of_the_readme_is_made(atlas: Path):
    results = atlas / load(atlas / "my.yaml").outdir
    assert (results / "report.html").exists()
    assert (atlas / "snakemake-report.html").exists()
    assert (atlas / load(atlas / "new.yaml").outdir / "mapped/report.html").exists()


@pytest.mark.parametrize("text", PLANNED)
def test_a_line_of_snakemake_is_planned(atlas: Path, text: str):
    if any(part in text and not shutil.which(name) for part, name in PROGRAMS.items()):
        options = parse_args(shlex.split(text)[1:])[1]
        assert options.targets == set()
        return
    output = run(f"{text} -n", atlas)
    if "--forcerun" in text:
        name = text.split()[-1]
        rule = "load" if "counts.zarr" in name else name
        assert re.search(rf"^{rule} +\d+$", output, re.MULTILINE), output


@pytest.mark.parametrize("command", HELP, ids=str)
def test_help_is_shown(checkout: Path, command: Command):
    assert "usage:" in run(command.text, checkout)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", NOT_RUN, ids=str)
def test_a_command_that_is_not_run_is_parsed(command: Command, monkeypatch: pytest.MonkeyPatch):
    text = command.text
    assert any(re.match(pattern, text) for pattern in PARSED), "run it, or say why not"
    words = shlex.split(text.replace("<this repository>", "repository"))
    monkeypatch.chdir(ROOT)
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], check=True, capture_output=True)
    elif words[0].endswith("pip"):
        parsed_by_pip(words[2:])
    elif words[0] == "scatlas":
        end = words.index("--") if "--" in words else None
        own, others = command_line._parser().parse_known_args(words[1:end])
        assert own.command == "run" or not others
        parse_args(others)  # Snakemake's
    elif "pytest" in words:
        file, _, name = words[3:]
        assert re.search(rf"^def test_\w*{name}", (ROOT / file).read_text(), re.MULTILINE)
    elif words[1:2] == ["tests/slurm/cluster.py"]:
        assert f'"{words[2]}"' in (ROOT / words[1]).read_text()
    elif words[1:] and words[1].startswith(("bench/", "docs/")):
        options = run(f"python {words[1]} --help", ROOT)
        assert [word for word in words if word.startswith("--") and word not in options] == []
    elif words[0].endswith("python"):
        parsed_by_program(words[2:], monkeypatch)
    else:
        parsed_by_shell(command)


def parsed_by_pip(words: list[str]) -> None:
    from pip._internal.commands import create_command

    options, names = create_command("install").parse_args(words)
    for file in options.requirements:
        assert (ROOT / file).is_file(), file
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # The name alone finds nothing: scatlas is on no package index.
    places = {".", "./scatlas", f"./scatlas-{scatlas.__version__}-py3-none-any.whl"}
    for name in [*names, *options.editables]:
        path, _, extras = name.removesuffix("]").partition("[")
        assert path in places, name
        assert {*filter(None, extras.split(","))} <= {*known["optional-dependencies"]}, name


def parsed_by_program(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the module until it has parsed its options."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(self: argparse.ArgumentParser, *args: object) -> None:
        parse(self, *args)
        sys.exit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
    monkeypatch.setattr(sys, "argv", words)
    source = Path(find_spec(words[0]).origin).read_text()
    assert "parse_args(" in source, "it would be run"
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    assert ended.value.code == 0


def parsed_by_shell(command: Command) -> None:
    """Parse a command with the other lines of its block: some commands have several."""
    blocks = [block for _, block in code(command.page)[0] if command.text in block]
    for block in blocks or [command.text]:
        words = ["bash", "-n", "-c", block.replace("<this repository>", "repository")]
        subprocess.run(words, check=True, capture_output=True)
    for word in shlex.split(command.text):
        if word.startswith(("profiles/", ".ci/", "Containerfile")):
            assert (ROOT / word).is_file()
