//! What real files are called in a list: the distribution's boot loaders, and what `gzip` makes.

use boot::images::{Kind, Store};
use std::path::Path;
use std::process::Command;

#[test]
fn real_files_are_known_by_their_bytes() {
    let folder = testkit::scratch::folder();
    let store = Store::open(folder.path(), u64::MAX).expect("opened");
    let loaders = [
        ("/usr/lib/ipxe/undionly.kpxe", Kind::Ipxe),
        ("/usr/lib/ipxe/ipxe.pxe", Kind::Ipxe),
        ("/usr/lib/ipxe/snponly.efi", Kind::Ipxe),
        // to whatever loads it, this is a kernel
        ("/usr/lib/ipxe/ipxe.lkrn", Kind::Kernel),
        ("/usr/lib/ipxe/ipxe.iso", Kind::Raw),
    ];
    let packed = folder.path().join("packed");
    let gzip = format!("gzip -c /usr/lib/ipxe/ipxe.iso > '{}'", packed.display());
    let mut files: Vec<(&Path, Kind)> = loaders.iter().map(|(file, kind)| (Path::new(*file), *kind)).collect();
    for (file, _) in &files {
        assert!(file.is_file(), "{} is missing: apt-get install -y --no-install-recommends ipxe", file.display());
    }
    assert!(Command::new("sh").args(["-c", &gzip]).status().expect("a shell").success());
    files.push((&packed, Kind::Gzip));
    for (file, kind) in files {
        let (digest, bytes) = store.add_file(file, None).expect("added");
        let listed = store.list().expect("listed");
        let listed = listed.iter().find(|stored| stored.digest == digest).expect("in the list");
        assert_eq!((listed.kind, listed.bytes), (kind, bytes), "{}", file.display());
    }
}
