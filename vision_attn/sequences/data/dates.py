"""Dates as people write them, and in ISO form: text to text.

A source is one date, or an interval of two; its target is the ISO 8601 form, with a slash between
the two ends of an interval:

    Tuesday, March 3rd, 1998                    ->  1998-03-03
    from 14.7.99 to the 5th of January 2004     ->  1999-07-14/2004-01-05

A dot stands between day and month in this order, a slash between month and day, a hyphen after
year and month. Two digits are a year from 1950 to 2049.
"""

import string
from datetime import date, timedelta

import numpy as np

from vision_attn.data.draws import bits
from vision_attn.sequences.data.pairs import ExampleSource, Pairs, Split, Vocabulary

__all__ = ["ISO", "WRITTEN", "Dates"]

FIRST, DAYS = date(1950, 1, 1), 36_525  # up to the end of 2049
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

FORMS = (
    "{month} {day}, {year}",
    "{month} {nth}, {year}",
    "{day} {month} {year}",
    "the {nth} of {month} {year}",
    "the {nth} of {month}, '{short}",
    "{weekday}, {month} {nth}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday}, the {nth} of {month} {year}",
    "{mon} {day}, {year}",
    "{day} {mon} '{short}",
    "{day:02}-{mon}-{year}",
    "{m}/{day}/{year}",
    "{m}/{day}/{short}",
    "{m:02}/{day:02}/{year}",
    "{day}.{m}.{year}",
    "{day}.{m}.{short}",
    "{year}-{m:02}-{day:02}",
)
INTERVALS = ("from {} to {}", "{} to {}", "between {} and {}", "{} until {}")

WRITTEN = Vocabulary(sorted({*string.ascii_letters, *string.digits, *" ,.'/-"}))
ISO = Vocabulary([*string.digits, "-", "/"])


class Dates(ExampleSource):
    """Dates in 17 forms, and intervals of two, to write in ISO form; 6 to 87 characters.

    Example i of a split is a function of (seed, split, i) alone.

    Args:
        train: How many training examples.
        val: How many validation examples.
        test: How many test examples.
        intervals: The share of the sources that are two dates.
        seed: Another seed, other examples.

    Raises:
        ValueError: A number is below 1, or `intervals` is not from 0 to 1.

    Examples:
        >>> from vision_attn.sequences import Dates
        >>> dates = Dates(train=1, val=1, test=1)
        >>> [(source, target)] = dates.texts("test", 0, 1)
        >>> len(target) >= len("2026-11-24")
        True
    """

    def __init__(
        self,
        train: int = 50_000,
        val: int = 1_000,
        test: int = 2_000,
        intervals: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(train, val, test, seed)
        if not 0 <= intervals <= 1:
            raise ValueError(f"intervals must be a share from 0 to 1, got {intervals}")
        self.intervals = intervals

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        return {"source": WRITTEN, "target": ISO}

    def examples(self, split: Split) -> Pairs:
        sources, targets = zip(*self.texts(split, 0, self.counts[split]), strict=True)
        return Pairs(WRITTEN.encode(sources), ISO.encode(targets, stop=True))

    def texts(self, split: Split, start: int, stop: int) -> list[tuple[str, str]]:
        """Write source and target of some examples.

        Args:
            split: Which split.
            start: The number of the first.
            stop: One more than the number of the last.
        """
        words = bits(self.key(split), np.arange(start, stop), 6) >> np.uint64(16)
        return [self._pair([int(word) for word in row]) for row in words]

    def _pair(self, words: list[int]) -> tuple[str, str]:
        """What six random words of 48 bits say."""
        interval, kind, *rest = words
        ends = [FIRST + timedelta(days=day % DAYS) for day in rest[:2]]
        forms = [FORMS[form % len(FORMS)] for form in rest[2:]]
        if interval >= self.intervals * 2**48:
            return written(ends[0], forms[0]), ends[0].isoformat()
        ends.sort()
        both = [written(day, form) for day, form in zip(ends, forms, strict=True)]
        target = "/".join(day.isoformat() for day in ends)
        return INTERVALS[kind % len(INTERVALS)].format(*both), target


def written(day: date, form: str) -> str:
    """A date in one of FORMS."""
    month = MONTHS[day.month - 1]
    return form.format(
        day=day.day,
        nth=f"{day.day}{suffix(day.day)}",
        m=day.month,
        month=month,
        mon=month[:3],
        year=day.year,
        short=f"{day.year % 100:02}",
        weekday=WEEKDAYS[day.weekday()],
    )


def suffix(number: int) -> str:
    """st, nd, rd or th."""
    teens = 10 < number % 100 < 14
    return "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
