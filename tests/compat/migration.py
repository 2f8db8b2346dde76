"""docs/migration.md: how scatlas's functions differ from scanpy's and rapids-singlecell's.

    python -m tests.compat.migration --write

Names, parameters, defaults and passes come from the signatures of scatlas and the installed scanpy,
all other facts from `migration.toml`.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FACTS = HERE / "migration.toml"
PAGE = HERE.parents[1] / "docs" / "migration.md"
BEGIN, END = "<!-- {}: written by `python -m tests.compat.migration --write` -->", "<!-- end -->"
MODULES = ("pp", "tl", "get")
# scanpy's deprecated functions, which have a successor among those below.
DEPRECATED = {"filter_genes_dispersion", "normalize_per_cell", "subsample"}


def _find(package: Any, name: str) -> Any:
    for part in name.split("."):
        package = getattr(package, part, None)
    return package


@dataclass
class Entry:
    """A function of scatlas, and the facts about it."""

    name: str
    scanpy_dask: str
    rapids: str
    rapids_dask: str
    rapids_lacks: list[str]
    rapids_adds: list[str]
    differs: str
    close: str
    test: str
    theirs: str | None = None
    lacks: dict[str, str] = field(default_factory=dict)
    adds: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)

    @cached_property
    def ours(self) -> Any:
        """Function of scatlas; None if missing."""
        import scatlas

        return _find(scatlas, self.name)

    @cached_property
    def scanpys(self) -> Any:
        """scanpy's function; None if missing."""
        import scanpy

        return None if self.theirs is not None else _find(scanpy, self.name)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Parameters of scatlas's function."""
        return dict(inspect.signature(self.ours).parameters)

    @property
    def scanpys_parameters(self) -> dict[str, inspect.Parameter]:
        """Parameters of scanpy's function."""
        return dict(inspect.signature(self.scanpys).parameters) if self.scanpys else {}

    @property
    def shared(self) -> list[str]:
        """Parameters that both have."""
        return [name for name in self.parameters if name in self.scanpys_parameters]

    def other_defaults(self) -> list[str]:
        """Shared parameters with another default or kind."""
        return [
            name
            for name in self.shared
            if _default(self.parameters[name]) != _default(self.scanpys_parameters[name])
            or self.parameters[name].kind != self.scanpys_parameters[name].kind
        ]


def _default(parameter: inspect.Parameter) -> str:
    # Each package has its own object for "not given".
    text = repr(parameter.default)
    return "not given" if text in {"_empty", "var['highly_variable'] if there"} else text


def entries() -> list[Entry]:
    """Entries of migration.toml."""
    facts = tomllib.loads(FACTS.read_text())
    return [Entry(name=name, **fact) for name, fact in facts.items()]


def present() -> list[Entry]:
    """Entries whose function exists."""
    return [entry for entry in entries() if entry.ours is not None]


def shared_functions() -> set[str]:
    """Names, as ``pp.scale``, of the functions that scanpy and scatlas have."""
    import scanpy

    import scatlas

    return {
        f"{module}.{name}"
        for module in MODULES
        for name in getattr(scatlas, module).__all__
        if inspect.isfunction(_find(scatlas, f"{module}.{name}"))
        and _find(scanpy, f"{module}.{name}") is not None
    }


def _functions() -> str:
    rows = [
        "| function | lazy X with scanpy | with rapids-singlecell | with scatlas | passes |",
        "|---|---|---|---|---|",
    ]
    for entry in present():
        note = getattr(entry.ours, "passes_note", "")
        on_graph = entry.scanpy_dask == "works on the graph"
        cells = [
            f"`{entry.name}`{f' (`{entry.theirs}`)' if entry.theirs else ''}",
            entry.scanpy_dask,
            entry.rapids_dask,
            "works on the graph" if on_graph else "yes",
            f"{getattr(entry.ours, 'passes', 'none')}{f'; {note}' if note else ''}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _details() -> str:
    rows = ["| function | parameters | what differs, and why |", "|---|---|---|"]
    for entry in present():
        if entry.scanpys is None:
            said = f"{_names(entry.parameters)}."
        else:
            said = f"As scanpy's: {_names(entry.shared)}."
            there = {name: why for name, why in entry.adds.items() if name in entry.parameters}
            said += _reasons("Not", entry.lacks) + _reasons("Also", there)
            said += _reasons("Other default", entry.defaults)
        rows.append(f"| `{entry.name}` | {said} | {entry.differs} |")
    return "\n".join(rows)


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _reasons(word: str, parameters: dict[str, str]) -> str:
    there = "; ".join(f"`{name}`: {why}" for name, why in parameters.items())
    return f" {word} {there}." if there else ""


def _closeness() -> str:
    rows = ["| function | how close | test |", "|---|---|---|"]
    rows += [
        f"| `{entry.name}` | {entry.close} | [{Path(entry.test).stem}](../tests/{entry.test}) |"
        for entry in present()
    ]
    return "\n".join(rows)


def _rapids() -> str:
    rows = ["| function | additional | missing |", "|---|---|---|"]
    rows += [
        f"| `rsc.{entry.rapids}` | {_names(entry.rapids_adds)} | {_names(entry.rapids_lacks)} |"
        for entry in present()
        if entry.rapids and (entry.rapids_adds or entry.rapids_lacks)
    ]
    return "\n".join(rows)


def _elsewhere() -> str:
    import scanpy

    have = {entry.name for entry in present()}
    lines = []
    for module in MODULES:
        names = [
            name
            for name, member in vars(getattr(scanpy, module)).items()
            if inspect.isfunction(member) and not name.startswith("_")
            if f"{module}.{name}" not in have and name not in DEPRECATED
            if member.__module__.startswith("scanpy")
        ]
        lines.append(f"- `sc.{module}`: {_names(sorted(names))}")
    return "\n".join(lines)


PARTS = {
    "functions": _functions,
    "parameters": _details,
    "closeness": _closeness,
    "rapids-singlecell": _rapids,
    "elsewhere": _elsewhere,
}


def render() -> str:
    """The page with new text between the marks of each part."""
    text = PAGE.read_text()
    for name, part in PARTS.items():
        begin = BEGIN.format(name)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(END)
        text = f"{before}{begin}\n\n{part()}\n\n{END}{after}"
    return text


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", required=True, help="write the page")
    parser.parse_args()
    PAGE.write_text(render())


if __name__ == "__main__":
    sys.exit(main())
