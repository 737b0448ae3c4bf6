//! Names of files by TFTP and paths by HTTP, against an image store with traps in its folder: links to the outside, a
//! folder, files that nobody has added. What is served is the one image, by its name or its digest; nothing else ever is.

use crate::wire::exchange;
use boot::images::{Images, Loaders, NamesInMemory, Options, Store};
use boot::tftp::{Files as _, Request};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use testkit::fuzz::{Fuzz, Verdict};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const IMAGE: &[u8] = b"the bytes of the only image";
/// In every file that must not be served.
const SECRET: &[u8] = b"not-for-anybody";
/// SHA-256 of the image.
const DIGEST: &str = "DIGEST";
/// Digests under which something else lies: a link to a file, one to the folder above, a folder.
const TRAPS: [&str; 3] = ["LINK", "ABOVE", "FOLDER"];

const SEEDS: &[&str] = &[
    "loader",
    "/loader",
    "//loader",
    "/images/loader",
    "/images/sha256/DIGEST",
    "/images/LINK",
    "/images/sha256/LINK",
    "/images/sha256/ABOVE/secret",
    "/images/sha256/FOLDER/secret",
    "link",
    "above",
    "../secret",
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/images/..%2fsecret",
    "/images/sha256/../secret",
    "/images/sha256/%2e%2e/secret",
    "/images/sha256/notes.txt",
    "/images/.\u{0}./secret",
    "/images/loader%00.txt",
    "http://elsewhere/images/loader",
    "/images/loader?x=/../secret#y",
    "LONG",
    "/images/LONG/../loader",
];

fn filled(input: &[u8], digest: &str) -> Vec<u8> {
    let mut text = input.to_vec();
    let traps = TRAPS.iter().zip(["aa", "bb", "cc"]).map(|(word, two)| (*word, two.repeat(32)));
    for (word, with) in traps.chain([(DIGEST, digest.to_owned()), ("LONG", "n".repeat(100_000))]) {
        text = crate::boot_query::replaced(&text, word.as_bytes(), with.as_bytes());
    }
    text
}

#[test]
fn outside() {
    let words = [
        "../",
        "..",
        "%2e%2e",
        "%2f",
        "\\",
        "%5c",
        "%00",
        "\0",
        "//",
        "/images/",
        "sha256/",
        "loader",
        "link",
        "secret",
        "notes.txt",
        "/etc/passwd",
        "LINK",
        "ABOVE",
        "FOLDER",
        "DIGEST",
        "LONG",
        "?",
        "#",
        "http://x",
    ];
    let fuzz = Fuzz::new("outside", module_path!()).seeds(SEEDS.iter().map(|s| s.as_bytes()));
    fuzz.words(words).inputs(2_500).run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let store = Arc::new(Store::open(folder.path(), u64::MAX).expect("opened"));
        let digest = store.add(IMAGE, None).expect("added").0;
        let [link, above, inside] = ["aa", "bb", "cc"].map(|two| folder.path().join("sha256").join(two.repeat(32)));
        for file in ["secret", "sha256/secret", "sha256/notes.txt"] {
            std::fs::write(folder.path().join(file), SECRET).expect("written");
        }
        symlink("../secret", link).expect("linked");
        symlink("..", above).expect("linked");
        std::fs::create_dir(&inside).expect("made");
        std::fs::write(inside.join("secret"), SECRET).expect("written");
        let names = Arc::new(NamesInMemory::default());
        names.set("loader".parse().expect("a name"), digest);
        for (name, two) in [("link", "aa"), ("above", "bb"), ("folder", "cc")] {
            names.set(name.parse().expect("a name"), two.repeat(32).parse().expect("a digest"));
        }
        let loaders = Loaders { store: store.clone(), names: names.clone() };
        let images = Arc::new(Images::new(store, names, Options { streams_max: 8 }));
        let address = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address").to_string();
            tokio::spawn(boot::port::serve(listener, images.router(), Default::default(), CancellationToken::new()));
            address
        });
        move |input| {
            // as long as anything is asked for
            let _there = folder.path();
            let path = filled(input, &digest.to_string());
            let tftp = runtime.block_on(by_tftp(&loaders, &path))?;
            let http = runtime.block_on(by_http(&address, &path, &digest.to_string()))?;
            Ok(format!("{tftp} {http} {}", input.iter().filter(|b| **b == b'/').count().min(5)))
        }
    });
}

async fn by_tftp(loaders: &Loaders, name: &[u8]) -> Verdict {
    let packet = [b"\0\x01", name, b"\0octet\0"].concat();
    let request = match Request::read(&packet) {
        Ok(request) => request,
        Err(why) => return Ok(format!("{why:?}").chars().take(12).collect()),
    };
    match loaders.open(&request.name).await {
        Ok(None) => Ok("nothing".to_owned()),
        Err(e) if ["link", "above", "folder"].contains(&request.name.as_str()) => {
            Ok(format!("refused {}", e.to_string().contains("link")))
        }
        Err(e) => Err(format!("{:?}: {e}", request.name)),
        Ok(Some(mut open)) => {
            let mut bytes = Vec::new();
            (&mut open.bytes).take(1 << 20).read_to_end(&mut bytes).await.map_err(|e| e.to_string())?;
            let asked = name.split(|b| *b == 0).next().unwrap_or_default();
            let plain = asked.iter().skip_while(|b| **b == b'/').copied().collect::<Vec<u8>>();
            if bytes != IMAGE || plain != b"loader" {
                return Err(format!("{:?} gives {:?}", request.name, String::from_utf8_lossy(&bytes)));
            }
            Ok("the image".to_owned())
        }
    }
}

async fn by_http(address: &str, path: &[u8], digest: &str) -> Verdict {
    let request = [b"GET ", path, b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"].concat();
    let Some(answer) = exchange(address, &request).await? else { return Ok("cut off".to_owned()) };
    let leaks = |secret: &[u8]| answer.body.windows(secret.len()).any(|w| w == secret);
    if leaks(SECRET) || leaks(b"root:") {
        return Err(format!("served: {:?}", String::from_utf8_lossy(&answer.body)));
    }
    let text = String::from_utf8_lossy(path);
    let trapped = ["aa", "bb", "cc"].iter().any(|two| text.contains(&two.repeat(32)))
        || ["link", "above", "folder"].iter().any(|name| text.contains(name));
    match answer.status {
        200 | 206 => {
            // what stands before "?", "#" and a blank, with or without a host before it
            let path = text.split([' ', '?', '#']).next().unwrap_or_default();
            let known = path.ends_with("/images/loader") || path.ends_with(&format!("/images/sha256/{digest}"));
            if answer.body != IMAGE || !known {
                return Err(format!("{text:?} gives {:?}", String::from_utf8_lossy(&answer.body)));
            }
            Ok("the image".to_owned())
        }
        400..500 => Ok(answer.status.to_string()),
        500 if trapped => Ok("trapped".to_owned()),
        other => Err(format!("{other}: {:?}", String::from_utf8_lossy(&answer.body))),
    }
}
