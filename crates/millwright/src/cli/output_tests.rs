//! Tables of known width, and lists whose pages join into one document.

use super::*;
use proto::baremetal::v1::{Machine, Plan};

struct Row(&'static str, &'static str, &'static str);

static COLUMNS: [Column<Row>; 4] = [
    Column::new("ID", |r: &Row, _| r.0.to_owned()),
    Column::new("STATE", |r: &Row, _| r.1.to_owned()).state(),
    Column::new("MESSAGE", |r: &Row, _| r.2.to_owned()).flex(),
    Column::new("MORE", |_, _| "more".to_owned()).wide(),
];

fn lines(width: Option<usize>, wide: bool, colour: bool, rows: &[Row]) -> Vec<String> {
    Table::new(&COLUMNS, wide, Screen { width, colour, live: false }).lines(rows.iter(), Timestamp::UNIX_EPOCH)
}

#[test]
fn columns_are_aligned_and_empty_cells_marked() {
    let table = lines(None, false, false, &[Row("m-1", "READY", "fine"), Row("machine-22", "RMA", "")]);
    assert_eq!(table, ["ID          STATE  MESSAGE", "m-1         READY  fine", "machine-22  RMA    -"]);
}

#[test]
fn the_text_gives_way_to_the_terminal_and_ids_do_not() {
    let long = "a message that goes on and on and on";
    let table = lines(Some(36), false, false, &[Row("m-1", "READY", long)]);
    assert_eq!(table[1], "m-1  READY  a message that goes on …");
    assert!(table.iter().all(|line| line.chars().count() <= 36), "{table:?}");
    let narrow = lines(Some(5), false, false, &[Row("a-long-machine-id", "READY", long)]);
    assert_eq!(narrow[1], "a-long-machine-id  READY  a mes…");
}

#[test]
fn nothing_is_cut_where_nobody_looks() {
    let long: &'static str = "x".repeat(500).leak();
    assert!(lines(None, false, false, &[Row("m", "s", long)])[1].ends_with(long));
}

#[test]
fn wide_has_more_columns() {
    assert_eq!(lines(None, true, false, &[Row("m", "s", "t")])[0], "ID  STATE  MESSAGE  MORE");
}

#[test]
fn colour_does_not_shift_columns_and_control_characters_do_not_pass() {
    let table = lines(None, false, true, &[Row("m\u{1b}[2J", "READY", "a\nb")]);
    assert_eq!(table[1], "m\u{fffd}[2J  \u{1b}[32mREADY\u{1b}[0m  a b");
}

#[test]
fn later_pages_have_no_second_head_and_never_narrower_columns() {
    let mut table = Table::new(&COLUMNS, false, Screen::PLAIN);
    table.lines([Row("machine-1", "READY", "x")].iter(), Timestamp::UNIX_EPOCH);
    let second = table.lines([Row("m", "RMA", "y")].iter(), Timestamp::UNIX_EPOCH);
    assert_eq!(second, ["m          RMA    y"]);
}

#[test]
fn two_long_columns_share_the_loss() {
    static TWO: [Column<Row>; 2] =
        [Column::new("A", |r: &Row, _| r.1.to_owned()).flex(), Column::new("B", |r: &Row, _| r.2.to_owned()).flex()];
    let (a, b): (&'static str, &'static str) = ("a".repeat(60).leak(), "b".repeat(40).leak());
    let mut table = Table::new(&TWO, false, Screen { width: Some(62), ..Screen::PLAIN });
    let lines = table.lines([Row("", a, b)].iter(), Timestamp::UNIX_EPOCH);
    assert_eq!(lines[1].chars().count(), 62);
    assert!(lines[1].matches('a').count() >= 28 && lines[1].matches('b').count() >= 28, "{}", lines[1]);
}

fn machine(id: &str) -> Machine {
    Machine { machine_id: id.to_owned(), ..Default::default() }
}

fn written<T: Listed>(format: Format, pages: &[&[T]], token: &str) -> String {
    let mut out = Vec::new();
    let mut writer = ListWriter::new(&mut out, format, Screen::PLAIN);
    for page in pages {
        writer.page(page, Timestamp::UNIX_EPOCH).expect("written");
    }
    writer.finish(token).expect("finished");
    String::from_utf8(out).expect("text")
}

#[test]
fn pages_join_into_one_document_like_the_response() {
    let (first, second) = ([machine("a"), machine("b")], [machine("c")]);
    let pages: [&[Machine]; 3] = [&first, &[], &second];
    let json: serde_json::Value = serde_json::from_str(&written(Format::Json, &pages, "next")).expect("JSON");
    let yaml: serde_json::Value = serde_yaml_ng::from_str(&written(Format::Yaml, &pages, "next")).expect("YAML");
    assert_eq!(json, yaml);
    assert_eq!(json["machines"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["machines"][2]["machine_id"], "c");
    assert_eq!(json["next_page_token"], "next");
    assert_eq!(written(Format::Name, &pages, ""), "a\nb\nc\n");
}

#[test]
fn an_empty_list_is_an_empty_document() {
    assert_eq!(written::<Machine>(Format::Json, &[], ""), "{\n  \"machines\": [],\n  \"next_page_token\": \"\"\n}\n");
    assert_eq!(written::<Machine>(Format::Yaml, &[], ""), "machines: []\nnext_page_token: \"\"\n");
    assert_eq!(written::<Plan>(Format::Json, &[], ""), "{\n  \"plans\": []\n}\n");
    assert_eq!(written::<Machine>(Format::Table, &[], ""), "");
}
