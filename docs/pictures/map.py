#!/usr/bin/env python3
"""Makes docs/pictures/map.svg: the crates as floors, and the ways of a get, a put and an opening.

    docs/pictures/map.py

The picture is narrow, so that its text can be read on a phone, and has colours for light and dark
pages. A floor is told apart by its name and its place, not by its colour alone.
"""

import html
import pathlib

WIDTH, MARGIN = 480, 16
FLOOR, GAP = 46, 14
STEP, CHIP, INDENT = 30, 62, 13
TEXT = MARGIN + 4 * INDENT + CHIP + 10

# Short name, crate, what it is for.
FLOORS = [
    ("cli", "evermap-cli", "the command: serve, get, load, check, backup, top"),
    ("server", "evermap-server", "memcached's protocols, sockets, TLS"),
    ("evermap", "evermap", "maps, records, batches, eviction, snapshots"),
    ("index", "evermap-index", "hash tables and trees: key to record"),
    ("pm", "evermap-pm", "words, media, the heap, epochs, instants, the log"),
    ("file", "the file", "mapped into memory; the kernel keeps its pages"),
]
DEPTH = {"server": 0, "evermap": 1, "index": 2, "pm": 3, "file": 4}

WAYS = [
    ("A get stores nothing and takes no lock", [
        ("server", "reads the socket; its keys become a batch"),
        ("evermap", "pins a guard: what it sees stays"),
        ("index", "hash, bucket, fingerprints, slot;"),
        ("", "the version of the bucket is the same"),
        ("file", "the record, copied by atomic loads"),
        ("evermap", "verifies its checksum"),
        ("server", "one write answers all that was read"),
    ]),
    ("A put becomes visible by one word", [
        ("server", "reads the request, and its value"),
        ("evermap", "a CAS id, a draft of the record"),
        ("pm", "a block of the heap"),
        ("file", "the record; nothing leads to it yet"),
        ("index", "locks the bucket of the key"),
        ("evermap", "decides, under that lock"),
        ("file", "one word of the bucket: the commit"),
        ("pm", "the old record: freed without readers"),
        ("server", "STORED"),
    ]),
    ("kill -9, and the next opening", [
        ("file", "keeps every word that was stored"),
        ("pm", "takes the lock, when the old process is gone"),
        ("pm", "same file, same run of the machine?"),
        ("pm", "stores the next generation"),
        ("index", "reads its root, and nothing else"),
        ("evermap", "completes a batch that was decided"),
        ("server", "answers; a segment is recovered"),
        ("", "when it is first accessed"),
        ("evermap", "sweeps, in the background: what no"),
        ("", "index leads to becomes free"),
    ]),
]

STYLE = """
  .page { fill: #ffffff } .title { fill: #1f2328; font-weight: 600 } .text { fill: #1f2328 }
  .note { fill: #59636e } .line { stroke: #59636e; fill: none } .head { fill: #59636e }
  .box { stroke: #59636e; stroke-opacity: .45 }
  .cli { fill: #f1eef6 } .server { fill: #fdebd3 } .evermap { fill: #dcefdc }
  .index { fill: #d9e8f7 } .pm { fill: #f7dfe6 } .file { fill: #e6e8eb }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171c } .title { fill: #ffffff } .text { fill: #d7dde4 }
    .note { fill: #9aa6b2 } .line { stroke: #9aa6b2 } .head { fill: #9aa6b2 }
    .box { stroke: #9aa6b2 }
    .cli { fill: #332d40 } .server { fill: #4a3418 } .evermap { fill: #1f3d24 }
    .index { fill: #1b3650 } .pm { fill: #4a2431 } .file { fill: #2d333b }
  }
"""


class Picture:
    """Text, boxes and arrows. `depth` says how far the chip of each kind is indented."""

    def __init__(self, depth, style=STYLE):
        self.parts, self.y = [], MARGIN
        self.depth, self.style = depth, style

    def text(self, x, y, text, kind="text", size=13, anchor="start"):
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" font-size="{size}" '
                          f'text-anchor="{anchor}">{html.escape(text)}</text>')

    def box(self, x, y, width, height, kind):
        self.parts.append(f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" '
                          f'height="{height}" rx="6"/>')

    def arrow(self, points):
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="line" d="{path}" marker-end="url(#head)"/>')

    def floors(self):
        self.text(MARGIN, self.y + 14, "The crates: each uses those below it", "title", 16)
        self.y += 28
        for row, (name, crate, purpose) in enumerate(FLOORS):
            self.box(MARGIN, self.y, WIDTH - 2 * MARGIN, FLOOR, name)
            self.text(MARGIN + 12, self.y + 19, crate, "title", 14)
            self.text(MARGIN + 12, self.y + 37, purpose)
            if row + 1 < len(FLOORS):
                middle = WIDTH - 60
                self.arrow([(middle, self.y + FLOOR), (middle, self.y + FLOOR + GAP - 2)])
            self.y += FLOOR + GAP
        self.text(MARGIN, self.y + 8, "evermap-lab, a program beside these, measures and crashes them.",
                  "note", 12)
        self.y += 34

    def way(self, title, steps):
        self.text(MARGIN, self.y + 14, title, "title", 16)
        self.y += 28
        last = None
        for floor, text in steps:
            if not floor:
                # Continues the text of the step before.
                self.y -= STEP - 18
            else:
                x, y = MARGIN + INDENT * self.depth[floor], self.y
                self.box(x, y, CHIP, 20, floor)
                self.text(x + CHIP / 2, y + 14.5, floor, "text", 12, "middle")
                if last is not None:
                    at = max(x, last[0]) + 10 if x != last[0] else x + CHIP / 2
                    self.arrow([(at, last[1] + 20), (at, y - 2)])
                last = (x, y)
            self.text(TEXT, self.y + 14.5, text)
            self.y += STEP
        self.y += 12

    def write(self, path, label):
        height = self.y
        body = "\n".join(self.parts)
        path.write_text(f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" \
width="{WIDTH}" height="{height}" role="img" aria-label="{label}">
<style>{self.style}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>
<g font-family="system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif">
{body}
</g>
</svg>
""")


def main():
    picture = Picture(DEPTH)
    picture.floors()
    for title, steps in WAYS:
        picture.way(title, steps)
    picture.write(pathlib.Path(__file__).resolve().parent / "map.svg",
                  "The crates of Evermap, and the ways of a get, of a put and of an opening after a "
                  "kill")


if __name__ == "__main__":
    main()
