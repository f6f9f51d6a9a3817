"""How a report shows that it goes on: nothing, or a progress bar on the terminal."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from vision_attn.terminal import printable

__all__ = ["Bar", "Pilot", "Silent"]

Own = TypeVar("Own", bound="Silent")  # beartype takes no Self in a single method


class Terminal(Console):
    """rich's console, escaping what would steer the terminal; markup only where it is asked for.

    A reader that is gone raises BrokenPipeError, as `print` does.
    """

    def __init__(self, *, stderr: bool = False, highlight: bool = True):
        super().__init__(stderr=stderr, highlight=highlight, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, their text escaped; see rich."""
        return self._safe(super().render(renderable, options))

    @staticmethod
    def _safe(segments: Iterable[Segment]) -> Iterator[Segment]:
        for text, style, control in segments:
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Let `cli.main` end the process; called while the error is handled."""
        raise


class Pilot(NamedTuple):
    """The part of a job by which its time is told: so many images of all, `steps` an image.

    Examples:
        >>> from vision_attn.runs.progress import Pilot
        >>> Pilot(images=8, of=96, steps=5).told(40, 60.0)
        'about 12 minutes for 96 images, by the first 8'
        >>> Pilot(images=8, of=96, steps=5).told(39, 60.0)
        ''
    """

    images: int
    of: int
    steps: int

    def told(self, done: int, seconds: float) -> str:
        """Say how long all will take, once the pilot is done and not all; else nothing."""
        if not self.images * self.steps <= done < self.of * self.steps:
            return ""
        expected = seconds / done * self.of * self.steps
        amount, unit = (expected / 60, "minute") if expected >= 100 else (expected, "second")
        count = max(1, round(amount))
        span = f"{count} {unit}{'' if count == 1 else 's'}"
        return f"about {span} for {self.of} images, by the first {self.images}"


class Silent:
    """Show nothing; keep a line for each problem.

    Used as a context around one job. problems: what went wrong while the rest went on.

    Examples:
        >>> from vision_attn.runs.progress import Silent
        >>> with Silent() as progress:
        ...     progress.start("photos", total=2)
        ...     progress.advance(2)
        ...     progress.problem("c.png: no such file")
        >>> progress.problems
        ['c.png: no such file']
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def start(self, what: str, total: int, pilot: Pilot | None = None) -> None:
        """Begin a job of `total` steps.

        Args:
            pilot: By which the time of it may be told.
        """

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
        >>> from vision_attn.runs.progress import Bar
        >>> with Bar() as progress:  # shown on a terminal alone
        ...     progress.start("photos", total=2)
        ...     progress.advance(2)
    """

    def __init__(self) -> None:
        super().__init__()
        self.console = Terminal(stderr=True)
        self.bar: Progress | None = None

    def start(self, what: str, total: int, pilot: Pilot | None = None) -> None:
        self.stop()
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.add_task(printable(what), total=total)
            self.bar.start()

    def advance(self, steps: int = 1) -> None:
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0], steps)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
