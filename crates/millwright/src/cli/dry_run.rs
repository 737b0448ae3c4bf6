//! `--dry-run`: what would be sent, and what a look at the server tells about its chances.
//!
//! The server has no trial mode, so nothing that changes anything is sent: the request is made and checked
//! here, and at most read-only calls are made to see what stands in its way.

use super::exit::CliError;
use super::json::{self, Shown, Wire};
use super::output::{Format, Screen, painted};
use super::text::clean;
use std::io::Write as _;

pub struct DryRun {
    call: &'static str,
    id: String,
    request: Shown,
    /// The fields that an update names.
    mask: Option<Vec<String>>,
    found: Vec<(bool, String)>,
    obstacle: Option<CliError>,
}

impl DryRun {
    /// A request that would go to `call`, about the thing `id`.
    pub fn new<T: Wire>(call: &'static str, id: &str, request: &T) -> Result<Self, CliError> {
        let request = json::shown(request)?;
        Ok(Self { call, id: id.to_owned(), request, mask: None, found: Vec::new(), obstacle: None })
    }

    pub fn mask(&mut self, paths: &[String]) {
        self.mask = Some(paths.to_vec());
    }

    /// Something that is as it should be.
    pub fn fine(&mut self, what: impl Into<String>) {
        self.found.push((true, what.into()));
    }

    /// Something that would be refused. The first one decides the exit code.
    pub fn obstacle(&mut self, error: CliError) {
        self.found.push((false, error.to_string()));
        self.obstacle.get_or_insert(error);
    }

    #[cfg(test)]
    pub fn verdict(&self) -> Option<super::exit::Exit> {
        self.obstacle.as_ref().map(CliError::exit)
    }

    /// Prints it all; ends as the real thing would, as far as that can be told.
    pub fn print(self, format: Format) -> Result<(), CliError> {
        let text = self.text(format, Screen::stdout().colour)?;
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        self.obstacle.map_or(Ok(()), Err)
    }

    fn text(&self, format: Format, colour: bool) -> Result<String, CliError> {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mask = self.mask.as_ref().map(|paths| paths.iter().map(|path| quoted(path)).collect::<Vec<_>>().join(", "));
        Ok(match format {
            Format::Name => format!("{}\n", self.id),
            Format::Json => {
                let found: Vec<String> = (self.found.iter())
                    .map(|(ok, what)| format!("    {{\"ok\": {ok}, \"what\": {}}}", quoted(what)))
                    .collect();
                let found = if found.is_empty() { "[]".to_owned() } else { format!("[\n{}\n  ]", found.join(",\n")) };
                let mask = mask.map(|paths| format!(",\n  \"update_mask\": [{paths}]")).unwrap_or_default();
                format!(
                    "{{\n  \"dry_run\": true,\n  \"call\": {},\n  \"request\": {}{mask},\n  \"found\": {found}\n}}\n",
                    quoted(self.call),
                    self.request.pretty(2)?
                )
            }
            Format::Yaml => {
                let found: String =
                    self.found.iter().map(|(ok, what)| format!("- ok: {ok}\n  what: {}\n", quoted(what))).collect();
                let found = if found.is_empty() { "found: []\n".to_owned() } else { format!("found:\n{found}") };
                let mask = mask.map(|paths| format!("update_mask: [{paths}]\n")).unwrap_or_default();
                let call = quoted(self.call);
                format!("dry_run: true\ncall: {call}\nrequest:\n{}{mask}{found}", indented(&self.request.yaml()?))
            }
            Format::Table | Format::Wide => {
                let mut text = "dry run: nothing that changes anything was sent\n".to_owned();
                for (ok, what) in &self.found {
                    let word = if *ok { "ok" } else { "FAIL" };
                    text.push_str(&format!(
                        "{}{}  {}\n",
                        painted(word, word, colour),
                        if *ok { "  " } else { "" },
                        clean(what)
                    ));
                }
                text.push_str(&format!("would call {} with\n{}", self.call, indented(&self.request.yaml()?)));
                if let Some(paths) = &self.mask {
                    text.push_str(&format!("changing only {}\n", clean(&paths.join(", "))));
                }
                text
            }
        })
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::baremetal::v1::CancelRunRequest;

    fn trial() -> DryRun {
        let request = CancelRunRequest { run_id: "run_1".to_owned() };
        let mut trial = DryRun::new("a.B/C", "run_1", &request).expect("shown");
        trial.fine("it is \"there\"");
        trial.obstacle(CliError::refused("it has ended"));
        trial.obstacle(CliError::not_found("later"));
        trial.mask(&["spec.rack".to_owned()]);
        trial
    }

    #[test]
    fn json_and_yaml_say_the_same() {
        let json: serde_json::Value =
            serde_json::from_str(&trial().text(Format::Json, false).expect("text")).expect("JSON");
        let yaml: serde_json::Value =
            serde_yaml_ng::from_str(&trial().text(Format::Yaml, false).expect("text")).expect("YAML");
        assert_eq!(json, yaml);
        assert_eq!((json["dry_run"].as_bool(), json["call"].as_str()), (Some(true), Some("a.B/C")));
        assert_eq!(json["request"]["run_id"], "run_1");
        assert_eq!(json["found"][0]["what"], "it is \"there\"");
        assert_eq!(json["update_mask"][0], "spec.rack");
    }

    #[test]
    fn the_first_obstacle_decides_and_people_see_all() {
        let text = trial().text(Format::Table, false).expect("text");
        assert_eq!(
            text,
            "dry run: nothing that changes anything was sent\nok    it is \"there\"\nFAIL  it has ended\nFAIL  later\nwould call a.B/C with\n  run_id: run_1\nchanging only spec.rack\n"
        );
        assert_eq!(trial().obstacle.map(|e| e.exit().code()), Some(4));
        assert_eq!(trial().text(Format::Name, false).expect("text"), "run_1\n");
    }
}
