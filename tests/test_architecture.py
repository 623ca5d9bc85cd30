"""The table of docs/architecture.md is the package: each module in it once, and imports only from above."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "xyreward"
MODULES = frozenset(file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py"))


def rows() -> list[list[str]]:
    """The table's first column: paths in the package, of files and of folders (with a slash at the end)."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    (table,) = re.findall(r"^## Modules, from left to right\n(.*?)^## ", page, re.M | re.S)
    columns = (line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    return [
        [n for n in re.findall(r"`([^`]+)`", one) if n.endswith((".py", "/"))] for one in columns
    ]


def places(table: Sequence[Sequence[str]]) -> dict[str, int]:
    """Module -> number of its row: its own, else that of the innermost folder."""
    named = {name: number for number, names in enumerate(table) for name in names}
    found = {}
    for module in MODULES:
        parts = module.split("/")
        folders = ["/".join(parts[:n]) + "/" for n in range(len(parts) - 1, 0, -1)]
        number = next((named[name] for name in (module, *folders) if name in named), None)
        if number is not None:
            found[module] = number
    return found


def imported(body: Sequence[ast.stmt | ast.excepthandler]) -> Iterator[tuple[int, str]]:
    """What of the package is imported when a module is loaded, with its line: not what a function needs."""
    for node in body:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xyreward":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.split(".")[0] == "xyreward"]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from imported(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for block in ("body", "handlers", "orelse", "finalbody"):
                yield from imported(getattr(node, block, []))
        for name in names:
            path = "/".join(name.split(".")[1:])
            of = name.rpartition(".")[0].split(".")[1:]
            others = (
                f"{path}.py",
                f"{path}/__init__.py",
                "/".join(of) + ".py",
                "/".join([*of, "__init__.py"]),
            )
            if (module := next((m for m in others if m in MODULES), None)) is not None:
                yield node.lineno, module


FACE = "__init__.py"
"""The package itself, which is the names that users import, and so on nobody's side."""


def test_every_module_stands_in_the_table_once() -> None:
    table = rows()
    named = Counter(name for names in table for name in names)
    assert [name for name, times in named.items() if times > 1] == []
    assert sorted(MODULES - places(table).keys() - {FACE}) == []
    folders = {module.rpartition("/")[0] + "/" for module in MODULES}
    assert sorted(named.keys() - MODULES - folders) == []


def test_no_module_imports_from_a_row_below_its_own() -> None:
    place = places(rows())
    wrong = [
        f"{module}:{line} imports {other}, which stands below it"
        for module in sorted(MODULES - {FACE})
        for line, other in imported(ast.parse((PACKAGE / module).read_text("utf-8")).body)
        if other != FACE and place.get(other, -1) > place.get(module, len(MODULES))
    ]
    assert wrong == [], "move the row in docs/architecture.md, or the import into the function"


def test_what_is_looked_at_is_what_loading_a_module_runs() -> None:
    text = (
        "import os\n"
        "from xyreward import reward\n"
        "from xyreward.pairs import PairSet, build\n"
        "import xyreward.items\n"
        "if TYPE_CHECKING:\n    from xyreward import cli\n"
        "try:\n    from xyreward.stats import means\nexcept ImportError:\n    from xyreward import hub\n"
        "class C:\n    from xyreward import prices\n"
        "def f():\n    from xyreward import cli\n"
    )
    assert list(imported(ast.parse(text).body)) == [
        (2, "reward.py"), (3, "pairs/__init__.py"), (3, "pairs/build.py"), (4, "items.py"), (8, "stats.py"),
        (10, "hub.py"), (12, "prices.py"),
    ]  # fmt: skip
