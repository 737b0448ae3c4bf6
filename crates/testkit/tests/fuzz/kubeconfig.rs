//! Kubeconfigs as people paste them: whatever is in one, it is taken, or the error names the cluster and what to do,
//! and quotes nothing: most of what stands there is secret.

use crate::wire::shape;
use domain::Secret;
use testkit::fuzz::Fuzz;

const TOKEN: &str = "c4n4ry-t0ken-that-nobody-may-see";

#[test]
fn kubeconfig() {
    let pem = testkit::tls::Authority::default().pem();
    let given = testkit::kubernetes::kubeconfig("https://10.0.0.1:6443", &pem, TOKEN).reveal().to_owned();
    let block = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts:\n- name: a\n  context:\n    cluster: c\n    user: u\n\
         clusters:\n- name: c\n  cluster:\n    server: https://[fd00::1]/base/\n    insecure-skip-tls-verify: true\n\
         users:\n- name: u\n  user:\n    token: {TOKEN}\n"
    );
    let words = [
        "exec:",
        "tokenFile: /x",
        "token:",
        TOKEN,
        "client-key-data:",
        "certificate-authority-data:",
        "null",
        "[]",
        "{}",
        "&a",
        "*a",
        "!!binary",
        "https://",
        "http://",
        "@",
        "---",
        "\n",
        "  ",
        "- ",
        "\"",
    ];
    Fuzz::new("kubeconfig", module_path!()).seeds([given, block, String::new()]).words(words).inputs(2_500).run(|| {
        move |input| {
            let text = String::from_utf8_lossy(input).into_owned();
            match kube::Cluster::new("prod", &Secret::new(text), std::time::Duration::from_secs(30)) {
                Ok(_) => Ok("a cluster".to_owned()),
                Err(e) => {
                    let e = e.to_string();
                    match () {
                        () if e.contains("c4n4ry") => Err(format!("tells the token: {e}")),
                        () if !e.contains("cluster \"prod\"") => Err(format!("names no cluster: {e}")),
                        () if e.len() > 1_000 => Err(format!("too many words: {}", e.len())),
                        () => Ok(shape(&e)),
                    }
                }
            }
        }
    });
}
