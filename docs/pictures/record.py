#!/usr/bin/env python3
"""Makes docs/pictures/restart.svg, the picture in README.md.

It really runs the program: it loads a million records, serves them, kills the server with SIGKILL,
starts it again, and asks it for what was stored. What the commands print is drawn as text; nothing
is edited but the length of lines.

    cargo build --release
    docs/pictures/record.py

Needs Python 3.8, and the port 11211 or the one after --port.
"""

import argparse
import datetime
import html
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COLUMNS = 92
RECORDS = 1_000_000

# Sizes in pixels, and colours that have enough contrast on the background.
FONT, CHARACTER, LINE, MARGIN, BAR = 14, 8.43, 20, 18, 34
COLOURS = {
    "background": "#14171c",
    "bar": "#232830",
    "output": "#c9d1d9",
    "command": "#ffffff",
    "prompt": "#7ee787",
    "comment": "#8b98a5",
}


class Recording:
    """Runs commands in a directory, and keeps what they printed."""

    def __init__(self, directory, evermap, port):
        self.directory, self.evermap, self.port = directory, evermap, port
        self.lines = []
        self.server = None

    def comment(self, text):
        if self.lines:
            self.lines.append(("output", ""))
        self.lines.append(("comment", "# " + text))

    def command(self, shown):
        self.lines.append(("command", shown))

    def output(self, text):
        for line in text.rstrip("\n").split("\n"):
            self.lines += [("output", part) for part in textwrap.wrap(line, COLUMNS) or [""]]

    def run(self, shown):
        """Runs a command line to its end, and records it with its output."""
        self.command(shown)
        words = [self.evermap if word == "evermap" else word for word in shown.split()]
        environment = dict(os.environ, EVERMAP_ADDRESS=f"127.0.0.1:{self.port}")
        done = subprocess.run(
            words, cwd=self.directory, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            sys.exit(f"{shown}: exit code {done.returncode}\n{done.stdout}")
        if done.stdout:
            self.output(done.stdout)

    def serve(self, shown):
        """Starts a server in the background, and records its first line."""
        self.command(shown + " &")
        words = [self.evermap, *shown.split()[1:]]
        if self.port != 11211:
            words += ["--listen", f"127.0.0.1:{self.port}"]
        self.server = subprocess.Popen(
            words, cwd=self.directory, text=True, stdout=subprocess.PIPE
        )
        ready = self.server.stdout.readline()
        if not ready:
            sys.exit(f"{shown}: exit code {self.server.wait()}")
        self.output(ready)

    def kill(self, shown, number):
        self.command(shown)
        self.server.send_signal(number)
        code = self.server.wait()
        if number == signal.SIGTERM and code != 0:
            sys.exit(f"the server returned {code} after SIGTERM")
        self.server = None


def tell(recording):
    """The story of the picture."""
    recording.comment(f"{RECORDS:,} records, served with the memcached protocol")
    recording.run("evermap load items.map items.tsv")
    recording.serve("evermap serve --path items.map")
    recording.run("python3 ask.py set greeting hello")
    recording.comment("no warning, no clean-up")
    recording.kill("kill -9 $!", signal.SIGKILL)
    recording.comment("the next server is warm immediately")
    recording.serve("evermap serve --path items.map")
    recording.run("python3 ask.py get greeting")
    recording.run("python3 ask.py get user:314159")
    recording.comment("and nothing is damaged")
    recording.kill("kill $!; wait", signal.SIGTERM)
    recording.run("evermap check --deep items.map")


def draw(lines, title):
    width = round(2 * MARGIN + (COLUMNS + 2) * CHARACTER)
    height = BAR + 2 * MARGIN + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{html.escape(title)}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{COLOURS["background"]}"/>',
        f'<path d="M0 {BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{BAR}z" fill="{COLOURS["bar"]}"/>',
        "<g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" "
        f'font-size="{FONT}" xml:space="preserve">',
        f'<text x="{MARGIN}" y="{BAR / 2 + 5:.0f}" fill="{COLOURS["comment"]}">{html.escape(title)}</text>',
    ]
    y = BAR + MARGIN + FONT
    for kind, text in lines:
        if kind == "command":
            parts.append(
                f'<text x="{MARGIN}" y="{y}"><tspan fill="{COLOURS["prompt"]}">$ </tspan>'
                f'<tspan fill="{COLOURS["command"]}" font-weight="600">{html.escape(text)}</tspan></text>'
            )
        elif text:
            parts.append(
                f'<text x="{MARGIN}" y="{y}" fill="{COLOURS[kind]}">{html.escape(text)}</text>'
            )
        y += LINE
    return "\n".join([*parts, "</g>", "</svg>", ""])


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--evermap", default=ROOT / "target/release/evermap", type=pathlib.Path)
    arguments.add_argument("--port", default=11211, type=int)
    arguments.add_argument("--output", default=HERE / "restart.svg", type=pathlib.Path)
    given = arguments.parse_args()
    evermap = str(given.evermap.resolve())
    version = subprocess.run([evermap, "--version"], text=True, capture_output=True, check=True)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="evermap-picture-", dir=memory) as directory:
        shutil.copy(HERE / "ask.py", directory)
        with open(os.path.join(directory, "items.tsv"), "w") as items:
            for number in range(RECORDS):
                items.write(f"user:{number}\t{{\"id\": {number}, \"visits\": {number % 97}}}\n")
        recording = Recording(directory, evermap, given.port)
        try:
            tell(recording)
        finally:
            if recording.server:
                recording.server.kill()
                recording.server.wait()
    title = f"{version.stdout.strip()}, recorded on {datetime.date.today()}"
    given.output.write_text(draw(recording.lines, title))
    for kind, text in recording.lines:
        print(("$ " if kind == "command" else "") + text)


main()
