"""Tables in Markdown."""

from collections.abc import Sequence

__all__ = ["markdown_table"]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown, a line each for the header, the rule and the rows.

    Args:
        header: The names of the columns.
        rows: Cells, as many a row as there are columns.

    Returns:
        The lines.

    Examples:
        >>> from vision_attn.render import markdown_table
        >>> print(markdown_table(["method", "mean"], [["Rollout", "0.31"]]), end="")
        | method | mean |
        | --- | --- |
        | Rollout | 0.31 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
