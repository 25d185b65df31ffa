//! Settings of routing that cannot be used, and the reasons that are told.

use throng_gateway::{ModelAlias, ResidencyRule, RoutingConfig, ShadowConfig, WeightedModel};

fn alias(name: &str, model: &str, weight: u32) -> ModelAlias {
    let targets = vec![WeightedModel { model: model.to_owned(), weight }];
    ModelAlias { name: name.to_owned(), targets, fallback: Vec::new(), shadow: None }
}

#[test]
fn what_cannot_be_used_is_told() {
    let shadow = |percent, max_in_flight| {
        let shadow = Some(ShadowConfig { model: "n".to_owned(), percent, max_in_flight });
        vec![ModelAlias { shadow, ..alias("a", "m", 1) }]
    };
    let told = |aliases| RoutingConfig { aliases, ..RoutingConfig::default() }.check().err();
    assert_eq!(told(vec![alias("a", "m", 1), alias("b", "m", 1)]), None);
    assert_eq!(told(shadow(100, 8)), None);
    for (aliases, words) in [
        (vec![alias("", "m", 1)], "empty"),
        (vec![alias("a", "m", 1), alias("a", "n", 1)], "twice"),
        (vec![alias("a", "m", 0)], "weight"),
        (vec![alias("a", "b", 1), alias("b", "m", 1)], "another"),
        (shadow(101, 8), "percent"),
        (shadow(5, 0), "copies"),
        (vec![ModelAlias { fallback: vec!["m".to_owned(); 17], ..alias("a", "m", 1) }], "16"),
    ] {
        assert!(told(aliases).is_some_and(|fault| fault.contains(words)), "{words}");
    }
}

#[test]
fn rules_name_regions_that_there_are() {
    let rule = |organisation: &str, regions: &[&str]| ResidencyRule {
        organisation: organisation.to_owned(),
        regions: names(regions),
    };
    let told = |regions: &[&str], residency| {
        let (region, regions) = (Some("eu".to_owned()), names(regions));
        RoutingConfig { region, regions, residency, ..RoutingConfig::default() }.check().err()
    };
    let known = ["eu", "us"];
    assert_eq!(told(&known, vec![rule("a", &["eu"]), rule("*", &["eu", "us"])]), None);
    assert_eq!(told(&[], vec![]), None);
    for (regions, residency, words) in [
        (&[][..], vec![rule("a", &["eu"])], "must name all regions"),
        (&["us"], vec![], "\"eu\" is none of"),
        (&["eu", "eu"], vec![], "twice"),
        (&["eu", "u s"], vec![], "not a name of"),
        (&known, vec![rule("a", &["eu"]), rule("a", &["us"])], "two rules"),
        (&known, vec![rule("", &["eu"])], "needs a name"),
        (&known, vec![rule("a", &[])], "permits no region"),
        (&known, vec![rule("a", &["eu", "eu"])], "twice"),
        (&known, vec![rule("a", &["eu", "ue"])], "\"ue\" is none of gateway.routing.regions (eu, us)"),
    ] {
        let fault = told(regions, residency).unwrap_or_else(|| panic!("accepted: {words}"));
        assert!(fault.contains(words), "{fault} does not say {words}");
    }
    let many = (0..=1024).map(|number| rule(&number.to_string(), &["eu"])).collect();
    assert!(told(&known, many).is_some_and(|fault| fault.contains("more than")));
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|&name| name.to_owned()).collect()
}
