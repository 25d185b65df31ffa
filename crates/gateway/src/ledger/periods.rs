//! Calendar days and months (UTC) of points in time.

use throng_core::limits::Periods;

const DAY_S: u64 = 86_400;

/// The day and the month of a second since the epoch.
pub fn at(unix_s: u64) -> Periods {
    let day = unix_s / DAY_S;
    Periods { day, month: year_and_month(day).0 }
}

/// The first day of a day's month.
pub fn first_of_month(day: u64) -> u64 {
    day - year_and_month(day).1
}

/// The date on which the day or the month of a second ends and its budgets begin anew, as `2026-12-01`.
pub fn reset_date(unix_s: u64, is_daily: bool) -> String {
    let today = unix_s / DAY_S;
    // The first day of the next month is at most 31 days away.
    let next = if is_daily { today + 1 } else { first_of_month(first_of_month(today) + 31) };
    let (month, of_month) = year_and_month(next);
    // Months are counted from March.
    let (year, month) = (month / 12, month % 12);
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{year:04}-{month:02}-{:02}", of_month + 1)
}

/// The number of the month, and the days since its beginning. The algorithm is `civil_from_days` of Howard Hinnant's
/// "chrono-Compatible Low-Level Date Algorithms", in which years begin with March.
fn year_and_month(day: u64) -> (u64, u64) {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5;
    ((era * 400 + year_of_era) * 12 + month, of_month)
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
