"""The package as a whole: who imports whom, what is public, and what ships."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import jointgraph
from jointgraph import exceptions, fx_utils

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "jointgraph").rglob("*.py"))
MODULES = {path.relative_to(ROOT / "jointgraph").with_suffix("").as_posix().replace("/", "."): path for path in SOURCES}
"""Module name without the package → file."""
FLOORS = [
    ["_torch", "exceptions"],
    ["descriptors"],
    ["records"],
    ["interface"],
    ["flow"],
    ["check"],
    ["edit", "run", "show"],
    ["index"],
    ["fx_utils", "capture"],
    ["__main__"],
]
"""The design: a module may import from floors before its own. Modules that aren't named here must fit in between."""

every_module = pytest.mark.parametrize("name", [name for name in MODULES if name != "__init__"])


def tree(name: str) -> ast.Module:
    """The syntax tree of one module."""
    return ast.parse(MODULES[name].read_text())


def imported(name: str) -> set[str]:
    """The modules of the package that one of them imports, anywhere in its source."""
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "jointgraph"}
        elif isinstance(node, ast.ImportFrom) and node.module == "jointgraph":
            found |= {f"jointgraph.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jointgraph."):
            found.add(str(node.module))
    return {module.removeprefix("jointgraph.") for module in found}


def reached(name: str) -> set[str]:
    """All that a module imports, and what those import, and so on."""
    found: set[str] = set()
    to_do = [*imported(name)]
    while to_do:
        module = to_do.pop()
        if module not in found:
            found.add(module)
            to_do += imported(module)
    return found


# Who imports whom.


def test_there_are_modules_to_look_at() -> None:
    """The tests below find the sources."""
    assert {"__init__", "_torch", "descriptors", "exceptions", "fx_utils", "index", "records"} <= MODULES.keys()
    assert {"_torch", "descriptors", "records"} <= reached("index")


@every_module
def test_modules_import_modules(name: str) -> None:
    """No module imports a public name by way of the package itself, nor relatively: each names the file it means."""
    assert imported(name) <= MODULES.keys() - {"__init__"}
    assert [node.lineno for node in ast.walk(tree(name)) if isinstance(node, ast.ImportFrom) and node.level] == []


@every_module
def test_no_import_circle(name: str) -> None:
    """No module reaches itself through its imports."""
    assert name not in reached(name)


@every_module
def test_no_module_imports_upward(name: str) -> None:
    """A module reaches none on its own floor of the design or above it."""
    floor_of = {module: number for number, floor in enumerate(FLOORS) for module in floor}
    above = [m for m in reached(name) if floor_of.get(m, -1) >= floor_of.get(name, len(FLOORS))]
    assert above == []


@every_module
def test_no_import_inside_a_function(name: str) -> None:
    """All imports are at the top of a module: none hides in a function."""
    hidden = [
        inner.lineno
        for outer in ast.walk(tree(name))
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(outer)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
        or (isinstance(inner, ast.Name) and inner.id in {"import_module", "__import__"})
    ]
    assert hidden == []


@pytest.mark.parametrize("name", [name for name in MODULES if name != "_torch"])
def test_private_torch_modules_are_named_in_one_file(name: str) -> None:
    """Only ``_torch.py`` imports a private module of torch, or reaches into one by attribute."""
    private = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            private += [alias.name for alias in node.names if is_private_torch(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            private += [f for f in (f"{node.module}.{alias.name}" for alias in node.names) if is_private_torch(f)]
        elif isinstance(node, ast.Attribute) and is_private_torch(ast.unparse(node)):
            private.append(ast.unparse(node))
    assert private == []


def is_private_torch(name: str) -> bool:
    """Whether a dotted name is of a private part of torch."""
    first, *rest = name.split(".")
    return first == "torch" and any(part.startswith("_") for part in rest)


# What is public.


def test_all_is_sorted_and_each_name_is_there() -> None:
    """Every name in ``__all__`` can be had, under its own name, and nothing else can."""
    assert jointgraph.__all__ == sorted(jointgraph.__all__)
    assert [getattr(jointgraph, name).__name__ for name in jointgraph.__all__] == jointgraph.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = jointgraph.nothing


def test_all_is_what_type_checkers_see() -> None:
    """``__all__`` is exactly the names that ``__init__.py`` imports for type checkers, from where they are defined."""
    declared = {
        alias.name: node.module
        for node in ast.walk(tree("__init__"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jointgraph.")
        for alias in node.names
    }
    assert sorted(declared) == jointgraph.__all__
    assert {name: getattr(jointgraph, name).__module__ for name in declared} == declared


def test_every_exception_is_public() -> None:
    """Whatever jointgraph raises can be caught by a name from the package."""
    raised = [name for name, what in vars(exceptions).items() if isinstance(what, type) and issubclass(what, Exception)]
    assert "JointGraphError" in raised
    assert set(raised) <= set(jointgraph.__all__)


def test_a_star_import_gives_all_names() -> None:
    """``from jointgraph import *`` gives the names in ``__all__``, and of ``fx_utils`` the nine functions."""
    namespace: dict[str, object] = {}
    exec("from jointgraph import *\nfrom jointgraph.fx_utils import *", namespace)
    assert namespace.keys() - {"__builtins__"} == {*jointgraph.__all__, *fx_utils.__all__}


def test_importing_the_package_does_not_import_torch() -> None:
    """``import jointgraph`` alone imports no torch."""
    code = "import sys, jointgraph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# What ships.


def test_the_package_is_typed() -> None:
    """``py.typed`` is beside the modules."""
    assert resources.files("jointgraph").joinpath("py.typed").is_file()


def test_the_installed_version_is_that_of_the_project() -> None:
    """The version that pip knows is the one in ``pyproject.toml``."""
    try:
        installed = importlib.metadata.version("jointgraph")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("jointgraph is on the path but not installed")
    written = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert written is not None
    assert installed == written[1]


def test_ci_installs_as_the_readme_says() -> None:
    """``.ci/run`` sets up with the very command that the README gives for the tests."""
    commands = re.findall(r"^pip install .*\[test\].*?(?= &&|$)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 1
    assert commands[0] in (ROOT / ".ci" / "run").read_text()


@every_module
def test_every_module_says_what_it_is_for(name: str) -> None:
    """Each module opens with a docstring, and the README's account of the layout names it."""
    assert ast.get_docstring(tree(name))
    layout = (ROOT / "README.md").read_text().partition("## How the code is laid out")[2]
    assert re.search(rf"(?<!\w){name}(?!\w)", layout)
