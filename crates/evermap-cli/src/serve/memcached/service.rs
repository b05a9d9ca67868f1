//! From memcached's options to the server.

use evermap_server::Config;

use super::NAME;
use super::addresses::{default_endpoint, endpoints};
use super::options::Options;
use crate::failure::Failure;
use crate::rejoin::RejoinArguments;
use crate::serve::log::LogArguments;
use crate::serve::service::{Announcement, Naming, Place, Service, StoreSettings};

/// Returns the server that the options ask for.
///
/// # Errors
/// If an address cannot be used, or root has not said which user the server is to be.
pub(super) fn service(options: Options) -> Result<Service, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && options.user.is_none() {
        return Err(Failure::other("root needs -u NAME, the user that the server becomes"));
    }
    let endpoints = endpoints(&options).map_err(|wrong| Failure::other(wrong.to_string()))?;
    Ok(Service {
        store: StoreSettings {
            place: place(&options),
            durability: Default::default(),
            log: LogArguments::default(),
            index: Default::default(),
            order: Default::default(),
            rejoin: RejoinArguments::default(),
            memory: options.memory,
            namespaces: Vec::new(),
            evict: options.evict,
        },
        config: config(&options),
        endpoints,
        default_endpoint: default_endpoint(&options),
        tls: options.tls.then(|| options.tuning.tls()).flatten(),
        auth_file: options.auth_file,
        user: options.user,
        pid_file: options.pid_file,
        daemonize: options.daemonize,
        lock_memory: options.lock_memory,
        core_dumps: options.core_dumps,
        announcement: match options.verbosity {
            0 => Announcement::Nowhere,
            _ => Announcement::StandardError,
        },
        program: NAME,
        address_options: "-p, -l or -s",
    })
}

fn config(options: &Options) -> Config {
    let defaults = Config::default();
    let mut settings = options.tuning.reported.clone();
    if options.socket.is_some() {
        settings.insert("umask".into(), format!("{:o}", options.socket_mode));
    }
    Config {
        threads: options.threads,
        max_connections: options.max_connections,
        when_full: options.tuning.when_full,
        idle_timeout: options.tuning.idle_timeout(),
        metrics: options.tuning.metrics,
        reads_per_turn: options.reads_per_turn.unwrap_or(defaults.reads_per_turn),
        backlog: options.backlog,
        item_size_max: options.item_size_max,
        binding: options.binding,
        shutdown_command: options.shutdown_command,
        refused: options.refused.clone(),
        verbosity: options.verbosity,
        upload_limit: defaults.upload_limit.max(options.item_size_max),
        settings,
        watcher_buffer: options.tuning.watcher_buffer.unwrap_or(defaults.watcher_buffer),
        worker_log_buffer: options.tuning.worker_log_buffer.unwrap_or(defaults.worker_log_buffer),
        prefix_delimiter: options.prefix_delimiter.map_or(defaults.prefix_delimiter, |c| c as u8),
        detail: options.prefix_delimiter.is_some(),
        ..defaults
    }
}

/// Returns where the items are. Without `-e` they are in a file that is named after the first
/// address, because several servers of one user are usual. If the system chooses the port, there is
/// none: the next server would have another port, so it would not be known which file is its own.
fn place(options: &Options) -> Place {
    match &options.file {
        Some(file) => Place::File(file.clone()),
        None => Place::DefaultFile(Naming { plain_port: None, any_port: false }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::memcached::options::{Action, parse};

    fn name(arguments: &[&str]) -> Option<String> {
        let arguments = [&["-u", "root"], arguments].concat();
        let Ok(Action::Serve(options)) = parse(arguments.iter().map(Into::into)) else {
            panic!("{arguments:?}")
        };
        let service = service(*options).unwrap_or_else(|failure| panic!("{failure}"));
        match &service.store.place {
            Place::DefaultFile(naming) => naming.name(service.first_address(&[]).as_ref()),
            Place::File(path) => Some(path.display().to_string()),
            Place::Memory => None,
        }
    }

    /// Servers of one user must not take each other's file, and each has to find its own again.
    #[test]
    fn each_server_has_a_file_of_its_own() {
        for (arguments, expected) in [
            (&[][..], Some("-11211")),
            (&["-p", "11212"], Some("-11212")),
            (&["-l", "127.0.0.1"], Some("-11211")),
            (&["-l", "127.0.0.1:11212"], Some("-11212")),
            (&["-l", "127.0.0.1:11212", "-p", "0"], Some("-11212")),
            (&["-l", "127.0.0.2"], Some("-127.0.0.2-11211")),
            (&["-l", "127.0.0.2,127.0.0.3"], Some("-127.0.0.2-11211")),
            (&["-l", "[::1]:5"], Some("-..1-5")),
            (&["-s", "/run/cache"], Some("-run-cache")),
            (&["-p", "5", "-e", "/x"], Some("/x")),
            (&["-p", "-1"], None),
            (&["-p", "-1", "-l", "127.0.0.2"], None),
        ] {
            assert_eq!(name(arguments).as_deref(), expected, "{arguments:?}");
        }
    }
}
