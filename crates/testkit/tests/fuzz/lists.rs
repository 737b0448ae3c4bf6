//! Lists: filter, page size and page token as they come. A token leads on from where it was given, by whole pages
//! and to the end; any other text is refused.

use crate::wire::shape;
use crate::world::World;
use domain::{Error, Reason};
use service::PageRequest;
use testkit::fleet::admin;
use testkit::fuzz::Fuzz;

const LISTS: [&str; 5] = ["machines", "runs", "executions", "tokens", "audit"];

/// The ids on a page, and where it leads on to.
fn page(world: &World, list: &str, request: &PageRequest) -> Result<(Vec<String>, String), Error> {
    let (s, call) = (&world.service, admin());
    world.runtime.block_on(async {
        Ok(match list {
            "machines" => {
                let page = s.list_machines(&call, request).await?;
                (page.items.iter().map(|m| m.id.to_string()).collect(), page.next_page_token)
            }
            "runs" => {
                let page = s.list_runs(&call, request).await?;
                (page.items.iter().map(|r| r.run.id.to_string()).collect(), page.next_page_token)
            }
            "executions" => {
                let page = s.list_executions(request).await?;
                (page.items.iter().map(|e| e.id.to_string()).collect(), page.next_page_token)
            }
            "tokens" => {
                let page = s.list_tokens(request).await?;
                (page.items.iter().map(|t| t.id.to_string()).collect(), page.next_page_token)
            }
            _ => {
                let page = s.list_audit(request).await?;
                (page.items.iter().map(|e| e.number.to_string()).collect(), page.next_page_token)
            }
        })
    })
}

/// Everything, page by page.
fn walk(world: &World, list: &str, first: &PageRequest) -> Result<Vec<String>, Error> {
    let (mut request, mut all) = (first.clone(), Vec::new());
    loop {
        let (ids, next) = page(world, list, &request)?;
        all.extend(ids);
        if next.is_empty() || all.len() > 10_000 {
            return Ok(all);
        }
        request.page_token = next;
    }
}

#[test]
fn page_token() {
    let seeds = [
        "machines\n1\n\nNEXT",
        "runs\n1\n\n",
        "tokens\n1\n\nNEXT",
        "audit\n2\n\nNEXT",
        "machines\n2\nphase=FACTORY_READY\nNEXT",
        "executions\n1000\n\nNEXT",
    ];
    let words = [
        "machines",
        "runs",
        "executions",
        "tokens",
        "audit",
        "NEXT",
        "phase=READY",
        "role=admin",
        "-1",
        "1001",
        "AAAA",
        "_-",
        "=",
    ];
    Fuzz::new("page_token", module_path!()).seeds(seeds).words(words).inputs(2_500).run(|| {
        let world = World::new();
        move |input| {
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            let mut lines = text.splitn(4, '\n');
            let mut line = || lines.next().unwrap_or_default();
            let list = LISTS.into_iter().find(|l| *l == line()).unwrap_or("machines");
            let page_size = line().parse().unwrap_or(1);
            let mut request = PageRequest { filter: line().to_owned(), page_size, page_token: String::new() };
            let sent = line();
            let (ids, next) = match page(&world, list, &request) {
                Ok(page) => page,
                Err(e) => return refused(&e),
            };
            request.page_token = sent.replace("NEXT", &next);
            match page(&world, list, &request) {
                Err(e) if e.reason == Reason::InvalidPageToken && request.page_token != next => refused(&e),
                Err(e) => Err(format!("a token as it was given is refused: {e:?}")),
                Ok(_) if request.page_token.is_empty() => Ok("from the beginning".to_owned()),
                // a token of a later page that the input happens to spell is not found by chance
                Ok(_) if request.page_token != next => Err(format!("{:?} is taken for a token", request.page_token)),
                Ok((more, _)) => {
                    if more.iter().any(|id| ids.contains(id)) {
                        return Err(format!("the same again on the next page: {ids:?} {more:?}"));
                    }
                    let whole = PageRequest { page_size: 1_000, page_token: String::new(), ..request.clone() };
                    let by_pages = PageRequest { page_token: String::new(), ..request.clone() };
                    let (one, many) = (walk(&world, list, &whole), walk(&world, list, &by_pages));
                    if one == many { Ok("led on".to_owned()) } else { Err(format!("{one:?} by pages is {many:?}")) }
                }
            }
        }
    });
}

fn refused(e: &Error) -> Result<String, String> {
    let named = e.details.contains_key("field") && e.message.len() < 4_000;
    if named { Ok(shape(&format!("{:?} {}", e.reason, e.message))) } else { Err(format!("without its field: {e:?}")) }
}
