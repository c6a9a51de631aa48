"""Small charts as SVG text. Colours are CSS variables, so one picture serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH = 440
FONT = 12


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    """A CSS colour."""
    dash: str = ""
    """SVG dash pattern; solid where empty."""
    low: Sequence[float | None] = ()
    """Lower ends of the intervals; none where empty."""
    high: Sequence[float | None] = ()
    hollow: bool = False
    """Hollow points and a thin line: somebody else's numbers."""
    step: bool = False
    """A staircase instead of straight lines."""
    points: bool = True


@dataclass(frozen=True)
class Span:
    """One row of a span chart: from the clean value to the worst one, the published ones hollow beside."""

    label: str
    colour: str
    clean: float | None
    worst: float | None
    clean_low: float | None = None
    clean_high: float | None = None
    worst_low: float | None = None
    worst_high: float | None = None
    paper_clean: float | None = None
    paper_worst: float | None = None
    worst_name: str = ""


@dataclass(frozen=True)
class Bar:
    """One pair of bars: clean and worst."""

    label: str
    colour: str
    clean: float | None
    worst: float | None
    paper_clean: float | None = None
    paper_worst: float | None = None


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover the range."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """Short text of a value."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.4g}k"
    return f"{value:.4g}" if size >= 0.001 else f"{value:.1e}"


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def _range(values: Sequence[float], *, zero: bool = False) -> tuple[float, float]:
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    pad = (high - low) * 0.06 or max(abs(high) * 0.1, 0.5)
    return (low if zero and low == 0.0 else low - pad), high + pad


def _svg(height: float, body: Sequence[str], title: str, width: float = WIDTH) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title, True)}" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _dot(x: float, y: float, colour: str, tip: str, *, hollow: bool = False, radius: float = 3.5) -> str:
    fill = "var(--card)" if hollow else colour
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{colour}" stroke-width="1.5">'
        f"<title>{escape(tip)}</title></circle>"
    )


def line_chart(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    zero: bool = False,
    reach: Sequence[float] = (),
) -> str:
    """Lines with points and intervals; the legend is the caller's; the y axis shows `reach` too."""
    height, left, right, top, bottom = 270.0, 52.0, 12.0, 12.0, 40.0
    xs = [v for s in series for v in s.x]
    ys = [v for s in series for v in s.y]
    ends = [v for s in series for v in (*s.low, *s.high) if v is not None]
    across = _Scale(min(xs), max(xs), left + 6, WIDTH - right - 6)
    low, high = _range([*ys, *ends, *reach], zero=zero)
    up = _Scale(low, high, height - bottom, top)
    body = [_line(left, up(t), WIDTH - right, up(t), "grid") for t in ticks(low, high)]
    body += [_text(left - 6, up(t) + 4, number(t), anchor="end") for t in ticks(low, high)]
    body += [_text(across(t), height - bottom + 16, number(t)) for t in ticks(min(xs), max(xs))]
    body.append(_text((left + WIDTH - right) / 2, height - 6, x_label, kind="axis"))
    body.append(
        f'<text class="axis" transform="translate(12 {(top + height - bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    for one in series:
        body += _series(one, across, up)
    return _svg(height, body, f"{y_label} over {x_label}")


def _series(one: Series, across: _Scale, up: _Scale) -> list[str]:
    points = [(across(x), up(y)) for x, y in zip(one.x, one.y, strict=True)]
    body = []
    if one.low and one.high:
        for x, low, high in zip(one.x, one.low, one.high, strict=True):
            if low is not None and high is not None:
                body.append(
                    f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{up(low):.1f}" y2="{up(high):.1f}" '
                    f'stroke="{one.colour}" stroke-width="5" stroke-opacity="0.22"/>'
                )
    if one.step:
        stairs = points[:1]
        for (_, before), (x, y) in pairwise(points):
            stairs += [(x, before), (x, y)]
        path = stairs
    else:
        path = points
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
    dash = f' stroke-dasharray="{one.dash}"' if one.dash else ""
    width = 1.2 if one.hollow else 2.0
    body.append(
        f'<polyline points="{coordinates}" fill="none" stroke="{one.colour}" stroke-width="{width}"{dash}>'
        f"<title>{escape(one.label)}</title></polyline>"
    )
    if one.points:
        body += [
            _dot(
                px, py, one.colour, f"{one.label}: {number(y)} at {number(x)}", hollow=one.hollow, radius=3.0
            )
            for (px, py), x, y in zip(points, one.x, one.y, strict=True)
        ]
    return body


def span_chart(spans: Sequence[Span], x_label: str) -> str:
    """For each method a bar from its worst to its clean value; published values as hollow marks above."""
    row, left, right, top, bottom = 30.0, 122.0, 14.0, 8.0, 40.0
    height = top + row * len(spans) + bottom
    values = [
        v
        for s in spans
        for v in (
            s.clean, s.worst, s.clean_low, s.clean_high, s.worst_low, s.worst_high,
            s.paper_clean, s.paper_worst,
        )
        if v is not None
    ]  # fmt: skip
    low, high = _range(values, zero=True)
    across = _Scale(low, high, left, WIDTH - right)
    body = [_line(across(t), top, across(t), height - bottom, "grid") for t in ticks(low, high)]
    body += [_text(across(t), height - bottom + 16, number(t)) for t in ticks(low, high)]
    body.append(_text((left + WIDTH - right) / 2, height - 6, x_label, kind="axis"))
    for index, span in enumerate(spans):
        body += _span(span, top + row * (index + 0.5), left, across)
    return _svg(height, body, f"clean and worst {x_label} of each method")


def _span(span: Span, y: float, left: float, across: _Scale) -> list[str]:
    body = [_text(left - 8, y + 4, span.label, anchor="end", kind="name")]
    if span.paper_clean is not None and span.paper_worst is not None:
        body.append(
            f'<line x1="{across(span.paper_worst):.1f}" x2="{across(span.paper_clean):.1f}" y1="{y - 8:.1f}" '
            f'y2="{y - 8:.1f}" stroke="{span.colour}" stroke-width="1" stroke-dasharray="2 3"/>'
        )
    for value, what in ((span.paper_clean, "clean"), (span.paper_worst, "worst")):
        if value is not None:
            tip = f"{span.label}, {what}, published: {number(value)}"
            body.append(_dot(across(value), y - 8, span.colour, tip, hollow=True, radius=2.8))
    if span.clean is not None and span.worst is not None:
        body.append(
            f'<line x1="{across(span.worst):.1f}" x2="{across(span.clean):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{span.colour}" stroke-width="5" stroke-opacity="0.35" stroke-linecap="round"/>'
        )
    for value, low, high, what, radius in (
        (span.clean, span.clean_low, span.clean_high, "clean", 5.0),
        (span.worst, span.worst_low, span.worst_high, f"worst ({span.worst_name})", 4.0),
    ):
        if value is None:
            continue
        interval = f" [{number(low)}, {number(high)}]" if low is not None and high is not None else ""
        if low is not None and high is not None:
            body.append(
                f'<line x1="{across(low):.1f}" x2="{across(high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{span.colour}" stroke-width="1.4"/>'
            )
        tip = f"{span.label}, {what}: {number(value)}{interval}"
        body.append(_dot(across(value), y, span.colour, tip, hollow=what != "clean", radius=radius))
    return body


def bar_chart(bars: Sequence[Bar], y_label: str) -> str:
    """Pairs of bars, clean and worst; published values as ticks across them."""
    height, left, right, top, bottom = 300.0, 58.0, 8.0, 12.0, 86.0
    whole = max(WIDTH, left + right + 46.0 * len(bars))
    up = _Scale(0.0, 1.08, height - bottom, top)
    body = [_line(left, up(t), whole - right, up(t), "grid") for t in ticks(0.0, 1.0)]
    body += [_text(left - 6, up(t) + 4, number(t), anchor="end") for t in ticks(0.0, 1.0)]
    slot = (whole - left - right) / max(1, len(bars))
    width = min(16.0, slot * 0.38)
    for index, bar in enumerate(bars):
        middle = left + slot * (index + 0.5)
        for value, paper, start, shade, what in (
            (bar.clean, bar.paper_clean, middle - width - 0.5, "0.95", "clean"),
            (bar.worst, bar.paper_worst, middle + 0.5, "0.45", "worst"),
        ):
            if value is not None:
                body.append(
                    f'<rect x="{start:.1f}" y="{up(max(0.0, value)):.1f}" width="{width:.1f}" '
                    f'height="{max(0.0, up(0.0) - up(max(0.0, value))):.1f}" fill="{bar.colour}" '
                    f'fill-opacity="{shade}" rx="1.5"><title>{escape(bar.label)}, {what}: {value:.2f}</title>'
                    "</rect>"
                )
            if paper is not None:
                body.append(
                    f'<line class="paper" x1="{start - 1:.1f}" x2="{start + width + 1:.1f}" '
                    f'y1="{up(paper):.1f}" y2="{up(paper):.1f}">'
                    f"<title>{escape(bar.label)}, {what}, published: {paper:.2f}</title></line>"
                )
        body.append(
            f'<text class="tick" transform="translate({middle + 3:.1f} {height - bottom + 10:.1f}) '
            f'rotate(-42)" text-anchor="end">{escape(bar.label)}</text>'
        )
    body.append(
        f'<text class="axis" transform="translate(12 {(top + height - bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return _svg(height, body, y_label, whole)


def legend(entries: Sequence[tuple[str, str, str, bool]]) -> str:
    """(label, colour, dash, hollow) as small keys in HTML."""
    keys = []
    for label, colour, dash, hollow in entries:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        fill = "var(--card)" if hollow else colour
        keys.append(
            '<span class="key"><svg viewBox="0 0 24 10" width="24" height="10" aria-hidden="true">'
            f'<line x1="1" x2="23" y1="5" y2="5" stroke="{colour}" stroke-width="2"{dashes}/>'
            f'<circle cx="12" cy="5" r="3" fill="{fill}" stroke="{colour}"/></svg>{escape(label)}</span>'
        )
    return f'<div class="legend">{"".join(keys)}</div>'


STANDALONE = """<style>
svg{--card:#fff;--ink:#1c2330;--soft:#5b6573;--line:#e3e6ea;font-family:system-ui,sans-serif;background:var(--card)}
@media (prefers-color-scheme:dark){svg{--card:#0f141b;--ink:#e6eaf0;--soft:#9aa5b4;--line:#27303b}}
.grid{stroke:var(--line)}.tick,.name{fill:var(--soft);font-size:11px}.name{fill:var(--ink)}
.axis{fill:var(--soft);font-size:12px}.paper{stroke:var(--ink);stroke-width:1.6}
</style>"""


def standalone(chart: str) -> str:
    """A chart as a file of its own, for a README."""
    head, _, rest = chart.partition(">")
    return f"{head}>{STANDALONE}{rest}\n"
