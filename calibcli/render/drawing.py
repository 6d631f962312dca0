"""Figures in plain Unicode: reliability diagrams as bars in rows, others on a canvas."""

from __future__ import annotations

from calibcli.plots import Plot
from calibcli.render import canvas, sheet, stream
from calibcli.result import Result

MOST = 3  # diagrams in one table
BINS = 30  # rows of a reliability diagram; more bins are merged
LEGEND = ("█ accuracy", "░ overconfident by", "▒ underconfident by", "◆ mean confidence")
LEGEND_OF_CLASS = ("█ share of the class", "░ predicted too high by", "▒ too low by", "◆ mean probability")
FEW_LINES = 8  # of a curve among few numbers


def diagrams(result: Result, width: int, encoding: str = "utf-8", most: int = BINS) -> list[list[str]]:
    """The first figures of a result, one block of lines each; small multiples only where there is nothing else."""
    strips = {p.under: p for p in result.plots if p.under}
    panels = sorted((p for p in result.plots if not p.under), key=lambda p: bool(p.group))
    blocks: list[list[str]] = []
    for plot in panels:
        if (
            len(blocks) < MOST
            and not (plot.group and blocks)
            and (b := diagram(plot, strips.get(plot.name), width, most))
        ):
            blocks.append(b)
    if len(panels) > len(blocks):
        more = len(panels) - len(blocks)
        blocks.append([f"{more} more figure{'s' * (more > 1)} with -o FILE.png (or .svg, .pdf)"])
    return [[stream.fold(line, encoding) for line in block] for block in blocks]


def diagram(plot: Plot, strip: Plot | None, width: int, most: int = BINS) -> list[str]:
    """One panel; nothing when it has nothing to draw."""
    if plot.kind == "heat":
        body = canvas.heat(plot, width)
    elif sheet.bins(plot):
        body = reliability(plot, strip, width, most)
    elif plot.labels:
        body = canvas.rows(plot, width)
    else:
        body = canvas.xy(plot, width, canvas.HEIGHT if most >= BINS else FEW_LINES)
    return [stream.clean(plot.title or plot.name), *body] if body else []


def reliability(plot: Plot, strip: Plot | None, width: int, most_bins: int = BINS) -> list[str]:
    """A row per bin: edges, count, accuracy, mean confidence, gap, and a bar for accuracy with the gap beside it."""
    bins = _merged(sheet.bins(plot, strip), most_bins)
    room = max(10, width - 42)
    title = stream.clean(plot.ylabel or "accuracy")
    axis = "0" + title.center(room - 2) + "1" if len(title) <= room - 4 else "0" + " " * (room - 2) + "1"
    most = max((b.count or 0 for b in bins), default=0)
    top = title == "accuracy"  # else the probability of one class, and how often it was the label
    heads = ("acc.", "conf.") if top else ("share", "mean p")
    lines = [f"{'bin':<9} {'rows':>7}   {heads[0]:>6} {heads[1]:>6} {'gap':>6}  {axis}"]
    outside = False
    empty = 0
    for i, b in enumerate(bins):
        if b.accuracy is None or b.confidence is None:
            empty += 1
            if i + 1 == len(bins) or bins[i + 1].accuracy is not None:
                edges = f"{bins[i - empty + 1].left:.2f}–{b.right:.2f}"
                lines.append(f"{edges:<9} {0:>7}")
                empty = 0
            continue
        gap = b.confidence - b.accuracy
        count = "" if b.count is None else f"{b.count:.0f}" if b.count < 1e7 else f"{b.count:.1e}"
        flag = "*" if b.low is not None and b.high is not None and not b.low <= b.accuracy <= b.high else " "
        outside = outside or flag == "*"
        size = stream.eighth(b.count / most) if b.count and most else " "
        sign = "+" if gap >= 0 else "−"
        head = f"{b.left:.2f}–{b.right:.2f} {count:>7} {size} {b.accuracy:6.3f} {b.confidence:6.3f}"
        lines.append(f"{head} {sign}{abs(gap):.3f}{flag} {_bar(b.accuracy, b.confidence, room)}")
    lines += stream.wrapped(LEGEND if top else LEGEND_OF_CLASS, width)
    if outside:
        band = next((c.label for c in plot.curves if c.kind == "band" and c.role == "null"), "")
        what = heads[0] if not top else title
        lines.append(f"* {what} outside the band: {stream.clean(band) or 'what a calibrated model shows'}")
    return lines


def _merged(bins: list[sheet.Bin], most: int) -> list[sheet.Bin]:
    step = -(-len(bins) // most)
    return bins if step <= 1 else [sheet.merged(bins[i : i + step]) for i in range(0, len(bins), step)]


def _bar(accuracy: float, confidence: float, room: int) -> str:
    """Filled up to accuracy, shaded between accuracy and confidence, a mark at confidence."""
    lower, upper = sorted((accuracy, confidence))
    shade = "░" if confidence > accuracy else "▒"
    solid, end = (round(min(max(v, 0.0), 1.0) * (room - 1)) for v in (lower, upper))
    cells = ["█"] * solid + [shade] * (end - solid) + [" "] * (room - end)
    cells[end if confidence >= accuracy else solid] = "◆"
    return "".join(cells).rstrip()
