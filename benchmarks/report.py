"""Markdown tables with aligned columns, for people and for documents."""

from collections.abc import Sequence

Cell = str | int | float


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], *notes: str) -> None:
    """Prints a table: the first column left, the others right. Integers get thousands separators, floats one decimal."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *texts]) for i in range(len(header))]
    print(f"\n### {title}\n")
    print(_line(header, widths))
    print("|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")
    for text in texts:
        print(_line(text, widths))
    for note in notes:
        print(f"\n{note}")
    print(flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))]  # fmt: skip  # noqa: E501
    return "| " + " | ".join(padded) + " |"


def _text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.1f}"


def thousands(count: float) -> str:
    """Formats `1234567` as `1,235k`."""
    return f"{count / 1000:,.0f}k"


def ratio(ours: float, theirs: float) -> str:
    """Formats `ours / theirs`: `2.5×`."""
    return f"{ours / theirs:.1f}×"
