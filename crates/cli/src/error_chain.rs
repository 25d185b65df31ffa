//! Formats an error with its causes as one sentence. Does not know the failed operation.

/// The message of an error and those of its causes, joined by `: `. Leaves out a cause whose text is
/// already part of the message before it.
pub fn in_full(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::in_full;

    #[derive(Debug, thiserror::Error)]
    #[error("model.gguf: {source} (bring it again)")]
    struct InFile {
        source: std::num::ParseIntError,
    }

    #[test]
    fn a_cause_is_said_once() {
        let source = "x".parse::<u8>().expect_err("no number");
        let error = anyhow::Error::from(InFile { source }).context("cannot serve");
        assert_eq!(
            in_full(&error),
            "cannot serve: model.gguf: invalid digit found in string (bring it again)"
        );
    }

    #[test]
    fn each_cause_is_said() {
        let error = Err::<(), _>(anyhow!("no such host")).context("cannot connect").expect_err("failed");
        assert_eq!(in_full(&error), "cannot connect: no such host");
    }
}
