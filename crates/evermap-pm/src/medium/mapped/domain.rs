//! What this machine's persistent memory keeps on power loss, as the kernel reports it.

use std::path::Path;

use super::FlushKind;
use crate::{ErrorKind, Result};

/// Where the kernel lists persistent-memory regions.
const REGIONS: &str = "/sys/bus/nd/devices";

/// Checks that this machine can provide `kind`.
///
/// # Errors
///
/// `Config` with the reason. A weaker kind is never used instead.
pub(super) fn check(kind: FlushKind) -> Result<()> {
    match kind {
        FlushKind::Process | FlushKind::Forced => Ok(()),
        FlushKind::Adr | FlushKind::Eadr => check_among(kind, &domains(Path::new(REGIONS))),
    }
}

fn check_among(kind: FlushKind, regions: &[(String, String)]) -> Result<()> {
    let refuse = |why: String| Err(ErrorKind::Config(format!("flush kind `{kind}`: {why}")).into());
    if cfg!(not(target_arch = "x86_64")) {
        return refuse("lines are written back on x86-64 only; use `process`".into());
    }
    if regions.is_empty() {
        return refuse(format!("no persistent-memory region in {REGIONS}; use `process`"));
    }
    match kind {
        FlushKind::Eadr => match regions.iter().find(|(_, domain)| domain != "cpu_cache") {
            Some((region, domain)) => refuse(format!(
                "persistence_domain of {region} is `{domain}`, not `cpu_cache`; use `adr`"
            )),
            None => Ok(()),
        },
        // It is not known here which device the file is on. Mapping it with MAP_SYNC checks that
        // one.
        _ if regions
            .iter()
            .any(|(_, domain)| matches!(domain.as_str(), "memory_controller" | "cpu_cache")) =>
        {
            Ok(())
        }
        _ => refuse(format!(
            "no region in {REGIONS} has persistence_domain `memory_controller` or `cpu_cache`"
        )),
    }
}

/// Returns the name and persistence domain of every region. The domain is `unknown` if it cannot be
/// read.
fn domains(directory: &Path) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.starts_with("region").then(|| {
                let domain = std::fs::read_to_string(entry.path().join("persistence_domain"));
                let domain = domain.map_or("unknown".into(), |text| text.trim().to_owned());
                (name, domain)
            })
        })
        .collect()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Returns whether ADR and eADR are granted on a machine with regions of these domains.
    fn granted(regions: &[&str]) -> (bool, bool) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("nmem0")).unwrap();
        for (number, domain) in regions.iter().enumerate() {
            let region = directory.path().join(format!("region{number}"));
            std::fs::create_dir(&region).unwrap();
            std::fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
        }
        let found = domains(directory.path());
        assert_eq!(found.len(), regions.len());
        (check_among(FlushKind::Adr, &found).is_ok(), check_among(FlushKind::Eadr, &found).is_ok())
    }

    #[test]
    fn a_kind_is_granted_only_where_the_kernel_vouches_for_it() {
        assert_eq!(granted(&[]), (false, false));
        assert_eq!(granted(&[""]), (false, false));
        assert_eq!(granted(&["memory_controller"]), (true, false));
        assert_eq!(granted(&["cpu_cache"]), (true, true));
        assert_eq!(granted(&["cpu_cache", "memory_controller"]), (true, false));
        assert_eq!(granted(&["cpu_cache", ""]), (true, false));
    }

    #[test]
    fn a_region_that_does_not_say_counts_as_unknown() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("region0")).unwrap();
        assert_eq!(domains(directory.path()), [("region0".into(), "unknown".into())]);
        assert!(domains(&directory.path().join("nothing")).is_empty());
    }
}
