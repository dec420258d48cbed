//! The page size that the kernel really used for a mapping.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    ops::Range,
};

/// The smallest page size within the addresses of this process.
pub(crate) fn page_bytes(addresses: &Range<usize>) -> io::Result<usize> {
    parse(BufReader::new(File::open("/proc/self/smaps")?), addresses)
}

fn parse(mut smaps: impl BufRead, addresses: &Range<usize>) -> io::Result<usize> {
    let mut line = String::new();
    let mut overlap = 0;
    let mut covered = 0;
    let mut smallest: Option<usize> = None;
    while smaps.read_line(&mut line)? != 0 {
        if let Some(mapping) = header(&line) {
            let start = mapping.start.max(addresses.start);
            overlap = mapping.end.min(addresses.end).saturating_sub(start);
        } else if overlap != 0 {
            if let Some(bytes) = kernel_page_bytes(&line) {
                covered += overlap;
                smallest = Some(smallest.map_or(bytes, |other| other.min(bytes)));
            }
        }
        line.clear();
    }
    match smallest {
        Some(bytes) if covered == addresses.len() => Ok(bytes),
        _ => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the mapping is not in smaps",
        )),
    }
}

/// The addresses of a mapping, from the line that starts its entry.
fn header(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    Some(parse(start)?..parse(end)?)
}

fn kernel_page_bytes(line: &str) -> Option<usize> {
    let kib = line
        .strip_prefix("KernelPageSize:")?
        .trim()
        .strip_suffix("kB")?;
    kib.trim().parse::<usize>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:0f 1 /memfd:a (deleted)\n\
Size:               4096 kB\n\
KernelPageSize:     2048 kB\n\
MMUPageSize:        2048 kB\n\
VmFlags: rd wr sh mr mw me ms de ht sd\n\
7f0000400000-7f0000402000 rw-s 00000000 00:01 2 /memfd:b (deleted)\n\
Size:                  8 kB\n\
KernelPageSize:        4 kB\n";

    fn at(addresses: Range<usize>) -> io::Result<usize> {
        parse(SMAPS.as_bytes(), &addresses)
    }

    #[test]
    fn finds_the_page_size_of_a_mapping() {
        assert_eq!(at(0x7f00_0000_0000..0x7f00_0040_0000).unwrap(), 2 << 20);
        assert_eq!(at(0x7f00_0020_0000..0x7f00_0040_0000).unwrap(), 2 << 20);
        assert_eq!(at(0x7f00_0040_0000..0x7f00_0040_1000).unwrap(), 4 << 10);
    }

    #[test]
    fn the_smallest_page_decides() {
        assert_eq!(at(0x7f00_0000_0000..0x7f00_0040_2000).unwrap(), 4 << 10);
    }

    #[test]
    fn addresses_outside_are_an_error() {
        assert!(at(0x1000..0x2000).is_err());
        assert!(at(0x7f00_0040_0000..0x7f00_0040_3000).is_err());
    }
}
