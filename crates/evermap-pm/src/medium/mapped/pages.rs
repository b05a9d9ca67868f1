//! Reports which kinds of pages back a mapping.

use std::ops::Range;

/// How much of a mapping is resident, and in which kinds of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageReport {
    /// Bytes that this process has mapped, in pages of any size.
    pub bytes_resident: u64,
    /// The part of them in huge pages (2 MiB or more on x86-64).
    pub bytes_huge: u64,
}

/// Returns the report for these addresses. The kernel walks the page tables of the process for it.
///
/// Returns zeros if `/proc` cannot be read.
pub(super) fn report(addresses: Range<usize>) -> PageReport {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    sum(&smaps, addresses)
}

fn sum(smaps: &str, addresses: Range<usize>) -> PageReport {
    let mut report = PageReport::default();
    let mut ours = false;
    for line in smaps.lines() {
        // The entry of a mapping begins with its addresses. Its properties follow, one per line.
        let Some((name, value)) = line.split_once(':').filter(|(name, _)| !name.contains(' '))
        else {
            ours = starts_within(line, &addresses);
            continue;
        };
        if !ours {
            continue;
        }
        let kib =
            value.split_ascii_whitespace().next().and_then(|number| number.parse::<u64>().ok());
        let bytes = kib.unwrap_or(0) * 1024;
        match name {
            "Rss" => report.bytes_resident += bytes,
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => report.bytes_huge += bytes,
            // The kernel does not count pages of hugetlbfs in the resident set.
            "Shared_Hugetlb" | "Private_Hugetlb" => {
                report.bytes_resident += bytes;
                report.bytes_huge += bytes;
            }
            _ => {}
        }
    }
    report
}

fn starts_within(line: &str, addresses: &Range<usize>) -> bool {
    let start = line.split_once('-').map_or("", |(start, _)| start);
    usize::from_str_radix(start, 16).is_ok_and(|start| addresses.contains(&start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 fd:00 12  /a: b
Size:               4096 kB
Rss:                4096 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd wr sh
7f0000400000-7f0000800000 rw-s 00400000 00:0f 13  /huge
Rss:                   0 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:     4096 kB
7f0000800000-7f0000900000 rw-p 00000000 00:00 0
Rss:                1024 kB
AnonHugePages:         0 kB
";

    #[test]
    fn only_our_mappings_are_summed() {
        let report = |addresses| {
            let PageReport { bytes_resident, bytes_huge } = sum(SMAPS, addresses);
            (bytes_resident >> 20, bytes_huge >> 20)
        };
        assert_eq!(report(0x7f00_0000_0000..0x7f00_0040_0000), (4, 2));
        assert_eq!(report(0x7f00_0000_0000..0x7f00_0080_0000), (8, 6));
        assert_eq!(report(0x7f00_0080_0000..0x7f00_0090_0000), (1, 0));
        assert_eq!(report(0..0x1000), (0, 0));
    }
}
