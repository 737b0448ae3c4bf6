//! `serve --netboot` on a network of its own: busybox asks for an address and a loader as firmware does, curl for a script.
//! Needs root for the namespaces, busybox-static, curl and iproute2.

use crate::boot_site::Site;
use crate::process::Process;

const CARD: &str = "52:54:00:b0:07:21";
const OTHER: &str = "52:54:00:b0:07:22";

/// A card on the bridge, in a namespace of its own, does what the words say and prints it. Arguments: a folder, the card.
const CLIENT: &str = r#"
set -e
folder=$1 card=$2
ip link add v0 type veth peer name v1 address "$card"
ip link set v0 master br0 up
cat > "$folder/bound" <<'END'
#!/bin/sh
[ "$1" = bound ] && ip addr add "$ip/$mask" dev v1 && echo "address $ip file $boot_file server $siaddr"
exit 0
END
chmod +x "$folder/bound"
rm -f "$folder/go" "$folder/pid"
unshare --net sh -c '
    echo $$ > "$0/pid"
    while [ ! -e "$0/go" ]; do sleep 0.05; done
    ip link set lo up
    ip link set v1 up
    busybox udhcpc -i v1 -n -q -f -t 10 -T 1 -s "$0/bound" -V PXEClient:Arch:00000:UNDI:002001 -O 66 -O 67 || exit 1
    cd "$0"
    busybox tftp -g -l loaded -r undionly.kpxe 10.77.0.1 && echo "loaded $(cat loaded)"
    echo "escaped $(busybox tftp -g -l none -r ../admin.token 10.77.0.1 2>&1 | head -n 1)"
    for mac in "$1" "$2"; do
        echo "script $mac $(curl -sS "http://10.77.0.1:7702/api/v1/boot?mac=$mac" | tr "\n" " ")"
    done
    echo "api $(curl -s -o /dev/null -w "%{http_code}" http://10.77.0.1:7702/api/v1/machines)"
' "$folder" "$card" "$3" &
while [ ! -s "$folder/pid" ]; do sleep 0.05; done
trap 'kill $! 2>/dev/null || :' EXIT
ip link set v1 netns "$(cat "$folder/pid")"
touch "$folder/go"
wait $!
ip link del v0 2>/dev/null || true
"#;

/// What a card on the network sees.
fn client(site: &Site, card: &str, other: &str) -> String {
    let folder = site.home.path("client");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = site.network.command("sh");
    command.args(["-c", CLIENT, "client"]).arg(&folder).args([card, other]);
    Process::spawn(&mut command).end().with(0).out
}

fn word<'a>(said: &'a str, before: &str) -> &'a str {
    let found = said.split_whitespace().skip_while(|word| *word != before).nth(1);
    found.unwrap_or_else(|| panic!("no {before} in {said}"))
}

#[test]
fn a_network_of_its_own_is_served_and_an_installer_goes_only_to_whom_the_address_was_leased() {
    let site = Site::new(0, "");
    let server = site.serve();
    server.add_image(&site.home.file("loader", "a loader"), "undionly.kpxe");
    server.workflow("id: w\nname: w\nkernel: k\n");
    for mac in [CARD, OTHER] {
        server.ok(&["boot", "register", mac, "--workflow", "w"]);
        server.ok(&["boot", "approve", mac]);
    }
    let said = client(&site, CARD, OTHER);
    let address = word(&said, "address").to_owned();
    assert!(address.starts_with("10.77.0.1"), "{said}");
    assert_eq!(word(&said, "file"), "undionly.kpxe", "{said}");
    assert!(said.contains("loaded a loader"), "{said}");
    assert!(said.contains("escaped") && !site.home.path("client/none").exists(), "{said}");
    let script = |said: &str, mac: &str| {
        let line = said.lines().find(|line| line.starts_with(&format!("script {mac} "))).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{said}"))
    };
    assert!(script(&said, CARD).contains("millwright.token="), "{said}");
    assert!(
        script(&said, OTHER).contains("not leased") && !script(&said, OTHER).contains("millwright.token"),
        "{said}"
    );
    assert_eq!(word(&said, "api"), "404", "the calls are not there: {said}");
    let node = server.ok(&["boot", "show", CARD]);
    assert!(node.contains(&address), "it is known by the address it came from: {node}");
    // killed and started again: the card has the address that it had
    server.kill();
    let server = site.serve();
    let again = client(&site, CARD, OTHER);
    assert_eq!(word(&again, "address"), address, "{again}");
    // the same card asks for another's installer at the main port: nobody leased it anything there
    let main = site.curl(&[&format!("{}/api/v1/boot?mac={CARD}", server.url)]);
    assert!(main.contains("not leased") && !main.contains("millwright.token"), "{main}");
    let token = std::fs::read_to_string(site.home.path("data/admin.token")).expect("a token");
    let bearer = format!("Authorization: Bearer {}", token.trim());
    let metrics = site.curl(&["-H", &bearer, &format!("{}/metrics", server.url)]);
    assert!(metrics.contains("millwright_netboot_total{what=\"dhcp_acks\"} 1"), "{metrics}");
    assert!(metrics.contains("millwright_netboot_total{what=\"tftp_done\"} 1"), "{metrics}");
    server.terminate();
}
