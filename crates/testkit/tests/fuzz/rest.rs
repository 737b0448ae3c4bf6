//! The REST door: any line, any headers, any body, over a real connection.

use crate::wire::{Asked, judged, of_rest};
use crate::world::World;
use testkit::fuzz::Fuzz;

const SEEDS: &[&str] = &[
    "GET /api/v1/machines?filter=labels.env%3Dprod+AND%20phase=READY&page_size=1&page_token=",
    "GET /api/v1/machines/m-1",
    "GET /api/v1/machines/m-1/why",
    "POST /api/v1/machines\nContent-Type: application/json\nX-Idempotency-Key: k-1\nX-Request-Id: r-1\n\n{\"machine_id\":\"m-9\",\"labels\":{\"a\":\"b\"},\"spec\":{\"provider\":\"sim\",\"mac_addresses\":[\"aa:bb:cc:dd:ee:ff\"],\"bmc_endpoint\":\"10.0.0.1\",\"system_uuid\":\"00000000-0000-0000-0000-000000000001\"},\"version\":\"0\"}",
    "PATCH /api/v1/machines/m-2?update_mask=labels.a\n\n{\"labels\":{\"a\":\"1\"},\"spec\":{\"rack\":null}}",
    "POST /api/v1/machines/m-2/phase\n\n{\"phase\":\"READY\",\"reason\":\"a test\"}",
    "GET /api/v1/plans",
    "GET /api/v1/plans/default-repave",
    "POST /api/v1/plans\n\n{\"plan_id\":\"p-1\",\"display_name\":\"P\",\"steps\":[{\"name\":\"a\",\"timeout_seconds\":60,\"max_retries\":0,\"ssh\":{\"command\":\"echo\",\"args\":[\"a\"],\"environment\":{\"A\":\"1\"}}},{\"name\":\"b\",\"netboot\":{\"mode\":\"PXE\",\"persistent\":true}},{\"name\":\"c\",\"rma\":{\"action\":\"open\",\"reason\":\"r\"}}]}",
    "POST /api/v1/runs\n\n{\"request_id\":\"q-1\",\"machine_id\":\"m-1\",\"type\":\"REPAVE\",\"plan_id\":\"\",\"parameters\":{\"image\":\"x\"},\"override_reason\":\"\"}",
    "GET /api/v1/runs?filter=machine_id%3Dm-3&page_size=5",
    "GET /api/v1/runs/RUN",
    "GET /api/v1/runs/RUN/why",
    "POST /api/v1/runs/RUN/cancel",
    "GET /api/v1/runs:watch?filter=run_id%3DRUN&after_sequence=0\nLast-Event-ID: 1",
    "GET /api/v1/runs/RUN/logs\nAccept: text/plain",
    "GET /api/v1/admin/executions?filter=machine_id%3Dm-3",
    "GET /api/v1/admin/executions/RUN",
    "POST /api/v1/admin/executions/RUN/cancel\n\n{\"reason\":\"a test\"}",
    "POST /api/v1/admin/freeze\n\n{\"reason\":\"a test\"}",
    "POST /api/v1/admin/unfreeze",
    "GET /api/v1/admin/freeze",
    "GET /api/v1/tokens?filter=role%3Dviewer",
    "POST /api/v1/tokens\n\n{\"name\":\"ci\",\"role\":\"viewer\",\"customer_id\":\"c\",\"ttl_seconds\":\"60\"}",
    "DELETE /api/v1/tokens/TOKEN",
    "GET /api/v1/me\nAuthorization: Bearer mwt_wrong",
    "GET /api/v1/events?after=0&no_follow=true&filter=kind%3Drun",
    "GET /api/v1/audit?filter=outcome%3Drefused",
    "GET /api/v1/why/m-1\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate: a=b",
    "GET /api/v1/openapi.json",
    "GET /metrics",
    "GET /healthz",
    "POST /api/v1/machines\nContent-Type: text/plain; charset=utf-16\nContent-Encoding: gzip\nExpect: 100-continue\n\n{}",
    "POST /api/v1/machines\nTransfer-Encoding: chunked\n\n2\r\n{}\r\n0\r\n\r\n",
    "POST /api/v1/machines\nContent-Length: 9\n\n{}",
    "OPTIONS * ",
];

const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "PUT ",
    "PATCH ",
    "DELETE ",
    "HEAD ",
    "/api/v1/",
    "machines",
    "runs",
    "plans",
    "tokens",
    "events",
    "audit",
    "why",
    "admin/executions",
    ":watch",
    "?filter=",
    "&page_size=",
    "&page_token=",
    "&after=",
    "update_mask=",
    "no_follow=true",
    "m-1",
    "m-2",
    "m-3",
    "RUN",
    "TOKEN",
    "Authorization: Bearer ",
    "Authorization: -",
    "Content-Type: application/json",
    "X-Idempotency-Key: ",
    "X-Request-Id: ",
    "grpc-timeout: 1n",
    "traceparent: ",
    "Last-Event-ID: ",
    "Accept: text/plain",
    "If-Match: ",
    "\n\n",
    "{}",
    "[]",
    "null",
    "\"labels\":{",
    "\"spec\":{",
    "\"steps\":[",
    "\"phase\":",
    "\"version\":",
    "READY",
    "IN_SERVICE",
    "REPAVE",
    "\"@type\":",
];

#[test]
fn rest() {
    Fuzz::new("rest", module_path!()).seeds(SEEDS.iter().map(|s| s.as_bytes())).words(WORDS).inputs(1_200).run(|| {
        let world = World::new();
        let (run, token) = world.ids();
        move |input| {
            let asked = Asked::read(input);
            let line = String::from_utf8_lossy(asked.line).replace("RUN", &run).replace("TOKEN", &token);
            let mut request = format!("{line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n").into_bytes();
            if !asked.has("authorization:") {
                request.extend(format!("Authorization: Bearer {}\r\n", world.token).as_bytes());
            }
            for header in &asked.headers {
                request.extend(*header);
                request.extend(b"\r\n");
            }
            if !asked.body.is_empty() && !asked.has("content-length:") && !asked.has("transfer-encoding:") {
                request.extend(format!("Content-Length: {}\r\n", asked.body.len()).as_bytes());
            }
            request.extend(b"\r\n");
            request.extend(asked.body);
            let shape = judged(&world, &request, of_rest)?;
            let kind: String = line.chars().take_while(|c| *c != '?').take(24).collect();
            Ok(if shape == "done" { format!("{kind} done") } else { shape })
        }
    });
}
