//! Requests for files by TFTP, and what clients send during a transfer.
//!
//! Promised: what is read is bounded and names no place but a plain one; what we agree to is what was asked for or less,
//! and well formed.

use boot::tftp::{FromClient, REQUEST_MAX, Request};
use testkit::fuzz::{Fuzz, Verdict};

#[test]
fn tftp() {
    Fuzz::new("tftp", module_path!())
        .words([
            "octet",
            "netascii",
            "blksize",
            "tsize",
            "timeout",
            "windowsize",
            "\0\x01",
            "\0\x02",
            "\0",
            "../",
            "ipxe.efi",
        ])
        .seeds([
            &b"\0\x01ipxe.efi\0octet\0"[..],
            b"\0\x01ipxe.efi\0octet\0tsize\x000\0blksize\x001468\0windowsize\x004\0timeout\x003\0",
            b"\0\x01/a/b.c\0OCTET\0blksize\x0065464\0",
            b"\0\x01../../etc/passwd\0octet\0",
            b"\0\x01a\0netascii\0",
            b"\0\x02a\0octet\0",
            b"\0\x04\0\x01",
            b"\0\x05\0\x08aborted\0",
        ])
        .inputs(6_000)
        .run(|| |input: &[u8]| judged(input));
}

fn judged(input: &[u8]) -> Verdict {
    let heard = format!("{:?}", FromClient::read(input)).chars().take(3).collect::<String>();
    let request = match Request::read(input) {
        Err(why) => return Ok(format!("{why:?} {heard}")),
        Ok(request) if input.len() > REQUEST_MAX => return Err(format!("too long, and read: {request:?}")),
        Ok(request) => request,
    };
    let name = &request.name;
    let plain = name.bytes().all(|b| b.is_ascii_graphic() && b != b'\\') && !name.starts_with('/');
    if name.is_empty() || name.len() > 128 || !plain || name.split('/').any(|part| part == "..") {
        return Err(format!("a name that could lead somewhere: {name:?}"));
    }
    let bounded = request.block.is_none_or(|n| (8..=1468).contains(&n))
        && request.window.is_none_or(|n| (1..=16).contains(&n))
        && request.pause.is_none_or(|n| (1..=10).contains(&n));
    if !bounded {
        return Err(format!("more than is served: {request:?}"));
    }
    let asked = [request.block.is_some(), request.size, request.pause.is_some(), request.window.is_some()];
    match request.agreed(u64::MAX) {
        None if asked.contains(&true) => Err("asked, and not agreed".to_owned()),
        Some(bytes) if !bytes.starts_with(&[0, 6]) || !bytes.ends_with(&[0]) || bytes.len() > 100 => {
            Err(format!("not well formed: {}", bytes.escape_ascii()))
        }
        _ => Ok(format!("{asked:?} {}", name.contains('/'))),
    }
}
