//! Counts the patterns and formats that one string of a schema must match. Those of `allOf` and of
//! references beside other keywords add up, also for properties and items that several of the combined
//! schemas describe. Does not know the patterns' meaning.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::GrammarError;
use crate::grammar::intersection::Operands;

/// Maximum number of visited schemas; a schema that is reached in several ways counts each time.
const MAX_VISITS: usize = 30_000;

/// Keywords that restrict strings, and those that contain the schemas of children.
const OWN: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "format",
    "items",
    "multipleOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
];

/// The schemas that apply to one place in an instance.
#[derive(Debug)]
enum Place<'s> {
    /// The keywords of one schema, except those that refer to further schemas for the same place.
    One(&'s Map<String, Value>),
    /// All of these apply.
    All(Vec<Place<'s>>),
    /// At least one of these applies.
    Any(Vec<Place<'s>>),
}

/// Child of an object or array.
#[derive(Debug, Clone, Copy)]
enum Child<'s> {
    /// The property with this name.
    Property(&'s str),
    /// A property without a schema of its own.
    Other,
    /// An item of an array.
    Item,
}

/// Checks every place of an instance of the schema.
///
/// # Errors
/// [`GrammarError::TooComplex`].
pub(in crate::grammar) fn check(root: &Value) -> Result<(), GrammarError> {
    each_place(root, |place| place.operands().check())
}

/// Checks that llguidance can multiply the `multipleOf` of every place in 32 bits, in any order. All of
/// them are `primes`.
///
/// # Errors
/// [`GrammarError::TooComplex`].
pub(super) fn check_products(root: &Value, primes: impl Iterator<Item = u32>) -> Result<(), GrammarError> {
    let too_complex = || {
        let reason = "too many different conditions on numbers, several of which hold for one number";
        Err(GrammarError::TooComplex(reason.to_owned()))
    };
    // llguidance multiplies two least common multiples.
    let is_within = |product: u64| product.saturating_mul(product) <= u64::from(u32::MAX);
    if has_unknown_reference(root) {
        let product = primes.map(u64::from).fold(1, u64::saturating_mul);
        return if is_within(product) { Ok(()) } else { too_complex() };
    }
    each_place(root, |place| match place.multiples() {
        (n, product) if n > 1 && !is_within(product) => too_complex(),
        _ => Ok(()),
    })
}

/// Whether a reference points to where [`Walk::target`] does not find it.
fn has_unknown_reference(root: &Value) -> bool {
    let mut stack = vec![root];
    while let Some(value) = stack.pop() {
        match value {
            Value::Array(elements) => stack.extend(elements),
            Value::Object(members) => {
                let path = members.get("$ref").and_then(Value::as_str);
                let is_known =
                    |path: &str| path.strip_prefix('#').is_some_and(|at| root.pointer(at).is_some());
                let is_resource = members.get("$id").is_some_and(Value::is_string);
                if path.is_some_and(|path| !is_known(path)) || is_resource && !std::ptr::eq(value, root) {
                    return true;
                }
                stack.extend(members.values());
            }
            _ => {}
        }
    }
    false
}

fn each_place(
    root: &Value,
    check: impl Fn(&Place<'_>) -> Result<(), GrammarError>,
) -> Result<(), GrammarError> {
    let mut walk = Walk { root, n_visits: 0 };
    let mut seen = HashSet::new();
    let mut places = Vec::from_iter(walk.place(root, &mut Vec::new())?);
    while let Some(place) = places.pop() {
        check(&place)?;
        let mut names = BTreeSet::new();
        place.property_names(&mut names);
        let properties = names.into_iter().map(Child::Property);
        for child in properties.chain([Child::Other, Child::Item]) {
            let Some(below) = walk.child(&place, child)? else { continue };
            if seen.insert(below.identity()) {
                places.push(below);
            }
        }
    }
    Ok(())
}

impl<'s> Place<'s> {
    /// Combines places with `make`, each once; `None` if there are none.
    fn of(places: Vec<Self>, make: fn(Vec<Self>) -> Self) -> Option<Self> {
        let mut seen = HashSet::new();
        let mut different: Vec<Self> =
            places.into_iter().filter(|place| seen.insert(place.identity())).collect();
        if different.len() <= 1 { different.pop() } else { Some(make(different)) }
    }

    /// Identity of a place: the addresses of its schemas, and how they are combined.
    fn identity(&self) -> Vec<usize> {
        let mut written = Vec::new();
        self.write_identity(&mut written);
        written
    }

    fn write_identity(&self, written: &mut Vec<usize>) {
        // Small numbers cannot be addresses.
        let (begin, places) = match self {
            Self::One(schema) => return written.push(std::ptr::from_ref(*schema).addr()),
            Self::All(places) => (1, places),
            Self::Any(places) => (2, places),
        };
        written.push(begin);
        places.iter().for_each(|place| place.write_identity(written));
        written.push(0);
    }

    fn operands(&self) -> Operands {
        match self {
            Self::One(schema) => {
                let pattern = schema.get("pattern").and_then(Value::as_str);
                let format = schema.get("format").and_then(Value::as_str);
                Operands {
                    n: usize::from(pattern.is_some()) + usize::from(format.is_some()),
                    n_bytes: pattern.map_or(0, str::len),
                }
            }
            Self::All(places) => places.iter().map(Self::operands).fold(Operands::default(), Operands::and),
            Self::Any(places) => places.iter().map(Self::operands).fold(Operands::default(), Operands::or),
        }
    }

    /// Number of `multipleOf` that apply, and their product.
    fn multiples(&self) -> (usize, u64) {
        match self {
            Self::One(schema) => match schema.get("multipleOf").and_then(Value::as_u64) {
                Some(number) => (1, number),
                None => (0, 1),
            },
            Self::All(places) => places
                .iter()
                .map(Self::multiples)
                .fold((0, 1), |sum, one| (sum.0 + one.0, sum.1.saturating_mul(one.1))),
            Self::Any(places) => places
                .iter()
                .map(Self::multiples)
                .fold((0, 1), |most, one| (most.0.max(one.0), most.1.max(one.1))),
        }
    }

    fn property_names(&self, names: &mut BTreeSet<&'s str>) {
        match self {
            Self::One(schema) => names.extend(members(schema, "properties").map(|(name, _)| name)),
            Self::All(places) | Self::Any(places) => {
                places.iter().for_each(|place| place.property_names(names));
            }
        }
    }
}

struct Walk<'s> {
    root: &'s Value,
    n_visits: usize,
}

impl<'s> Walk<'s> {
    fn visit(&mut self) -> Result<(), GrammarError> {
        self.n_visits += 1;
        if self.n_visits > MAX_VISITS {
            return Err(GrammarError::TooComplex("too many combinations of schemas".to_owned()));
        }
        Ok(())
    }

    /// A schema with all schemas that it refers to for the same place. `open` are the schemas being
    /// visited: a reference back to one of them adds nothing.
    fn place(
        &mut self,
        schema: &'s Value,
        open: &mut Vec<*const Map<String, Value>>,
    ) -> Result<Option<Place<'s>>, GrammarError> {
        let Some(keywords) =
            schema.as_object().filter(|keywords| !open.contains(&std::ptr::from_ref(*keywords)))
        else {
            return Ok(None);
        };
        self.visit()?;
        open.push(keywords);
        let mut all = Vec::new();
        if OWN.iter().any(|keyword| keywords.contains_key(*keyword)) {
            all.push(Place::One(keywords));
        }
        for schema in self.different(elements(keywords, "allOf").chain(self.target(keywords))) {
            all.extend(self.place(schema, open)?);
        }
        for keyword in ["anyOf", "oneOf"] {
            let mut options = Vec::new();
            for schema in self.different(elements(keywords, keyword)) {
                options.extend(self.place(schema, open)?);
            }
            all.extend(Place::of(options, Place::Any));
        }
        open.pop();
        Ok(Place::of(all, Place::All))
    }

    /// Each schema once; a schema that is only a reference counts as its target.
    fn different(&self, schemas: impl Iterator<Item = &'s Value>) -> Vec<&'s Value> {
        let mut seen = HashSet::new();
        let targets = schemas.map(|schema| {
            let only_reference = schema.as_object().filter(|keywords| keywords.len() == 1);
            only_reference.and_then(|keywords| self.target(keywords)).unwrap_or(schema)
        });
        targets.filter(|schema| seen.insert(std::ptr::from_ref(*schema))).collect()
    }

    fn target(&self, keywords: &'s Map<String, Value>) -> Option<&'s Value> {
        self.root.pointer(keywords.get("$ref")?.as_str()?.strip_prefix('#')?)
    }

    fn child(&mut self, place: &Place<'s>, child: Child<'s>) -> Result<Option<Place<'s>>, GrammarError> {
        self.visit()?;
        let (places, make): (_, fn(_) -> _) = match place {
            Place::One(schema) => return self.child_of_one(schema, child),
            Place::All(places) => (places, Place::All),
            Place::Any(places) => (places, Place::Any),
        };
        let mut below = Vec::new();
        for place in places {
            below.extend(self.child(place, child)?);
        }
        Ok(Place::of(below, make))
    }

    fn child_of_one(
        &mut self,
        schema: &'s Map<String, Value>,
        child: Child<'s>,
    ) -> Result<Option<Place<'s>>, GrammarError> {
        let (mut named, mut others) = (None, Vec::new());
        if let Child::Item = child {
            let keywords = ["items", "additionalItems"].into_iter().filter_map(|keyword| schema.get(keyword));
            let lists = ["prefixItems", "items"].into_iter().flat_map(|keyword| elements(schema, keyword));
            others.extend(keywords.chain(lists));
        } else {
            if let Child::Property(name) = child {
                named = members(schema, "properties").find(|(own, _)| *own == name).map(|(_, schema)| schema);
            }
            others.extend(members(schema, "patternProperties").map(|(_, schema)| schema));
            if named.is_none() {
                others.extend(schema.get("additionalProperties"));
            }
        }
        let mut any = Vec::new();
        for schema in others {
            any.extend(self.place(schema, &mut Vec::new())?);
        }
        let mut all = Vec::from_iter(Place::of(any, Place::Any));
        if let Some(schema) = named {
            all.extend(self.place(schema, &mut Vec::new())?);
        }
        Ok(Place::of(all, Place::All))
    }
}

fn elements<'s>(schema: &'s Map<String, Value>, keyword: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    schema.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn members<'s>(
    schema: &'s Map<String, Value>,
    keyword: &str,
) -> impl Iterator<Item = (&'s str, &'s Value)> + use<'s> {
    let members = schema.get(keyword).and_then(Value::as_object).into_iter().flatten();
    members.map(|(name, schema)| (name.as_str(), schema))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_refused(schema: &Value) -> bool {
        matches!(check(schema), Err(GrammarError::TooComplex(_)))
    }

    fn patterns(n: usize) -> Vec<Value> {
        (0..n).map(|idx| json!({"pattern": format!("a{idx}.*")})).collect()
    }

    #[test]
    fn patterns_of_one_text_are_counted_together() {
        let defs = json!({"p": {"pattern": "a", "allOf": [{"pattern": "b"}]}});
        for (schema, expected) in [
            (json!({"allOf": patterns(3)}), false),
            (json!({"allOf": patterns(4)}), true),
            (json!({"allOf": patterns(2), "pattern": "x", "format": "date"}), true),
            (json!({"anyOf": patterns(40)}), false),
            (json!({"anyOf": patterns(40), "oneOf": patterns(40), "pattern": "a"}), false),
            (json!({"anyOf": [{"allOf": patterns(4)}, {"pattern": "a"}]}), true),
            (json!({"$ref": "#/$defs/p", "pattern": "c", "$defs": defs}), false),
            (json!({"$ref": "#/$defs/p", "allOf": patterns(2), "$defs": defs}), true),
            (
                json!({"allOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/p"}, {"pattern": "c"}], "$defs": defs}),
                false,
            ),
        ] {
            assert_eq!(is_refused(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn patterns_of_different_places_are_not() {
        let texts: Map<String, Value> =
            (0..30).map(|n| (format!("p{n}"), json!({"format": "date"}))).collect();
        assert!(!is_refused(
            &json!({"allOf": [{"properties": texts}, {"properties": {"x": {"pattern": "a"}}}]})
        ));
        assert!(!is_refused(
            &json!({"patternProperties": {"^a": {"pattern": "a"}, "^b": {"allOf": patterns(3)}}})
        ));
        let option =
            |n: usize| json!({"properties": {"kind": {"const": n}, "x": {"pattern": format!("a{n}")}}});
        assert!(!is_refused(&json!({"anyOf": (0..20).map(option).collect::<Vec<_>>()})));
        assert!(is_refused(&json!({"allOf": (0..4).map(option).collect::<Vec<_>>()})));
        let item = |schema: Value| json!({"items": {"properties": {"deep": schema}}});
        assert!(is_refused(&json!({"allOf": patterns(4).into_iter().map(item).collect::<Vec<_>>()})));
        let other = |schema: Value| json!({"additionalProperties": schema});
        assert!(is_refused(&json!({"allOf": patterns(4).into_iter().map(other).collect::<Vec<_>>()})));
    }

    #[test]
    fn schemas_that_refer_to_themselves_come_to_an_end() {
        let tree = json!({"$defs": {"t": {"properties": {"left": {"$ref": "#/$defs/t"}, "name": {"pattern": "a"}}}},
                          "allOf": [{"$ref": "#/$defs/t"}, {"properties": {"left": {"allOf": patterns(2)}}}]});
        assert!(!is_refused(&tree));
        assert!(!is_refused(&json!({"$ref": "#"})));
        assert!(!is_refused(&json!({"allOf": [{"$ref": "#"}], "pattern": "a"})));
        let doubling = |n: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            (format!("d{n}"), json!({"allOf": [next.clone(), {"allOf": [next]}]}))
        };
        let defs: Map<String, Value> = (0..30).map(doubling).collect();
        assert!(is_refused(&json!({"$defs": defs, "$ref": "#/$defs/d0"})));
    }

    #[test]
    fn long_patterns_may_not_meet_as_often() {
        let long = |n: usize| json!({"pattern": "a".repeat(n)});
        assert!(!is_refused(&long(16 << 10)));
        assert!(!is_refused(&json!({"allOf": [long(4000), long(4001)]})));
        assert!(is_refused(&json!({"allOf": [long(5000), long(5001)]})));
        assert!(is_refused(&json!({"allOf": [long(400), long(401), long(402)]})));
    }
}
