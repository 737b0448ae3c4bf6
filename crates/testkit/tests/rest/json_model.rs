//! The JSON form against random messages: whatever is read can be written, what is written reads as the
//! same, and no input makes it panic.

use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{Cardinality, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// Decisions drawn from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.roll(from.len() as u64)).expect("an index")]
    }
}

fn text(dice: &mut Dice) -> Value {
    (*dice.pick(&["", "a", "ü💥", "a\0b", "\u{2028}\"\\", "null", "5", "\u{202e}", "a.b/c d"])).into()
}

fn free(dice: &mut Dice, depth: u32) -> Value {
    match dice.roll(if depth > 3 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => true.into(),
        2 => 5.into(),
        3 => json!(-2.5),
        4 => json!(1e300),
        5 => text(dice),
        6 => (0..dice.roll(3)).map(|_| free(dice, depth + 1)).collect(),
        _ => Value::Object((0..dice.roll(3)).map(|n| (format!("k{n}"), free(dice, depth + 1))).collect()),
    }
}

fn single(kind: &Kind, dice: &mut Dice, depth: u32) -> Value {
    if dice.roll(40) == 0 {
        return free(dice, 0); // rarely what belongs there
    }
    match kind {
        Kind::Message(m) => match m.full_name() {
            "google.protobuf.Timestamp" => {
                (*dice.pick(&["2026-01-29T15:10:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z"])).into()
            }
            "google.protobuf.Struct" => json!({"k": free(dice, 0), "n": 5}),
            "google.protobuf.FieldMask" => "spec.rack,labels.Env".into(),
            _ => message(m, dice, depth + 1),
        },
        Kind::Enum(e) => match dice.roll(3) {
            0 => dice.roll(9).into(),
            _ => e.values().last().map_or(Value::Null, |v| v.name().into()),
        },
        Kind::Bool => (dice.roll(2) == 0).into(),
        Kind::String => text(dice),
        Kind::Bytes => (*dice.pick(&["", "//4A", "AAAA"])).into(),
        Kind::Double | Kind::Float => json!(dice.roll(100) as f64 / 4.0),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            dice.pick(&[json!(0), json!("-9223372036854775808"), json!(7)]).clone()
        }
        Kind::Uint64 | Kind::Fixed64 => dice.pick(&[json!(0), json!("18446744073709551615"), json!(7)]).clone(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Uint32 | Kind::Fixed32 => dice.roll(1000).into(),
    }
}

fn content(field: &FieldDescriptor, dice: &mut Dice, depth: u32) -> Value {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let values = entry.map_entry_value_field().kind();
            Value::Object((0..dice.roll(3)).map(|n| (format!("k{n}"), single(&values, dice, depth))).collect())
        }
        kind if field.cardinality() == Cardinality::Repeated => {
            (0..dice.roll(3)).map(|_| single(&kind, dice, depth)).collect()
        }
        kind => single(&kind, dice, depth),
    }
}

/// JSON that mostly fits the message.
fn message(descriptor: &MessageDescriptor, dice: &mut Dice, depth: u32) -> Value {
    let mut object = Map::new();
    let mut chosen = Vec::new();
    for field in descriptor.fields() {
        let choice = field.containing_oneof().filter(|o| !o.is_synthetic());
        if dice.roll(3) == 0 || depth > 4 || choice.as_ref().is_some_and(|o| chosen.contains(o)) {
            continue;
        }
        chosen.extend(choice);
        let name = if dice.roll(2) == 0 { field.name() } else { field.json_name() };
        object.insert(name.to_owned(), content(&field, dice, depth));
    }
    Value::Object(object)
}

fn messages() -> Vec<MessageDescriptor> {
    let pool = api::json::pool().expect("descriptors");
    let ours =
        |m: &MessageDescriptor| ["baremetal.v1", "millwright.v1"].contains(&m.package_name()) && !m.is_map_entry();
    pool.all_messages().filter(ours).collect()
}

fn written(message: &DynamicMessage) -> String {
    serde_json::to_string(&api::json::Json(message)).expect("is written")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_is_written_and_reads_as_the_same(seed in any::<u64>()) {
        let mut dice = Dice(seed);
        let mut read = 0;
        for descriptor in messages() {
            let sent = message(&descriptor, &mut dice, 0);
            let Ok(first) = api::json::read(&descriptor, sent.clone()) else { continue };
            read += 1;
            let text = written(&first);
            let api::json::Strict(value) = serde_json::from_str(&text).expect("no key stands twice");
            let second = api::json::read(&descriptor, value).expect("reads again");
            prop_assert_eq!(&written(&second), &text);
            // and by way of the wire
            let third = api::json::decode(descriptor, &first.encode_to_vec()).expect("decodes");
            prop_assert_eq!(&written(&third), &text);
        }
        prop_assert!(read > 5, "the dice are loaded: only {read} messages fit");
    }

    #[test]
    fn whatever_else_is_sent_is_refused_with_a_sentence(seed in any::<u64>()) {
        let mut dice = Dice(seed);
        for descriptor in messages() {
            if let Err(e) = api::json::read(&descriptor, free(&mut dice, 0)) {
                prop_assert!(e.message.contains(": ") && e.details.contains_key("field"), "{}", e);
            }
        }
    }
}
