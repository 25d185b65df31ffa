//! Headers of a request about its class of service and its deadline. Does not know permissions.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use throng_core::fleet::overload::ServiceClass;

use crate::error::ApiError;

const CLASS: &str = "x-service-class";
const DEADLINE: &str = "x-request-deadline-ms";
/// The longest deadline, a day.
const MAX_DEADLINE_MS: u64 = 86_400_000;

/// Class and deadline in a request's headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceHeaders {
    /// Class of service, which bounds its wait.
    pub class: Option<ServiceClass>,
    /// Time from its arrival after which its answer is of no use.
    pub deadline: Option<Duration>,
    /// Name of an invalid header.
    wrong: Option<&'static str>,
}

impl ServiceHeaders {
    /// Reads the headers; [`Self::check`] returns the error of an invalid one.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut ask = Self::default();
        if let Some(value) = headers.get(CLASS) {
            ask.class = value.to_str().ok().and_then(ServiceClass::of_name);
            ask.wrong = ask.class.is_none().then_some(CLASS);
        }
        if let Some(value) = headers.get(DEADLINE) {
            ask.deadline = milliseconds(value);
            ask.wrong = ask.wrong.or(ask.deadline.is_none().then_some(DEADLINE));
        }
        ask
    }

    /// Sets the class, unless the headers name one.
    #[must_use]
    pub fn or_class(self, class: Option<ServiceClass>) -> Self {
        Self { class: self.class.or(class), ..self }
    }

    /// Checks that the headers were valid.
    ///
    /// # Errors
    /// 400 that names the header.
    pub fn check(&self) -> Result<(), ApiError> {
        let Some(header) = self.wrong else { return Ok(()) };
        let expected = match header {
            CLASS => "'system', 'interactive', 'default' or 'batch'".to_owned(),
            _ => format!("a number of milliseconds from 1 to {MAX_DEADLINE_MS}"),
        };
        Err(ApiError::invalid_value(header, format!("The header '{header}' must be {expected}.")))
    }
}

fn milliseconds(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let ms: u64 = is_number.then(|| text.parse().ok()).flatten()?;
    (1..=MAX_DEADLINE_MS).contains(&ms).then(|| Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_understood_or_named() {
        for (name, value, is_valid) in [
            (CLASS, "batch", true),
            (CLASS, "Interactive", true),
            (CLASS, "urgent", false),
            (CLASS, "", false),
            (DEADLINE, "1", true),
            (DEADLINE, "86400000", true),
            (DEADLINE, "86400001", false),
            (DEADLINE, "0", false),
            (DEADLINE, "+5", false),
            (DEADLINE, "5.0", false),
            (DEADLINE, "99999999999999999999999", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a header value"));
            let ask = ServiceHeaders::of(&headers);
            assert_eq!(ask.check().is_ok(), is_valid, "{name}: {value}");
            assert_eq!(ask.class.is_some() || ask.deadline.is_some(), is_valid, "{name}: {value}");
        }
        assert_eq!(ServiceHeaders::of(&HeaderMap::new()), ServiceHeaders::default());
    }
}
