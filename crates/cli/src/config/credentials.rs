//! Settings from the credentials of a service, for settings that neither a flag nor the file has. Does not
//! know where credentials come from.

use throng_gateway::{AccessConfig, ClientCertificates, Secret, TlsConfig};

use super::Settings;
use crate::process::credentials::{file, text};
use crate::usage_error::UsageError;

/// Adds the credentials `api-keys` (one a line), `admin-key`, `database`, `redis`, `worker-token`,
/// `certificate.pem` with `key.pem`, and `client-ca.pem`.
///
/// # Errors
/// When one cannot be read, or a certificate comes without its key.
pub fn add(settings: &mut Settings) -> Result<(), UsageError> {
    add_secrets(&mut settings.gateway.access)?;
    let token = text("worker-token")?;
    settings.worker.token = settings.worker.token.take().or(token.map(Secret::new));
    if settings.gateway.tls.is_some() {
        return Ok(());
    }
    settings.gateway.tls = match (file("certificate.pem"), file("key.pem")) {
        (Some(certificate), Some(key)) => Some(TlsConfig {
            certificate,
            key,
            client_ca: file("client-ca.pem"),
            client_certificates: ClientCertificates::Required,
        }),
        (None, None) => None,
        _ => {
            let fault = "of the credentials certificate.pem and key.pem, one is there and the other is not";
            return Err(UsageError(fault.to_owned()));
        }
    };
    Ok(())
}

fn add_secrets(access: &mut AccessConfig) -> Result<(), UsageError> {
    if access.api_keys.is_empty()
        && let Some(keys) = text("api-keys")?
    {
        let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty() && !key.starts_with('#'));
        access.api_keys = keys.map(Secret::new).collect();
    }
    let admin_key = text("admin-key")?.map(Secret::new);
    access.admin_key = access.admin_key.take().or(admin_key);
    let redis = text("redis")?.map(Secret::new);
    access.redis = access.redis.take().or(redis);
    if access.database.is_none() {
        access.database = text("database")?;
    }
    Ok(())
}
