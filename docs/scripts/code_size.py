"""How large the code is: `python docs/scripts/code_size.py [src/PACKAGE]`, for docs/architecture.md."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Numbers of lines that hold code: no comments, no docstrings, no blank lines."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def main() -> None:
    """Print files, lines, shares and the widest function."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src/qurate")
    lines, codes, imports, short, functions, small = 0, 0, 0, 0, 0, 0
    most: tuple[int, str] = (0, "")
    files = sorted(root.rglob("*.py"))
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = code_lines(text, tree)
        lines, codes = lines + text.count("\n"), codes + len(code)
        small += text.count("\n") <= 60
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += len(code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                inner = code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                short += len(inner) <= 3
                arguments = node.args
                count = len(arguments.args) + len(arguments.kwonlyargs) + len(arguments.posonlyargs)
                most = max(most, (count, f"{path.relative_to(root)}: {node.name}"))
    print(f"files {len(files)}, of 60 lines or fewer {small}; lines {lines}, of code {codes}")
    print(
        f"imports {imports / codes:.1%} of code; functions {functions}, of three lines or fewer {short / functions:.0%}"
    )
    print(f"most parameters {most[0]} ({most[1]})")


if __name__ == "__main__":
    main()
