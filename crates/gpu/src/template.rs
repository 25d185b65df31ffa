//! Sources of kernels with parts that depend on numbers and names. Does not know which kernels there are.
//!
//! Lines that begin with `//if NAME`, `//if !NAME`, `//else`, `//end`, `//for J N` and `//include NAME` are
//! directives. A name is a flag, and `N` a number or a constant; `$J` in the lines of a repetition is its
//! index.

/// The values that a source is filled with.
pub(crate) struct Values {
    /// Constants that the source also uses by name.
    pub(crate) constants: Vec<(&'static str, u32)>,
    /// Names for which conditions hold.
    pub(crate) flags: Vec<&'static str>,
}

/// The source of a kernel: constants, then the shared functions, then the text with its directives resolved.
pub(crate) fn fill(text: &str, values: &Values, include: &dyn Fn(&str) -> &'static str) -> String {
    let mut out = String::new();
    for (name, value) in &values.constants {
        out.push_str(&format!("const {name}: u32 = {value}u;\n"));
    }
    out.push_str(include("math"));
    let lines: Vec<&str> = text.lines().collect();
    block(&lines, values, include, &mut out);
    out
}

/// Index of the line that ends the block begun before `from`, and of its `//else`.
fn end_of(lines: &[&str], from: usize) -> (usize, Option<usize>) {
    let (mut depth, mut other) = (0, None);
    for (i, line) in lines.iter().enumerate().skip(from) {
        match line.split_whitespace().next() {
            Some("//if" | "//for") => depth += 1,
            Some("//else") if depth == 0 => other = Some(i),
            Some("//end") if depth == 0 => return (i, other),
            Some("//end") => depth -= 1,
            _ => {}
        }
    }
    panic!("a block of a kernel's source without an end");
}

fn block(lines: &[&str], values: &Values, include: &dyn Fn(&str) -> &'static str, out: &mut String) {
    let mut i = 0;
    while i < lines.len() {
        let words: Vec<&str> = lines[i].split_whitespace().collect();
        match words.as_slice() {
            ["//if", name] => {
                let (end, other) = end_of(lines, i + 1);
                let name_of = name.trim_start_matches('!');
                let holds = values.flags.contains(&name_of) != name.starts_with('!');
                let (yes, no) = (i + 1..other.unwrap_or(end), other.map_or(end..end, |other| other + 1..end));
                block(&lines[if holds { yes } else { no }], values, include, out);
                i = end;
            }
            ["//for", index, n] => {
                let (end, _) = end_of(lines, i + 1);
                let constant = || values.constants.iter().find(|(name, _)| name == n).map(|(_, n)| *n);
                let n: u32 = n.parse().ok().or_else(constant).expect("a number of repetitions");
                let mut body = String::new();
                block(&lines[i + 1..end], values, include, &mut body);
                for repetition in 0..n {
                    out.push_str(&body.replace(&format!("${index}"), &repetition.to_string()));
                }
                i = end;
            }
            ["//include", name] => {
                let lines: Vec<&str> = include(name).lines().collect();
                block(&lines, values, include, out);
            }
            _ => {
                out.push_str(lines[i]);
                out.push('\n');
            }
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_resolved() {
        let values = Values { constants: vec![("N", 2)], flags: vec!["A"] };
        let text = "//if A\n//for J N\nx$J\n//if B\nno\n//else\nyes$J\n//end\n//end\n//else\nno\n//end\n//if !B\nlast\n//end\n//include more\n";
        let include = |name: &str| match name {
            "math" => "math\n",
            _ => "//if A\nmore\n//end\n",
        };
        assert_eq!(
            fill(text, &values, &include),
            "const N: u32 = 2u;\nmath\nx0\nyes0\nx1\nyes1\nlast\nmore\n"
        );
    }
}
