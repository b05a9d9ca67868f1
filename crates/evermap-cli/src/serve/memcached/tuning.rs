//! The options of `-o`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evermap_server::server::{
    ClientCertificates, LOG_BUFFER_LIMIT, LOG_BUFFER_MIN, TlsSettings, TlsVersion, WhenFull,
};

use super::wrong::{Wrong, number};
use crate::serve::options::parse_metrics_address;

/// What the options of `-o` say.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    idle_seconds: Option<u32>,
    pub(super) when_full: WhenFull,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    client_certificates: ClientCertificates,
    min_version: TlsVersion,
    session_cache: bool,
    /// Where metrics are answered; memcached has no such option.
    pub(super) metrics: Option<SocketAddr>,
    /// In bytes.
    pub(super) watcher_buffer: Option<usize>,
    /// In bytes.
    pub(super) worker_log_buffer: Option<usize>,
    /// What `stats settings` shows, by name.
    pub(super) reported: BTreeMap<String, String>,
    /// The options that were given and have no effect.
    without_effect: Vec<String>,
}

/// What an option without effect may have as a value.
#[derive(Clone, Copy)]
enum Value {
    None,
    Number,
    Fraction,
    Text,
    /// A number, or nothing.
    OptionalNumber,
}

/// memcached's options for what is different here, under the names of `stats settings`. They are
/// accepted, so that a command line for memcached works, and checked.
const ACCEPTED: [(&str, Value); 52] = [
    ("drop_privileges", Value::None),
    ("ext_compact_under", Value::Number),
    ("ext_direct_io", Value::None),
    ("ext_drop_under", Value::Number),
    ("ext_drop_unread", Value::None),
    ("ext_io_depth", Value::Number),
    ("ext_item_age", Value::Number),
    ("ext_item_size", Value::Number),
    ("ext_low_ttl", Value::Number),
    ("ext_max_frag", Value::Fraction),
    ("ext_max_sleep", Value::Number),
    ("ext_page_size", Value::Number),
    ("ext_path", Value::Text),
    ("ext_recache_rate", Value::Number),
    ("ext_threads", Value::Number),
    ("ext_wbuf_size", Value::Number),
    ("hash_algorithm", Value::Text),
    ("hashpower", Value::Number),
    ("hot_lru_pct", Value::Number),
    ("hot_max_factor", Value::Fraction),
    ("inline_ascii_resp", Value::None),
    ("lru_crawler", Value::None),
    ("lru_crawler_sleep", Value::Number),
    ("lru_crawler_tocrawl", Value::Number),
    ("lru_maintainer", Value::None),
    ("modern", Value::None),
    ("no_chunked_items", Value::None),
    ("no_drop_privileges", Value::None),
    ("no_hashexpand", Value::None),
    ("no_inline_ascii_resp", Value::None),
    ("no_lru_crawler", Value::None),
    ("no_lru_maintainer", Value::None),
    ("no_modern", Value::None),
    ("no_slab_reassign", Value::None),
    ("read_buf_mem_limit", Value::Number),
    ("relaxed_privileges", Value::None),
    ("resp_obj_mem_limit", Value::Number),
    ("slab_automove", Value::OptionalNumber),
    ("slab_automove_freeratio", Value::Fraction),
    ("slab_automove_ratio", Value::Fraction),
    ("slab_automove_window", Value::Number),
    ("slab_chunk_max", Value::Number),
    ("slab_reassign", Value::None),
    ("slab_sizes", Value::Text),
    ("ssl_ciphers", Value::Text),
    ("ssl_kernel_tls", Value::None),
    ("ssl_wbuf_size", Value::Number),
    ("tail_repair_time", Value::Number),
    ("temporary_ttl", Value::Number),
    ("track_sizes", Value::None),
    ("warm_lru_pct", Value::Number),
    ("warm_max_factor", Value::Fraction),
];

/// Options whose absence changes nothing that a client could notice, so that there is nothing to
/// say about them: they describe what this server does anyway.
const SILENT: [&str; 7] = [
    "drop_privileges",
    "inline_ascii_resp",
    "lru_crawler",
    "lru_maintainer",
    "modern",
    "no_drop_privileges",
    "relaxed_privileges",
];

impl Tuning {
    /// Returns the time after which idle clients are disconnected.
    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        self.idle_seconds.filter(|&seconds| seconds > 0).map(|s| Duration::from_secs(s.into()))
    }

    /// Adds options, with commas between them.
    pub(super) fn add(&mut self, list: &str) -> Result<(), Wrong> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if !self.apply(name, value)? {
                self.accept(name, value)?;
            }
        }
        Ok(())
    }

    /// Applies an option that has an effect. Returns `false` if it is none of these.
    fn apply(&mut self, name: &str, value: Option<&str>) -> Result<bool, Wrong> {
        let needed = || value.ok_or_else(|| Wrong(format!("-o {name} needs a value")));
        match name {
            "maxconns_fast" => self.when_full = WhenFull::Reject,
            "no_maxconns_fast" => self.when_full = WhenFull::Wait,
            "idle_timeout" => {
                self.idle_seconds = Some(number("o idle_timeout", needed()?, 0, u32::MAX)?);
            }
            "metrics" => {
                let address = parse_metrics_address(needed()?);
                let wrong = |why| Wrong(format!("-o metrics: {why}"));
                self.metrics = Some(address.map_err(wrong)?);
            }
            "ssl_chain_cert" => self.certificate = Some(needed()?.into()),
            "ssl_key" => self.key = Some(needed()?.into()),
            "ssl_ca_cert" => self.client_ca = Some(needed()?.into()),
            "ssl_verify_mode" => self.client_certificates = verify_mode(needed()?)?,
            "ssl_min_version" => self.set_min_version(needed()?)?,
            "ssl_keyformat" => {
                if needed()? != "1" {
                    return Err(Wrong("-o ssl_keyformat: must be 1, which is PEM".into()));
                }
            }
            "watcher_logbuf_size" => {
                self.watcher_buffer = Some(log_buffer("o watcher_logbuf_size", needed()?)?);
            }
            "worker_logbuf_size" => {
                self.worker_log_buffer = Some(log_buffer("o worker_logbuf_size", needed()?)?);
            }
            // memcached has no limit on the time that a session lives in its cache.
            "ssl_session_cache" => self.session_cache = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Accepts an option that has no effect.
    fn accept(&mut self, name: &str, value: Option<&str>) -> Result<(), Wrong> {
        if name.starts_with("proxy_") {
            return Err(Wrong(format!(
                "-o {name}: there is no proxy in this server; put one in front of it"
            )));
        }
        let Some(&(name, kind)) = ACCEPTED.iter().find(|(known, _)| *known == name) else {
            return Err(Wrong(format!("there is no option -o {name}; -h lists them")));
        };
        check(name, kind, value)?;
        if !SILENT.contains(&name) {
            self.without_effect.push(format!("-o {name}"));
        }
        self.report(name, value.unwrap_or("yes"));
        Ok(())
    }

    fn set_min_version(&mut self, value: &str) -> Result<(), Wrong> {
        self.min_version = match value {
            // TLS 1.0 and 1.1 are not accepted, as RFC 8996 demands.
            "0" | "1" => {
                self.without_effect.push(format!("-o ssl_min_version={value}"));
                TlsVersion::V1_2
            }
            "2" => TlsVersion::V1_2,
            "3" => TlsVersion::V1_3,
            _ => return Err(Wrong(format!("-o ssl_min_version={value}: must be from 0 to 3"))),
        };
        Ok(())
    }

    /// Sets what `stats settings` shows.
    pub(super) fn report(&mut self, name: &str, value: &str) {
        self.reported.insert(name.to_owned(), value.to_owned());
    }

    pub(super) fn without_effect(&self) -> impl Iterator<Item = &str> {
        self.without_effect.iter().map(String::as_str)
    }

    /// Returns `true` if there are a certificate and a key.
    pub(super) fn has_certificate(&self) -> bool {
        self.certificate.is_some() && self.key.is_some()
    }

    /// Returns the settings of TLS, if there are a certificate and a key.
    pub(super) fn tls(&self) -> Option<TlsSettings> {
        Some(TlsSettings {
            certificates: self.certificate.clone()?,
            key: self.key.clone()?,
            client_ca: self.client_ca.clone(),
            client_certificates: self.client_certificates,
            min_version: self.min_version,
            session_cache: self.session_cache,
        })
    }
}

/// Parses the size of a buffer for log lines, which is in KiB, and returns it in bytes.
fn log_buffer(option: &str, value: &str) -> Result<usize, Wrong> {
    let kibibytes = |bytes: usize| (bytes >> 10) as u32;
    let range = (kibibytes(LOG_BUFFER_MIN), kibibytes(LOG_BUFFER_LIMIT));
    Ok(number(option, value, range.0, range.1)? as usize * 1024)
}

fn verify_mode(value: &str) -> Result<ClientCertificates, Wrong> {
    match value {
        "0" => Ok(ClientCertificates::Ignored),
        "1" => Ok(ClientCertificates::Requested),
        // "Once" differs from "require" only when a connection is negotiated again, which TLS does
        // not do any more.
        "2" | "3" => Ok(ClientCertificates::Required),
        _ => Err(Wrong(format!("-o ssl_verify_mode={value}: must be from 0 to 3"))),
    }
}

/// Checks the value of an option without effect.
fn check(name: &str, kind: Value, value: Option<&str>) -> Result<(), Wrong> {
    let is_number =
        |text: &str| text.trim_end_matches(['k', 'm', 'g', 'K', 'M', 'G']).parse::<u64>();
    let expected = match (kind, value) {
        (Value::None, None) | (Value::OptionalNumber, None) => return Ok(()),
        (Value::Number | Value::OptionalNumber, Some(text)) if is_number(text).is_ok() => {
            return Ok(());
        }
        (Value::Fraction, Some(text)) if text.parse::<f64>().is_ok_and(f64::is_finite) => {
            return Ok(());
        }
        (Value::Text, Some(text)) if !text.is_empty() => return Ok(()),
        (Value::None, Some(_)) => "has no value",
        (Value::Number | Value::OptionalNumber, _) => "needs a number",
        (Value::Fraction, _) => "needs a fraction",
        (Value::Text, _) => "needs a value",
    };
    Err(Wrong(format!("-o {name} {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(list: &str) -> Result<Tuning, String> {
        let mut tuning = Tuning::default();
        tuning.add(list).map_err(|error| error.to_string())?;
        Ok(tuning)
    }

    #[test]
    fn options_with_an_effect_are_applied() {
        let given = tuning(
            "no_maxconns_fast,idle_timeout=30,ssl_chain_cert=/c,ssl_key=/k,ssl_ca_cert=/a,\
             ssl_verify_mode=1,ssl_min_version=3,ssl_session_cache,watcher_logbuf_size=8,\
             metrics=127.0.0.1:9150",
        )
        .unwrap();
        assert_eq!(given.idle_seconds, Some(30));
        assert_eq!(given.when_full, WhenFull::Wait);
        assert_eq!(given.metrics, Some(([127, 0, 0, 1], 9150).into()));
        assert_eq!((given.watcher_buffer, given.worker_log_buffer), (Some(8 << 10), None));
        let tls = given.tls().unwrap();
        assert_eq!(tls.client_certificates, ClientCertificates::Requested);
        assert_eq!(tls.min_version, TlsVersion::V1_3);
        assert!(tls.session_cache && given.without_effect.is_empty());
        assert!(tuning("ssl_chain_cert=/c").unwrap().tls().is_none(), "there is no key");
    }

    #[test]
    fn every_other_option_of_memcached_is_accepted_and_reported() {
        for (name, kind) in ACCEPTED {
            let option = match kind {
                Value::None | Value::OptionalNumber => name.to_owned(),
                Value::Number => format!("{name}=5"),
                Value::Fraction => format!("{name}=0.5"),
                Value::Text => format!("{name}=text"),
            };
            let given = tuning(&option).unwrap();
            assert!(given.reported.contains_key(name), "{name}");
            assert_eq!(given.without_effect.is_empty(), SILENT.contains(&name), "{name}");
        }
        assert!(
            tuning("modern,slab_automove=2,hash_algorithm=murmur3,slab_chunk_max=512k").is_ok()
        );
    }

    #[test]
    fn wrong_options_are_refused() {
        for (list, message) in [
            ("nonsense", "there is no option -o nonsense"),
            ("hashpower", "-o hashpower needs a number"),
            ("hashpower=x", "-o hashpower needs a number"),
            ("modern=1", "-o modern has no value"),
            ("hot_max_factor=x", "needs a fraction"),
            ("idle_timeout", "-o idle_timeout needs a value"),
            ("metrics", "-o metrics needs a value"),
            ("metrics=9150", "-o metrics: "),
            ("watcher_logbuf_size=3", "-o watcher_logbuf_size 3: must be"),
            ("idle_timeout=x", "-o idle_timeout x: must be a number"),
            ("ssl_verify_mode=4", "from 0 to 3"),
            ("ssl_min_version=9", "from 0 to 3"),
            ("ssl_keyformat=2", "must be 1"),
            ("proxy_config=/x", "there is no proxy"),
        ] {
            let error = tuning(list).unwrap_err();
            assert!(error.contains(message), "{list}: {error}");
        }
    }
}
