//! The machines in the box, and descriptions that are refused.

use throng_plan::machine::ComputeType;
use throng_plan::{Catalogue, Efficiency, PlanError};

#[test]
fn each_figure_has_a_source_and_the_day_on_which_it_was_read() {
    let catalogue = Catalogue::built_in();
    for machine in &catalogue.machines {
        for (name, figure) in machine.figures() {
            let source =
                figure.source.as_ref().unwrap_or_else(|| panic!("{name} of {} has none", machine.name));
            assert!(catalogue.sources[source].starts_with("https://"), "{source}");
            let read = figure.read.as_ref().unwrap_or_else(|| panic!("{name} of {}: no day", machine.name));
            assert!(read.len() == 10 && read.starts_with("20"), "{read}");
        }
        assert!(machine.price_per_hour.is_none(), "prices are the operator's");
    }
    let used: Vec<&String> = catalogue
        .machines
        .iter()
        .flat_map(|machine| machine.figures().filter_map(|(_, figure)| figure.source.as_ref()))
        .collect();
    for source in catalogue.sources.keys() {
        let named = format!("of {source}");
        let is_named = catalogue.sources.values().any(|text| text.ends_with(&named));
        assert!(used.contains(&source) || is_named, "{source} is the source of nothing");
    }
}

#[test]
fn every_machine_that_was_asked_for_is_in_the_box() {
    let catalogue = Catalogue::built_in();
    let names = [
        "h100",
        "h200",
        "b200",
        "gb200",
        "a100",
        "mi300x",
        "l40s",
        "l4",
        "t4",
        "epyc-9654",
        "xeon-8580",
        "m4-max",
    ];
    for name in names {
        let machine = catalogue.find(name).expect(name);
        assert!(machine.bandwidth().expect(name) > 1e11);
        assert!(machine.operations_per_s(ComputeType::Bf16).expect(name) > 1e12);
        let shares = Efficiency::of(machine);
        assert!((0.3..=1.0).contains(&shares.compute) && (0.3..=1.0).contains(&shares.memory), "{name}");
    }
}

/// A number type that a machine has no figure of is computed in the next wider one.
#[test]
fn a_type_without_a_figure_is_computed_in_a_wider_one() {
    let catalogue = Catalogue::built_in();
    let rate =
        |name: &str, of| catalogue.find(name).and_then(|machine| machine.operations_per_s(of)).expect(name);
    assert_eq!(rate("a100", ComputeType::Fp8), rate("a100", ComputeType::Bf16));
    assert_eq!(rate("h100", ComputeType::Fp4), 1978e12);
    assert_eq!(rate("epyc-9654", ComputeType::Bf16), rate("epyc-9654", ComputeType::F32));
}

#[test]
fn a_bad_description_is_refused_by_name() {
    let error = |figures: &str| {
        let text =
            format!("[[machine]]\nname = \"box\"\ntitle = \"a box\"\nkind = \"accelerator\"\n{figures}");
        Catalogue::parse("own.toml", &text).expect_err(figures).to_string()
    };
    assert_eq!(
        error("memory_bytes = { value = 0 }"),
        "memory_bytes of the machine box is 0: expected a finite number above 0"
    );
    assert!(error("watts = { value = nan }").starts_with("watts of the machine box is NaN"));
    assert!(error("bf16 = { value = -1 }").starts_with("bf16 of the machine box is -1"));
    assert!(error("bf16 = { value = 1, source = \"x\" }").contains("names the absent source x"));
    assert!(error("horsepower = { value = 1 }").contains("unknown field `horsepower`"));
    let catalogue = Catalogue::built_in();
    let error = catalogue.find("h1000").expect_err("no such machine");
    assert!(error.to_string().starts_with("there is no machine h1000 (there are: h100, h200"), "{error}");
    let t4 = catalogue.find("t4").expect("in the box");
    assert!(matches!(t4.link(), Err(PlanError::NoFigure { figure: "link_bytes_per_s", .. })));
}

#[test]
fn machines_of_an_operator_replace_those_in_the_box() {
    let text = "[[machine]]\nname = \"l4\"\ntitle = \"ours\"\nkind = \"accelerator\"\nmemory_bytes = { value = 1e9 }";
    let mut catalogue = Catalogue::built_in();
    let n_before = catalogue.machines.len();
    catalogue.extend(Catalogue::parse("own.toml", text).expect("a description"));
    assert_eq!(catalogue.machines.len(), n_before);
    assert_eq!(catalogue.find("l4").and_then(|machine| machine.capacity()).expect("a figure"), 1e9);
}
