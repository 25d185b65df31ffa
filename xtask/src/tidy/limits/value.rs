//! Values of constant expressions, and how they are printed with their units.

use std::collections::BTreeMap;

use syn::{BinOp, Expr, Lit, RangeLimits};

/// The value of a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A count, or a number whose unit is the end of its name.
    Int(i128),
    /// A ratio.
    Float(f64),
    /// A time in nanoseconds.
    Time(i128),
    /// An inclusive range.
    Range(i128, i128),
}

/// Evaluates an expression; `named` has the values of other constants. `None` for anything but arithmetic and
/// times.
pub fn evaluate(expr: &Expr, named: &BTreeMap<String, Value>) -> Option<Value> {
    let int = |expr: &Expr| match evaluate(expr, named)? {
        Value::Int(n) => Some(n),
        _ => None,
    };
    Some(match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Int(n) => Value::Int(n.base10_parse().ok()?),
            Lit::Float(x) => Value::Float(x.base10_parse().ok()?),
            _ => return None,
        },
        Expr::Paren(inner) => evaluate(&inner.expr, named)?,
        Expr::Group(inner) => evaluate(&inner.expr, named)?,
        Expr::Cast(cast) => evaluate(&cast.expr, named)?,
        Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Neg(_)) => Value::Int(-int(&unary.expr)?),
        Expr::Binary(binary) => {
            let (a, b) = (int(&binary.left)?, int(&binary.right)?);
            Value::Int(match binary.op {
                BinOp::Add(_) => a + b,
                BinOp::Sub(_) => a - b,
                BinOp::Mul(_) => a * b,
                BinOp::Div(_) => a.checked_div(b)?,
                BinOp::Shl(_) => a << b,
                _ => return None,
            })
        }
        Expr::Range(range) if matches!(range.limits, RangeLimits::Closed(_)) => {
            Value::Range(int(range.start.as_deref()?)?, int(range.end.as_deref()?)?)
        }
        Expr::Call(call) => {
            let Expr::Path(function) = &*call.func else { return None };
            let unit = match function.path.segments.last()?.ident.to_string().as_str() {
                "from_secs" => 1_000_000_000,
                "from_millis" | "from_ms" => 1_000_000,
                "from_micros" => 1_000,
                "from_nanos" | "Nanos" => 1,
                _ => return None,
            };
            Value::Time(int(call.args.first()?)? * unit)
        }
        Expr::Path(path) => {
            let names: Vec<String> = path.path.segments.iter().map(|part| part.ident.to_string()).collect();
            match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["u32", "MAX"] => Value::Int(u32::MAX.into()),
                ["i32", "MAX"] => Value::Int(i32::MAX.into()),
                [.., name] => *named.get(name)?,
                [] => return None,
            }
        }
        _ => return None,
    })
}

/// Prints the value of a constant or field of this name, whose end may be its unit.
pub fn print(name: &str, value: Value) -> String {
    let name = name.to_lowercase();
    let one = |n: i128| match name.rsplit('_').next() {
        _ if n == 0 => "0".to_owned(),
        Some("bytes") => bytes(n),
        Some("s") => time(n * 1_000_000_000),
        Some("ms") => time(n * 1_000_000),
        _ => grouped(n),
    };
    match value {
        Value::Int(n) => one(n),
        Value::Float(x) if x.fract() == 0.0 => grouped(x as i128),
        Value::Float(x) => x.to_string(),
        Value::Time(ns) => time(ns),
        Value::Range(from, to) => format!("{} to {}", one(from), one(to)),
    }
}

/// Digits in groups of three.
fn grouped(n: i128) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = if n < 0 { "-".to_owned() } else { String::new() };
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The first unit of which `n` is a multiple, from the largest.
fn in_units(n: i128, units: &[(i128, &str)]) -> String {
    let fits = |(unit, _): &&(i128, &str)| n != 0 && n % unit == 0;
    let (unit, name) = units.iter().find(fits).or(units.last()).copied().unwrap_or((1, ""));
    format!("{} {name}", grouped(n / unit))
}

fn bytes(n: i128) -> String {
    in_units(
        n,
        &[
            (1 << 50, "PiB"),
            (1 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
            (1, "bytes"),
        ],
    )
}

fn time(ns: i128) -> String {
    const SECOND: i128 = 1_000_000_000;
    match ns {
        ns if ns > 86_400 * SECOND => in_units(ns, &[(86_400 * SECOND, "days"), (SECOND, "s")]),
        ns if ns >= 7_200 * SECOND => in_units(ns, &[(3_600 * SECOND, "h"), (SECOND, "s")]),
        ns if ns > SECOND && ns % SECOND != 0 && ns % 10_000_000 == 0 => format!("{} s", ns as f64 / 1e9),
        ns => in_units(ns, &[(SECOND, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns")]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(name: &str, code: &str) -> String {
        let named = BTreeMap::from([("OTHER".to_owned(), Value::Int(3))]);
        print(name, evaluate(&syn::parse_str(code).unwrap(), &named).unwrap())
    }

    #[test]
    fn units_come_from_names_and_types() {
        assert_eq!(printed("MAX_HEAD_BYTES", "64 << 10"), "64 KiB");
        assert_eq!(printed("MAX_BYTES", "1_000"), "1,000 bytes");
        assert_eq!(printed("MAX_KEYS", "2 * OTHER * 100_000"), "600,000");
        assert_eq!(printed("SILENCE", "Duration::from_millis(1_500)"), "1.5 s");
        assert_eq!(printed("SILENCE", "std::time::Duration::from_secs(300)"), "300 s");
        assert_eq!(printed("MAX_STAGE_S", "7 * 86_400"), "7 days");
        assert_eq!(printed("TIMEOUT_S", "0..=28_800"), "0 to 8 h");
        assert_eq!(printed("BURST", "1000.0"), "1,000");
    }

    #[test]
    fn what_is_no_number_has_no_value() {
        for code in ["\"text\"", "f(1)", "UNKNOWN", "[1, 2]"] {
            assert_eq!(evaluate(&syn::parse_str(code).unwrap(), &BTreeMap::new()), None, "{code}");
        }
    }
}
