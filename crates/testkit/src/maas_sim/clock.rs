//! Times as MAAS spells them, of which there are three kinds.

/// Milliseconds since 1970.
pub(super) type Millis = u64;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// As Django's `N` writes them.
const MONTHS_IN_PRINT: [&str; 12] =
    ["Jan.", "Feb.", "March", "April", "May", "June", "July", "Aug.", "Sept.", "Oct.", "Nov.", "Dec."];

struct Civil {
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
    milli: u64,
}

fn civil(at: Millis) -> Civil {
    let days = at / 86_400_000;
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let (mut year, mut rest) = (1970, days);
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while rest >= lengths[month] {
        rest -= lengths[month];
        month += 1;
    }
    let of_day = at % 86_400_000;
    Civil {
        year,
        month,
        day: rest + 1,
        weekday: usize::try_from(days % 7).unwrap_or(0),
        hour: of_day / 3_600_000,
        minute: of_day / 60_000 % 60,
        second: of_day / 1_000 % 60,
        milli: of_day % 1_000,
    }
}

/// `2026-11-15T07:57:39.030Z`: of machines.
pub(super) fn rfc3339(at: Millis) -> String {
    let c = civil(at);
    let (month, year) = (c.month + 1, c.year);
    format!("{year}-{month:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", c.day, c.hour, c.minute, c.second, c.milli)
}

/// `Sun, 15 Nov 2026 07:56:18 +0000`: of script results.
pub(super) fn rfc2822(at: Millis) -> String {
    let c = civil(at);
    let (day, month) = (DAYS[c.weekday], MONTHS[c.month]);
    format!("{day}, {:02} {month} {} {:02}:{:02}:{:02} +0000", c.day, c.year, c.hour, c.minute, c.second)
}

/// `Sun, 15 Nov. 2026 07:57:30`: of events. The dot is theirs, and there is no zone.
pub(super) fn in_print(at: Millis) -> String {
    let c = civil(at);
    let (day, month) = (DAYS[c.weekday], MONTHS_IN_PRINT[c.month]);
    format!("{day}, {:02} {month} {} {:02}:{:02}:{:02}", c.day, c.year, c.hour, c.minute, c.second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spelt_as_they_were_seen() {
        let at = 1_794_729_459_030;
        assert_eq!(rfc3339(at), "2026-11-15T07:57:39.030Z");
        assert_eq!(rfc2822(at), "Sun, 15 Nov 2026 07:57:39 +0000");
        assert_eq!(in_print(at), "Sun, 15 Nov. 2026 07:57:39");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
    }
}
