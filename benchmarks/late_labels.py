"""False alarms of `calib watch` where the delay of a label depends on the outcome.

    python benchmarks/late_labels.py --short   # 15 seconds
    python benchmarks/late_labels.py           # 200 runs of each, and the table of docs/measured/watch.md; ten minutes

A model of two classes is calibrated: P is uniform between .02 and .3, and the event happens with probability P. It gets
60 rows a night for 40 nights. Events are labelled after 1 day, as a complaint is, and other rows after 8. The rule is
kept, so each alarm is false. By prediction: `update` without labels, then `labels_for` as they come. By label: rows are
counted in the night in which their label comes. Share: by prediction, where 1 % of the rows never get a label, with
`labelled=.95`. Then the same with a drift: from night 20 on the event is twice as frequent. Its days to the alarm are
those of the calendar, and 8 of them are the wait for labels.
"""

from __future__ import annotations

import datetime
import statistics

import numpy as np
from _harness import arguments, head, machine, row

import calibcli
from calibcli.core.statistics import clopper_pearson

NIGHTS, ROWS, EARLY, LATE, DRIFT = 40, 60, 1, 8, 20
LIMITS = {"ece": 0.05}
WAYS = ("by prediction", "by label", "share")


def date(i: int) -> str:
    return (datetime.date(2026, 1, 1) + datetime.timedelta(i)).isoformat()


def alarm(way: str, seed: int, drift: bool = False) -> int | None:
    """The day of the first alarm, or None."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.02, 0.3, (NIGHTS, ROWS))
    factor = np.where(np.arange(NIGHTS) >= DRIFT, 2.0 if drift else 1.0, 1.0)[:, None]
    y = (rng.random((NIGHTS, ROWS)) < p * factor).astype(int)
    never = rng.random((NIGHTS, ROWS)) < (0.01 if way == "share" else 0.0)
    watch = calibcli.Watch(max=LIMITS, labelled=0.95 if way == "share" else 1.0)
    for today in range(NIGHTS + LATE):
        found = None
        if today < NIGHTS and way != "by label":
            ids = [f"{today}-{j}" for j in range(ROWS)]
            watch.update(p[today], ids=ids, kind="probabilities", night=date(today))
        days = [(today - EARLY, 1), (today - LATE, 0)]
        chosen = [(d, j) for d, event in days if 0 <= d < NIGHTS for j in range(ROWS) if y[d, j] == event]
        came = [at for at in chosen if not never[at]]
        if came and way == "by label":
            at = tuple(np.array(came).T)
            found = watch.update(p[at], y[at], kind="probabilities", night=date(today))
        elif came:
            found = watch.labels_for([f"{d}-{j}" for d, j in came], [int(y[at]) for at in came])
        if found is not None and found.verdict == "fail":
            return today
    return None


def main() -> None:
    given = arguments(__doc__, runs=200, short=False)
    runs = 5 if given.short else given.runs
    print(f"{datetime.date.today()}, {machine('scipy')}\n")
    print(
        head(
            "rows counted", "false alarms", "99.9 % upper bound", "day of the first, median", "days from a drift to it"
        )
    )
    for way in WAYS:
        days = [alarm(way, seed) for seed in range(runs)]
        early = [day for day in days if day is not None]
        drifts = [] if way == "by label" else [alarm(way, 10**6 + seed, drift=True) for seed in range(runs // 4 + 1)]
        late = [NIGHTS + LATE if day is None else day - DRIFT for day in drifts]
        bound = clopper_pearson(len(early), runs, 0.001)[1]
        first = f"{statistics.median(early):.0f}" if early else "-"
        share = f"{len(early)} of {runs}"
        print(row(way, share, f"{bound:.1%}", first, f"{statistics.median(late):.0f}" if late else "-"), flush=True)


if __name__ == "__main__":
    main()
