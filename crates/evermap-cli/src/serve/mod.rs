//! `evermap serve`, and the same server under the name and with the options of memcached.

mod activation;
mod daemon;
mod default_path;
mod endpoints;
mod listeners;
mod log;
pub(crate) mod memcached;
mod memory_bounds;
mod notify;
mod options;
mod pid_file;
mod privileges;
mod ready;
mod service;
mod signals;

pub(crate) use options::Arguments;
