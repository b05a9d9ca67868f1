//! How long tests run.

use std::ffi::OsStr;

/// The length of a test run. See [`tier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Short campaigns, for every run of the tests.
    Default,
    /// Everything, for runs that may take long.
    Full,
}

impl Tier {
    /// Returns the value for this tier.
    pub fn choose<T>(self, default: T, full: T) -> T {
        match self {
            Tier::Default => default,
            Tier::Full => full,
        }
    }

    /// Parses the value of `EVERMAP_TEST_TIER`, or `None` if the variable is not set.
    fn parse(value: Option<&OsStr>) -> Result<Self, String> {
        match value {
            None => Ok(Tier::Default),
            Some(value) if value == "full" => Ok(Tier::Full),
            Some(value) => Err(format!(
                "EVERMAP_TEST_TIER is {value:?}: set it to \"full\" for all checks, or unset it"
            )),
        }
    }
}

/// Returns the tier that the environment variable `EVERMAP_TEST_TIER` chooses.
///
/// If it is not set, tests use few seeds, rounds and crash images. If it is `full`, they use all
/// that they have. A test checks the same properties in both tiers.
///
/// # Panics
/// If the variable has another value: a long run must not turn out to be a short one.
pub fn tier() -> Tier {
    let value = std::env::var_os("EVERMAP_TEST_TIER");
    Tier::parse(value.as_deref()).unwrap_or_else(|what| panic!("{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_full_and_unset_are_tiers() {
        assert_eq!(Tier::parse(None), Ok(Tier::Default));
        assert_eq!(Tier::parse(Some(OsStr::new("full"))), Ok(Tier::Full));
        for other in ["", "Full", "default", "1"] {
            assert!(
                Tier::parse(Some(OsStr::new(other))).unwrap_err().contains("EVERMAP_TEST_TIER")
            );
        }
        assert_eq!((Tier::Default.choose(1, 2), Tier::Full.choose(1, 2)), (1, 2));
    }
}
