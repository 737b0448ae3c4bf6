//! Points in time and spans, as plain microseconds. The domain never asks what time it is: it is told.

use std::fmt;
use std::time::Duration;

/// Microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    /// RFC 3339: a date, `T`, a time with or without a fraction, and `Z` or an offset. A fraction is read to the
    /// microsecond.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let time = rest.strip_prefix(['T', 't'])?;
        let zone = time.find(['Z', 'z', '+', '-'])?;
        let (time, zone) = time.split_at_checked(zone)?;
        let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let [year, month, day] = fields(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = fields(clock, ':', [2, 2, 2])?;
        if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let micros: i64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        let offset = match zone.strip_prefix(['+', '-']) {
            None if zone.eq_ignore_ascii_case("z") => 0,
            None => return None,
            Some(ahead) => {
                let [hours, minutes] = fields(ahead, ':', [2, 2])?;
                let minutes = (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)?;
                if zone.starts_with('-') { -minutes } else { minutes }
            }
        };
        let days = days(year, month, day);
        // a day that there is not comes back as another one
        if civil(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let seconds = days * 86_400 + hour * 3600 + (minute - offset) * 60 + second;
        Some(Self(seconds * 1_000_000 + micros))
    }

    /// Saturates at the ends of the range instead of wrapping.
    pub fn plus(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    pub fn minus(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339, UTC, to the millisecond.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000_000);
        let in_day = self.0.rem_euclid(86_400_000_000) / 1000;
        let (year, month, day) = civil(days);
        let (seconds, millis) = (in_day / 1000, in_day % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Days since 1970-01-01 to a date of the proleptic Gregorian calendar, counting in years that
/// begin in March so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_IN_400_YEARS: i64 = 146_097;
    let from_march_0000 = days + 719_468;
    let era = from_march_0000.div_euclid(DAYS_IN_400_YEARS);
    let day_of_era = from_march_0000.rem_euclid(DAYS_IN_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The other way round.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Numbers of so many digits each.
fn fields<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut read = [0; N];
    for (number, width) in read.iter_mut().zip(widths) {
        let part = parts.next().filter(|part| part.len() == width && part.bytes().all(|b| b.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back_and_nothing_else() {
        for micros in [0, 1_769_699_400_123_000, 951_782_400_000_000, -1_000, 253_402_300_799_999_000] {
            let at = Timestamp::from_micros(micros);
            assert_eq!(Timestamp::parse(&at.to_string()), Some(at), "{at}");
        }
        let read = |text: &str| Timestamp::parse(text).map(Timestamp::micros);
        assert_eq!(read("1970-01-01T00:00:01Z"), Some(1_000_000));
        assert_eq!(read("1970-01-01T02:00:00.000001+02:00"), Some(1));
        assert_eq!(read("1969-12-31T23:30:00-00:30"), Some(0));
        assert_eq!(read("1970-01-01T00:00:00.123456789Z"), Some(123_456));
        for bad in [
            "",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-02-30T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+2:00",
            "1970-01-01T00:00Z",
            "1970-01-01 00:00:00Z",
            "yesterday",
            "1970-01-0ü",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn prints_as_rfc_3339() {
        assert_eq!(Timestamp::from_micros(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_micros(1_769_699_400_123_456).to_string(), "2026-01-29T15:10:00.123Z");
        assert_eq!(Timestamp::from_micros(951_782_400_000_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp::from_micros(-1).to_string(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::from_micros(i64::MAX).plus(Duration::MAX).micros(), i64::MAX);
        assert_eq!(Timestamp::from_micros(1).since(Timestamp::from_micros(5)), Duration::ZERO);
    }
}
