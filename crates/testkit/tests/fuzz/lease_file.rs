//! The file of leases, as a power cut, a full disk or a stranger may have left it.
//!
//! Promised: it opens, with every lease whose line is whole and with none that nobody gave; a tear anywhere loses what
//! comes after it and nothing before; and what is kept afterwards is there at the next start.

use boot::Mac;
use boot::dhcp::{Lease, LeaseKeeper as _};
use boot::lease_file::LeaseFile;
use domain::Timestamp;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use testkit::fuzz::Fuzz;

/// The whole lines of a file by a reading of its own, the last of an address.
fn whole(bytes: &[u8]) -> Vec<Lease> {
    let mut leases = BTreeMap::new();
    let Some(end) = bytes.iter().rposition(|b| *b == b'\n') else { return Vec::new() };
    for line in bytes[..end].split(|b| *b == b'\n') {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        if let [address, mac, until] = words.as_slice()
            && let (Some(address), Some(mac), Some(until)) = (address_of(address), mac_of(mac), number_of(until))
        {
            leases.insert(address, Lease { address, mac: Mac::new(mac), until: Timestamp::from_micros(until) });
        }
    }
    leases.into_values().collect()
}

fn address_of(text: &[u8]) -> Option<Ipv4Addr> {
    let parts: Vec<&[u8]> = text.split(|b| *b == b'.').collect();
    let plain = |part: &&[u8]| part.len() == 1 || (part.len() <= 3 && part.first() != Some(&b'0'));
    let octet = |part: &[u8]| {
        let digits = part.iter().all(u8::is_ascii_digit) && !part.is_empty();
        digits.then(|| part.iter().fold(0u32, |n, b| n * 10 + u32::from(b - b'0'))).and_then(|n| u8::try_from(n).ok())
    };
    let octets: Option<Vec<u8>> = parts.iter().filter(|part| plain(part)).map(|part| octet(part)).collect();
    let octets: [u8; 4] = octets.filter(|_| parts.len() == 4)?.try_into().ok()?;
    Some(octets.into())
}

fn mac_of(text: &[u8]) -> Option<[u8; 6]> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut octets = [0; 6];
    if text.len() != 17 || !text.iter().skip(2).step_by(3).all(|b| *b == text[2] && b":-".contains(b)) {
        return None;
    }
    for (octet, pair) in octets.iter_mut().zip(text.chunks(3)) {
        *octet = digit(pair[0])? * 16 + digit(pair[1])?;
    }
    Some(octets)
}

fn number_of(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text.split_first() {
        Some((b'-', digits)) => (-1, digits),
        Some((b'+', digits)) => (1, digits),
        _ => (1, text),
    };
    let digits: Vec<i128> =
        digits.iter().map(|b| b.is_ascii_digit().then(|| i128::from(b - b'0'))).collect::<Option<_>>()?;
    let number = digits.iter().try_fold(0i128, |n, d| Some(n * 10 + d).filter(|n| *n < 1 << 100))?;
    i64::try_from(sign * number).ok().filter(|_| !digits.is_empty())
}

#[test]
fn lease_file() {
    let seeds: [&[u8]; 8] = [
        b"10.77.0.1 52:54:00:00:00:01 1800000000000000\n10.77.0.2 52:54:00:00:00:02 1800000000000001\n",
        b"10.77.0.1 52:54:00:00:00:01 1800000000000000\n10.77.0.1 52:54:00:00:00:01 18000000",
        b"10.77.0.1 52-54-00-00-00-01 -5\r\n10.77.0.1 52:54:00:00:00:01 +7\n10.77.0.3 52:54:00:00:00:0",
        b"\0\0\0\0\0\0\0\0\n10.77.0.1 52:54:00:00:00:01 5\n\xff\xfe\n10.77.0.2 52:54:00:00:00:02 6\n",
        b"010.77.0.1 52:54:00:00:00:01 5\n256.0.0.1 52:54:00:00:00:01 5\n1.2.3 52:54:00:00:00:01 5\n",
        b"10.77.0.1  52:54:00:00:00:01 5\n10.77.0.1 52:54:00:00:00:01 5 6\n 10.77.0.1 52:54:00:00:00:01 5\n",
        b"10.77.0.1 52:54:00:00:00:01 9223372036854775808\n10.77.0.1 52:54:00:00:00:01 -9223372036854775808\n",
        b"",
    ];
    let words =
        ["10.77.0.1 ", "10.77.0.2 ", "52:54:00:00:00:01 ", "52-54-00-00-00-02 ", "1800000000000000", "\n", " ", "\r\n"];
    Fuzz::new("lease_file", module_path!()).seeds(seeds).words(words).inputs(1_500).run(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let fresh = Lease {
            address: Ipv4Addr::new(10, 77, 9, 9),
            mac: Mac::new([2, 0, 0, 0, 0, 9]),
            until: Timestamp::from_micros(9),
        };
        move |input| {
            let path = folder.path().join("leases");
            let open = || {
                let file = LeaseFile::open(&path).map_err(|e| format!("it does not open: {e}"))?;
                let all = runtime.block_on(file.all())?;
                Ok::<_, String>((file, all))
            };
            // torn somewhere, which the input decides
            let tear = input.iter().fold(7usize, |n, b| n.wrapping_mul(31).wrapping_add(usize::from(*b)));
            let mut found = 0;
            for bytes in [input, &input[..tear % (input.len() + 1)]] {
                std::fs::write(&path, bytes).expect("written");
                let (file, all) = open()?;
                let expected = whole(bytes);
                if all != expected {
                    return Err(format!("{all:?} instead of {expected:?}"));
                }
                found += all.len();
                runtime.block_on(file.keep(fresh)).map_err(|e| format!("cannot be kept: {e}"))?;
                drop(file);
                let mut more: BTreeMap<_, _> = expected.into_iter().map(|lease| (lease.address, lease)).collect();
                more.insert(fresh.address, fresh);
                let (_, again) = open()?;
                if again != more.into_values().collect::<Vec<_>>() {
                    return Err(format!("after the next one: {again:?}"));
                }
            }
            Ok(format!("{} of {}", found.min(9), input.iter().filter(|b| **b == b'\n').count().min(9)))
        }
    });
}
