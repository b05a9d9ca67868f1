#!/usr/bin/env python3
"""Makes one small mistake at a time in a copy of the source, and checks that the tests notice it.

    tests/source-edits/run.py [--edits 40] [--seed 1] [--minutes 3] [--only-for MINUTES]
    tests/source-edits/run.py --again
    tests/source-edits/run.py --table

Each edit removes one flush, removes one fence, swaps two neighbouring persistent stores, drops one step of a recovery,
or lets one check of a version pass. Which ones is drawn by the seed from all places where that is possible in Dash-EH,
the heap, the pool and the region.

Works in a copy of the tree, `target/source-edits/tree`, with a target directory of its own, and never changes the tree
itself. Writes the result of each edit as a line of `target/source-edits/results-SEED.jsonl`, so that a run that was
stopped can be continued. An edit that does not compile does not count, and the next one takes its place. `--again`
tries those that were not noticed once more, on a new copy of the tree, after tests were added for them.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PM = "crates/evermap-pm/src/"
INDEX = "crates/evermap-index/src/hash/"
FILES = ["region/mod.rs", "region/superblock.rs", "region/table.rs", "pool.rs", "heap/mod.rs", "heap/allocate.rs",
         "heap/magazine.rs", "heap/units.rs", "heap/sweep.rs", "heap/snapshot.rs"]
RECOVERING = re.compile(r"recover|rebuild|settle|finish|sweep|take_over|save_snapshot|load_snapshot|mark|open")

# The short campaigns on Dash-EH, those that find most first.
CAMPAIGN = """//! The short campaigns on one index.

use evermap_index::crash_campaign;
use evermap_index::testkit::tiny::DashEh;

crash_campaign!(dash_eh, DashEh);
"""
# The conformance kit on it, which knows threads that are held up.
KIT = """//! The conformance kit on one index.

use evermap_index::conformance;
use evermap_index::testkit::tiny::DashEh;

conformance!(dash_eh, DashEh);
"""
# A part of the index's tests, without the other indexes.
PART = """//! The tests of one part.

#[path = "{0}/{1}/mod.rs"]
mod {1};
"""
WRITTEN = {
    "evermap-index/tests/edited": CAMPAIGN,
    "evermap-index/tests/edited_kit": KIT,
    "evermap-index/tests/edited_dash": PART.format("index", "dash"),
    "evermap-papers/tests/edited_cceh": PART.format("papers", "cceh"),
}
TESTS = [
    ["-p", "evermap-index", "--test", "edited"],
    # Dash, and directories.
    ["-p", "evermap-index", "--lib", "hash::d"],
    ["-p", "evermap-pm", "--lib"],
    ["-p", "evermap-index", "--test", "edited_dash"],
    ["-p", "evermap-index", "--test", "edited_kit"],
]
# Only for edits of the region and the heap: it takes long.
FILES_TESTS = ["-p", "evermap-pm", "--test", "mapped"]
# Only for edits of directories, which CCEH uses too, and some of it alone.
DIRECTORY_TESTS = ["-p", "evermap-papers", "--test", "edited_cceh"]


def sources(tree):
    """The files that edits are drawn from."""
    found = [PM + name for name in FILES] + [INDEX + "directory.rs", "crates/evermap-index/src/root.rs"]
    for part in ["dash", "segmented"]:
        for folder, _, names in sorted(os.walk(os.path.join(tree, INDEX, part))):
            found += [os.path.relpath(os.path.join(folder, n), tree) for n in sorted(names)]
    is_product = lambda f: f.endswith(".rs") and os.path.basename(f) != "tests.rs"
    return [f for f in found if is_product(f) and os.path.exists(os.path.join(tree, f))]


def statements(lines):
    """Statements that stand alone: (first line, last line, text), with the function that they are in."""
    function, at = "", 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("#[cfg(test)]"):
            return
        named = re.match(r"\s*(?:pub(?:\([a-z]+\))? )?(?:const )?(?:unsafe )?fn (\w+)", line)
        if named:
            function = named[1]
        # What only a planted mistake does is no part of the program.
        planted = any(re.search(r"if [\w.()]*mutant\(", above) for above in lines[max(at - 2, 0) : at])
        begins = re.match(r"\s+(?:self|m|region|table|segment|bucket|\w+)\.[\w.]+\(|\s+\w+\(", line)
        if begins and not named and not planted:
            end = at
            while end < at + 6 and end + 1 < len(lines) and not lines[end].rstrip().endswith((";", "{", "}", ",")):
                end += 1
            text = " ".join(part.strip() for part in lines[at : end + 1])
            if text.endswith(";") and text.count("(") == text.count(")"):
                yield at, end, text, function
                at = end
        at += 1


def place_of(store):
    """The structure that a store writes to. Swapping two stores to one line of memory changes nothing."""
    place = re.sub(r"\[[^\]]*\]$", "", store.split(",")[0])
    return re.sub(r"\.\w+$", "", place)


def candidates(tree):
    """All edits: by kind, a list of (file, first line, last line, new lines)."""
    kinds = {"flush": [], "fence": [], "swap": [], "recovery": [], "version": []}
    for name in sources(tree):
        with open(os.path.join(tree, name)) as file:
            lines = file.read().split("\n")
        before = None
        for first, last, text, function in statements(lines):
            indent = re.match(r"\s*", lines[first])[0]
            persist = re.fullmatch(r"(.*)\.persist\((.*)\);", text)
            if persist:
                kinds["flush"].append((name, first, last, [f"{indent}{persist[1]}.fence();"]))
                kinds["fence"].append((name, first, last, [f"{indent}{persist[1]}.flush({persist[2]});"]))
            elif re.search(r"\.flush(_bytes)?\(", text):
                kinds["flush"].append((name, first, last, []))
            elif re.search(r"\.fence\(\);$", text):
                kinds["fence"].append((name, first, last, []))
            stores = re.search(r"\.(store|write_bytes)\(", text) and "transient" not in text
            if stores:
                if before and before[3] == function and first - before[1] <= 4:
                    between = lines[before[1] + 1 : first]
                    beside = before[4] == place_of(text) and not any(";" in line for line in between)
                    if not beside and not any("}" in line or "{" in line for line in between):
                        new = lines[first : last + 1] + between + lines[before[0] : before[1] + 1]
                        kinds["swap"].append((name, before[0], last, new))
                before = (first, last, text, function, place_of(text))
            elif (name.endswith("recover.rs") or RECOVERING.search(function)) and not persist:
                if re.match(r"(self|region|m|\w+)\.\w+", text) and not re.search(r"\.(note|flush|fence|load)", text):
                    kinds["recovery"].append((name, first, last, []))
        check = re.compile(r"!?[\w.]*\b(?:is_unchanged|is_readable|is_of|is_fresh|is_current)\((?:[^()]|\([^()]*\))*\)")
        for at, line in enumerate(lines):
            if line.startswith("#[cfg(test)]"):
                break
            found = check.search(line)
            if found and "fn " not in line and not line.lstrip().startswith("//"):
                passes = "false" if found[0].startswith("!") else "true"
                kinds["version"].append((name, at, at, [line.replace(found[0], passes, 1)]))
    return kinds


def draw(kinds, seed):
    """Every edit once, the kinds in turn."""
    rng = random.Random(seed)
    for edits in kinds.values():
        rng.shuffle(edits)
    turns = max(len(edits) for edits in kinds.values())
    for turn in range(turns):
        for kind, edits in kinds.items():
            if turn < len(edits):
                yield kind, edits[turn]


def cargo(tree, arguments, seconds, stop_at=None):
    """Runs cargo. Returns its exit code (None if the time ran out), the line at which it was stopped, if any, and
    the seconds that it took."""
    environment = dict(os.environ, CARGO_TARGET_DIR=os.path.join(tree, "..", "build"), CARGO_INCREMENTAL="1")
    environment.update(EVERMAP_TEST_TIER="full", CARGO_PROFILE_TEST_DEBUG="0", CARGO_PROFILE_TEST_OPT_LEVEL="1", RUST_BACKTRACE="0")
    process = subprocess.Popen(["cargo", *arguments], cwd=tree, env=environment, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    late = threading.Event()

    def end():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer, start, stopped = threading.Timer(seconds, end), time.time(), None
    timer.start()
    for line in process.stdout:
        if stop_at and re.search(stop_at, line):
            stopped = line.strip()
            os.killpg(process.pid, signal.SIGKILL)
            break
    code = process.wait()
    timer.cancel()
    return (None if late.is_set() else code), stopped, time.time() - start


def judge(tree, name, minutes):
    """Runs the tests on the tree, in which `name` was edited. Returns (verdict, test that noticed it, seconds)."""
    left = 60.0 * minutes
    others = [FILES_TESTS] * name.startswith(PM) + [DIRECTORY_TESTS] * name.endswith("/directory.rs")
    for tests in TESTS + others:
        code, _, _ = cargo(tree, ["test", "--no-run", "--quiet", *tests], 900)
        if code is None:
            return "time ran out", None, 60.0 * minutes
        if code != 0:
            return "does not compile", None, 0
        code, failed, took = cargo(tree, ["test", *tests], left, r"^test .* FAILED|SIGABRT|SIGSEGV|overflowed its stack")
        left -= took
        if failed or code not in (0, None):
            return "noticed", failed or f"exit code {code}", 60.0 * minutes - left
        # A test that hangs does not pass either, but time may have run out because the machine is busy.
        if code is None or left <= 0:
            return "time ran out", None, 60.0 * minutes
    return "not noticed", None, 60.0 * minutes - left


UNNOTICED = ("not noticed", "time ran out")


def place(result):
    return result["kind"], result["file"], result["line"]


def said(tree, edit):
    """The text that the edit replaces."""
    with open(os.path.join(tree, edit[0])) as file:
        return " ".join(line.strip() for line in file.read().split("\n")[edit[1] : edit[2] + 1])


def found_again(tree, kinds, results):
    """The edits of these results, although lines above them may have changed. Stops at one that is gone."""
    for result in results:
        same = [e for e in kinds[result["kind"]] if e[0] == result["file"] and said(tree, e) == result["before"]]
        if not same:
            sys.exit(f"{result['file']} does not say `{result['before']}` any more: take it out of the results")
        yield result["kind"], min(same, key=lambda edit: abs(edit[1] + 1 - result["line"]))


def attempt(tree, edit, minutes):
    """Makes an edit, runs the tests, and undoes it."""
    name, first, last, new = edit
    whole = os.path.join(tree, name)
    with open(whole) as file:
        before = file.read()
    lines = before.split("\n")
    try:
        with open(whole, "w") as file:
            file.write("\n".join(lines[:first] + new + lines[last + 1 :]))
        verdict, by, seconds = judge(tree, name, minutes)
    finally:
        with open(whole, "w") as file:
            file.write(before)
    return dict(verdict=verdict, by=by, seconds=round(seconds))


def valid(results):
    return [result for result in results if result["verdict"] != "does not compile"]


def copy(tree):
    """Makes the copy that is edited, unless there is one, and the tests that are run in it."""
    if not os.path.exists(tree):
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(tree, name))
    for name, text in WRITTEN.items():
        with open(os.path.join(tree, "crates", f"{name}.rs"), "w") as file:
            file.write(text)


def table(results):
    print("| | edit | where | what was there | verdict |\n|---|---|---|---|---|")
    for number, result in enumerate(results, 1):
        what = result["before"].replace("|", "\\|")
        by = result["by"] or ""
        by = re.sub(r"^test | \.\.\. FAILED$", "", by)
        place = f"{os.path.relpath(result['file'], 'crates')}:{result['line']}"
        print(f"| {number} | {result['kind']} | {place} | `{what}` | {result['verdict']} {by} |")
    noticed = sum(result["verdict"] == "noticed" for result in results)
    print(f"\n{noticed} of {len(results)} noticed.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=3, help="for the tests of one edit, without compiling")
    parser.add_argument("--only-for", type=float, default=1e9, help="minutes after which no further edit is begun")
    parser.add_argument("--work", default=os.path.join(ROOT, "target", "source-edits"))
    parser.add_argument("--again", action="store_true", help="try those once more that were not noticed")
    parser.add_argument("--table", action="store_true", help="print what came of the edits so far")
    options = parser.parse_args()
    begin = time.time()
    path = os.path.join(options.work, f"results-{options.seed}.jsonl")
    results = []
    if os.path.exists(path):
        with open(path) as file:
            results = [json.loads(line) for line in file]
    if options.table:
        return table(valid(results))
    tree = os.path.join(options.work, "tree")
    if options.again:
        shutil.rmtree(tree, ignore_errors=True)
    copy(tree)
    kinds = candidates(tree)
    again = [result for result in results if result["verdict"] in UNNOTICED]
    wanted = len(again) if options.again else options.edits - len(valid(results))
    for kind, edit in found_again(tree, kinds, list(again)) if options.again else draw(kinds, options.seed):
        if wanted <= 0 or time.time() - begin > 60 * options.only_for:
            break
        result = dict(kind=kind, file=edit[0], line=edit[1] + 1, before=said(tree, edit))
        if not options.again and place(result) in map(place, results):
            continue
        result.update(attempt(tree, edit, options.minutes))
        if options.again:
            results.remove(again.pop(0))
        results.append(result)
        with open(path, "w") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)
        wanted -= result["verdict"] != "does not compile"
        print(f"{kind} {edit[0]}:{edit[1] + 1}: {result['verdict']} {result['by'] or ''} ({result['seconds']} s), {wanted} to go", flush=True)
    table(valid(results))


if __name__ == "__main__":
    sys.exit(main())
