//! The program of the laboratory, run as a person or a script runs it.

mod common;
#[path = "../../../evermap-cli/tests/cli/output.rs"]
mod output;

use serde_json::Value;

use common::run;

/// Returns the lines of JSON.
fn records(text: &[u8]) -> Vec<Value> {
    std::str::from_utf8(text)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_list_has_experiments_indexes_and_mixes() {
    let list = String::from_utf8(run(["list"]).success()).unwrap();
    let shown =
        |name: &str| list.lines().filter(|line| line.split(' ').next() == Some(name)).count();
    for name in ["micro", "recovery", "ycsb", "evermap", "papaya", "dashmap", "ycsb-f"] {
        assert_eq!(shown(name), 1, "{name}: {list}");
    }
    // Indexes that can be crashed are in a list of their own too.
    assert_eq!(shown("dash-eh"), 2, "{list}");
}

/// In a debug build, showing the help of a command also checks that its arguments do not contradict
/// each other.
#[test]
fn every_command_explains_itself() {
    for command in ["list", "run", "compare", "fill", "crash"] {
        let help = String::from_utf8(run([command, "--help"]).success()).unwrap();
        assert!(help.contains(&format!("Usage: evermap-lab {command}")), "{help}");
    }
    let help = String::from_utf8(run(["--help"]).success()).unwrap();
    assert!(help.contains("Usage: evermap-lab <COMMAND>"), "{help}");
}

#[test]
fn micro_says_everything_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["run", "micro", "--index", "dash-eh,scc-hashmap", "--keys", "2000"];
    let rest = ["--rounds", "2", "--threads", "2", "--seed", "3", "--medium", "process"];
    let quick = ["--patience", "0", "--retries", "0", "--no-limits"];
    let place = ["--location", dir.path().to_str().unwrap()];
    let said = run([&small[..], &rest, &quick, &place, &["--json", "-"]].concat()).success();
    let records = records(&said);
    for phase in ["insert", "positive", "negative", "update", "delete", "mixed", "get_many"] {
        let find = |index: &str| {
            let is = |record: &&Value| {
                record["index"] == index && record["phase"] == phase && record["round"].is_null()
            };
            records.iter().find(is).unwrap_or_else(|| panic!("{index}, {phase}"))
        };
        find("scc-hashmap");
        let summary = find("dash-eh");
        for (name, value) in [("experiment", "micro"), ("medium", "process")] {
            assert_eq!(summary[name], value);
        }
        for (name, value) in [("threads", 2), ("keys", 2000), ("seed", 3)] {
            assert_eq!(summary[name], value);
        }
        for measured in [
            "ops",
            "seconds",
            "mops",
            "p50_ns",
            "p99_ns",
            "flushes_per_op",
            "fences_per_op",
            "lines_read_per_op",
            "lines_written_per_op",
            "blocks_read_per_op",
            "blocks_written_per_op",
            "load_factor",
            "dram_bytes",
            "pm_bytes",
        ] {
            assert!(summary[measured].is_number(), "{measured} of {phase}: {summary}");
        }
    }
}

#[test]
fn results_go_to_a_file_beside_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let [json, csv] = ["results.jsonl", "results.csv"].map(|name| dir.path().join(name));
    let experiment = ["run", "load-factor", "--index", "dash-eh", "--from", "1000"];
    let rest = ["--to", "2000", "--samples", "4", "--json", json.to_str().unwrap()];
    let beside = ["--csv", csv.to_str().unwrap()];
    let said = run([&experiment[..], &rest, &beside].concat()).success();
    assert!(String::from_utf8_lossy(&said).contains("load factor"));
    let records = records(&std::fs::read(json).unwrap());
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|record| record["kernel"].as_str().unwrap().starts_with("Linux ")));
    let csv = std::fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4);
    assert!(csv.starts_with("experiment,index,"), "{csv}");
}

/// Standard error is no terminal here.
#[test]
fn what_is_being_done_is_said_without_a_terminal_too() {
    let what = ["run", "micro", "--index", "dash-eh", "--keys", "100", "--phases", "insert"];
    let said = run([&what[..], &BRIEF].concat());
    let first = "evermap-lab: 0 of 4 steps done; micro: dash-eh, round 1 of 1";
    assert!(said.stderr.starts_with(first), "{}", said.stderr);
}

#[test]
fn the_help_has_the_defaults() {
    let help = String::from_utf8(run(["run", "--help"]).success()).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (option, default) in
        [("--patience", "10;"), ("--retries", "3;"), ("--threads", "1;"), ("--medium", "dram;")]
    {
        let about = help.split_once(&format!(" {option} ")).unwrap().1;
        let about = about.split_once(" --").map_or(about, |(about, _)| about);
        assert!(about.contains(&format!("[default: {default}")), "{option}: {about}");
    }
}

/// Counts follow from the seed: a second run has the same.
#[test]
fn two_runs_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["old", "new"].map(|name| dir.path().join(name).display().to_string());
    for file in &files {
        let what = ["run", "micro", "--index", "dash-eh,level", "--keys", "3000"];
        run([&what[..], &["--no-limits", "--json", file], &BRIEF].concat()).success();
    }
    let said = run(["compare", &files[0], &files[1], "--all"]).success();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("16 figures in common"), "{said}");
    assert!(said.contains("Counts: 16 of 16 equal"), "{said}");
    run(["compare", &files[0], "/no/such"]).failure("/no/such: No such file");
    run(["compare", &files[0], "Cargo.toml"]).failure("Cargo.toml, line 1: `--json` does not");
}

#[test]
fn what_cannot_be_measured_is_named() {
    run(["run", "micro", "--index", "dash-eh,btree"]).failure("unknown index `btree`; known are");
    run(["run", "micro", "--threads", "0"]).failure("at least one thread");
    run(["run", "micro", "--json", "/no/such/place"]).failure("/no/such/place: No such file");
    let said = run(["run", "micro", "--medium", "tape"]);
    assert!(said.code == 2 && said.stderr.contains("known are: dram, process"), "{}", said.stderr);
    run(["run", "mikro"]).failure("unknown experiment `mikro`; known are: micro");
    run(["run", "micro", "--keys", "9999999999999"]).failure("take fewer keys");
    run(["run", "recovery", "--batch", "9"]).failure("`--batch` does not apply to recovery");
    run(["run", "ycsb", "--workloads", "e", "--index", "dash-eh", "--keys", "9"])
        .failure("keeps its keys in no order");
    let lengths = ["--index", "papaya-batch", "--key-bytes", "16", "--keys", "9"];
    run([&["run", "micro", "--patience", "0", "--no-limits"], &lengths[..]].concat())
        .failure("papaya-batch only takes keys and values of 8 bytes");
    run(["run", "micro", "--plugin", "/no/such.so"]).failure("load /no/such.so: No such file");
    let said = run(["run", "ycsb", "--value-bytes", "3"]);
    assert!(said.code == 2 && said.stderr.contains("between 8 and"), "{}", said.stderr);
}

/// Options for a short run that does not judge the machine.
const BRIEF: [&str; 7] = ["--quick", "--rounds", "1", "--patience", "0", "--retries", "0"];

/// A process is killed while it inserts, and another opens what it left: nothing may be missing.
#[test]
fn a_killed_table_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = ["--location", dir.path().to_str().unwrap(), "--json", "-"];
    let brief = ["--quick", "--patience", "0"];
    for experiment in ["recovery", "after-recovery"] {
        let what = ["run", experiment, "--index", "dash-eh,evermap", "--keys", "30000"];
        let said = run([&what[..], &brief, &place].concat()).success();
        let records = records(&said);
        assert!(records.len() >= 2);
        for record in &records {
            assert_eq!(record["experiment"], experiment);
            let measured = if experiment == "recovery" { "seconds" } else { "mops" };
            assert!(record[measured].is_number(), "{record}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left behind");
    }
}

/// Stores are opened in processes that are killed, which report space and times.
#[test]
fn killed_stores_are_opened_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = ["--location", dir.path().to_str().unwrap(), "--json", "-"];
    let stores = ["--index", "evermap,evermap-ordered", "--rounds", "3"];
    let brief = ["run", "stores", "--quick", "--patience", "0", "--keys", "3000"];
    let records = records(&run([&brief[..], &stores, &place].concat()).success());
    let of = |index: &str, phase: &str| {
        let is_it = |record: &&Value| record["index"] == index && record["phase"] == phase;
        records.iter().filter(is_it).collect::<Vec<_>>()
    };
    for index in ["evermap", "evermap-ordered"] {
        // Each phase in three rounds, and the summary, with one thread and with two.
        assert_eq!(of(index, "overwrite").len(), 2 * (3 + 1));
        for phase in ["loaded", "overwritten"] {
            let found = of(index, phase);
            assert_eq!(found.len(), 1);
            assert!(found[0]["pm_bytes"].as_u64().unwrap() > 3000 * 272, "{}", found[0]);
            assert!(found[0]["dram_bytes"].is_number());
        }
        let opened = of(index, "open");
        assert_eq!(opened.len(), 3);
        assert!(opened.iter().all(|record| record["seconds"].as_f64().unwrap() > 0.0));
    }
    assert_eq!(of("evermap", "open and scan").len(), 0);
    assert_eq!(of("evermap-ordered", "open and scan").len(), 3);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left behind");
}

#[test]
fn mixes_are_run_on_words_and_on_byte_strings() {
    let what = ["run", "ycsb", "--workloads", "a,f,recipe-b", "--keys", "3000"];
    let words = ["--index", "dash-eh,dashmap", "--threads", "2", "--distribution", "uniform"];
    let said = run([&what[..], &words, &BRIEF, &["--json", "-"]].concat()).success();
    let summaries: Vec<_> =
        records(&said).into_iter().filter(|record| record["round"].is_null()).collect();
    let phases: Vec<_> = summaries.iter().map(|record| record["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["ycsb-a", "ycsb-a", "ycsb-f", "ycsb-f", "recipe-b", "recipe-b"]);
    assert!(summaries.iter().all(|record| record["distribution"] == "uniform"));
    let bytes =
        ["--index", "dash-eh,evermap", "--key-bytes", "8-40", "--value-bytes", "zipfian:8-500"];
    let said = run([&what[..], &bytes, &BRIEF].concat()).success();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("keys of 8-40 bytes, values of zipfian:8-500"), "{said}");
}

/// Every experiment, as short as possible; the tables of all on one page.
#[test]
fn every_experiment_runs_and_is_on_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let rest = ["--keys", "900", "--from", "100", "--to", "200", "--samples", "3", "--no-limits"];
    let place = ["--location", dir.path().to_str().unwrap(), "--html", page.to_str().unwrap()];
    let said = run([&["run", "all"], &BRIEF[..], &rest, &place].concat()).success();
    let (said, page) = (String::from_utf8(said).unwrap(), std::fs::read_to_string(page).unwrap());
    let list = String::from_utf8(run(["list"]).success()).unwrap();
    let experiments: Vec<_> = list
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(experiments.len(), 26);
    for name in experiments {
        assert!(said.contains(&format!("\n{name}: ")), "{name} in {said}");
        assert!(page.contains(&format!("<section id=\"{name}\">")), "{name}");
    }
}

mod page {
    //! The page in a browser.

    use std::path::Path;
    use std::process::Command;

    use super::run;

    /// Returns Debian's browser; it is installed if this process may.
    fn chromium() -> Command {
        let there = || Command::new("chromium").arg("--version").output().is_ok();
        if !there() {
            let may_install = rustix::process::geteuid().is_root();
            assert!(may_install, "chromium is needed: apt-get install chromium");
            for step in [&["update", "-qq"][..], &["install", "-y", "-qq", "chromium"]] {
                let done = Command::new("apt-get")
                    .args(step)
                    .env("DEBIAN_FRONTEND", "noninteractive")
                    .status();
                assert!(done.unwrap().success(), "apt-get {step:?}");
            }
        }
        let mut command = Command::new("chromium");
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--hide-scrollbars", "--run-all-compositor-stages-before-draw"]);
        command
    }

    /// Renders `page` and returns what the browser wrote to `file`.
    fn render(page: &Path, file: &Path, options: &[&str]) -> Vec<u8> {
        let profile = file.with_extension("profile");
        let done = chromium()
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(options)
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&done.stderr).into_owned();
        std::fs::read(file).unwrap_or_else(|error| panic!("{error}: {complaints}"))
    }

    /// Returns width and height of a picture, and its size in bytes: an empty one is small.
    fn picture(png: &[u8]) -> (u32, u32, usize) {
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
        (number(16), number(20), png.len())
    }

    /// Only in the full tier: it needs a browser.
    #[test]
    fn a_browser_shows_it_in_light_in_dark_and_on_paper() {
        match std::env::var_os("EVERMAP_TEST_TIER") {
            None => return,
            Some(tier) => assert_eq!(tier, "full", "the tier is `full`, or not set"),
        }
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.html");
        let what = ["run", "micro", "dataset-size", "--index", "dash-eh", "--html"];
        let small = ["--quick", "--patience", "0", "--retries", "0", "--keys", "20000"];
        run([&what[..], &[page.to_str().unwrap()], &small].concat()).success();
        let shot = |name: &str, scheme: &str| {
            let file = dir.path().join(name);
            let shot = format!("--screenshot={}", file.display());
            let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
            render(&page, &file, &[&shot, "--window-size=1200,1600", &scheme])
        };
        let (dark, light) = (shot("dark.png", "0"), shot("light.png", "1"));
        for png in [&dark, &light] {
            let (width, height, bytes) = picture(png);
            assert_eq!((width, height), (1200, 1600));
            assert!(bytes > 40_000, "{bytes} bytes: nothing is drawn");
        }
        assert_ne!(dark, light);
        let file = dir.path().join("page.pdf");
        let print = format!("--print-to-pdf={}", file.display());
        let pdf = render(&page, &file, &[&print, "--no-pdf-header-footer"]);
        assert!(pdf.starts_with(b"%PDF-") && pdf.len() > 20_000, "{}", pdf.len());
        let pages = pdf.windows(11).filter(|part| part == b"/Type /Page").count();
        assert!(pages >= 2, "{pages} pages");
    }
}
