//! Who adds images is killed, or its disk is full: what was said to be there is there, and what is there is right.

use crate::child::{Played, content, is_played, number, sha256sum, this_test, wait_until};
use boot::images::Store;
use std::io::Write as _;
use std::path::Path;

const KILLS: &str = "MILLWRIGHT_IMAGES_KILLS";

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("sha256")).expect("a folder");
    entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn who_is_killed_in_the_middle_leaves_no_image() {
    if is_played() {
        return;
    }
    let bytes = content(5 << 20);
    for n in 0..number(KILLS, 12) {
        let folder = testkit::scratch::folder();
        let mut adder = Played::start(this_test!(), "add one", folder.path(), "", None);
        assert_eq!(adder.hear().expect("it begins"), "begins");
        // it never gets the last of them
        let sent = (bytes.len() - 1) * (n + 1) / number(KILLS, 12);
        adder.input.as_mut().expect("its input").write_all(&bytes[..sent]).expect("sent");
        let size = |name: &String| std::fs::metadata(folder.path().join("sha256").join(name)).map_or(0, |m| m.len());
        // what is in its pipe and in its hands is not on disk yet
        let written = (sent as u64).saturating_sub(2 << 20);
        wait_until("a temporary file that grows", || names(folder.path()).iter().any(|name| size(name) >= written));
        let before = names(folder.path());
        assert!(before.len() == 1 && before[0].starts_with('.'), "{before:?}");
        // somebody else may open the folder meanwhile
        let store = Store::open(folder.path(), u64::MAX).expect("opened");
        assert_eq!(names(folder.path()), before);
        adder.kill();
        assert_eq!(names(folder.path()), before, "nobody has tidied up");
        assert!(store.list().expect("listed").is_empty());
        Store::open(folder.path(), u64::MAX).expect("opened");
        assert!(names(folder.path()).is_empty(), "swept at the next opening");
    }
}

#[test]
fn what_was_added_before_a_kill_is_there_and_nothing_else() {
    if is_played() {
        return;
    }
    let folder = testkit::scratch::folder();
    let (mut said, mut unsaid) = (0, 0);
    for n in 0..number(KILLS, 12) {
        let mut adder = Played::start(this_test!(), "add many", folder.path(), "", None);
        let mut digests = Vec::new();
        for _ in 0..=n * 7 % 13 {
            digests.extend(adder.hear());
        }
        assert!(!digests.is_empty());
        adder.kill();
        while let Some(more) = adder.hear() {
            digests.push(more);
        }
        let there: Vec<String> = names(folder.path()).into_iter().filter(|name| !name.starts_with('.')).collect();
        assert!(digests.iter().all(|digest| there.contains(digest)), "{digests:?} {there:?}");
        for name in &there {
            assert_eq!(*name, sha256sum(&folder.path().join("sha256").join(name)));
        }
        said += digests.len();
        unsaid += there.len() - digests.len();
        Store::open(folder.path(), u64::MAX).expect("opened");
        assert!(names(folder.path()).iter().all(|name| !name.starts_with('.')));
        // each begins with the same images
        std::fs::remove_dir_all(folder.path().join("sha256")).expect("removed");
        std::fs::create_dir(folder.path().join("sha256")).expect("made");
    }
    println!("{said} images were said to be added and are there, {unsaid} were in place before it could be said");
}

/// What it says when its folder is mounted so.
fn on(test: &str, mount: &str) -> String {
    let folder = testkit::scratch::folder();
    let script = format!("mount -t tmpfs -o {mount} none '{}'", folder.path().display());
    let mut adder = Played::start(test, "add one", folder.path(), "", Some(&script));
    let mut input = adder.input.take().expect("its input");
    // it may have given up before it has read everything
    drop(input.write_all(&content(3 << 20)));
    drop(input);
    let heard = adder.hear().expect("it says something; mounting needs root");
    if heard == "begins" { adder.hear().expect("it says how it ended") } else { heard }
}

#[test]
fn a_full_or_read_only_disk_is_answered_with_what_to_do() {
    if is_played() {
        return;
    }
    let full = on(this_test!(), "size=1m");
    assert!(full.contains("No space left") && full.contains("remove images that nothing uses"), "{full}");
    let read_only = on(this_test!(), "size=1m,ro");
    assert!(read_only.contains("Read-only file system") && read_only.contains("mount it writable"), "{read_only}");
    // and the same way with room
    assert_eq!(on(this_test!(), "size=10m").len(), 64);
}
