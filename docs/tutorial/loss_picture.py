"""Draws what loss_curves.py has measured, as SVG and with nothing but text."""

from __future__ import annotations

import math

LEFT, WIDTH = 80, 700
UPPER, LOWER = (40, 230), (290, 490)
"""Top and bottom of the two panels, in pixels."""
LEAST = -17
"""Exponent at which deviations of 0 are drawn."""
COLOURS = ["#0b0b0b", "#d1495b", "#edae49", "#00798c", "#7b4fa3", "#8a8a8a"]

Points = list[tuple[float, float]]


def picture(
    curves: dict[str, list[float]], deviations: dict[str, list[float]], epoch: int, resumed_at: int
) -> str:
    """Draw the losses above, and below, on a logarithmic scale, how far each run is from the first one.

    Args:
        curves: loss at each step, by the run's name; at most six.
        deviations: relative deviation at each step.
        epoch: steps of an epoch.
        resumed_at: step at which one of them was resumed.
    """
    steps = len(next(iter(curves.values())))
    most = max(max(losses) for losses in curves.values())

    def across(step: float) -> float:
        return LEFT + WIDTH * step / (steps - 1)

    def loss_at(loss: float) -> float:
        return UPPER[1] - (UPPER[1] - UPPER[0]) * loss / most

    def deviation_at(deviation: float) -> float:
        exponent = max(LEAST, math.log10(deviation)) if deviation else LEAST
        return LOWER[1] + (LOWER[1] - LOWER[0]) * (exponent - LEAST) / LEAST

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 560" font-family="sans-serif" font-size="12">',
        '<rect width="800" height="560" fill="#ffffff"/>',
        text(LEFT, 22, "loss at each step (the curves lie on each other)"),
        text(LEFT, 272, f"relative deviation from the run on {next(iter(curves))} (0 is drawn at 1e{LEAST})"),
    ]
    for top, bottom in (UPPER, LOWER):
        parts.append(line([(LEFT, top), (LEFT, bottom), (LEFT + WIDTH, bottom)], "#555555"))
        for end in range(epoch, steps, epoch):
            parts.append(upright(across(end - 0.5), top, bottom, "2 4"))
        parts.append(upright(across(resumed_at - 0.5), top, bottom, "7 3"))
    parts.append(text(across(resumed_at - 0.5) + 5, UPPER[1] - 8, "resumed, on 4 ranks instead of 2"))
    parts += [text(LEFT - 8, loss_at(loss) + 4, f"{loss}", "end") for loss in range(math.floor(most) + 1)]
    parts += [
        text(LEFT - 8, deviation_at(10.0**exponent) + 4, f"1e{exponent}", "end")
        for exponent in range(-16, 1, 4)
    ]
    parts += [text(across(step), LOWER[1] + 16, f"{step}", "middle") for step in range(0, steps, 6)]
    for number, (name, losses) in enumerate(curves.items()):
        colour = COLOURS[number]
        # Each is narrower than the one beneath, so that all of them are seen.
        width = max(1.0, 9 - 2.2 * number)
        parts.append(line([(across(step), loss_at(loss)) for step, loss in enumerate(losses)], colour, width))
        if number:
            points = [(across(step), deviation_at(each)) for step, each in enumerate(deviations[name])]
            parts.append(line(points, colour, 1.5))
        left = LEFT + 112 * number
        parts += [line([(left, 530), (left + 18, 530)], colour, 4), text(left + 22, 534, name)]
    return "\n".join([*parts, "</svg>", ""])


def line(points: Points, colour: str, width: float = 1.0) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:.1f}"/>'


def upright(x: float, top: float, bottom: float, dashes: str) -> str:
    return f'<path d="M{x:.1f} {top}V{bottom}" stroke="#999999" stroke-dasharray="{dashes}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
