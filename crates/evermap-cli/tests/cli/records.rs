//! Commands that use a store and end.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;

use crate::common::{Said, evermap, feed, json, on, run};

fn lines(text: &[u8]) -> Vec<&str> {
    let mut lines: Vec<_> = std::str::from_utf8(text).unwrap().lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_command_has_help() {
    let all = run(["--help"]).well();
    for command in
        ["serve", "get", "put", "del", "load", "dump", "scan", "maps", "drop", "stat", "check"]
    {
        assert!(String::from_utf8_lossy(&all).contains(&format!("\n  {command} ")), "{command}");
        assert!(String::from_utf8_lossy(&run([command, "--help"]).well()).contains("Usage"));
    }
    assert!(String::from_utf8_lossy(&all).contains("\n  lab "));
    assert_eq!(
        run(["--version"]).well(),
        concat!("evermap ", env!("CARGO_PKG_VERSION"), "\n").as_bytes()
    );
    assert_eq!(run(["no-such-command"]).code, 2);
}

#[test]
fn one_record_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    assert_eq!(on("put", &store, &["apple", "red"]).well(), b"");
    assert_eq!(on("get", &store, &["apple"]).well(), b"red");
    let no = Said { code: 1, out: Vec::new(), err: String::new() };
    assert_eq!(on("get", &store, &["pear"]), no);
    assert_eq!(on("del", &store, &["pear"]), no);

    // Any bytes, from standard input and in keys.
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    assert_eq!(feed("put", &store, &["bytes", "-"], &value).well(), b"");
    assert_eq!(on("get", &store, &["bytes"]).well(), value);
    assert_eq!(feed("put", &store, &["apple"], b"").well(), b"");
    assert_eq!(on("get", &store, &["apple"]).well(), b"");
    let odd = std::ffi::OsString::from_vec(vec![0xff, b'\n', 1]);
    let mut put = evermap(["put"]);
    assert!(put.arg(&store).arg(&odd).arg("odd").status().unwrap().success());
    let got = evermap(["get"]).arg(&store).arg(&odd).output().unwrap();
    assert_eq!(Said::new(got).well(), b"odd");

    assert_eq!(on("del", &store, &["apple"]).well(), b"");
    assert_eq!(on("get", &store, &["apple"]), no);
    let stat = json(on("stat", &store, &["--json"]));
    assert!(stat["records"] == 2 && stat["clean_open"] == true, "{stat}");
    let too_long = "k".repeat(evermap::KEY_MAX + 1);
    on("put", &store, &[&too_long, "v"]).failed("key of 65537 bytes is too long");
}

#[test]
fn a_missing_store_is_not_made_by_looking() {
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
        on(command, &store, rest).failed("map: no store here; `evermap put`");
        assert!(!store.exists(), "{command}");
    }
    on("load", &store, &["no-such-file"]).failed("no-such-file: No such file");
    assert!(!store.exists());
    let nowhere = dir.path().join("no-such-directory/map");
    on("put", &nowhere, &["a", "b"]).failed("no-such-directory");
}

#[test]
fn a_file_of_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("letter.txt");
    let letter = "Dear reader, ".repeat(1000);
    std::fs::write(&file, &letter).unwrap();
    for (command, rest) in
        [("get", &["a"][..]), ("put", &["a", "b"]), ("stat", &[]), ("check", &[])]
    {
        on(command, &file, rest).failed("letter.txt: not an Evermap store");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), letter);
}

/// Text, bytes, flags and expiry.
const TSV: &[u8] = b"plain\tvalue\n\
    bytes\\xff\\x00\ttab \\t newline \\n return \\r backslash \\\\ end\n\
    caf\xc3\xa9\t\n\
    flags\tv\t7\n\
    expiring\tv\t0\t4000000000\n";

#[test]
fn what_is_dumped_can_be_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let loaded = feed("load", &one, &[], TSV);
    assert!(loaded.err.contains("5 records loaded"), "{}", loaded.err);
    assert_eq!(lines(&on("dump", &one, &[]).well()), lines(TSV));

    let jsonl = on("dump", &one, &["--format", "jsonl"]).well();
    assert!(lines(&jsonl).contains(&r#"{"key":"flags","value":"v","flags":7}"#));
    // The name tells the format.
    let file = dir.path().join("records.jsonl");
    std::fs::write(&file, &jsonl).unwrap();
    on("load", &two, &[file.to_str().unwrap()]).well();
    assert_eq!(lines(&on("dump", &two, &[]).well()), lines(TSV));
    // Once more, over what is there.
    feed("load", &two, &["-", "--format", "tsv"], b"plain\tother").well();
    assert_eq!(on("get", &two, &["plain"]).well(), b"other");
    assert_eq!(json(on("check", &two, &["--deep", "--json"]))["records"], 5);
}

#[test]
fn named_maps_are_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let no = Said { code: 1, out: Vec::new(), err: String::new() };
    assert_eq!(on("put", &store, &["key", "default"]).well(), b"");
    assert_eq!(on("maps", &store, &[]).well(), b"");
    on("get", &store, &["key", "--map", "users"]).failed("no map \"users\" here; `evermap put");
    assert_eq!(on("put", &store, &["key", "named", "--map", "users"]).well(), b"");
    feed("load", &store, &["--map", "orders", "--index", "level"], b"b\t2\na\t1\n").well();
    assert_eq!(on("get", &store, &["key"]).well(), b"default");
    assert_eq!(on("get", &store, &["key", "--map", "users"]).well(), b"named");
    assert_eq!(on("scan", &store, &["--map", "orders"]).well(), b"a\t1\nb\t2\n");
    assert_eq!(on("dump", &store, &["--map", "users"]).well(), b"key\tnamed\n");
    assert_eq!(on("maps", &store, &[]).well(), b"orders\nusers\n");
    let stat = json(on("stat", &store, &["--json", "--map", "orders"]));
    assert!(stat["map"] == "orders" && stat["records"] == 2 && stat["index"] == "level", "{stat}");
    let stat = json(on("stat", &store, &["--json"]));
    assert!(stat["map"].is_null() && stat["maps"] == 2 && stat["records"] == 1, "{stat}");
    assert_eq!(on("del", &store, &["key", "--map", "orders"]), no);
    assert_eq!(on("del", &store, &["a", "--map", "orders"]).well(), b"");
    on("check", &store, &["--deep"]).well();
    assert_eq!(on("drop", &store, &["orders"]).well(), b"");
    assert_eq!(on("drop", &store, &["orders"]), no);
    assert_eq!(on("maps", &store, &[]).well(), b"users\n");
    assert_eq!(on("put", &store, &["key", "value", "--map", "two\nlines"]).well(), b"");
    assert_eq!(on("maps", &store, &[]).well(), b"two\\nlines\nusers\n");
    on("check", &store, &["--deep"]).well();
}

#[test]
fn what_is_scanned_is_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    feed("load", &store, &[], b"bee\t2\nbeetle\t3\ncow\t4\nant\t1\nbe\\xff\t5\t7\n").well();
    let scan = |rest: &[&str]| String::from_utf8(on("scan", &store, rest).well()).unwrap();
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
    assert_eq!(on("scan", &store, &["--prefix", "b", "--to", "c"]).code, 2);

    let stat = json(on("stat", &store, &["--json", "--ordered"]));
    assert!(stat["ordered"]["keys"] == 5 && stat["ordered"]["unreadable"] == 0, "{stat}");
    assert!(json(on("stat", &store, &["--json"]))["ordered"].is_null());
    assert!(
        String::from_utf8(on("stat", &store, &["--ordered"]).well()).unwrap().contains("5 keys")
    );
}

#[test]
fn bad_lines_are_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let input = b"a\t1\nno tab here\nb\t2\nc\t\\q\nd\t4\n";
    feed("load", &store, &[], input)
        .failed("standard input:2: there is no tab after the key (1 records loaded");
    assert_eq!(on("dump", &store, &[]).well(), b"a\t1\n");

    let said = feed("load", &store, &["--skip-bad"], input);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("standard input:2: there is no tab"), "{}", said.err);
    assert!(said.err.contains("standard input:4: unknown escape `\\q`"), "{}", said.err);
    assert!(said.err.contains("3 records loaded"), "{}", said.err);
    assert!(said.err.contains("2 bad lines"), "{}", said.err);
    assert_eq!(lines(&on("dump", &store, &[]).well()), ["a\t1", "b\t2", "d\t4"]);

    let long = [b"long\t".as_slice(), &[b'x'; 5000], b"\nshort\tv\n"].concat();
    feed("load", &store, &["--max-line", "1K"], &long).failed(":1: the line is too long");
    let said = feed("load", &store, &["--max-line", "1K", "--skip-bad"], &long);
    assert_eq!(said.code, 1);
    assert_eq!(on("get", &store, &["short"]).well(), b"v");
    let key = [vec![b'k'; evermap::KEY_MAX + 1], b"\tv\n".to_vec()].concat();
    feed("load", &store, &[], &key).failed(":1: key of 65537 bytes is too long");
}

#[test]
fn a_reader_that_leaves_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    let input: String = (0..50_000).map(|i| format!("key-{i}\t{}\n", "v".repeat(100))).collect();
    feed("load", &store, &[], input.as_bytes()).well();
    for arguments in [&["dump"][..], &["dump", "--format", "jsonl"]] {
        let mut dump = evermap(arguments)
            .arg(&store)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        dump.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
        let said = Said::new(dump.wait_with_output().unwrap());
        assert_eq!((said.code, said.err.as_str()), (0, ""));
    }
    // The stop was orderly all the same.
    assert_eq!(json(on("stat", &store, &["--json"]))["clean_open"], true);
    for arguments in [&["stat"][..], &["stat", "--json"], &["check"], &["get"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = evermap(arguments);
        command.arg(&store).stdout(writer).stderr(Stdio::piped());
        if arguments == ["get"] {
            command.arg("key-1");
        }
        let said = Said::new(command.spawn().unwrap().wait_with_output().unwrap());
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn damage_is_found_and_costs_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("map");
    feed("load", &store, &[], b"good\tunharmed\nbad\tthis value will be harmed\n").well();
    assert_eq!(on("check", &store, &[]).code, 0);
    assert_eq!(json(on("check", &store, &["--json", "--deep"]))["sound"], true);

    let mut bytes = std::fs::read(&store).unwrap();
    let value = b"will be harmed";
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[at] = b'W';
    std::fs::write(&store, bytes).unwrap();

    let checked = on("check", &store, &["--deep"]);
    assert_eq!(checked.code, 1);
    assert!(String::from_utf8_lossy(&checked.out).contains("record of key \"bad\""), "{checked:?}");
    let report = json(on("check", &store, &["--deep", "--json"]));
    assert!(report["sound"] == false && report["records"] == 2, "{report}");
    assert!(report["problems"][0].as_str().unwrap().contains("record of key \"bad\""), "{report}");
    on("get", &store, &["bad"]).failed("its checksum does not match");
    assert_eq!(on("get", &store, &["good"]).well(), b"unharmed");
    let dumped = on("dump", &store, &[]);
    assert_eq!((dumped.code, &dumped.out[..]), (1, &b"good\tunharmed\n"[..]));
    assert!(dumped.err.contains("record of key \"bad\""), "{}", dumped.err);
    // As the message says.
    on("put", &store, &["bad", "mended"]).well();
    assert_eq!(on("check", &store, &["--deep"]).code, 0);
}
