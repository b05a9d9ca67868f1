//! Measuring.

use serde_json::Value;

use crate::common::run;

/// Every line of JSON lines.
fn records(text: &[u8]) -> Vec<Value> {
    std::str::from_utf8(text)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_list_has_ours_and_others() {
    let list = String::from_utf8(run(["lab", "list"]).well()).unwrap();
    for name in ["dash-eh", "papaya", "dashmap", "scc-hashmap"] {
        assert!(list.lines().any(|line| line.split(' ').next() == Some(name)), "{name}: {list}");
    }
}

#[test]
fn micro_says_everything_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["lab", "run", "micro", "--index", "dash-eh,scc-hashmap", "--keys", "2000"];
    let rest = ["--rounds", "2", "--threads", "2", "--seed", "3", "--medium", "process"];
    let quick = ["--patience", "0", "--retries", "0", "--no-limits"];
    let place = ["--location", dir.path().to_str().unwrap()];
    let said = run([&small[..], &rest, &quick, &place, &["--json", "-"]].concat()).well();
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
    let file = dir.path().join("results.jsonl");
    let experiment = ["lab", "run", "load-factor", "--from", "1000", "--to", "2000"];
    let rest = ["--samples", "4", "--json", file.to_str().unwrap()];
    let said = run([&experiment[..], &rest].concat()).well();
    assert!(String::from_utf8_lossy(&said).contains("load factor"));
    assert_eq!(records(&std::fs::read(file).unwrap()).len(), 4);
}

#[test]
fn what_cannot_be_measured_is_named() {
    run(["lab", "run", "micro", "--index", "dash-eh,btree"])
        .failed("unknown index `btree`; known are");
    run(["lab", "run", "micro", "--threads", "0"]).failed("at least one thread");
    run(["lab", "run", "micro", "--json", "/no/such/place"]).failed("/no/such/place: No such file");
    let said = run(["lab", "run", "micro", "--medium", "tape"]);
    assert!(said.code == 2 && said.err.contains("known are: dram, process"), "{}", said.err);
}
