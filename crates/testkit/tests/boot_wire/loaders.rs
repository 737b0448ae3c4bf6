//! Loaders by TFTP: curl and busybox fetch real files, and nothing else.

use crate::network::{Host, output, privately};
use crate::service::{Shelf, World, only_server, wired};
use boot::counts::Count;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// So many blocks of 64 bytes that their numbers begin again.
const LONG: usize = 66_000 * 64 + 3;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + at / 251) % 256) as u8).collect()
}

struct Bench {
    host: Host,
    world: World,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let host = Host::new().await;
        wired(&host).await;
        host.ip("address add 10.77.0.9/24 dev eth0").await;
        let folder = testkit::scratch::folder();
        let mut shelf = BTreeMap::new();
        for (name, length) in [("ipxe.efi", 1_000_003), ("even", 1024), ("empty", 0), ("long", LONG)] {
            let path = folder.path().join(name);
            std::fs::write(&path, content(length)).expect("written");
            shelf.insert(name.to_owned(), path);
        }
        // beside the files, and not on the list
        std::fs::write(folder.path().join("secret"), b"secret").expect("written");
        let world = World::new("boot0", Shelf(shelf));
        Self { host, world, folder }
    }

    fn got(&self) -> PathBuf {
        self.folder.path().join("got")
    }

    /// The file if the program says that it has it; its exit code and words if not.
    async fn fetch(&self, program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
        drop(std::fs::remove_file(self.got()));
        let ended = output(self.host.command(program, arguments)).await;
        let code = ended.status.code().unwrap_or(-1);
        let said = format!("exit code {code}: {}", String::from_utf8_lossy(&ended.stderr));
        if ended.status.success() { Ok(std::fs::read(self.got()).unwrap_or_default()) } else { Err(said) }
    }

    async fn curl(&self, name: &str, extra: &[&str]) -> Result<Vec<u8>, String> {
        let (url, got) = (format!("tftp://10.77.0.1/{name}"), self.got().display().to_string());
        let arguments =
            [&["--silent", "--show-error", "--path-as-is", "--max-time", "200", "-o", &got, &url], extra].concat();
        self.fetch("curl", &arguments).await
    }

    async fn busybox(&self, name: &str, extra: &[&str]) -> Result<Vec<u8>, String> {
        let got = self.got().display().to_string();
        let arguments = [&["tftp", "-g", "-l", &got, "-r", name], extra, &["10.77.0.1"]].concat();
        self.fetch("busybox", &arguments).await
    }
}

fn same(got: Result<Vec<u8>, String>, length: usize, what: &str) {
    let got = got.unwrap_or_else(|said| panic!("{what}: {said}"));
    assert!(got == content(length), "{what}: {} bytes that are not the file's {length}", got.len());
}

#[test]
fn real_clients_fetch_files_byte_for_byte() {
    privately(|| async {
        let bench = Bench::new().await;
        let service = bench.world.start(only_server()).await.expect("it starts");
        for (name, length) in [("ipxe.efi", 1_000_003), ("even", 1024), ("empty", 0)] {
            // curl takes a length of zero for an error, so it is not to ask for it
            if length > 0 {
                same(bench.curl(name, &[]).await, length, "curl");
                same(bench.curl(name, &["--tftp-blksize", "1400"]).await, length, "curl, large blocks");
            }
            same(bench.curl(name, &["--tftp-no-options"]).await, length, "curl without options");
            same(bench.busybox(name, &[]).await, length, "busybox");
            same(bench.busybox(name, &["-b", "65464"]).await, length, "busybox, larger than a frame");
        }
        assert_eq!(service.counted(Count::TftpBroken), 0);
        service.stop().await;
    });
}

#[test]
fn a_file_of_more_blocks_than_there_are_numbers_comes_whole() {
    privately(|| async {
        let bench = Bench::new().await;
        let service = bench.world.start(only_server()).await.expect("it starts");
        same(bench.curl("long", &["--tftp-blksize", "64"]).await, LONG, "curl");
        same(bench.busybox("long", &["-b", "64"]).await, LONG, "busybox");
        service.stop().await;
    });
}

#[test]
fn nothing_but_what_is_on_the_list_is_given_and_nothing_is_taken() {
    privately(|| async {
        let bench = Bench::new().await;
        let service = bench.world.start(only_server()).await.expect("it starts");
        let secret = bench.folder.path().join("secret").display().to_string();
        for name in ["secret", "./secret", "even/../secret", "../../../../etc/passwd", "/etc/passwd", &secret, "EVEN"] {
            // 68 is curl's code for the protocol's "file not found"
            let refused = bench.curl(name, &[]).await.expect_err(name);
            assert!(refused.starts_with("exit code 68"), "{name}: {refused}");
            let refused = bench.busybox(name, &[]).await.expect_err(name);
            assert!(refused.contains("(1)") && refused.contains("no such file"), "{name}: {refused}");
        }
        let put = ["tftp", "-p", "-l", &secret, "-r", "even", "10.77.0.1"];
        let refused = bench.fetch("busybox", &put).await.expect_err("it is not taken");
        assert!(refused.contains("(2)") && refused.contains("files are only read"), "{refused}");
        // 69: the protocol's "access violation"
        let put = ["--silent", "--show-error", "-T", &secret, "tftp://10.77.0.1/new"];
        let refused = bench.fetch("curl", &put).await.expect_err("it is not taken");
        assert!(refused.starts_with("exit code 69"), "{refused}");
        // 71: "illegal operation", for text whose line ends would be made over
        let text = ["--silent", "--show-error", "--use-ascii", "tftp://10.77.0.1/even"];
        let refused = bench.fetch("curl", &text).await.expect_err("it is not given as text");
        assert!(refused.starts_with("exit code 71"), "{refused}");
        assert_eq!(std::fs::read(bench.folder.path().join("even")).expect("there"), content(1024));
        assert!(!bench.folder.path().join("new").exists());
        assert_eq!(service.counted(Count::TftpBegun), 0);
        service.stop().await;
    });
}
