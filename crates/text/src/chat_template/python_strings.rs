//! Python's string methods and Jinja's text filters that minijinja and minijinja-contrib lack. Results that
//! could be much larger than their input are bounded. Does not know conversations.

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::limits::{Limits, out_of_memory};

/// Adds the filters that are the same for every rendering.
pub(super) fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("wordcount", |text: StringInput<'_>| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        text.as_str().split(|c| !is_word(c)).filter(|word| !word.is_empty()).count()
    });
    env.add_filter("capitalize", |text: StringInput<'_>| capitalized(text.as_str()));
    env.add_filter("title", |text: StringInput<'_>| {
        titled(text.as_str(), |c| c.is_whitespace() || "-([{<".contains(c))
    });
    env.add_filter("urlencode", urlencode);
    env.add_filter("xmlattr", xmlattr);
    env.add_filter("forceescape", |text: &Value| Value::from_safe_string(escaped(&text.to_string())));
    env.add_filter("striptags", minijinja_contrib::filters::striptags);
    env.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    env.add_filter("truncate", truncate);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", |separator: Option<Value>| {
        minijinja_contrib::globals::joiner(separator.or_else(|| Some(Value::from(", "))))
    });
}

/// Adds the filters that depend on the limits of a rendering.
pub(super) fn add_bounded_filters(env: &mut Environment<'static>, limits: Limits) {
    env.add_filter("center", move |text: StringInput<'_>, width: Option<usize>| {
        padded(text.as_str(), width.unwrap_or(80), ' ', Place::Center, limits)
    });
    let format = Value::from_function(minijinja::filters::format);
    env.add_filter("format", move |state: &mut State<'_, '_>, args: Rest<Value>| {
        check_format_widths(&args, limits)?;
        format.call(state, &args)
    });
}

/// The result of a method; `None` if the method is not implemented here.
pub(super) fn method(
    text: &str,
    method: &str,
    args: &[Value],
    limits: Limits,
) -> Option<Result<Value, Error>> {
    let place = match method {
        "center" => Some(Place::Center),
        "ljust" => Some(Place::Left),
        "rjust" => Some(Place::Right),
        _ => None,
    };
    if let Some(place) = place {
        let of = |(width, fill): (i64, Option<char>)| {
            padded(text, usize::try_from(width).unwrap_or(0), fill.unwrap_or(' '), place, limits)
        };
        return Some(from_args(args).and_then(of).map(Value::from));
    }
    Some(match method {
        "zfill" => from_args(args).and_then(|(width,): (i64,)| {
            let width = usize::try_from(width).unwrap_or(0);
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let padded = padded(digits, width.saturating_sub(sign.len()), '0', Place::Right, limits)?;
            Ok(Value::from(format!("{sign}{padded}")))
        }),
        "swapcase" => Ok(Value::from(text.chars().map(swapped).collect::<String>())),
        "capitalize" => Ok(Value::from(capitalized(text))),
        "title" => Ok(Value::from(titled(text, |c| !c.is_alphabetic()))),
        "istitle" => Ok(Value::from(
            text.chars().any(char::is_alphabetic) && titled(text, |c| !c.is_alphabetic()) == text,
        )),
        "isdecimal" => Ok(Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))),
        "isidentifier" => {
            let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            Ok(Value::from(starts && text.chars().all(|c| c.is_alphanumeric() || c == '_')))
        }
        "rindex" => from_args(args).and_then(|(needle,): (&str,)| {
            let at = text.rfind(needle);
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Ok(Value::from(text[..at].chars().count()))
        }),
        "expandtabs" => from_args(args).and_then(|(size,): (Option<usize>,)| {
            expand_tabs(text, size.unwrap_or(8), limits).map(Value::from)
        }),
        _ => return None,
    })
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Left,
    Center,
    Right,
}

fn padded(text: &str, width: usize, fill: char, place: Place, limits: Limits) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    if missing.saturating_mul(fill.len_utf8()) > limits.n_bytes {
        return Err(out_of_memory());
    }
    // As in CPython: an odd number of fill characters has its larger half on the left if the width is odd.
    let before = match place {
        Place::Left => 0,
        Place::Center => missing / 2 + (missing & width & 1),
        Place::Right => missing,
    };
    let run = |n: usize| std::iter::repeat_n(fill, n);
    Ok(run(before).chain(text.chars()).chain(run(missing - before)).collect())
}

/// Refuses a printf-style format whose widths and precisions, written in it or given as arguments (`*`),
/// together exceed the limit.
fn check_format_widths(args: &[Value], limits: Limits) -> Result<(), Error> {
    let Some((template, values)) = args.split_first() else { return Ok(()) };
    let template = template.as_str().unwrap_or_default();
    let number = |digits: &str| digits.parse().unwrap_or(usize::MAX);
    let in_conversion = |c: char| c.is_ascii_digit() || " #+-.*".contains(c);
    let conversions = template.split('%').skip(1).map(|text| {
        let text =
            text.strip_prefix('(').and_then(|name| name.split_once(')')).map_or(text, |(_, after)| after);
        &text[..text.find(|c| !in_conversion(c)).unwrap_or(text.len())]
    });
    let written =
        conversions.flat_map(|text| text.split(|c: char| !c.is_ascii_digit())).filter(|n| !n.is_empty());
    let given = values.iter().filter(|_| template.contains('*')).filter_map(Value::as_usize);
    let n_bytes = written.map(number).chain(given).fold(0, usize::saturating_add);
    if n_bytes > limits.n_bytes { Err(out_of_memory()) } else { Ok(()) }
}

fn swapped(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

/// Capitalizes each word; words are separated by characters for which `separates` is true.
fn titled(text: &str, separates: impl Fn(char) -> bool) -> String {
    let mut begins = true;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match begins {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        begins = separates(c);
    }
    out
}

fn expand_tabs(text: &str, size: usize, limits: Limits) -> Result<String, Error> {
    let n_tabs = text.matches('\t').count();
    if n_tabs.saturating_mul(size) > limits.n_bytes {
        return Err(out_of_memory());
    }
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let n = size - column % size;
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            '\t' => {}
            _ => {
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                out.push(c);
            }
        }
    }
    Ok(out)
}

fn truncate(
    text: StringInput<'_>,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<StringInput<'_>>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let length = match length {
        Some(length) => length,
        None => kwargs.get::<Option<usize>>("length")?.unwrap_or(255),
    };
    let killwords = killwords.or(kwargs.get("killwords")?).unwrap_or(false);
    let named: Option<String> = kwargs.get("end")?;
    let end = end.map(|end| end.as_str().to_owned()).or(named).unwrap_or_else(|| "...".to_owned());
    let leeway = kwargs.get::<Option<usize>>("leeway")?.unwrap_or(5);
    kwargs.assert_all_used()?;
    let text = text.as_str();
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let n_end = end.chars().count();
    let n_kept = length.checked_sub(n_end).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("expected length >= {n_end}, got {length}"))
    })?;
    let kept: String = text.chars().take(n_kept).collect();
    let kept = if killwords { &kept } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(kept, _)| kept) };
    Ok(format!("{kept}{end}"))
}

/// Encodes a text, or the pairs of a map or a list as a query string.
fn urlencode(value: &Value) -> Result<String, Error> {
    let pair = |key: &Value, item: &Value| {
        let quoted = |value: &Value| quoted(&value.to_string(), "").replace("%20", "+");
        format!("{}={}", quoted(key), quoted(item))
    };
    match value.kind() {
        ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| Ok(pair(&key, &value.get_item(&key)?)));
            Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let pairs = value
                .try_iter()?
                .map(|item| Ok(pair(&item.get_item_by_index(0)?, &item.get_item_by_index(1)?)));
            Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"))
        }
        _ => Ok(quoted(&value.to_string(), "/")),
    }
}

fn quoted(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            _ if byte.is_ascii_alphanumeric()
                || b"_.-~".contains(&byte)
                || safe.as_bytes().contains(&byte) =>
            {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn xmlattr(map: &Value, autospace: Option<bool>) -> Result<String, Error> {
    let mut out = String::new();
    for key in map.try_iter()? {
        let value = map.get_item(&key)?;
        let name = key.to_string();
        if value.is_none() || value.is_undefined() {
            continue;
        }
        if name.contains(|c: char| c.is_whitespace() || "/>=".contains(c)) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("invalid character in attribute name: {name:?}"),
            ));
        }
        if !out.is_empty() || autospace.unwrap_or(true) {
            out.push(' ');
        }
        out.push_str(&format!("{}=\"{}\"", escaped(&name), escaped(&value.to_string())));
    }
    Ok(out)
}

/// Escaped as by Python's markupsafe.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    out
}
