//! From memcached's options to the server.

use evermap_server::Config;

use super::NAME;
use super::addresses::{default_endpoint, endpoints};
use super::options::{Options, Port};
use crate::failure::Failure;
use crate::rejoin::RejoinArguments;
use crate::serve::service::{Announcement, Place, Service, StoreSettings};

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
            index: Default::default(),
            order: Default::default(),
            rejoin: RejoinArguments::default(),
            memory: options.memory,
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

/// Returns where the items are. Without `-e` they are in a file with a name of its own for each
/// port, because several servers of one user are usual.
fn place(options: &Options) -> Place {
    if let Some(file) = &options.file {
        return Place::File(file.clone());
    }
    let name = match (options.port, &options.socket) {
        (_, Some(socket)) => socket.display().to_string().replace(['/', ':'], "-"),
        (Port::Number(port), None) => format!("-{port}"),
        // The next server would have another port, so it would not find the items.
        (Port::Any | Port::Off, None) => return Place::Memory,
    };
    Place::DefaultFile { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::memcached::options::{Action, parse};

    fn name(arguments: &[&str]) -> Option<String> {
        match parse(arguments.iter().map(Into::into)) {
            Ok(Action::Serve(options)) => match place(&options) {
                Place::DefaultFile { name } => Some(name),
                Place::File(path) => Some(path.display().to_string()),
                Place::Memory => None,
            },
            _ => panic!("{arguments:?}"),
        }
    }

    /// Servers of one user must not take each other's file, and each has to find its own again.
    #[test]
    fn each_server_has_a_file_of_its_own() {
        assert_eq!(name(&[]).as_deref(), Some("-11211"));
        assert_eq!(name(&["-p", "11212"]).as_deref(), Some("-11212"));
        assert_eq!(name(&["-s", "/run/cache:1"]).as_deref(), Some("-run-cache-1"));
        assert_eq!(name(&["-p", "5", "-e", "/x"]).as_deref(), Some("/x"));
        assert_eq!(name(&["-p", "-1"]), None);
    }
}
