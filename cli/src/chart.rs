//! Line charts as SVG, for this package and the benchmarks of its repository: no API for others.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The colours of Okabe and Ito, which the colour-blind can tell apart, without yellow.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// Width and height of a chart that stands alone.
const SIZE: (u32, u32) = (700, 560);
/// The same of one that stands beside others.
const PANEL: (u32, u32) = (480, 500);
/// Room for the names of the lines, at the right.
const LEGEND: u32 = 260;
const FONT: &str = "sans-serif";
const GRID: f64 = 0.12;

/// A median with its quartiles, at `x`.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Its place, in the unit of the chart's x axis.
    pub x: f64,
    /// The median, in the unit of the y axis.
    pub y: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
}

/// Points that are joined.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// From left to right.
    pub points: Vec<Point>,
}

/// Lines over a logarithmic x axis. The y axis begins at 0.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What stands above it.
    pub title: String,
    /// What the x axis is of, with its unit.
    pub x: String,
    /// What the y axis is of, with its unit.
    pub y: String,
    /// The y axis is of ratios, and has a mark at 1.
    pub y_is_ratio: bool,
    /// Where the x axis has its labels; `x_labels` are their texts.
    pub x_at: Vec<f64>,
    /// The texts of the labels, one for each place.
    pub x_labels: Vec<String>,
    /// What is drawn.
    pub lines: Vec<Line>,
}

impl Chart {
    /// The text of an SVG file.
    ///
    /// # Errors
    ///
    /// Where the x axis has not two places above 0, from left to right.
    pub fn render(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        let look = Look {
            size: SIZE,
            is_graded: false,
        };
        draw(&mut svg, &self.title, &[(self, None)], look)?;
        Ok(svg)
    }
}

/// Charts beside each other, whose lines have the same names.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// What stands above all of them.
    pub title: String,
    /// From left to right, each with what others have measured, as points that are not joined.
    pub panels: Vec<(Chart, Option<Line>)>,
}

impl Sheet {
    /// The text of an SVG file.
    ///
    /// # Errors
    ///
    /// As [`Chart::render`]; and where there is no panel.
    pub fn render(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        let panels: Vec<_> = self
            .panels
            .iter()
            .map(|(chart, others)| (chart, others.as_ref()))
            .collect();
        let look = Look {
            size: PANEL,
            is_graded: true,
        };
        draw(&mut svg, &self.title, &panels, look)?;
        Ok(svg)
    }
}

/// How a figure is drawn.
#[derive(Clone, Copy)]
struct Look {
    /// Width and height of a panel.
    size: (u32, u32),
    /// Lines are wider the further below others they lie, so that those which are the same are seen.
    is_graded: bool,
}

type Panel<'a> = (&'a Chart, Option<&'a Line>);
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(
    svg: &mut String,
    title: &str,
    panels: &[Panel<'_>],
    look: Look,
) -> Result<(), Box<dyn Error>> {
    let Some((first, _)) = panels.first() else {
        return Err("there is no chart to draw".into());
    };
    let (width, height) = look.size;
    let all = width * panels.len() as u32;
    let whole = SVGBackend::with_string(svg, (all + LEGEND, height)).into_drawing_area();
    whole.fill(&WHITE)?;
    let root = whole.margin(12, 0, 0, 0).titled(title, (FONT, 24))?;
    let (plots, legend) = root.split_horizontally(all);
    // One y axis for all, so that they can be compared.
    let least = if first.y_is_ratio { 1.0 } else { 0.0 };
    let highest = panels.iter().fold(least, |top: f64, (chart, others)| {
        let lines = chart.lines.iter().chain(*others);
        let points = lines.flat_map(|line| &line.points);
        points.fold(top, |top, point| top.max(point.high))
    });
    let top = if highest > 0.0 { highest * 1.08 } else { 1.0 };
    for (panel, area) in panels.iter().zip(plots.split_evenly((1, panels.len()))) {
        let area = match panels.len() {
            1 => area,
            _ => area.titled(&panel.0.title, (FONT, 18))?,
        };
        draw_panel(&area, &whole, *panel, look, top)?;
    }
    let lines = first.lines.iter().zip(PALETTE.iter().cycle());
    let mut y = 40;
    for (line, color) in lines {
        legend.draw(&PathElement::new([(4, y), (30, y)], color.stroke_width(3)))?;
        legend.draw(&Text::new(line.name.clone(), (38, y - 8), (FONT, 16)))?;
        y += 28;
    }
    let mut told: Vec<&str> = Vec::new();
    for others in panels.iter().filter_map(|panel| panel.1) {
        if !told.contains(&others.name.as_str()) {
            told.push(&others.name);
            legend.draw(&Circle::new((17, y), 6, BLACK.stroke_width(2)))?;
            legend.draw(&Text::new(others.name.clone(), (38, y - 8), (FONT, 16)))?;
            y += 28;
        }
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    area: &Area<'_>,
    whole: &Area<'_>,
    (chart, others): Panel<'_>,
    look: Look,
    top: f64,
) -> Result<(), Box<dyn Error>> {
    let (first, last) = match (chart.x_at.first(), chart.x_at.last()) {
        (Some(first), Some(last)) if *first > 0.0 && last > first => (first, last),
        _ => return Err("a chart takes two places on its x axis, above 0".into()),
    };
    let margin = (last / first).log10() * 0.03;
    let range = first.log10() - margin..last.log10() + margin;
    let mut context = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(58)
        .y_label_area_size(70)
        .build_cartesian_2d(range.clone(), 0.0..top)?;
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(GRID))
        .disable_x_mesh()
        .x_labels(0)
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .y_label_formatter(&|y| match top {
            10.0.. => format!("{y:.0}"),
            _ => format!("{y:.1}"),
        })
        .axis_desc_style((FONT, 18))
        .label_style((FONT, 16))
        .draw()?;
    let centered = (FONT, 16)
        .into_text_style(whole)
        .pos(Pos::new(HPos::Center, VPos::Top));
    for (x, label) in chart.x_at.iter().zip(&chart.x_labels) {
        let x = x.log10();
        context.draw_series(LineSeries::new([(x, 0.0), (x, top)], BLACK.mix(GRID)))?;
        let (at, bottom) = context.backend_coord(&(x, 0.0));
        whole.draw(&Text::new(
            label.clone(),
            (at, bottom + 8),
            centered.clone(),
        ))?;
    }
    if chart.y_is_ratio {
        let one = [(range.start, 1.0), (range.end, 1.0)];
        context.draw_series(LineSeries::new(one, BLACK.mix(0.5)))?;
    }
    for (i, (line, color)) in chart.lines.iter().zip(PALETTE.iter().cycle()).enumerate() {
        let at = |point: &Point| (point.x.log10(), point.y);
        let width = match look.is_graded {
            true => 1 + chart.lines.len() - i,
            false => 2,
        };
        context.draw_series(LineSeries::new(
            line.points.iter().map(at),
            color.stroke_width(width as u32),
        ))?;
        context.draw_series(
            line.points
                .iter()
                .map(|point| Circle::new(at(point), 3, color.filled())),
        )?;
        let spread = line.points.iter().filter(|it| it.low < it.high);
        context.draw_series(spread.map(|it| {
            ErrorBar::new_vertical(it.x.log10(), it.low, it.y, it.high, color.filled(), 6)
        }))?;
    }
    if let Some(line) = others {
        let points = line.points.iter().map(|it| (it.x.log10(), it.y));
        context.draw_series(points.map(|at| Circle::new(at, 6, BLACK.stroke_width(2))))?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let point = |x, y| Point {
            x,
            y,
            low: y - 0.1,
            high: y + 0.1,
        };
        Chart {
            title: "A title".into(),
            x: "clients".into(),
            y: "gain".into(),
            y_is_ratio: true,
            x_at: vec![10.0, 100.0],
            x_labels: vec!["ten".into(), "a hundred".into()],
            lines: vec![
                Line {
                    name: "first".into(),
                    points: vec![point(10.0, 0.5), point(100.0, 2.0)],
                },
                Line {
                    name: "second".into(),
                    points: vec![point(10.0, 1.5)],
                },
            ],
        }
    }

    #[test]
    fn a_chart_is_whole_and_says_what_it_shows() {
        let svg = chart().render().unwrap();
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
        for text in [
            "A title",
            "clients",
            "gain",
            "ten",
            "a hundred",
            "first",
            "second",
        ] {
            assert!(
                svg.contains(&format!("\n{text}\n")),
                "{text} is not in {svg}"
            );
        }
        // The mark at 1 and both lines.
        assert!(svg.matches("<polyline").count() >= 3, "{svg}");
    }

    #[test]
    fn a_sheet_has_every_panel_and_names_each_line_once() {
        let others = Line {
            name: "seen by others".into(),
            points: vec![chart().lines[1].points[0]],
        };
        let named = |title: &str| Chart {
            title: title.into(),
            ..chart()
        };
        let panels = vec![
            (named("left"), Some(others.clone())),
            (named("right"), Some(others)),
        ];
        let sheet = Sheet {
            title: "Both".into(),
            panels,
        };
        let svg = sheet.render().unwrap();
        for (text, times) in [
            ("Both", 1),
            ("left", 1),
            ("right", 1),
            ("clients", 2),
            ("first", 1),
            ("seen by others", 1),
        ] {
            let found = svg.matches(&format!("\n{text}\n")).count();
            assert_eq!(found, times, "{text} in {svg}");
        }
        let none = Sheet {
            panels: vec![],
            ..sheet
        };
        assert!(none.render().is_err());
    }

    #[test]
    fn an_axis_without_extent_is_an_error() {
        for x_at in [vec![], vec![1.0], vec![0.0, 1.0]] {
            assert!(Chart { x_at, ..chart() }.render().is_err());
        }
    }
}
