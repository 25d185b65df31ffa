//! Calendar days and months (UTC) of points in time.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use throng_core::fleet::limits::Periods;

const DAY_S: u64 = 86_400;

/// The day and the month that contain a time in seconds since the epoch.
pub fn at(unix_s: u64) -> Periods {
    let date = date_of(unix_s);
    let (year, month) = (date.year().unsigned_abs(), date.month().unsigned_abs());
    Periods { day: unix_s / DAY_S, month: u64::from(year) * 12 + u64::from(month) }
}

/// The first day of a day's month.
pub fn first_of_month(day: u64) -> u64 {
    day + 1 - u64::from(date_of(day * DAY_S).day().unsigned_abs())
}

/// The date on which the day or month that contains a time ends and its budgets are reset, as `2026-12-01`.
pub fn reset_date(unix_s: u64, is_daily: bool) -> String {
    let today = date_of(unix_s);
    let last = if is_daily { today } else { today.last_of_month() };
    last.tomorrow().unwrap_or(Date::MAX).to_string()
}

/// The date of a time in seconds since the epoch, clamped to the latest representable date.
fn date_of(unix_s: u64) -> Date {
    let time = i64::try_from(unix_s).ok().and_then(|second| Timestamp::from_second(second).ok());
    time.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_begin_anew_at_the_next_midnight_and_in_the_next_month() {
        for (day, tomorrow, next_month) in [
            (0, "1970-01-02", "1970-02-01"),
            (11_015, "2000-02-29", "2000-03-01"),
            (20_785, "2026-11-29", "2026-12-01"),
            (20_818, "2027-01-01", "2027-01-01"),
            (47_540, "2100-03-01", "2100-03-01"),
        ] {
            let dates = [true, false].map(|is_daily| reset_date(day * DAY_S + DAY_S - 1, is_daily));
            assert_eq!(dates, [tomorrow, next_month], "{day}");
        }
    }

    #[test]
    fn months_begin_where_calendars_say() {
        // 1970-01-01, 1970-02-01, 2000-02-29, 2000-03-01, 2026-11-24, 2100-02-28, 2100-03-01.
        let days = [
            (0, 0),
            (31, 31),
            (11_016, 10_988),
            (11_017, 11_017),
            (20_781, 20_758),
            (47_540, 47_513),
            (47_541, 47_541),
        ];
        for (day, first) in days {
            assert_eq!(first_of_month(day), first, "{day}");
        }
        for day in 0..80_000_u64 {
            let (today, tomorrow) = (at(day * DAY_S), at(day * DAY_S + DAY_S));
            let is_new = first_of_month(day + 1) == day + 1;
            assert_eq!(tomorrow.month, today.month + u64::from(is_new), "{day}");
            assert!((28..=31).contains(&(day + 32 - first_of_month(day + 32) + 28).clamp(28, 31)));
        }
    }
}
