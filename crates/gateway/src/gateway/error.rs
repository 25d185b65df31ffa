//! Reasons why a gateway cannot serve.

use throng_api::InvalidImageHost;
use throng_http::TlsError;
use throng_tools::ToolsError;

/// Reason why a gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address is reachable from other machines and no key is set.
    #[error(
        "refusing to listen on {address}, which other machines can reach, without an API key: \
         set one with --api-key or --database, or say --allow-unauthenticated if everyone on that network may use the models"
    )]
    Unauthenticated {
        /// Address of the listener.
        address: String,
    },
    /// The worker's address is reachable from other machines and no token is set.
    #[error(
        "refusing to listen on {address}, which other machines can reach, without a token: set one with --worker-token, \
         or demand certificates of gateways with --ssl-ca-certs"
    )]
    OpenWorker {
        /// Address of the listener.
        address: String,
    },
    /// An API key that cannot be sent in a header.
    #[error("API key number {number} is empty, longer than 512 bytes, or not printable ASCII without spaces")]
    InvalidApiKey {
        /// Number of the key, counted from 1.
        number: usize,
    },
    /// A listener for the operator without a key, or with an invalid key or one of the clients' keys.
    #[error(
        "--admin-listen needs --admin-key: 1 to 512 printable ASCII characters without spaces, not one of --api-key"
    )]
    AdminKey,
    /// A model without a name, or a name of two models.
    #[error("every served model needs a name of its own: {name:?} is empty or taken")]
    ModelName {
        /// Name of the model.
        name: String,
    },
    /// An invalid setting for proxies or web pages.
    #[error("{setting} = {value:?}: must be {expected}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Invalid value of the setting.
        value: String,
        /// Expected value.
        expected: &'static str,
    },
    /// A host from which images cannot be fetched.
    #[error("gateway.api.allowed_media_domains: {0}")]
    ImageHost(InvalidImageHost),
    /// The folder of the response cache cannot be used.
    #[error("cannot use gateway.response_cache.directory: {0}")]
    Cache(std::io::Error),
    /// The configured tools cannot be used.
    #[error(transparent)]
    Tools(ToolsError),
    /// A rule of moderation cannot be used.
    #[error("gateway.moderation: {0}")]
    Moderation(String),
    /// The certificate or its key cannot be used.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    /// The socket failed.
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
}
