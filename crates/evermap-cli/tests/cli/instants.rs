//! Backups of a server that runs, readers beside it, and a server with a log that loses its file.

use std::path::Path;

use rustix::process::Signal;

use crate::common::{run, run_on};
use crate::serve::Server;

const LOG: [&str; 2] = ["--durability", "log"];

fn start(store: &Path, more: &[&str]) -> Server {
    Server::start(store, "127.0.0.1:0", more)
}

fn kill(server: Server) {
    server.signal(Signal::KILL);
    server.output();
}

fn beside(store: &Path, name: &str) -> String {
    store.with_file_name(name).into_os_string().into_string().unwrap()
}

#[test]
fn a_server_that_runs_is_backed_up_and_read() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = dir.path().join("map");
    let [whole, more, other] = ["whole", "more", "other"].map(|name| beside(&store, name));
    let server = start(&store, &[]);
    let mut client = server.connect();
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    // Reading beside it.
    let read = run_on("get", &store, &["a"]);
    assert!(read.stderr.contains("reading a copy of the store, as it was at"), "{read:?}");
    assert_eq!(read.success(), b"x");
    assert!(String::from_utf8(run_on("dump", &store, &[]).success()).unwrap().contains("a\tx"));
    run_on("check", &store, &["--deep"]).success();
    run_on("stat", &store, &[]).success();

    run_on("backup", &store, &[&whole]).success();
    client.ask("set b 0 0 1\r\ny\r\n", "STORED\r\n");
    let written = run_on("backup", &store, &[&more, "--since", &whole]).success();
    assert!(String::from_utf8(written).unwrap().starts_with("wrote what was changed:"));
    // A file that is there is never overwritten.
    let refused = run_on("backup", &store, &[&more]);
    assert!(refused.code == 2 && refused.stderr.contains("exists"), "{refused:?}");
    let refused = run(["restore", store.to_str().unwrap(), &whole]);
    assert!(refused.code == 2 && refused.stderr.contains("remove it first"), "{refused:?}");
    kill(server);

    run(["restore", &other, &whole, &more]).success();
    let restored = start(Path::new(&other), &[]);
    restored.connect().ask("get a b\r\n", "VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n");
    kill(restored);
    // Nobody has the store open: the command makes the copy itself.
    let last = beside(&store, "last");
    let written = run_on("backup", &store, &[&last, "--since", &more]);
    assert!(written.stderr.contains("this one is a whole one"), "{written:?}");
    assert!(String::from_utf8(written.success()).unwrap().starts_with("wrote everything:"));
    let second = beside(&store, "second");
    run(["restore", &second, &last]).success();
    assert_eq!(run_on("get", Path::new(&second), &["b"]).success(), b"y");
}

#[test]
fn what_a_server_with_a_log_has_acknowledged_survives_the_loss_of_its_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = dir.path().join("map");
    for (round, ack) in ["each", "group=1ms"].into_iter().enumerate() {
        let server = start(&store, &[&LOG[..], &["--ack", ack]].concat());
        let mut clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            // A pipeline with a command without a reply.
            let key = format!("{round}-{number}");
            client.ask(
                &format!("set {key} 0 0 1 noreply\r\nx\r\nadd {key} 0 0 1\r\nz\r\nget {key}\r\n"),
                &format!("NOT_STORED\r\nVALUE {key} 0 1\r\nx\r\nEND\r\n"),
            );
            client.ask(&format!("append {key} 0 0 1\r\ny\r\n"), "STORED\r\n");
            client.ask(&format!("touch {key} 1000\r\n"), "TOUCHED\r\n");
        }
        drop(clients);
        kill(server);
        std::fs::remove_file(&store).unwrap();
    }
    // Reading needs no server, and rebuilds in memory.
    assert_eq!(run_on("get", &store, &["1-3"]).success(), b"xy");
    assert!(!store.exists());
    // Without the log it is not served.
    std::fs::write(&store, []).unwrap();
    let refused = run_on("put", &store, &["a", "b"]);
    assert!(refused.code == 2 && refused.stderr.contains("has a log"), "{refused:?}");

    let server = start(&store, &LOG);
    let mut client = server.connect();
    for key in ["0-0", "0-3", "1-0", "1-3"] {
        client.ask(&format!("get {key}\r\n"), &format!("VALUE {key} 0 2\r\nxy\r\nEND\r\n"));
    }
    assert_eq!(client.stat("evermap_durability").as_deref(), Some("log"));
    server.signal(Signal::TERM);
    assert_eq!(server.output().code, 0);
    assert_eq!(run_on("check", &store, &["--deep", LOG[0], LOG[1]]).code, 0);
}

#[test]
fn a_log_needs_a_path() {
    let refused = run(["serve", "--durability", "log"]);
    assert!(refused.code == 2 && refused.stderr.contains("--path"), "{refused:?}");
    let refused = run(["serve", "--ack", "soon"]);
    assert!(refused.stderr.contains("async=10ms"), "{refused:?}");
}
