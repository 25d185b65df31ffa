//! The pool of limits as a script that Redis runs, with queries and answers as numbers. Does not know when to
//! query.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, Script};
use throng_core::fleet::limits::shared::{Amounts, LeaseReply, LeaseReplyEntry, LeaseRequest};

/// Prefix of keys, with a common hash tag, so that they are on one node of a cluster.
const PREFIX: &str = "throng:{limits}:";
/// Number of values of an answer for each scope: the share, the free part, and whether that is final.
const N_TOLD: usize = 7;

/// The pool's compiled script.
#[derive(Debug)]
pub(super) struct PoolScript(Script);

impl PoolScript {
    pub fn new() -> Self {
        Self(Script::new(include_str!("pool.lua")))
    }

    /// Sends a question. `None` if a later one was answered before. `now_ms` is the time, or the server's
    /// own if absent.
    ///
    /// # Errors
    /// When Redis cannot be reached or fails, or its answer is malformed.
    pub async fn exchange(
        &self,
        connection: &mut impl ConnectionLike,
        me: &str,
        ask: &LeaseRequest,
        now_ms: Option<u64>,
    ) -> Result<Option<LeaseReply>, RedisError> {
        let mut call = self.0.prepare_invoke();
        for name in ["gateways", "pool", "short"] {
            call.key(format!("{PREFIX}{name}"));
        }
        call.arg(me).arg(ask.number).arg(u8::from(ask.is_last));
        call.arg(now_ms.map_or(String::new(), |now| now.to_string()));
        for entry in &ask.entries {
            call.key(format!("{PREFIX}scope:{}", entry.name)).arg(&*entry.name);
            for limit in entry.limits {
                call.arg(limit.map_or("-1".to_owned(), |limit| limit.to_string()));
            }
            for amounts in [entry.keep, entry.need, entry.want] {
                call.arg(&amounts[..]);
            }
            call.arg(u8::from(entry.yields));
        }
        let answer: Option<(Vec<u64>, Vec<String>)> = call.invoke_async(connection).await?;
        answer.map(|(numbers, short)| read(&numbers, short, ask.entries.len())).transpose()
    }
}

fn read(numbers: &[u64], short: Vec<String>, n_entries: usize) -> Result<LeaseReply, RedisError> {
    let wrong = || RedisError::from((ErrorKind::UnexpectedReturnType, "not an answer of the script"));
    let (head, entries) = numbers.split_at_checked(3).ok_or_else(wrong)?;
    if entries.len() != n_entries * N_TOLD {
        return Err(wrong());
    }
    let amounts = |from: &[u64]| -> Amounts { std::array::from_fn(|k| from[k]) };
    let told = |entry: &[u64]| LeaseReplyEntry {
        share: amounts(&entry[..3]),
        free: amounts(&entry[3..6]),
        is_final: entry[6] != 0,
    };
    Ok(LeaseReply {
        n_gateways: head[0],
        epoch: head[1],
        is_settling: head[2] != 0,
        entries: entries.chunks_exact(N_TOLD).map(told).collect(),
        short: short.into_iter().map(Arc::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use throng_core::fleet::limits::shared::{LeaseRequestEntry, Pool};
    use throng_testkit::redis::RedisServer;

    const N_STEPS: usize = 3_000;

    fn random_ask(rng: &mut Rng, number: u64) -> LeaseRequest {
        let amounts = |rng: &mut Rng, most: u64| -> Amounts { std::array::from_fn(|_| rng.u64(..=most)) };
        let mut names = vec!["a", "b b", "ключ"];
        rng.shuffle(&mut names);
        names.truncate(rng.usize(..=3));
        let entry = |name: &&str| LeaseRequestEntry {
            name: Arc::from(*name),
            limits: std::array::from_fn(|_| match rng.u8(..4) {
                0 => None,
                1 => Some(1 << 53),
                _ => Some(rng.u64(..500)),
            }),
            keep: amounts(rng, 200),
            need: amounts(rng, 100),
            want: amounts(rng, 100),
            yields: rng.bool(),
        };
        let entries: Vec<LeaseRequestEntry> = names.iter().map(entry).collect();
        LeaseRequest { number, is_last: rng.u8(..30) == 0, entries }
    }

    #[tokio::test]
    async fn the_script_answers_as_the_pool_does() {
        let Some(server) = RedisServer::start() else { return };
        let client = redis::Client::open(server.url()).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let script = PoolScript::new();
        let seed = fastrand::u64(..);
        let mut rng = Rng::with_seed(seed);
        let (mut pool, mut now) = (Pool::default(), 1_700_000_000_000);
        for step in 0..N_STEPS {
            now += match rng.u8(..200) {
                0 => rng.u64(..100_000),
                1..10 => rng.u64(..3_000),
                _ => rng.u64(..60),
            };
            let me = format!("gateway-{}", rng.u8(..4));
            // Some questions come late.
            let number = (step as u64 + 10).saturating_sub(rng.u64(..6));
            let ask = random_ask(&mut rng, number);
            let told = script.exchange(&mut connection, &me, &ask, Some(now)).await.expect("an answer");
            let mut expected = pool.exchange(&me, &ask, now);
            let sorted = |told: Option<LeaseReply>| {
                told.map(|mut told| {
                    told.short.sort();
                    told
                })
            };
            expected = sorted(expected);
            assert_eq!(sorted(told), expected, "seed {seed}, step {step}: {ask:?}");
        }
    }
}
