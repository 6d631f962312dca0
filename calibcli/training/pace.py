"""What a run says of itself on the way: the loss so far in this epoch, and how fast rows go by."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Pace:
    """Rows since the run began, or went on."""

    began: float = field(default_factory=time.monotonic)
    rows: int = 0

    def said(self, epoch: str, loss: float | None, rows: int) -> str:
        """`epoch 3 of 20, loss 0.412, 5,300 rows a second`, with `rows` more.

        >>> import time
        >>> Pace(time.monotonic() - 2).said("epoch 1 of 2", 0.4123, 200)
        'epoch 1 of 2, loss 0.412, 100 rows a second'
        """
        self.rows += rows
        spent = time.monotonic() - self.began
        parts = [epoch, "" if loss is None else f"loss {loss:.3g}"]
        parts.append(f"{self.rows / spent:,.0f} rows a second" if spent > 0 else "")
        return ", ".join(filter(None, parts))
