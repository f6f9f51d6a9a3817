"""How a report shows that it goes on: nothing, or a progress bar on the terminal."""

from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Bar", "Silent"]

Own = TypeVar("Own", bound="Silent")  # beartype takes no Self in a single method


class Silent:
    """Show nothing; keep a line for each problem.

    Used as a context around one job. problems: what went wrong while the rest went on.

    Examples:
        >>> from vision_attn.reports.progress import Silent
        >>> with Silent() as progress:
        ...     progress.start("photos", total=2)
        ...     progress.advance(2)
        ...     progress.problem("c.png: no such file")
        >>> progress.problems
        ['c.png: no such file']
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def start(self, what: str, total: int) -> None:
        """Begin a job of `total` steps."""

    def advance(self, steps: int = 1) -> None:
        """Count steps of the job as done."""

    def problem(self, text: str) -> None:
        """Keep one line about something that went wrong while the rest goes on."""
        self.problems.append(" ".join(text.split()))

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the job; the line of the terminal is free again."""


class Bar(Silent):
    """A progress bar on stderr where that is a terminal, else silent.

    Examples:
        >>> from vision_attn.reports.progress import Bar
        >>> with Bar() as progress:  # shown on a terminal alone
        ...     progress.start("photos", total=2)
        ...     progress.advance(2)
    """

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def start(self, what: str, total: int) -> None:
        self.stop()
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.add_task(what, total=total)
            self.bar.start()

    def advance(self, steps: int = 1) -> None:
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0], steps)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
