//! What befalls the processes: killed, stopped for a while or past their lease, handed over, started again;
//! clocks set forward and back; storms at the database and among the devices.

use crate::link::Life;
use crate::world::{LEASE, World};
use std::sync::Arc;
use std::time::Duration;

pub async fn rage(world: Arc<World>, until: Duration) {
    let nature = world.nature.clone();
    while nature.passed() < until {
        tokio::time::sleep(nature.millis(500, 9_000)).await;
        let place = usize::try_from(nature.below(world.places() as u64)).unwrap_or(0);
        match nature.below(100) {
            0..25 => kill(&world, place).await,
            25..45 => stop_and_go_on(&world, place).await,
            45..55 => {
                nature.count("process: handed over");
                world.hand_over(place).await;
                restart(&world, place).await;
            }
            55..70 => set_clock(&world, place),
            70..85 => {
                let most = nature.between(20, 400);
                nature.note(format!("storm at the database: {most} in a thousand"));
                nature.set_store_faults(most);
                tokio::time::sleep(nature.millis(500, 12_000)).await;
                nature.set_store_faults(nature.below(12));
            }
            _ => {
                let most = nature.between(100, 700);
                nature.note(format!("storm among the devices: {most} in a thousand"));
                nature.set_device_faults(most);
                tokio::time::sleep(nature.millis(1_000, 15_000)).await;
                nature.set_device_faults(nature.below(60));
            }
        }
    }
}

/// Faults off: everybody runs, and the clocks agree.
pub async fn calm(world: &World) {
    let nature = world.nature.clone();
    nature.calm();
    nature.note("calm");
    for place in 0..world.places() {
        if let Some(process) = world.process(place) {
            process.link.set(Life::Runs);
            process.set_clock(0);
        }
        while world.process(place).is_none() {
            world.start(place).await;
        }
    }
}

async fn kill(world: &World, place: usize) {
    if world.process(place).is_none() {
        return;
    }
    world.nature.count("process: killed");
    world.kill(place);
    restart(world, place).await;
}

async fn restart(world: &World, place: usize) {
    // at once, or after the others have taken over
    let pause = if world.nature.chance(500) { world.nature.millis(0, 2_000) } else { world.nature.millis(0, 60_000) };
    tokio::time::sleep(pause).await;
    world.start(place).await;
    if world.process(place).is_some() {
        world.nature.count("process: restarted");
    }
}

async fn stop_and_go_on(world: &World, place: usize) {
    let Some(process) = world.process(place) else { return world.start(place).await };
    let nature = &world.nature;
    let past_lease = nature.chance(500);
    let span = if past_lease { LEASE + nature.millis(1_000, 40_000) } else { nature.millis(10, 12_000) };
    nature.count(if past_lease { "process: stopped past its lease" } else { "process: stopped for a while" });
    nature.note(format!("server-{place}: stopped for {span:?}"));
    process.link.set(Life::Stopped);
    tokio::time::sleep(span).await;
    process.link.set(Life::Runs);
    nature.note(format!("server-{place}: goes on"));
}

fn set_clock(world: &World, place: usize) {
    let Some(process) = world.process(place) else { return };
    let micros = i64::try_from(world.nature.below(60_000_000)).unwrap_or(0) - 30_000_000;
    world.nature.count(if micros > 0 { "clock: set forward" } else { "clock: set back" });
    world.nature.note(format!("server-{place}: clock set {} ms off", micros / 1000));
    process.set_clock(micros);
}
