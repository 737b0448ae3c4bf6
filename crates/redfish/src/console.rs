//! How a person gets at the machine's console: what the system says, else what its manager says.

use crate::client::Client;
use crate::json;
use crate::places::{self, Seen};
use domain::hardware::ConsoleInfo;
use provider::ProviderResult;
use serde_json::Value;

pub async fn read(client: &Client, seen: &Seen) -> ProviderResult<Vec<ConsoleInfo>> {
    let mut found = of(client, &seen.system);
    if found.is_empty() {
        for manager in places::managers_of(client, seen).await? {
            let manager = client.get_if_there(&manager).await?.unwrap_or(Value::Null);
            found.extend(of(client, &manager));
        }
    }
    Ok(found)
}

pub fn of(client: &Client, thing: &Value) -> Vec<ConsoleInfo> {
    let (host, user) = (&client.host, client.username());
    let mut found = Vec::new();
    // the older form, of managers, names kinds only
    let old = json::words(thing, "/SerialConsole/ConnectTypesSupported");
    let old_on = json::flag(thing, "/SerialConsole/ServiceEnabled").unwrap_or(true);
    for (kind, protocol) in [("SSH", "ssh"), ("IPMI", "ipmi-sol"), ("Telnet", "telnet")] {
        let at = format!("/SerialConsole/{kind}");
        let new = thing.pointer(&at).is_some() && json::flag(thing, &format!("{at}/ServiceEnabled")).unwrap_or(true);
        let offered = new || (old_on && old.iter().any(|k| k == kind));
        if !offered {
            continue;
        }
        let port = json::count(thing, &format!("{at}/Port"));
        let connect = match (protocol, port) {
            ("ssh", 0 | 22) => format!("ssh {user}@{host}"),
            ("ssh", port) => format!("ssh -p {port} {user}@{host}"),
            ("telnet", 0) => format!("telnet {host}"),
            ("telnet", port) => format!("telnet {host} {port}"),
            _ => format!("ipmitool -I lanplus -H {host} -U {user} -a sol activate"),
        };
        let note = |field: &str| json::text(thing, &format!("{at}/{field}"));
        let notes = [note("ConsoleEntryCommand"), note("HotKeySequenceDisplay")];
        let note = notes.into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join("; ");
        found.push(ConsoleInfo { kind: "serial".into(), protocol: protocol.into(), connect, note });
    }
    let graphical = "/GraphicalConsole";
    if thing.pointer(graphical).is_some_and(Value::is_object)
        && json::flag(thing, &format!("{graphical}/ServiceEnabled")).unwrap_or(true)
    {
        let port = match json::count(thing, &format!("{graphical}/Port")) {
            0 | 443 => String::new(),
            port => format!(":{port}"),
        };
        let kinds = json::words(thing, &format!("{graphical}/ConnectTypesSupported")).join(", ");
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let connect = format!("https://{bracketed}{port}/");
        found.push(ConsoleInfo { kind: "graphical".into(), protocol: "web".into(), connect, note: kinds });
    }
    found
}
