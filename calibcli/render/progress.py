"""A progress bar on stderr, with the time left."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_open: list[Progress] = []


def close() -> None:
    """Take away what is still drawn, and show the cursor again: before a result or an error is printed."""
    while _open:
        _open.pop().stop()


def bar(title: str) -> Callable[[float, str], None]:
    """A callback `(fraction, text)` that draws a bar and closes it at fraction 1."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left  {task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,
    )
    _open.append(progress)
    task = progress.add_task(title, total=1.0, text="")

    def update(fraction: float, text: str = "") -> None:
        if not progress.live.is_started:
            progress.start()
        progress.update(task, completed=fraction, text=text)
        if fraction >= 1:
            progress.stop()

    return update
