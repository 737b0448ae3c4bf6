//! A stand-in for `kubeadm` on a host that has none: it reads its configuration as kubeadm does, checks the cluster's
//! authority against the hash in it, and makes the node with the bootstrap token, which the real one leaves to a
//! kubelet and the cluster's controllers. For a [`Kubernetes`] that was told to [`set_up_joining`].
//!
//! [`Kubernetes`]: crate::kubernetes::Kubernetes
//! [`set_up_joining`]: crate::kubernetes::Kubernetes::set_up_joining
#![allow(clippy::expect_used)] // for tests only: what cannot be set up is a failed test

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Beside itself it keeps `kubeadm.log`: its command lines, and what it thought of its configuration.
/// `kubeadm.version` and `kubeadm.uuid`, if there, tell which version it is and which system it runs on;
/// `kubeadm.hangs` makes it hang before it does anything.
const PROGRAM: &str = r#"#!/bin/sh
set -eu
here=$(dirname "$(readlink -f "$0")")
echo "args: $*" >>"$here/kubeadm.log"
version=$(cat "$here/kubeadm.version" 2>/dev/null || echo v1.31.4)
fail() { echo "kubeadm: $*" >&2; echo "failed: $*" >>"$here/kubeadm.log"; exit 1; }
case "$*" in
    "version -o short") echo "$version"; exit 0 ;;
    "join --config "*) config=$3 ;;
    *) fail "unknown words: $*" ;;
esac

[ "$(stat -c %a "$config")" = 600 ] || fail "the configuration has the mode $(stat -c %a "$config")"
minor=${version#v1.}; minor=${minor%%.*}
form=v1beta4
[ "$minor" -ge 31 ] || form=v1beta3
[ "$minor" -ge 22 ] || form=v1beta2
grep -qx "apiVersion: kubeadm.k8s.io/$form" "$config" || fail "no kind \"JoinConfiguration\" is registered for its version"
grep -qx "kind: JoinConfiguration" "$config" || fail "no JoinConfiguration"
# by the place in the tree, as a reader of YAML would: "discovery.bootstrapToken.token"
field() {
    awk -v want="$1" '
        { match($0, /^ */); depth = int(RLENGTH / 2); line = substr($0, RLENGTH + 1) }
        line ~ /^- / { sub(/^- /, "", line); if (path == want) { gsub(/"/, "", line); print line; exit }; next }
        line ~ /:/ {
            key = line; sub(/:.*/, "", key); value = line; sub(/^[^:]*: */, "", value); part[depth] = key
            path = part[0]; for (i = 1; i <= depth; i++) path = path "." part[i]
            if (path == want && value != "") { gsub(/"/, "", value); print value; exit }
        }' "$config"
}
endpoint=$(field discovery.bootstrapToken.apiServerEndpoint)
token=$(field discovery.bootstrapToken.token)
hash=$(field discovery.bootstrapToken.caCertHashes)
name=$(field nodeRegistration.name)
[ -n "$name" ] || name=$(hostname | tr '[:upper:]' '[:lower:]')
echo "read: endpoint=$endpoint hash=$hash name=$name token-id=${token%%.*}" >>"$here/kubeadm.log"
echo "$token" | grep -Eqx '[a-z0-9]{6}\.[a-z0-9]{16}' || fail "the bootstrap token is invalid"
[ -n "$endpoint" ] && [ -n "$hash" ] || fail "no endpoint or no hash"

# discovery: whom to trust is learned from somebody not yet trusted, and checked against the hash
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
curl -sSk --max-time 60 -o "$work/info" "https://$endpoint/api/v1/namespaces/kube-public/configmaps/cluster-info" || fail "no cluster-info"
sed -n 's/.*certificate-authority-data[\\": ]*\([A-Za-z0-9+/=]*\).*/\1/p' "$work/info" | head -n 1 | base64 -d >"$work/ca.crt"
shown=sha256:$(openssl x509 -in "$work/ca.crt" -noout -pubkey | openssl pkey -pubin -outform der | sha256sum | cut -d' ' -f1)
[ "$shown" = "$hash" ] || fail "the cluster's authority has the hash $shown, not $hash"
[ ! -e "$here/kubeadm.hangs" ] || { echo "hangs" >>"$here/kubeadm.log"; sleep 600; }

uuid=$(cat "$here/kubeadm.uuid" 2>/dev/null || true)
printf '{"apiVersion":"v1","kind":"Node","metadata":{"name":"%s"},"status":{"nodeInfo":{"systemUUID":"%s"}}}' "$name" "$uuid" >"$work/node"
# a server learns of a new token a moment later, and the real one asks again, too
for _ in $(seq 50); do
    status=$(printf 'header = "Authorization: Bearer %s"\n' "$token" | curl -sS --max-time 60 -K - --cacert "$work/ca.crt" \
        -H 'Content-Type: application/json' --data "@$work/node" -o "$work/answer" -w '%{http_code}' "https://$endpoint/api/v1/nodes")
    [ "$status" = 401 ] || break
    sleep 0.1
done
case $status in
    201 | 409) echo "This node has joined the cluster" ;;
    *) fail "the cluster answered $status: $(head -c 300 "$work/answer")" ;;
esac
"#;

/// Puts the program into a folder, to be found first on a `PATH`.
pub fn install(folder: &Path) {
    let program = folder.join("kubeadm");
    std::fs::write(&program, PROGRAM).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("made to run");
}
