#!/usr/bin/env python3
"""Makes docs/pictures/churn.svg of what the example `churn` prints: churn.py churn.csv

Shows how many bytes file, log and image of a store with a log take while it is changed for long.
"""

import csv
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 60, 90, 20, 40
SERIES = [
    ("log_mib", "log", "#b35900"),
    ("file_mib", "file", "#1f6feb"),
    ("image_mib", "image", "#1a7f37"),
]


def main():
    with open(sys.argv[1], newline="") as source:
        rows = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(source)]
    seconds = rows[-1]["seconds"]
    most = max(row[name] for row in rows for name, _, _ in SERIES)
    step = next(step for step in (10, 20, 50, 100, 200, 500, 1000) if most / step <= 7)
    top = (int(most / step) + 1) * step

    def x(time):
        return LEFT + (WIDTH - LEFT - RIGHT) * time / seconds

    def y(mib):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * mib / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for mib in range(0, top + 1, step):
        out.append(f'<path d="M{LEFT} {y(mib):.1f}H{WIDTH - RIGHT}" stroke="#d8dee4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(mib) + 4:.1f}" text-anchor="end">{mib}</text>')
    for minutes in range(0, int(seconds / 60) + 1, 10):
        at = x(minutes * 60)
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - 20}" text-anchor="middle">{minutes}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">minutes</text>')
    out.append(f'<text x="8" y="{TOP - 6}">MiB</text>')
    for name, label, colour in SERIES:
        points = " ".join(f"{x(row['seconds']):.1f},{y(row[name]):.1f}" for row in rows)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        last = rows[-1][name]
        out.append(f'<text x="{WIDTH - RIGHT + 6}" y="{y(last) + 4:.1f}" fill="{colour}">{label}</text>')
    out.append("</svg>")
    (HERE / "churn.svg").write_text("\n".join(out) + "\n")
    last = rows[-1]
    print(f"{last['changes']:.0f} changes in {seconds / 60:.0f} minutes, {last['checkpoints']:.0f} checkpoints")
    for name, label, _ in SERIES:
        values = [row[name] for row in rows[len(rows) // 6 :]]
        print(f"{label}: {min(values):.0f} to {max(values):.0f} MiB after the first sixth")


if __name__ == "__main__":
    main()
