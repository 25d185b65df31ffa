//! The configuration of a gateway as a file has it.

use throng_gateway::GatewayConfig;

#[test]
fn unknown_keys_are_rejected_and_secrets_stay_secret() {
    let config: GatewayConfig =
        serde_json::from_str(r#"{"access": {"api_keys": ["canary-key"]}}"#).expect("a valid configuration");
    assert_eq!(config.access.api_keys[0].reveal(), "canary-key");
    assert!(!format!("{config:?}").contains("canary"));
    assert!(!serde_json::to_string(&config).expect("plain data").contains("canary"));
    assert!(serde_json::from_str::<GatewayConfig>(r#"{"server": {"prot": 1}}"#).is_err());
}
