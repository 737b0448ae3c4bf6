//! Plots as SVG, written by hand: bars for ratios beside their goals, lines for what goes on in time or with
//! size. Colours in the middle of the scale, no background: they read on white as on black.

use crate::Outcome;
use crate::report::{Figure, Goal, Report, Series, middle, plain};
use std::fmt::Write as _;
use std::path::Path;

const INK: &str = "#7a7f87";
const MET: &str = "#3f8f6b";
const MISSED: &str = "#c4533f";
const COLOURS: [&str; 4] = ["#3f7fbf", "#c07f2f", "#3f8f6b", "#9f5fae"];
const WIDTH: f64 = 760.0;

pub fn draw(report: &Report, folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder)?;
    let mut sections: Vec<&str> = report.figures.iter().map(|f| f.section).collect();
    sections.dedup();
    for section in sections {
        let judged = |f: &&Figure| f.section == section && !matches!(f.goal, Goal::None) && f.ratio().is_finite();
        let figures: Vec<&Figure> = report.figures.iter().filter(judged).collect();
        if !figures.is_empty() {
            std::fs::write(folder.join(format!("{section}.svg")), bars(section, &figures)?)?;
        }
    }
    for (n, series) in report.series.iter().enumerate() {
        std::fs::write(folder.join(format!("{}-{}.svg", series.section, n + 1)), lines(series)?)?;
    }
    Ok(())
}

fn open(height: f64, title: &str) -> String {
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\" role=\"img\" aria-label=\"{title}\">\n<text x=\"10\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n"
    )
}

/// For each figure how far it is from its goal: the goal is at one for all, so that they stand side by side.
fn bars(section: &str, figures: &[&Figure]) -> Result<String, std::fmt::Error> {
    const ROW: f64 = 34.0;
    const LEFT: f64 = 10.0;
    let share = |f: &Figure| match f.goal {
        Goal::AtMost(x) | Goal::AtLeast(x) => f.ratio() / x,
        Goal::None => f64::NAN,
    };
    let longest = figures.iter().map(|f| share(f)).fold(1.25, f64::max).min(6.0);
    let scale = (WIDTH - LEFT - 90.0) / longest;
    let height = 50.0 + ROW * figures.len() as f64 + 24.0;
    let mut svg = open(height, &format!("{section}: measured as a share of the goal"));
    for (n, f) in figures.iter().enumerate() {
        let y = 44.0 + ROW * n as f64;
        let long = share(f).min(longest) * scale;
        let colour = if f.verdict() == "met" { MET } else { MISSED };
        let (word, goal) = match f.goal {
            Goal::AtMost(x) => ("at most", x),
            Goal::AtLeast(x) => ("at least", x),
            Goal::None => ("", f64::NAN),
        };
        let label = format!("{} {}: {} {}", f.database, f.what, plain(middle(&f.measured)), f.unit);
        let ratio = format!("{} ({word} {})", plain(f.ratio()), plain(goal));
        let (label, ratio, text_y, bar_y) = (escaped(&label), escaped(&ratio), y, y + 4.0);
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{text_y}\">{label} — {ratio}</text>")?;
        writeln!(svg, "<rect x=\"{LEFT}\" y=\"{bar_y}\" width=\"{long:.1}\" height=\"12\" fill=\"{colour}\"/>")?;
    }
    let (x, bottom) = (LEFT + scale, height - 24.0);
    writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"34\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{INK}\" stroke-dasharray=\"4 3\"/>"
    )?;
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">the goal</text>\n</svg>", bottom + 14.0)?;
    Ok(svg)
}

fn lines(series: &Series) -> Result<String, std::fmt::Error> {
    const HEIGHT: f64 = 300.0;
    const LEFT: f64 = 70.0;
    const TOP: f64 = 40.0;
    let (right, bottom) = (WIDTH - 20.0, HEIGHT - 46.0);
    let points = || series.lines.iter().flat_map(|(_, points)| points.iter().copied());
    let most = |f: fn((f64, f64)) -> f64| points().map(f).fold(0.0, f64::max);
    let least_x = points().map(|p| p.0).fold(f64::INFINITY, f64::min).max(0.0);
    // sizes that span decades are drawn by decades
    let decades = least_x > 0.0 && most(|p| p.0) / least_x >= 50.0 && points().count() < 12;
    let spot = |x: f64| if decades { x.log10() } else { x };
    let (from, to) = if decades { (spot(least_x), spot(most(|p| p.0))) } else { (0.0, most(|p| p.0).max(1e-9)) };
    let top = nice(most(|p| p.1) * 1.1);
    let at_x = |x: f64| LEFT + (spot(x) - from) / (to - from).max(1e-9) * (right - LEFT);
    let at_y = |y: f64| bottom - y / top * (bottom - TOP);
    let mut svg = open(HEIGHT, &series.title);
    for n in 0..=4 {
        let y = top * f64::from(n) / 4.0;
        let (line, label) = (at_y(y), plain(y));
        writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{line:.1}\" x2=\"{right}\" y2=\"{line:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.3\"/>"
        )?;
        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, line + 4.0)?;
    }
    let ticks: Vec<f64> =
        if decades { points().map(|p| p.0).collect() } else { (0..=5).map(|n| to * f64::from(n) / 5.0).collect() };
    for x in ticks {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            at_x(x),
            bottom + 16.0,
            plain(x)
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(LEFT, right),
        bottom + 34.0,
        escaped(series.x)
    )?;
    writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", TOP - 6.0, escaped(series.y))?;
    for ((name, points), (n, colour)) in series.lines.iter().zip(COLOURS.iter().enumerate().cycle()) {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
        writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" points=\"{}\"/>",
            path.join(" ")
        )?;
        let y = TOP + 6.0 + 14.0 * n as f64;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
            right,
            escaped(name)
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// The next round number.
fn nice(x: f64) -> f64 {
    let unit = 10f64.powf(x.max(1e-9).log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|n| n * unit).find(|n| *n >= x).unwrap_or(x)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_a_round_number() {
        assert_eq!([0.7, 11.0, 240.0, 1000.0].map(nice), [1.0, 20.0, 250.0, 1000.0]);
    }

    #[test]
    fn a_line_chart_shows_every_point_and_hides_no_text() {
        let line = ("a < b".to_owned(), vec![(1_000.0, 1.0), (10_000.0, 2.0), (100_000.0, 3.0)]);
        let svg =
            lines(&Series { section: "s", title: "t".to_owned(), x: "n", y: "ms", lines: vec![line] }).expect("drawn");
        assert!(svg.contains("a &lt; b") && svg.contains("100,000") && !svg.contains("NaN"), "{svg}");
        let path = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a path");
        assert_eq!(path.split(' ').count(), 3);
    }
}
