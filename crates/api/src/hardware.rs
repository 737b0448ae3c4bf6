//! `HardwareService`.

use crate::convert::{self, timestamp};
use crate::error::to_status;
use crate::gate::{open, open_unhashed};
use domain::Timestamp;
use domain::hardware::{ConsoleInfo, ControllerTask, Description, EventLogEntry, Firmware, Health, Nic, Part, Sensor};
use proto::baremetal::v1::Machine as WireMachine;
use proto::millwright::v1 as pb;
use proto::millwright::v1::hardware_service_server::HardwareService;
use service::{Discover, HardwareChange, Service, SetBoot};
use tonic::{Request, Response, Status};

pub(crate) struct Hardware(pub Service);

pub(crate) fn change(c: HardwareChange) -> pb::HardwareChange {
    let state = c.acted.state().to_owned();
    pb::HardwareChange { machine_id: c.machine_id, what: c.what, state, task: c.acted.task }
}

fn health(health: Option<Health>) -> String {
    health.map_or("", Health::as_str).to_owned()
}

fn part(p: Part) -> pb::HardwarePart {
    pb::HardwarePart {
        name: p.name,
        kind: p.kind,
        model: p.model,
        serial_number: p.serial_number,
        health: health(p.health),
        size: p.size,
    }
}

fn description(machine_id: String, d: Description, read_at: Timestamp) -> pb::HardwareDescription {
    let nic = |n: Nic| pb::HardwareNic {
        name: n.name,
        mac_address: n.mac_address,
        link_up: n.link_up,
        speed_mbps: n.speed_mbps,
    };
    let firmware = |f: Firmware| pb::FirmwareVersion { name: f.name, version: f.version, updateable: f.updateable };
    let power = match d.powered {
        Some(true) => "on",
        Some(false) => "off",
        None => "",
    };
    pb::HardwareDescription {
        machine_id,
        source: d.source,
        read_at: Some(timestamp(read_at)),
        manufacturer: d.manufacturer,
        model: d.model,
        serial_number: d.serial_number,
        system_uuid: d.system_uuid,
        hostname: d.hostname,
        power: power.to_owned(),
        health: health(d.health),
        boot: d.boot.map(|b| pb::BootSetting { mode: b.mode.as_str().to_owned(), persistent: b.persistent }),
        cpus: d.cpus.into_iter().map(part).collect(),
        memory_mib: d.memory_mib,
        drives: d.drives.into_iter().map(part).collect(),
        nics: d.nics.into_iter().map(nic).collect(),
        devices: d.devices.into_iter().map(part).collect(),
        firmware: d.firmware.into_iter().map(firmware).collect(),
        capabilities: d.capabilities,
        gaps: d.gaps,
    }
}

fn console(c: ConsoleInfo) -> pb::Console {
    pb::Console { kind: c.kind, protocol: c.protocol, connect: c.connect, note: c.note }
}

fn event(e: EventLogEntry) -> pb::HardwareEvent {
    pb::HardwareEvent { id: e.id, at: e.at.map(timestamp), severity: e.severity, message: e.message }
}

fn sensor(s: Sensor) -> pb::Sensor {
    pb::Sensor { name: s.name, reading: s.reading, health: health(s.health) }
}

fn task(machine_id: String, task: String, state: ControllerTask) -> pb::HardwareTask {
    let (state, percent, message) = match state {
        ControllerTask::Running { percent, message } => ("running", percent.map(u32::from), message),
        ControllerTask::Done { message } => ("done", Some(100), message),
        ControllerTask::Failed { message } => ("failed", None, message),
    };
    pb::HardwareTask { machine_id, task, state: state.to_owned(), percent, message }
}

type Answer<T> = Result<Response<T>, Status>;

fn changed(result: Result<HardwareChange, domain::Error>) -> Answer<pb::HardwareChange> {
    result.map(|c| Response::new(change(c))).map_err(to_status)
}

#[tonic::async_trait]
impl HardwareService for Hardware {
    async fn inspect_machine(&self, request: Request<pb::InspectMachineRequest>) -> Answer<pb::HardwareDescription> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let read_at = self.0.now();
        let found = self.0.inspect_machine(&call, &r.machine_id).await.map_err(to_status)?;
        Ok(Response::new(description(r.machine_id, found, read_at)))
    }

    async fn set_power(&self, request: Request<pb::SetPowerRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.set_power(&call, &r.machine_id, &r.action, &r.reason).await)
    }

    async fn set_boot(&self, request: Request<pb::SetBootRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let boot = SetBoot { mode: r.mode, persistent: r.persistent };
        changed(self.0.set_boot(&call, &r.machine_id, boot, &r.reason).await)
    }

    async fn get_console_info(&self, request: Request<pb::GetConsoleInfoRequest>) -> Answer<pb::ConsoleInfo> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let consoles = self.0.console_info(&call, &r.machine_id).await.map_err(to_status)?;
        let consoles = consoles.into_iter().map(console).collect();
        Ok(Response::new(pb::ConsoleInfo { machine_id: r.machine_id, consoles }))
    }

    async fn list_hardware_events(
        &self,
        request: Request<pb::ListHardwareEventsRequest>,
    ) -> Answer<pb::ListHardwareEventsResponse> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let events = self.0.hardware_events(&call, &r.machine_id, r.limit).await.map_err(to_status)?;
        Ok(Response::new(pb::ListHardwareEventsResponse { events: events.into_iter().map(event).collect() }))
    }

    async fn list_sensors(&self, request: Request<pb::ListSensorsRequest>) -> Answer<pb::ListSensorsResponse> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let sensors = self.0.sensors(&call, &r.machine_id).await.map_err(to_status)?;
        Ok(Response::new(pb::ListSensorsResponse { sensors: sensors.into_iter().map(sensor).collect() }))
    }

    async fn identify_machine(&self, request: Request<pb::IdentifyMachineRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.identify_machine(&call, &r.machine_id, r.on).await)
    }

    async fn get_media(&self, request: Request<pb::GetMediaRequest>) -> Answer<pb::Media> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let url = self.0.media(&call, &r.machine_id).await.map_err(to_status)?.unwrap_or_default();
        Ok(Response::new(pb::Media { machine_id: r.machine_id, url }))
    }

    async fn insert_media(&self, request: Request<pb::InsertMediaRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.insert_media(&call, &r.machine_id, &r.url, &r.reason).await)
    }

    async fn eject_media(&self, request: Request<pb::EjectMediaRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.eject_media(&call, &r.machine_id).await)
    }

    async fn get_bios(&self, request: Request<pb::GetBiosRequest>) -> Answer<pb::Bios> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let bios = self.0.bios(&call, &r.machine_id).await.map_err(to_status)?;
        Ok(Response::new(pb::Bios { machine_id: r.machine_id, current: bios.current, pending: bios.pending }))
    }

    async fn set_bios(&self, request: Request<pb::SetBiosRequest>) -> Answer<pb::HardwareChange> {
        // values may be passwords: the service keeps no plain hash of them
        let (call, r) = open_unhashed(request, |r| &r.machine_id)?;
        changed(self.0.set_bios(&call, &r.machine_id, r.attributes, &r.reason).await)
    }

    async fn update_firmware(&self, request: Request<pb::UpdateFirmwareRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.update_firmware(&call, &r.machine_id, &r.image_url, r.targets, &r.reason).await)
    }

    async fn get_hardware_task(&self, request: Request<pb::GetHardwareTaskRequest>) -> Answer<pb::HardwareTask> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let state = self.0.hardware_task(&call, &r.machine_id, &r.task).await.map_err(to_status)?;
        Ok(Response::new(task(r.machine_id, r.task, state)))
    }

    async fn rotate_bmc_password(&self, request: Request<pb::RotateBmcPasswordRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.rotate_bmc_password(&call, &r.machine_id, &r.reason).await)
    }

    async fn repin_machine(&self, request: Request<pb::RepinMachineRequest>) -> Answer<pb::HardwareChange> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        changed(self.0.repin_machine(&call, &r.machine_id, &r.reason).await)
    }

    async fn discover_hardware(
        &self,
        request: Request<pb::DiscoverHardwareRequest>,
    ) -> Answer<pb::DiscoverHardwareResponse> {
        let (call, r) = open(request, |r| &r.bmc_endpoint)?;
        let read_at = self.0.now();
        let discover =
            Discover { bmc_endpoint: r.bmc_endpoint, credentials_ref: r.credentials_ref, provider: r.provider };
        let found = self.0.discover_hardware(&call, discover).await.map_err(to_status)?;
        let machine = WireMachine { spec: Some(convert::spec(found.spec)), ..WireMachine::default() };
        let description = Some(description(String::new(), found.description, read_at));
        Ok(Response::new(pb::DiscoverHardwareResponse { description, machine: Some(machine) }))
    }
}
