//! Tips for mistakes in a configuration file: the setting that was probably meant. Reads settings and flags
//! from the tables of `docs/configuration.md`, which a test keeps complete.

use crate::args::bytes_of;
use crate::spelling::nearest;

const PAGE: &str = include_str!("../../../../docs/configuration.md");

/// Removed settings with their replacements.
const REMOVED: [(&str, &str); 2] = [("keda_listen", METRICS_API), ("keda_tls", METRICS_API)];
const METRICS_API: &str = "KEDA reads /metrics with its scaler metrics-api; see docs/fleet.md";

/// Suffix of the names of settings that count bytes.
pub const BYTES: &str = "_bytes";

/// A tip for a setting that failed with `message`.
pub fn tip(path: &str, message: &str) -> Option<String> {
    if message.starts_with("unknown field") {
        return meant(path, message);
    }
    if let Some((_, rest)) = message.split_once("unknown variant `") {
        let (typed, expected) = rest.split_once('`')?;
        return nearest(typed, quoted(expected)).map(|word| format!("Did you mean {word:?}?"));
    }
    if path.ends_with(BYTES)
        && let Some((_, rest)) = message.split_once("string \"")
    {
        let reason = bytes_of(rest.split('"').next()?).err().unwrap_or_default();
        return Some(format!("A size is a number of bytes, or a text such as \"64MiB\" ({reason})"));
    }
    None
}

/// The setting that was probably meant by an unknown one.
fn meant(path: &str, message: &str) -> Option<String> {
    let (_, key) = path.rsplit_once('.').unwrap_or(("", path));
    if let Some((_, instead)) = REMOVED.iter().find(|(name, _)| *name == key) {
        return Some((*instead).to_owned());
    }
    let expected = message.split_once("expected ").map_or("", |(_, list)| list);
    let settings = settings();
    let flag = format!("--{}", key.replace('_', "-"));
    if let Some((setting, _)) = settings.iter().find(|(_, of_flag)| *of_flag == Some(flag.as_str())) {
        return Some(format!("The flag {flag} is {} in the file", placed(setting)));
    }
    let same = |(setting, _): &&(&str, _)| setting.rsplit('.').next() == Some(key);
    let elsewhere: Vec<String> = settings.iter().filter(same).map(|(setting, _)| placed(setting)).collect();
    if !elsewhere.is_empty() && elsewhere.len() <= 3 {
        return Some(format!("There is {}", elsewhere.join(", ")));
    }
    let with_unit =
        quoted(expected).find(|known| known.strip_prefix(key).is_some_and(|end| end.starts_with('_')));
    let known = with_unit.or_else(|| nearest(key, quoted(expected)));
    known.map(|known| format!("Did you mean {known}?"))
}

/// Formats `gateway.server.port` as `port in [gateway.server]`.
fn placed(setting: &str) -> String {
    match setting.rsplit_once('.') {
        Some((section, key)) => format!("{key} in [{section}]"),
        None => setting.to_owned(),
    }
}

/// The words in backquotes.
fn quoted(list: &str) -> impl Iterator<Item = &str> {
    list.split('`').skip(1).step_by(2)
}

/// The rows of the tables: each setting with its flag.
fn settings() -> Vec<(&'static str, Option<&'static str>)> {
    let cell = |text: &'static str| text.trim().strip_prefix('`')?.strip_suffix('`');
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.split('|');
        Some((cell(cells.next()?)?, cells.next().and_then(cell)))
    };
    PAGE.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tips_name_the_setting_that_was_meant() {
        let of_server = "unknown field `x`, expected one of `host`, `port`, `max_request_memory_bytes`";
        for (path, message, words) in [
            ("gateway.server.prot", of_server, "Did you mean port?"),
            (
                "gateway.server.max_request_memory",
                of_server,
                "max_request_memory_bytes in [expert.gateway.server]",
            ),
            ("gateway.port", "unknown field `port`, expected `server`", "port in [gateway.server]"),
            ("model.max_model_len", "unknown field `max_model_len`", "max_model_len_tokens in [model]"),
            ("engine.max_num_seqs", "unknown field `max_num_seqs`", "max_batch_sequences in [expert.engine]"),
            ("gateway.autoscale.keda_listen", "unknown field `keda_listen`", "scaler metrics-api"),
            ("model.quantize", "unknown variant `q4k`, expected one of `q8_0`, `q4_k`", "\"q4_k\""),
            (
                "gateway.api.max_body_bytes",
                "invalid type: string \"8MX\", expected usize",
                "use KiB, MiB, GiB or TiB",
            ),
        ] {
            let told = tip(path, message).unwrap_or_default();
            assert!(told.contains(words), "{path}: {told}");
        }
        assert_eq!(tip("gateway.nonsense", "unknown field `nonsense`, expected `server`"), None);
    }
}
