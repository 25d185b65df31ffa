//! Errors of adapters in the API's form. Does not know how adapters are loaded.

use throng_api::ApiError;
use throng_fleet::adapters::{AdapterError, AdapterFault};

use throng_http::retry_after::retry_after_s;

/// The error for a request that needs an adapter which cannot be loaded; `param` names it.
pub(crate) fn unloadable(param: &str, fault: AdapterFault) -> ApiError {
    match fault {
        AdapterFault::Invalid(reason) => ApiError::invalid_adapter(param, &reason),
        AdapterFault::Full(reason) => {
            let reason = format!("All adapters in memory are in use: {reason}.");
            ApiError::overloaded(&reason, retry_after_s())
        }
    }
}

/// The error for a request to load or unload the adapter of this name.
pub(crate) fn refused_update(name: &str, error: AdapterError) -> ApiError {
    match error {
        AdapterError::UpdatesDisabled => ApiError::runtime_lora_updates_disabled(),
        AdapterError::NameTaken => {
            let reason = format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set \
                 'load_inplace' to True."
            );
            ApiError::invalid_value("lora_name", reason)
        }
        AdapterError::TooMany(max) => {
            let reason = format!("There are {max} adapters already. Unload one first.");
            ApiError::invalid_value("lora_name", reason)
        }
        AdapterError::NotFound => ApiError::adapter_not_found(name),
        AdapterError::Fault(fault) => unloadable("lora_path", fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_their_parameter() {
        let invalid = || AdapterFault::Invalid("tensor x is missing".to_owned());
        let full = AdapterFault::Full("2 are loaded".to_owned());
        for (error, status, param) in [
            (unloadable("model", invalid()), 400, Some("model")),
            (unloadable("model", full), 503, None),
            (refused_update("a", AdapterError::Fault(invalid())), 400, Some("lora_path")),
            (refused_update("a", AdapterError::NameTaken), 400, Some("lora_name")),
            (refused_update("a", AdapterError::TooMany(4)), 400, Some("lora_name")),
            (refused_update("a", AdapterError::NotFound), 404, Some("lora_name")),
            (refused_update("a", AdapterError::UpdatesDisabled), 403, None),
        ] {
            assert_eq!((error.status().as_u16(), error.param()), (status, param), "{error}");
        }
        assert!(unloadable("model", invalid()).message().contains("tensor x is missing"));
    }
}
