//! Names of adapters: which one gives way, and which are refused.

use throng_core::fleet::{AdapterNames, NameRefusal};

#[test]
fn the_one_unused_for_longest_goes() {
    let mut names = AdapterNames::new(3);
    names.add_first("never");
    for name in ["a", "b", "a"] {
        names.use_now(name);
    }
    assert_eq!(names.oldest(|_| true), Some("never"));
    assert_eq!(names.oldest(|name| name != "never"), Some("b"));
    assert_eq!(names.oldest(|_| false), None);
    names.remove("never");
    assert_eq!(names.oldest(|_| true), Some("b"));
}

#[test]
fn names_are_unique_and_bounded() {
    let mut names = AdapterNames::new(2);
    names.use_now("a");
    assert_eq!((names.check("a", false), names.check("a", true)), (Err(NameRefusal::Taken), Ok(())));
    names.use_now("b");
    assert_eq!((names.check("c", false), names.check("b", true)), (Err(NameRefusal::TooMany(2)), Ok(())));
    names.remove("a");
    assert_eq!(names.check("c", false), Ok(()));
}
