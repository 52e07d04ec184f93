"""A line chart as SVG text, without a plotting library."""

from __future__ import annotations

import math
from html import escape

COLOURS = ("#1f6fb4", "#d1495b", "#3a8f4d", "#8a5aa8", "#c77d1e", "#4c9aa8", "#7a6a58", "#444444")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 340, 64, 130, 28, 44

Points = list[tuple[float, ...]]  # (x, y) or (x, y, low, high)


def chart(lines: dict[str, Points], title: str, x_label: str, y_label: str, log: bool = False) -> str:
    """One line per name, with a band between low and high where the points have four numbers.

    Args:
        log: logarithmic axes; points at or below 0 are left out.
    """
    lines = {name: [p for p in points if not log or min(p) > 0] for name, points in lines.items()}
    kept = [point for points in lines.values() for point in points]
    if not kept:
        return f'<svg xmlns="http://www.w3.org/2000/svg"><text y="20">{escape(title)}: no points</text></svg>'
    scale = math.log10 if log else float
    x_axis = _Axis([scale(p[0]) for p in kept], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([scale(v) for p in kept for v in p[1:]], HEIGHT - BOTTOM, TOP)

    def place(x: float, y: float) -> str:
        return f"{x_axis(scale(x)):.1f},{y_axis(scale(y)):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for value in x_axis.ticks():
        x, shown = x_axis(value), _short(10**value if log else value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{shown}</text>')
    for value in y_axis.ticks():
        y, shown = y_axis(value), _short(10**value if log else value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for i, (name, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        if points and len(points[0]) == 4:
            band = [place(x, high) for x, _, _, high in points] + [place(x, low) for x, _, low, _ in points[::-1]]
            parts.append(f'<polygon points="{" ".join(band)}" fill="{colour}" fill-opacity="0.15"/>')
        path = " ".join(place(*point[:2]) for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(points) < 15:
            dots = (place(*point[:2]).split(",") for point in points)
            parts += [f'<circle cx="{x}" cy="{y}" r="2.6" fill="{colour}"/>' for x, y in dots]
        y = TOP + 8 + 16 * i
        parts.append(f'<path d="M{WIDTH - RIGHT + 8} {y}h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 28}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


class _Axis:
    """Maps values to pixels between `start` and `end`."""

    def __init__(self, values: list[float], start: float, end: float):
        self.low, self.high, self.start, self.end = min(values), max(values), start, end
        if self.high - self.low < 1e-12:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        raw = (self.high - self.low) / most
        size = 10 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    if value and abs(value) >= 10_000:
        return f"{value / 1000:g}k" if abs(value) < 1e6 else f"{value / 1e6:g}M"
    return f"{value:.3g}"
