//! What a started command prints and ends with, as it did.

use crate::fixture::*;
use provider::{Ack, Command, ExecState, Stream};
use testkit::sshd::{SshHost, WORKER};

#[tokio::test]
async fn streams_are_apart_and_in_order_while_it_runs() {
    let (machine, key) = (shared(), key());
    let host = reach(machine);
    let go = |n: u32| format!("until [ -e /tmp/{key}.{n} ]; do sleep 0.05; done");
    let script = format!("echo one; {}; echo two >&2; {}; echo three; exit 42", go(1), go(2));
    assert_eq!(host.start(&sh(&script), &key, None).await, Ok(Ack::Accepted));
    let mut offset = 0;
    for (n, line) in [(1, "stdout:one\n"), (2, "stderr:two\n")] {
        // it goes on only once we have seen what it printed
        let (state, output, next) = follow(&host, &key, offset, |_, output| !output.is_empty()).await;
        assert_eq!((state, words(&output).as_str()), (ExecState::Running, line));
        offset = next;
        std::fs::write(machine.inside(&format!("/tmp/{key}.{n}")), "").expect("a sign");
    }
    let (state, output, _) = follow(&host, &key, offset, |state, _| *state != ExecState::Running).await;
    assert_eq!((state, words(&output).as_str()), (ExecState::Exited(42), "stdout:three\n"));
    let (status, output) = ended(&host, &key).await;
    assert_eq!((status, words(&output).as_str()), (42, "stdout:one\n|stderr:two\n|stdout:three\n"));
}

#[tokio::test]
async fn arguments_and_environment_arrive_as_they_are() {
    let nasty = [
        "",
        " ",
        "a b",
        "it's",
        "''",
        "'\\''",
        "\"",
        "$HOME",
        "`id`",
        "$(id)",
        "${x}",
        "\\",
        "\\n",
        "\n",
        "a\nb\n",
        "*",
        "?",
        "[a]",
        "~",
        "-n",
        "--",
        ";",
        "&",
        "|",
        ">",
        "<",
        "(",
        ")",
        "{",
        "}",
        "!x",
        "!!",
        "#c",
        "%s%n",
        "\t",
        "\u{1}\u{7f}\u{1b}[0m",
        "é\u{1F600}",
        "MILLWRIGHT",
        "EOF",
        "= =",
        "a=b",
        "\r\n",
    ];
    let (host, key) = (reach(shared()), key());
    let mut args = vec!["-c", "for a; do printf '%s\\0' \"$a\"; done; printf '%s\\0' \"$NASTY\" \"$_2\"", "sh"];
    args.extend(nasty);
    let mut command = command("sh", &args);
    command.environment.insert("NASTY".into(), nasty.concat());
    command.environment.insert("_2".into(), String::new());
    assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    let printed = String::from_utf8(of(Stream::Stdout, &output)).expect("text");
    let mut expected: Vec<String> = nasty.iter().map(|a| (*a).to_owned()).collect();
    expected.extend([nasty.concat(), String::new(), String::new()]);
    assert_eq!((status, printed.split('\0').map(str::to_owned).collect()), (0, expected), "{}", words(&output));
    assert!(of(Stream::Stderr, &output).is_empty());
}

#[tokio::test]
async fn a_mebibyte_comes_whole() {
    let (host, key) = (reach(shared()), key());
    let script = "seq 1 200000 | head -c 1048576; seq 1 20000 >&2";
    assert_eq!(host.start(&sh(script), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    let mut expected: Vec<u8> = (1..=200_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    expected.truncate(1 << 20);
    assert_eq!(status, 0);
    assert!(of(Stream::Stdout, &output) == expected, "{} bytes", of(Stream::Stdout, &output).len());
    let expected: Vec<u8> = (1..=20_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    assert!(of(Stream::Stderr, &output) == expected, "{} bytes", of(Stream::Stderr, &output).len());
}

#[tokio::test]
async fn every_byte_is_kept() {
    let (host, key) = (reach(shared()), key());
    let program = std::fs::read("/bin/true").expect("a program");
    assert!(program.contains(&0) && program.contains(&0xff), "binary enough");
    assert_eq!(host.start(&sh("cat /bin/true; cat /bin/true >&2"), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    assert_eq!(status, 0);
    assert!(of(Stream::Stdout, &output) == program && of(Stream::Stderr, &output) == program);
}

#[tokio::test]
async fn a_command_finds_things_as_a_login_would() {
    let (host, key) = (reach(shared()), key());
    assert_eq!(host.start(&sh("umask; pwd; cat; trap; ls /proc/self/fd | wc -l"), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    // no input, no signal ignored, no file left open: 0, 1, 2 and the folder that ls looks at
    assert_eq!((status, words(&output).as_str()), (0, "stdout:0022\n/run/host/home/root\n4\n"));
}

#[tokio::test]
async fn a_script_is_run_with_its_arguments() {
    let (host, key) = (reach(shared()), key());
    let script = "#!/usr/bin/env bash\nset -euo pipefail\necho \"it's $1, ${BASH_VERSION:+bash}\"\nexit 3\n";
    let command = Command { command: script.into(), args: vec!["a b".into()], environment: Default::default() };
    assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    assert_eq!((status, words(&output).as_str()), (3, "stdout:it's a b, bash\n"));
}

#[tokio::test]
async fn a_program_that_is_not_there_says_so() {
    let (host, key) = (reach(shared()), key());
    assert_eq!(host.start(&command("no such program", &[]), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    assert_eq!(status, 127);
    assert!(words(&output).contains("no such program"), "{}", words(&output));
}

#[tokio::test]
async fn its_end_is_its_own_and_not_that_of_what_it_left_behind() {
    let (host, key) = (reach(shared()), key());
    let script = "sleep 86437 & echo done; exit 5";
    assert_eq!(host.start(&sh(script), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    assert_eq!((status, words(&output).as_str()), (5, "stdout:done\n"));
    assert_eq!(processes_with("sleep 86437").len(), 1, "it is still there");
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
    assert_eq!(processes_with("sleep 86437"), Vec::<String>::new());
    assert_eq!(ended(&host, &key).await.0, 5, "its end is what it was");
}

#[tokio::test]
async fn an_ordinary_user_has_recordings_of_their_own() {
    let (machine, key) = (shared(), key());
    let host = ssh::Host::new(machine.at(), machine.login_as(WORKER), "fleet", machine.fingerprint(), None, patient());
    assert_eq!(host.start(&sh("id -un; exit 6"), &key, None).await, Ok(Ack::Accepted));
    let (status, output) = ended(&host, &key).await;
    assert_eq!((status, words(&output).as_str()), (6, "stdout:worker\n"));
    assert_eq!(reach(machine).poll(&key, 0).await.map(|p| p.state), Ok(ExecState::NeverStarted), "root has none of it");
}

/// The scripts keep to what every shell knows. `MILLWRIGHT_TEST_SHELLS` names others, such as `/bin/busybox`.
#[tokio::test]
async fn the_scripts_run_in_other_shells() {
    let shells = std::env::var("MILLWRIGHT_TEST_SHELLS").unwrap_or_else(|_| "/bin/bash".into());
    for shell in shells.split(' ') {
        let machine = SshHost::with_shell(shell);
        let (host, (first, second)) = (reach(&machine), (key(), key()));
        let input = domain::Secret::new("it's\na secret");
        let mut command = sh("readlink -f /proc/$$/exe; cat; echo \"$A\" >&2; exit 42");
        command.environment.insert("A".into(), "'$x\n".into());
        assert_eq!(host.start(&command, &first, Some(&input)).await, Ok(Ack::Accepted), "{shell}");
        let (status, output) = ended(&host, &first).await;
        assert_eq!(status, 42, "{shell}: {}", words(&output));
        let real = std::fs::canonicalize(shell).expect("the shell").display().to_string();
        let stdout = String::from_utf8(of(Stream::Stdout, &output)).expect("text");
        // the kernel tells the name of the place that it is mounted on
        let (exe, read) = stdout.split_once('\n').expect("a line");
        assert_eq!(read, input.reveal(), "{shell} as {exe}, {real}");
        assert_eq!(of(Stream::Stderr, &output), b"'$x\n\n", "{shell}");
        assert_eq!(
            host.start(&sh("trap '' TERM; sleep 86443 & while :; do sleep 1; done"), &second, None).await,
            Ok(Ack::Accepted)
        );
        until("the command", || !processes_with("sleep 86443").is_empty()).await;
        assert_eq!(host.start(&sh("exit 1"), &second, None).await, Ok(Ack::Accepted));
        assert_eq!(host.kill(&second).await, Ok(Ack::Done), "{shell}");
        assert_eq!(processes_with("86443"), Vec::<String>::new(), "{shell}");
        assert_eq!(ended(&host, &second).await.0, 137, "{shell}");
        assert_eq!(host.identity().await.expect("an identity").boot_id, machine.boot_id(), "{shell}");
        assert_eq!(host.reboot().await, Ok(Ack::Accepted), "{shell}");
        until("the boot", || machine.boots() == 2).await;
    }
}
