//! Budgets by day and month: running, ended and written requests together.

use std::collections::BTreeMap;

use throng_core::fleet::limits::{
    Accounts, Budget, BudgetRefusal, BudgetReservation, BudgetScope, Budgets, Periods, Spending,
};

const NOW: Periods = Periods { day: 40, month: 2 };

fn tokens(tokens: u64) -> Spending {
    Spending { tokens, cost: u128::from(tokens) * 10 }
}

fn scope(name: &str, day: Option<u64>, month_cost: Option<u128>) -> BudgetScope {
    let day = Budget { tokens: day, cost: None };
    let month = Budget { tokens: None, cost: month_cost };
    BudgetScope { name: name.into(), budgets: Budgets { day, month } }
}

#[test]
fn running_ended_and_written_requests_together_stay_within_all_budgets() {
    let mut accounts = Accounts::default();
    let scopes = [scope("key", Some(100), None), scope("project", None, Some(1500))];
    let first = accounts.reserve(&scopes, tokens(60), NOW).expect("within");
    let refused = accounts.reserve(&scopes, tokens(41), NOW).expect_err("the key's day");
    let expected = BudgetRefusal {
        scope: 0,
        is_daily: true,
        is_money: false,
        limit: 100,
        spent: 0,
        reserved: 60,
        needed: 41,
    };
    assert_eq!(refused, expected);
    let second = accounts.reserve(&scopes, tokens(40), NOW).expect("exactly within");
    accounts.settle(first, tokens(10), NOW);
    accounts.settle(second, tokens(40), NOW);
    assert!(accounts.reserve(&scopes, tokens(51), NOW).is_err());
    // The ledger has the first one and what another server wrote.
    accounts.wrote(&["key", "project"], tokens(10), NOW);
    let ledger = |n: u64| {
        BTreeMap::from([("key".into(), (tokens(n), tokens(n))), ("project".into(), (tokens(n), tokens(n)))])
    };
    accounts.read(ledger(15), NOW);
    assert!(accounts.reserve(&scopes, tokens(46), NOW).is_err(), "15 written and 40 not");
    let third = accounts.reserve(&scopes, tokens(45), NOW).expect("exactly within");
    accounts.settle(third, tokens(0), NOW);
    // The next day begins with nothing, the month goes on.
    let next = Periods { day: 41, ..NOW };
    let all = accounts.reserve(&scopes, tokens(95), next).expect("within");
    accounts.settle(all, tokens(95), next);
    let refused = accounts.reserve(&[scopes[1].clone()], tokens(1), next).expect_err("the project's month");
    let expected = BudgetRefusal {
        scope: 0,
        is_daily: false,
        is_money: true,
        limit: 1500,
        spent: 1500,
        reserved: 0,
        needed: 10,
    };
    assert_eq!(refused, expected);
    // Yesterday's entries that are written today do not count for today.
    accounts.wrote(&["key", "project"], tokens(40), NOW);
    assert!(accounts.reserve(&scopes[..1], tokens(6), next).is_err());
    assert!(accounts.reserve(&scopes[..1], tokens(5), next).is_ok());
}

#[test]
fn what_others_have_spent_today_counts_for_the_month_too() {
    let mut accounts = Accounts::default();
    let scopes = [scope("key", Some(100), Some(1500))];
    accounts.read(BTreeMap::from([("key".into(), (tokens(10), tokens(60)))]), NOW);
    let first = accounts.reserve(&scopes, tokens(20), NOW).expect("within");
    accounts.settle(first, tokens(20), NOW);
    accounts.wrote(&["key"], tokens(20), NOW);
    // 20 of this server and 30 of another one, besides the 10 that were known.
    accounts.read_day([("key".into(), tokens(60))], NOW);
    let refused = accounts.reserve(&scopes, tokens(41), NOW).expect_err("the day or the month");
    assert_eq!((refused.is_daily, refused.is_money), (true, false));
    let of_month = [scope("key", None, Some(1100))];
    for _ in 0..2 {
        assert!(accounts.reserve(&of_month, tokens(0), NOW).is_ok(), "110 of the month's 110");
        assert!(accounts.reserve(&of_month, tokens(1), NOW).is_err());
        accounts.read_day([("key".into(), tokens(60))], NOW);
    }
}

#[test]
fn random_schedules_never_exceed_a_budget_and_never_lose_any_of_it() {
    let mut random = 7_u64;
    let mut draw = move |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let scopes = [scope("key", Some(1000), None)];
    for _ in 0..50 {
        let mut accounts = Accounts::default();
        // The truth of the model: most used and running, entries that are not written, the ledger.
        let (mut running, mut unwritten, mut ledger) = (Vec::new(), Vec::new(), 0);
        for _ in 0..2000 {
            let reserved = |running: &[(BudgetReservation, u64)]| running.iter().map(|(_, n)| n).sum::<u64>();
            let ended = |unwritten: &[u64]| unwritten.iter().sum::<u64>();
            match draw(4) {
                0 => {
                    let most = draw(200);
                    let room = 1000 - ledger - ended(&unwritten) - reserved(&running);
                    match accounts.reserve(&scopes, tokens(most), NOW) {
                        Ok(reservation) => {
                            assert!(most <= room);
                            running.push((reservation, most));
                        }
                        Err(_) => assert!(most > room),
                    }
                }
                1 if !running.is_empty() => {
                    let (reservation, most) = running.swap_remove(draw(running.len() as u64) as usize);
                    let used = draw(most / 8 + 1);
                    accounts.settle(reservation, tokens(used), NOW);
                    unwritten.push(used);
                }
                2 if !unwritten.is_empty() => {
                    let used = unwritten.remove(0);
                    ledger += used;
                    accounts.wrote(&["key"], tokens(used), NOW);
                }
                _ => accounts.read(BTreeMap::from([("key".into(), (tokens(ledger), tokens(ledger)))]), NOW),
            }
        }
    }
}
