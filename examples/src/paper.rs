//! The paper's figures (tab:perfexp): batch 96, 128 heads, on an Ascend 910 and on a GPU of 989
//! TFLOPS and 3.35 TB/s that runs `FlashMLA`.

use amla::ProblemShape;

/// Its batch.
pub const BATCH: usize = 96;
/// Its context lengths.
pub const CONTEXTS: [usize; 6] = [1024, 2048, 3072, 4096, 6144, 16384];
/// Its numbers of query positions.
pub const S_Q: [usize; 2] = [1, 2];

/// Duration and FLOPS utilization.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Duration in microseconds.
    pub microseconds: f64,
    /// FU, a fraction.
    pub utilization: f64,
}

/// The paper's figures for one shape.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// On the Ascend 910.
    pub ascend: Figure,
    /// On the GPU.
    pub gpu: Figure,
}

/// Microseconds and percent of the 910 and of the GPU, for each of [`S_Q`] and [`CONTEXTS`].
const TABLE: [[[f64; 4]; 6]; 2] = [
    [
        [95.0, 40.9, 85.0, 32.6],
        [140.0, 55.1, 128.0, 43.3],
        [186.0, 62.4, 173.0, 48.0],
        [241.0, 64.1, 215.0, 51.5],
        [331.0, 70.2, 316.0, 52.6],
        [830.0, 74.5, 766.0, 57.8],
    ],
    [
        [135.0, 57.3, 115.0, 48.1],
        [219.0, 70.7, 196.0, 56.5],
        [306.0, 75.8, 278.0, 59.8],
        [388.0, 79.7, 374.0, 59.2],
        [565.0, 82.2, 527.0, 63.0],
        [1427.0, 86.8, 1314.0, 67.4],
    ],
];

/// The figures for a shape of any batch, if it is one of the paper's.
pub fn figures(shape: &ProblemShape) -> Option<Figures> {
    if shape.h_q != 128 {
        return None;
    }
    let row = S_Q.iter().position(|&s_q| s_q == shape.s_q)?;
    let column = CONTEXTS.iter().position(|&s_k| s_k == shape.s_k)?;
    let figure = |microseconds, percent| Figure {
        microseconds,
        utilization: percent / 100.0,
    };
    let [ascend, ascend_fu, gpu, gpu_fu] = TABLE[row][column];
    Some(Figures {
        ascend: figure(ascend, ascend_fu),
        gpu: figure(gpu, gpu_fu),
    })
}
