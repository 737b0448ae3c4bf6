//! Who wins where several have something to say, and to whom no token is sent.

use super::*;
use crate::cli::Format;

fn options(server: Option<&str>, token: Option<&str>, context: Option<&str>) -> ClientOptions {
    ClientOptions {
        server: server.map(str::to_owned),
        token: token.map(str::to_owned),
        token_file: None,
        ca_file: None,
        context: context.map(str::to_owned),
        output: Format::Table,
    }
}

const CONTEXTS: &str = "current = 'lab'
[contexts.lab]
server = 'http://lab:1'
token_file = 'lab.token'
[contexts.prod]
server = 'https://prod:2'
token = 'mwt_prod'
ca_file = '/ca.pem'
";

/// Resolves with that contexts file and environment.
fn resolved(options: &ClientOptions, environment: &[(&str, &str)]) -> Result<Target, CliError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("contexts.toml");
    std::fs::write(&path, CONTEXTS).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    let file = path.display().to_string();
    Target::resolve_in(options, &|name| match name {
        "MILLWRIGHT_CONTEXTS" => Some(file.clone()),
        _ => environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()),
    })
}

fn token(target: &Target) -> String {
    match &target.token {
        Some((Token::Given(token), _)) => token.clone(),
        Some((Token::File(path), _)) => path.file_name().expect("a name").to_string_lossy().into_owned(),
        None => String::new(),
    }
}

#[test]
fn flags_go_over_the_environment_and_the_environment_over_the_context() {
    let both = [(SERVER, "http://env:3"), (TOKEN, "mwt_env")];
    for (options, environment, server, secret) in [
        (options(None, None, None), &[][..], "http://lab:1", "lab.token"),
        (options(None, None, None), &both, "http://env:3", "mwt_env"),
        (options(Some("flag:4"), Some("mwt_flag"), None), &both, "http://flag:4", "mwt_flag"),
        (options(None, None, None), &[(CONTEXT, "prod")], "https://prod:2", "mwt_prod"),
        // named on the command line: not only a fallback
        (options(None, None, Some("prod")), &both, "https://prod:2", "mwt_prod"),
        (options(None, Some("mwt_flag"), Some("prod")), &both, "https://prod:2", "mwt_flag"),
        (options(None, None, None), &[(TOKEN, "mwt_env")], "http://lab:1", "mwt_env"),
    ] {
        let target = resolved(&options, environment).expect("resolved");
        assert_eq!((target.server.as_str(), token(&target).as_str()), (server, secret), "{environment:?}");
    }
}

#[test]
fn a_contexts_token_and_authority_are_for_its_own_server() {
    let target = resolved(&options(Some("https://elsewhere:5"), None, Some("prod")), &[]).expect("resolved");
    assert_eq!(token(&target), "");
    assert!(target.ca_file.is_none());
    let error = target.secret().expect_err("none that fits");
    assert!(error.to_string().contains("https://prod:2 only"), "{error}");
    // said in other words, it is the same server
    let target = resolved(&options(Some("lab:1/"), None, None), &[]).expect("resolved");
    assert_eq!(token(&target), "lab.token");
    let target = resolved(&options(None, None, Some("prod")), &[]).expect("resolved");
    assert_eq!(target.ca_file, Some(("/ca.pem".into(), Origin::Context("prod".to_owned()))));
}

#[test]
fn the_local_token_is_for_the_local_server() {
    let nothing = |_: &str| None;
    let here = Target::resolve_in(&options(None, None, None), &nothing).expect("resolved");
    assert_eq!((here.server.as_str(), token(&here).as_str()), (DEFAULT_SERVER, "admin.token"));
    let there = Target::resolve_in(&options(Some("http://there:1"), None, None), &nothing).expect("resolved");
    assert_eq!(there.secret().expect_err("no token").exit().code(), 5);
}

#[test]
fn a_context_that_is_not_there_is_named_with_those_that_are() {
    let error = resolved(&options(None, None, Some("pord")), &[]).map(|_| ()).expect_err("unknown");
    assert_eq!(error.exit().code(), 3);
    assert!(error.to_string().contains("pord"), "{error}");
}

#[test]
fn addresses_need_no_scheme_and_have_no_wrong_one() {
    assert_eq!(address("127.0.0.1:7700/").as_deref(), Ok("http://127.0.0.1:7700"));
    assert_eq!(address("https://h:1").as_deref(), Ok("https://h:1"));
    for bad in [" ", "ftp://h", "http://", "http://u:p@h", "http://h/path", "h h"] {
        let why = address(bad).expect_err(bad);
        assert!(!why.contains("u:p"), "{why}");
    }
}

#[test]
fn a_token_file_is_trimmed_and_must_hold_something() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    std::fs::write(&path, "mwt_secret\n").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    let mut options = options(None, Some("other"), None);
    options.token_file = Some(path.clone());
    let target = Target::resolve_in(&options, &|_| None).expect("resolved");
    assert_eq!(target.secret().expect("a token"), "mwt_secret");
    std::fs::write(&path, "\n").expect("written");
    assert!(target.secret().expect_err("empty").to_string().contains("empty"));
    assert!(!target.token_described().contains("mwt_"));
}
