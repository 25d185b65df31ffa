//! Faults of a request's images: their URLs, their download, their files. Does not know formats.

use http::StatusCode;

use super::{ApiError, echo};

/// Errors about images.
impl ApiError {
    /// An image for a model that takes only text; `param` is its path.
    pub(crate) fn only_text(param: impl Into<String>) -> Self {
        Self::unsupported_parameter(param, "This model takes only text.")
    }

    /// The URL of an image is of a kind that a server may not fetch.
    pub fn invalid_image_url(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!(
            "Invalid '{}': expected a public http or https URL, or a data URL of an image in base64.",
            echo(&param)
        );
        Self::bad_request("invalid_image_url", message).with_param(param)
    }

    /// The content of a data URL is not an image.
    pub fn invalid_image(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': its content is not valid base64.", echo(&param));
        Self::bad_request("invalid_image", message).with_param(param)
    }

    /// An image that cannot be decoded, or whose shape the model does not accept; `reason` says why.
    pub fn unusable_image(param: impl Into<String>, reason: &str) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': {reason}.", echo(&param));
        Self::bad_request("invalid_image", message).with_param(param)
    }

    /// The host of an image's URL is not one from which this server fetches images.
    pub fn image_host_not_allowed(param: impl Into<String>) -> Self {
        let reason = "this server does not fetch images from this host";
        Self::unfetched_image("image_host_not_allowed", param, reason)
    }

    /// An image's URL redirects to a host from which this server fetches no images, or too often.
    pub fn image_redirect_not_allowed(param: impl Into<String>) -> Self {
        let reason = "it redirects to where this server fetches no images, or too often";
        Self::unfetched_image("image_host_not_allowed", param, reason)
    }

    /// The URL of an image returned no file; `status` is the status of its host's answer, if it answered.
    pub fn image_unreachable(param: impl Into<String>, status: Option<StatusCode>) -> Self {
        let reason = status.map_or_else(
            || "its host cannot be reached".to_owned(),
            |status| format!("its host answered with status {}", status.as_u16()),
        );
        Self::unfetched_image("image_unreachable", param, &reason)
    }

    /// The file of an image did not arrive in time.
    pub fn image_too_slow(param: impl Into<String>, limit_s: u64) -> Self {
        let reason = format!("the image did not arrive within {limit_s} seconds");
        Self::unfetched_image("image_too_slow", param, &reason)
    }

    /// The file of an image has too many bytes.
    pub fn image_too_large(param: impl Into<String>, max_bytes: usize) -> Self {
        let reason = format!("the image has more than {max_bytes} bytes");
        Self::unfetched_image("image_too_large", param, &reason)
    }

    fn unfetched_image(code: &'static str, param: impl Into<String>, reason: &str) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': {reason}.", echo(&param));
        Self::bad_request(code, message).with_param(param)
    }
}
