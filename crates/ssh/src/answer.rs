//! What a script answered, understood. The first line that begins with our mark is its answer; what a login shell
//! prints before that is nobody's business.

use crate::script::{INTERRUPTED_STATUS, RECORDED_MAX_BYTES};
use domain::stage::FailureClass;
use provider::{Chunk, ExecProgress, ExecState, ProviderError, ProviderResult, Stream};

const MARK: &[u8] = b"\nmillwright-answer ";
const TEXT_MAX: usize = 300;

/// Who a host says it is. What it does not tell is empty: the first two can be read by root alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    pub serial_number: String,
    pub system_uuid: String,
    pub hostname: String,
    /// Changes with every boot.
    pub boot_id: String,
    /// Changes with every installation: `/etc/machine-id`. Empty: there is none.
    pub instance: String,
    /// The text of `/etc/millwright-image`, at most 4 KiB of it; none: there is no such file.
    pub image: Option<String>,
}

/// The answer's line, and all that follows it.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub head: &'a str,
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    pub fn find(said: &'a [u8]) -> Option<Self> {
        let at = said.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
        let rest = &said[at..];
        let end = rest.iter().position(|b| *b == b'\n')?;
        Some(Self { head: std::str::from_utf8(&rest[..end]).ok()?, body: &rest[end + 1..] })
    }

    /// Of a no: which kind, and why.
    pub fn refusal(&self, what: &str) -> Option<ProviderError> {
        let (kind, why) = self.head.strip_prefix("no ")?.split_once(' ')?;
        let why: String = why.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        Some(match kind {
            "missing" => ProviderError::capability_missing(what, &format!("{why} (a program that is needed there)")),
            "bad" => ProviderError::bad_answer(what, &why),
            "stuck" => ProviderError::transient(format!("{what} cannot kill the command: {why}")),
            _ => ProviderError::refused(FailureClass::Transient, format!("{what} did not do it: {why}")),
        })
    }
}

/// A page of a recording.
pub(crate) fn progress(answer: &Answer<'_>, offset: u64) -> Option<ExecProgress> {
    let mut ended = match answer.head.split_once(' ').unwrap_or((answer.head, "")) {
        ("never", "") => return Some(ExecProgress { state: ExecState::NeverStarted, output: Vec::new(), offset }),
        ("running", "") => None,
        ("exited", status) => Some((ExecState::Exited(status.parse().ok()?), None)),
        ("rebooted", "") => {
            let why = "the host has rebooted before the command ended; its exit status is not known";
            Some((ExecState::Exited(INTERRUPTED_STATUS), Some(why)))
        }
        ("lost", "") => {
            let why = "the command's recorder was killed before the command ended; its exit status is not known";
            Some((ExecState::Exited(INTERRUPTED_STATUS), Some(why)))
        }
        _ => return None,
    };
    let (sizes, rest) = line(answer.body)?;
    let mut sizes = sizes.split(' ');
    let mut number = || sizes.next()?.parse::<usize>().ok();
    let (taken, out, err) = (number()?, number()?, number()?);
    if sizes.next()? == "yes" {
        // its end is news only after all it printed
        ended = None;
    }
    let (mut records, data) = rest.split_at_checked(taken)?;
    let (mut stdout, stderr) = data.split_at_checked(out)?;
    let mut stderr = stderr.get(..err)?;
    let mut output: Vec<Chunk> = Vec::new();
    let mut put = |stream: Stream, data: &[u8]| match output.last_mut() {
        Some(last) if last.stream == stream => last.data.extend_from_slice(data),
        _ => output.push(Chunk { stream, data: data.to_vec() }),
    };
    while !records.is_empty() {
        let (record, others) = line(records)?;
        records = others;
        let mut words = record.split(' ');
        let (stream, from) = match words.next()? {
            "out" => (Stream::Stdout, &mut stdout),
            "err" => (Stream::Stderr, &mut stderr),
            _ => return None,
        };
        if words.next()? == "cut" {
            let name = stream.as_str();
            let mark = format!(
                "\n[millwright: the rest of {name} is not kept, after {RECORDED_MAX_BYTES} bytes or too many pieces]\n"
            );
            put(stream, mark.as_bytes());
            continue;
        }
        let (piece, left) = from.split_at_checked(words.next()?.parse().ok()?)?;
        *from = left;
        put(stream, piece);
    }
    let state = match ended {
        None => ExecState::Running,
        Some((state, why)) => {
            if let Some(why) = why {
                put(Stream::Stderr, format!("\n[millwright: {why}]\n").as_bytes());
            }
            state
        }
    };
    Some(ExecProgress { state, output, offset: offset + taken as u64 })
}

pub(crate) fn identity(answer: &Answer<'_>) -> Option<HostIdentity> {
    let text = String::from_utf8_lossy(answer.body);
    let mut lines = text.splitn(6, '\n');
    let mut next = || lines.next().map(|line| line.trim().to_owned());
    let (boot_id, hostname, serial_number, system_uuid, instance) = (next()?, next()?, next()?, next()?, next()?);
    let image = lines.next().and_then(|rest| rest.strip_prefix("image\n")).map(|image| image.trim().to_owned());
    (!boot_id.is_empty()).then_some(HostIdentity { serial_number, system_uuid, hostname, boot_id, instance, image })
}

fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|b| *b == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

/// The answer, or why there is none.
pub(crate) fn understood<'a>(what: &str, said: &'a [u8], stderr: &[u8]) -> ProviderResult<Answer<'a>> {
    let Some(answer) = Answer::find(said) else {
        // a shell that cannot run it says why here
        let why: String = String::from_utf8_lossy(stderr).chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        let why = if why.is_empty() { "nothing that we asked for came from its shell".to_owned() } else { why };
        return Err(ProviderError::bad_answer(what, &why));
    };
    match answer.refusal(what) {
        Some(no) => Err(no),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Option<ExecProgress> {
        let said = format!("motd\n\nmillwright-answer {text}");
        progress(&Answer::find(said.as_bytes()).expect("an answer"), 10)
    }

    #[test]
    fn a_page_is_put_together_in_order() {
        let records = "out 0 2\nerr 0 3\nout 2 1\nout 3 1\n";
        let news = page(&format!("exited 42\n{} 4 3 no\n{records}abcdxyz", records.len())).expect("a page");
        let pieces: Vec<(Stream, &[u8])> = news.output.iter().map(|c| (c.stream, c.data.as_slice())).collect();
        assert_eq!(pieces, [(Stream::Stdout, &b"ab"[..]), (Stream::Stderr, b"xyz"), (Stream::Stdout, b"cd")]);
        assert_eq!((news.state, news.offset), (ExecState::Exited(42), 10 + records.len() as u64));
    }

    #[test]
    fn the_end_is_told_after_the_last_page_only() {
        assert_eq!(page("exited 0\n8 1 0 yes\nout 0 1\na").expect("a page").state, ExecState::Running);
        assert_eq!(page("exited 0\n8 1 0 no\nout 0 1\na").expect("a page").state, ExecState::Exited(0));
        let gone = page("rebooted\n0 0 0 no\n").expect("a page");
        assert_eq!(gone.state, ExecState::Exited(INTERRUPTED_STATUS));
        assert!(String::from_utf8_lossy(&gone.output[0].data).contains("rebooted"));
    }

    #[test]
    fn what_is_no_page_is_told_apart() {
        for bad in [
            "",
            "perhaps",
            "exited\n0 0 0 no\n",
            "running",
            "running\n8 5 0 no\nout 0 5\nabc",
            "running\n6 0 0 no\nout 0 ",
        ] {
            assert_eq!(page(&format!("{bad}\n")), None, "{bad:?}");
        }
    }
}
