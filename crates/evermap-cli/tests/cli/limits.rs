//! Limits of the system that are lower than those that a server is asked for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, evermap};
use crate::memcached::reply;
use crate::service::Server;

/// Returns the value of a statistic.
#[track_caller]
fn stat<'t>(stats: &'t str, name: &str) -> &'t str {
    let prefix = format!("STAT {name} ");
    let value = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no {name} in {stats}"))
}

/// A control group of the memory of a process, in one of the two versions.
struct Group(PathBuf);

impl Group {
    /// Creates a group that may use this much memory, or returns why that is not possible.
    fn create(bytes: u64) -> Result<Group, String> {
        let name = format!("evermap-test-{}", std::process::id());
        let candidates =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let mut why = String::new();
        for (parent, file) in candidates {
            let group = Group(Path::new(parent).join(&name));
            let created = std::fs::create_dir(&group.0)
                .and_then(|()| std::fs::write(group.0.join(file), bytes.to_string()));
            match created {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{parent}: {error}"),
            }
        }
        Err(why)
    }

    /// Returns a command that runs in the group.
    fn run(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        shell.arg("-c").arg(script).arg(self.0.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The memory of a process is returned a moment after its end.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Stores more than fits.
fn fill(stream: &mut TcpStream, bytes: usize) {
    const VALUE: usize = 100_000;
    let value = "v".repeat(VALUE);
    for key in 0..bytes / VALUE {
        let request = format!("set key{key} 0 0 {VALUE}\r\n{value}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::with_capacity(64, &mut *stream).read_line(&mut line).unwrap();
        assert!(
            ["STORED\r\n", "SERVER_ERROR out of memory storing object\r\n"].contains(&&*line),
            "{line}"
        );
    }
}

/// Such a server used to be killed, and killed again when it was started again.
#[test]
fn a_server_stays_within_its_control_group() {
    const GROUP: u64 = 100 << 20;
    let group = match Group::create(GROUP) {
        Ok(group) => group,
        Err(why) => return println!("skipped: there is no control group for a test: {why}"),
    };
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: /dev/shm cannot be used");
    };
    for (memory, asked) in [(Some("200M"), 200 << 20), (None, 0)] {
        let path = dir.path().join(format!("map{asked}"));
        let mut command = evermap(["serve", "--threads", "2", "--listen", "127.0.0.1:0"]);
        command.arg("--path").arg(&path);
        command.args(memory.into_iter().flat_map(|memory| ["--memory", memory]));
        let server = Server::start(group.run(&command));
        let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
        fill(&mut stream, 150 << 20);
        let stats = reply(&mut stream, "stats\r\n", "END\r\n");
        assert_eq!(stat(&stats, "limit_maxbytes"), (75u64 << 20).to_string());
        assert_eq!(stat(&stats, "evermap_memory_asked"), asked.to_string());
        assert_eq!(stat(&stats, "evermap_memory_bound"), GROUP.to_string());
        assert_eq!(stat(&stats, "evermap_memory_bound_by"), "cgroup");
        assert_eq!(stat(&stats, "evictions") == "0", memory.is_none());
        let errors = server.stop();
        let expected = match memory {
            Some(_) => "evermap: warning: the memory limit is lowered from 200.0 MiB to 75.0 MiB",
            None => "evermap: warning: the memory is limited to 75.0 MiB",
        };
        assert!(errors.starts_with(expected), "{errors}");
        assert!(errors.contains(group.0.to_str().unwrap()), "{errors}");
        std::fs::remove_file(path).unwrap();
    }
}

/// Makes a command have at most this many open files, without a way to have more.
fn with_files(mut command: Command, count: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: the closure calls only functions that may be called between `fork` and `exec`, which
    // access nothing but what is given to them.
    unsafe {
        command.pre_exec(move || {
            /// The capability with which root could raise the limit.
            const CAP_SYS_RESOURCE: libc::c_ulong = 24;
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
            match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command
}

#[test]
fn connections_that_there_are_no_descriptors_for_are_not_promised() {
    let dir = tempfile::tempdir().unwrap();
    let serve = |files| {
        let mut command = evermap(["serve", "--threads", "2", "--listen", "127.0.0.1:0"]);
        command.arg("--metrics").arg("127.0.0.1:0").arg("--path").arg(dir.path().join("map"));
        with_files(command, files)
    };
    let server = Server::start(serve(97));
    let connect = || TcpStream::connect(server.addresses()[0]).unwrap();
    let mut first = connect();
    let stats = reply(&mut first, "stats\r\n", "END\r\n");
    let max: usize = stat(&stats, "max_connections").parse().unwrap();
    assert_eq!(max, 35);
    let settings = reply(&mut first, "stats settings\r\n", "END\r\n");
    assert_eq!(stat(&settings, "maxconns"), "35");
    assert_eq!(stat(&settings, "maxconns_asked"), "1024");
    // Those that ask for no metrics keep no client out.
    let idle = || TcpStream::connect(stat(&settings, "metrics")).unwrap();
    let _idle: Vec<_> = (0..40).map(|_| idle()).collect();
    // All that are promised are served at the same time, and the next one is told.
    let mut others: Vec<_> = (1..max).map(|_| connect()).collect();
    for stream in &mut others {
        assert_eq!(reply(stream, "mn\r\n", "MN\r\n"), "MN\r\n");
    }
    let mut text = String::new();
    connect().read_to_string(&mut text).unwrap();
    assert_eq!(text, "ERROR Too many open connections\r\n");
    let stats = reply(&mut first, "stats\r\n", "END\r\n");
    assert_eq!(stat(&stats, "listen_disabled_num"), "0");
    let errors = server.stop();
    assert!(
        errors.starts_with(
            "evermap: warning: at most 35 connections instead of 1024, because the limit of open \
             files is 97 and cannot be raised"
        ),
        "{errors}"
    );
    let output = CommandOutput::new(serve(20).output().unwrap());
    output.failure("the limit of open files, 20, is too low: with 2 threads this server needs");
}
