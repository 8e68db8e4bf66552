"""The documents: their links lead somewhere, their job files are valid, the tests that they name exist. Docstrings are
sentences."""

import ast
import re
from pathlib import Path

import pytest

from tidemark.conf.load import load_job_file
from tidemark.conf.model import JobFile
from tidemark.conf.reading import Log, Snapshot
from tidemark.conf.sink import ConsoleSink, DeltaSink, FilesSink, MirrorSink
from tidemark.conf.source import Source

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/README.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
JOB_FILE = re.compile(r"```yaml\n(# \w+\.yaml\n.*?)```", re.DOTALL)
CLAIMS = {"guarantees.md": 100, "disasters.md": 45}
"""Pages whose lines name tests, and how many lines they have at least."""
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def anchor_of(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(document: Path) -> None:
    text = CODE.sub("", document.read_text())
    for target, anchor in LINK.findall(text):
        found = (document.parent / target).resolve() if target else document
        assert found.exists(), f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert anchor in {anchor_of(heading) for heading in headings}, f"{document.name} links to {target}#{anchor}"


@pytest.mark.parametrize("name", ["README.md", "docs/getting-started.md"])
def test_the_job_files_shown_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = JOB_FILE.findall((ROOT / name).read_text())
    assert shown
    for variable in set(re.findall(r"\$\{(\w+)\}", "".join(shown))):
        monkeypatch.setenv(variable, "secret")
    for text in shown:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        assert load_job_file(path).source.tables


def test_no_document_names_a_machine_s_folder() -> None:
    for document in DOCUMENTS:
        assert not re.search(r"/(home|root|tmp|work)/", document.read_text()), document.name


def named_in(file: Path) -> set[str]:
    """The test functions of a file, and the test cases that it assigns to a name."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case _:
                pass
    return {name for name in found if name.lower().startswith("test")}


@pytest.mark.parametrize("page", CLAIMS)
def test_every_claim_names_tests_that_exist_or_says_that_it_has_none(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named: dict[str, set[str]] = {}
    for path, name in NAMED_TEST.findall(text):
        named.setdefault(path, set()).add(name)
    assert sum(map(len, named.values())) == len(set(re.findall(r"`[^`\n]*::[^`\n]*`", text)))
    for path, names in named.items():
        file = ROOT / "tests" / path
        assert file.is_file(), path
        assert not names - named_in(file), path
    rows = re.findall(r"^\| .*\|$", text, re.MULTILINE)
    assert len(rows) >= CLAIMS[page]
    for row in rows:
        shown_by = row.split(" | ")[-1].rstrip("| ")
        assert NAMED_TEST.search(shown_by) or shown_by in {"no test", "shown by"}, row


def test_the_page_about_changes_of_a_job_names_every_key() -> None:
    text = (ROOT / "docs" / "changing-a-job.md").read_text()
    first_cells = re.findall(r"^\| (`.*?) \|", text.partition("## Every key")[2], re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall(r"`([\w.]+)`", cell)}
    sections = {"snapshot": Snapshot, "log": Log}
    wanted = {f"{section}.{key}" for section, model in sections.items() for key in model.model_fields}
    wanted |= {key for model in (Source, MirrorSink, FilesSink, DeltaSink, ConsoleSink) for key in model.model_fields}
    wanted |= set(JobFile.model_fields) - {"source", "sink", "spark", *sections}
    assert wanted - named == set()


def test_no_docstring_begins_as_a_fragment_of_a_sentence() -> None:
    fragment = re.compile(r'"""' + r"(Of|What|Likewise)\b.*")
    folders = (
        "benchmarks",
        "conf",
        "devtools",
        "enumerator",
        "examples",
        "jobs",
        "readers",
        "scripts",
        "sinks",
        "state",
        "tests",
    )
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 800
    assert [
        f"{file.relative_to(ROOT)}: {found[0]}" for file in files if (found := fragment.search(file.read_text()))
    ] == []
