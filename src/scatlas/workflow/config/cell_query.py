"""Obs columns that a cell query reads."""

from __future__ import annotations

import ast
import re

_STRING_LITERALS = re.compile(r"'(?:\\.|[^'\\])*'" + "|" + r'"(?:\\.|[^"\\])*"')


def query_columns(query: str) -> list[str]:
    """Name the obs columns that a pandas query reads, in order of first use; ValueError if the text
    is not a query, or names no column. Names that are not identifiers are in backticks.
    """
    tree, quoted = _parse(query)
    names = sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.Name)),
        key=lambda node: (node.lineno, node.col_offset),
    )
    columns = list(dict.fromkeys(quoted.get(node.id, node.id) for node in names))
    if not columns:
        msg = f"{query!r} names no obs column: write for example pass_filter == 'full'"
        raise ValueError(msg)
    return columns


def decides_each_cell_alone(query: str) -> bool:
    """Whether the answer for a cell depends on its own values alone. Methods of a column, such as
    ``total_counts.median()``, may read all cells.
    """
    tree, _ = _parse(query)
    return not any(isinstance(node, ast.Attribute | ast.Call) for node in ast.walk(tree))


def _parse(query: str) -> tuple[ast.Expression, dict[str, str]]:
    """Syntax tree of a query, and the column names that its placeholders stand for."""
    quoted: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        name = f"_quoted_{len(quoted)}_"
        quoted[name] = match[1]
        return name

    text = re.sub(r"`([^`]+)`", placeholder, query.strip())
    text = _STRING_LITERALS.sub("''", text)
    text = text.replace("&", " and ").replace("|", " or ")  # as pandas reads them
    if re.search(r"(?<![=!<>])=(?!=)", text):
        msg = f"{query!r} is not a query: compare with == instead of ="
        raise ValueError(msg)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        msg = f"{query!r} is not a query: write for example pass_filter == 'full'"
        raise ValueError(msg) from None
    return tree, quoted
