"""import-linter sees every module of the package, though its subpackages are links to the repository's folders."""

from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tidemark"


def modules_on_disk() -> set[str]:
    folders = [entry.name for entry in PACKAGE.iterdir() if entry.is_symlink()]
    files = [PACKAGE / "__init__.py", *(path for name in folders for path in (ROOT / name).rglob("*.py"))]
    return {module_of(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT)) for path in files}


def module_of(path: Path) -> str:
    parts = path.parts[:-1] if path.name == "__init__.py" else path.with_suffix("").parts
    return ".".join(("tidemark", *parts))


def test_the_contracts_are_checked_on_every_module() -> None:
    graph = grimp.build_graph("tidemark", include_external_packages=True, cache_dir=None)
    seen = {module for module in graph.modules if module.split(".")[0] == "tidemark"}
    assert seen == modules_on_disk()
    assert len(seen) > 250
    assert graph.direct_import_exists(importer="tidemark.jobs", imported="tidemark.conf", as_packages=True)
    assert graph.direct_import_exists(importer="tidemark.conf", imported="tidemark.state", as_packages=True)
    assert graph.direct_import_exists(importer="tidemark.readers", imported="pymysql", as_packages=True)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Neither inside a function nor for types only."""
    graph = grimp.build_graph("tidemark", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle
