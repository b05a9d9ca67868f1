//! Commands other than `serve`.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;

use crate::common::{CommandOutput, evermap, json, run, run_on, run_with_input};

fn lines(text: &[u8]) -> Vec<&str> {
    let mut lines: Vec<_> = std::str::from_utf8(text).unwrap().lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_command_has_help() {
    let all = run(["--help"]).success();
    for command in [
        "serve", "get", "put", "del", "load", "dump", "scan", "maps", "drop", "stat", "check",
        "recover", "top",
    ] {
        assert!(String::from_utf8_lossy(&all).contains(&format!("\n  {command} ")), "{command}");
        assert!(String::from_utf8_lossy(&run([command, "--help"]).success()).contains("Usage"));
    }
    assert!(String::from_utf8_lossy(&all).contains("\n  lab "));
    assert_eq!(
        run(["--version"]).success(),
        concat!("evermap ", env!("CARGO_PKG_VERSION"), "\n").as_bytes()
    );
    assert_eq!(run(["no-such-command"]).code, 2);
}

#[test]
fn get_put_and_del() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    assert_eq!(run_on("put", &store, &["apple", "red"]).success(), b"");
    assert_eq!(run_on("get", &store, &["apple"]).success(), b"red");
    let no = CommandOutput { code: 1, stdout: Vec::new(), stderr: String::new() };
    assert_eq!(run_on("get", &store, &["pear"]), no);
    assert_eq!(run_on("del", &store, &["pear"]), no);

    // Keys and values can contain any bytes.
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    assert_eq!(run_with_input("put", &store, &["bytes", "-"], &value).success(), b"");
    assert_eq!(run_on("get", &store, &["bytes"]).success(), value);
    assert_eq!(run_with_input("put", &store, &["apple"], b"").success(), b"");
    assert_eq!(run_on("get", &store, &["apple"]).success(), b"");
    let odd = std::ffi::OsString::from_vec(vec![0xff, b'\n', 1]);
    let mut put = evermap(["put"]);
    assert!(put.arg(&store).arg(&odd).arg("odd").status().unwrap().success());
    let got = evermap(["get"]).arg(&store).arg(&odd).output().unwrap();
    assert_eq!(CommandOutput::new(got).success(), b"odd");

    assert_eq!(run_on("del", &store, &["apple"]).success(), b"");
    assert_eq!(run_on("get", &store, &["apple"]), no);
    let stat = json(run_on("stat", &store, &["--json"]));
    assert!(stat["records"] == 2 && stat["clean_open"] == true, "{stat}");
    let too_long = "k".repeat(evermap::KEY_MAX + 1);
    run_on("put", &store, &[&too_long, "v"]).failure("key of 65537 bytes is too long");
}

#[test]
fn commands_that_read_do_not_create_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    for (command, rest) in [
        ("get", &["a"][..]),
        ("del", &["a"]),
        ("stat", &[]),
        ("check", &[]),
        ("dump", &[]),
        ("scan", &[]),
        ("maps", &[]),
        ("drop", &["a"]),
    ] {
        run_on(command, &store, rest).failure("map: there is no store; `evermap put`");
        assert!(!store.exists(), "{command}");
    }
    run_on("load", &store, &["no-such-file"]).failure("no-such-file: No such file");
    assert!(!store.exists());
    let nowhere = dir.path().join("no-such-directory/map");
    run_on("put", &nowhere, &["a", "b"]).failure("no-such-directory");
}

#[test]
fn a_file_that_is_not_a_store_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("letter.txt");
    let letter = "Dear reader, ".repeat(1000);
    std::fs::write(&file, &letter).unwrap();
    for (command, rest) in
        [("get", &["a"][..]), ("put", &["a", "b"]), ("stat", &[]), ("check", &[])]
    {
        run_on(command, &file, rest).failure("letter.txt: not an Evermap store");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), letter);
}

/// Records with text, bytes, flags and expiry.
const TSV: &[u8] = b"plain\tvalue\n\
    bytes\\xff\\x00\ttab \\t newline \\n return \\r backslash \\\\ end\n\
    caf\xc3\xa9\t\n\
    flags\tv\t7\n\
    expiring\tv\t0\t4000000000\n";

#[test]
fn a_dump_can_be_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let loaded = run_with_input("load", &one, &[], TSV);
    assert!(loaded.stderr.contains("5 records loaded"), "{}", loaded.stderr);
    assert_eq!(lines(&run_on("dump", &one, &[]).success()), lines(TSV));

    let jsonl = run_on("dump", &one, &["--format", "jsonl"]).success();
    assert!(lines(&jsonl).contains(&r#"{"key":"flags","value":"v","flags":7}"#));
    // The file name determines the format.
    let file = dir.path().join("records.jsonl");
    std::fs::write(&file, &jsonl).unwrap();
    run_on("load", &two, &[file.to_str().unwrap()]).success();
    assert_eq!(lines(&run_on("dump", &two, &[]).success()), lines(TSV));
    // Load again, and replace a record.
    run_with_input("load", &two, &["-", "--format", "tsv"], b"plain\tother").success();
    assert_eq!(run_on("get", &two, &["plain"]).success(), b"other");
    assert_eq!(json(run_on("check", &two, &["--deep", "--json"]))["records"], 5);
}

#[test]
fn named_maps_are_separate() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let no = CommandOutput { code: 1, stdout: Vec::new(), stderr: String::new() };
    assert_eq!(run_on("put", &store, &["key", "default"]).success(), b"");
    assert_eq!(run_on("maps", &store, &[]).success(), b"");
    run_on("get", &store, &["key", "--map", "users"])
        .failure("there is no map \"users\"; `evermap put");
    assert_eq!(run_on("put", &store, &["key", "named", "--map", "users"]).success(), b"");
    run_with_input("load", &store, &["--map", "orders", "--index", "level"], b"b\t2\na\t1\n")
        .success();
    assert_eq!(run_on("get", &store, &["key"]).success(), b"default");
    assert_eq!(run_on("get", &store, &["key", "--map", "users"]).success(), b"named");
    assert_eq!(run_on("scan", &store, &["--map", "orders"]).success(), b"a\t1\nb\t2\n");
    assert_eq!(run_on("dump", &store, &["--map", "users"]).success(), b"key\tnamed\n");
    assert_eq!(run_on("maps", &store, &[]).success(), b"orders\nusers\n");
    let stat = json(run_on("stat", &store, &["--json", "--map", "orders"]));
    assert!(stat["map"] == "orders" && stat["records"] == 2 && stat["index"] == "level", "{stat}");
    let cost = &stat["cost"];
    assert!(cost["records"] == 2 && cost["content_bytes"] == 2.0, "{cost}");
    assert!(cost["expected_index_bytes"]["tranche"].is_f64(), "{cost}");
    let stat = json(run_on("stat", &store, &["--json"]));
    assert!(stat["map"].is_null() && stat["maps"] == 2 && stat["records"] == 1, "{stat}");
    assert_eq!(run_on("del", &store, &["key", "--map", "orders"]), no);
    assert_eq!(run_on("del", &store, &["a", "--map", "orders"]).success(), b"");
    run_on("check", &store, &["--deep"]).success();
    assert_eq!(run_on("drop", &store, &["orders"]).success(), b"");
    assert_eq!(run_on("drop", &store, &["orders"]), no);
    assert_eq!(run_on("maps", &store, &[]).success(), b"users\n");
    assert_eq!(run_on("put", &store, &["key", "value", "--map", "two\nlines"]).success(), b"");
    assert_eq!(run_on("maps", &store, &[]).success(), b"two\\nlines\nusers\n");
    run_on("check", &store, &["--deep"]).success();
}

#[test]
fn scans_are_in_key_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    run_with_input("load", &store, &[], b"bee\t2\nbeetle\t3\ncow\t4\nant\t1\nbe\\xff\t5\t7\n")
        .success();
    let scan = |rest: &[&str]| String::from_utf8(run_on("scan", &store, rest).success()).unwrap();
    let all = "ant\t1\nbee\t2\nbeetle\t3\nbe\\xff\t5\t7\ncow\t4\n";
    assert_eq!(scan(&[]), all);
    let mut lines: Vec<_> = all.split_inclusive('\n').collect();
    assert_eq!(scan(&["--prefix", "be"]), lines[1..4].concat());
    assert_eq!(scan(&["--from", "bee", "--to", "cow"]), lines[1..4].concat());
    assert_eq!(scan(&["--from", "beetle", "--limit", "2"]), lines[2..4].concat());
    assert_eq!(scan(&["--to", "ant"]), "");
    lines.reverse();
    assert_eq!(scan(&["--reverse"]), lines.concat());
    assert_eq!(scan(&["--reverse", "--to", "cow", "--limit", "1"]), lines[1]);
    let line = scan(&["--format", "jsonl", "--prefix", "cow"]);
    assert_eq!(line, "{\"key\":\"cow\",\"value\":\"4\"}\n");
    assert_eq!(run_on("scan", &store, &["--prefix", "b", "--to", "c"]).code, 2);

    let stat = json(run_on("stat", &store, &["--json", "--ordered"]));
    assert!(stat["ordered"]["keys"] == 5 && stat["ordered"]["unreadable"] == 0, "{stat}");
    assert!(json(run_on("stat", &store, &["--json"]))["ordered"].is_null());
    assert!(
        String::from_utf8(run_on("stat", &store, &["--ordered"]).success())
            .unwrap()
            .contains("5 keys")
    );
}

#[test]
fn invalid_lines_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let input = b"a\t1\nno tab here\nb\t2\nc\t\\q\nd\t4\n";
    run_with_input("load", &store, &[], input)
        .failure("standard input:2: no tab after the key (1 record loaded");
    assert_eq!(run_on("dump", &store, &[]).success(), b"a\t1\n");

    let output = run_with_input("load", &store, &["--skip-bad"], input);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("standard input:2: no tab"), "{}", output.stderr);
    assert!(output.stderr.contains("standard input:4: unknown escape `\\q`"), "{}", output.stderr);
    assert!(output.stderr.contains("3 records loaded"), "{}", output.stderr);
    assert!(output.stderr.contains("2 invalid lines skipped"), "{}", output.stderr);
    assert_eq!(lines(&run_on("dump", &store, &[]).success()), ["a\t1", "b\t2", "d\t4"]);

    let long = [b"long\t".as_slice(), &[b'x'; 5000], b"\nshort\tv\n"].concat();
    run_with_input("load", &store, &["--max-line", "1K"], &long)
        .failure(":1: the line is too long");
    let output = run_with_input("load", &store, &["--max-line", "1K", "--skip-bad"], &long);
    assert_eq!(output.code, 1);
    assert_eq!(run_on("get", &store, &["short"]).success(), b"v");
    let key = [vec![b'k'; evermap::KEY_MAX + 1], b"\tv\n".to_vec()].concat();
    run_with_input("load", &store, &[], &key).failure(":1: key of 65537 bytes is too long");
}

#[test]
fn a_reader_that_closes_the_output_early_is_not_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let input: String = (0..50_000).map(|i| format!("key-{i}\t{}\n", "v".repeat(100))).collect();
    run_with_input("load", &store, &[], input.as_bytes()).success();
    for arguments in [&["dump"][..], &["dump", "--format", "jsonl"]] {
        let mut dump = evermap(arguments)
            .arg(&store)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        dump.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
        let output = CommandOutput::new(dump.wait_with_output().unwrap());
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    }
    // The store was closed properly anyway.
    assert_eq!(json(run_on("stat", &store, &["--json"]))["clean_open"], true);
    for arguments in [&["stat"][..], &["stat", "--json"], &["check"], &["get"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = evermap(arguments);
        command.arg(&store).stdout(writer).stderr(Stdio::piped());
        if arguments == ["get"] {
            command.arg("key-1");
        }
        let output = CommandOutput::new(command.spawn().unwrap().wait_with_output().unwrap());
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn a_damaged_record_is_reported_and_others_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    run_with_input("load", &store, &[], b"good\tintact\nbad\tthis value gets damaged\n").success();
    assert_eq!(run_on("check", &store, &[]).code, 0);
    assert_eq!(json(run_on("check", &store, &["--json", "--deep"]))["sound"], true);

    let mut bytes = std::fs::read(&store).unwrap();
    let value = b"gets damaged";
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[at] = b'G';
    std::fs::write(&store, bytes).unwrap();

    let checked = run_on("check", &store, &["--deep"]);
    assert_eq!(checked.code, 1);
    assert!(
        String::from_utf8_lossy(&checked.stdout).contains("record of key \"bad\""),
        "{checked:?}"
    );
    let report = json(run_on("check", &store, &["--deep", "--json"]));
    assert!(report["sound"] == false && report["records"] == 2, "{report}");
    assert!(report["problems"][0].as_str().unwrap().contains("record of key \"bad\""), "{report}");
    run_on("get", &store, &["bad"]).failure("its checksum does not match");
    assert_eq!(run_on("get", &store, &["good"]).success(), b"intact");
    let dumped = run_on("dump", &store, &[]);
    assert_eq!((dumped.code, &dumped.stdout[..]), (1, &b"good\tintact\n"[..]));
    assert!(dumped.stderr.contains("record of key \"bad\""), "{}", dumped.stderr);
    // The message says how to repair the record.
    run_on("put", &store, &["bad", "repaired"]).success();
    assert_eq!(run_on("check", &store, &["--deep"]).code, 0);
}
