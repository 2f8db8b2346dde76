"""Messages of the errors that a user can cause, read from the code without running it."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# Calls of these make a message. Other errors are internal: the program answers them itself.
ERRORS = {"InputError", "ConfigError", "TooLargeError", "DiskError", "GpuError", "ScatlasError"}
ERRORS |= {"MissingPackageError", "WorkflowError", "SystemExit", "Problem"}
# pydantic reports the ValueError of a check of the config or the sheet as an error of the config.
CHECKS = "src/scatlas/workflow/config/"
# Functions that return, yield or collect sentences for the caller's error.
SENTENCES = {"_missing", "_unknown_key", "explain"}
UNKNOWN = "…"
NESTED = 3  # variables within variables whose text is followed


class Message(NamedTuple):
    """A message with ``<name>`` or ``…`` where the program writes a value."""

    text: str
    file: str


@cache
def messages() -> list[Message]:
    """All messages, in the order of the files and of their lines; some texts occur twice."""
    found = []
    for path in _sources():
        name = path.relative_to(ROOT).as_posix()
        errors = ERRORS | ({"ValueError"} if name.startswith(CHECKS) else set())
        for tree in _trees(path):
            texts = _texts(tree, errors, _constants(path))
            found += [Message(text, name) for text in texts]
    return found


def _sources() -> list[Path]:
    folders = (("src/scatlas", "*.py"), ("scripts", "*.py"), ("workflow", "*.smk"))
    return [path for name, glob in folders for path in sorted((ROOT / name).rglob(glob))]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _trees(path: Path) -> Iterator[ast.Module]:
    """Syntax tree of a Python file, or of each raise statement among rules of Snakemake."""
    if path.suffix == ".py":
        yield _tree(path)
        return
    lines = path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(r" *raise \w+\(", line):
            indent = len(line) - len(line.lstrip())
            # To the line of the closing bracket, which has the indent of the first line.
            last = next(
                i
                for i, text in enumerate(lines[number:], number)
                if (i == number and text.count("(") == text.count(")"))
                or text.startswith(f"{' ' * indent})")
            )
            yield ast.parse(textwrap.dedent("\n".join(lines[number : last + 1])))


@cache
def _constants(path: Path) -> dict[str, ast.expr]:
    """Texts of a module that have a name, also those imported from scatlas."""
    if path.suffix != ".py":
        return {}
    found: dict[str, ast.expr] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scatlas."):
            source = ROOT / "src" / f"{(node.module or '').replace('.', '/')}.py"
            known = _constants(source) if source.exists() else {}
            found |= {a.asname or a.name: known[a.name] for a in node.names if a.name in known}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id.startswith("__"):
                continue  # the version
            if isinstance(node.value, ast.JoinedStr | ast.BinOp) or _is_text(node.value):
                found[node.targets[0].id] = node.value
    return found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _texts(tree: ast.Module, errors: set[str], constants: dict[str, ast.expr]) -> Iterator[str]:
    for scope in _scopes(tree):
        calls = [
            (node.lineno, node.args[0])
            for node in _inside(scope)
            if isinstance(node, ast.Call) and node.args and _names(node.func) & errors
        ]
        if isinstance(scope, ast.FunctionDef) and scope.name in SENTENCES:
            calls += [(value.lineno, value) for value in _results(scope)]
        values = _assigned(scope)
        for (first, _), (line, message) in pairwise([(0, None), *sorted(calls, key=itemgetter(0))]):
            choices = [message]
            if isinstance(message, ast.Name):
                # All texts given to the variable since the call before, as the branches of an if.
                given = [v for v in values.get(message.id, []) if v.lineno < line]
                choices = [v for v in given if v.lineno > first] or given[-1:]
            for choice in choices:
                text = " ".join(_text(choice, values, constants).split())
                if len(_words(text)) > 1:  # an error that is passed on has none
                    yield text


def _results(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Texts with values that a function returns, yields or puts into a container."""
    for node in _inside(function):
        if isinstance(node, ast.Return | ast.Yield | ast.Assign) and (
            isinstance(node.value, ast.JoinedStr)
            and not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name))
        ):
            yield node.value


def _scopes(tree: ast.Module) -> list[ast.AST]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return [tree, *functions]


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function or module, without those of the functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef):
            yield node
            yield from _inside(node)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]{2,}", re.sub("<.*?>", "", text))


def _names(function: ast.expr) -> set[str]:
    """Classes that a call may make: ``(DiskError if full else InputError)(...)`` has two."""
    return {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in _inside(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.NamedExpr):
            found.setdefault(node.target.id, []).append(node.value)
    return {name: sorted(values, key=lambda v: v.lineno) for name, values in found.items()}


def _text(
    node: ast.expr,
    values: dict[str, list[ast.expr]],
    constants: dict[str, ast.expr],
    depth: int = 0,
) -> str:
    def inner(part: ast.expr, deeper: int = 0) -> str:
        return _text(part, values, constants, depth + deeper)

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(inner(part) for part in parts)
        case ast.FormattedValue(value=value):
            return inner(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return inner(left) + inner(right)
        case ast.BinOp(left=left, op=ast.Mult()):  # a part that depends on a flag
            return inner(left)
        case ast.IfExp(body=body, orelse=other):
            branches = dict.fromkeys(text for text in map(inner, (body, other)) if _words(text))
            return "/".join(branches) or UNKNOWN
        case ast.Name(id=name):
            known = values.get(name) or [constants[n] for n in (name,) if n in constants]
            if len(known) == 1 and depth < NESTED and (text := inner(known[0], 1)) != UNKNOWN:
                return text
            return UNKNOWN if name == "msg" else f"<{name.strip('_').lower()}>"
        case ast.Attribute(attr=name):
            return f"<{name.strip('_').lower()}>"
    return UNKNOWN
