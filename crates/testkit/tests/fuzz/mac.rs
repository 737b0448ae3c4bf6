//! MAC addresses as people and machines spell them. The judge works the other way round: it spells.

use domain::MacAddress;
use testkit::fuzz::Fuzz;

/// Every spelling of an address that is one, in lower case.
fn spellings(octets: [u8; 6]) -> [String; 4] {
    let hex: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    let fours: Vec<String> = hex.chunks(2).map(<[String]>::concat).collect();
    [hex.join(":"), hex.join("-"), fours.join("."), hex.concat()]
}

#[test]
fn mac() {
    let seeds = [
        "52:54:00:4d:59:01",
        "52-54-00-4D-59-01",
        "5254.004d.5901",
        "5254004D5901",
        "ff:ff:ff:ff:ff:ff",
        "00:00:00:00:00:00",
        "52:54-00:4d-59:01",
        "5:2:5:4:0:04d5901",
        "é2:54:00:4d:59:0",
    ];
    let words = [":", "-", ".", "00", "ff", "+", "0x", "é", "52:54:00", " "];
    Fuzz::new("mac", module_path!()).seeds(seeds).words(words).inputs(20_000).run(|| {
        |input: &[u8]| {
            // any six bytes, in every spelling and in either case
            let mut octets = [0; 6];
            octets.iter_mut().zip(input.iter().rev()).for_each(|(octet, byte)| *octet = *byte);
            let all = spellings(octets);
            for text in all.iter().flat_map(|text| [text.clone(), text.to_uppercase()]) {
                let read = MacAddress::parse(&text);
                if read.as_ref().map(MacAddress::as_str) != Some(&all[0]) {
                    return Err(format!("{text} is {read:?}"));
                }
                let a_cards = octets[0] % 2 == 0 && octets.iter().any(|octet| *octet > 0);
                if read.is_some_and(|read| read.is_a_cards()) != a_cards {
                    return Err(format!("{text} is taken for a card's, or is not"));
                }
            }
            // and what is read is spelt in one of these ways
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            let other: Option<boot::Mac> = text.parse().ok();
            let Some(read) = MacAddress::parse(text) else {
                return match other {
                    Some(other) => Err(format!("{text:?} is {other} to DHCP and nothing to the rest")),
                    None => Ok(format!("none {}", text.len().min(20))),
                };
            };
            let octets: Vec<u8> = read.as_str().split(':').filter_map(|p| u8::from_str_radix(p, 16).ok()).collect();
            let octets: [u8; 6] = octets.try_into().map_err(|o| format!("{text:?} is {o:?}"))?;
            let Some(spelling) = spellings(octets).iter().position(|known| *known == text.to_ascii_lowercase()) else {
                return Err(format!("{text:?} is taken for {read}"));
            };
            match other {
                Some(other) if other.octets() != octets => Err(format!("{text:?} is {other} to DHCP and {read} else")),
                Some(_) => Ok(format!("spelling {spelling}")),
                None if spelling < 2 => Err(format!("{text:?} is {read}, and nothing to DHCP")),
                None => Ok(format!("spelling {spelling} {}", read.is_a_cards())),
            }
        }
    });
}
