//! What an erasure proves itself by: how each disk was erased, and what was read back from it. Whoever only says that it is
//! done has proven nothing.

use serde_json::Value;

/// `Err`: what is missing, for whoever must look at the disks.
pub fn proven(evidence: &Value) -> Result<(), String> {
    let disks = evidence.get("disks").and_then(Value::as_array).filter(|disks| !disks.is_empty());
    let Some(disks) = disks else { return Err("no disk is named in its evidence".to_owned()) };
    for disk in disks {
        let name = disk.get("disk").and_then(Value::as_str).unwrap_or("a disk without a name");
        one(disk).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn one(disk: &Value) -> Result<(), String> {
    let filled = |key: &str| disk.get(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if disk.get("method").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err("how it was erased is not said".to_owned());
    }
    if !filled("ranges") && !filled("sanitize") {
        return Err("neither what was overwritten nor what the device said of itself is there".to_owned());
    }
    if !filled("samples") {
        return Err("nothing was read back from it".to_owned());
    }
    match disk.get("verified") {
        Some(Value::Bool(true)) => Ok(()),
        Some(_) | None => Err("what was read back is not what an erased disk holds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Value {
        json!({ "disks": [{
            "disk": "vda", "method": "overwrite", "sanitize": [], "ranges": [{ "from": 0, "bytes": 512 }],
            "samples": [{ "offset": 0, "zero": true }], "verified": true,
        }] })
    }

    #[test]
    fn each_part_is_needed() {
        assert_eq!(proven(&good()), Ok(()));
        for nothing in [Value::Null, json!([]), json!({}), json!({ "disks": [] }), json!({ "disks": "vda" })] {
            assert!(proven(&nothing).is_err(), "{nothing}");
        }
        for (key, value) in [
            ("method", json!("")),
            ("method", Value::Null),
            ("ranges", json!([])),
            ("samples", json!([])),
            ("verified", json!(false)),
            ("verified", json!("true")),
        ] {
            let mut evidence = good();
            evidence["disks"][0][key] = value;
            assert!(proven(&evidence).is_err_and(|why| why.starts_with("vda: ")), "{evidence}");
        }
        // one disk that is proven does not prove another
        let mut two = good();
        let Some(disks) = two["disks"].as_array_mut() else { return };
        disks.push(json!({ "disk": "vdb", "method": "overwrite" }));
        assert!(proven(&two).is_err_and(|why| why.starts_with("vdb: ")));
    }

    #[test]
    fn a_device_that_erased_itself_needs_no_ranges() {
        let mut evidence = good();
        evidence["disks"][0]["ranges"] = json!([]);
        evidence["disks"][0]["sanitize"] = json!([{ "method": "nvme sanitize, block erase", "result": "ok" }]);
        assert_eq!(proven(&evidence), Ok(()));
    }
}
