//! Errors of model names, with lists of valid names. Does not know which models there are.

use http::StatusCode;

use super::{ApiError, echo};

/// Maximum number of names in an error.
const MAX_NAMES: usize = 20;

impl ApiError {
    /// No model of this name is served. A name with `..` as a path segment is an invalid value instead.
    pub fn model_not_found(name: &str) -> Self {
        if name.split(['/', '\\']).any(|part| part == "..") {
            return Self::invalid_value("model", format!("'{}' is not a model name.", echo(name)));
        }
        let message = format!("The model '{}' does not exist.", echo(name));
        Self::client(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    /// The API key does not permit the model.
    pub fn model_not_permitted(name: &str) -> Self {
        let message = format!("This API key does not permit the model '{}'.", echo(name));
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// Appends the names of models that the client may use, at most [`MAX_NAMES`].
    pub fn with_models(mut self, names: &[String]) -> Self {
        let shown: Vec<String> =
            names.iter().take(MAX_NAMES).map(|name| format!("'{}'", echo(name))).collect();
        let more = names.len() - shown.len();
        let list = match (shown.is_empty(), more) {
            (true, _) => " There are no models that may be used.".to_owned(),
            (false, 0) => format!(" Models to use: {}.", shown.join(", ")),
            (false, more) => format!(" Models to use: {} and {more} more; see /v1/models.", shown.join(", ")),
        };
        self.0.message.push_str(&list);
        self
    }

    /// The adapter to unload does not exist.
    pub fn adapter_not_found(name: &str) -> Self {
        let message = format!("The lora adapter '{}' cannot be found.", echo(name));
        Self::client(StatusCode::NOT_FOUND, "model_not_found", message).with_param("lora_name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_model_names_some_of_those_that_there_are() {
        let names = |n: usize| (0..n).map(|i| format!("m{i}")).collect::<Vec<_>>();
        let error = ApiError::model_not_found("x").with_models(&names(2));
        assert_eq!(error.message(), "The model 'x' does not exist. Models to use: 'm0', 'm1'.");
        let error = ApiError::model_not_permitted("x").with_models(&[]);
        assert!(error.message().ends_with("There are no models that may be used."), "{error}");
        let many = ApiError::model_not_found("x").with_models(&names(1000));
        assert!(many.message().ends_with("'m19' and 980 more; see /v1/models."), "{many}");
        let long = ApiError::model_not_found("x").with_models(&["n".repeat(10_000)]);
        assert!(long.message().len() < 300);
    }
}
