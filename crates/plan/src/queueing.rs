//! Waiting times in closed form: queues with several servers (Erlang) and with constant service.

/// The share of arrivals that find all of `n_servers` busy, when `offered` servers would be busy on average
/// (Erlang's C). 1 for an overloaded queue.
pub fn erlang_c(n_servers: u32, offered: f64) -> f64 {
    if offered >= f64::from(n_servers) {
        return 1.0;
    }
    // Erlang's B by its recurrence, which neither over- nor underflows.
    let mut blocked = 1.0;
    for n in 1..=n_servers {
        blocked = offered * blocked / (f64::from(n) + offered * blocked);
    }
    let utilization = offered / f64::from(n_servers);
    blocked / (1.0 - utilization * (1.0 - blocked))
}

/// The waiting time that 1 % exceed in a queue with exponential service times of mean `service_s`.
pub fn wait_p99(n_servers: u32, offered: f64, service_s: f64) -> f64 {
    if offered >= f64::from(n_servers) {
        return f64::INFINITY;
    }
    let waiting = erlang_c(n_servers, offered);
    let rate = (f64::from(n_servers) - offered) / service_s;
    (waiting / 0.01).ln().max(0.0) / rate
}

/// The mean waiting time in a queue with exponential service times of mean `service_s`.
pub fn mean_wait_of(n_servers: u32, offered: f64, service_s: f64) -> f64 {
    if offered >= f64::from(n_servers) {
        return f64::INFINITY;
    }
    erlang_c(n_servers, offered) * service_s / (f64::from(n_servers) - offered)
}

/// Mean waiting time at one server by its utilization and the mean and variation (standard deviation divided
/// by the mean) of service times (Pollaczek and Khinchine).
pub fn mean_wait(utilization: f64, service_s: f64, variation: f64) -> f64 {
    if utilization >= 1.0 {
        return f64::INFINITY;
    }
    utilization * service_s * (1.0 + variation * variation) / (2.0 * (1.0 - utilization))
}

/// The waiting time that 1 % exceed at one server, if nonzero waiting times are assumed to be exponential.
pub fn mean_wait_p99(utilization: f64, service_s: f64, variation: f64) -> f64 {
    if utilization >= 1.0 {
        return f64::INFINITY;
    }
    let of_waiting = mean_wait(utilization, service_s, variation) / utilization.max(f64::MIN_POSITIVE);
    of_waiting * (utilization / 0.01).ln().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_waits_as_its_formula_says() {
        // M/M/1: a share rho waits, and the mean wait is rho / (mu - lambda).
        assert!((erlang_c(1, 0.7) - 0.7).abs() < 1e-12);
        assert!((mean_wait(0.7, 1.0, 1.0) - 0.7 / 0.3).abs() < 1e-12);
        assert!((mean_wait_of(1, 0.7, 1.0) - 0.7 / 0.3).abs() < 1e-12);
        // M/D/1: half of that.
        assert!((mean_wait(0.7, 1.0, 0.0) - 0.35 / 0.3).abs() < 1e-12);
        // M/M/1's waiting time exceeds t with probability rho * exp(-(mu - lambda) t).
        let t = wait_p99(1, 0.7, 1.0);
        assert!((0.7 * (-0.3 * t).exp() - 0.01).abs() < 1e-12);
        assert!((mean_wait_p99(0.7, 1.0, 1.0) - t).abs() < 1e-9);
    }

    #[test]
    fn two_servers_wait_as_their_formula_says() {
        // M/M/2: rho^2 * 2 / (1 + rho).
        let rho: f64 = 0.6;
        assert!((erlang_c(2, 2.0 * rho) - 2.0 * rho * rho / (1.0 + rho)).abs() < 1e-12);
        assert_eq!((erlang_c(2, 2.0), wait_p99(2, 2.5, 1.0)), (1.0, f64::INFINITY));
        assert_eq!(mean_wait_of(2, 2.0, 1.0), f64::INFINITY);
        assert!(erlang_c(10_000, 9_000.0) < 1e-6, "large pools do not overflow");
    }
}
