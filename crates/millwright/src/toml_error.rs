//! What is wrong with a TOML file: the line and the reason, never the text of the line nor a value in it. Files
//! hold passwords and tokens, and a value of the wrong type is quoted by the library in its reason.

use domain::limits::short;

/// Line and reason.
pub fn problem(text: &str, error: &toml::de::Error) -> (usize, String) {
    let line = error.span().map_or(1, |span| line_of(text, span.start));
    (line, short(&reason(error.message())))
}

/// The line of a place in a text, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    before.iter().filter(|b| **b == b'\n').count() + 1
}

/// The reason without the value that it is about; keys and what is expected stay.
pub fn reason(message: &str) -> String {
    let one_line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let about_a_value = ["invalid type: ", "invalid value: ", "unknown variant "];
    if !about_a_value.iter().any(|words| one_line.starts_with(words)) {
        return one_line;
    }
    let (Some(opens), Some(expected)) = (one_line.find(['"', '`', '\'']), one_line.rfind(", expected ")) else {
        return one_line;
    };
    // what is expected may stand in quotes, too; only what comes before it is the value
    if opens < expected { format!("{}{}", one_line[..opens].trim_end(), &one_line[expected..]) } else { one_line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_told_and_places_are() {
        let told = |text: &str| problem(text, &text.parse::<toml::Table>().expect_err(text));
        let (line, why) = told("a = 1\npassword = hunter2\n");
        assert_eq!(line, 2);
        assert!(!why.contains("hunter2") && !why.is_empty(), "{why}");
        for (message, expected) in [
            ("invalid type: string \"hunter2, expected x\", expected a map", "invalid type: string, expected a map"),
            ("invalid type: integer `12`, expected a string", "invalid type: integer, expected a string"),
            ("unknown variant `hunter2`, expected `cancel`", "unknown variant, expected `cancel`"),
            ("unknown field `lisen`, expected `listen`", "unknown field `lisen`, expected `listen`"),
            ("invalid type: map, expected a string", "invalid type: map, expected a string"),
        ] {
            assert_eq!(reason(message), expected);
        }
    }
}
