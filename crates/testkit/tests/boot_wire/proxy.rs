//! Beside another server, which is busybox' `udhcpd` on a host of its own: it gives out the addresses, we say what to
//! boot, and clients that do not boot from the network never hear of us. (Those that do: `firmware`.)

use crate::clients::Udhcpc;
use crate::network::{Host, ip, privately, program};
use crate::service::{Shelf, World};
use boot::counts::Count;
use boot::dhcp::Mode;
use std::process::Stdio;
use tokio::process::Child;

/// A host that gives out addresses, on the bridge `br0` that has our address.
pub struct OtherServer {
    _host: Host,
    _server: Child,
    _folder: tempfile::TempDir,
}

impl OtherServer {
    pub async fn on_a_bridge() -> Self {
        bridge().await;
        let host = Host::new().await;
        host.wire("other0", "eth0").await;
        ip("link set other0 master br0").await;
        host.ip("address add 10.77.0.2/24 dev eth0").await;
        let folder = testkit::scratch::folder();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let conf = format!(
            "start 10.77.0.50\nend 10.77.0.60\ninterface eth0\nlease_file {}\npidfile {}\noption subnet 255.255.255.0\n\
             option lease 600\noption router 10.77.0.2\n",
            file("leases"),
            file("pid")
        );
        std::fs::write(folder.path().join("conf"), conf).expect("written");
        std::fs::write(folder.path().join("leases"), "").expect("written");
        let busybox = program("busybox", "apt-get install -y --no-install-recommends busybox-static");
        let mut server = host.command(&busybox, &["udhcpd", "-f", "-a", "100", &file("conf")]);
        let server = server.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("udhcpd starts");
        Self { _host: host, _server: server, _folder: folder }
    }
}

/// A bridge with our address; without its usual pause before it passes anything on.
pub async fn bridge() {
    ip("link add br0 type bridge forward_delay 0 stp_state 0").await;
    ip("address add 10.77.0.1/24 dev br0").await;
    ip("link set br0 up").await;
}

#[test]
fn clients_that_do_not_boot_from_the_network_never_hear_of_us() {
    privately(|| async {
        let _other = OtherServer::on_a_bridge().await;
        let host = Host::new().await;
        host.wire("host0", "eth0").await;
        ip("link set host0 master br0").await;
        let world = World::new("br0", Shelf::default());
        let service = world.start(Mode::Proxy).await.expect("it starts");
        let told = Udhcpc::new(&host, "eth0").asks(&[]).await.expect("an address of the other server");
        assert_eq!((told["serverid"].as_str(), told.get("boot_file")), ("10.77.0.2", None));
        assert!(service.counted(Count::DhcpNotForUs) >= 2, "it was heard");
        assert_eq!(service.counted(Count::DhcpOffers) + service.counted(Count::DhcpAcks), 0);
        service.stop().await;
    });
}
