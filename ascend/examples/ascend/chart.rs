//! The pipes over time as an SVG.

use std::fmt::Display;

use amla::ProblemShape;
use amla_ascend::{Pipe, Work};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::trace::Trace;

const SIZE: (u32, u32) = (1400, 760);
const HEADER: i32 = 72;

/// A stage's name, and its colours for even and odd blocks.
type Stage = (&'static str, [RGBColor; 2]);
// Okabe and Ito's palette for colour blindness. Odd blocks are darker.
const C1: Stage = ("C1", [RGBColor(86, 180, 233), RGBColor(0, 114, 178)]);
const V1: Stage = ("V1", [RGBColor(90, 200, 160), RGBColor(0, 158, 115)]);
const RESCALE: Stage = ("Rescale", [RGBColor(204, 121, 167), RGBColor(160, 80, 130)]);
const C2: Stage = ("C2", [RGBColor(240, 150, 80), RGBColor(213, 94, 0)]);
const V2: Stage = ("V2", [RGBColor(240, 228, 66), RGBColor(200, 185, 30)]);
const LAST: Stage = ("Last", [RGBColor(90, 90, 90); 2]);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A drawing error, as text.
type Drawn<T> = Result<T, String>;

/// The SVG, with a panel for each of the trace's windows.
pub fn draw(trace: &Trace, shape: &ProblemShape) -> Drawn<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        let title = format!(
            "Ascend 910, one Cube core and its Vector cores, AIV0 and AIV1: s_q {}, s_k {}, {:.1} us",
            shape.s_q,
            shape.s_k,
            trace.end * 1e6
        );
        root.draw(&Text::new(title, (24, 12), ("sans-serif", 18)))
            .map_err(text)?;
        draw_legend(trace, &root)?;
        let (_, panels) = root.split_vertically(HEADER);
        for (panel, window) in panels.split_evenly((2, 1)).iter().zip(trace.windows) {
            draw_window(trace, window, panel)?;
        }
        root.present().map_err(text)?;
    }
    Ok(svg)
}

/// The colours of the stages that the trace has.
fn draw_legend(trace: &Trace, area: &Area) -> Drawn<()> {
    let stages = [C1, V1, RESCALE, C2, V2, LAST].into_iter();
    let stages = stages.filter(|(name, _)| trace.spans.iter().any(|s| stage(s.work).0.0 == *name));
    for (column, (name, colours)) in stages.enumerate() {
        let x = 24 + 110 * column as i32;
        for (half, colour) in colours.into_iter().enumerate() {
            let left = x + 14 * half as i32;
            let corners = [(left, 42), (left + 14, 56)];
            let sample = Rectangle::new(corners, colour.filled());
            area.draw(&sample).map_err(text)?;
        }
        let label = Text::new(name, (x + 36, 43), ("sans-serif", 14));
        area.draw(&label).map_err(text)?;
    }
    let label = Text::new(
        "light: even blocks, dark: odd blocks",
        (24 + 110 * 6, 43),
        ("sans-serif", 14),
    );
    area.draw(&label).map_err(text)
}

fn draw_window(
    trace: &Trace,
    (name, start, end): (&'static str, f64, f64),
    area: &Area,
) -> Drawn<()> {
    let lanes = Pipe::ALL.len() as f64;
    let (left, right) = (start * 1e6, end * 1e6);
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 16))
        .margin_left(12)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(left..right, lanes..0.0)
        .map_err(text)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_desc("us")
        .label_style(("sans-serif", 13))
        .draw()
        .map_err(text)?;
    for pipe in Pipe::ALL {
        let lane = pipe.index() as f64;
        let labels = chart.plotting_area();
        let (x, y) = labels.map_coordinate(&(left, lane + 0.3));
        area.draw(&Text::new(
            pipe.to_string(),
            (
                x - 60 - area.get_base_pixel().0,
                y - area.get_base_pixel().1,
            ),
            ("sans-serif", 13),
        ))
        .map_err(text)?;
    }
    let shown = trace
        .spans
        .iter()
        .filter(|s| s.end > start && s.start < end);
    chart
        .draw_series(shown.map(|span| {
            let lane = span.pipe.index() as f64;
            let (from, to) = (span.start.max(start) * 1e6, span.end.min(end) * 1e6);
            let corners = [(from, lane + 0.1), (to, lane + 0.9)];
            Rectangle::new(corners, colour(span.work).filled())
        }))
        .map_err(text)?;
    Ok(())
}

/// A work's stage and its item.
fn stage(work: Work) -> (Stage, usize) {
    match work {
        Work::C1(i) => (C1, i),
        Work::C2(i) => (C2, i),
        Work::V1(i) => (V1, i),
        Work::Rescale(i) => (RESCALE, i),
        Work::V2(i) => (V2, i),
        Work::Last(i) => (LAST, i),
    }
}

fn colour(work: Work) -> RGBColor {
    let ((_, colours), item) = stage(work);
    colours[item % 2]
}

fn text(error: impl Display) -> String {
    format!("cannot draw the plot: {error}")
}
