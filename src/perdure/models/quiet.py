"""Whether importing a script would begin its training again, told from its code before any of it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.core.errors import ConfigError

GUARD = 'put the training under if __name__ == "__main__":, or the function into a file of its own'


def check_quiet(path: Path) -> None:
    """Refuse a script that makes a ``perdure.Run`` when it is imported, itself or in a function that it calls.

    Args:
        path: Its file. One that is no Python source, or that cannot be parsed, is left to the import.

    Raises:
        ConfigError: It would start a run.
    """
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    seen: set[str] = set()
    queue: list[Iterable[ast.AST]] = [_at_import(tree.body)]
    while queue:
        for node in queue.pop():
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.rpartition(".")[2] == "Run" and _knows_perdure(tree):
                raise ConfigError(f"{path} starts a run when it is imported", hint=GUARD)
            if name in functions and name not in seen:
                seen.add(name)
                queue.append(ast.walk(functions[name]))


def _at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node that an import executes: not the bodies of functions, nor what is kept for ``__main__``."""
    for statement in body:
        if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)):
            yield from _outside_functions(statement)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _knows_perdure(tree: ast.Module) -> bool:
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return any("perdure" in ast.unparse(node) for node in imports)
