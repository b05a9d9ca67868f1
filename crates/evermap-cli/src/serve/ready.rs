//! What a server says when clients can connect.

use std::path::Path;
use std::time::Duration;

use evermap::Stat;
use evermap_server::ListenAddress;

use super::pid_file::write_whole;

/// Returns the line that reports that the server accepts connections.
pub(super) fn ready_line(store: &Stat, addresses: &[ListenAddress], duration: Duration) -> String {
    let duration = duration.as_secs_f64() * 1e3;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let addresses = addresses.join(", ");
    let Some(path) = &store.path else {
        return format!("ready on {addresses}: new store in memory, lost at exit");
    };
    let records = match (store.records.exact, store.records.value) {
        (true, 1) => "1 record".to_owned(),
        (true, count) => format!("{count} records"),
        (false, _) => "records being counted".to_owned(),
    };
    let opened = match (store.generation, store.clean_open, store.suspect) {
        (..=1, ..) => "created",
        (_, true, _) => "opened after a clean shutdown",
        (_, false, false) => "recovered after an unclean shutdown",
        (_, false, true) => "salvaged after a system crash",
    };
    let (path, system) = (path.display(), &store.file_system);
    format!("ready on {addresses}: {path} ({system}), {records}, {opened} in {duration:.1} ms")
}

/// Writes the ports to the file that the environment names for memcached's test programs, which let
/// the server choose its port.
pub(super) fn write_ports(addresses: &[ListenAddress]) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else {
        return Ok(());
    };
    let mut text = String::new();
    for address in addresses.iter().filter_map(ListenAddress::tcp) {
        let family = if address.is_ipv4() { "INET" } else { "INET6" };
        text.push_str(&format!("TCP {family}: {}\n", address.port()));
    }
    write_whole(Path::new(&path), &text)
}
