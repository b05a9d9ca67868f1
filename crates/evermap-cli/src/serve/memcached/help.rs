//! What `-h`, `-V` and `-i` print.

use evermap_server::Config;

/// Returns the text that an option asks for, or `None` if it does not ask for one.
pub(super) fn text_of(letter: char) -> Option<String> {
    match letter {
        'h' => Some(help()),
        'V' => Some(format!("memcached {}\n", Config::default().version)),
        'i' => Some(LICENSE.to_owned()),
        _ => None,
    }
}

const LICENSE: &str = "\
Evermap is free software: you may use, change and distribute it under the MIT License or the Apache
License, Version 2.0, as you choose. It comes without any warranty.
";

/// Returns the list of options. Test programs for memcached look for words in it, to find out what
/// a server can do.
fn help() -> String {
    let version = Config::default().version;
    let tls = if cfg!(feature = "tls") { TLS } else { "" };
    format!("memcached {version}\n{OPTIONS}{tls}{EXTENDED}")
}

const OPTIONS: &str = "\
A server with memcached's protocol and options, whose items survive the end of its process.

-p, --port=<num>          TCP port (default: 11211, 0: none, -1: any free one)
-U, --udp-port=<num>      0: there is no UDP
-s, --unix-socket=<file>  unix socket instead of a port
-a, --unix-mask=<mask>    permissions of the unix socket, in octal (default: 700)
-A, --enable-shutdown     enable the command \"shutdown\"
-l, --listen=<addr>       address to listen on, <addr> or <addr>:<port>; a list with commas, or
                          several times; notls:<addr> without TLS, btls:<addr> with TLS but without
                          certificates of clients, mtls:<addr> with both (default: all)
-d, --daemon              run in the background
-r, --enable-coredumps    allow memory dumps
-u, --user=<user>         user to become, if started by root
-m, --memory-limit=<num>  memory of the items in megabytes (default: 64, 0: no limit)
-M, --disable-evictions   answer an error when the memory is full
-c, --conn-limit=<num>    maximum number of connections (default: 1024)
-k, --lock-memory         keep the memory from being swapped out
-v, --verbose             say on standard error when clients can connect
-h, --help                print this
-i, --license             print the license
-V, --version             print the version
-P, --pidfile=<file>      write the number of the process to a file
-f, --slab-growth-factor=<num>  without effect: there are no slabs
-n, --slab-min-size=<num>       without effect: there are no slabs
-L, --enable-largepages         without effect: mount the file's tmpfs with huge=always
-D <char>                 character after the prefix of keys, for statistics for each prefix
-t, --threads=<num>       number of worker threads (default: 4)
-R, --max-reqs-per-event=<num>  reads from a connection, of up to 64 KiB each, before others get
                          their turn (default: 4)
-C, --disable-cas         without effect: items always have CAS ids
-b, --listen-backlog=<num>  number of connections that wait to be accepted (default: 1024)
-B, --protocol=<name>     ascii, binary or auto (default: auto)
-I, --max-item-size=<num> maximum size of an item, 1k to 64m (default: 1m)
-S, --enable-sasl         require SASL authentication
-F, --disable-flush-all   disable the command \"flush_all\"
-X, --disable-dumping     disable \"stats cachedump\" and \"lru_crawler metadump\"
-W, --disable-watch       disable the command \"watch\"
-Y, --auth-file=<file>    file of user:password lines for text authentication
-e, --memory-file=<file>  file of the items; it survives kill -9, and may be on a tmpfs (default:
                          a file in /dev/shm for each port)
-o, --extended=<list>     more options, with commas between them
";

const TLS: &str = "\
-Z, --enable-ssl          use TLS, with -o ssl_chain_cert and ssl_key
   - ssl_chain_cert, ssl_key:  files in PEM format; SIGHUP and \"refresh_certs\" read them again
   - ssl_verify_mode:     certificates of clients: 0 none, 1 if presented, 2 and 3 required
   - ssl_ca_cert:         file with the authorities of the clients
   - ssl_min_version:     2: TLS 1.2 (default), 3: TLS 1.3
   - ssl_session_cache:   clients may continue sessions
";

const EXTENDED: &str = "\
-o: options with an effect
   - maxconns_fast:       answer an error to connections that are too many (default)
   - no_maxconns_fast:    let them wait
   - idle_timeout=<num>:  seconds after which an idle connection is closed (default: 0, never)
   - metrics=<addr:port>: answer Prometheus at http://addr:port/metrics (default: no metrics)
   - watcher_logbuf_size=<num>: KiB of log lines that wait for each watcher (default: 256)
   - worker_logbuf_size=<num>:  KiB of log records that wait in each thread (default: 64)
-o: accepted without effect, because they tune what is different here
   - hashpower, no_hashexpand, hash_algorithm, tail_repair_time, slab_*, lru_*, *_lru_pct,
     *_max_factor, temporary_ttl, track_sizes, *_mem_limit, ext_*, modern and others
";

#[cfg(test)]
mod tests {
    use super::*;

    /// What memcached's own test programs look for.
    #[test]
    fn the_help_has_the_words_that_are_true() {
        let help = help();
        for word in ["sasl", "unix-socket"] {
            assert!(help.contains(word), "{word}");
        }
        assert_eq!(help.contains("enable-ssl"), cfg!(feature = "tls"));
        for word in ["ext_path", "proxy_config", "no_drop_privileges"] {
            assert!(!help.contains(word), "{word}");
        }
    }
}
