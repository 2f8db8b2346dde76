"""The layers of the package: what a folder may import, and that nothing imports in a circle."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "scatlas"

# Ground up. A module imports from its own layer and from those below it; two names of one layer
# do not import each other. Names are folders, or modules at the top of the package.
LAYERS = [
    {"_version", "errors"},
    {"_util"},
    {"arrays"},
    {"kernels.build"},
    {"kernels"},
    {"compute"},
    {"blocks"},
    {"columns"},
    {"elements"},
    {"io.chunks"},
    {"io.files"},
    {"io.zarr_writer"},
    {"io.tables"},
    {"io.matrices"},
    {"io.products"},
    {"io"},
    {"matrix"},
    {"pp"},
    {"get"},
    {"tl"},
    {"pl", "datasets", "export"},
    {"workflow.config"},
    {"workflow"},
]
# Modules that read one format of plates.
READERS = re.compile(r"io\.(matrices\.(?!counts)\w+_source|tables\.(converted|cell_r))")
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def layer_of(module: str) -> str:
    """The longest name of a layer that a dotted module begins with."""
    parts = module.split(".")
    for n in range(len(parts), 0, -1):
        if (name := ".".join(parts[:n])) in HEIGHT:
            return name
    raise AssertionError(f"give {parts[0]} its layer in {Path(__file__).name}")


def modules() -> dict[str, Path]:
    """Modules of the package by their dotted names, without the package's own file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path, names: frozenset[str]) -> set[str]:
    """Modules that a file imports when it runs, at the top or inside functions: 'pp._pca'."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return _imports(tree, path, names)


def _imports(tree: ast.AST, path: Path, names: frozenset[str]) -> set[str]:
    here = path.relative_to(PACKAGE.parent).parent.parts
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{module}.{alias.name}".removeprefix("scatlas.")
                found.add(f"scatlas.{whole}" if whole in names else module)
    dotted = {name.removeprefix("scatlas.") for name in found if name.startswith("scatlas.")}
    for operation in re.findall(r'kernels_for\(\s*"([\w.]+)"', ast.unparse(tree).replace("'", '"')):
        dotted |= {f"kernels.{operation}_cpu", f"kernels.{operation}_gpu"} & names
    return dotted


@cache
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    files = modules()
    names = frozenset(files)
    return {name: imports(path, names) - {name} for name, path in files.items()}


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Imports of a higher layer, or of another folder of the same one."""
    found = []
    for module, targets in edges.items():
        own = layer_of(module)
        for target in sorted(targets):
            other = layer_of(target)
            if other != own and HEIGHT[other] >= HEIGHT[own]:
                found.append(f"{module} imports {target}")
    return found


def test_nothing_imports_upward():
    assert upward(graph()) == []


def test_nothing_imports_in_a_circle():
    TopologicalSorter(graph()).prepare()


def test_one_list_asks_what_a_plate_is():
    """Outside `io` only `scatlas init` knows a format, the release whose plates it lists."""
    known = {name for name, targets in graph().items() if any(map(READERS.match, targets))}
    outside = {name for name in known if not name.startswith(("io.matrices.", "io.tables."))}
    assert outside == {"workflow.command_line.find_files"}


def test_no_folder_imports_a_siblings_private_module():
    found = [
        f"{module} imports {target}"
        for module, targets in graph().items()
        for target in sorted(targets)
        for package, _, private in [target.rpartition("._")]
        if private and package and not module.startswith(package)
    ]
    assert found == []


def test_each_folder_says_its_rule_in_one_sentence():
    for path in sorted(PACKAGE.rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.match(r"[A-Z][^.]*[.:]", text), path


@pytest.mark.parametrize("source", ["from scatlas.tl import umap", "from ..tl._umap import umap"])
def test_an_upward_import_is_seen(source):
    path = PACKAGE / "io" / "bad.py"
    found = _imports(ast.parse(f"def f():\n    {source}\n"), path, frozenset({"tl._umap"}))
    assert upward({"io.bad": found}) in (["io.bad imports tl"], ["io.bad imports tl._umap"])


def test_a_circle_is_seen():
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def _calls(name: str) -> list[tuple[Path, ast.Call]]:
    """Calls of a function in the package, by its last name, with a literal first argument."""
    found = []
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called == name and isinstance(node.args[0], ast.Constant):
                found.append((path, node))
    return found


def test_each_operation_that_is_dispatched_has_kernels():
    calls = _calls("kernels_for")
    assert len(calls) > 20
    for path, call in calls:
        module = PACKAGE / "kernels" / call.args[0].value.replace(".", "/")
        for device in ("cpu", "gpu"):
            assert module.with_name(f"{module.name}_{device}.py").is_file(), (path, call.lineno)


def test_each_cuda_kernel_is_in_its_source_and_each_source_is_used():
    calls = [(path, call) for path, call in _calls("kernel") if len(call.args) > 1]
    assert len(calls) > 20
    for path, call in calls:
        source = (PACKAGE / "kernels" / f"{call.args[0].value}.cu").read_text()
        if isinstance(call.args[1], ast.Constant):
            assert re.search(rf"\b{call.args[1].value}\(", source), (path, call.lineno)
    used = {call.args[0].value for _, call in calls}
    folder = PACKAGE / "kernels"
    assert used == {p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.cu")}
