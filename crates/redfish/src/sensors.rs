//! Sensors: the newer collection of them where it is offered, else the older pages of temperatures, fans and power.

use crate::client::Client;
use crate::json;
use crate::places::{self, Seen};
use domain::hardware::Sensor;
use provider::ProviderResult;
use serde_json::Value;

const SENSORS_MAX: usize = 256;

pub async fn read(client: &Client, seen: &Seen) -> ProviderResult<Vec<Sensor>> {
    let (mut found, mut offered) = (Vec::new(), false);
    for path in places::chassis_of(client, seen).await? {
        let Some(chassis) = client.get_if_there(&path).await? else { continue };
        if let Some(sensors) = json::link(&chassis, "/Sensors") {
            offered = true;
            let all = places::members(client, &sensors, SENSORS_MAX).await?;
            found.extend(all.iter().filter(|s| !json::is_absent(s)).map(|s| sensor(s, "/Reading", &unit(s))));
            continue;
        }
        for (page, lists) in PAGES {
            let Some(at) = json::link(&chassis, page) else { continue };
            let Some(page) = client.get_if_there(&at).await? else { continue };
            offered = true;
            for (list, reading, unit) in *lists {
                let there = json::list(&page, list).iter().filter(|s| !json::is_absent(s));
                found.extend(there.map(|s| {
                    let unit = if *list == "/Fans" { fan_unit(s) } else { (*unit).to_owned() };
                    sensor(s, reading, &unit)
                }));
            }
        }
    }
    found.truncate(SENSORS_MAX);
    if offered { Ok(found) } else { Err(client.lacks("sensors")) }
}

/// Of each older page its lists, and in them the reading and its unit.
type Page = (&'static str, &'static [(&'static str, &'static str, &'static str)]);
const PAGES: &[Page] = &[
    ("/Thermal", &[("/Temperatures", "/ReadingCelsius", "degrees C"), ("/Fans", "/Reading", "RPM")]),
    (
        "/Power",
        &[
            ("/PowerControl", "/PowerConsumedWatts", "W"),
            ("/Voltages", "/ReadingVolts", "V"),
            ("/PowerSupplies", "/LastPowerOutputWatts", "W"),
        ],
    ),
];

fn fan_unit(fan: &Value) -> String {
    if json::text(fan, "/ReadingUnits") == "Percent" { "%".to_owned() } else { "RPM".to_owned() }
}

fn unit(sensor: &Value) -> String {
    match json::text(sensor, "/ReadingUnits").as_str() {
        "Cel" => "degrees C".to_owned(),
        "{rev}/min" => "RPM".to_owned(),
        other => other.to_owned(),
    }
}

fn sensor(value: &Value, reading: &str, unit: &str) -> Sensor {
    let number = json::text(value, reading);
    Sensor {
        name: json::first_text(value, &["/Name", "/MemberId", "/Id"]),
        reading: if number.is_empty() { String::new() } else { format!("{number} {unit}").trim().to_owned() },
        health: json::health(value),
    }
}
