"""Draw the way of the data in CONTRIBUTING.md, from plates to the atlas, from rules and scripts.

    python docs/data_way.py --write

Each box is a step with the files that it writes and the functions that do its work.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- Written by `python docs/data_way.py --write` -->"
END = "<!-- The end of the picture -->"
# Where the work of a step is done; the rest is options, records, tables and blocks.
WORK = re.compile(
    r"scatlas\.(matrix|pp|tl|io\.products|workflow\.(cell_filter|consensus|strata|sample))\b"
    r"|scatlas\.io\.(load|concat|write_(pca|gram)|assemble|CsrWriter)"
)
DETAIL = re.compile(
    r"\.(read|open|add|write_(part|moments)|mitochondrial|frequent|cells_|target_of|doublet_columns)"
    r"|_by_row$"
)


def needs(target: str) -> dict[str, set[str]]:
    """Rules that each rule takes files from, for those that ``target`` needs."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "dot", "--nolock"]
    command += ["--configfile", "config/demo.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', done.stdout))
    found: dict[str, set[str]] = {name: set() for name in names.values()}
    for a, b in re.findall(r"(\d+) -> (\d+)", done.stdout):
        found[names[b]].add(names[a])
    kept, todo = set(), [target]
    while todo:
        kept.add(rule := todo.pop())
        todo += found[rule] - kept
    return {rule: found[rule] for rule in sorted(kept)}


def before(rule: str, found: dict[str, set[str]]) -> set[str]:
    """All rules that run before ``rule``."""
    return found[rule].union(*(before(other, found) for other in found[rule]))


def files(rule: str) -> list[str]:
    """Files and stores that a rule writes, without its record."""
    texts = (path.read_text("utf-8") for path in sorted((ROOT / "workflow/rules").glob("*.smk")))
    for text in texts:
        if block := re.search(rf"^(?:rule|checkpoint) {rule}:\n(.*?)^    log:", text, re.M | re.S):
            written = block[1].partition("output:")[2]
            names = re.findall(r"\{OUT\}/([^\"]+)\"", written)
            short = (re.sub(r"(plates/)?\{+plate\}+/|/zarr\.json", "", name) for name in names)
            return [name for name in short if not name.startswith("manifests")]
    raise SystemExit(f"there is no rule {rule}")


def functions(rule: str) -> list[str]:
    """Functions that the script of a rule calls for its work."""
    path = ROOT / f"scripts/{rule}.py"
    tree = ast.parse(path.read_text("utf-8"))
    module = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    words = [ast.unparse(function) for function in called]
    full = [module.get(first := word.split(".")[0], first) + word[len(first) :] for word in words]
    work = (name for name in full if WORK.match(name) and not DETAIL.search(name))
    return [name.removeprefix("scatlas.") for name in dict.fromkeys(work)]


def picture() -> str:
    """Flow chart in Mermaid, which forges draw."""
    found = needs("atlas")
    lines = ["```mermaid", "flowchart TD"]
    found["load"] = {"plates"}
    lines.append('  plates(["plates: h5ad, Zarr, 10x, Loom, text or Parquet"])')
    for rule in sorted(found.keys() - {"simulate"}):
        small = [*files(rule), *(f"<i>{name}</i>" for name in functions(rule))]
        lines.append(f'  {rule}["<b>{rule}</b><br>{"<br>".join(small)}"]')
    found |= {"plates": set(), "simulate": set()}
    for rule, sources in found.items():
        # An arrow per file that no other step hands on.
        others = set[str]().union(*(before(source, found) for source in sources))
        lines += [f"  {source} --> {rule}" for source in sorted(sources - others)]
    return "\n".join([*lines, "```"])


def page() -> str:
    """CONTRIBUTING.md with today's picture."""
    head, rest = PAGE.read_text("utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n\n{picture()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true", required=True)
    arguments.parse_args()
    PAGE.write_text(page(), "utf-8")
