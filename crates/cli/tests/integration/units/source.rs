//! The model that a command line names.

use throng_cli::source::{BUILT_IN, HubPlace, ModelSource};

#[test]
fn the_starter_model_is_the_default() {
    let find = |model| ModelSource::find(&HubPlace { model, ..HubPlace::default() });
    let found = |model| find(model).expect("built in");
    assert_eq!(found(None), ModelSource::BuiltIn(&BUILT_IN[0]));
    assert_eq!(found(Some("throng-starter")), found(None));
    assert_eq!(found(Some("throng-starter-draft")), ModelSource::BuiltIn(&BUILT_IN[1]));
    let error = find(Some("/nowhere/model.gguf")).expect_err("absent");
    assert!(error.to_string().contains("/nowhere/model.gguf"));
}

#[test]
fn a_model_is_served_under_its_own_name_and_the_given_one() {
    let file = ModelSource::Path { given: "/a/x.gguf".into(), path: "/a/x.gguf".into() };
    assert_eq!(file.names("x"), ["x", "/a/x.gguf"]);
    let folder = std::env::temp_dir();
    let hub = ModelSource::Path { given: "org/name@main".into(), path: folder };
    assert_eq!(hub.names("0123abcd"), ["name", "org/name@main"]);
}
