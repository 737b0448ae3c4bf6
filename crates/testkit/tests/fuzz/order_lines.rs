//! Orders on their way to the installer: the lines that the door writes, read by the installer's own script in the shell
//! that it runs in. Each value arrives as it was, and nothing in it is run.

use std::path::Path;
use std::process::Command;
use testkit::fuzz::Fuzz;

const KEYS: [&str; 12] = [
    "task",
    "node",
    "attempt",
    "image_url",
    "image_sha256",
    "image_bytes",
    "image_format",
    "image_raw_bytes",
    "disk",
    "disk_serial",
    "seed",
    "reboot",
];

/// No value of an order is longer than a URL may be.
const VALUE_MAX: usize = 512;

/// Reads the order in this folder and tells every value.
fn read(script: &Path, folder: &Path) -> Result<Vec<String>, String> {
    let tells: String = KEYS.iter().map(|key| format!(" \"$order_{key}\"")).collect();
    let program = format!("RUN=.; . \"$0\"; read_order; printf '%s\\n'{tells}");
    let mut shell = Command::new("busybox");
    shell.args(["sh", "-c", &program]).arg(script).current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin");
    let said = shell.output().map_err(|e| format!("busybox: {e}; 'apt-get install busybox' brings it"))?;
    if !said.status.success() || !said.stderr.is_empty() {
        return Err(format!("{}: {}", said.status, String::from_utf8_lossy(&said.stderr)));
    }
    let text = String::from_utf8(said.stdout).map_err(|e| e.to_string())?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).split('\n').map(str::to_owned).collect())
}

#[test]
fn order_lines() {
    let seeds = [
        "install\nbtn_1\n1\nhttp://h/images/sha256/ab\nab\n4096\nraw.gz\n\n/dev/vda\nS-1\nyes\ndisk",
        "it's\n'\n''\n'\\''\n\\\n\\'\n\"\n`touch a`\n$(touch b)\n${IFS}\n; touch c\n| touch d",
        "a\tb\r\n* ? [a]\n  x  \n-n\n%s %n\n\\n\\0\n=\n#x\n!x\n~\n&\n>e",
        "task='erase'\n'\ntask='erase\nü\u{2028}\u{fffd}\u{1b}[0m",
    ];
    let words =
        ["'", "'\\''", "\\", "\"", "`touch a`", "$(touch b)", "\n", "task=", "'\ndisk='/dev/sda", "${PATH}", " "];
    let script = testkit::golden::root().join("installer/lib/order.sh");
    assert!(script.is_file(), "{}", script.display());
    Fuzz::new("order_lines", module_path!()).seeds(seeds).words(words).inputs(400).run(|| {
        let folder = tempfile::tempdir().expect("a folder");
        move |input| {
            let text = String::from_utf8_lossy(input);
            // one for each key; with all that is left in the last, line ends and all
            let values = text.splitn(KEYS.len(), '\n').chain([""; KEYS.len()]).take(KEYS.len());
            let values: Vec<String> = values.map(|value| value.chars().take(VALUE_MAX).collect()).collect();
            let lines: String =
                KEYS.iter().zip(&values).map(|(key, value)| boot::door::order_line(key, value)).collect();
            if lines.lines().count() != KEYS.len() {
                return Err(format!("{} lines: {lines}", lines.lines().count()));
            }
            std::fs::write(folder.path().join("order"), &lines).expect("written");
            let read = read(&script, folder.path())?;
            let expected: Vec<String> =
                values.iter().map(|value| value.chars().filter(|c| !c.is_control()).collect()).collect();
            if read != expected {
                return Err(format!("{expected:?} is read as {read:?}"));
            }
            let there: Vec<_> =
                std::fs::read_dir(folder.path()).expect("listed").flatten().map(|e| e.file_name()).collect();
            if there != ["order"] {
                return Err(format!("something was run: {there:?}"));
            }
            let quotes = lines.matches('\'').count();
            Ok(format!("{quotes} quotes, {} backslashes, {}", lines.matches('\\').count().min(20), lines.len() / 64))
        }
    });
}
