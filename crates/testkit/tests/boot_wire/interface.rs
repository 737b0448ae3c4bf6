//! One interface and no other: what comes in elsewhere is not heard, what is said leaves there, and an interface that
//! goes and comes back is served again.

use crate::clients::Udhcpc;
use crate::network::{Host, command, ip, output, privately, program, until};
use crate::service::{Shelf, World, only_server, wired};
use boot::counts::Count;
use boot::dhcp::Mode;
use std::process::Stdio;

#[test]
fn a_client_on_another_network_of_ours_is_not_heard() {
    privately(|| async {
        let host = Host::new().await;
        wired(&host).await;
        // the other one is the better way to everywhere, as far as routes go
        host.wire("other0", "eth1").await;
        ip("address add 10.88.0.1/24 dev other0").await;
        ip("route add default via 10.88.0.2").await;
        let world = World::new("boot0", Shelf::default());
        let service = world.start(only_server()).await.expect("it starts");
        let other = Udhcpc::new(&host, "eth1");
        let refused = other.asks(&["-t", "3"]).await.expect_err("no address there");
        assert!(refused.contains("no lease"), "{refused}");
        assert_eq!(service.counted(Count::DhcpReceived), 0);
        // broadcasts leave by the interface all the same
        Udhcpc::new(&host, "eth0").asks(&[]).await.expect("an address here");
        host.ip("address add 10.88.0.9/24 dev eth1").await;
        let asked = ["--silent", "--show-error", "--connect-timeout", "3", "--max-time", "5", "--interface", "eth1"];
        let curl = host.command("curl", &[&asked[..], &["tftp://10.88.0.1/any"]].concat());
        assert!(!output(curl).await.status.success());
        assert_eq!(service.counted(Count::TftpReceived), 0);
        service.stop().await;
    });
}

#[test]
fn an_interface_that_goes_and_comes_back_is_served_again() {
    privately(|| async {
        let host = Host::new().await;
        wired(&host).await;
        let world = World::new("boot0", Shelf::default());
        let service = world.start(only_server()).await.expect("it starts");
        let told = Udhcpc::new(&host, "eth0").asks(&[]).await.expect("an address");
        ip("link delete boot0").await;
        host.wire("boot0", "eth0").await;
        // made anew, and with another address
        ip("address add 10.77.0.2/24 dev boot0").await;
        let client = Udhcpc::new(&host, "eth0");
        let again = client.asks(&["-r", &told["ip"]]).await.expect("an address");
        assert_eq!(again["serverid"], "10.77.0.2");
        // and changed in place
        ip("address delete 10.77.0.2/24 dev boot0").await;
        ip("address add 10.77.0.3/24 dev boot0").await;
        let served = || async { client.asks(&[]).await.is_ok_and(|told| told["serverid"] == "10.77.0.3") };
        let found = tokio::time::timeout(crate::network::PATIENCE, async { while !served().await {} }).await;
        assert!(found.is_ok(), "never served from its new address");
        service.stop().await;
    });
}

#[test]
fn what_keeps_it_from_starting_is_said() {
    privately(|| async {
        let host = Host::new().await;
        wired(&host).await;
        let why = |interface: &str, mode: Mode| {
            let world = World::new(interface, Shelf::default());
            async move { world.start(mode).await.err().expect("it does not start").to_string() }
        };
        assert!(
            why("boot1", only_server()).await.contains("there is no network interface \"boot1\"; there are: boot0, lo")
        );
        host.wire("bare0", "eth1").await;
        assert!(why("bare0", Mode::Proxy).await.contains("ip address add ADDRESS/PREFIX dev bare0"));
        ip("link set bare0 down").await;
        assert!(why("bare0", Mode::Proxy).await.contains("ip link set bare0 up"));
        ip("link set bare0 up").await;
        ip("address add 10.99.0.1/24 dev bare0").await;
        assert!(why("bare0", only_server()).await.contains("no range is set for our own network, 10.99.0.0/24"));

        // another server has the port, on this interface; on another it may
        let folder = testkit::scratch::folder();
        let conf = folder.path().join("udhcpd.conf");
        std::fs::write(
            &conf,
            format!(
                "start 10.77.0.50\nend 10.77.0.60\ninterface boot0\nlease_file {}\npidfile {}\n",
                folder.path().join("leases").display(),
                folder.path().join("pid").display()
            ),
        )
        .expect("written");
        let busybox = program("busybox", "apt-get install -y --no-install-recommends busybox-static");
        let mut other = command(&busybox, &["udhcpd", "-f", &conf.display().to_string()]);
        let other = other.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("udhcpd starts");
        let bound = || std::fs::read_to_string("/proc/self/net/udp").is_ok_and(|text| text.contains(":0043 "));
        until("udhcpd has its port", bound).await;
        let taken = why("boot0", only_server()).await;
        assert!(taken.contains("UDP port 67 on boot0 is taken") && taken.contains("ss -ulpn"), "{taken}");
        World::new("bare0", Shelf::default()).start(Mode::Proxy).await.expect("another interface is free").stop().await;
        drop(other);
    });
}

/// Set where the test runs itself once more, without any rights.
const BARE: &str = "MILLWRIGHT_BOOT_WIRE_BARE";

#[test]
fn a_missing_right_is_named() {
    if std::env::var_os(BARE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let started = runtime.block_on(World::new("boot0", Shelf::default()).start(only_server()));
        return println!("started: {:?}", started.err().map(|e| e.to_string()));
    }
    privately(|| async {
        let host = Host::new().await;
        wired(&host).await;
        let own = std::env::current_exe().expect("our own program").display().to_string();
        let none = ["--bounding-set", "-all", "--inh-caps", "-all", &own];
        let again = ["--exact", "interface::a_missing_right_is_named", "--nocapture"];
        let mut bare = command("setpriv", &[&none[..], &again].concat());
        bare.env(BARE, "1");
        let said = String::from_utf8_lossy(&output(bare).await.stdout).into_owned();
        for word in ["started: Some", "UDP port 67 on boot0", "CAP_NET_BIND_SERVICE", "setcap", "AmbientCapabilities"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    });
}
