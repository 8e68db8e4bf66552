"""The classes of errors and their exit codes."""

from tidemark.state.errors import TidemarkError


def classes(root: type[TidemarkError]) -> list[type[TidemarkError]]:
    return [root, *(found for child in root.__subclasses__() for found in classes(child))]


def test_an_except_clause_never_takes_an_error_of_another_exit_code() -> None:
    """So an `except SourceNotUsableError` can't turn "try again later" (7) into "change the source" (3)."""
    for root in TidemarkError.__subclasses__():
        assert {found.exit_code for found in classes(root)} == {root.exit_code}, root
