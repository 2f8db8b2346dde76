"""Write the generated part of docs/programs.md, from the code and from a tiny project.

python docs/programs.py --write     writes the page
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow.command_line import COMMON_KEYS, EXIT_CODES, JSON_KEYS
from scatlas.workflow.command_line import main as command_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGE = Path(__file__).resolve().parent / "programs.md"
BEGIN = "<!-- written by `python docs/programs.py --write` -->"
# Calls whose JSON the page shows; the last one fails.
EXAMPLES = ("check --json", "status --json", "check --json --config missing.yaml")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def options() -> str:
    """A table of the commands of scatlas and their options."""
    (commands,) = command_line._parser()._subparsers._group_actions
    rows = []
    for name, parser in commands.choices.items():
        rows.append((f"`{name}`", "", parser.description))
        for action in parser._actions[1:]:  # without --help
            value = "" if action.nargs == 0 else action.metavar or action.dest.upper()
            words = " ".join(filter(None, [*action.option_strings[:1], value]))
            rows.append(("", f"`{words}`", action.help))
    return table(("scatlas", "option", "what"), rows)


def answers() -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The JSON of the examples, and the files that init writes, in a project of two plates."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number in (1, 2):
            plate = simulate_plate(number, n_cells=120, n_genes=300)
            write_plate(Path(f"data/p{number}.h5ad"), plate)
        with redirect_stdout(io.StringIO()):
            command_line.main(["init", "data"])
        written = sorted(path.name for path in Path().glob("*.*"))
        for words in EXAMPLES:
            with redirect_stdout(io.StringIO()) as printed:
                status = command_line.main(words.split())
            found[words] = json.loads(printed.getvalue())
            assert found[words]["exit_code"] == status
    return found, written


def generated() -> str:
    """The generated part of the page."""
    found, written = answers()
    steps = found["status --json"]["steps"]
    files = dict.fromkeys(written, "`init`")
    for step in steps:
        for name in step["files"]:
            files[name.replace(step["plate"] or "\0", "{plate}")] = step["rule"]
    found["status --json"]["steps"] = steps[:2]  # the page would be long
    parts = ["## Commands", options(), "## Exit codes", table(("code", "what"), EXIT_CODES.items())]
    for command, keys in JSON_KEYS.items():
        rows = [(f"`{key}`", what) for key, what in (COMMON_KEYS | keys).items()]
        parts += [f"## scatlas {command} --json", table(("key", "what"), rows)]
        for words in (words for words in EXAMPLES if words.startswith(command)):
            cut = f", the first two of {len(steps)} steps" * (command == "status")
            text = json.dumps(found[words], indent=2)
            parts.append(f"`scatlas {words}`{cut}:\n\n```json\n{text}\n```")
    rows = [(f"`{name}`", rule) for name, rule in files.items()]
    parts += ["## Files", table(("file", "written by (rule)"), rows)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def page() -> str:
    """The whole page: the text before the mark stays as it is."""
    return f"{PAGE.read_text('utf-8').partition(BEGIN)[0]}{BEGIN}\n\n{generated()}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true", required=True)
    arguments.parse_args()
    PAGE.write_text(page(), "utf-8")
