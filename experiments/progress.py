"""Progress of a long sweep, with the time that is left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm.auto import tqdm


class Progress:
    """A bar on a terminal; elsewhere a line every half minute.

    :param total: units of work.
    :param title: in front of each line.
    """

    def __init__(self, total: float, title: str, file: TextIO | None = None, every: float = 30.0) -> None:
        self.total, self.title, self.every = total, title, every
        self.file = file or sys.stderr
        self.done = 0.0
        self._start = self._last = time.monotonic()
        self._bar = tqdm(
            total=round(total),
            desc=title,
            file=self.file,
            disable=None,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left",
        )

    def advance(self, units: float, label: str) -> None:
        """Report that much more work as done."""
        self.done += units
        now = time.monotonic()
        if not self._bar.disable:
            self._bar.set_description(f"{self.title}, {label}", refresh=False)
            self._bar.update(min(round(self.done), self._bar.total) - self._bar.n)
        elif now - self._last >= self.every or self.done >= self.total:
            self._last = now
            left = (now - self._start) * (self.total / self.done - 1) if self.done else float("nan")
            self.say(f"{self.title}, {label}: {100 * self.done / self.total:.0f}%, {duration(left)} left")

    def say(self, text: str) -> None:
        """Write a line without spoiling the bar."""
        tqdm.write(text, file=self.file)
        self.file.flush()

    def close(self) -> None:
        self._bar.close()


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds != seconds:
        return "unknown time"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
