//! The unit that systemd starts the agent by: rights as far as every task can still do its work.

use super::{BINARY, STARTED_BY_UNIT, UNINSTALLED};
use crate::options::UNWANTED;
use std::path::Path;

/// The file's content; nothing where the state's path cannot be written there.
pub fn text(state: &Path) -> Option<String> {
    let state = state
        .to_str()
        .filter(|path| path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)))?;
    Some(format!(
        r"[Unit]
Description=Millwright node agent
Wants=network-online.target
After=network-online.target
# an outage of any length is no reason to give up
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={BINARY} run --state {state}
Environment={STARTED_BY_UNIT}=1
Restart=always
# two seconds at first, five minutes in the end; an older systemd waits two seconds each time
RestartSec=2
RestartSteps=8
RestartMaxDelaySec=300
# it has uninstalled itself, or the server does not want it any more
RestartPreventExitStatus={UNINSTALLED} {UNWANTED}
SuccessExitStatus={UNINSTALLED}
# tasks are told to end by the agent; who does not is ended with it
KillMode=mixed
TimeoutStopSec=30
# scripts run in control groups of their own below this one
Delegate=yes
UMask=0077
LimitNOFILE=65536
# its memory holds the key
LimitCORE=0
OOMScoreAdjust=-500

# It runs as root, for it ends processes, removes files and takes down mounts of anybody; less is not enough. So what it
# cannot need is taken away instead. Everything that would give it a view of its own of the machine's files (PrivateTmp,
# ProtectSystem, ProtectHome, PrivateDevices, ReadOnlyPaths, ProtectKernelTunables, …) must stay off: it would look for
# leftovers in that view, and take mounts down only there.
NoNewPrivileges=yes
# kept: files of others (CHOWN, DAC_*, FOWNER, LINUX_IMMUTABLE), processes of others (KILL, SYS_PTRACE), scripts as
# nobody (SETUID, SETGID, SETPCAP), mounts (SYS_ADMIN), segments (IPC_OWNER), restart (SYS_BOOT), GPU memory (IPC_LOCK,
# SYS_RESOURCE), the driver's device files (MKNOD), DMI tables (SYS_RAWIO)
CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_LINUX_IMMUTABLE CAP_KILL CAP_SYS_PTRACE CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_SYS_ADMIN CAP_IPC_OWNER CAP_IPC_LOCK CAP_SYS_BOOT CAP_SYS_RESOURCE CAP_MKNOD CAP_SYS_RAWIO
AmbientCapabilities=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=~@obsolete @cpu-emulation @swap @clock
KeyringMode=private
# MemoryDenyWriteExecute stays off: the GPU's driver makes code at run time

[Install]
WantedBy=multi-user.target
"
    ))
}
