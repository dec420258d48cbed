//! Charts of peers as SVG: both axes are logarithmic, since peers differ by orders of magnitude.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (960, 540);
/// Room for the names, at the right.
const LEGEND: u32 = 250;
const FONT: &str = "sans-serif";
/// Between the lines of the legend.
const LEGEND_STEP: i32 = 30;

type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A median with its quartiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Spots that are joined.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) color: RGBColor,
    /// The one that the figure is about.
    pub(crate) bold: bool,
    pub(crate) spots: Vec<Spot>,
}

/// What is drawn; the series from top to bottom of the legend.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Where the x axis has its labels, in rising order; above 0.
    pub(crate) x_at: Vec<f64>,
    pub(crate) series: Vec<Series>,
}

impl Figure {
    /// The text of an SVG file.
    pub(crate) fn render(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        self.draw(&mut svg)?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn Error>> {
        let (first, last) = match (self.x_at.first(), self.x_at.last()) {
            (Some(first), Some(last)) if *first > 0.0 && last > first => (first, last),
            _ => return Err("a figure takes two places on its x axis, above 0".into()),
        };
        let spots = || self.series.iter().flat_map(|it| &it.spots);
        let lowest = spots().fold(f64::INFINITY, |low, it| low.min(it.low));
        let highest = spots().fold(0.0, |high: f64, it| high.max(it.high));
        if !(lowest > 0.0 && lowest <= highest && highest.is_finite()) {
            return Err("a figure takes something to show, above 0".into());
        }
        let margin = (last / first).log10() * 0.04;
        let xs = first.log10() - margin..last.log10() + margin;
        let ys = (lowest * 0.8).log10()..(highest * 1.25).log10();

        let whole = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        whole.fill(&WHITE)?;
        let root = whole.margin(12, 0, 0, 0).titled(&self.title, (FONT, 24))?;
        let (plot, legend) = root.split_horizontally(SIZE.0 - LEGEND);
        let mut context = ChartBuilder::on(&plot)
            .margin(16)
            .x_label_area_size(58)
            .y_label_area_size(80)
            .build_cartesian_2d(xs, ys)?;
        context
            .configure_mesh()
            .disable_mesh()
            .x_labels(0)
            .y_labels(0)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .axis_desc_style((FONT, 18))
            .draw()?;
        self.draw_grid(&whole, &mut context, lowest * 0.8..highest * 1.25)?;
        // What the figure is about lies on top.
        for bold in [false, true] {
            for series in self.series.iter().filter(|it| it.bold == bold) {
                series.draw(&mut context)?;
            }
        }
        for (i, series) in self.series.iter().enumerate() {
            series.draw_name(&legend, 40 + LEGEND_STEP * i as i32)?;
        }
        root.present()?;
        Ok(())
    }

    fn draw_grid(
        &self,
        whole: &DrawingArea<SVGBackend<'_>, Shift>,
        context: &mut Plot<'_, '_>,
        ys: std::ops::Range<f64>,
    ) -> Result<(), Box<dyn Error>> {
        let faint = BLACK.mix(0.12);
        let text = |h, v| (FONT, 16).into_text_style(whole).pos(Pos::new(h, v));
        let (xs, logs) = (context.x_range(), context.y_range());
        for &x in &self.x_at {
            let at = x.log10();
            context.draw_series(LineSeries::new([(at, logs.start), (at, logs.end)], faint))?;
            let (left, bottom) = context.backend_coord(&(at, logs.start));
            let style = text(HPos::Center, VPos::Top);
            whole.draw(&Text::new(number(x), (left, bottom + 8), style))?;
        }
        for y in ticks(ys) {
            let at = y.log10();
            context.draw_series(LineSeries::new([(xs.start, at), (xs.end, at)], faint))?;
            let (left, top) = context.backend_coord(&(xs.start, at));
            let style = text(HPos::Right, VPos::Center);
            whole.draw(&Text::new(number(y), (left - 8, top), style))?;
        }
        Ok(())
    }
}

impl Series {
    fn width(&self) -> u32 {
        if self.bold { 4 } else { 2 }
    }

    fn draw(&self, context: &mut Plot<'_, '_>) -> Result<(), Box<dyn Error>> {
        let at = |it: &Spot| (it.x.log10(), it.y.log10());
        let style = self.color.stroke_width(self.width());
        context.draw_series(LineSeries::new(self.spots.iter().map(at), style))?;
        let radius = 2 + self.width() as i32 / 2;
        let dot = |it: &Spot| Circle::new(at(it), radius, self.color.filled());
        context.draw_series(self.spots.iter().map(dot))?;
        context.draw_series(self.spots.iter().map(|it| {
            let [low, y, high] = [it.low, it.y, it.high].map(f64::log10);
            ErrorBar::new_vertical(it.x.log10(), low, y, high, self.color.filled(), 6)
        }))?;
        Ok(())
    }

    fn draw_name(
        &self,
        legend: &DrawingArea<SVGBackend<'_>, Shift>,
        y: i32,
    ) -> Result<(), Box<dyn Error>> {
        let style = self.color.stroke_width(self.width());
        legend.draw(&PathElement::new([(4, y), (30, y)], style))?;
        let size = if self.bold { 18 } else { 16 };
        let text = (FONT, size)
            .into_text_style(legend)
            .pos(Pos::new(HPos::Left, VPos::Center));
        legend.draw(&Text::new(self.name, (38, y), text))?;
        Ok(())
    }
}

/// 1, 2 and 5 times the powers of ten that are in a range.
fn ticks(range: std::ops::Range<f64>) -> Vec<f64> {
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    powers
        .flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10_f64.powi(power)))
        .filter(|it| range.contains(it))
        .collect()
}

/// With commas between thousands, and no more digits behind the point than it needs.
fn number(value: f64) -> String {
    if value < 1.0 {
        let text = format!("{value:.4}");
        return text.trim_end_matches('0').into();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let spot = |x, y| Spot {
            x,
            y,
            low: y * 0.9,
            high: y * 1.1,
        };
        let series = |name, bold, spots| Series {
            name,
            color: RGBColor(0, 114, 178),
            bold,
            spots,
        };
        Figure {
            title: "A title".into(),
            x: "bytes".into(),
            y: "M/s".into(),
            x_at: vec![32.0, 4_096.0],
            series: vec![
                series("first", true, vec![spot(32.0, 0.5), spot(4_096.0, 20.0)]),
                series("second", false, vec![spot(32.0, 1.5)]),
            ],
        }
    }

    #[test]
    fn a_figure_is_whole_and_says_what_it_shows() {
        let svg = figure().render().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in [
            "A title", "bytes", "M/s", "4,096", "0.5", "20", "first", "second",
        ] {
            assert!(
                svg.contains(&format!("\n{text}\n")),
                "{text} is not in {svg}"
            );
        }
        // A dot for each spot, and one of its error bar.
        assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
    }

    #[test]
    fn a_figure_of_nothing_is_an_error() {
        for x_at in [vec![], vec![1.0], vec![0.0, 1.0]] {
            assert!(Figure { x_at, ..figure() }.render().is_err());
        }
        let series = Vec::new();
        assert!(Figure { series, ..figure() }.render().is_err());
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.4..30.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        let texts = [0.05, 0.5, 20.0, 4_000.0].map(number);
        assert_eq!(texts, ["0.05", "0.5", "20", "4,000"]);
    }
}
