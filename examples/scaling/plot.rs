//! Speed-up over threads as an SVG.

use std::fmt::Display;

use plotters::prelude::*;

use crate::point::Point;

const SIZE: (u32, u32) = (900, 620);
// Okabe and Ito's colours, which the colour-blind can tell apart.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(110, 110, 110),
    RGBColor(0, 0, 0),
];

/// The SVG, of the points without a limit of bandwidth.
pub fn draw(points: &[Point]) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        let most = points.iter().map(|point| point.workers).max().unwrap_or(1);
        let axis = 1.0..(most as f64).max(2.0);
        let mut chart = ChartBuilder::on(&root)
            .caption("Speed-up, simulated", ("sans-serif", 18))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(
                axis.clone().log_scale().base(2.0),
                axis.log_scale().base(2.0),
            )
            .map_err(text)?;
        chart
            .configure_mesh()
            .x_desc("threads")
            .y_desc("times as fast as one")
            .label_style(("sans-serif", 14))
            .draw()
            .map_err(text)?;
        let line =
            |points: Vec<(f64, f64)>, style| std::iter::once(PathElement::new(points, style));
        let ideal = [1.0, most as f64].map(|x| (x, x)).to_vec();
        let grey = RGBColor(170, 170, 170).stroke_width(1);
        chart.draw_series(line(ideal, grey)).map_err(text)?;
        let free: Vec<_> = points.iter().filter(|p| !p.bandwidth_limited).collect();
        let curves = free.chunk_by(|a, b| a.shape == b.shape);
        for (curve, colour) in curves.zip(COLOURS.into_iter().cycle()) {
            let [first, ..] = curve else { continue };
            let style = colour.stroke_width(2);
            let of_curve = curve.iter().map(|p| (p.workers as f64, p.speedup.max(1.0)));
            chart
                .draw_series(line(of_curve.collect(), style))
                .map_err(text)?
                .label(format!(
                    "{} heads, {} keys",
                    first.shape.h_q, first.shape.s_k
                ))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 14))
            .background_style(WHITE)
            .draw()
            .map_err(text)?;
        root.present().map_err(text)?;
    }
    Ok(svg)
}

fn text(error: impl Display) -> String {
    format!("cannot draw the plot: {error}")
}
