#!/usr/bin/env python3
"""Makes docs/pictures/instants.svg: an instant, and what a snapshot and the log are made of it.

    docs/pictures/instants.py
"""

import pathlib

import map

DEPTH = {"thread": 0, "instant": 1, "view": 2, "log": 2, "image": 3, "file": 4}

WAYS = [
    ("An instant: a crash that did not happen", [
        ("thread", "marks the line, by the number of the interval,"),
        ("", "and stores"),
        ("instant", "raises the number;"),
        ("", "then every thread executes a fence"),
        ("thread", "is the first to mark a page with the new one:"),
        ("", "keeps what it holds, for those who need it"),
        ("file", "at the instant: what a kill would have left"),
    ]),
    ("A snapshot keeps the pages of an instant", [
        ("instant", "begins, and waits for running operations"),
        ("view", "maps the file a second time, privately;"),
        ("", "it is opened like a store that was killed"),
        ("thread", "is about to change a page:"),
        ("", "makes the kernel copy it for the view"),
        ("view", "a get, a walk, a backup read memory"),
    ]),
    ("A commit: one instant, one write, one sync", [
        ("thread", "has changed a key, and waits"),
        ("instant", "begins, for all who wait"),
        ("log", "gets the lines that were stored to since the"),
        ("", "last one: they are appended, and synced"),
        ("thread", "returns"),
        ("image", "at a checkpoint, gets what the log has;"),
        ("", "the log before is free"),
    ]),
    ("Loss of power, and the next opening", [
        ("file", "has pages of different ages: nobody reads it"),
        ("image", "every page is verified;"),
        ("", "one that was being written may be torn"),
        ("log", "whole lines, in order: they repair that too"),
        ("file", "made anew, as it was at the last commit;"),
        ("", "it is opened like a store that was killed"),
    ]),
]

# The colours of the other picture, for other names.
COLOURS = [("thread", "server"), ("instant", "evermap"), ("view", "cli"), ("log", "pm"),
           ("image", "index")]


def style():
    text = map.STYLE
    for name, like in COLOURS:
        text = text.replace(f".{like} {{", f".{name} {{")
    return text


def main():
    picture = map.Picture(DEPTH, style())
    for title, steps in WAYS:
        picture.way(title, steps)
    picture.write(pathlib.Path(__file__).resolve().parent / "instants.svg",
                  "An instant, and how a snapshot, a commit of the log and an opening after loss of "
                  "power use it")


if __name__ == "__main__":
    main()
